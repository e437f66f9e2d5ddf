// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"agentrun/hypervisor"
	"agentrun/internal/hinted"
	"agentrun/profiles"
	"agentrun/rings"
	"agentrun/runtime"
)

// specFlags are what exec and plan share: everything that shapes a sandbox.
func specFlags() []cli.Flag {
	flags := []cli.Flag{
		&cli.IntFlag{Name: "ring", Usage: "privilege ring `1|2|3`", Value: 3, DefaultText: "the agent's own, without --agent 3"},
		&cli.StringFlag{Name: "profile", Usage: "profile `NAME` (default: that of the ring)"},
		&cli.StringFlag{Name: "agent", Usage: "agent `ID` the run belongs to"},
		&cli.StringFlag{Name: "session", Usage: "session `ID` the run belongs to"},
		&cli.StringFlag{Name: "name", Usage: "`NAME` for this run"},
		&cli.StringFlag{Name: "workspace", Usage: "`DIR` shown as /workspace: read-only in ring 3, writable in rings 2 and 1"},
		&cli.StringFlag{Name: "rootfs", Usage: "`DIR` used as the root instead of the host's /usr, read-only"},
		&cli.StringSliceFlag{Name: "ro-bind", KeepSpace: true, Usage: "show a host path, read-only: `SRC[:DST]`"},
		&cli.StringSliceFlag{Name: "bind", KeepSpace: true, Usage: "show a host path, writable (rings 2 and 1): `SRC[:DST]`"},
		&cli.StringSliceFlag{Name: "env", KeepSpace: true, Usage: "set a variable: `NAME=VALUE`"},
		&cli.StringSliceFlag{Name: "env-pass", Usage: "take a variable from the caller: `NAME`"},
		&cli.StringFlag{Name: "cwd", Usage: "working directory inside, `DIR` (default: /workspace, else /tmp/sandbox)"},
		&cli.StringFlag{Name: "cpus", Usage: "processors, `0.2–1`"},
		&cli.StringFlag{Name: "memory", Usage: "memory without swap, `256M–1G`"},
		&cli.StringFlag{Name: "pids", Usage: "processes and threads, `N`"},
		&cli.StringFlag{Name: "timeout", Usage: "wall-clock time, `60s–300s`"},
		&cli.StringFlag{Name: "cpu-time", Usage: "processor time of all processes together, `TIME`"},
		&cli.StringFlag{Name: "scratch-size", Usage: "size of /tmp/sandbox, `SIZE`"},
		&cli.StringFlag{Name: "max-output", Usage: "bytes of stdout and stderr together, `SIZE`"},
		&cli.StringFlag{Name: "keep", Usage: "ring 1: write what changed in the root to `FILE` (OCI layer, tar)"},
		&cli.BoolFlag{Name: "t", Aliases: []string{"tty"}, Usage: "give the agent a terminal of its own"},
		&cli.BoolFlag{Name: "best-effort", Usage: "go on without protections this host can't give, and say which"},
	}
	return slices.Concat(flags, exitFlags(), safetyFlags())
}

// testOnlyLimits lets tests of time-outs and exhaustion end in less than a minute.
const testOnlyLimits = "AGENTRUN_TESTONLY_UNSAFE_LIMITS"

var errRing0 = hinted.New(errors.New("--ring 0: ring 0 configures the hypervisor itself and is never given to a process (H-12); an operator's action with an SRE witness reaches it, a sandbox does not"), "the rings for agents are 1 (private writable root), 2 (subprocesses, workspace), 3 (default)")

// specOf turns flags into a Spec, in the ring that the request may have. Every malformed flag is reported, not just the first.
func specOf(g *global, c *cli.Context, h *hypervisor.Hypervisor) (runtime.Spec, hypervisor.Request, error) {
	req := hypervisor.Request{Agent: c.String("agent"), Session: c.String("session")}
	s, err := specIn(g, c, h, &req)
	return s, req, err
}

func specIn(g *global, c *cli.Context, h *hypervisor.Hypervisor, req *hypervisor.Request) (runtime.Spec, error) {
	s := runtime.Spec{
		Name: c.String("name"), Agent: c.String("agent"), Session: c.String("session"),
		Command: c.Args().Slice(), Env: c.StringSlice("env"), EnvPass: c.StringSlice("env-pass"),
		Environ: g.caller.environ, Cwd: c.String("cwd"), Workspace: g.caller.path(c.String("workspace")), Rootfs: g.caller.path(c.String("rootfs")),
		Keep: g.caller.path(c.String("keep")), TTY: c.Bool("t"), BestEffort: c.Bool("best-effort"),
		TestOnlyRanges: g.caller.getenv(testOnlyLimits) == "1",
	}
	var err error
	if s.WorkDir, err = g.caller.getwd(); err != nil {
		return s, fmt.Errorf("working directory: %w", err)
	}
	if s.Profile, err = profileOf(g, c, h, req, s.TestOnlyRanges); err != nil {
		return s, err
	}
	if s.Session != "" && s.Workspace == "" && !c.IsSet("workspace") {
		s.Workspace = h.Workspace(s.Session)
	}
	var problems []runtime.Problem
	for _, f := range []string{"agent", "session", "name", "workspace", "rootfs", "cwd", "keep", "profile"} {
		if c.IsSet(f) && c.String(f) == "" {
			problems = append(problems, runtime.Problem{Field: "--" + f, Message: "is empty; leave the flag out, or give it a value"})
		}
	}
	s.Limits = s.Profile.Limits
	problems = append(problems, limitFlags(c, &s.Limits)...)
	problems = append(problems, exitSpec(g, c, &s)...)
	problems = append(problems, safetySpec(g, c, &s.Profile.Safety)...)
	if err := planLimits(c, h, *req, &s.Limits); err != nil {
		return s, err
	}
	for _, flag := range []string{"ro-bind", "bind"} {
		for _, v := range c.StringSlice(flag) {
			src, dst, colon := strings.Cut(v, ":")
			if src == "" || colon && dst == "" || strings.Contains(dst, ":") {
				problems = append(problems, runtime.Problem{Field: "--" + flag, Message: fmt.Sprintf("%q is not SRC or SRC:DST", v)})
				continue
			}
			s.Binds = append(s.Binds, runtime.BindMount{Source: g.caller.path(src), Target: dst, Writable: flag == "bind"})
		}
	}
	if len(problems) > 0 {
		// The rest is looked at too, so that one round of corrections is enough.
		var rest *runtime.InvalidSpec
		if errors.As(s.Check(), &rest) {
			for _, p := range rest.Problems {
				if !slices.ContainsFunc(problems, func(q runtime.Problem) bool { return q.Field == p.Field }) {
					problems = append(problems, p)
				}
			}
		}
		return s, &runtime.InvalidSpec{Problems: problems}
	}
	return s, nil
}

