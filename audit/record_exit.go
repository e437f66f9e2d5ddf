// SPDX-License-Identifier: Apache-2.0

package audit

import "time"

// The records of the exit: what a run asked of tools, models and the network, and what it may use (M-9, M-11, M-18, M-19). The
// rule above Record holds for them.

// ToolCall is one call of a tool or a model, after its end: exactly one for each decision, like ones refused may share one.
type ToolCall struct {
	AgentID    string // optional
	Allowed    bool
	ApprovalID string // optional: the approval or standing grant it went by
	Args       string // optional: SHA-256 of the canonical arguments, hexadecimal
	Code       string // code: ok, or why not
	Cost       int64  // millionths of the plans' unit
	Count      int64
	DurationNS int64
	Flags      []string // optional: what the boundary noticed
	Name       string   // as claimed
	Received   int64    // bytes
	Rule       string   // optional: what decided
	RunID      string
	Sent       int64
	Tokens     int64
	TraceID    string // optional
	Type       string // code: tool, llm
}

// Kind implements Record.
func (*ToolCall) Kind() Kind { return KindToolCall }

func (r *ToolCall) fields(c *codec) {
	c.optID("agent_id", &r.AgentID)
	c.bool("allowed", &r.Allowed)
	c.optID("approval_id", &r.ApprovalID)
	c.optID("args", &r.Args)
	c.code("code", &r.Code)
	c.count("cost", &r.Cost)
	c.count("count", &r.Count)
	c.count("duration_ns", &r.DurationNS)
	c.optIDs("flags", &r.Flags)
	c.id("name", &r.Name)
	c.count("received", &r.Received)
	c.optID("rule", &r.Rule)
	c.id("run_id", &r.RunID)
	c.count("sent", &r.Sent)
	c.count("tokens", &r.Tokens)
	c.optID("trace_id", &r.TraceID)
	c.code("type", &r.Type)
}

// Egress is a connection out of a sandbox, or a name that was asked for, after its end. Like ones may share a record.
type Egress struct {
	AgentID     string // optional
	Allowed     bool
	Code        string // code: ok, or why not
	Count       int64
	Destination string // as claimed: host:port, or the name
	Detail      string // optional: class of what was refused
	DurationNS  int64
	Flags       []string // optional
	Received    int64    // bytes
	Rule        string   // optional: what decided
	RunID       string
	Sent        int64
	TraceID     string // optional
	Type        string // code: egress, dns
}

// Kind implements Record.
func (*Egress) Kind() Kind { return KindEgress }

func (r *Egress) fields(c *codec) {
	c.optID("agent_id", &r.AgentID)
	c.bool("allowed", &r.Allowed)
	c.code("code", &r.Code)
	c.count("count", &r.Count)
	c.id("destination", &r.Destination)
	c.optID("detail", &r.Detail)
	c.count("duration_ns", &r.DurationNS)
	c.optIDs("flags", &r.Flags)
	c.count("received", &r.Received)
	c.optID("rule", &r.Rule)
	c.id("run_id", &r.RunID)
	c.count("sent", &r.Sent)
	c.optID("trace_id", &r.TraceID)
	c.code("type", &r.Type)
}

// ApprovalRequest is a call that waits for an operator (M-11).
type ApprovalRequest struct {
	AgentID    string // optional
	ApprovalID string
	Args       Hash // SHA-256 of the canonical arguments it is bound to
	ExpiresAt  time.Time
	RunID      string
	Tool       string
}

// Kind implements Record.
func (*ApprovalRequest) Kind() Kind { return KindApprovalRequest }

func (r *ApprovalRequest) fields(c *codec) {
	c.optID("agent_id", &r.AgentID)
	c.id("approval_id", &r.ApprovalID)
	c.digest("args", &r.Args)
	c.instant("expires_at", &r.ExpiresAt)
	c.id("run_id", &r.RunID)
	c.id("tool", &r.Tool)
}

// ApprovalDecision is how such a call was answered, synced before it takes effect, or that nobody answered in time.
type ApprovalDecision struct {
	AgentID    string // optional
	ApprovalID string
	Args       Hash
	By         string // the operator, or "nobody"
	Decision   string // code: approved, denied, expired, canceled
	RunID      string
	Tool       string
}

// Kind implements Record.
func (*ApprovalDecision) Kind() Kind { return KindApprovalDecision }

func (r *ApprovalDecision) fields(c *codec) {
	c.optID("agent_id", &r.AgentID)
	c.id("approval_id", &r.ApprovalID)
	c.digest("args", &r.Args)
	c.id("by", &r.By)
	c.code("decision", &r.Decision)
	c.id("run_id", &r.RunID)
	c.id("tool", &r.Tool)
}

// StandingGrant is an approval given beforehand, or taken back.
type StandingGrant struct {
	AgentID   string
	Args      string // optional: SHA-256 of the only arguments it is for, hexadecimal; else it is for any
	By        string
	Event     string // code: granted, revoked
	ExpiresAt time.Time
	GrantID   string
	Tool      string
}

// Kind implements Record.
func (*StandingGrant) Kind() Kind { return KindStandingGrant }

func (r *StandingGrant) fields(c *codec) {
	c.id("agent_id", &r.AgentID)
	c.optID("args", &r.Args)
	c.id("by", &r.By)
	c.code("event", &r.Event)
	c.instant("expires_at", &r.ExpiresAt)
	c.id("grant_id", &r.GrantID)
	c.id("tool", &r.Tool)
}

// QuotaWarning is a quota of which 80 % are used (M-19), told once a run.
type QuotaWarning struct {
	AgentID string // optional
	Limit   int64
	Plan    string
	Quota   string // code: run_cost, day_cost, run_tokens, day_tokens
	RunID   string
	Subject string // whose day it is
	Used    int64
}

// Kind implements Record.
func (*QuotaWarning) Kind() Kind { return KindQuotaWarning }

func (r *QuotaWarning) fields(c *codec) {
	c.optID("agent_id", &r.AgentID)
	c.count("limit", &r.Limit)
	c.id("plan", &r.Plan)
	c.code("quota", &r.Quota)
	c.id("run_id", &r.RunID)
	c.id("subject", &r.Subject)
	c.count("used", &r.Used)
}

// AgentSettings is what an operator set for an agent (M-15, M-19, H-13, H-21), whole, as it is from now on.
type AgentSettings struct {
	AgentID       string
	Mode          string // optional code: public, confidential
	Plan          string // optional
	Role          string // optional
	SelfElevation bool   // optional: it may have the elevations that it earns without an operator
	Stake         int64
	Substitute    string // optional: agent that its work is handed to when it is killed
	Team          string // optional
}

// Kind implements Record.
func (*AgentSettings) Kind() Kind { return KindAgentSettings }

func (r *AgentSettings) fields(c *codec) {
	c.id("agent_id", &r.AgentID)
	c.optCode("mode", &r.Mode)
	c.optID("plan", &r.Plan)
	c.optID("role", &r.Role)
	c.optBool("self_elevation", &r.SelfElevation)
	c.count("stake", &r.Stake)
	c.optID("substitute", &r.Substitute)
	c.optID("team", &r.Team)
}
