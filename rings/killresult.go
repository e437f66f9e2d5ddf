// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"encoding/json"
	"slices"
	"time"
)

// KillStage is where in a kill something went wrong.
type KillStage string

const (
	StageReason       KillStage = "reason" // recorded as manual
	StageFreeze       KillStage = "freeze" // processes were killed first instead
	StageIntent       KillStage = "intent"
	StageHandler      KillStage = "handler"
	StageCompensation KillStage = "compensation"
	StageSteps        KillStage = "steps"
	StageProcesses    KillStage = "processes" // see KillResult.ProcessesDead
	StageAudit        KillStage = "audit"
)

// KillError is one thing that went wrong in a kill.
type KillError struct {
	Stage   KillStage `json:"stage"`
	Name    string    `json:"name,omitempty"` // of the handler or compensation
	Message string    `json:"message"`
}

// KillResult is what a kill did: H-22's fields and what H-21 asks to be told.
type KillResult struct {
	AgentID               string
	Action                *string
	Reason                KillReason
	KilledAt              time.Time // when the kill began
	CallbacksExecuted     int       // handlers that were started, also those that failed or hung
	CompensationsExecuted int       // the same of compensations
	HandoffAgentID        *string   // who took over; nil if nobody
	ProcessesKilled       int
	ProcessesDead         bool          // the last word of the Processes hook was that none is left
	Duration              time.Duration // until the processes were dead
	StepsOutcome          StepOutcome   // what became of in-flight saga steps
	Steps                 []string      // their ids
	Errors                []KillError
}

// MarshalJSON writes H-22's names: killed_at in RFC 3339 and UTC, duration in seconds, action and handoff_agent_id null
// where there is none, lists never null.
func (r KillResult) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		AgentID               string      `json:"agent_id"`
		Action                *string     `json:"action"`
		Reason                KillReason  `json:"reason"`
		KilledAt              string      `json:"killed_at"`
		CallbacksExecuted     int         `json:"callbacks_executed"`
		CompensationsExecuted int         `json:"compensations_executed"`
		HandoffAgentID        *string     `json:"handoff_agent_id"`
		ProcessesKilled       int         `json:"processes_killed"`
		ProcessesDead         bool        `json:"processes_dead"`
		Duration              float64     `json:"duration"`
		StepsOutcome          StepOutcome `json:"steps_outcome"`
		Steps                 []string    `json:"steps"`
		Errors                []KillError `json:"errors"`
	}{
		r.AgentID, r.Action, r.Reason, r.KilledAt.UTC().Format(time.RFC3339Nano), r.CallbacksExecuted, r.CompensationsExecuted,
		r.HandoffAgentID, r.ProcessesKilled, r.ProcessesDead, r.Duration.Seconds(), r.StepsOutcome,
		append([]string{}, r.Steps...), append([]KillError{}, r.Errors...),
	})
}

// clone returns a copy that shares nothing with r, for those who may change theirs.
func (r KillResult) clone() KillResult {
	r.Action, r.HandoffAgentID = clonePointer(r.Action), clonePointer(r.HandoffAgentID)
	r.Steps, r.Errors = slices.Clone(r.Steps), slices.Clone(r.Errors)
	return r
}

func clonePointer[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}

// killRecord is a result in the history.
type killRecord struct {
	res  KillResult
	busy bool // somebody offers it to the audit
	kept bool // the audit has it
}
