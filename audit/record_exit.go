// SPDX-License-Identifier: Apache-2.0

package audit

import "time"

// The records of the exit: what a run asked of tools, models and the network, and what it may use (M-9, M-11, M-18, M-19). The
// rule above Record holds for them.

// ToolCall is one call of a tool or a model, after its end: exactly one for each decision, like ones refused may share one.
type ToolCall struct {
	AgentID      string   `log:"agent_id optID"`
	Allowed      bool     `log:"allowed bool"`
	ApprovalID   string   `log:"approval_id optID"` // the approval or standing grant it went by
	Args         string   `log:"args optID"`        // SHA-256 of the canonical arguments, hexadecimal
	CallID       string   `log:"call_id optID"`     // of one that passed; agentrun undo takes it
	Code         string   `log:"code code"`         // ok, or why not
	Cost         int64    `log:"cost count"`        // millionths of the plans' unit
	Count        int64    `log:"count count"`
	DurationNS   int64    `log:"duration_ns count"`
	EffScore     Number   `log:"eff_score optNumber"` // of a call that was refused, as ring and required_ring
	Flags        []string `log:"flags optIDs"`        // what the boundary noticed
	Name         string   `log:"name id"`             // as claimed
	ParentRunID  string   `log:"parent_run_id optID"`
	Received     int64    `log:"received count"`        // bytes
	RequiredRing Ring     `log:"required_ring optRing"` // the action's
	Ring         Ring     `log:"ring optRing"`          // the run's
	Rule         string   `log:"rule optID"`            // what decided
	RunID        string   `log:"run_id id"`
	Sent         int64    `log:"sent count"`
	SessionID    string   `log:"session_id optID"`
	Tokens       int64    `log:"tokens count"`
	TraceID      string   `log:"trace_id optID"`
	Type         string   `log:"type code"` // tool, llm
	// UndoUntil is until when the call can be undone (H-7); zero: it can't.
	UndoUntil time.Time `log:"undo_until optInstant"`
}

// Undo is the undoing of a call (H-7): a record on disk before it begins, and another when it has ended.
type Undo struct {
	AgentID     string `log:"agent_id optID"`
	By          string `log:"by id"` // who asked, as uid:0
	CallID      string `log:"call_id id"`
	Code        string `log:"code optCode"` // why it failed
	DurationNS  int64  `log:"duration_ns optCount"`
	ParentRunID string `log:"parent_run_id optID"`
	RunID       string `log:"run_id id"`
	SessionID   string `log:"session_id optID"`
	State       string `log:"state code"`   // undoing, undone, failed
	Tool        string `log:"tool id"`      // whose call it was
	Trigger     string `log:"trigger code"` // operator, kill
}

// Egress is a connection out of a sandbox, or a name that was asked for, after its end. Like ones may share a record. So is ingress, a
// connection to a published port: its detail is who connected, and the sandbox is who sent and received (M-23).
type Egress struct {
	AgentID     string   `log:"agent_id optID"`
	Allowed     bool     `log:"allowed bool"`
	Code        string   `log:"code code"` // ok, or why not
	Count       int64    `log:"count count"`
	Destination string   `log:"destination id"` // as claimed: host:port, or the name
	Detail      string   `log:"detail optID"`   // class of what was refused
	DurationNS  int64    `log:"duration_ns count"`
	Flags       []string `log:"flags optIDs"`
	ParentRunID string   `log:"parent_run_id optID"`
	Received    int64    `log:"received count"` // bytes
	Rule        string   `log:"rule optID"`     // what decided
	RunID       string   `log:"run_id id"`
	Sent        int64    `log:"sent count"`
	TraceID     string   `log:"trace_id optID"`
	Type        string   `log:"type code"` // egress, dns, ingress
}

// ApprovalRequest is a call that waits for an operator (M-11).
type ApprovalRequest struct {
	AgentID    string    `log:"agent_id optID"`
	ApprovalID string    `log:"approval_id id"`
	Args       Hash      `log:"args digest"` // SHA-256 of the canonical arguments it is bound to
	ExpiresAt  time.Time `log:"expires_at instant"`
	RunID      string    `log:"run_id id"`
	Tool       string    `log:"tool id"`
}

// ApprovalDecision is how such a call was answered, synced before it takes effect, or that nobody answered in time.
type ApprovalDecision struct {
	AgentID    string `log:"agent_id optID"`
	ApprovalID string `log:"approval_id id"`
	Args       Hash   `log:"args digest"`
	By         string `log:"by id"`         // the operator, or "nobody"
	Decision   string `log:"decision code"` // approved, denied, expired, canceled
	RunID      string `log:"run_id id"`
	Tool       string `log:"tool id"`
}

// StandingGrant is an approval given beforehand, or taken back.
type StandingGrant struct {
	AgentID   string    `log:"agent_id id"`
	Args      string    `log:"args optID"` // SHA-256 of the only arguments it is for, hexadecimal; else it is for any
	By        string    `log:"by id"`
	Event     string    `log:"event code"` // granted, revoked
	ExpiresAt time.Time `log:"expires_at instant"`
	GrantID   string    `log:"grant_id id"`
	Tool      string    `log:"tool id"`
}

// QuotaWarning is a quota of which 80 % are used (M-19), told once a run.
type QuotaWarning struct {
	AgentID string `log:"agent_id optID"`
	Limit   int64  `log:"limit count"`
	Plan    string `log:"plan id"`
	Quota   string `log:"quota code"` // run_cost, day_cost, run_tokens, day_tokens
	RunID   string `log:"run_id id"`
	Subject string `log:"subject id"` // whose day it is
	Used    int64  `log:"used count"`
}

// AgentSettings is what an operator set for an agent (M-15, M-19, H-13, H-21), whole, as it is from now on.
type AgentSettings struct {
	AgentID       string `log:"agent_id id"`
	By            string `log:"by optID"`     // who set it, as uid:0
	Mode          string `log:"mode optCode"` // public, confidential
	Plan          string `log:"plan optID"`
	Role          string `log:"role optID"`
	SelfElevation bool   `log:"self_elevation optBool"` // it may have the elevations that it earns without an operator
	Stake         int64  `log:"stake count"`
	Substitute    string `log:"substitute optID"` // agent that its work is handed to when it is killed
	Team          string `log:"team optID"`
}
