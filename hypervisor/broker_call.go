// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"agentrun/audit"
	"agentrun/governance"
	"agentrun/rings"
	"agentrun/toolproxy/link"
)

// A call begins with a Check that takes a place, and ends with one End. Between the two the gateway decides and works; if it dies
// there, or is killed because the run is over, nobody is left to say how the call went. What is known of it is kept here, so that it
// is on record all the same: a call that reached a tool and that no record tells of would be the one to look for (M-18).

// openCall is a call that has a place and no End yet.
type openCall struct {
	action rings.Action
	began  time.Time
	ring   rings.Ring
	tokens audit.Number // left of the rate
	passed bool         // everybody had agreed: it may have had effects
	held   link.Spend   // reserved
}

// passed notes that a call has its reservation, which is the last thing that it is asked for, and puts on record that it begins: what
// it does in the world is done after that (H-28). Each place begins one call, so a run has as many of these records as it has steps.
func (b *Broker) passed(s link.Spend) error {
	b.mu.Lock()
	c := b.places[s.Place]
	if c == nil || c.passed {
		b.mu.Unlock()
		return nil
	}
	c.passed, c.held = true, s
	b.mu.Unlock()
	err := b.h.record(b.adm.Session, false, &audit.ActionAttempt{
		Action: audit.Claimed(c.action.ID), AgentID: b.control.who, BucketTokens: c.tokens, EffScore: b.score(), RequiredRing: ringOnRecord(c.action.RequiredRing()),
		ParentRunID: b.adm.parent.run, Ring: ringOnRecord(c.ring), RunID: b.run, SessionID: b.adm.Session, Timestamp: b.h.now().UTC(),
	})
	if err != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		c.passed = false
	}
	return err
}

// End implements link.Supervisor. A call that couldn't be booked goes on record as such; what is held goes back in any case.
func (b *Broker) End(ctx context.Context, c link.End) (link.Reservation, error) {
	defer b.giveBack(c.Place)
	var r link.Record
	if c.Record != nil {
		r = *c.Record
	}
	a := link.Reservation{Allowed: true, Code: rings.CodeOK}
	if c.Reservation != 0 {
		var err error
		if a, err = b.book(ctx, link.Settle{ID: c.Reservation, Cost: r.Cost, Tokens: r.Tokens}, true); err != nil {
			b.control.warn(err)
			a = link.Reservation{
				Code: governance.CodeUnavailable, Message: "the budget can't be asked, and without that nothing is allowed", Next: "try again later",
			}
		}
	}
	if c.Record == nil {
		return a, nil
	}
	r = r.Booked(a)
	if r.Allowed {
		b.keep(c, &r)
	}
	if err := b.Record(ctx, r); err != nil {
		return link.Reservation{}, err
	}
	return a, nil
}

// callID is how operators and the audit call a call: by its run, and the number of its place there.
func (b *Broker) callID(place uint64) string { return fmt.Sprintf("%s.%d", b.run, place) }

// keep gives a call that passed its id, and keeps what it takes to undo it, if its tool declares that (H-7). That comes before its
// record and its result: whoever sees that it can be undone can undo it.
func (b *Broker) keep(c link.End, r *link.Record) {
	b.mu.Lock()
	call := b.places[c.Place]
	b.mu.Unlock()
	if call == nil || !call.passed {
		return
	}
	r.Call = b.callID(c.Place)
	window := time.Duration(call.action.UndoWindowSeconds) * time.Second
	tool, ok := toolOf(call.action.ID)
	if len(c.Undo) == 0 || len(c.Undo) > link.MaxUndo || window == 0 || !ok {
		return
	}
	now := b.h.now().UTC()
	err := b.h.keepUndo(Undoable{
		Call: r.Call, Run: b.run, Parent: b.adm.parent.run, Agent: b.adm.Agent, Session: b.adm.Session, Tool: tool, Gateway: b.opt.Gateway,
		Made: now, Until: now.Add(window), State: UndoOpen,
	}, c.Undo)
	if err != nil {
		b.control.warn(fmt.Errorf("call %s can't be undone: %w", r.Call, err))
		r.Flags = append(r.Flags, link.FlagUndoLost)
		return
	}
	r.UndoUntil = now.Add(window)
}

// giveBack is the last of a call; a place that isn't held is nothing.
func (b *Broker) giveBack(place uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.places[place] != nil {
		b.control.calls.open.Add(-1)
	}
	delete(b.places, place)
}

// cutOff puts the calls on record that nobody ended. What they had reserved counts as spent (governance.Ledger.Close).
func (b *Broker) cutOff() error {
	b.mu.Lock()
	open := b.places
	b.places = map[uint64]*openCall{}
	b.mu.Unlock()
	var errs error
	for _, place := range slices.Sorted(maps.Keys(open)) {
		c := open[place]
		name, ok := toolOf(c.action.ID)
		if !ok {
			name = audit.Claimed(c.action.ID)
		}
		r := link.Record{
			Kind: "tool", Name: name, Allowed: c.passed, Code: link.CodeCanceled, Rule: "M-18", Action: c.action.ID, Required: c.action.RequiredRing(), Cost: c.held.Estimate, Tokens: c.held.Tokens,
			Took: max(b.h.now().Sub(c.began), 0), Count: 1,
		}
		if c.passed {
			r.Call = b.callID(place)
		}
		if c.held.What == "model" {
			r.Kind = "llm"
		}
		rec, err := b.recordOf(r)
		if err == nil {
			err = b.put(r, rec)
		}
		errs = errors.Join(errs, err)
	}
	return errs
}
