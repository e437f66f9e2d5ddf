// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"agentrun/pdp"
	"agentrun/rings"
	"agentrun/toolproxy/boundary"
)

func (p *permit) askPolicy() *Error {
	// Not p.ctx: an agent that hangs up at once must not try out what a policy calls critical without being met (H-23).
	d := p.gate.decide(context.WithoutCancel(p.ctx), p.gate.question(p.call, p.ring))
	p.rule = d.Policy
	p.violates(d, pdp.ToolAction(p.call.Tool))
	return p.gate.ofPolicy(d, p.call)
}

// May tells whether a call of this tool would pass ring and own rules as they are now, and policy as of the last second: for lists of
// tools. It takes no place, no step and no rate, and leaves no record.
func (g *Gate) May(ctx context.Context, c Call) bool {
	ring, _ := g.o.Supervisor.Ring()
	p := &permit{gate: g, call: c, ring: ring}
	if p.wellFormed() != nil || p.ringAllows(ring) != nil || c.Admit != nil && c.Admit(ring) != nil {
		return false
	}
	return g.lists(ctx, g.question(c, ring))
}

// listedFor is how long lists go by what was said of a tool. A list costs an agent nothing and asks about each tool there is; who is asked
// may be one remote policy decision point for all runs, and what it is late for is refused (M-9).
const (
	listedFor = time.Second
	maxListed = 4096 // tools come and go with their servers
)

// listing is what the answer for a list may differ by within that time.
type listing struct {
	tool string
	ring rings.Ring
	key  bool
}

type listed struct {
	allowed bool
	at      time.Time
}

func (g *Gate) lists(ctx context.Context, r pdp.Request) bool {
	select {
	case g.listing <- struct{}{}: // lists at once ask once
		defer func() { <-g.listing }()
	case <-ctx.Done():
		return false
	}
	key := listing{r.Action, r.Context.Ring, r.Context.KeyValid}
	if l, known := g.listed[key]; known && time.Since(l.at) < listedFor {
		return l.allowed
	}
	allowed := g.decide(context.WithoutCancel(ctx), r).Allowed() // an agent that hangs up must not have it asked again
	if len(g.listed) >= maxListed {
		clear(g.listed)
	}
	g.listed[key] = listed{allowed, time.Now()}
	return allowed
}

// question states what the supervisor told about the run and what the registry knows of the tool: nothing of a request.
// The supervisor has just let the call pass, so the run's key is good but for its time, which may be over this very moment. Where there
// is no key, that is what is said, and the capability is the tool's if the run was given it: the only one that the guard looks for.
func (g *Gate) question(c Call, ring rings.Ring) pdp.Request {
	who := g.o.Caller
	mode := pdp.Mode(who.Mode)
	used, limit := g.Steps()
	limit = min(limit, pdp.MaxQuota)
	r := pdp.Request{
		Subject:  pdp.Subject{ID: who.Agent, Type: pdp.Agent},
		TeamID:   who.Team,
		Action:   pdp.ToolAction(c.Tool),
		Resource: pdp.Resource{ID: who.Run, TeamID: who.Team, Mode: mode},
		Context: pdp.Context{
			Ring: ring, RequiredRing: c.Action.RequiredRing(), Risk: int(math.Round(100 * c.Action.RiskWeight())),
			Plan: who.Plan, Role: who.Role, Keyless: who.Key == nil,
			Tool:  pdp.Tool{Category: pdp.Category(c.Category), PlaintextFree: c.PlaintextFree},
			Input: pdp.Clean,
			// This call is counted already.
			Quota: pdp.Quota{Used: min(max(used-1, 0), limit), Limit: limit},
		},
	}
	if boundary.Suspicious(c.Flags) {
		r.Context.Input = pdp.Suspicious
	}
	r.Context.Capabilities = []string{r.Action}
	if k := who.Key; k != nil {
		r.KeyID, r.Context.KeyValid = k.ID, g.o.Now().Before(k.Expires)
		r.Context.Capabilities = slices.Clone(k.May)
	}
	if !g.o.Granted(c.Tool) { // --tool takes from what a key carries, and adds nothing
		r.Context.Capabilities = slices.DeleteFunc(r.Context.Capabilities, func(name string) bool { return name == r.Action })
	}
	return r
}

var errTooManyDecisions = errors.New("too many decisions under way")

// decide gives up when time is up, whether the decider does or not (M-9: slow is a denial).
func (g *Gate) decide(ctx context.Context, r pdp.Request) pdp.Decision {
	select {
	case g.deciding <- struct{}{}:
	default:
		return pdp.Gone(errTooManyDecisions)
	}
	ctx, cancel := context.WithTimeout(ctx, g.o.PolicyTimeout)
	defer cancel()
	answer := make(chan pdp.Decision, 1)
	go func() {
		defer func() { <-g.deciding }()
		answer <- g.policy.Decide(ctx, r)
	}()
	select {
	case d := <-answer:
		return d
	case <-ctx.Done():
		return pdp.Gone(ctx.Err())
	}
}

// ofPolicy keeps the reasons of M-9, but for the one that M-13 names otherwise. Why there was no decision is the operator's
// business: the agent only learns that there was none.
func (g *Gate) ofPolicy(d pdp.Decision, c Call) *Error {
	if d.Allowed() {
		return nil
	}
	e := &Error{Code: d.Code, Message: d.Message, Next: "do without this tool, or have the operator allow it", Rule: ruleOf(d), Cause: d.Cause}
	switch {
	case d.Code == pdp.CodeCapabilityMissing:
		e.Code, e.Message = CodeCapabilityMissing, "the run's key doesn't carry the capability for this tool"
		e.Next = "do without this tool; GET /internal/tools lists those you may call"
	case d.Code == pdp.CodeConfidential:
		e.Next = "work with embeddings, summaries and metadata; the team's mode keeps plaintext out"
	case d.Code == pdp.CodeQuotaExceeded:
		e.Next = "wait until the quota is renewed; GET /internal/usage tells what is left"
	case d.Code == rings.CodeInsufficientRing || d.Code == rings.CodeRing0Forbidden:
		e.Code = CodeRing
	case !pdp.KnownReason(d.Code):
		e.Code, e.Message, e.Next = CodeUnavailable, "there is no policy decision, and without one nothing is allowed", "try again later"
	}
	if e.Message == "" {
		e.Message = fmt.Sprintf("policy denies the tool %s", c.Tool)
	}
	return e
}

// FlagCritical marks the record of a call that a policy calls a critical violation.
const FlagCritical = "critical_violation"

func (p *permit) violates(d pdp.Decision, action string) {
	if d.Critical {
		p.violation = &Violation{Action: action, Policy: d.Policy}
		p.call.Flags = append(p.call.Flags, FlagCritical)
	}
}

func condemned() *Error {
	return &Error{Code: CodeCanceled, Message: "the run is ended for a critical violation", Next: "end", Rule: "H-23"}
}

// condemn begins the end of the run. The record is made before (H-28); that it couldn't be made saves nobody.
func (g *Gate) condemn(ctx context.Context, v Violation) {
	g.condemned.Store(true)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.o.RecordTimeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			g.o.Log.Error("alarm broke off", "action", v.Action, "policy", v.Policy, "panic", fmt.Sprintf("%T", p))
		}
	}()
	g.o.Log.Warn("critical violation", "action", v.Action, "policy", v.Policy)
	g.o.Alarm(ctx, v)
}

func ruleOf(d pdp.Decision) string {
	if d.Policy != "" {
		return d.Policy
	}
	return string(d.Code)
}
