// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"agentrun/config"
	"agentrun/governance"
	"agentrun/images"
	"agentrun/internal/hinted"
	"agentrun/internal/read"
	"agentrun/internal/rootless"
	"agentrun/internal/verb"
	"agentrun/profiles"
	"agentrun/supervisor"
	"agentrun/supervisor/daemon"
	"agentrun/supervisor/homes"
	"agentrun/supervisor/killhooks"
	"agentrun/supervisor/live"
	"agentrun/supervisor/sandboxes"
)

// global are the flags that every command has. Of flag, environment, configuration file and default,
// the first that says something counts.
type global struct {
	supervisor.Node
	serve daemon.Config // of the configuration file

	caller     *supervisor.Caller
	said       globalFlags
	served     bool                // it is a client of this daemon
	runs       bool                // the command is exec
	kills      bool                // the command is kill
	unheaded   bool                // its flags come without headings
	creates    bool                // the command is create, asked for over the daemon's API
	request    *supervisor.Request // what the client asks for; nil: nothing is to be run
	sandbox    *sandboxes.Sandbox  // that is to be created by it; nil: it is to be run
	unknown    error               // a command that there is not
	detachedFD int                 // this process is the supervisor of a detached run
}

// globalFlags are these flags as they were given; empty: not at all.
type globalFlags struct {
	stateDir, runDir, config, logLevel, logFormat string
	detachedFD                                    int
}

// configFile is config.yaml. Unknown keys are errors: a misspelt one would be a wish ignored.
type configFile struct {
	StateDir    string   `yaml:"state_dir"`
	RunDir      string   `yaml:"run_dir"`
	LogLevel    string   `yaml:"log_level"`
	LogFormat   string   `yaml:"log_format"`
	ProfileDirs []string `yaml:"profile_dirs"`
	Gateway     string   `yaml:"gateway"` // absolute path of the node's gateway.yaml; empty: the usual one
	Keys        string   `yaml:"keys"`    // "required": every run needs an agent's key; or "optional", the default
	Audit       struct {
		Sync string `yaml:"sync"` // "always", or empty: what H-28 asks for
	} `yaml:"audit"`
	Serve   daemon.Config       `yaml:"serve"`
	Control accessConfig        `yaml:"control"`
	Kill    killhooks.Config    `yaml:"kill"`
	Live    liveConfig          `yaml:"live"`
	Safety  live.Codes          `yaml:"safety"`
	Git     supervisor.Git      `yaml:"git"`
	Ranges  profiles.RangeRules `yaml:"ranges"` // nil: nothing is said of them
	Homes   homes.Config        `yaml:"homes"`
	Images  images.Policy       `yaml:"images"`

	path     string   // of this file, or of that which there would be
	gateways []string // Gateway of this file, and of the machine's
	keys     bool     // either wants them
}

// liveConfig is how long a live run may take to get into another ring (M-22).
type liveConfig struct {
	ApplyTime time.Duration `yaml:"apply_time"` // 0: 90 ms, of the 100 of M-22
}

const (
	leastApplyTime = 90 * time.Millisecond
	mostApplyTime  = 5 * time.Second
)

func (l liveConfig) check() error {
	if t := l.ApplyTime; t != 0 && (t < leastApplyTime || t > mostApplyTime) {
		return fmt.Errorf("live.apply_time: %v, want %v to %v", t, leastApplyTime, mostApplyTime)
	}
	return nil
}

func (g *global) flags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "state-dir", Usage: "`DIR` for what lasts (default: /var/lib/agentrun, or agentrun in the XDG state folder)", EnvVars: g.envVars("AGENTRUN_STATE_DIR")},
		&cli.StringFlag{Name: "run-dir", Usage: "`DIR` for what lives as long as a run (default: /run/agentrun, or agentrun in XDG_RUNTIME_DIR)", EnvVars: g.envVars("AGENTRUN_RUN_DIR")},
		&cli.StringFlag{Name: "config", Usage: "configuration `FILE` (default: /etc/agentrun/config.yaml, then agentrun/config.yaml in the XDG configuration folder)"},
		&cli.StringFlag{Name: "log-level", Usage: "debug, info, warn or error", DefaultText: "warn"},
		&cli.StringFlag{Name: "log-format", Usage: "text or json, on stderr", DefaultText: "text"},
		&cli.IntFlag{Name: detachedFlag, Hidden: true},
	}
}

