// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/governance"
	"agentrun/internal/read"
	"agentrun/profiles"
	"agentrun/runtime"
	"agentrun/supervisor"
	"agentrun/supervisor/live"
)

// requestOf turns the flags of exec, and those of plan, into what they ask for. Every malformed flag is told, not just the first.
func requestOf(by *supervisor.Caller, c *cli.Context) *supervisor.Request {
	r := &supervisor.Request{
		Command: c.Args().Slice(), Name: c.String("name"), Agent: c.String("agent"), Session: c.String("session"),
		KeyFile: by.Path(c.String("key-file")),
		Ring:    given(c, "ring", c.Int), Profile: c.String("profile"),
		Workspace: by.Path(c.String("workspace")), WorkspaceMode: c.String("workspace-mode"), Rootfs: by.Path(c.String("rootfs")),
		Image: c.String("image"), NoEntrypoint: c.Bool("no-entrypoint"),
		Home: c.String("home"), Sandbox: c.String(supervisor.SandboxFlag), Keep: by.Path(c.String("keep")), Cwd: c.String("cwd"),
		Env: c.StringSlice("env"), EnvPass: c.StringSlice("env-pass"),
		TTY: c.Bool("t"), Interactive: c.Bool("i"), BestEffort: c.Bool("best-effort"),
		NoGateway: c.Bool("no-gateway"), Gateway: by.Path(c.String("gateway")), Policy: by.Path(c.String("policy")),
		Allow: c.StringSlice("allow"), Tools: c.StringSlice("tool"), Metrics: c.String("metrics-addr"),
		RequireIntent: given(c, "require-intent", c.Bool),
		Detach:        c.Bool("d"), OnBreach: profiles.OnBreach(c.String("on-breach")), QuarantineTimeout: c.Duration("quarantine-timeout"),
		StatusFile: by.Path(c.String("status-file")), Hold: by.Path(c.String("hold")), HoldFor: c.Int("hold-for"), Bundle: by.Path(c.String("bundle-config")),
		CgroupAbove: c.String("cgroup-above"), JSON: c.Bool("json"),
	}
	bad := func(flag, message string) {
		r.Malformed = append(r.Malformed, read.Problem{Path: "--" + flag, Message: message})
	}
	for _, f := range []string{"agent", "session", "name", "workspace", "workspace-mode", "rootfs", "image", "cwd", "home", "keep", "profile", "status-file", "on-breach", "key-file",
		"policy", "gateway", "pull", "metrics-addr"} {
		if c.IsSet(f) && c.String(f) == "" {
			bad(f, "is empty; leave the flag out, or give it a value")
		}
	}
	if c.IsSet("safety") {
		mode := profiles.SafetyMode(c.String("safety"))
		r.Safety = &mode
	}
	if c.IsSet("expect") {
		var err error
		if r.Expect, err = governance.ParseEstimate(c.String("expect")); err != nil {
			bad("expect", err.Error())
		}
	}
	if pull := c.String("pull"); pull != "" && pull != "never" && (pull != "missing" || r.Image == "") {
		bad("pull", fmt.Sprintf("%.64q: want missing or never, beside --image", pull))
	}
	if r.NoEntrypoint && r.Image == "" {
		bad("no-entrypoint", "there is no --image that could have one")
	}
	l := &r.Limits
	limit(c, bad, "cpus", &l.CPU, profiles.ParseCPUs)
	limit(c, bad, "memory", &l.Memory, profiles.ParseSize)
	limit(c, bad, "pids", &l.PIDs, number("processes"))
	limit(c, bad, "max-steps", &l.MaxSteps, number("tool calls"))
	limit(c, bad, "timeout", &l.Timeout, profiles.ParseDuration)
	limit(c, bad, "cpu-time", &l.CPUTime, profiles.ParseDuration)
	limit(c, bad, "scratch-size", &l.ScratchSize, profiles.ParseSize)
	limit(c, bad, "max-output", &l.MaxOutput, profiles.ParseSize)
	if c.IsSet("idle-pause") {
		after, err := profiles.ParseDuration(c.String("idle-pause"))
		switch r.IdlePause = time.Duration(after); {
		case err != nil:
			bad("idle-pause", err.Error())
		case r.IdlePause < live.LeastIdle:
			bad("idle-pause", fmt.Sprintf("%.64q: want %s or more; leave it out for never", c.String("idle-pause"), live.LeastIdle))
		}
	}
	switch {
	case !c.IsSet("quarantine-timeout"):
	case r.QuarantineTimeout <= 0: // which would be never
		bad("quarantine-timeout", "want a time above zero; leave it out for never")
	case r.Agent == "":
		bad("quarantine-timeout", "nobody but an agent is put into quarantine; name it by --agent")
	}
	for _, flag := range []string{"ro-bind", "bind"} {
		for _, v := range c.StringSlice(flag) {
			b, err := by.Bind(v, flag == "bind")
			if err != nil {
				bad(flag, err.Error())
				continue
			}
			r.Binds = append(r.Binds, b)
		}
	}
	for _, v := range c.StringSlice("tmpfs") {
		at, size, sized := strings.Cut(v, ":")
		t := runtime.Tmpfs{Target: at}
		if sized {
			n, err := profiles.ParseSize(size)
			if err == nil && n == 0 {
				err = errors.New("a folder without room")
			}
			if err != nil {
				bad("tmpfs", fmt.Sprintf("%.200q: %v", v, err))
				continue
			}
			t.Size = int64(n) //nolint:gosec // ParseSize bounds it
		}
		r.Tmpfs = append(r.Tmpfs, t)
	}
	if r.Hold != "" { // what is on the terminal is the container's
		by.Watched = false
	}
	return r
}

// number reads a count of something.
func number(of string) func(string) (int, error) {
	return func(v string) (int, error) {
		n, err := profiles.ParseValue(v)
		if err != nil || n.N > 1<<31-1 {
			return 0, fmt.Errorf("%.64q is no number of %s", v, of)
		}
		return int(n.N), nil
	}
}

// given is the value of a flag that was given; nil: it was not.
func given[T any](c *cli.Context, flag string, value func(string) T) *T {
	if !c.IsSet(flag) {
		return nil
	}
	v := value(flag)
	return &v
}

// limit reads a flag that was given.
func limit[T any](c *cli.Context, bad func(flag, message string), flag string, to **T, parse func(string) (T, error)) {
	if !c.IsSet(flag) {
		return
	}
	v, err := parse(c.String(flag))
	if err != nil {
		bad(flag, err.Error())
		return
	}
	*to = &v
}
