// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"time"
)

// at is the time of the golden records, with a nanosecond part that has zeros on both sides.
var at = time.Date(2026, 11, 21, 7, 2, 51, 12_345_670, time.UTC)

func digestOf(b byte) (h Hash) {
	for i := range h {
		h[i] = b + byte(i)
	}
	return h
}

// examples has a record of each kind: first with every field set, then with as few as possible.
func examples() [][2]Record {
	return [][2]Record{
		{&ActionAttempt{Action: "mail.send", AgentID: "did:example:a1", EffScore: NumberOf(0.75), Ring: Standard, RunID: "pmpgnuygkfphzrlh", Timestamp: at},
			&ActionAttempt{Action: "x", AgentID: "a", Timestamp: at}},
		{&RingCheck{Action: "mail.send", AgentID: "a1", AgentRing: Sandbox, Allowed: true, EffScore: NumberOf(0.1), Reason: "granted", RequiredRing: Privileged, RequiresConsensus: true, RequiresSREWitness: true, Rule: "h_9", RunID: "r1"},
			&RingCheck{Action: "x", AgentID: "a", Reason: "ring_insufficient", RequiredRing: Root}},
		{&RateLimit{Action: "mail.send", AgentID: "a1", BucketTokens: NumberOf(0.3333333333333333), Exhausted: true, Ring: Standard, RunID: "r1"},
			&RateLimit{Action: "x", AgentID: "a"}},
		{&Elevation{AgentID: "a1", CurrentRing: Sandbox, ElevationID: "e1", ExpiresAt: at.Add(300 * time.Second), Granted: true, HasConsensus: true, Reason: "granted", RunID: "r1", TargetRing: Privileged, TrustScore: NumberOf(0.97)},
			&Elevation{AgentID: "a", Reason: "insufficient_trust"}},
		{&ElevationEnd{AgentID: "a1", Cause: "expired", ElevationID: "e1", Ring: Sandbox, RunID: "r1"},
			&ElevationEnd{AgentID: "a", Cause: "revoked", ElevationID: "e", Ring: Root}},
		{&KillOrder{AgentID: "a1", Reason: "manual", RunID: "r1", Trigger: "operator"},
			&KillOrder{AgentID: "a", Reason: "ring_breach", Trigger: "ring_breach"}},
		{&Kill{Action: "mail.send", AgentID: "a1", CallbacksExecuted: 3, CompensationsExecuted: 2, DurationNS: 1_234_567, HandoffAgentID: "a2", KilledAt: at, ProcessesKilled: 7, Reason: "ring_breach", RunID: "r1"},
			&Kill{AgentID: "a", KilledAt: at, Reason: "manual"}},
		{&SagaStep{AgentID: "a1", AttemptCount: 3, Compensated: true, Error: "undo_failed", SagaID: "s1", State: "compensation_failed", StepID: "pay"},
			&SagaStep{SagaID: "s", State: "pending", StepID: "1"}},
		{&Saga{AgentID: "a1", FailedSteps: []string{"pay", "ship \"fast\""}, SagaID: "s1", State: "escalated"},
			&Saga{SagaID: "s", State: "pending"}},
		{&Quarantine{AgentID: "a1", Cause: "ring_breach", OldRing: Privileged, RunID: "r1"},
			&Quarantine{AgentID: "a", Cause: "operator"}},
		{&Release{AgentID: "a1", KeyID: "sre-1", Ring: Standard, Statement: digestOf(1)},
			&Release{AgentID: "a", KeyID: "k", Ring: Sandbox, Statement: digestOf(2)}},
		{&Score{AgentID: "a1", HasConsensus: true, NewRing: Privileged, NewScore: NumberOf(0.96), OldRing: Standard, OldScore: NumberOf(0.7), RunID: "r1", Source: "operator"},
			&Score{AgentID: "a", NewRing: Sandbox, Source: "api"}},
		{&Breach{AgentID: "a1", Calls: 12, RunID: "r1", Severity: "high", Tripped: true, Weight: NumberOf(36)},
			&Breach{AgentID: "a", Severity: "low"}},
		{&Session{AgentID: "a1", ConsistencyMode: "eventual", Event: "joined", SessionID: "Session-1_x", State: "handshaking"},
			&Session{Event: "archived", SessionID: "s", State: "archived"}},
		{&Conflict{Key: digestOf(3), Kept: digestOf(4), KeptBy: "a1", Lost: digestOf(5), LostBy: "a2", SessionID: "s1"},
			&Conflict{Key: digestOf(1), Kept: digestOf(2), KeptBy: "a", Lost: digestOf(3), LostBy: "b", SessionID: "s"}},
		{&SandboxStart{AgentID: "a1", PlanDigest: digestOf(6), Profile: "ring3", Ring: Sandbox, RunID: "r1", SessionID: "s1"},
			&SandboxStart{PlanDigest: digestOf(6), Profile: "p", Ring: Root, RunID: "r"}},
		{&SandboxEnd{AgentID: "a1", ExitCode: 137, FailedStep: "mount root", PlanDigest: digestOf(6), Refused: 5, RunID: "r1", SessionID: "s1", State: "oom", WallTimeNS: MaxInteger},
			&SandboxEnd{PlanDigest: digestOf(6), RunID: "r", State: "exited"}},
		{&Refusal{AgentID: "a1", Class: "flags=CLONE_NEWUSER", Count: 2, RunID: "r1", Syscall: "clone", Verdict: "EPERM"},
			&Refusal{RunID: "r", Syscall: "mount", Verdict: "EPERM"}},
		{&Operator{Accepted: true, Action: "release", ExpiresAt: at, KeyID: "sre-1", Nonce: "n1", Reason: "accepted", Statement: digestOf(7), Subject: "a1"},
			&Operator{Action: "release", Reason: "malformed", Statement: digestOf(8), Subject: "a"}},
		{&Key{Event: "created", KeyID: "4c8d3c21", PublicKey: "agentrun-audit+4c8d3c21+AS0=", Purpose: "audit_checkpoint"},
			&Key{Event: "retired", KeyID: "k", PublicKey: "p", Purpose: "sre_witness"}},
		{&Repair{File: "000001.jsonl", Length: 17, Offset: 4711, SHA256: digestOf(9)},
			&Repair{File: "000002.jsonl", SHA256: digestOf(9)}},
		{&Rotation{Next: "000002.jsonl"}, &Rotation{Next: "000003.jsonl"}},
		{&ToolCall{AgentID: "a1", Allowed: true, ApprovalID: "p1", Args: digestOf(1).String(), Code: "ok", Cost: 20_000, Count: 1, DurationNS: 1_234_567, Flags: []string{"suspicious_input"}, Name: "webhook.send", Received: 512, Rule: "M-11", RunID: "r1", Sent: 99, Tokens: 7, TraceID: "4bf92f3577b34da6a3ce929d0e0e4736", Type: "tool"},
			&ToolCall{Code: "tool_unknown", Count: 3, Name: "x", RunID: "r", Type: "llm"}},
		{&Egress{AgentID: "a1", Allowed: true, Code: "ok", Count: 1, Destination: "example.org:443", Detail: "sni", DurationNS: 17, Flags: []string{"intercepted"}, Received: 4096, Rule: "*.org:443", RunID: "r1", Sent: 12, TraceID: "t1", Type: "egress"},
			&Egress{Code: "host_denied", Count: 9, Destination: "x", RunID: "r", Type: "dns"}},
		{&ApprovalRequest{AgentID: "a1", ApprovalID: "p1", Args: digestOf(2), ExpiresAt: at, RunID: "r1", Tool: "webhook.send"},
			&ApprovalRequest{ApprovalID: "p", Args: digestOf(3), ExpiresAt: at, RunID: "r", Tool: "t"}},
		{&ApprovalDecision{AgentID: "a1", ApprovalID: "p1", Args: digestOf(2), By: "uid:0", Decision: "approved", RunID: "r1", Tool: "webhook.send"},
			&ApprovalDecision{ApprovalID: "p", Args: digestOf(3), By: "nobody", Decision: "expired", RunID: "r", Tool: "t"}},
		{&StandingGrant{AgentID: "a1", Args: digestOf(2).String(), By: "uid:0", Event: "granted", ExpiresAt: at, GrantID: "g1", Tool: "webhook.send"},
			&StandingGrant{AgentID: "a", By: "uid:0", Event: "revoked", ExpiresAt: at, GrantID: "g", Tool: "t"}},
		{&QuotaWarning{AgentID: "a1", Limit: 20_000, Plan: "casual", Quota: "run_cost", RunID: "r1", Subject: "team:t1", Used: 16_000},
			&QuotaWarning{Limit: 1, Plan: "p", Quota: "day_cost", RunID: "r", Subject: "operator"}},
		{&AgentSettings{AgentID: "a1", Mode: "confidential", Plan: "casual", Role: "reader", Stake: 5000, Team: "t1"},
			&AgentSettings{AgentID: "a"}},
		{&SafetyOperation{AgentID: "stdio/planner", Code: "ok", Endpoint: "execute", Operation: "execute_agent", Subject: "planner"},
			&SafetyOperation{AgentID: "a", Code: "not_found_operation", Operation: "x"}},
		{&SafetyStep{AgentID: "a1", ChallengeID: "1b4e28ba-2fa1-41d2-883f-0016d3cca427", Element: "planner", Factors: []string{"verb_delete:40", "scope_all:30"}, Hint: digestOf(1), Mode: "enforcing", Rule: "delete_*", Score: NumberOf(70), Stage: "tier", Tier: "verify", Token: digestOf(2).String(), Verdict: "verify"},
			&SafetyStep{AgentID: "a", Hint: digestOf(1), Mode: "logging", Stage: "none", Verdict: "continue"}},
		{&SafetyChallenge{AgentID: "a1", By: "uid:0", ChallengeID: "1b4e28ba-2fa1-41d2-883f-0016d3cca427", Event: "locked_out", ExpiresAt: at, Failures: 10, LockedUntil: at.Add(time.Minute), Type: "danger_zone"},
			&SafetyChallenge{AgentID: "a", ChallengeID: "c", Event: "refused"}},
		{&SafetyConfirmation{AgentID: "a1", Bound: digestOf(3).String(), By: "uid:0", Event: "confirmed", ExpiresAt: at, Operation: "execute_agent", Reason: "self_approval", Token: digestOf(4)},
			&SafetyConfirmation{AgentID: "a", Event: "refused", Operation: "confirm_operation", Token: digestOf(4)}},
		{&SafetyBlock{AgentID: "a1", By: "uid:0", ChallengeID: "1b4e28ba-2fa1-41d2-883f-0016d3cca427", Event: "released", Note: "looked at it", Reason: "operator"},
			&SafetyBlock{AgentID: "a", Event: "blocked", Reason: "danger_zone"}},
		{&CheckpointLost{By: "uid:0", Cause: "accepted", Entries: 7, Head: digestOf(7).String(), Size: 12},
			&CheckpointLost{Cause: "removed", Entries: 1}},
		{&AgentKey{AgentID: "a1", Event: "issued", ExpiresAt: at, KeyID: "k1", May: []string{"agent.run.invoke", "tool.math.invoke"}, RunID: "r1"},
			&AgentKey{AgentID: "a1", Event: "revoked", ExpiresAt: at, KeyID: "k1"}},
		{&Undo{AgentID: "a1", By: "uid:0", CallID: "r1.7", Code: "tool_failed", DurationNS: 5, ParentRunID: "r0", RunID: "r1", SessionID: "s1", State: "failed", Tool: "book", Trigger: "kill"},
			&Undo{By: "uid:0", CallID: "r.1", RunID: "r", State: "undoing", Tool: "t", Trigger: "operator"}},
		{&LimitChange{AgentID: "a1", By: "uid:0", Limits: []string{"cpu 2", "memory 2GiB"}, Note: "ticket 81", RunID: "r1"},
			&LimitChange{AgentID: "a1", By: "uid:0"}},
		{&FileCopy{AgentID: "a1", By: "uid:0", Bytes: 5, Code: "failed", Direction: "out", Entries: 2, Path: "/workspace/src", RunID: "r1", SHA256: digestOf(8)},
			&FileCopy{AgentID: "a1", By: "uid:0", Direction: "in", Path: "/workspace", SHA256: digestOf(9)}},
		{&SandboxJoin{AgentID: "a1", By: "uid:0", JoinID: "j1", ParentRunID: "r0", Program: []string{"/usr/bin/python3", "/workspace/a.py"}, Ring: Standard, RunID: "r1", SessionID: "s1"},
			&SandboxJoin{By: "uid:0", JoinID: "j", Ring: Root, RunID: "r"}},
		{&SandboxJoinEnd{AgentID: "a1", ExitCode: 124, JoinID: "j1", RunID: "r1", SessionID: "s1", State: "timeout", WallTimeNS: 17},
			&SandboxJoinEnd{JoinID: "j", RunID: "r", State: "exited"}},
		{&SandboxLife{By: "uid:0", Change: "renamed", Name: "dev", Restarts: 3, RunID: "r1", To: "dev2"}, &SandboxLife{By: "agentrun", Change: "created", Name: "d"}},
		{&SandboxPause{AgentID: "a1", By: "uid:0", Cause: "operator", Paused: true, RunID: "r1", SessionID: "s1"},
			&SandboxPause{AgentID: "a1", By: "agentrun", Cause: "idle", RunID: "r"}},
		{&PortPublish{Address: "127.0.0.1:41234", AgentID: "a1", By: "uid:0", Event: "published", Port: 8000, Raw: true, RunID: "r1"},
			&PortPublish{Address: "127.0.0.1:41234", AgentID: "a1", By: "uid:0", Event: "linked", Port: 80}},
		{&Image{By: "uid:0", Change: "pulled", Image: digestOf(1).String(), Key: digestOf(2).String(), Manifest: digestOf(3).String(), Names: []string{"python:3.12-slim"}, Source: "registry"},
			&Image{By: "uid:0", Change: "removed", Image: digestOf(1).String()}},
		{&SandboxSignal{AgentID: "a1", By: "uid:0", RunID: "r1", SessionID: "s1", Signal: 15}, &SandboxSignal{AgentID: "run:r", By: "uid:0", RunID: "r", Signal: 10}},
	}
}