// envVars are of this process; those of a client are looked up in its own (load).
func (g *global) envVars(names ...string) []string {
	if g.served {
		return nil
	}
	return names
}

// flagsAreParsed hides a command's flags from the library once it has parsed them. It would look at each, and for each go through
// the names of all of them: for the sixty of exec that takes 0.7 ms, a tenth of a warm start. Their values stand in the context;
// what IsSet no longer knows of is a value from the environment.
func flagsAreParsed(c *cli.Context) error {
	c.Command.Flags = nil
	return nil
}

// allFlagsAreParsed hides those of every command too, for the last command of the line: IsSet would go through them by name for each
// flag that was not given, 3 µs a time.
func allFlagsAreParsed(c *cli.Context) error {
	c.App.Flags = nil
	return flagsAreParsed(c)
}

func (g *global) load(c *cli.Context) error {
	if err := flagsAreParsed(c); err != nil {
		return err
	}
	if err := verb.Filled(g.flags(), usageError, func(*cli.Context) error { return nil })(c); err != nil {
		return err
	}
	g.said = globalFlags{c.String("state-dir"), c.String("run-dir"), c.String("config"), c.String("log-level"), c.String("log-format"), c.Int(detachedFlag)}
	return g.settle()
}

// settle finds what holds: what was said, and then what the caller's environment and the files say now.
func (g *global) settle() error {
	said := &g.said
	cfg, err := readConfig(g.caller, said.config)
	if err != nil {
		return err
	}
	by := g.caller
	g.StateDir = cmp.Or(said.stateDir, by.Getenv("AGENTRUN_STATE_DIR"), cfg.StateDir,
		defaultDir(by, "/var/lib/agentrun", "XDG_STATE_HOME", ".local/state"))
	g.RunDir = cmp.Or(said.runDir, by.Getenv("AGENTRUN_RUN_DIR"), cfg.RunDir,
		defaultDir(by, "/run/agentrun", "XDG_RUNTIME_DIR", ".local/run"))
	for flag, dir := range map[string]*string{"--state-dir": &g.StateDir, "--run-dir": &g.RunDir} {
		if *dir == "" {
			return hinted.New(fmt.Errorf("%s: HOME is no absolute path, and nothing else says which folder", flag), "set HOME, or give --state-dir and --run-dir")
		}
		if *dir, err = by.Abs(*dir); err != nil {
			return fmt.Errorf("%s: %w", flag, err)
		}
	}
	if g.Access, err = cfg.Control.resolve(); err != nil {
		return err
	}
	switch cfg.Audit.Sync {
	case "":
	case "always":
		g.SyncAll = true
	default:
		return fmt.Errorf("configuration: audit.sync %q: want always, or leave it out", cfg.Audit.Sync)
	}
	if err := errors.Join(cfg.Live.check(), cfg.Git.Check(), cfg.Images.Check()); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	g.GatewayFiles, g.KeysRequired = cfg.gateways, cfg.keys
	if g.Config = said.config; g.Config != "" {
		if g.Config, err = by.Abs(g.Config); err != nil {
			return fmt.Errorf("--config: %w", err)
		}
	}
	g.ProfileDirs = append(profiles.DefaultDirs(by.Getenv), by.Paths(cfg.ProfileDirs)...)
	g.Ranges = profiles.NodeRanges{File: cfg.path, Rules: cfg.Ranges}
	g.PlanFiles, g.Own = governance.DefaultFiles(by.Getenv), configDirs(by)
	g.Codes, g.Git, g.HomeConfig = cfg.Safety, cfg.Git, cfg.Homes
	g.ImagePolicy = cfg.Images
	g.Kill, g.ApplyTime, g.Version, g.Gateway = cfg.Kill, cfg.Live.ApplyTime, version, outside
	g.serve, g.Operators = cfg.Serve, g.operatorsFile("")
	if fd := said.detachedFD; fd > 2 && !g.served {
		unix.CloseOnExec(fd)
		g.detachedFD = fd
	}
	level := cmp.Or(said.logLevel, cfg.LogLevel, "warn")
	g.Log, err = verb.Log(by.Stderr, level, cmp.Or(said.logFormat, cfg.LogFormat, "text"))
	return err
}

