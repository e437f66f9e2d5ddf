// SPDX-License-Identifier: Apache-2.0

package safetyloop

import (
	"context"
	"encoding/json"
	"time"

	"agentrun/audit"
	"agentrun/rings"
	"agentrun/store"
	"agentrun/telemetry"
)

// Caller is who asks. It comes from the connection and is never read from a parameter (S-12).
type Caller struct {
	// Principal names the connection's owner: the sandbox's agent, or in the dongle the client's session or credential. Blocks,
	// lockouts and confirmations compare it. Empty refuses.
	Principal string
	// Bound is set where the principal is one agent (a sandbox): element_name then only labels the execution. Where it isn't, a
	// client may drive several agents by their element_name, and all of them are the same principal to confirm_operation.
	Bound bool
	// Operator is a caller on the control channel or with an operator's credential.
	Operator bool
	// Ring of the agent; zero where there is none (the dongle).
	Ring rings.Ring
	// Session of the audit chain; empty: the node's.
	Session string
}

// Call is one request.
type Call struct {
	Caller    Caller
	Endpoint  Endpoint
	Operation string
	Params    telemetry.Plaintext[json.RawMessage] // an object; empty and null count as {}
}

// Directive is the AutonomyDirective (S-4). Continue and factors are always there.
type Directive struct {
	Continue       bool           `json:"continue"`
	Factors        []string       `json:"factors"`
	Stopped        bool           `json:"stopped,omitempty"`
	Reason         string         `json:"reason,omitempty"`
	StepsRemaining *int           `json:"stepsRemaining,omitempty"`
	NextStepRisk   string         `json:"nextStepRisk,omitempty"` // advisory, confirm, verify, danger_zone
	Notifications  []Notification `json:"notifications,omitempty"`
}

// Notification is pulled with the next step (S-13).
type Notification struct {
	Type      string         `json:"type"` // permission_pending, autonomy_pause, danger_zone
	Message   string         `json:"message"`
	Metadata  map[string]any `json:"metadata"`
	Timestamp time.Time      `json:"timestamp"`
}

// Recorder keeps audit records; an error refuses what was to be done.
type Recorder interface {
	Record(ctx context.Context, session string, r audit.Record) error
}

// Channel shows a code to an operator, and nobody else (S-10). The code is in Challenge.Code. An error leaves the challenge to
// the other channels; it never holds the code.
type Channel interface {
	Show(ctx context.Context, c Challenge) error
}

// Enforcer acts on a sandboxed agent (S-15). The dongle has none.
type Enforcer interface {
	// Stop freezes the agent's processes and shuts its tool proxy. It has ten seconds, and is called again with the agent's next call
	// where it fails: stopping what stands still already is no error. It may call Blocked and Intent, and not Do.
	Stop(ctx context.Context, agent, reason string) error
	// Resume takes that back after a verification.
	Resume(ctx context.Context, agent string) error
}

// Challenge is one out-of-band verification, as operators see it.
type Challenge struct {
	ID      string    `json:"id"` // UUIDv4
	Agent   string    `json:"agent"`
	Kind    string    `json:"kind"` // verify, danger_zone
	Hint    string    `json:"hint"`
	Reason  string    `json:"reason"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"`
	// Code is only filled by Loop.Show and for a Channel. It is in no String, log, error, metric, trace, or audit (M-18).
	Code telemetry.Plaintext[string] `json:"-"`
}

// Pending is an operation or a step that waits for confirm_operation (S-12).
type Pending struct {
	Token     string    `json:"token"`
	Principal string    `json:"principal"`
	Agent     string    `json:"agent,omitempty"`
	Operation string    `json:"operation"`
	Summary   string    `json:"summary"` // the hint, or the parameters
	Reason    string    `json:"reason"`  // why it waits: the stage's word, and what was found in the hint
	Created   time.Time `json:"created"`
	Expires   time.Time `json:"expires"`
}

// Block is an agent that was stopped (S-8).
type Block struct {
	Agent     string    `json:"agent"`
	Reason    string    `json:"reason"`
	Since     time.Time `json:"since"`
	Challenge string    `json:"challenge,omitempty"`
}

// Own settings of an agent.
type Own struct {
	Judge     Judge
	Tolerance Tolerance
	MaxSteps  int
}

// Settings of a loop. Zero values refuse: New names the field.
type Settings struct {
	Mode      Mode
	Tolerance Tolerance
	MaxSteps  int // maxAutonomousSteps, 1 to 10000
	// Confirm says who answers the default permissions of S-2: an operator, the MCP client's own dialog, or the policy.
	Confirm Confirm
	// OnlyOperators lets confirm_operation take the word of operators alone. Otherwise any other principal's counts (S-12): where
	// principals are agents, two of them can then agree.
	OnlyOperators bool
	Store         store.Store
	Record        Recorder
	Judge         Judge
	// For gives what is an agent's own, asked at each of its steps, so that a policy that was read anew holds from the next step on.
	// It may be nil, and zero fields of what it gives are the loop's own settings. element is the client's word: in the dongle,
	// where Caller.Bound is false, whatever depends on it must only ever tighten.
	For func(c Caller, element string) Own
	// Channels get each new code. At least one way to an operator must exist; the control socket is one.
	Channels []Channel
	Enforcer Enforcer // may be nil
	Now      func() time.Time
	Observe  func(stage, verdict string) // metrics; may be nil
}
