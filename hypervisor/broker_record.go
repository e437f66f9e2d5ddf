// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"agentrun/audit"
	"agentrun/rings"
	"agentrun/runtime"
	"agentrun/toolproxy/link"
)

// maxCounted is how many like refusals of one record the breach detector hears of. Forty of the least weight are critical.
const maxCounted = 40

// Record implements link.Supervisor: one entry in the session's chain for each decision, before its result reaches the agent.
// What was refused above the agent's ring counts as an attempt, together with its refused system calls (H-24). The record is
// the gateway's account, and the gateway may have fallen: who the run is, it does not say.
func (b *Broker) Record(_ context.Context, r link.Record) error {
	rec, err := b.recordOf(r)
	if err != nil {
		return err
	}
	if err := b.put(r, rec); err != nil {
		return err
	}
	b.tally(r)
	if r.Allowed || !r.Weight.Valid() {
		return nil
	}
	factor := 1
	if r.Reversibility != "" { // what isn't one of the words is as risky as can be
		factor = rings.Action{Reversibility: r.Reversibility}.BreachFactor()
	}
	for range min(max(r.Count, 1), maxCounted) {
		if err := b.control.attempt(r.Weight, factor, r.Kind+" "+audit.Claimed(r.Name)); err != nil {
			return err
		}
	}
	return nil
}

// maxRefused is how many refusals the account of a run tells apart. An agent makes up as many names as it likes.
const maxRefused = 32

// otherNames stands for the names beyond that.
const otherNames = "(others)"

// tally counts what was refused for the account of the run. What was allowed and didn't work is no refusal.
func (b *Broker) tally(r link.Record) {
	if r.Allowed || r.Code == link.CodeUnavailable || r.Code == link.CodeCanceled {
		return
	}
	one := runtime.GatewayRefusal{Kind: r.Kind, Name: audit.Claimed(r.Name), Code: strings.ToLower(string(r.Code))}
	if r.Detail != "" && (r.Kind == "egress" || r.Kind == "dns") { // the code of all of them is egress_denied
		one.Code = audit.Claimed(r.Detail)
	}
	if a, err := netip.ParseAddr(r.Address); err == nil && a.Zone() == "" {
		one.Address = a.String()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	same := func(o runtime.GatewayRefusal) bool {
		return o.Kind == one.Kind && o.Name == one.Name && o.Code == one.Code
	}
	i := slices.IndexFunc(b.refused, same)
	if i < 0 && len(b.refused) >= maxRefused {
		one.Name, one.Code, one.Address = otherNames, severalCodes, ""
		i = slices.IndexFunc(b.refused, same)
	}
	if i < 0 {
		b.refused = append(b.refused, one)
		i = len(b.refused) - 1
	}
	add(&b.refused[i].Count, max(r.Count, 1))
}

// Account adds to the account of the run what went by its way out: calls, what they cost, and what was refused.
func (b *Broker) Account(s *runtime.Status) {
	spent := b.ledger.Spent()
	b.mu.Lock()
	defer b.mu.Unlock()
	s.ToolCalls, s.Cost, s.Tokens, s.GatewayRefused = int64(b.taken), spent.Cost, spent.Tokens, slices.Clone(b.refused)
}

// put gives each call that passed an entry of its own, as many as the run has steps. All else an agent can have without number, or
// a gateway that has fallen can claim: it is bounded by time.
func (b *Broker) put(r link.Record, rec audit.Record) error {
	prompt := min(max(r.Prompt, 0), r.Tokens)
	b.h.Counts().Tokens(prompt, r.Tokens-prompt)
	if !r.Allowed {
		return b.adm.alarm.refused.add(rec)
	}
	if _, call := rec.(*audit.ToolCall); call && b.ownEntry() {
		return b.h.record(b.adm.Session, false, rec)
	}
	return b.adm.alarm.passed.add(rec)
}

func (b *Broker) ownEntry() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.told >= b.taken {
		return false
	}
	b.told++
	return true
}