// gained has a record for each optional field that a kind was given after there were chains.
func gained() []Record {
	return []Record{
		&Elevation{AgentID: "a1", By: "uid:0", Reason: "insufficient_trust"},
		&ElevationEnd{AgentID: "a1", By: "uid:0", Cause: "revoked", ElevationID: "e1", Ring: Sandbox, RunID: "r1"},
		&KillOrder{AgentID: "a1", By: "uid:0", Reason: "manual", RunID: "r1", Trigger: "operator"},
		&Kill{AgentID: "a1", Errors: []string{"handler:notify", "steps"}, KilledAt: at, Reason: "manual"},
		&AgentSettings{AgentID: "a1", SelfElevation: true, Substitute: "a2"},
		&SandboxStart{PlanDigest: digestOf(6), Profile: "p", Ring: Standard, RunID: "r", Without: []string{"cgroup-delegation", "proc-subset"}},
	}
}

// gainedLater is gained, for the kinds' next fields.
func gainedLater() []Record {
	return []Record{
		&ActionAttempt{Action: "tool.math.invoke", AgentID: "a1", BucketTokens: NumberOf(9), EffScore: NumberOf(0.75), ParentRunID: "r0", RequiredRing: Sandbox, Ring: Standard, RunID: "r1", SessionID: "s1", Timestamp: at},
		&RingCheck{Action: "tool.shutdown.invoke", AgentID: "run:r1", AgentRing: Sandbox, Count: 3, ParentRunID: "r0", Reason: "ring_denied", RequiredRing: Root, RunID: "r1", SessionID: "s1"},
		&RateLimit{Action: "tool.math.invoke", AgentID: "a1", BucketTokens: NumberOf(0.5), Count: 7, EffScore: NumberOf(0.1), Exhausted: true, ParentRunID: "r0", RequiredRing: Sandbox, Ring: Sandbox, RunID: "r1", SessionID: "s1"},
		&ToolCall{Code: "acl_block", Count: 1, EffScore: NumberOf(0.7), Name: "x", ParentRunID: "r0", RequiredRing: Standard, Ring: Standard, Rule: "no-x", RunID: "r", SessionID: "s1", Type: "tool"},
		&Elevation{AgentID: "a1", By: "uid:0", Note: "ticket 81", Reason: "insufficient_trust"},
		&KillOrder{AgentID: "a1", By: "uid:0", Note: "reads what it shouldn't", Reason: "manual", Trigger: "operator"},
		&Quarantine{AgentID: "a1", Cause: "operator", Note: "odd calls"},
		&Release{AgentID: "a", KeyID: "k", Note: "looked at it", Ring: Sandbox, Statement: digestOf(2)},
		&Breach{AgentID: "a1", OnBreach: "freeze", Severity: "high", Tripped: true},
	}
}

