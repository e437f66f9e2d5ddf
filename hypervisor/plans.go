// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"errors"
	"fmt"

	"agentrun/governance"
	"agentrun/rings"
	"agentrun/store"
	"agentrun/toolproxy/link"
)

// CodePlan is of an agent whose plan isn't defined.
const CodePlan rings.Code = "plan_unknown"

// GrantFor is what a run of this agent may use, without admitting one: for whoever plans its time and steps. "" is the
// operator's own.
func (h *Hypervisor) GrantFor(ctx context.Context, id string) (governance.Grant, error) {
	plans, err := governance.Load(h.opt.Plans)
	if err != nil {
		return governance.Grant{}, err
	}
	if id == "" {
		return plans.Grant("", "", 0)
	}
	a, err := h.Agent(ctx, id)
	if err != nil {
		return governance.Grant{}, err
	}
	return plans.Grant(a.Plan, a.Role, a.Stake)
}

// granted finds what an agent's plan gives. A plan that is no longer defined gives nothing: falling back to another would be
// to choose for the operator.
func granted(plans governance.Plans, a Agent, v verdict) (governance.Grant, verdict) {
	g, err := plans.Grant(a.Plan, a.Role, a.Stake)
	if err != nil {
		return governance.Grant{}, denied(v, "M-19", CodePlan, fmt.Sprintf("agentrun agent set %s --plan PLAN --role ROLE, or define it in plans.yaml", a.ID), "agent %s: %v", a.ID, err)
	}
	return g, v
}

// offers holds the tools that a run names against its plan (M-19).
func (adm *Admission) offers(r Request, v verdict) verdict {
	for _, tool := range r.Tools {
		if !adm.Grant.Allows(tool) {
			other := "take another plan: agentrun agent set " + adm.Agent + " --plan PLAN"
			if adm.Agent == "" {
				other = "change the plan in plans.yaml"
			}
			return denied(v, "M-19", link.CodeToolRestricted, "leave it out of --tool, or "+other,
				"plan %s or the agent's role doesn't include the tool %.64s", adm.Grant.Plan, tool)
		}
	}
	return v
}

// fits holds what is expected of a run against its plan and what is left of the day, before anything starts (M-19).
func (h *Hypervisor) fits(tx *store.Tx, adm *Admission, r Request, v verdict) (verdict, error) {
	if v = adm.offers(r, v); !v.Allowed() {
		return v, nil
	}
	account, err := bank{h, adm.Settings.subject(adm.Agent)}.account(tx)
	if err != nil {
		return v, err
	}
	if account.Day < governance.DayOf(h.now()) {
		account.Used = governance.Amounts{}
	}
	if a := adm.Grant.Fits(r.Expect, account.Used); !a.Allowed {
		return denied(v, "M-19", a.Code, "agentrun usage "+adm.Agent+" tells what is left; expect less, or take a larger plan", "%s", a.Message), nil
	}
	return v, nil
}

// place takes one of the plan's places for runs at once (M-19). Each is a lock, which the kernel gives back when we die,
// however we die: a counter would stay up after a crash. It is tried from the last to the first, so that members of a team
// with a smaller plan find the low ones free.
func (h *Hypervisor) place(adm *Admission, v verdict) (verdict, error) {
	n := adm.Grant.Parallel
	if n == governance.Unlimited {
		return v, nil
	}
	db, err := h.store()
	if err != nil {
		return v, err
	}
	subject := adm.Settings.subject(adm.Agent)
	for i := n - 1; i >= 0; i-- {
		lock, err := db.TryLock(fmt.Sprintf("run-%s/%d", subject, i))
		if err == nil {
			adm.slot = lock
			return v, nil
		}
		if !errors.Is(err, store.ErrBusy) {
			return v, err
		}
	}
	return denied(v, "M-19", link.CodeConcurrency, "wait for the end of one of them, or take a larger plan: agentrun agent set "+adm.Agent+" --plan PLAN",
		"plan parallel limit reached: %s has %d runs at once (plan %s)", subject, n, adm.Grant.Plan), nil
}
