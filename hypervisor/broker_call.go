// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"errors"
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
	action string
	began  time.Time
	model  bool
	passed bool  // everybody had agreed: it may have had effects
	cost   int64 // reserved
	tokens int64
}

// passed notes that a call has its reservation, which is the last thing that it is asked for.
func (b *Broker) passed(s link.Spend) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.places[s.Place]; c != nil {
		c.passed, c.model, c.cost, c.tokens = true, s.What == "model", s.Estimate, s.Tokens
	}
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
	if err := b.Record(ctx, r.Booked(a)); err != nil {
		return link.Reservation{}, err
	}
	return a, nil
}

// giveBack is the last of a call; a place that isn't held is nothing.
func (b *Broker) giveBack(place uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
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
		name, ok := toolOf(c.action)
		if !ok {
			name = audit.Claimed(c.action)
		}
		r := link.Record{
			Kind: "tool", Name: name, Allowed: c.passed, Code: link.CodeCanceled, Rule: "M-18", Cost: c.cost, Tokens: c.tokens,
			Took: max(b.h.now().Sub(c.began), 0), Count: 1,
		}
		if c.model {
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
