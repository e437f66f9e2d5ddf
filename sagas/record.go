// SPDX-License-Identifier: Apache-2.0

package sagas

import (
	"cmp"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Record is a saga as the journal has it. Fields are only ever added; an older agentrun refuses records with fields that
// it doesn't know.
type Record struct {
	ID        string       `json:"id"`
	Name      string       `json:"name,omitempty"`
	Agent     string       `json:"agent,omitempty"`
	Session   string       `json:"session,omitempty"`
	State     State        `json:"state"`
	Steps     []StepRecord `json:"steps"`
	CreatedAt time.Time    `json:"created_at"`
	UpdatedAt time.Time    `json:"updated_at"`
	// Unresolved are the steps for whose sake the saga is escalated.
	Unresolved []string `json:"unresolved,omitempty"`
	// HandoffAgent is the substitute that a kill named (H-21).
	HandoffAgent string `json:"handoff_agent_id,omitempty"`
	// Unaudited happened, but the audit refused to take it. Resume offers it again before anything else.
	Unaudited []Transition `json:"unaudited,omitempty"`
}

// Doer is whose work the saga is by now: that of the substitute, where a kill has named one.
func (r *Record) Doer() string { return cmp.Or(r.HandoffAgent, r.Agent) }

// StepRecord is a step as the journal has it.
type StepRecord struct {
	ID       string    `json:"id"`
	State    StepState `json:"state"`
	Attempts int       `json:"attempt_count"`
	// Running and Undoing are set before the call and cleared by its outcome: whoever finds them set knows that
	// nobody knows.
	Running    bool      `json:"running,omitempty"`
	Undoing    bool      `json:"undoing,omitempty"`
	Unknown    bool      `json:"unknown,omitempty"` // an attempt may have happened though the step counts as failed
	Idempotent bool      `json:"idempotent,omitempty"`
	Error      string    `json:"error,omitempty"`      // of the last attempt
	UndoError  string    `json:"undo_error,omitempty"` // why it could not be undone
	StartedAt  time.Time `json:"started_at,omitzero"`  // of the last attempt
	EndedAt    time.Time `json:"ended_at,omitzero"`
}

// inFlight tells whether a kill found the step under way (H-21). After a failure no step is.
func (k *StepRecord) inFlight() bool { return k.State == StepExecuting || k.State == StepHandedOff }

// Transition is what the audit is told, in the order in which it happens. Executing comes once for each attempt; an undo
// begins with Committed (or, in a kill, Executing) and Undo set.
type Transition struct {
	Agent        string    `json:"agent_id,omitempty"` // whose work the saga is by now
	SagaID       string    `json:"saga_id"`
	StepID       string    `json:"step_id"`
	State        StepState `json:"state"`
	AttemptCount int       `json:"attempt_count"`
	Compensated  bool      `json:"compensated"`
	Undo         bool      `json:"undo,omitempty"`
	Error        string    `json:"error,omitempty"`
	At           time.Time `json:"at"`
}

func (r *Record) clone() Record {
	c := *r
	c.Steps = slices.Clone(r.Steps)
	c.Unresolved = slices.Clone(r.Unresolved)
	c.Unaudited = slices.Clone(r.Unaudited)
	return c
}

// errorText is what of an error is kept: a step's words end up on terminals and in the audit.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	s := strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case unicode.IsControl(r) || r == unicode.ReplacementChar || unicode.Is(unicode.Cf, r):
			return -1
		}
		return r
	}, err.Error())
	if len(s) > maxErrorBytes {
		s = strings.ToValidUTF8(s[:maxErrorBytes], "") + "…"
	}
	return s
}
