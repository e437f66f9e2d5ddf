// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"errors"
	"sync"
	"time"

	"agentrun/audit"
	"agentrun/rings"
)

// alarm weighs everything that one run was refused, together: system calls, tools, connections (H-24). An agent that tries a
// little at each of them is one agent. What it makes us write is bounded together, too.
type alarm struct {
	now             func() time.Time
	refused, passed *gatherer

	mu       sync.Mutex
	detector *rings.BreachDetector
	tripped  bool
}

func (h *Hypervisor) newAlarm(session string) *alarm {
	write := func(r audit.Record) error { return h.record(session, false, r) }
	return &alarm{
		now: h.now, refused: newGatherer(refusedLimit, h.now, write), passed: newGatherer(passedLimit, h.now, write),
		detector: rings.NewBreachDetector(h.now),
	}
}

// flush puts on record what was only counted so far.
func (a *alarm) flush() error { return errors.Join(a.refused.flush(), a.passed.flush()) }

// denied counts one attempt; trips is true once.
func (a *alarm) denied(ring, called rings.Ring) (b rings.BreachResult, trips bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	b = a.detector.Denied(ring, called)
	if !b.Tripped {
		return b, false
	}
	trips, a.tripped = !a.tripped, true
	return b, trips
}

// reset begins anew.
func (a *alarm) reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.detector, a.tripped = rings.NewBreachDetector(a.now), false
}

// breacher is whom a breach is laid to: the agent, or the run if it belongs to none.
func (a *Admission) breacher(run string) string {
	if a.Agent != "" {
		return a.Agent
	}
	return "run:" + run
}
