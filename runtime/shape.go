// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"slices"
	"strings"

	"agentrun/fsjail"
	"agentrun/internal/mounts"
)

// Shape is what of a plan has to be known when a sandbox is built, and is the same for many runs: the root
// view without the workspace, the namespaces, the places of the way out, and what the agent's process gives
// up (filter, Landlock, limits of setrlimit(2)), where it can be made ahead (mayWait). Command, arguments,
// environment, limits of the cgroup, workspace and whose run it is are not in it: a prepared sandbox gets
// them when it is handed out.
//
// Two plans with equal keys can be given the same prepared sandbox. What a root view shows of the host counts
// too, by inode and by the host's mounts there, so that a sandbox that waited shows what one built now would.
type Shape struct {
	key       string
	own       string // what of the key is the plan's
	workspace bool
	waits     bool  // the agent's process is made ahead, and confined
	plan      *Plan // what it was taken from, without anything of the run
	of        *Plan // whose it is; nil: nobody's
}

// Key identifies the shape on this node while it runs.
func (s Shape) Key() string { return s.key }

// ErrOwnShape says that a plan asks for something that can only be built for its run alone.
var ErrOwnShape = errors.New("the run brings what only a sandbox built for it can show")

// Shape of a plan; ErrOwnShape for one that no prepared sandbox suits: roots and binds of the operator's, a
// kept root, a CA of the run's own, a single file as workspace.
func (p *Plan) Shape() (Shape, error) {
	if p.custom || p.Keep != "" || p.RootDir != "" || p.Wayout != nil && p.Wayout.CA {
		return Shape{}, ErrOwnShape
	}
	early, late := p.split()
	if len(late) > 0 && (late[0].Target != workspaceDir || late[0].IsFile) {
		return Shape{}, ErrOwnShape
	}
	s, err := shapeOf(p, early, len(late) > 0, &p.seen)
	s.of, p.seen = p, mounts.View{} // a shape that is asked for later is of the host as it is then
	return s, err
}

// Kept is the shape without the plan it was taken from, for who keeps it.
func (s Shape) Kept() Shape {
	s.of = nil
	return s
}

// Renewed returns the shape as the host is now, of nobody's; the same key says that nothing has changed. The
// error is of something that the root view shows and that is gone.
func (s Shape) Renewed() (Shape, error) {
	if s.plan == nil {
		return Shape{}, errNoShape
	}
	key, err := s.keyOf(new(mounts.View))
	s.key = key
	return s.Kept(), err
}

var errNoShape = errors.New("no shape")

// WithWorkspace is the same shape with a place for a workspace, or without.
func (s Shape) WithWorkspace(yes bool) (Shape, error) {
	if s.plan == nil {
		return Shape{}, errNoShape
	}
	early, _ := s.plan.split()
	early = slices.DeleteFunc(early, func(e fsjail.Entry) bool { return e.Target == workspaceDir })
	return shapeOf(s.plan, early, yes, new(mounts.View))
}

// split tells the entries that come when the run is known from those before.
func (p *Plan) split() (early, late []fsjail.Entry) {
	early = make([]fsjail.Entry, 0, len(p.Entries)+1) // one more: the place of the workspace
	for _, e := range p.Entries {
		if e.Kind == fsjail.Bind && (e.Target == workspaceDir || strings.HasPrefix(e.Target, workspaceDir+"/")) {
			late = append(late, e)
		} else {
			early = append(early, e)
		}
	}
	return early, late
}

func shapeOf(p *Plan, early []fsjail.Entry, workspace bool, host *mounts.View) (Shape, error) {
	if workspace {
		early = append(early, fsjail.Entry{
			Kind: fsjail.Dir, Target: workspaceDir, Mode: 0o755,
			Why: "where the workspace goes when the sandbox is handed out",
		})
	}
	t := &Plan{
		Ring: p.Ring, UID: p.UID, Hostname: p.Hostname, OOMScore: p.OOMScore, Namespaces: p.Namespaces, WritableRoot: p.WritableRoot, Entries: early,
		ProcOptions: p.ProcOptions, CgroupMode: p.CgroupMode, Limits: p.Limits, Wayout: p.Wayout,
	}
	s := Shape{workspace: workspace, plan: t}
	if s.waits = p.mayWait(); s.waits {
		t.Rlimits, t.Seccomp.WaitKillable, t.filter, t.filterSum, t.profile = p.Rlimits, p.Seccomp.WaitKillable, p.filter, p.filterSum, p.profile
		t.Landlock = p.Landlock
		t.Landlock.Rules, _ = splitRules(p.Landlock.Rules)
	}
	s.own = t.shapeKey() + t.confinementKey(s.waits)
	var err error
	s.key, err = s.keyOf(host)
	return s, err
}

// keyOf is the key as it comes out with a view of the host: what the root view shows may have changed since.
func (s Shape) keyOf(host *mounts.View) (string, error) {
	shown, err := s.plan.shownKey(host)
	return s.own + "-" + shown, err
}

// confinementKey is the same for plans that confine the agent's process alike.
func (p *Plan) confinementKey(waits bool) string {
	if !waits {
		return ""
	}
	d := digestText{buf: make([]byte, 0, 1<<10)}
	d.text(string(p.filterSum[:]))
	d.flags(p.Seccomp.WaitKillable)
	d.number(p.Landlock.FS)
	d.number(p.Landlock.Scoped)
	d.number(uint64(len(p.Landlock.Rules)))
	for _, r := range p.Landlock.Rules {
		d.number(r.Access)
		d.text(r.Path)
	}
	for _, r := range p.Rlimits {
		d.number(uint64(r.resource)) //nolint:gosec // a number of setrlimit(2)
		d.number(r.Value)
		d.number(r.soft())
	}
	return "-" + d.sum()
}

// shapeKey digests a stripped plan.
func (p *Plan) shapeKey() string {
	c := *p
	c.Limits = PlanLimits{ScratchSize: p.Limits.ScratchSize}                       // the others are set when it is handed out
	c.Rlimits, c.Landlock, c.Seccomp = nil, fsjail.LandlockDomain{}, PlanSeccomp{} // confinementKey's
	return digestOf(c, true)
}

// shownKey digests what the entries are on the host.
func (p *Plan) shownKey(host *mounts.View) (string, error) {
	var d digestText
	var shown []string
	for i := range p.Entries {
		e := &p.Entries[i]
		if e.Kind != fsjail.Bind && e.Kind != fsjail.Overlay {
			continue
		}
		spot, err := host.At(e.Source)
		if err != nil {
			return "", err
		}
		d.number(spot.Dev)
		d.number(spot.Ino)
		shown = append(shown, e.Source)
	}
	// Read for each view: poll(2) tells of mounts that come and go, not of a folder above one that is
	// renamed, into what is shown or out of it.
	table, err := host.Table()
	if err != nil {
		return "", err
	}
	along := table.Along(shown)
	d.number(uint64(len(along)))
	for _, m := range along {
		d.text(m.Line)
	}
	return d.sum(), nil
}
