// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"agentrun/config"
	"agentrun/governance"
	"agentrun/internal/hinted"
	"agentrun/internal/read"
	"agentrun/internal/verb"
	"agentrun/profiles"
	"agentrun/profiles/agents"
	"agentrun/runtime"
	"agentrun/supervisor"
	"agentrun/supervisor/homes"
)

// hostFlags are those that exec hasn't.
func hostFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "list", Usage: "say which agents are on this machine, and what is missing"},
		&cli.BoolFlag{Name: "yes", Usage: "the agent may write the current folder: don't ask"},
		&cli.BoolFlag{Name: "dry-run", Usage: "print the exec that it would be, and start nothing"},
		&cli.StringSliceFlag{Name: "api-key-file", KeepSpace: true, Usage: "read the provider's key from `[VARIABLE=]FILE`"},
		&cli.StringSliceFlag{Name: "api-key-command", KeepSpace: true, Usage: "read the provider's key from what `[VARIABLE=]COMMAND` prints, run by sh"},
		&cli.StringFlag{Name: "way", Usage: "how the agent reaches its model: `door|egress` (default: the description's)"},
		&cli.BoolFlag{Name: "no-api-key", Usage: "put no key in: gateway.yaml has the rule that does, or the model needs none"},
	}
}

func hostCommand(g *global) *cli.Command {
	return &cli.Command{
		Name:      "host",
		Usage:     "run a coding agent in the current folder, its key outside of the sandbox",
		ArgsUsage: "NAME [-- ARG…]",
		Description: `NAME is one of claude, codex, gemini, opencode, pi and qwen, or a description of your own. Finds the agent's
program, shows it to a sandbox with the current folder writable, keeps its HOME for the next time, and puts the
provider's key into its requests on their way out. The key comes from the caller's environment, a file or a
command. ARGs are the agent's. It becomes an exec, whose flags are taken here too and count over the description.

   agentrun host claude
   agentrun host codex --yes -- exec "make the tests pass"
   agentrun host opencode --api-key-file ANTHROPIC_API_KEY=/etc/keys/anthropic --workspace ~/project
   agentrun host --list

Exit code: as exec.`,
		Flags:  append(hostFlags(), execFlags()...),
		Action: g.host,
	}
}

// hosting is one agent on its way to becoming an exec.
type hosting struct {
	g     *global
	c     *cli.Context
	agent agents.Agent
	found agents.Found
	dir   string       // the workspace; empty: a session's
	keys  []agents.Key // that there are
	env   []string     // the caller's, with the keys in it
}

// host turns a description into flags of exec and starts this program anew with them: from there on nothing knows that
// it was not typed, so a daemon takes the run over, and each flag is checked, as anybody's.
func (g *global) host(c *cli.Context) error {
	dirs := agents.DefaultDirs(configDirs(g.caller))
	if c.Bool("list") {
		return g.listAgents(c, dirs)
	}
	if c.NArg() == 0 {
		return hinted.New(errors.New("agentrun host takes the NAME of an agent"),
			"there are "+strings.Join(agents.Names(dirs), ", ")+"; agentrun host --list says which are on this machine")
	}
	a, err := agents.Load(dirs, c.Args().First())
	if err != nil {
		return err
	}
	if way := agents.Way(c.String("way")); c.IsSet("way") {
		if !slices.Contains(way.Choices(), string(way)) {
			return fmt.Errorf("--way: %.64q is none of %s", way, strings.Join(way.Choices(), ", "))
		}
		if a.Way = way; way == agents.Door && slices.ContainsFunc(a.Keys, func(k agents.Key) bool { return k.Door.BaseURL == "" }) {
			return fmt.Errorf("--way door: the description of %s names no provider behind it", a.Name)
		}
	}
	h := &hosting{g: g, c: c, agent: a, env: slices.Clone(g.caller.Environ)}
	named, err := h.named()
	if err != nil {
		return fmt.Errorf("host %s: %w", a.Name, err)
	}
	h.found = a.Find(g.caller.Getenv, named)
	if len(h.found.Missing) > 0 {
		return hinted.New(fmt.Errorf("host %s: missing: %s", a.Name, strings.Join(h.found.Missing, "; ")),
			"agentrun host --list says what every agent needs")
	}
	args, err := h.exec()
	if err != nil {
		return fmt.Errorf("host %s: %w", a.Name, err)
	}
	if c.Bool("dry-run") {
		_, err := fmt.Println(oneLine("agentrun " + quoted(args)))
		return err
	}
	// The file of this process, not what stands at its path by now.
	return os.NewSyscallError("execve", unix.Exec("/proc/self/exe", append([]string{os.Args[0]}, args...), h.env))
}

