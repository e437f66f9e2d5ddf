// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"errors"
	"sync/atomic"

	"agentrun/audit"
	"agentrun/meter"
	"agentrun/rings"
)

// alarm weighs everything that one run was refused, together: system calls, tools, connections (H-24). An agent that tries a
// little at each of them is one agent, and so is one that does it in several runs: the window is the node's. What a run makes us
// write is bounded together, too.
type alarm struct {
	refused, passed *gatherer
	attempts        *meter.Account
	told            atomic.Uint32        // the worst severity that something followed from; 0 again when what counts is below medium
	warned          atomic.Bool          // its operators know that it is at medium
	whole           *alarm               // the parent's, which weighs a child's attempts with its own; nil: this one does
	heard           func(*audit.Refusal) // of each that is on record; nil: nobody
}

func (h *Hypervisor) newAlarm(session string, attempts *meter.Account) *alarm {
	a := &alarm{attempts: attempts}
	write := func(r audit.Record) error {
		err := h.record(session, false, r)
		if call, ok := r.(*audit.Refusal); ok && err == nil && a.heard != nil {
			a.heard(call)
		}
		return err
	}
	a.refused, a.passed = newGatherer(refusedLimit, h.now, write), newGatherer(passedLimit, h.now, write)
	return a
}

// flush puts on record what was only counted so far.
func (a *alarm) flush() error { return errors.Join(a.refused.flush(), a.passed.flush()) }

// denied counts one attempt; trips is true once for each severity that trips. What can't be counted is the worst.
func (a *alarm) denied(weight int, kind uint16) (b rings.BreachResult, trips bool) {
	if a.whole != nil {
		return a.whole.denied(weight, kind)
	}
	b, err := a.attempts.Attempt(weight, kind)
	if err != nil {
		b = rings.BreachResult{Severity: rings.SeverityCritical, Tripped: true, Score: weight}
	}
	if b.Severity < rings.SeverityMedium {
		a.told.Store(0) // what led to the last breach counts no more: the next is one of its own
	}
	for told := a.told.Load(); b.Tripped && told < uint32(b.Severity); told = a.told.Load() {
		if a.told.CompareAndSwap(told, uint32(b.Severity)) {
			return b, true
		}
	}
	return b, false
}

// nears is true once when what counts has come to medium, and again when it was below that in between.
func (a *alarm) nears(b rings.BreachResult) bool {
	if a.whole != nil {
		return a.whole.nears(b)
	}
	return !a.warned.Swap(b.Severity >= rings.SeverityMedium) && b.Severity == rings.SeverityMedium
}

// reset begins anew; what can't be forgotten still counts.
func (a *alarm) reset() {
	if a.whole == nil && a.attempts.Forgive() == nil {
		a.told.Store(0)
	}
}

// breacher is whom a breach is laid to: the agent, or the run, a child's parent, if it belongs to none.
func (a *Admission) breacher(run string) string {
	if a.parent.run != "" {
		return a.parent.who
	}
	if a.Agent != "" {
		return a.Agent
	}
	return "run:" + run
}