func defaultDir(by *supervisor.Caller, root, xdg, home string) string {
	if os.Geteuid() == 0 && !rootless.Is() {
		return root
	}
	return usersDir(by, xdg, home)
}

// usersDir is the folder of an ordinary user; empty where the environment doesn't say. Without HOME it is not below the current folder: an
// agent that writes there would have put a state of its own in it.
func usersDir(by *supervisor.Caller, xdg, home string) string {
	if d := by.Getenv(xdg); filepath.IsAbs(d) {
		return filepath.Join(d, "agentrun")
	}
	if h := by.Getenv("HOME"); filepath.IsAbs(h) {
		return filepath.Join(h, home, "agentrun")
	}
	return ""
}

// configDirs are the usual places of the configuration.
func configDirs(by *supervisor.Caller) []string {
	dirs := []string{"/etc/agentrun"}
	if d := by.Getenv("XDG_CONFIG_HOME"); filepath.IsAbs(d) {
		dirs = append(dirs, filepath.Join(d, "agentrun"))
	} else if h := by.Getenv("HOME"); filepath.IsAbs(h) {
		dirs = append(dirs, filepath.Join(h, ".config/agentrun"))
	}
	return dirs
}

const (
	maxConfig     = 1 << 20
	machineConfig = "/etc/agentrun/config.yaml"
)

// readConfig reads the file named, or the first of the usual places that exists. What the machine's file says of
// who is asked about a start, of ranges and of images, holds also where another file is named: a flag must not leave it out (M-3, M-9).
func readConfig(by *supervisor.Caller, name string) (configFile, error) {
	if name == "" {
		var names []string
		for _, dir := range configDirs(by) {
			names = append(names, filepath.Join(dir, "config.yaml"))
		}
		return firstConfig(names, true)
	}
	cfg, err := firstConfig([]string{by.Path(name)}, false)
	if err != nil {
		return cfg, err
	}
	machine, err := firstConfig([]string{machineConfig}, true)
	cfg.gateways, cfg.keys = append(cfg.gateways, machine.gateways...), cfg.keys || machine.keys
	if machine.Ranges != nil {
		cfg.Ranges, cfg.path = machine.Ranges, machine.path
	}
	if m := machine.Images; m.SignedBy != "" || len(m.Allow) > 0 {
		cfg.Images = m
	}
	return cfg, err
}

// firstConfig reads the first of the files that exists; optional: there may be none.
func firstConfig(names []string, optional bool) (cfg configFile, err error) {
	cfg.path = names[len(names)-1]
	if os.Geteuid() == 0 && !rootless.Is() {
		cfg.path = names[0]
	}
	for _, n := range names {
		file, err := config.Read(n, maxConfig)
		if errors.Is(err, fs.ErrPermission) && rootless.Is() {
			file.Path = n
			file.Text, err = os.ReadFile(n) // root's files look like anybody's in here; this one was looked at outside
		}
		if errors.Is(err, fs.ErrNotExist) && optional {
			continue
		}
		if errors.Is(err, fs.ErrPermission) {
			err = hinted.New(err, "it has to be root's or this user's, and nobody else's to write: chown, chmod go-w")
		}
		if err != nil {
			return cfg, fmt.Errorf("--config: %w", err)
		}
		text := read.YAML(read.Source{File: n, Max: maxConfig}, file.Text)
		text.Into(&cfg)
		text.Filled() // or keys, signed_by and gateway would ask for nothing
		if err := text.Done(cfg.Ranges.Check()); err != nil {
			return cfg, fmt.Errorf("configuration %w", err)
		}
		cfg.path, cfg.Kill.File = file.Path, file.Path
		if cfg.Gateway != "" && !filepath.IsAbs(cfg.Gateway) {
			return cfg, fmt.Errorf("configuration %s: gateway: %q: want an absolute path", n, cfg.Gateway)
		}
		if !slices.Contains([]string{"", "optional", "required"}, cfg.Keys) {
			return cfg, fmt.Errorf("configuration %s: keys: %q: want required or optional", n, cfg.Keys)
		}
		cfg.keys = cfg.Keys == "required"
		if cfg.Gateway != "" {
			cfg.gateways = []string{cfg.Gateway}
		}
		return cfg, nil
	}
	return cfg, nil
}
