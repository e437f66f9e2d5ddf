// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"fmt"
	"slices"

	"agentrun/fsjail"
	"agentrun/internal/read"
	"agentrun/profiles"
	"agentrun/rings"
)

// rights are what a ring gives a run that was planned for another: the parts of a ring that can change while
// a process lives.
type rights struct {
	ring       rings.Ring
	above      *profiles.Profile // more than the plan's: the built-in profile that decides what the filter leaves to the supervisor
	subprocess bool
	workspace  bool // the workspace and other folders of the host that the plan shows for writing
	root       bool // the root's private upper layer
	limits     Limits
}

// base is the ring the plan is for.
func (p *Plan) base() rings.Ring {
	ring, _ := rings.RingOf(p.Ring) // the profile's, which was checked
	return ring.OrSandbox()
}

// Elevatable says why a run of this plan can't have a more privileged ring than its own while it lives; nil
// if it can.
func (p *Plan) Elevatable() error {
	if p.onlyTools() {
		return fmt.Errorf("profile %s fixes by Landlock what may be executed, and a Landlock domain is never widened", p.Profile)
	}
	return nil
}

// rightsOf are the plan's own in its ring. Above it they are the built-in profile's where that gives more,
// below it where that gives less: a stricter profile stays as strict as it is when it is demoted.
func (p *Plan) rightsOf(ring rings.Ring) *rights {
	base := p.base()
	r := &rights{
		ring: ring, subprocess: p.Subprocess, workspace: p.profile.Files.Workspace == profiles.WorkspaceRW, root: p.WritableRoot,
		limits: Limits{CPU: p.Limits.CPU, Memory: p.Limits.Memory, PIDs: p.Limits.PIDs},
	}
	if ring == base {
		return r
	}
	b, ok := profiles.Builtin(fmt.Sprintf("ring%d", ring.Value()))
	if !ok { // ring 0 is nobody's
		b, _ = profiles.Builtin("ring3")
		r.ring = rings.Sandbox
	}
	of := Limits{CPU: b.Limits.CPU, Memory: int64(b.Limits.Memory), PIDs: int64(b.Limits.PIDs)}
	subprocess, workspace := b.Subprocess.Mode == profiles.SubprocessAllow, b.Files.Workspace == profiles.WorkspaceRW
	if r.ring.MorePrivilegedThan(base) {
		r.above = &b
		r.subprocess, r.workspace = r.subprocess || subprocess, r.workspace || workspace
		r.limits = Limits{CPU: max(r.limits.CPU, of.CPU), Memory: max(r.limits.Memory, of.Memory), PIDs: max(r.limits.PIDs, of.PIDs)}
		return r
	}
	r.subprocess, r.workspace, r.root = r.subprocess && subprocess, r.workspace && workspace, r.root && b.Files.Root == profiles.RootOverlay
	r.limits = Limits{CPU: min(r.limits.CPU, of.CPU), Memory: min(r.limits.Memory, of.Memory), PIDs: min(r.limits.PIDs, of.PIDs)}
	return r
}

// operatorLimits are the limits that are not the profile's: somebody chose them for this run.
func operatorLimits(s *Spec) (l Limits) {
	if s.Limits.CPU != s.Profile.Limits.CPU {
		l.CPU = s.Limits.CPU
	}
	if s.Limits.Memory != s.Profile.Limits.Memory {
		l.Memory = int64(s.Limits.Memory)
	}
	if s.Limits.PIDs != s.Profile.Limits.PIDs {
		l.PIDs = int64(s.Limits.PIDs)
	}
	return l
}

// checkLimits holds a change to the ranges that the spec was held to (M-3).
func (p *Plan) checkLimits(to Limits) error {
	if to == (Limits{}) {
		return errors.New("update: no limit is named")
	}
	var ps read.Problems
	check := func(field string, v float64, set bool, low, high float64) {
		if set && !(v >= low && v <= high) { // written so that NaN fails
			ps.Add(limitFlag("limits."+field), "%v is outside the range %v to %v", v, low, high)
		}
	}
	r := p.ranges
	check("cpu", to.CPU, to.CPU != 0, r.CPU.Min, r.CPU.Max)
	check("memory", float64(to.Memory), to.Memory != 0, float64(r.Memory.Min), float64(r.Memory.Max))
	check("pids", float64(to.PIDs), to.PIDs != 0, float64(r.PIDs.Min), float64(r.PIDs.Max))
	if len(ps) > 0 {
		return &InvalidSpec{ps}
	}
	return nil
}

// changes says whether a writable mount is one that a change of ring concerns: not the scratch, devices, or
// the kernel's own.
func (p *Plan) changes(at string) bool {
	if at == "/proc" {
		return false
	}
	return !slices.ContainsFunc(p.Entries, func(e fsjail.Entry) bool {
		return e.Target == at && (e.Kind == fsjail.Tmpfs || e.Kind == fsjail.Again || e.Kind == fsjail.Devpts || e.Kind == fsjail.Bind && e.Device)
	})
}

// writable says of a mount that changes whether it may be written with these rights: a folder of the host's,
// or else a part of the private root.
func (p *Plan) writable(at string, r *rights) bool {
	if slices.ContainsFunc(p.Entries, func(e fsjail.Entry) bool {
		return e.Kind == fsjail.Bind && (e.Writable || e.Live) && (e.Target == at || !e.IsFile && len(at) > len(e.Target) && at[:len(e.Target)+1] == e.Target+"/")
	}) {
		return r.workspace
	}
	return r.root
}
