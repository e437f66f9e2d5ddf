// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"time"

	"agentrun/audit"
	"agentrun/governance"
	"agentrun/rings"
	"agentrun/runtime"
	"agentrun/toolproxy/link"
)

// Reserve implements link.Supervisor.
func (b *Broker) Reserve(ctx context.Context, s link.Spend) (link.Reservation, error) {
	if b.over() {
		return link.Reservation{Code: link.CodeCanceled, Message: "the run has ended", Next: "nothing"}, nil
	}
	if b.live.isStopped() {
		return link.Reservation{Code: link.CodeStopped, Message: stoppedText, Next: stoppedNext}, nil
	}
	a := b.ledger.Reserve(ctx, governance.Amounts{Cost: s.Estimate, Tokens: s.Tokens})
	if err := b.crossed(a); err != nil {
		b.ledger.Settle(ctx, a.ID, governance.Amounts{}, true)
		return link.Reservation{}, err
	}
	if a.Allowed {
		if err := b.passed(s); err != nil {
			b.ledger.Settle(ctx, a.ID, governance.Amounts{}, true)
			return link.Reservation{}, err
		}
	}
	b.atCap(a)
	return reservation(a), nil
}

// capFarewell is what a run that is at a cap has left to say so, or to save its work.
const capFarewell = time.Second

// atCap ends a run that has met a cap of its plan, as policy (M-19): what costs is over, and calls that are refused one by one
// would go on for as long as the run does. The agent has heard of the refusal by then.
func (b *Broker) atCap(a governance.Answer) {
	if !a.AtCap || b.adm.Grant.GoOn || b.capped.Swap(true) {
		return
	}
	time.AfterFunc(capFarewell, func() {
		b.control.killSoon(KillRequest{Reason: rings.KillResourceExhaustion, By: "budget", Detail: a.Message, State: runtime.Policy})
	})
}

// Settle implements link.Supervisor.
func (b *Broker) Settle(ctx context.Context, s link.Settle) (link.Reservation, error) {
	return b.book(ctx, s, false)
}

// book books what a call cost, also if the run has ended meanwhile.
func (b *Broker) book(ctx context.Context, s link.Settle, final bool) (link.Reservation, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bookTime) // the call may have ended because its caller went away
	defer cancel()
	a := b.ledger.Settle(ctx, s.ID, governance.Amounts{Cost: s.Cost, Tokens: s.Tokens}, final)
	if err := b.crossed(a); err != nil {
		return link.Reservation{}, err
	}
	b.atCap(a)
	return reservation(a), nil
}

func reservation(a governance.Answer) link.Reservation {
	return link.Reservation{Allowed: a.Allowed, ID: a.ID, Cap: a.Cap, Code: a.Code, Message: a.Message, Next: a.Next, Warning: a.Warning}
}

// crossed puts on record which quotas reached 80 %.
func (b *Broker) crossed(a governance.Answer) error {
	for _, c := range a.Crossed {
		err := b.h.record(b.adm.Session, false, &audit.QuotaWarning{
			AgentID: b.adm.Agent, Limit: c.Limit, Plan: b.adm.Grant.Plan, Quota: c.Quota, RunID: b.run,
			Subject: b.adm.Settings.subject(b.adm.Agent), Used: min(c.Used, audit.MaxInteger),
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Budget implements link.Supervisor.
func (b *Broker) Budget(ctx context.Context) (link.Budget, error) {
	u, err := b.ledger.Usage(ctx)
	if err != nil {
		return link.Budget{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return link.Budget{
		Plan: u.Grant.Plan, Steps: int64(max(b.steps-(b.taken-b.models), 0)), RunCost: u.RunLeft.Cost, DayCost: u.DayLeft.Cost,
		RunSpent: u.RunSpent.Cost + u.Over.Cost, DaySpent: u.DaySpent.Cost, RunTokens: u.RunSpent.Tokens + u.Over.Tokens, Warning: u.Warning, Multiplier: u.Grant.Multiplier(),
	}, nil
}
