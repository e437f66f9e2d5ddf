// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"fmt"
	"time"

	"agentrun/governance"
	"agentrun/store"
)

// budgetBucket holds the account of each subject, of the latest day it used anything.
const budgetBucket = "budget"

// bookTime is how long booking waits for a state that somebody else has locked.
const bookTime = 10 * time.Second

// bank is a subject's account in the state.
type bank struct {
	h       *Hypervisor
	subject string
}

func (b bank) account(tx *store.Tx) (a governance.Account, err error) {
	if _, err := store.GetJSON(tx.Bucket(budgetBucket), b.subject, &a); err != nil {
		return governance.Account{}, err
	}
	if err := a.Check(); err != nil {
		return governance.Account{}, fmt.Errorf("budget of %s: %w", b.subject, err)
	}
	return a, nil
}

// Borrow implements governance.Bank.
func (b bank) Borrow(ctx context.Context, day governance.Day, want, limit governance.Amounts) (loan governance.Loan, err error) {
	lend := func(tx *store.Tx) error {
		a, err := b.account(tx)
		if err != nil {
			return err
		}
		a, got := a.Lend(day, want, limit)
		loan = governance.Loan{Day: a.Day, Lent: got, Used: a.Used}
		if got == (governance.Amounts{}) {
			return nil
		}
		return store.PutJSON(tx.Bucket(budgetBucket), b.subject, a)
	}
	if want == (governance.Amounts{}) {
		err = b.h.view(ctx, lend)
	} else {
		err = b.h.update(ctx, lend)
	}
	if err != nil {
		return governance.Loan{}, err
	}
	return loan, nil
}

// Return implements governance.Bank.
func (b bank) Return(ctx context.Context, day governance.Day, rest governance.Amounts) error {
	return b.h.update(ctx, func(tx *store.Tx) error {
		a, err := b.account(tx)
		if err != nil {
			return err
		}
		return store.PutJSON(tx.Bucket(budgetBucket), b.subject, a.Return(day, rest))
	})
}

// Book implements governance.Bank.
func (b bank) Book(ctx context.Context, day governance.Day, over governance.Amounts) error {
	return b.h.update(ctx, func(tx *store.Tx) error {
		a, err := b.account(tx)
		if err != nil {
			return err
		}
		return store.PutJSON(tx.Bucket(budgetBucket), b.subject, a.Book(day, over))
	})
}

// AgentUsage is what an agent's subject used today, what running agents have borrowed included.
type AgentUsage struct {
	Agent        string `json:"agent_id,omitempty"` // empty: the operator's own runs
	Subject      string `json:"subject"`
	Plan         string `json:"plan"`
	Role         string `json:"role,omitempty"`
	Multiplier   string `json:"multiplier"`
	Parallel     int64  `json:"parallel"`
	Day          string `json:"day"`
	Cost         int64  `json:"cost"`           // millionths
	CostPerDay   int64  `json:"cost_per_day"`   // -1: unlimited
	CostPerRun   int64  `json:"cost_per_run"`   // likewise
	Tokens       int64  `json:"tokens"`         //
	TokensPerDay int64  `json:"tokens_per_day"` // likewise
}

// Usage tells about one agent, or, for "", about the operator's own runs and every agent that the node knows.
func (h *Hypervisor) Usage(ctx context.Context, id string) ([]AgentUsage, error) {
	plans, err := governance.Load(h.opt.Plans)
	if err != nil {
		return nil, err
	}
	agents := []Agent{{}}
	if id != "" {
		a, err := h.Agent(ctx, id)
		if err != nil {
			return nil, err
		}
		agents[0] = a
	} else if all, err := h.Agents(ctx); err != nil {
		return nil, err
	} else {
		agents = append(agents, all...)
	}
	usage := []AgentUsage{}
	for _, a := range agents {
		u, err := h.usageOf(ctx, plans, a)
		if err != nil {
			return nil, err
		}
		usage = append(usage, u)
	}
	return usage, nil
}

func (h *Hypervisor) usageOf(ctx context.Context, plans governance.Plans, a Agent) (AgentUsage, error) {
	g, err := plans.Grant(a.Plan, a.Role, a.Stake)
	if err != nil {
		return AgentUsage{}, fmt.Errorf("agent %s: %w", a.ID, err)
	}
	subject := a.subject(a.ID)
	loan, err := bank{h, subject}.Borrow(ctx, governance.DayOf(h.now()), governance.Amounts{}, g.DayCap())
	if err != nil {
		return AgentUsage{}, err
	}
	return AgentUsage{
		Agent: a.ID, Subject: subject, Plan: g.Plan, Role: g.Role, Multiplier: g.Multiplier(), Parallel: g.Parallel, Day: loan.Day.String(),
		Cost: loan.Used.Cost, CostPerDay: g.Limits.CostPerDay, CostPerRun: g.Limits.CostPerRun, Tokens: loan.Used.Tokens, TokensPerDay: g.Limits.TokensPerDay,
	}, nil
}
