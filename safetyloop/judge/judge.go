// SPDX-License-Identifier: Apache-2.0

// Package judge has the words in which the parts of the safety loop speak: what a hint alone says (S-5, S-7), and the choices of a loop.
//
//	j, err := policy.Judge(ctx, "deleting all records from staging_users")
//
// It is a package of its own because a hint is judged in one process, without privileges, and decided about in another, with the
// node's state: neither is to be linked with what only the other needs. Zero values judge nothing and are refused by the loop.
// Nothing in here decides.
package judge

import "context"

// Rule is what a policy's patterns say about a hint (S-5): deny > requiresApproval > autoApprove > default.
type Rule uint8

const (
	RuleInvalid Rule = iota
	RuleDefault
	RuleAutoApprove
	RuleRequiresApproval
	RuleDeny
)

// Factor is one reason of a score, and what it added.
type Factor struct {
	Name   string `json:"name"` // stable, snake_case: verb_delete, scope_all, target_production
	Points int    `json:"points"`
	Detail string `json:"detail"` // what was found, at most 120 bytes, printable
}

// Judgement is what a hint alone says: pure, from its text, the policy and the workspace. The loop adds the ring, the
// history and the caller's own assessment, which can only raise it (S-7).
type Judgement struct {
	Rule    Rule     `json:"rule"`
	Pattern string   `json:"pattern,omitempty"` // the one that matched
	Score   int      `json:"score"`             // 0 to 100
	Vague   bool     `json:"vague,omitempty"`   // no verb or no target that could be judged: at least confirm
	Factors []Factor `json:"factors,omitempty"`
	// Verb and Target are what was recognised, for require_intent (S-15).
	Verb   string `json:"verb,omitempty"`
	Target string `json:"target,omitempty"`
}

// Judge gives one. It may run in another process (the gateway of a sandbox). An error refuses the step.
type Judge interface {
	Judge(ctx context.Context, hint string) (Judgement, error)
}

func (r Rule) String() string {
	return nameOf([]string{"invalid", "default", "autoApprove", "requiresApproval", "deny"}, r)
}

// MaxParams bounds the JSON of a request's parameters in bytes.
const MaxParams = 64 << 10

// Endpoint is a family of operations by what they do (S-2). The zero value routes nothing.
type Endpoint uint8

const (
	NoEndpoint Endpoint = iota
	Create
	Read
	Execute
	// Any is the endpoint of a server in mode single, where the operation alone decides.
	Any
)

// Reply is {success:true,data} or {success:false,error} (S-1).
type Reply struct {
	Success bool   `json:"success"`
	Data    any    `json:"data,omitempty"`
	Error   *Error `json:"error,omitempty"`
}

// Codes of an Error (S-1, S-12): those of the MCP-AQL draft, and no others.
const (
	CodeUnknownParam  = "VALIDATION_UNKNOWN_PARAM"
	CodeMissingParam  = "VALIDATION_MISSING_PARAM"
	CodeInvalidType   = "VALIDATION_INVALID_TYPE"
	CodeTooLarge      = "VALIDATION_PAYLOAD_TOO_LARGE"
	CodeNoOperation   = "NOT_FOUND_OPERATION"
	CodeNoResource    = "NOT_FOUND_RESOURCE"
	CodeDenied        = "PERMISSION_DENIED"
	CodeConfirmation  = "CONFIRMATION_REQUIRED"
	CodeExists        = "CONFLICT_ALREADY_EXISTS"
	CodeRateLimit     = "RATE_LIMIT_EXCEEDED"
	CodeInternal      = "INTERNAL_ERROR"
	CodeTokenInvalid  = "TOKEN_INVALID"
	CodeTokenExpired  = "TOKEN_EXPIRED"
	CodeTokenUsed     = "TOKEN_ALREADY_USED"
	CodeTokenMismatch = "TOKEN_SCOPE_MISMATCH"
)

// Error is a refusal on the wire.
type Error struct {
	Code    string         `json:"code"`
	Message string         `json:"message"`
	Details map[string]any `json:"details,omitempty"`
}

func (e Endpoint) String() string {
	return nameOf([]string{"NONE", "CREATE", "READ", "EXECUTE", "ANY"}, e)
}

// Tool is the endpoint's name as an MCP tool (S-1); empty for what is no endpoint.
func (e Endpoint) Tool() string {
	return nameOf([]string{"", "mcp_aql_create", "mcp_aql_read", "mcp_aql_execute", "mcp_aql"}, e)
}