// profileOf loads the profile that was named, or that of the ring the run may have.
func profileOf(g *global, c *cli.Context, h *hypervisor.Hypervisor, req *hypervisor.Request, testOnly bool) (profiles.Profile, error) {
	ring, name := c.Int("ring"), c.String("profile")
	switch {
	case ring == 0, name == "ring0":
		return profiles.Profile{}, errRing0
	case ring < 0 || ring > 3:
		return profiles.Profile{}, fmt.Errorf("--ring %d: there are four rings, and agents run in 1, 2 or 3", ring)
	}
	src := profiles.Sources{Dirs: g.profileDirs}
	if testOnly {
		src.Ranges = profiles.TestOnlyUnsafeRanges()
	}
	var p profiles.Profile
	var err error
	if c.IsSet("ring") {
		req.Ring, _ = rings.RingOf(ring)
	}
	if name != "" {
		if p, err = profiles.Load(src, name); err != nil {
			return p, err
		}
		if c.IsSet("ring") && p.Ring != ring {
			return p, hinted.New(fmt.Errorf("--ring %d contradicts --profile %s, which is a profile of ring %d", ring, name, p.Ring), "leave one of the two out")
		}
		req.Ring, _ = rings.RingOf(p.Ring)
	}
	if bad := identifiers(*req); bad != nil {
		return p, bad
	}
	given, err := h.RingFor(c.Context, *req)
	if err != nil || name != "" {
		return p, err
	}
	return profiles.Load(src, fmt.Sprintf("ring%d", given.Value()))
}

// identifiers are looked at before anybody is looked up by them.
func identifiers(req hypervisor.Request) error {
	var problems []runtime.Problem
	if req.Agent != "" {
		if err := rings.CheckAgentID(req.Agent); err != nil {
			problems = append(problems, runtime.Problem{Field: "--agent", Message: err.Error()})
		}
	}
	if req.Session != "" {
		if err := rings.CheckSessionID(req.Session); err != nil {
			problems = append(problems, runtime.Problem{Field: "--session", Message: err.Error()})
		}
	}
	if req.Session != "" && req.Agent == "" {
		problems = append(problems, runtime.Problem{Field: "--session", Message: "a session's runs belong to its participants; name one with --agent"})
	}
	if len(problems) > 0 {
		return &runtime.InvalidSpec{Problems: problems}
	}
	return nil
}

// limitFlags overrides the profile's limits; whether they are in range is checked with all the rest.
func limitFlags(c *cli.Context, l *profiles.Limits) []runtime.Problem {
	var problems []runtime.Problem
	set := func(flag string, parse func(string) error) {
		if !c.IsSet(flag) {
			return
		}
		if err := parse(c.String(flag)); err != nil {
			problems = append(problems, runtime.Problem{Field: "--" + flag, Message: err.Error()})
		}
	}
	size := func(to *profiles.Size) func(string) error {
		return func(v string) (err error) { *to, err = profiles.ParseSize(v); return }
	}
	duration := func(to *profiles.Duration) func(string) error {
		return func(v string) (err error) { *to, err = profiles.ParseDuration(v); return }
	}
	set("cpus", func(v string) (err error) { l.CPU, err = profiles.ParseCPUs(v); return })
	set("memory", size(&l.Memory))
	set("pids", func(v string) error {
		n, err := profiles.ParseValue(v)
		if err != nil || n.N > 1<<31-1 {
			return fmt.Errorf("%q is no number of processes", v)
		}
		l.PIDs = int(n.N)
		return nil
	})
	set("timeout", duration(&l.Timeout))
	set("cpu-time", duration(&l.CPUTime))
	set("scratch-size", size(&l.ScratchSize))
	set("max-output", size(&l.MaxOutput))
	// Files can't be larger than the place they are in, and a smaller memory bounds the default
	// scratch; only a contradiction that the caller wrote is an error.
	if c.IsSet("memory") && !c.IsSet("scratch-size") && l.Memory > 0 {
		l.ScratchSize = min(l.ScratchSize, l.Memory)
	}
	return problems
}
