// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"agentrun/pdp"
	"agentrun/rings"
	"agentrun/toolproxy/link"
)

// Gate is the Entrance of one run. It is safe for concurrent use; its zero value panics, so make it with New.
type Gate struct {
	o        Options
	policy   pdp.Decider
	deciding chan struct{}
	listing  chan struct{} // held by who reads or changes listed
	listed   map[listing]listed
	steps    atomic.Int64 // of tools
	models   atomic.Int64 // calls of models
	// condemned: a critical violation was met (H-23). Nothing passes any more, also if nobody heard the alarm.
	condemned atomic.Bool
}

var _ Entrance = (*Gate)(nil)

// New returns the entrance of one run. A caller that no policy could be asked about is an error here rather than a denial of
// each call.
func New(o Options) (*Gate, error) {
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("make the gate: %w", err)
	}
	return &Gate{
		o: o.withDefaults(), policy: pdp.Guarded(o.Policy), deciding: make(chan struct{}, maxDeciding),
		listing: make(chan struct{}, 1), listed: map[listing]listed{},
	}, nil
}

// Steps returns how many calls reached the steps budget, and how many may.
func (g *Gate) Steps() (used, limit int64) {
	limit = int64(max(g.o.MaxSteps, 0))
	return min(g.steps.Load(), limit), limit
}

// Enter decides one call. Either the permit or the error is nil.
func (g *Gate) Enter(ctx context.Context, c Call) (Permit, *Error) {
	p := g.attempt(ctx, c)
	if e := p.pass(); e != nil {
		return nil, p.refuse(e)
	}
	return p, nil
}

func (g *Gate) attempt(ctx context.Context, c Call) *permit {
	p := &permit{gate: g, call: c, parent: ctx, started: g.o.Now()}
	p.call.Flags = slices.Clone(c.Flags)
	from := ctx
	if c.Stays {
		from = context.WithoutCancel(ctx)
	}
	p.ctx, p.cancel = context.WithCancelCause(from)
	if c.Stays {
		p.stay = context.AfterFunc(ctx, func() { p.cancel(context.Cause(ctx)) })
	}
	if args := c.Args.Reveal(); len(args) > 0 {
		sum := sha256.Sum256(args)
		p.digest = hex.EncodeToString(sum[:])
	}
	return p
}

// pass asks each authority in the order of M-9; the first that refuses ends it, and those after it never hear of the call.
// So a quarantined agent learns nothing about policies, and no operator is asked about what a policy forbids.
func (p *permit) pass() (e *Error) {
	defer func() {
		if v := recover(); v != nil {
			e = broke(v)
		}
	}()
	for _, step := range [...]func() *Error{
		p.wellFormed,
		p.supervisor, // quarantine, ring and rate, concurrency; a place is held from here on
		p.ownRules,
		p.countStep,
		p.intent,
		p.askPolicy,
		p.arguments,
		p.approval,
		p.reserve,
	} {
		if e := step(); e != nil {
			return e
		}
		if e := p.ended(); e != nil {
			return e
		}
	}
	if p.stay != nil && !p.stay() { // its caller has left meanwhile
		p.cancel(context.Cause(p.parent))
		return p.ended()
	}
	p.startClock()
	return nil
}

func (p *permit) wellFormed() *Error {
	c := p.call
	switch {
	case c.Kind != "tool" && c.Kind != "llm":
		return malformed("kind %.16q", c.Kind)
	case pdp.CheckToolName(c.Tool) != nil:
		return malformed("tool %.64q", c.Tool)
	case c.Category.Timeout() == 0:
		return malformed("category %.16q", string(c.Category))
	case c.Estimate < 0 || c.Tokens < 0 || c.Timeout < 0 || c.ApprovalWait < 0:
		return malformed("negative estimate, tokens, timeout or wait for approval")
	}
	return nil
}

