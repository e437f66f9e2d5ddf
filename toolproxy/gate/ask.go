// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
	"time"

	"agentrun/pdp"
	"agentrun/rings"
	"agentrun/toolproxy/link"
)

// elevationName is what a refused request for an elevation is called on record.
const elevationName = "elevation"

// AskElevation decides whether the agent may ask for a ring now: quarantine and rate by the supervisor, then the policy, in the
// order of M-9. It costs a token of the rate, and no step and no place: it does nothing yet, and whoever waits for an operator
// must be able to go on working. A refusal is recorded here; what passes, the supervisor records with its decision (H-27).
func (g *Gate) AskElevation(ctx context.Context, target rings.Ring) *Error {
	p := g.attempt(ctx, Call{Kind: "tool", Tool: elevationName, Category: CategoryA, Action: elevationAction()})
	defer p.cancel(context.Canceled)
	e := p.mayAsk(target)
	if e == nil {
		return nil
	}
	return p.refuse(e)
}

// elevationAction may be done in any ring: asking is how the least privileged one gets out of it.
func elevationAction() rings.Action {
	return rings.Action{ID: pdp.ElevationAction, Name: elevationName, ExecuteAPI: "/internal/elevation", Reversibility: rings.Full, ReadOnly: true}
}

func (p *permit) mayAsk(target rings.Ring) (e *Error) {
	defer func() {
		if v := recover(); v != nil {
			e = broke(v)
		}
	}()
	if !target.Valid() {
		return malformed("no ring to ask for")
	}
	if e := p.paced(); e != nil {
		return e
	}
	d := p.gate.decide(context.WithoutCancel(p.ctx), p.gate.elevationQuestion(target, p.ring))
	p.rule = d.Policy
	p.violates(d, pdp.ElevationAction)
	if e = p.gate.ofPolicy(d, p.call); e != nil && e.Code != CodeUnavailable {
		e.Next = "work in the ring you have, or have the operator allow it"
	}
	return e
}

// paced asks for quarantine, ring and rate only, of what is no call.
func (p *permit) paced() *Error {
	if p.gate.condemned.Load() {
		return condemned()
	}
	v, err := p.gate.o.Supervisor.Check(p.ctx, link.Check{Action: p.call.Action})
	p.place = v.Place
	if err != nil {
		return p.lost("the supervisor", err)
	}
	if e := ofVerdict(v); e != nil {
		return e
	}
	if !v.Ring.Valid() {
		return unavailable("the supervisor", errNoRing)
	}
	p.ring = v.Ring
	return nil
}

// AskRoute decides whether a request for a route that isn't there is answered so now: it costs a token of the rate, as a name that is
// no tool's does. A refusal is recorded here.
func (g *Gate) AskRoute(ctx context.Context) (e *Error) {
	p := g.attempt(ctx, Call{Kind: "tool", Tool: routeName, Category: CategoryA, Action: rings.Action{
		ID: "route.unknown", Name: routeName, ExecuteAPI: "/", Reversibility: rings.Full, ReadOnly: true,
	}})
	defer p.cancel(context.Canceled)
	defer func() {
		if v := recover(); v != nil {
			e = broke(v)
		}
	}()
	if e := p.paced(); e != nil {
		return p.refuse(e)
	}
	return nil
}

// routeName is what requests for a route that isn't there are called on record.
const routeName = "gateway"

// elevationQuestion: the capability to ask is everybody's. Whoever should not ask, a policy forbids it.
func (g *Gate) elevationQuestion(target, ring rings.Ring) pdp.Request {
	r := g.question(Call{Action: elevationAction()}, ring)
	r.Action, r.Resource.ID = pdp.ElevationAction, pdp.RingResource(target)
	r.Context.Tool, r.Context.Capabilities = pdp.Tool{}, []string{pdp.ElevationAction}
	used, limit := g.Steps()
	limit = min(limit, pdp.MaxQuota)
	r.Context.Quota = pdp.Quota{Used: min(used, limit), Limit: limit}
	return r
}

// Wait for the ring to hold after it was granted: the link says grant and ring in two messages.
const ringPatience = 100 * time.Millisecond

// AwaitRing waits until the run is in target or above, as far as this process has heard, and returns the ring and the channel that
// is closed when it changes. It gives up after the 100 ms in which a ring has to hold (M-22).
func (g *Gate) AwaitRing(ctx context.Context, target rings.Ring) (rings.Ring, <-chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, ringPatience)
	defer cancel()
	for {
		ring, changed := g.o.Supervisor.Ring()
		if !ring.Valid() || !target.MorePrivilegedThan(ring) {
			return ring, changed
		}
		select {
		case <-changed:
			if _, again := g.o.Supervisor.Ring(); again == changed {
				return ring, changed // the run has ended
			}
		case <-ctx.Done():
			return ring, changed
		}
	}
}
