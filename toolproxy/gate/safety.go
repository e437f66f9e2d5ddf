// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"agentrun/toolproxy/link"
)

// Codes of the safety loop (S-15), in capitals as the loop's own are.
const (
	CodeStopped = link.CodeStopped
	CodeIntent  = link.CodeNoIntent
)

// Safety is what a gate asks of the run's safety loop; link.Safeties has it.
type Safety interface {
	Intent(ctx context.Context, tool, target string) error
	Blocked(ctx context.Context) error
}

// intent spends the approved step that the call must match. A model's own calls are no tools': what an agent thinks isn't an action.
func (p *permit) intent() *Error {
	if !p.gate.o.RequireIntent || p.call.Kind != "tool" {
		return nil
	}
	target := p.call.Target.Reveal()
	if len(target) > link.MaxSafetyTarget {
		e := noIntent(p.call.Tool, target)
		e.Message = fmt.Sprintf("no step can name a target of %d bytes", len(target))
		e.Next = fmt.Sprintf("call the tool with a target of at most %d bytes, after an approved step that names it", link.MaxSafetyTarget)
		return e
	}
	err := p.gate.o.Safety.Intent(p.ctx, p.call.Tool, target)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, link.ErrStopped):
		return stopped()
	case errors.Is(err, link.ErrNoIntent):
		return noIntent(p.call.Tool, target)
	}
	return p.lost("the safety loop", err)
}

func stopped() *Error {
	return &Error{Code: CodeStopped, Message: "the safety loop has stopped the agent", Next: nextStopped, Rule: "S-8"}
}

const nextStopped = "do nothing more; an operator has to release the agent"

// noIntent names what the step has to name. Both come from the agent's own call.
func noIntent(tool, target string) *Error {
	e := &Error{Code: CodeIntent, Message: "no approved step matches this call", Rule: "S-15"}
	e.Next = fmt.Sprintf("call record_execution_step with a nextActionHint that names %s", tool)
	if target != "" {
		e.Next += fmt.Sprintf(" and %s", brief(target))
	}
	e.Next += "; when it answers continue: true, send this call again"
	return e
}

func brief(s string) string {
	const most = 200
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(s, "")
}

// blockedEvery is how often a call that is under way is asked about. A stop that doesn't change the ring changes nothing that the
// gate is told of; a call that has passed would go on beside processes that stand still.
const blockedEvery = time.Second

// ticks gives the moments to ask at; nil: there is nobody to ask.
func (p *permit) ticks() (<-chan time.Time, func()) {
	if p.gate.o.Safety == nil {
		return nil, func() {}
	}
	t := time.NewTicker(blockedEvery)
	return t.C, t.Stop
}

// halted asks whether the agent was stopped since the call passed.
func (p *permit) halted(ctx context.Context) *Error {
	err := p.gate.o.Safety.Blocked(ctx)
	switch {
	case err == nil || ctx.Err() != nil:
		return nil
	case errors.Is(err, link.ErrStopped):
		return stopped()
	}
	return unavailable("the safety loop", err)
}

// safetyName is what a request to the safety loop is called on record where the gate refuses it.
const safetyName = "safety"

// AskSafety decides whether the agent may speak to the safety loop now: as long as its run lives, and no critical violation was met
// (H-23). Neither ring nor policy is asked, because reporting and being held is no right, and no rate: the supervisor has one of its
// own for it. A stopped agent passes: what it is told is the loop's to say (S-8). A refusal is recorded here; what passes, the loop
// records.
func (g *Gate) AskSafety(ctx context.Context) *Error {
	p := g.attempt(ctx, Call{Kind: "tool", Tool: safetyName, Category: CategoryA})
	defer p.cancel(context.Canceled)
	if g.condemned.Load() {
		return p.refuse(condemned())
	}
	if ring, _ := g.o.Supervisor.Ring(); !ring.Valid() {
		return p.refuse(runEnded())
	}
	return nil
}