func (p *permit) supervisor() *Error {
	if p.gate.condemned.Load() {
		return condemned()
	}
	_, changed := p.gate.o.Supervisor.Ring() // before the check: no change can fall between it and the watch
	if changed == nil {
		return unavailable("the supervisor", errNoRing)
	}
	v, err := p.gate.o.Supervisor.Check(p.ctx, link.Check{Action: p.call.Action, Held: true})
	p.place = v.Place
	if err != nil {
		return p.lost("the supervisor", err)
	}
	if e := ofVerdict(v); e != nil {
		return e
	}
	if e := p.ringAllows(v.Ring); e != nil {
		return e
	}
	p.ring = v.Ring
	p.watch(changed)
	return nil
}

// ringAllows is the rule of the rings, held to here too: a supervisor's answer without a ring is no answer.
func (p *permit) ringAllows(ring rings.Ring) *Error {
	if need := p.call.Action.RequiredRing(); !ring.Valid() || need == rings.Root || need.MorePrivilegedThan(ring) {
		return ofRing(need, ring)
	}
	return nil
}

func (p *permit) ownRules() *Error {
	if p.call.Admit != nil {
		if e := p.call.Admit(p.ring); e != nil {
			return e
		}
	}
	if p.call.Rate != nil {
		return p.call.Rate()
	}
	return nil
}

// countStep counts also what is refused later: a loop of refused calls is a loop (M-21).
func (p *permit) countStep() *Error {
	limit, count, calls := p.gate.o.MaxSteps, &p.gate.steps, "calls"
	if p.call.Kind == "llm" {
		limit, count, calls = p.gate.o.MaxModelCalls, &p.gate.models, "model calls"
	}
	if count.Add(1) <= int64(limit) {
		return nil
	}
	count.Add(-1)
	next := "end with what you have"
	if p.call.Kind != "llm" {
		next += fmt.Sprintf("; an operator gives the next run more by --max-steps %d", 2*max(limit, 1))
	}
	return &Error{Code: CodeSteps, Message: "the run has made all the " + calls + " it may make", Next: next, Rule: "M-3"}
}

func (p *permit) arguments() *Error {
	if p.call.Validate == nil {
		return nil
	}
	return p.call.Validate()
}

// reserve asks also for what is estimated to cost nothing: whether the run or its day is over is the supervisor's to know.
func (p *permit) reserve() *Error {
	what := "tool"
	if p.call.Kind == "llm" {
		what = "model"
	}
	r, err := p.gate.o.Supervisor.Reserve(p.ctx, link.Spend{What: what, Place: p.place, Estimate: p.call.Estimate, Tokens: p.call.Tokens})
	if err != nil {
		return p.lost("the budget", err)
	}
	if !r.Allowed {
		return ofReservation(r)
	}
	p.reservation = r.ID
	return nil
}

func (p *permit) startClock() {
	limit := p.call.Timeout
	if limit == 0 {
		limit = p.call.Category.Timeout()
		if p.call.Kind == "llm" {
			limit = llmTimeout
		}
	}
	cause := &Error{
		Code: CodeToolTimeout, Message: fmt.Sprintf("not done within %v", limit),
		Next: "ask for less at once, or try again later", Rule: "M-11",
	}
	p.ctx, p.stopClock = context.WithTimeoutCause(p.ctx, limit, cause)
}

const llmTimeout = 60 * time.Second

// Unlimited is a Timeout that no run reaches: of a stream, which whoever makes the call ends when it stops flowing.
const Unlimited time.Duration = math.MaxInt64

// Timeout returns the time limit of M-11, 0 for what is no category.
func (c Category) Timeout() time.Duration {
	switch c {
	case CategoryA:
		return 2 * time.Second
	case CategoryB:
		return 3 * time.Second
	case CategoryC:
		return 5 * time.Second
	case CategoryD:
		return 10 * time.Second
	}
	return 0
}

// Valid tells whether c is one of the four.
func (c Category) Valid() bool { return c.Timeout() != 0 }
