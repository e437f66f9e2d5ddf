// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"fmt"
	"strings"

	"agentrun/audit"
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
	if r.Allowed || !r.Weight.Valid() {
		return nil
	}
	for range min(max(r.Count, 1), maxCounted) {
		if err := b.control.attempt(r.Weight); err != nil {
			return err
		}
	}
	return nil
}

// put gives each call that passed an entry of its own, as many as the run has steps. All else an agent can have without number, or
// a gateway that has fallen can claim: it is bounded by time.
func (b *Broker) put(r link.Record, rec audit.Record) error {
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
		return &audit.ToolCall{
			AgentID: b.adm.Agent, Allowed: r.Allowed, ApprovalID: optional(r.Approval), Args: r.Args, Code: strings.ToLower(string(r.Code)), Cost: count(r.Cost),
			Count: max(count(r.Count), 1), DurationNS: count(int64(r.Took)), Flags: flags, Name: audit.Claimed(r.Name), Received: count(r.Received),
			Rule: optional(r.Rule), RunID: b.run, Sent: count(r.Sent), Tokens: count(r.Tokens), TraceID: optional(r.TraceID), Type: r.Kind,
		}, nil
	case "egress", "dns":
		return &audit.Egress{
			AgentID: b.adm.Agent, Allowed: r.Allowed, Code: strings.ToLower(string(r.Code)), Count: max(count(r.Count), 1), Destination: audit.Claimed(r.Name),
			Detail: optional(r.Detail), DurationNS: count(int64(r.Took)), Flags: flags, Received: count(r.Received), Rule: optional(r.Rule),
			RunID: b.run, Sent: count(r.Sent), TraceID: optional(r.TraceID), Type: r.Kind,
		}, nil
	}
	return nil, fmt.Errorf("record of unknown kind %.20q", r.Kind)
}