// exec returns the arguments. What the caller said comes after what the description says, and the last counts.
func (h *hosting) exec() ([]string, error) {
	workspace, err := h.workspace()
	if err != nil {
		return nil, err
	}
	if err := h.findKeys(); err != nil {
		return nil, err
	}
	args := slices.Concat(h.globals(), []string{"exec"}, workspace, h.described(), h.passed())
	gateway, err := h.gateway()
	if err != nil {
		return nil, err
	}
	args = append(append(args, gateway...), "--", h.found.Program)
	for _, a := range h.agent.Arguments {
		if a.Way == "" || a.Way == h.agent.Way {
			args = append(args, a.Text)
		}
	}
	args = append(args, h.c.Args().Tail()...)
	if err := h.keepOutside(args); err != nil {
		return nil, err
	}
	return args, h.seed()
}

func (h *hosting) globals() []string {
	args := h.g.Flags()
	for _, flag := range []string{"log-level", "log-format"} {
		if v := h.c.String(flag); v != "" {
			args = append(args, "--"+flag, v)
		}
	}
	return args
}

// home is the name that the agent's HOME is kept under.
func (h *hosting) home() string { return cmp.Or(h.c.String("home"), h.agent.Name) }

// described is what the description says, as flags.
func (h *hosting) described() []string {
	a := h.agent
	args := []string{"--home=" + h.home()}
	if !h.c.IsSet("profile") {
		args = append(args, fmt.Sprintf("--ring=%d", a.Ring))
	}
	ranges := h.ranges()
	args = append(args, limitFlags(a.Limits, ranges)...)
	if got := ranges.Timeout.Max; a.Limits.Timeout > got && !h.c.IsSet("timeout") && isTerminal(os.Stderr) {
		supervisor.Tell(os.Stderr, fmt.Sprintf("the node gives a run %s, and a session of %s takes %s", got, a.Name, a.Limits.Timeout),
			ranges.ToAllow("timeout", a.Limits.Timeout))
	}
	for _, path := range h.found.Shown {
		args = append(args, "--ro-bind="+path)
	}
	if path := h.found.Path; len(path) > 0 {
		args = append(args, "--env=PATH="+strings.Join(append(path, runtime.DefaultPath), ":"))
	}
	for _, k := range h.keys {
		args = append(args, "--env="+k.Env+"="+agents.StandIn)
	}
	for _, e := range a.Environment {
		if e.Way == "" || e.Way == a.Way {
			args = append(args, "--env="+e.Name+"="+e.Value)
		}
	}
	for _, one := range a.Allow {
		args = append(args, "--allow="+one.Host)
	}
	if !h.c.Bool("d") && isTerminal(os.Stdin) && isTerminal(os.Stdout) {
		args = append(args, "-t")
	}
	return args
}

// ranges are the node's for the run (M-3). What the plan of an agent has of its own, the caller asks for by flags.
func (h *hosting) ranges() profiles.Ranges {
	r := h.g.Ranges
	if !h.c.IsSet("agent") {
		r.Plan = governance.Operator
	}
	return r.Of(h.agent.Ring)
}

