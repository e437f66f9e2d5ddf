// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"agentrun/audit"
	"agentrun/internal/mounts"
	"agentrun/internal/thread"
	"agentrun/rings"
	"agentrun/rings/paths"
)

// own is what no run may be shown, as it is on the host.
type own struct {
	seen    mounts.View
	folders []ownFolder
}

type ownFolder struct {
	path   string
	places []mounts.Place
}

// PathCheck begins to look at what is agentrun's own, beside what its caller does before it asks; the answer decides whether a run of session
// may be shown host paths (H-30). Nothing of the state folder may be: it holds
// the audit, its keys and every session's workspace; nor of Options.Own: who writes the run folder has live runs taken for dead, and who
// writes the configuration decides about the next run. Nor may what is secret: the file of the run's key. What lies in the session's own workspace may be shown. The paths must be free of
// symlinks, as runtime.NewPlan resolves them: they are opened without following any, so what is checked is what is mounted.
//
// Folders are known by what they are, not by their path: the same files may be mounted elsewhere, or below what is shown, which comes
// along with it (open_tree(2), AT_RECURSIVE). What package mounts can't see through remains. A folder that isn't there yet counts: the
// first run would make it, before the agent's eyes. What host has seen of the paths already is not looked at again, and neither is what was
// looked at ahead, for a caller who still comes in time with it; nil: nothing was.
func (h *Hypervisor) PathCheck(ahead *OwnAhead, secret ...string) func(session string, hostPaths []string, host *mounts.View) error {
	var looking func() (*own, error)
	if paths := append(h.opt.ownPaths(), secret...); ahead != nil && slices.Equal(ahead.paths, paths) {
		looking = ahead.look
	} else {
		looking = thread.Ahead(func() (*own, error) { return lookAtOwn(paths) })
	}
	return func(session string, hostPaths []string, host *mounts.View) error {
		o, err := looking()
		if err != nil {
			return err
		}
		host.With(&o.seen)
		return h.checkPaths(session, hostPaths, host, o.folders)
	}
}

// OwnAhead is a look at what is agentrun's own before it is known who asks.
type OwnAhead struct {
	paths []string
	look  func() (*own, error)
}

// LookAhead prepares it for runs without a secret of their own.
func (o Options) LookAhead() *OwnAhead {
	paths := o.ownPaths()
	return &OwnAhead{paths, sync.OnceValues(func() (*own, error) { return lookAtOwn(paths) })}
}

// Look makes it, if nobody has asked for it yet.
func (a *OwnAhead) Look() { _, _ = a.look() }

// ownPaths are the state folder, and then the others.
func (o Options) ownPaths() []string { return append([]string{o.StateDir}, o.Own...) }

func lookAtOwn(paths []string) (*own, error) {
	var o own
	for _, path := range paths {
		at, err := o.seen.Nearest(path)
		if err != nil {
			return nil, fmt.Errorf("agentrun's own folder: %w", err)
		}
		itself, under, err := o.seen.Places(at)
		if err != nil {
			return nil, err
		}
		o.folders = append(o.folders, ownFolder{at.Path, append(itself, under...)})
	}
	return &o, nil
}

func (h *Hypervisor) checkPaths(session string, hostPaths []string, host *mounts.View, own []ownFolder) error {
	for _, p := range hostPaths {
		at, err := host.NearestAt(p)
		if err != nil {
			return err
		}
		shown, along, err := host.Places(at)
		if err != nil {
			return err
		}
		for i, f := range own {
			comes := mounts.Overlap(along, f.places)
			if !comes && !mounts.Overlap(shown, f.places) {
				continue
			}
			d := rings.Decision{Code: CodeOtherSession, Rule: "H-30", Reason: "it holds " + f.path + ", which is agentrun's own, or lies in it, by this path or another"}
			if i == 0 && session != "" && within(f.path, p) && !comes {
				d = h.ownPath(f.path, session, p)
			}
			if !d.Allowed() {
				return &DeniedError{What: "show " + p, Decision: d, Hint: "a run sees its own session's workspace only; give it a folder outside of " + f.path}
			}
		}
	}
	return nil
}

func (h *Hypervisor) ownPath(state, session, path string) rings.Decision {
	c, err := paths.Open(filepath.Join(state, workspacesDir))
	if err != nil {
		return rings.Decision{Code: CodeOtherSession, Rule: "H-30", Reason: err.Error()}
	}
	defer func() { _ = c.Close() }()
	return c.Allowed(session, path)
}

// Refuse puts on record that a run was denied what it asked for besides its ring: paths (H-30), or its start by
// policy (M-9). To an operator's own run, without an agent, a path that can't be shown is a wrong flag.
func (h *Hypervisor) Refuse(r Request, ring rings.Ring, d *DeniedError) error {
	action := "host_path.show"
	if d.Rule == "M-9" {
		action = runAction
	} else if r.Agent == "" {
		return d
	}
	who := Admission{Agent: r.Agent}
	err := h.record(r.Session, false, &audit.RingCheck{
		Action: action, AgentID: who.breacher(r.Run), AgentRing: audit.RingOf(ring.Value()), RequiredRing: audit.RingOf(ring.Value()),
		Reason: string(d.Code), Rule: d.Rule, RunID: r.Run, SessionID: r.Session,
	})
	return errors.Join(d, err)
}

// within compares whole components: /a/session-10 is not in /a/session-1.
func within(dir, path string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}