func (b *Broker) recordOf(r link.Record) (audit.Record, error) {
	count := func(n int64) int64 { return min(max(n, 0), audit.MaxInteger) }
	optional := func(s string) string {
		if s == "" {
			return ""
		}
		return audit.Claimed(s)
	}
	var flags []string
	for _, f := range r.Flags[:min(len(r.Flags), maxFlags)] {
		flags = append(flags, audit.Claimed(f))
	}
	if r.Args != "" {
		if _, err := audit.ParseHash(r.Args); err != nil {
			return nil, fmt.Errorf("record of a %.20s call: arguments: %w", r.Kind, err)
		}
	}
	switch r.Kind {
	case "tool", "llm":
		call := &audit.ToolCall{
			AgentID: b.adm.Agent, SessionID: b.adm.Session, Allowed: r.Allowed, ApprovalID: optional(r.Approval), Args: r.Args, CallID: r.Call, UndoUntil: r.UndoUntil, Code: strings.ToLower(string(r.Code)), Cost: count(r.Cost),
			Count: max(count(r.Count), 1), DurationNS: count(int64(r.Took)), Flags: flags, Name: audit.Claimed(r.Name), Received: count(r.Received),
			ParentRunID: b.adm.parent.run, Rule: optional(r.Rule), RunID: b.run, Sent: count(r.Sent), Tokens: count(r.Tokens), TraceID: optional(r.TraceID), Type: r.Kind,
		}
		if r.Allowed {
			return call, nil
		}
		return b.refusalOf(call, r), nil
	case "egress", "dns":
		return &audit.Egress{
			AgentID: b.adm.Agent, Allowed: r.Allowed, Code: strings.ToLower(string(r.Code)), Count: max(count(r.Count), 1), Destination: audit.Claimed(r.Name),
			Detail: optional(r.Detail), DurationNS: count(int64(r.Took)), Flags: flags, Received: count(r.Received), Rule: optional(r.Rule),
			ParentRunID: b.adm.parent.run, RunID: b.run, Sent: count(r.Sent), TraceID: optional(r.TraceID), Type: r.Kind,
		}, nil
	}
	return nil, fmt.Errorf("record of unknown kind %.20q", r.Kind)
}

// refusalOf is the one record of a call that passed nowhere: of the ring that it lacks, of its empty bucket, or of the call with what
// decided (H-27). A second record of the same decision would say nothing new, and double what a flood writes.
func (b *Broker) refusalOf(call *audit.ToolCall, r link.Record) audit.Record {
	if call.Rule == "" || call.Rule == call.Code {
		call.Rule = cmp.Or(deciders[r.Code], "M-13")
	}
	action := audit.Claimed(cmp.Or(r.Action, r.Name))
	switch ring, _ := b.live.ring(); {
	case r.Code == link.CodeRing && r.Required.Valid():
		return &audit.RingCheck{
			Action: action, AgentID: b.control.who, AgentRing: ringOnRecord(ring), Count: call.Count, EffScore: b.score(), Reason: call.Code,
			ParentRunID: call.ParentRunID, RequiredRing: ringOnRecord(r.Required), Rule: call.Rule, RunID: b.run, SessionID: b.adm.Session,
		}
	case r.Code == link.CodeRateLimited && call.Rule == deciders[r.Code]:
		return b.rateLimit(action, r.Required, call.Count)
	default:
		call.Ring, call.RequiredRing, call.EffScore = ringOnRecord(ring), ringOnRecord(r.Required), b.score()
		return call
	}
}

// deciders are the requirements behind the codes that name no rule of their own; what isn't here was no request that could be decided.
var deciders = map[rings.Code]string{
	link.CodeRing: "H-9", link.CodeRateLimited: "H-16", link.CodeConcurrency: "H-11", link.CodeSteps: "M-3", link.CodeToolRestricted: "M-19",
	link.CodeQuota: "M-19", link.CodeCost: "M-19", link.CodeApproval: "M-11", link.CodeUnavailable: "M-9", link.CodeCanceled: "M-18",
	link.CodeStopped: "S-8", link.CodeNoIntent: "S-15", rings.CodeQuarantined: "H-31",
}

// rateLimit is the record of calls that the ring's bucket refused.
func (b *Broker) rateLimit(action string, required rings.Ring, count int64) *audit.RateLimit {
	ring, _ := b.live.ring()
	b.mu.Lock()
	defer b.mu.Unlock()
	return &audit.RateLimit{
		Action: action, AgentID: b.control.who, BucketTokens: b.tokens, Count: count, EffScore: b.score(), Exhausted: true,
		ParentRunID: b.adm.parent.run, RequiredRing: ringOnRecord(required), Ring: ringOnRecord(ring), RunID: b.run, SessionID: b.adm.Session,
	}
}

// remember keeps what the bucket said, for the record of what it refused.
func (b *Broker) remember(r rings.RateResult) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tokens = audit.NumberOf(r.Tokens); r.Unlimited {
		b.tokens = audit.Number{}
	}
}

// score is null for an operator's own run, whose ring is the operator's word.
func (b *Broker) score() audit.Number {
	if b.adm.Agent == "" {
		return audit.Number{}
	}
	return recordedScore(b.live.stands.Load().Agent)
}

// ringOnRecord keeps no ring apart from ring 3, which it counts as elsewhere.
func ringOnRecord(r rings.Ring) audit.Ring {
	if !r.Valid() {
		return audit.NoRing
	}
	return audit.RingOf(r.Value())
}