// limitFlags asks for as much of the limits as the node gives anybody.
func limitFlags(l profiles.Limits, r profiles.Ranges) (args []string) {
	add := func(flag string, given bool, v any) {
		if given {
			args = append(args, fmt.Sprintf("--%s=%v", flag, v))
		}
	}
	memory := min(l.Memory, r.Memory.Max)
	add("cpus", l.CPU > 0, min(l.CPU, r.CPU.Max))
	add("memory", l.Memory > 0, memory)
	add("pids", l.PIDs > 0, min(l.PIDs, r.PIDs.Max))
	add("timeout", l.Timeout > 0, min(l.Timeout, r.Timeout.Max))
	add("cpu-time", l.CPUTime > 0, min(l.CPUTime, r.CPUTime.Max))
	add("scratch-size", l.ScratchSize > 0, min(l.ScratchSize, r.ScratchSize.Max))
	add("max-output", l.MaxOutput > 0, min(l.MaxOutput, r.MaxOutput.Max))
	return args
}

// passed are the flags of exec that the caller gave, but for those that were looked at here.
func (h *hosting) passed() (args []string) {
	own := []string{"workspace", "home", "gateway"}
	for _, f := range hostFlags() {
		own = append(own, f.Names()...)
	}
	flags := verb.Passed(h.c)[1:] // without the command
	for _, arg := range flags[:slices.Index(flags, "--")] {
		name, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if !slices.Contains(own, name) {
			args = append(args, arg)
		}
	}
	return args
}

// workspace is the folder that the agent may write: the one that was named, or the current one if somebody says so.
func (h *hosting) workspace() ([]string, error) {
	named, err := h.named()
	if err != nil {
		return nil, err
	}
	if named == "" && h.c.IsSet("session") {
		return nil, nil // the session's own
	}
	dir := named
	if named == "" {
		dir, err = h.g.caller.Getwd()
	}
	if err != nil {
		return nil, fmt.Errorf("--workspace: %w", err)
	}
	if why := tooMuch(dir, h.g.caller.Environ); why != "" {
		return nil, hinted.New(fmt.Errorf("--workspace %s: %s, and the agent could read and write all of it", dir, why),
			"go to the project's folder, or name it: --workspace DIR")
	}
	h.dir = dir
	if named != "" {
		return []string{"--workspace=" + dir}, nil
	}
	if !h.c.Bool("yes") && !h.c.Bool("dry-run") {
		err = h.ask(dir)
	}
	return []string{"--workspace=."}, err // not by its path, where another may be by now
}

// named is the folder of --workspace, without links.
func (h *hosting) named() (string, error) {
	named := h.c.String("workspace")
	if named == "" {
		return "", nil
	}
	dir, err := h.g.caller.Abs(named)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return "", fmt.Errorf("--workspace: %w", err)
	}
	return dir, nil
}

// tooMuch says why a folder is none to work in: it holds more than one project.
func tooMuch(dir string, environ []string) string {
	switch home := homeOf(environ); {
	case dir == "/":
		return "it is the whole machine"
	case home != "" && (dir == home || strings.HasPrefix(home, dir+"/")):
		return "your home is in it"
	case runtime.Private(dir, environ):
		return "it holds more than a project"
	}
	return ""
}

func homeOf(environ []string) string {
	for _, kv := range environ {
		if home, ok := strings.CutPrefix(kv, "HOME="); ok {
			if real, err := filepath.EvalSymlinks(home); err == nil {
				return real
			}
			return filepath.Clean(home)
		}
	}
	return ""
}

func (h *hosting) ask(dir string) error {
	no := "nobody has said that the agent may write " + dir
	way := "--yes, or --workspace DIR, says so"
	if !isTerminal(os.Stdin) {
		return hinted.New(errors.New(no), way)
	}
	fmt.Fprintf(os.Stderr, "%s may read and write %s. Type yes: ", oneLine(h.agent.Description), oneLine(dir))
	answer, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	if strings.TrimSpace(answer) != "yes" {
		return hinted.New(errors.New(no), way)
	}
	return nil
}

