// SPDX-License-Identifier: Apache-2.0

package audit

import "time"

// The records of the execution safety loop: what an agent said it would do, what it was told, and who answered for it (S-5 to
// S-15). The rule above Record holds for them: a hint is there as its SHA-256, a token as its own, and a code not at all. AgentID
// is the agent as its operators see it: the sandbox's agent, or client/element_name.

// SafetyOperation is an answer of the loop that is no step: an execution begun or ended, a refusal, a tool call that asked for
// its step.
type SafetyOperation struct {
	AgentID   string `log:"agent_id id"`
	Code      string `log:"code code"`        // ok, or the error's in lower case
	Endpoint  string `log:"endpoint optCode"` // create, read, execute
	Operation string `log:"operation id"`     // as claimed
	Subject   string `log:"subject optID"`    // element_name, or the tool that was called
}

// SafetyStep is one evaluated step. In a mode that doesn't enforce, the verdict is what would have been.
type SafetyStep struct {
	AgentID     string   `log:"agent_id id"`
	ChallengeID string   `log:"challenge_id optID"` // what waits for an operator because of it
	Element     string   `log:"element optID"`
	Factors     []string `log:"factors optIDs"` // what added to the score, as name:points
	Hint        Hash     `log:"hint digest"`    // SHA-256
	Mode        string   `log:"mode code"`      // enforcing, monitoring, logging
	Rule        string   `log:"rule optID"`     // the pattern that matched
	Score       Number   `log:"score number"`   // null: it didn't come so far
	Stage       string   `log:"stage code"`     // what decided
	Tier        string   `log:"tier optCode"`   // advisory, confirm, verify, danger_zone
	Token       string   `log:"token optID"`    // SHA-256 of the confirmation that it went by, hexadecimal
	Verdict     string   `log:"verdict code"`   // continue, pause, verify, stop
}

// SafetyChallenge is what happens to a challenge (S-10, S-11).
type SafetyChallenge struct {
	AgentID     string    `log:"agent_id id"` // whose challenge it is, or who tried
	By          string    `log:"by optID"`    // the operator, or the agent that tried
	ChallengeID string    `log:"challenge_id id"`
	Event       string    `log:"event code"` // issued, shown, verified, wrong_code, locked_out, refused
	ExpiresAt   time.Time `log:"expires_at optInstant"`
	Failures    int64     `log:"failures count"` // of who tried, in the last minute
	LockedUntil time.Time `log:"locked_until optInstant"`
	Type        string    `log:"type optCode"` // verify, danger_zone; none for a challenge that isn't there
}

// SafetyConfirmation is what happens to a confirmation token (S-12).
type SafetyConfirmation struct {
	AgentID   string    `log:"agent_id id"`
	Bound     string    `log:"bound optID"` // SHA-256 of what it confirms, hexadecimal; none for a token that isn't there
	By        string    `log:"by optID"`    // who confirmed, or tried
	Event     string    `log:"event code"`  // requested, confirmed, used, refused
	ExpiresAt time.Time `log:"expires_at optInstant"`
	Operation string    `log:"operation id"`
	Reason    string    `log:"reason optCode"` // why it was refused
	Token     Hash      `log:"token digest"`   // SHA-256
}

// SafetyBlock is an agent that is stopped, or released (S-8, S-15).
type SafetyBlock struct {
	AgentID     string `log:"agent_id id"`
	By          string `log:"by optID"` // who released it
	ChallengeID string `log:"challenge_id optID"`
	Event       string `log:"event code"`  // blocked, unsaved, released, release_failed, stop_failed, resume_failed
	Note        string `log:"note optID"`  // the operator's reason
	Reason      string `log:"reason code"` // deny_pattern, danger_zone, verified, operator, enforcer, store
}
