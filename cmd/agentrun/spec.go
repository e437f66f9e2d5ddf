// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"

	"agentrun/hypervisor"
	"agentrun/internal/hinted"
	"agentrun/profiles"
	"agentrun/rings"
	"agentrun/runtime"
	"agentrun/supervisor"
)

// specFlags are what exec and plan share: everything that shapes a sandbox.
func specFlags() []cli.Flag {
	flags := []cli.Flag{
		&cli.IntFlag{Name: "ring", Usage: "privilege ring `1|2|3`", Value: supervisor.DefaultRing, DefaultText: "the agent's own, without --agent 3"},
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

// specOf turns a request into a Spec, in the ring that it may have. All that is wrong with it is reported, not just the first.
func specOf(ctx context.Context, g *global, r *supervisor.Request, h *hypervisor.Hypervisor) (runtime.Spec, hypervisor.Request, error) {
	req := hypervisor.Request{Agent: r.Agent, Session: r.Session}
	s, err := specIn(ctx, g, r, h, &req)
	return s, req, err
}

func specIn(ctx context.Context, g *global, r *supervisor.Request, h *hypervisor.Hypervisor, req *hypervisor.Request) (runtime.Spec, error) {
	s := runtime.Spec{
		Name: r.Name, Agent: r.Agent, Session: r.Session, Command: r.Command, Env: r.Env, EnvPass: r.EnvPass, Environ: g.caller.environ,
		Cwd: r.Cwd, Workspace: r.Workspace, Rootfs: r.Rootfs, Keep: r.Keep, Binds: r.Binds, TTY: r.TTY, BestEffort: r.BestEffort,
		TestOnlyRanges: g.caller.getenv(testOnlyLimits) == "1",
	}
	var err error
	if s.WorkDir, err = g.caller.getwd(); err != nil {
		return s, fmt.Errorf("working directory: %w", err)
	}
	if s.Profile, err = profileOf(ctx, g, r, h, req, s.TestOnlyRanges); err != nil {
		return s, err
	}
	if s.Session != "" && s.Workspace == "" {
		s.Workspace = h.Workspace(s.Session)
	}
	s.Limits = s.Profile.Limits
	r.Limits.Over(&s.Limits)
	problems := slices.Concat(r.Malformed, exitSpec(g, r, &s), safetySpec(g.caller, r, &s.Profile.Safety))
	if err := planLimits(ctx, r, h, *req, &s.Limits); err != nil {
		return s, err
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
func profileOf(ctx context.Context, g *global, r *supervisor.Request, h *hypervisor.Hypervisor, req *hypervisor.Request, testOnly bool) (profiles.Profile, error) {
	ring, name := r.RingOr3(), r.Profile
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
	if r.Ring != nil {
		req.Ring, _ = rings.RingOf(ring)
	}
	if name != "" {
		if p, err = profiles.Load(src, name); err != nil {
			return p, err
		}
		if r.Ring != nil && p.Ring != ring {
			return p, hinted.New(fmt.Errorf("--ring %d contradicts --profile %s, which is a profile of ring %d", ring, name, p.Ring), "leave one of the two out")
		}
		req.Ring, _ = rings.RingOf(p.Ring)
	}
	if bad := identifiers(*req); bad != nil {
		return p, bad
	}
	given, err := h.RingFor(ctx, *req)
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