// findKeys takes each key from where the caller says that it is, else from the caller's environment, and puts it into
// the environment of exec, which hands it to the gateway and to nobody inside.
func (h *hosting) findKeys() error {
	if h.c.Bool("no-api-key") {
		return nil
	}
	if err := h.readKeys("api-key-file", h.keyOfFile); err != nil {
		return err
	}
	if err := h.readKeys("api-key-command", keyOfCommand); err != nil {
		return err
	}
	var names []string
	for _, k := range h.agent.Keys {
		names = append(names, k.Env)
		if value(h.env, k.Env) != "" {
			h.keys = append(h.keys, k)
		}
	}
	if len(h.keys) == 0 && len(names) > 0 {
		return hinted.New(fmt.Errorf("no key: %s isn't set", strings.Join(names, " or ")),
			"--api-key-file FILE or --api-key-command COMMAND says where it is; --no-api-key if gateway.yaml puts it in")
	}
	return nil
}

func (h *hosting) readKeys(flag string, from func(string) ([]byte, error)) error {
	for _, of := range h.c.StringSlice(flag) {
		i, source := 0, of
		if variable, rest, ok := strings.Cut(of, "="); ok {
			if j := slices.IndexFunc(h.agent.Keys, func(k agents.Key) bool { return k.Env == variable }); j >= 0 {
				i, source = j, rest
			}
		}
		if len(h.agent.Keys) == 0 {
			return fmt.Errorf("--%s: the agent takes no key", flag)
		}
		text, err := from(source)
		text = bytes.TrimRight(text, "\r\n")
		if err == nil && len(text) == 0 {
			err = errors.New("there is no key in it")
		}
		if err != nil {
			return fmt.Errorf("--%s: %w", flag, err)
		}
		name := h.agent.Keys[i].Env + "="
		h.env = slices.DeleteFunc(h.env, func(kv string) bool { return strings.HasPrefix(kv, name) })
		h.env = append(h.env, name+string(text))
	}
	return nil
}

// What the gateway takes for a secret in a header.
const (
	leastKey = 6
	maxKey   = 4096
)

