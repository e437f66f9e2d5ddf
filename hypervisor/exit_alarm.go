// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"agentrun/audit"
	"agentrun/rings"
)

// alarm weighs everything that one run was refused, together: system calls, tools, connections (H-24). An agent that tries a
// little at each of them is one agent.
type alarm struct {
	detector *rings.BreachDetector

	mu      sync.Mutex
	tripped bool
}

func newAlarm(now func() time.Time) *alarm { return &alarm{detector: rings.NewBreachDetector(now)} }

// denied counts one attempt; trips is true once.
func (a *alarm) denied(adm *Admission, run string, ring, called rings.Ring) (b rings.BreachResult, trips bool) {
	b = a.detector.Denied(adm.breacher(run), adm.Session, ring, called)
	if !b.Tripped {
		return b, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	trips, a.tripped = !a.tripped, true
	return b, trips
}

// breacher is whom a breach is laid to: the agent, or the run if it belongs to none.
func (a *Admission) breacher(run string) string {
	if a.Agent != "" {
		return a.Agent
	}
	return "run:" + run
}

// breach does what H-24 asks for. An error ends the run.
func (h *Hypervisor) breach(adm *Admission, run string, kill bool, b rings.BreachResult) error {
	reason := fmt.Sprintf("ring breach, severity %s: %d refused calls in run %s", b.Severity, b.Attempts, run)
	err := h.record(adm.Session, true, &audit.Breach{
		AgentID: adm.breacher(run), Calls: int64(b.Attempts), RunID: run, Severity: b.Severity.String(), Tripped: true, Weight: audit.NumberOf(float64(b.Score)),
	})
	if adm.Agent != "" {
		_, qerr := h.Quarantine(context.Background(), adm.Agent, Cause{Code: "ring_breach", Reason: reason, Run: run})
		err = errors.Join(err, qerr)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", reason, err)
	}
	// Above ring 3 it can't be lowered while it lives.
	if kill || adm.Agent != "" && adm.Ring.MorePrivilegedThan(rings.Sandbox) {
		return errors.New(reason)
	}
	return nil
}