// allExamples stand in the order in which they came: it is that of the golden lines.
func allExamples() []Record {
	var all []Record
	for _, pair := range examples() {
		all = append(all, pair[0], pair[1])
		switch pair[0].Kind() {
		case "agent_settings":
			all = append(all, gained()...)
		case "checkpoint_lost":
			all = append(all, gainedLater()...)
		case "agent_key": // a run that is a tool of another (H-15)
			all = append(all, &SandboxStart{AgentID: "a1", ParentRunID: "r0", PlanDigest: digestOf(6), Profile: "ring3", Ring: Sandbox, RunID: "r1"})
		case "undo": // a call that can be undone (H-7)
			all = append(all, &ToolCall{Allowed: true, CallID: "r1.7", Code: "ok", Count: 1, Name: "book", RunID: "r1", Type: "tool", UndoUntil: at})
		case "image":
			all = append(all, &SandboxStart{Image: digestOf(1).String(), PlanDigest: digestOf(6), Profile: "ring3", Ring: Sandbox, RunID: "r1"})
		case "sandbox_signal": // who asked (M-23)
			all = append(all,
				&Score{AgentID: "a1", By: "uid:1000", NewRing: Sandbox, OldRing: NoRing, Source: "operator"},
				&Quarantine{AgentID: "a1", By: "uid:1000", Cause: "operator"},
				&Release{AgentID: "a1", By: "uid:1000", KeyID: "k", Ring: Sandbox, Statement: digestOf(2)},
				&AgentSettings{AgentID: "a1", By: "uid:1000"},
				&AgentKey{AgentID: "a1", By: "uid:1000", Event: "revoked", ExpiresAt: at, KeyID: "k"})
		case "limit_change":
			all = append(all, &SandboxStart{PlanDigest: digestOf(6), Profile: "p", Ring: Standard, RunID: "r", Wider: []string{"memory 8GiB", "timeout none"}})
		}
	}
	return all
}
