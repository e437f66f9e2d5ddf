// SPDX-License-Identifier: Apache-2.0

// Command agentrun-oci is agentrun as an OCI runtime: container engines start it as they start runc, and a container is a run like any
// other, in a ring, with its gateway, its limits, its record and all the verbs for live runs.
//
//	docker run --runtime agentrun-ring3 …       # docs/engines.md has the lines of configuration
//
// What a bundle demands beyond its ring is refused by name; where a ring is stricter, the ring holds. The run's supervisor is the process
// that the engine waits for: it lives in the network namespace that the engine gives the container (the agent is in one of its own, within
// the sandbox), so that what the gateway connects to is bounded by the engine's network too.
//
// What it does not do: it runs no hooks inside the container, and applies no AppArmor profile of the bundle's. The bundle's seccomp filter
// holds beside the ring's.
package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"agentrun/internal/ending"
	"agentrun/internal/hinted"
	"agentrun/internal/read"
	"agentrun/internal/sibling"
)

var version = "unknown" // set by the linker

// specVersion is that of the runtime-spec whose commands these are.
const specVersion = "1.2.1"

// runtime is what the global flags say.
type runtime struct {
	root    string // of what is known of containers
	handler string // the name that this was called by
	program string // agentrun
	systemd bool   // a container's cgroup is within a scope of systemd's
	log     io.Writer
	json    bool
}

func main() {
	r := &runtime{handler: os.Args[0]}
	err := r.app().Run(os.Args)
	if code, ok := errors.AsType[exitCode](err); ok {
		os.Exit(int(code))
	}
	if err != nil {
		r.tell(err)
	}
	os.Exit(ending.Report(os.Stderr, err, ending.Hint))
}

// exitCode is a container's, or a command's in it.
type exitCode int

func (exitCode) Error() string { return "" }

// tell puts an error where the engine looks for it.
func (r *runtime) tell(err error) {
	if r.log == nil {
		return
	}
	text := err.Error()
	if r.json {
		line, _ := json.Marshal(map[string]string{"level": "error", "msg": text, "time": time.Now().UTC().Format(time.RFC3339)})
		text = string(line)
	}
	fmt.Fprintln(r.log, text)
}

func (r *runtime) app() *cli.App {
	cli.VersionPrinter = func(c *cli.Context) {
		fmt.Fprintf(c.App.Writer, "agentrun-oci version %s\nspec: %s\n", version, specVersion)
	}
	bundle := &cli.StringFlag{Name: "bundle", Aliases: []string{"b"}, Usage: "the container's `FOLDER`", Value: "."}
	made := []cli.Flag{
		bundle, &cli.StringFlag{Name: "pid-file"}, &cli.StringFlag{Name: "console-socket"}, &cli.BoolFlag{Name: "no-pivot"},
		&cli.BoolFlag{Name: "no-new-keyring"}, &cli.IntFlag{Name: "preserve-fds"},
	}
	one := func(do func(context.Context, *container) error) cli.ActionFunc {
		return func(c *cli.Context) error {
			if c.NArg() != 1 {
				return errors.New("want a container's id")
			}
			k, err := r.load(c.Args().First())
			if err != nil {
				return err
			}
			return do(c.Context, k)
		}
	}
	app := &cli.App{
		Name: "agentrun-oci", Usage: "agentrun as an OCI runtime", Version: version, HideHelpCommand: true,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "root", Value: "/run/agentrun-oci"}, &cli.StringFlag{Name: "log"},
			&cli.StringFlag{Name: "log-format", Value: "text"}, &cli.BoolFlag{Name: "debug"}, &cli.BoolFlag{Name: "systemd-cgroup"},
			&cli.StringFlag{Name: "criu"}, &cli.StringFlag{Name: "rootless"},
		},
		Before:         r.begin,
		ExitErrHandler: func(*cli.Context, error) {},
		Commands: []*cli.Command{
			{Name: "create", ArgsUsage: "ID", Flags: made, Action: func(c *cli.Context) error { _, err := r.create(c); return err }},
			{Name: "run", ArgsUsage: "ID", Flags: append(made, &cli.BoolFlag{Name: "detach", Aliases: []string{"d"}}), Action: r.run},
			{Name: "start", ArgsUsage: "ID", Action: one(r.start)},
			{Name: "state", ArgsUsage: "ID", Action: one(r.state)},
			{Name: "kill", ArgsUsage: "ID [SIGNAL]", Flags: []cli.Flag{&cli.BoolFlag{Name: "all", Aliases: []string{"a"}}}, Action: r.kill},
			{Name: "delete", ArgsUsage: "ID", Flags: []cli.Flag{&cli.BoolFlag{Name: "force", Aliases: []string{"f"}}}, Action: r.delete},
			{Name: "list", Flags: []cli.Flag{&cli.StringFlag{Name: "format", Aliases: []string{"f"}}, &cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}}}, Action: r.list},
			{Name: "exec", ArgsUsage: "ID [COMMAND [ARG…]]", Flags: []cli.Flag{
				&cli.StringFlag{Name: "process", Aliases: []string{"p"}}, &cli.StringFlag{Name: "pid-file"}, &cli.StringFlag{Name: "console-socket"},
				&cli.BoolFlag{Name: "detach", Aliases: []string{"d"}}, &cli.BoolFlag{Name: "tty", Aliases: []string{"t"}}, &cli.StringFlag{Name: "cwd"},
				&cli.StringSliceFlag{Name: "env", Aliases: []string{"e"}}, &cli.IntFlag{Name: "preserve-fds"},
			}, Action: r.exec},
			{Name: "ps", ArgsUsage: "ID", Flags: []cli.Flag{&cli.StringFlag{Name: "format", Aliases: []string{"f"}}}, Action: r.ps},
			{Name: "pause", ArgsUsage: "ID", Action: one(r.verb("freeze"))},
			{Name: "resume", ArgsUsage: "ID", Action: one(r.verb("thaw"))},
			{Name: "update", ArgsUsage: "ID", Flags: []cli.Flag{&cli.StringFlag{Name: "resources", Aliases: []string{"r"}}}, Action: r.update},
			{Name: "events", ArgsUsage: "ID", Flags: []cli.Flag{&cli.BoolFlag{Name: "stats"}, &cli.DurationFlag{Name: "interval", Value: 5 * time.Second}}, Action: r.events},
			{Name: "features", Action: features},
			{Name: holdCommand, Hidden: true, Action: hold},
			{Name: inScope, Hidden: true, SkipFlagParsing: true, Action: enterScope},
		},
	}
	for _, c := range app.Commands {
		c.HideHelpCommand = true // a container may be called h or help
	}
	return app
}

