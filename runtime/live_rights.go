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
	workspace  bool // the workspace and other folders of the host that the plan shows for writing; and programs in the scratch
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

// checkLimits holds a change to the ranges of the ring that holds (M-3).
func (p *Plan) checkLimits(ring rings.Ring, to Limits) error {
	if to == (Limits{}) {
		return errors.New("update: no limit is named")
	}
	var ps read.Problems
	check := func(key, why string) {
		if why != "" {
			ps.Add(limitFlag("limits."+key), "%s", why)
		}
	}
	r := p.ranges.Of(ring.Value())
	if to.CPU != 0 {
		check("cpu", profiles.Outside(r, "cpu", to.CPU, r.CPU))
	}
	if to.Memory < 0 {
		check("memory", "it is negative")
	} else if to.Memory != 0 {
		check("memory", profiles.Outside(r, "memory", profiles.Size(to.Memory), r.Memory))
	}
	if to.PIDs != 0 {
		check("pids", profiles.Outside(r, "pids", int(to.PIDs), r.PIDs))
	}
	if len(ps) > 0 {
		return &InvalidSpec{ps}
	}
	return nil
}

// limitsIn are the limits that hold with these rights: the rights' own, but for what an operator has set, and no more than runs of
// that ring may have on this node. What was given in ring 2 isn't kept in quarantine (M-3, M-22).
func (v *Live) limitsIn(r *rights) Limits {
	l, most := over(r.limits, v.operator), v.launch.plan.ranges.Of(r.ring.Value())
	return Limits{CPU: min(l.CPU, most.CPU.Max), Memory: min(l.Memory, int64(most.Memory.Max)), PIDs: min(l.PIDs, int64(most.PIDs.Max))}
}

// changes says what closes a writable mount in a ring that has less; 0 for what no change of ring concerns: devices, the kernel's own,
// and a scratch that holds no programs anyhow. One that does is always written to, so a noexec flag is what closes it.
func (p *Plan) changes(at string) fsjail.Closes {
	i := slices.IndexFunc(p.Entries, func(e fsjail.Entry) bool {
		return e.Target == at && (isScratch(e) || e.Kind == fsjail.Devpts || e.Kind == fsjail.Bind && e.Device)
	})
	switch {
	case at == "/proc", i >= 0 && !(isScratch(p.Entries[i]) && p.Entries[i].Exec):
		return 0
	case i >= 0:
		return fsjail.NoExec
	}
	return fsjail.ReadOnly
}

func isScratch(e fsjail.Entry) bool { return e.Kind == fsjail.Tmpfs || e.Kind == fsjail.Again }

// open says of a mount that changes whether it is open with these rights: a folder of the host's, the scratch as a place of programs, or
// else a part of the private root.
func (p *Plan) open(at string, r *rights) bool {
	if slices.ContainsFunc(p.Entries, func(e fsjail.Entry) bool { return isScratch(e) && e.Target == at }) {
		return r.workspace
	}
	if slices.ContainsFunc(p.Entries, func(e fsjail.Entry) bool {
		return (e.Kind == fsjail.Bind || e.Kind == fsjail.Overlay) && (e.Writable || e.Live) && (e.Target == at || !e.IsFile && len(at) > len(e.Target) && at[:len(e.Target)+1] == e.Target+"/")
	}) {
		return r.workspace
	}
	return r.root
}
