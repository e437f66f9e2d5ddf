// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"agentrun/pdp"
	"agentrun/rings"
	"agentrun/toolproxy/link"
)

// permit is a call from its first check to its record.
type permit struct {
	gate    *Gate
	call    Call
	parent  context.Context //nolint:containedctx // a permit is the scope of one call; the record outlives its context
	ctx     context.Context //nolint:containedctx // as parent
	cancel  context.CancelCauseFunc
	stay    func() bool // from then on the caller's leaving doesn't end the call; nil: it always does
	started time.Time
	digest  string

	stopClock   context.CancelFunc
	ring        rings.Ring
	rule        string
	place       uint64
	reservation uint64 // 0: nothing is reserved
	approvalID  string
	violation   *Violation

	mu   sync.Mutex
	done bool
}

func (p *permit) Context() context.Context { return p.ctx }

// ended tells why the call is over, nil if it isn't.
func (p *permit) ended() *Error {
	if p.ctx.Err() == nil {
		return nil
	}
	var e *Error
	if errors.As(context.Cause(p.ctx), &e) {
		return e
	}
	return &Error{Code: CodeCanceled, Message: "the call was given up, or the run has ended", Next: "end", Cause: context.Cause(p.ctx)}
}

// Spent books while the call goes on. The cost is that of the whole call so far.
func (p *permit) Spent(cost, tokens int64) *Error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done {
		return unavailable("the budget", errEnded)
	}
	if e := p.ended(); e != nil {
		return e
	}
	e := p.settle(cost, tokens)
	if e != nil {
		p.cancel(e)
	}
	return e
}

func (p *permit) settle(cost, tokens int64) *Error {
	if e := amounts(cost, tokens); e != nil {
		return e
	}
	r, err := p.gate.o.Supervisor.Settle(p.ctx, link.Settle{ID: p.reservation, Cost: cost, Tokens: tokens})
	if err != nil {
		return unavailable("the budget", err)
	}
	if !r.Allowed {
		return ofReservation(r)
	}
	return nil
}

func amounts(cost, tokens int64) *Error {
	if cost < 0 || tokens < 0 {
		return unavailable("the budget", fmt.Errorf("settle: negative cost %d or tokens %d", cost, tokens))
	}
	return nil
}

// End closes the call: the supervisor books, records and gives the place back in one step.
func (p *permit) End(o Outcome) *Error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done {
		return unavailable("the record", errEnded)
	}
	p.done = true
	told := o.Err
	if o.Err == nil {
		o.Err = p.revoked()
	}
	if e := p.finish(o, link.Record{Allowed: true}); e != told {
		return e
	}
	return nil
}

// revoked tells whether a call that succeeded may no longer have its result: the ring was lost before it came (M-22), or the
// budget ended in the middle of it (M-19). Lateness alone is no reason to withhold what is there.
func (p *permit) revoked() *Error {
	e := p.ended()
	if e == nil || e.Code == CodeToolTimeout {
		return nil
	}
	return e
}

// refuse ends a call that didn't pass. The denial stands whether it could be recorded or not.
func (p *permit) refuse(e *Error) *Error {
	p.done = true
	r := link.Record{Weight: p.weight(e), Action: p.call.Action.ID, Required: p.call.Action.RequiredRing()}
	if a := p.call.Action; !a.ReadOnly {
		r.Reversibility = a.Reversibility
	}
	if lost := p.finish(Outcome{Err: e}, r); lost != nil && lost != e {
		e.Cause = errors.Join(e.Cause, lost.Cause)
	}
	if p.violation != nil {
		p.gate.condemn(p.parent, *p.violation)
	}
	return e
}

// weight is the ring that the refused thing belongs to. What is refused for its pace or price is nobody's breach.
func (p *permit) weight(e *Error) rings.Ring {
	switch e.Code {
	case CodeRing, CodeToolRestricted, CodeCapabilityMissing, CodeConfidential, "rbac_denied", "acl_block", "no_role", "key_invalid":
		return p.call.Action.RequiredRing()
	}
	return rings.NoRing
}

func (p *permit) finish(o Outcome, r link.Record) (e *Error) {
	defer p.release()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.parent), p.gate.o.RecordTimeout)
	defer cancel()
	end, said := link.End{Place: p.place, Reservation: p.reservation}, false
	defer func() {
		if v := recover(); v != nil {
			e = broke(v)
		}
		if !said { // what is held goes back all the same
			_, _ = p.gate.o.Supervisor.End(ctx, end)
		}
	}()
	e = o.Err
	if wrong := amounts(o.Cost, o.Tokens); wrong != nil && p.reservation != 0 {
		end.Reservation = 0 // the supervisor books what was reserved at the run's end
		if e == nil {
			e = wrong
		}
	}
	r = p.record(r, o, e)
	end.Record, said = &r, true
	if o.Undo != nil {
		end.Undo = o.Undo.Reveal()
	}
	a, err := p.gate.o.Supervisor.End(ctx, end)
	if err != nil {
		p.gate.o.Log.Error("call not on record", "tool", p.call.Tool, "code", r.Code, "error", err)
		return unavailable("the record", err)
	}
	if !a.Allowed && e == nil {
		e = ofReservation(a)
	}
	r = r.Booked(a)
	p.observe(r)
	p.gate.o.Log.Debug("call", "kind", r.Kind, "tool", r.Name, "code", r.Code, "rule", r.Rule, "took", r.Took, "cost", r.Cost,
		"tokens", r.Tokens, "sent", r.Sent, "received", r.Received, "flags", r.Flags)
	if e != nil && e.Cause != nil {
		p.gate.o.Log.Info("call refused or broken", "tool", p.call.Tool, "code", e.Code, "rule", e.Rule, "cause", CauseOf(e.Cause))
	}
	return e
}

func (p *permit) record(r link.Record, o Outcome, e *Error) link.Record {
	r.Kind, r.Name, r.Args = p.call.Kind, p.call.Tool, p.digest
	if pdp.CheckToolName(r.Name) != nil {
		r.Name = "" // whatever it is, it is no tool's name
	}
	r.Code, r.Rule = rings.CodeOK, p.rule
	if e != nil {
		r.Code = e.Code
		if e.Rule != "" || !r.Allowed { // a policy that let the call pass didn't refuse it
			r.Rule = e.Rule
		}
	}
	r.Cost, r.Tokens, r.Prompt, r.Sent, r.Received = o.Cost, o.Tokens, o.Prompt, o.Sent, o.Received
	r.Took, r.Count, r.Approval = p.gate.o.Now().Sub(p.started), 1, p.approvalID
	r.Flags = append(p.call.Flags, o.Flags...)
	slices.Sort(r.Flags)
	r.Flags = slices.Compact(r.Flags)
	if p.gate.o.TraceID != nil {
		r.TraceID = p.gate.o.TraceID(p.parent)
	}
	return r
}

func (p *permit) observe(r link.Record) {
	tool := r.Name
	if r.Code == CodeToolUnknown || r.Code == CodeBadRequest {
		tool = "" // made up by the agent: as a label it would fill the metrics' memory
	}
	p.gate.o.Observe(Event{
		Kind: r.Kind, Tool: tool, Category: p.call.Category, Allowed: r.Allowed, Code: r.Code,
		Ring: p.ring, Cost: r.Cost, Tokens: r.Tokens, Prompt: r.Prompt, Took: r.Took,
	})
}

func (p *permit) release() {
	if p.stopClock != nil {
		p.stopClock()
	}
	p.cancel(context.Canceled)
}
