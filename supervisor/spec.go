// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"agentrun/governance"
	"agentrun/hypervisor"
	"agentrun/internal/hinted"
	"agentrun/internal/read"
	"agentrun/profiles"
	"agentrun/rings"
	"agentrun/runtime"
	"agentrun/safetyloop"
	"agentrun/safetyloop/judge"
)

// TestOnlyLimits lets a test give room, beyond the ranges, to what it doesn't test.
const TestOnlyLimits = "AGENTRUN_TESTONLY_UNSAFE_LIMITS"

// ErrRing0 refuses ring 0 to a sandbox.
var ErrRing0 = hinted.New(errors.New("--ring 0: ring 0 configures the hypervisor itself and is never given to a "+
	"process (H-12); an operator's action with an SRE witness reaches it, a sandbox does not"),
	"the rings for agents are 1 (private writable root), 2 (subprocesses, workspace), 3 (default)")

// specify turns the request into a Spec, in the ring that it may have. All that is wrong with it is reported,
// not just the first.
func (s *run) specify() (err error) {
	r := s.want
	s.asked = hypervisor.Request{Agent: r.Agent, Session: r.Session, Sandbox: r.Sandbox, Expect: r.Expect, Tools: r.Tools}
	s.spec = runtime.Spec{
		Name: r.Name, Agent: r.Agent, Session: r.Session, Command: r.Command, Cwd: r.Cwd,
		Env: r.Env, EnvPass: r.EnvPass, Environ: withoutKey(s.by.Environ),
		Workspace: r.Workspace, Overlay: r.WorkspaceMode == WorkspaceOverlay, Rootfs: r.Rootfs, Keep: r.Keep, Binds: r.Binds, Tmpfs: r.Tmpfs, TTY: r.TTY, BestEffort: r.BestEffort,
	}
	if err := s.showImage(); err != nil {
		return err
	}
	s.ranges()
	if s.spec.WorkDir, err = s.by.Getwd(); err != nil {
		return fmt.Errorf("working directory: %w", err)
	}
	if s.spec.Profile, err = s.profile(); err != nil {
		return err
	}
	if s.parent != nil {
		s.spec.Parent = runtime.Parent{ID: s.parent.plan.ID, Cgroup: s.parent.plan.Cgroup}
	} else if r.Session != "" && r.Workspace == "" { // what a tool sees its configuration says
		s.spec.Workspace = s.h.Workspace(r.Session)
	}
	s.spec.Profile.Environment.Set = s.node.Git.under(s.spec.Profile.Environment.Set)
	s.spec.Limits = s.spec.Profile.Limits
	r.Limits.Over(&s.spec.Limits)
	if err := s.readBundle(); err != nil {
		return err
	}
	s.spec.CgroupAbove = r.CgroupAbove
	s.spec.NoLinks = r.Hold != ""
	if r.Hold != "" { // a container lasts as long as the node gives a run
		in := s.spec.Ranges.Of(s.spec.Profile.Ring)
		s.spec.Limits.Timeout = or(r.Limits.Timeout, in.Timeout.Max)
		s.spec.Limits.CPUTime = or(r.Limits.CPUTime, in.CPUTime.Max)
	}
	problems := slices.Concat(r.Malformed, s.showSandbox(), s.presented(), s.wayOut(), s.showHome(), safetyOf(s.by, r, &s.spec.Profile.Safety), onBreach(r, &s.spec.Profile),
		workspaceMode(r))
	if err := s.planTime(); err != nil {
		return err
	}
	if len(problems) == 0 {
		return nil
	}
	// The rest is looked at too, so that one round of corrections is enough.
	if rest, ok := errors.AsType[*runtime.InvalidSpec](s.spec.Check()); ok {
		for _, p := range rest.Problems {
			if !slices.ContainsFunc(problems, func(q read.Problem) bool { return q.Path == p.Path }) {
				problems = append(problems, p)
			}
		}
	}
	return &runtime.InvalidSpec{Problems: problems}
}

// profile loads the profile that was named, or that of the ring the run may have.
func (s *run) profile() (profiles.Profile, error) {
	r := s.want
	ring, name := r.RingOr3(), r.Profile
	switch {
	case ring == 0, name == "ring0":
		return profiles.Profile{}, ErrRing0
	case ring < 0 || ring > 3:
		return profiles.Profile{}, fmt.Errorf("--ring %d: there are four rings, and agents run in 1, 2 or 3", ring)
	}
	src := profiles.Sources{Dirs: s.node.ProfileDirs, Ranges: s.spec.Ranges}
	var p profiles.Profile
	var err error
	if r.Ring != nil {
		s.asked.Ring, _ = rings.RingOf(ring)
	}
	if name != "" {
		if p, err = profiles.Load(src, name); err != nil {
			return p, err
		}
		if r.Ring != nil && p.Ring != ring {
			return p, hinted.New(fmt.Errorf("--ring %d contradicts --profile %s, which is a profile of ring %d", ring, name, p.Ring), "leave one of the two out")
		}
		s.asked.Ring, _ = rings.RingOf(p.Ring)
	}
	if bad := identifiers(s.asked); bad != nil {
		return p, bad
	}
	given, err := s.h.RingFor(s.ctx, s.asked)
	if err != nil || name != "" {
		return p, err
	}
	return profiles.Load(src, fmt.Sprintf("ring%d", given.Value()))
}

