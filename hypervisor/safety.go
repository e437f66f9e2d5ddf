// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"

	"agentrun/audit"
	"agentrun/rings"
	"agentrun/safetyloop"
	"agentrun/store"
)

// CodeAgentStopped is why a run doesn't begin whose agent a safety loop has stopped (S-8).
const CodeAgentStopped rings.Code = "agent_stopped"

// SafetyLoop makes a safety loop (S-15) whose state is this node's, and whose records are in its chains, on disk before an answer is
// given (H-28). Store, Record and Now of s are set here. Loops of one node, in whatever process, know each other's blocks. It must be
// closed before the Hypervisor is.
func (h *Hypervisor) SafetyLoop(s safetyloop.Settings) (*safetyloop.Loop, error) {
	db, err := h.store()
	if err != nil {
		return nil, err
	}
	s.Store, s.Record, s.Now = db, recorder{h}, h.now
	return safetyloop.New(s)
}

// SafetyBlocks lists who is stopped on this node, oldest first. A node without a state isn't given one for being asked.
func (h *Hypervisor) SafetyBlocks(ctx context.Context) (list []safetyloop.Block, err error) {
	err = h.view(ctx, func(tx *store.Tx) error {
		list, err = safetyloop.BlocksIn(tx)
		return err
	})
	return list, err
}

type recorder struct{ h *Hypervisor }

// Record implements safetyloop.Recorder.
func (r recorder) Record(_ context.Context, session string, rec audit.Record) error {
	return r.h.record(session, true, rec)
}

// notStopped denies a run to an agent that a safety loop has stopped, whatever the run's own profile says of loops: one started
// without would be the way around a stop.
func notStopped(tx *store.Tx, id string, v verdict) (verdict, error) {
	b, err := safetyloop.BlockIn(tx, id)
	if err != nil || b == nil {
		return v, err
	}
	return denied(v, "S-8", CodeAgentStopped, "agentrun challenges blocks tells why; agentrun challenges unblock "+id+" --reason WHY lets it go on",
		"the safety loop has stopped agent %s since %s: %s", id, b.Since.Format("2006-01-02 15:04:05Z07:00"), b.Reason), nil
}
