// SPDX-License-Identifier: Apache-2.0

// Package gate is the order in which a call through the tool proxy is decided, and the errors an agent gets (M-9, M-13).
//
//	g, err := gate.New(gate.Options{Supervisor: link, Caller: start.Caller, Policy: engine, MaxSteps: start.MaxSteps, Granted: gate.Granting(start.Tools)})
//	permit, e := g.Enter(ctx, call)
//	if e != nil {
//		return e // on record already
//	}
//	result, cost := work(permit.Context())
//	if e := permit.End(gate.Outcome{Cost: cost}); e != nil {
//		return e // not the result
//	}
//
// What it guarantees. Each call is decided in one order: quarantine, ring, rate and concurrency, which the supervisor knows; the
// tool's own rules; steps; the safety loop's approved step; policy; arguments; approval; cost. The first that refuses is the
// reason, and those after it aren't asked. Each decision gives exactly one record: a refusal before Enter returns, a call that
// passed when it ends. Places and reservations are given back on every way out, panics included. A permit's context ends with
// the call's time, with the run, when the ring no longer allows the call (M-22), and when the safety loop stops the agent (S-15); a
// result that comes after that is withheld.
//
// Errors are *Error, with the codes below and the reasons of M-9.
//
// What it does not protect against. Callers that state untrue things about a tool (its action, category, that it is free of
// plaintext), that never end a permit, or whose work goes on after its context ended. Effects that a call had before it was
// stopped stay.
//
// How it fails. Closed: zero values, silence, nonsense and panics of those who are asked refuse; what can't be recorded isn't
// handed out.
package gate

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"agentrun/pdp"
	"agentrun/rings"
	"agentrun/telemetry"
	"agentrun/toolproxy/link"
)

// Codes of errors beside those of pdp and egress. They are stable: agents are written against them.
const (
	CodeQuarantined    = rings.CodeQuarantined
	CodeConfidential   = pdp.CodeConfidential
	CodeToolRestricted = link.CodeToolRestricted
	CodeRateLimited    = link.CodeRateLimited
	CodeConcurrency    = link.CodeConcurrency
	CodeSteps          = link.CodeSteps
	CodeQuota          = link.CodeQuota
	CodeCost           = link.CodeCost
	CodeApproval       = link.CodeApproval
	CodeRing           = link.CodeRing
	CodeUnavailable    = link.CodeUnavailable
	CodeCanceled       = link.CodeCanceled

	CodeToolUnknown       rings.Code = "tool_unknown"
	CodeCapabilityMissing rings.Code = "tool_capability_missing"
	CodeToolTimeout       rings.Code = "tool_timeout"
	CodeToolFailed        rings.Code = "tool_failed"
	CodeBadArguments      rings.Code = "bad_arguments"
	CodeBadRequest        rings.Code = "bad_request"
	CodeRouteForbidden    rings.Code = "route_forbidden"
	CodeNotFound          rings.Code = "not_found"
	CodeTooLarge          rings.Code = "too_large"
	CodeSuspicious        rings.Code = "suspicious_input"
	CodeToolUnavailable   rings.Code = "tool_unavailable" // its calls failed too often: none is made for a while (H-23)
)

// Error is what an agent gets (M-13): a stable code, a sentence, and what to do next. Nothing of upstreams, no secrets.
type Error struct {
	Code    rings.Code    `json:"code"`
	Message string        `json:"message"`
	Next    string        `json:"next"`
	Retry   time.Duration `json:"-"` // Retry-After, if any
	Rule    string        `json:"-"` // what decided; for the record
	Asked   bool          `json:"-"` // what was asked for is at fault, not who was asked: no failure of the tool (H-23)
	Cause   error         `json:"-"` // for the operator's log, by CauseOf
}

// Error is the code alone: the message is for the agent, and may repeat what it sent (M-18).
func (e *Error) Error() string { return string(e.Code) }

// Format is Error for every verb and flag: %#v would write the message.
func (e *Error) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, e.Error()) }

func (e *Error) Unwrap() error { return e.Cause }

// Category groups tools by what they can do, with a time limit each (M-11).
type Category string

// The categories.
const (
	CategoryA Category = "A" // math, text, memory, embeddings, calendar: 2 s
	CategoryB Category = "B" // search-lite, browser-lite, file, task: 3 s
	CategoryC Category = "C" // router, llm, agent, code-executor: 5 s, llm 60 s
	CategoryD Category = "D" // full browser, system calls, webhooks, external calls: 10 s, by approval
)

// Args and Target are an agent's words, so they refuse to print (M-18).
type (
	Args   = telemetry.Plaintext[json.RawMessage]
	Target = telemetry.Plaintext[string]
)

// Call is one call that wants to pass.
type Call struct {
	Kind     string       // "tool" or "llm"
	Tool     string       // name as in tool.<name>.invoke
	Category Category     // zero is refused
	Action   rings.Action // for the ring enforcer
	Args     Args         // canonical (RFC 8785) and valid against the tool's schema
	Target   Target       // what the call is about, by its arguments, for require_intent (S-15); empty: nothing beside the tool
	Approve  bool         // needs approval whatever the category says
	Estimate int64        // millionths of the plans' unit
	Tokens   int64
	Flags    []string // what the boundary noticed about the input; boundary.Suspicious says what a policy is told (M-16)

	Timeout       time.Duration                // of the call; 0: the category's, 60 s for kind "llm" (M-11)
	ApprovalWait  time.Duration                // how long an operator may take; 0: Options.ApprovalWait
	PlaintextFree bool                         // neither takes nor returns plaintext of people; else refused in confidential mode (M-15)
	Admit         func(ring rings.Ring) *Error // the tool's own rules, beside the ring's; asked again when the ring changes; nil: none
	Rate          func() *Error                // the tool's own bucket, asked after the ring's; nil: none
	Validate      func() *Error                // arguments, asked after the policy; nil: valid already

	// Stays: once it has passed, the call doesn't end with the context of its caller, who may have left. What undoes it comes with its
	// result: an agent that hangs up must not keep that away (H-7).
	Stays bool
}

// Outcome ends a call: what it cost and how it went, for the budgets and the one record.
type Outcome struct {
	Err      *Error // nil: it succeeded
	Cost     int64
	Tokens   int64
	Prompt   int64 // of Tokens
	Sent     int64
	Received int64
	Flags    []string
	Undo     *Args // with which arguments the call can be undone (H-7); nil: it can't
}

// Permit is a call that passed. It must be ended, exactly once.
type Permit interface {
	// Context ends with the run, with the tool's time limit, and when the ring no longer allows the call.
	Context() context.Context
	// Spent tells the cost so far. An error is the hard stop in the middle of a call (M-19).
	Spent(cost, tokens int64) *Error
	// End books and records. An error means that neither may be relied on: the agent must not get the result.
	End(Outcome) *Error
}

// Entrance decides. The order is that of M-9: quarantine, ring and rate, concurrency, steps, policy, approval, cost; the safety loop
// (S-15) is asked between steps and policy. A denial is on record when Enter returns.
type Entrance interface {
	Enter(ctx context.Context, c Call) (Permit, *Error)
}
