// SPDX-License-Identifier: Apache-2.0

package audit

import "time"

// The records of the execution safety loop: what an agent said it would do, what it was told, and who answered for it (S-5 to
// S-15). The rule above Record holds for them: a hint is there as its SHA-256, a token as its own, and a code not at all. AgentID
// is the agent as its operators see it: the sandbox's agent, or client/element_name.

// SafetyOperation is an answer of the loop that is no step: an execution begun or ended, a refusal, a tool call that asked for
// its step.
type SafetyOperation struct {
	AgentID   string
	Code      string // code: ok, or the error's in lower case
	Endpoint  string // optional code: create, read, execute
	Operation string // as claimed
	Subject   string // optional: element_name, or the tool that was called
}

// Kind implements Record.
func (*SafetyOperation) Kind() Kind { return KindSafetyOperation }

func (r *SafetyOperation) fields(c *codec) {
	c.id("agent_id", &r.AgentID)
	c.code("code", &r.Code)
	c.optCode("endpoint", &r.Endpoint)
	c.id("operation", &r.Operation)
	c.optID("subject", &r.Subject)
}

// SafetyStep is one evaluated step. In a mode that doesn't enforce, the verdict is what would have been.
type SafetyStep struct {
	AgentID     string
	ChallengeID string   // optional: what waits for an operator because of it
	Element     string   // optional
	Factors     []string // optional: what added to the score, as name:points
	Hint        Hash     // SHA-256
	Mode        string   // code: enforcing, monitoring, logging
	Rule        string   // optional: the pattern that matched
	Score       Number   // null: it didn't come so far
	Stage       string   // code: what decided
	Tier        string   // optional code: advisory, confirm, verify, danger_zone
	Token       string   // optional: SHA-256 of the confirmation that it went by, hexadecimal
	Verdict     string   // code: continue, pause, verify, stop
}

// Kind implements Record.
func (*SafetyStep) Kind() Kind { return KindSafetyStep }

func (r *SafetyStep) fields(c *codec) {
	c.id("agent_id", &r.AgentID)
	c.optID("challenge_id", &r.ChallengeID)
	c.optID("element", &r.Element)
	c.optIDs("factors", &r.Factors)
	c.digest("hint", &r.Hint)
	c.code("mode", &r.Mode)
	c.optID("rule", &r.Rule)
	c.number("score", &r.Score)
	c.code("stage", &r.Stage)
	c.optCode("tier", &r.Tier)
	c.optID("token", &r.Token)
	c.code("verdict", &r.Verdict)
}

// SafetyChallenge is what happens to a challenge (S-10, S-11).
type SafetyChallenge struct {
	AgentID     string // whose challenge it is, or who tried
	By          string // optional: the operator, or the agent that tried
	ChallengeID string
	Event       string    // code: issued, shown, verified, wrong_code, locked_out, refused
	ExpiresAt   time.Time // optional
	Failures    int64     // of who tried, in the last minute
	LockedUntil time.Time // optional
	Type        string    // optional code: verify, danger_zone; none for a challenge that isn't there
}

// Kind implements Record.
func (*SafetyChallenge) Kind() Kind { return KindSafetyChallenge }

func (r *SafetyChallenge) fields(c *codec) {
	c.id("agent_id", &r.AgentID)
	c.optID("by", &r.By)
	c.id("challenge_id", &r.ChallengeID)
	c.code("event", &r.Event)
	c.optInstant("expires_at", &r.ExpiresAt)
	c.count("failures", &r.Failures)
	c.optInstant("locked_until", &r.LockedUntil)
	c.optCode("type", &r.Type)
}

// SafetyConfirmation is what happens to a confirmation token (S-12).
type SafetyConfirmation struct {
	AgentID   string
	Bound     string    // optional: SHA-256 of what it confirms, hexadecimal; none for a token that isn't there
	By        string    // optional: who confirmed, or tried
	Event     string    // code: requested, confirmed, used, refused
	ExpiresAt time.Time // optional
	Operation string
	Reason    string // optional code: why it was refused
	Token     Hash   // SHA-256
}

// Kind implements Record.
func (*SafetyConfirmation) Kind() Kind { return KindSafetyConfirmation }

func (r *SafetyConfirmation) fields(c *codec) {
	c.id("agent_id", &r.AgentID)
	c.optID("bound", &r.Bound)
	c.optID("by", &r.By)
	c.code("event", &r.Event)
	c.optInstant("expires_at", &r.ExpiresAt)
	c.id("operation", &r.Operation)
	c.optCode("reason", &r.Reason)
	c.digest("token", &r.Token)
}

// SafetyBlock is an agent that is stopped, or released (S-8, S-15).
type SafetyBlock struct {
	AgentID     string
	By          string // optional: who released it
	ChallengeID string // optional
	Event       string // code: blocked, unsaved, released, release_failed, stop_failed, resume_failed
	Note        string // optional: the operator's reason
	Reason      string // code: deny_pattern, danger_zone, verified, operator, enforcer, store
}

// Kind implements Record.
func (*SafetyBlock) Kind() Kind { return KindSafetyBlock }

func (r *SafetyBlock) fields(c *codec) {
	c.id("agent_id", &r.AgentID)
	c.optID("by", &r.By)
	c.optID("challenge_id", &r.ChallengeID)
	c.code("event", &r.Event)
	c.optID("note", &r.Note)
	c.code("reason", &r.Reason)
}