func (r *runtime) begin(c *cli.Context) (err error) {
	r.root, r.json = c.String("root"), c.String("log-format") == "json"
	if at := c.String("log"); at != "" {
		f, err := os.OpenFile(at, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return err
		}
		r.log = f
	}
	// What lies there says which processes are signalled and which hooks are run.
	var st unix.Stat_t
	if err := unix.Stat(r.root, &st); err == nil && (st.Uid != 0 && int(st.Uid) != os.Geteuid() || st.Mode&read.OthersMayWrite != 0) {
		return fmt.Errorf("--root %s: others may write there: %w", r.root, os.ErrPermission)
	}
	if r.systemd = c.Bool("systemd-cgroup"); r.systemd && !bootedBySystemd() {
		return hinted.New(errors.New("--systemd-cgroup: this machine's service manager isn't systemd"), "set the engine's cgroup driver to cgroupfs: docs/engines.md")
	}
	r.program, err = sibling.Find("agentrun")
	return err
}

// idName is what the specification leaves to runtimes: runc's names.
var idName = regexp.MustCompile(`^[\w+.-]{1,255}$`)

func (r *runtime) folder(id string) string { return filepath.Join(r.root, id) }

// errNone is a container that there isn't. Engines look for the words.
var errNone = errors.New("container does not exist")

// errStopped is one that has ended. Engines look for these words, too: without them a kill that comes late is tried for ever.
var errStopped = errors.New("container not running")

// container is what is known of one, in its folder.
type container struct {
	Version     string            `json:"ociVersion"`
	ID          string            `json:"id"`
	PID         int               `json:"pid"`
	Start       string            `json:"start"` // of the process, which tells a pid that was given anew
	Bundle      string            `json:"bundle"`
	Rootfs      string            `json:"rootfs"`
	Created     time.Time         `json:"created"`
	Owner       string            `json:"owner"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Ring        int               `json:"ring"`
	Begun       bool              `json:"begun"`
	Run         string            `json:"run,omitempty"`     // its id, once it has begun
	Pod         bool              `json:"pod,omitempty"`     // it holds a pod's place, and is no run
	Stopped     bool              `json:"stopped,omitempty"` // by SIGSTOP, until SIGCONT

	dir    string
	ended  <-chan error // of who has started it
	master *os.File     // of its terminal, where no engine has it
}

func (r *runtime) load(id string) (*container, error) {
	if !idName.MatchString(id) || id == "." || id == ".." {
		return nil, fmt.Errorf("%.64q is no container's id", id)
	}
	k := &container{dir: r.folder(id)}
	text, err := os.ReadFile(filepath.Join(k.dir, "state.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%.64q: %w", id, errNone)
	}
	if err == nil {
		err = json.Unmarshal(text, k)
	}
	return k, err
}

func (k *container) save() error {
	text, err := json.Marshal(k)
	if err != nil {
		return err
	}
	at := filepath.Join(k.dir, "state.json")
	if err := os.WriteFile(at+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(at+".new", at)
}

func (k *container) socket() string { return filepath.Join(k.dir, "begin.sock") }

func (k *container) account() string { return filepath.Join(k.dir, "status.json") }

func (k *container) config() string { return filepath.Join(k.dir, configFile) }

// name is the run's: engines' ids are longer than names of runs. What is taken from one stands in a digest, else verbs would reach another's.
func (k *container) name() string {
	name := strings.TrimLeft(k.ID, "+.-_")
	if name = "c-" + name[:min(len(name), 48)]; name != "c-"+k.ID {
		sum := sha256.Sum256([]byte(k.ID))
		name += fmt.Sprintf("-%x", sum[:6])
	}
	return name
}

// ref is what verbs find the run by. Another engine, or another of its namespaces, may have a container of the same id, and so a run of the
// same name.
func (k *container) ref() string { return cmp.Or(k.Run, k.name()) }

// alive tells whether the supervisor is there.
func (k *container) alive() bool { return k.PID > 0 && startOf(k.PID) == k.Start }

// startOf is when a process began, in ticks since the machine did; of one that is dead, empty.
func startOf(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(text[strings.LastIndexByte(string(text), ')')+1:]), " ")
	f := strings.Fields(rest)
	if len(f) < 20 || f[0] == "Z" {
		return ""
	}
	return f[19]
}

func (k *container) status() string {
	switch {
	case !k.alive():
		return "stopped"
	case !k.Begun:
		return "created"
	}
	return "running"
}