// keyOfFile reads a file that its owner alone may read, and that doesn't lie where the agent will.
func (h *hosting) keyOfFile(name string) ([]byte, error) {
	path, err := filepath.EvalSymlinks(h.g.caller.Path(name))
	if err != nil {
		return nil, err
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	if h.dir != "" && strings.HasPrefix(path, h.dir+"/") {
		return nil, fmt.Errorf("%s lies in the workspace, where the agent would read it", path)
	}
	return read.File(path, 0o077, maxKey)
}

// keyOfCommand runs the caller's own command as the caller, on the host: it may ask on the terminal.
func keyOfCommand(command string) ([]byte, error) {
	cmd := exec.Command("/bin/sh", "-c", command)
	cmd.Stdin, cmd.Stderr = os.Stdin, os.Stderr
	out, err := cmd.Output()
	if err == nil && len(out) > maxKey {
		err = fmt.Errorf("it prints more than %d bytes", maxKey)
	}
	return out, err
}

func value(environ []string, name string) string {
	for _, kv := range environ {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

// behind is a provider of gateway.yaml, with one model for every name that an agent may ask for.
func behind(d agents.Behind) map[string]any {
	model := map[string]any{"name": "*", "mode": "transparent", "input": d.Input, "output": d.Output}
	p := map[string]any{"base_url": d.BaseURL, "dialects": d.Dialects, "models": []any{model}}
	if d.AllowPrivate {
		p["allow_private"] = true
	}
	if d.CAFile != "" {
		p["ca_file"] = d.CAFile
	}
	return p
}

// keepOutside refuses what would give a key to the agent all the same (M-8).
func (h *hosting) keepOutside(args []string) error {
	for _, k := range h.keys {
		key := value(h.env, k.Env)
		if len(key) < leastKey {
			return fmt.Errorf("the key of %s has %d characters, want %d or more", k.Env, len(key), leastKey)
		}
		for _, arg := range args {
			if strings.Contains(arg, key) || arg == "--env-pass="+k.Env {
				return fmt.Errorf("an argument would give the agent the key of %s, which no sandbox is shown", k.Env)
			}
		}
	}
	return nil
}

// gateway writes the gateway.yaml of the run, the node's with the keys, beside the agent's home. It holds no key.
func (h *hosting) gateway() ([]string, error) {
	node, err := h.g.ReadGateway(h.g.caller.Path(h.c.String("gateway")))
	if err != nil {
		return nil, fmt.Errorf("--gateway: %w", err)
	}
	if len(h.keys) == 0 {
		if node.Path == "" || !h.c.IsSet("gateway") {
			return nil, nil
		}
		return []string{"--gateway=" + node.Path}, nil
	}
	var list []config.Injected
	for _, k := range h.keys {
		one := config.Injected{Variable: k.Env, Host: k.Host, Header: k.Header, Prefix: k.Prefix}
		if h.agent.Way == agents.Door {
			one.Provider = behind(k.Door)
		}
		list = append(list, one)
	}
	text, err := node.With(list)
	if err != nil {
		return nil, err
	}
	if err := homes.CheckName(h.home()); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	path := filepath.Join(h.g.Homes().Of(h.home()), fmt.Sprintf("gateway-%x.yaml", sum[:4]))
	if !h.c.Bool("dry-run") {
		if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
			err = writeWhole(path, text)
		}
	}
	return []string{"--gateway=" + path}, err
}

// seed answers what a new agent would ask.
func (h *hosting) seed() error {
	if h.c.Bool("dry-run") {
		return nil
	}
	var files []homes.File
	for _, f := range h.agent.Home {
		files = append(files, homes.File{Path: f.Path, Content: f.Content})
	}
	if err := h.g.Homes().Seed(h.home(), files); err != nil {
		return hinted.New(fmt.Errorf("home %s: %w", h.home(), err), "agentrun home rm "+h.home()+" lets it begin anew")
	}
	return nil
}

// quoted is a command line as a shell takes it.
func quoted(args []string) string {
	var words []string
	for _, a := range args {
		if a == "" || strings.Trim(a, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./:@%+,") != "" {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		words = append(words, a)
	}
	return strings.Join(words, " ")
}

// here is an agent as host --list tells it.
type here struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Origin      string `json:"origin"`
	agents.Found
	Keys  map[string]bool `json:"keys"` // variables that a key is taken from, and whether it is there
	Error string          `json:"error,omitempty"`
}

func (g *global) listAgents(c *cli.Context, dirs []string) error {
	list := []here{}
	for _, name := range agents.Names(dirs) {
		a, err := agents.Load(dirs, name)
		if err != nil {
			list = append(list, here{Name: name, Origin: a.Origin, Keys: map[string]bool{}, Error: err.Error()})
			continue
		}
		h := here{Name: name, Description: a.Description, Origin: cmp.Or(a.Origin, "built-in"), Found: a.Find(g.caller.Getenv, ""), Keys: map[string]bool{}}
		for _, k := range a.Keys {
			h.Keys[k.Env] = g.caller.Getenv(k.Env) != ""
		}
		list = append(list, h)
	}
	return printList(c, list, "NAME\tHERE\tPROGRAM\tKEY", list, func(h here) []any {
		row := []any{h.Name, "yes", h.Program, "-"}
		if missing := cmp.Or(h.Error, strings.Join(h.Missing, "; ")); missing != "" {
			row[1], row[2] = "no", missing
		}
		for name, set := range h.Keys {
			if set {
				row[3] = name
			}
		}
		return row
	})
}