// identifiers are looked at before anybody is looked up by them.
func identifiers(req hypervisor.Request) error {
	var problems []read.Problem
	if req.Agent != "" {
		if err := rings.CheckAgentID(req.Agent); err != nil {
			problems = append(problems, read.Problem{Path: "--agent", Message: err.Error()})
		}
	}
	if req.Session != "" {
		if err := rings.CheckSessionID(req.Session); err != nil {
			problems = append(problems, read.Problem{Path: "--session", Message: err.Error()})
		}
	}
	if req.Session != "" && req.Agent == "" {
		problems = append(problems, read.Problem{Path: "--session", Message: "a session's runs belong to its participants; name one with --agent"})
	}
	if len(problems) > 0 {
		return &runtime.InvalidSpec{Problems: problems}
	}
	return nil
}

// ranges finds those that the run's limits must lie in (M-3): the node's, for the plan of the run's agent. An agent whose plan can't be
// found out is refused later, with the reason.
func (s *run) ranges() {
	s.spec.Ranges = s.node.Ranges
	s.spec.Ranges.Plan = governance.Operator
	s.spec.Ranges.TestOnly = s.by.Getenv(TestOnlyLimits) == "1"
	s.spec.MostTime = profiles.NoLimit
	if grant, err := s.h.GrantFor(s.ctx, s.want.Agent); err == nil {
		s.spec.Ranges.Plan, s.spec.MostTime = grant.Plan, timeOf(grant)
	}
}

// MostTime is what the node's ranges and a plan give a run in a ring (M-3, M-19).
func (n *Node) MostTime(g governance.Grant, ring int) profiles.Duration {
	ranges := n.Ranges
	ranges.Plan = g.Plan
	return min(ranges.Of(ring).Timeout.Max, timeOf(g))
}

// timeOf is what a plan gives a run.
func timeOf(g governance.Grant) profiles.Duration {
	if int64(g.Limits.Time) == governance.Unlimited {
		return profiles.NoLimit
	}
	return profiles.Duration(g.Limits.Time)
}

// planTime narrows what the plan of the run's agent narrows (M-19). A flag that asks for more is refused like any other limit.
func (s *run) planTime() error {
	l, most := &s.spec.Limits, s.spec.MostTime
	if l.Timeout <= most {
		return nil
	}
	if s.want.Limits.Timeout != nil && s.parent == nil {
		why := fmt.Sprintf("plan %s gives a run %s at most", s.spec.Ranges.Plan, most)
		return &runtime.InvalidSpec{Problems: []read.Problem{{Path: "--timeout", Message: why}}}
	}
	l.Timeout = most
	l.CPUTime = min(l.CPUTime, most)
	return nil
}

// The ways to give a run its workspace.
const (
	WorkspaceDirect  = "direct"
	WorkspaceOverlay = "overlay"
)

func workspaceMode(r *Request) []read.Problem {
	switch r.WorkspaceMode {
	case "", WorkspaceDirect, WorkspaceOverlay:
		return nil
	}
	return []read.Problem{{Path: "--workspace-mode", Message: fmt.Sprintf("%.64q is none of direct, overlay", r.WorkspaceMode)}}
}

// onBreach has the flag speak to the profile.
func onBreach(r *Request, p *profiles.Profile) []read.Problem {
	p.OnBreach = cmp.Or(r.OnBreach, p.OnBreach)
	if all := p.OnBreach.Choices(); p.OnBreach != "" && !slices.Contains(all, string(p.OnBreach)) {
		return []read.Problem{{Path: "--on-breach", Message: fmt.Sprintf("%.64q is none of %s", p.OnBreach, strings.Join(all, ", "))}}
	}
	return nil
}

// safetyOf has flags and environment speak to the profile, in the order of S-14.
func safetyOf(by *Caller, r *Request, p *profiles.Safety) (bad []read.Problem) {
	problem := func(flag, message string) { bad = append(bad, read.Problem{Path: flag, Message: message}) }
	why := func(s string) {
		if p.Why == "" {
			p.Why = s
		}
	}
	switch {
	case r.Safety != nil:
		p.Mode = *r.Safety
		if _, err := judge.ParseMode(string(p.Mode)); err != nil {
			problem("--safety", err.Error())
		}
		why("--safety")
	case p.Mode == "" && !r.NoGateway:
		mode, err := judge.ModeOf(by.LookupEnv, safetyloop.Disabled)
		if err != nil {
			problem("the caller's environment", err.Error())
		}
		if err == nil && mode != safetyloop.Disabled {
			p.Mode = profiles.SafetyMode(mode.String())
			why(judge.EnvMode)
		}
	}
	if r.RequireIntent != nil {
		p.RequireIntent = *r.RequireIntent
	}
	if p.RequireIntent && !slices.Contains([]profiles.SafetyMode{profiles.SafetyEnforcing, profiles.SafetyMonitoring}, p.Mode) {
		problem("--require-intent", "no step is approved that a call could match: want --safety enforcing or monitoring, or a profile that says so")
	}
	if r.NoGateway && (p.On() || r.RequireIntent != nil && *r.RequireIntent) {
		problem("--no-gateway", "the safety loop is reached by the tool proxy, and there would be none: want --safety disabled beside it")
	}
	return bad
}
