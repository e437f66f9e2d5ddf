// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"agentrun/audit"
	"agentrun/rings"
	"agentrun/rings/paths"
)

// CheckPaths decides whether a run of session may be shown host paths (H-30). Nothing of the state folder may be: it holds
// the audit, its keys and every session's workspace. What lies in the session's own workspace may. The paths must be free of
// symlinks, as runtime.NewPlan resolves them: they are opened without following any, so what is checked is what is mounted.
func (h *Hypervisor) CheckPaths(session string, hostPaths []string) error {
	state, err := filepath.EvalSymlinks(h.opt.StateDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // there is nothing in it to show
	}
	if err != nil {
		return fmt.Errorf("state folder: %w", err)
	}
	for _, p := range hostPaths {
		if !within(state, p) && !within(p, state) {
			continue
		}
		d := rings.Decision{Code: CodeOtherSession, Rule: "H-30", Reason: "it holds agentrun's state, or lies in it"}
		if session != "" && within(state, p) {
			d = h.ownPath(state, session, p)
		}
		if !d.Allowed() {
			return &DeniedError{What: "show " + p, Decision: d, Hint: "a run sees its own session's workspace only; give it a folder outside of " + state}
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

// Refuse puts on record that a run was denied what it asked for besides its ring: paths (H-30). The operator's own runs,
// without an agent, are not decided about; a path that can't be shown is then a wrong flag.
func (h *Hypervisor) Refuse(r Request, ring rings.Ring, d *DeniedError) error {
	if r.Agent == "" {
		return d
	}
	action := "host_path.show"
	if d.Rule == "M-9" {
		action = runAction
	}
	err := h.record(r.Session, false, &audit.RingCheck{
		Action: action, AgentID: r.Agent, AgentRing: audit.RingOf(ring.Value()), RequiredRing: audit.RingOf(ring.Value()),
		Reason: string(d.Code), Rule: d.Rule,
	})
	return errors.Join(d, err)
}

// within compares whole components: /a/session-10 is not in /a/session-1.
func within(dir, path string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}
