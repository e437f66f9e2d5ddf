// SPDX-License-Identifier: Apache-2.0

package governance

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Names of built-in plans.
const (
	Freemium    = "freemium"
	Casual      = "casual"
	Premium     = "premium"
	Platformium = "platformium"
	Operator    = "operator" // of runs without a plan: those of the operator, who pays for them
)

var (
	// ErrPlan is a plan that no file defines.
	ErrPlan = errors.New("there is no such plan")
	// ErrRole is a role that no file defines.
	ErrRole = errors.New("there is no such role")
)

// Limits are quotas. 0 allows nothing, Unlimited everything that the ring does.
type Limits struct {
	Time         time.Duration // wall clock of a run, 60 to 300 s (M-3); Unlimited: the ring's
	CostPerRun   Amount
	CostPerDay   Amount // of the subject, see Grant
	TokensPerRun int64
	TokensPerDay int64
	Steps        int64 // tool calls of a run (M-3)
}

func unlimited() Limits {
	return Limits{time.Duration(Unlimited), Unlimited, Unlimited, Unlimited, Unlimited, Unlimited}
}

func (l Limits) narrow(by Limits) Limits {
	return Limits{
		Time:         time.Duration(narrower(int64(l.Time), int64(by.Time))),
		CostPerRun:   narrower(l.CostPerRun, by.CostPerRun),
		CostPerDay:   narrower(l.CostPerDay, by.CostPerDay),
		TokensPerRun: narrower(l.TokensPerRun, by.TokensPerRun),
		TokensPerDay: narrower(l.TokensPerDay, by.TokensPerDay),
		Steps:        narrower(l.Steps, by.Steps),
	}
}

// scaled raises what a stake raises: everything. A ring's or profile's own time still bounds a run.
func (l Limits) scaled(quarters int64) Limits {
	l.Time = time.Duration(scale(int64(l.Time), quarters))
	for _, q := range []*int64{&l.CostPerRun, &l.CostPerDay, &l.TokensPerRun, &l.TokensPerDay, &l.Steps} {
		*q = scale(*q, quarters)
	}
	return l
}

// Tools says which tools may be called. Entries are a tool's name, a prefix such as "memory.*", or "*". What Deny names is
// denied whatever Allow says. The zero value allows none.
type Tools struct {
	Allow []string `yaml:"allow" read:"name tools, or \"*\" for all"`
	Deny  []string `yaml:"deny"`
}

// Allows decides about one tool.
func (t Tools) Allows(name string) bool {
	return slices.ContainsFunc(t.Allow, matches(name)) && !slices.ContainsFunc(t.Deny, matches(name))
}

func matches(name string) func(string) bool {
	return func(entry string) bool {
		prefix, isPrefix := strings.CutSuffix(entry, "*")
		return entry == name || isPrefix && strings.HasPrefix(name, prefix)
	}
}

// Role narrows a plan. What it doesn't name stays as the plan has it.
type Role struct {
	Why    string
	Limits Limits
	Tools  *Tools // nil: the plan's
}

// Plan is what somebody bought.
type Plan struct {
	Why      string
	Parallel int64 // runs at once on this node, of one subject
	Limits   Limits
	Tools    Tools
	GoOn     bool            // a run that is at a cap isn't ended; its calls are refused, one by one
	Roles    map[string]Role // of this plan, beside those of all
}

// Plans are everything that the files say. The zero value has no plan, so it grants nothing.
type Plans struct {
	Plans map[string]Plan
	Roles map[string]Role // in every plan
}

// Grant is what one run may use: its plan, raised by the stake, narrowed by the role. The zero value allows nothing.
type Grant struct {
	Plan     string
	Role     string
	Quarters int64 // of the stake, see Multiplier
	Parallel int64
	Limits   Limits
	GoOn     bool    // see Plan
	tools    []Tools // each must allow
}

// Allows tells whether the plan and the role leave a tool.
func (g Grant) Allows(tool string) bool {
	return len(g.tools) > 0 && !slices.ContainsFunc(g.tools, func(t Tools) bool { return !t.Allows(tool) })
}

// Multiplier is the stake's, as M-19 writes it.
func (g Grant) Multiplier() string { return MultiplierText(g.Quarters) }

// RunCap and DayCap are what the ledger holds a run to.
func (g Grant) RunCap() Amounts { return Amounts{g.Limits.CostPerRun, g.Limits.TokensPerRun} }

// DayCap is the subject's, of a day in UTC.
func (g Grant) DayCap() Amounts { return Amounts{g.Limits.CostPerDay, g.Limits.TokensPerDay} }

// Grant puts plan, role and stake together. An empty plan is Operator, an empty role none. The stake raises the plan's
// quotas and then the role narrows: what a role says is a wall, not something to be bought past.
func (p Plans) Grant(plan, role string, stake int64) (Grant, error) {
	if plan == "" {
		plan = Operator
	}
	of, ok := p.Plans[plan]
	if !ok {
		return Grant{}, fmt.Errorf("plan %.80q: %w", plan, ErrPlan)
	}
	q := Multiplier(stake)
	g := Grant{Plan: plan, Role: role, Quarters: q, Parallel: scale(of.Parallel, q), Limits: of.Limits.scaled(q), GoOn: of.GoOn, tools: []Tools{of.Tools}}
	if role == "" {
		return g, nil
	}
	known := false
	for _, roles := range []map[string]Role{p.Roles, of.Roles} {
		r, ok := roles[role]
		if !ok {
			continue
		}
		known = true
		g.Limits = g.Limits.narrow(r.Limits)
		if r.Tools != nil {
			g.tools = append(g.tools, *r.Tools)
		}
	}
	if !known {
		return Grant{}, fmt.Errorf("role %.80q of plan %s: %w", role, plan, ErrRole)
	}
	return g, nil
}
