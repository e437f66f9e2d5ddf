// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"cmp"
	"context"
	"time"

	"agentrun/toolproxy/link"
)

// approval asks an operator about category D and about what the configuration says. What is approved is the digest of the
// arguments as they are: an answer to other arguments, or to an earlier call, is none to this one. The ring's place stays
// taken meanwhile, or an agent could have any number of questions put to an operator at once.
func (p *permit) approval() *Error {
	if p.call.Category != CategoryD && !p.call.Approve {
		return nil
	}
	shown, err := p.gate.o.Mask(p.call.Args.Reveal())
	if err != nil {
		return &Error{Code: CodeBadArguments, Message: "these arguments can't be shown to an operator", Next: "send arguments that are nested less deeply", Cause: err}
	}
	wait := p.patience()
	ctx, cancel := context.WithTimeout(p.ctx, wait)
	defer cancel()
	a, err := p.gate.o.Supervisor.Approve(ctx, link.Approval{Tool: p.call.Tool, Args: shown, Digest: p.digest, Wait: wait})
	p.approvalID = a.ID
	switch {
	case err == nil && a.Allowed:
		return nil
	case p.ctx.Err() != nil:
		return p.ended()
	case err != nil && ctx.Err() == nil:
		return unavailable("an operator", err)
	}
	message := "no operator approved this call in time"
	if a.Message != "" {
		message = a.Message
	}
	e := &Error{Code: CodeApproval, Message: message, Next: "ask the operator, then send the very same call again", Rule: "M-11", Cause: err}
	if a.Code == CodeQuarantined || a.Code == CodeCanceled {
		e.Code, e.Next = a.Code, "stop; no approval changes this"
	}
	return e
}

// patience is how long an operator may take. It ends before the run does: an agent that is told that nobody answered can still
// say so, and its one record is made in time.
func (p *permit) patience() time.Duration {
	wait := cmp.Or(p.call.ApprovalWait, p.gate.o.ApprovalWait)
	if p.gate.o.Ends == nil || p.gate.o.Ends().IsZero() {
		return wait
	}
	left := max(p.gate.o.Ends().Sub(p.gate.o.Now()), 0)
	return min(wait, max(left-farewell, left/2))
}

// farewell is what a run keeps of its time when a wait for an operator is cut short.
const farewell = time.Second
