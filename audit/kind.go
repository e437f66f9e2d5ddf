// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"reflect"
	"sync"
)

// Kind says what a record is about: its name, as it stands in the log. The zero value is no kind.
type Kind string

// Kinds in the order in which they came: appended, never taken out, see the rule above Record.
var kinds = []struct {
	record Record
	why    string
}{
	{&ActionAttempt{}, "a call may begin, and nothing is done for it yet (H-27, H-28)"},
	{&RingCheck{}, "the enforcer's answer, to a run or to a call that it refused (H-9, H-27)"},
	{&RateLimit{}, "a call that its token bucket refused (H-16, H-27)"},
	{&Elevation{}, "a request for a higher ring, and the answer (H-13, H-27)"},
	{&ElevationEnd{}, "from here on the ring is no longer on loan (H-14, H-15)"},
	{&KillOrder{}, "a kill was decided, before anything dies (H-28)"},
	{&Kill{}, "what a kill did (H-22, H-27)"},
	{&SagaStep{}, "how far a step came: what has to be undone (H-18)"},
	{&Saga{}, "how far a saga came (H-18, H-19)"},
	{&Quarantine{}, "an agent has ring 3 until a witness lets it out (H-31)"},
	{&Release{}, "somebody answers for an agent being let out (H-12, H-31)"},
	{&Score{}, "what an agent may have follows from it (H-2, H-4)"},
	{&Breach{}, "an agent tried what it may not, too often (H-24)"},
	{&Session{}, "who was in a session, and when (H-29)"},
	{&Conflict{}, "of two writes one is lost: which (H-32)"},
	{&SandboxStart{}, "a run, by the digest of its plan, before there is a sandbox (H-27)"},
	{&SandboxEnd{}, "how it ended; a start without one was cut off (H-27)"},
	{&Refusal{}, "a system call that was refused"},
	{&Operator{}, "an attestation that was presented, good or not (H-12)"},
	{&Key{}, "whose signatures count from here on"},
	{&Repair{}, "bytes that are no entry are accounted for, and stay"},
	{&Rotation{}, "the chain goes on in the next file"},
	{&ToolCall{}, "what was asked of tools and models, and what it cost (M-9, M-18, M-19)"},
	{&Egress{}, "what was connected to, or refused (M-8, M-18)"},
	{&ApprovalRequest{}, "a call waits for an operator (M-11)"},
	{&ApprovalDecision{}, "what the operator said, before it takes effect (M-11)"},
	{&StandingGrant{}, "an approval given beforehand, or taken back (M-11)"},
	{&QuotaWarning{}, "80 % of a quota are used (M-19)"},
	{&AgentSettings{}, "what an operator set for an agent (M-15, M-19)"},
	{&SafetyOperation{}, "what the safety loop was asked, where it is no step"},
	{&SafetyStep{}, "what an agent said it would do, and the verdict (S-5, S-7)"},
	{&SafetyChallenge{}, "what became of a code given out of band (S-10, S-11)"},
	{&SafetyConfirmation{}, "what became of a confirmation (S-12)"},
	{&SafetyBlock{}, "an agent is stopped, or released (S-8, S-15)"},
	{&CheckpointLost{}, "what vouched for the chain was gone or contradicted it"},
	{&AgentKey{}, "what an agent may be started with, and which runs were (M-9, M-21)"},
	{&Undo{}, "a tool's call is taken back, and how that ended (H-7)"},
	{&LimitChange{}, "an operator gave a live run more, or took some of it (M-3)"},
	{&FileCopy{}, "what an operator took out of a live run's files, or put there (M-23)"},
	{&SandboxJoin{}, "an operator entered a live run with a further command, before its first instruction (M-23)"},
	{&SandboxJoinEnd{}, "how that command ended (M-23)"},
	{&SandboxLife{}, "a kept sandbox was made, stopped, renamed, started anew or removed (M-23)"},
	{&SandboxPause{}, "a live run was paused or frozen by an operator, or goes on: by whom and why (M-23)"},
	{&PortPublish{}, "an operator lets a server in a live run be reached from the host, or no longer (M-23)"},
	{&Image{}, "a container image was pulled, imported or removed (M-2)"},
	{&SandboxSignal{}, "an operator sent a signal to a live run (M-23)"},
}

// Each record tells its kind.

func (*ActionAttempt) Kind() Kind      { return "action_attempt" }
func (*RingCheck) Kind() Kind          { return "ring_check" }
func (*RateLimit) Kind() Kind          { return "rate_limit" }
func (*Elevation) Kind() Kind          { return "elevation" }
func (*ElevationEnd) Kind() Kind       { return "elevation_end" }
func (*KillOrder) Kind() Kind          { return "kill_order" }
func (*Kill) Kind() Kind               { return "kill" }
func (*SagaStep) Kind() Kind           { return "saga_step" }
func (*Saga) Kind() Kind               { return "saga" }
func (*Quarantine) Kind() Kind         { return "quarantine" }
func (*Release) Kind() Kind            { return "release" }
func (*Score) Kind() Kind              { return "score" }
func (*Breach) Kind() Kind             { return "breach" }
func (*Session) Kind() Kind            { return "session" }
func (*Conflict) Kind() Kind           { return "conflict" }
func (*SandboxStart) Kind() Kind       { return "sandbox_start" }
func (*SandboxEnd) Kind() Kind         { return "sandbox_end" }
func (*Refusal) Kind() Kind            { return "refusal" }
func (*Operator) Kind() Kind           { return "operator" }
func (*Key) Kind() Kind                { return "key" }
func (*Repair) Kind() Kind             { return "repair" }
func (*Rotation) Kind() Kind           { return "rotation" }
func (*ToolCall) Kind() Kind           { return "tool_call" }
func (*Egress) Kind() Kind             { return "egress" }
func (*ApprovalRequest) Kind() Kind    { return "approval_request" }
func (*ApprovalDecision) Kind() Kind   { return "approval_decision" }
func (*StandingGrant) Kind() Kind      { return "standing_grant" }
func (*QuotaWarning) Kind() Kind       { return "quota_warning" }
func (*AgentSettings) Kind() Kind      { return "agent_settings" }
func (*SafetyOperation) Kind() Kind    { return "safety_operation" }
func (*SafetyStep) Kind() Kind         { return "safety_step" }
func (*SafetyChallenge) Kind() Kind    { return "safety_challenge" }
func (*SafetyConfirmation) Kind() Kind { return "safety_confirmation" }
func (*SafetyBlock) Kind() Kind        { return "safety_block" }
func (*CheckpointLost) Kind() Kind     { return "checkpoint_lost" }
func (*AgentKey) Kind() Kind           { return "agent_key" }
func (*Undo) Kind() Kind               { return "undo" }
func (*LimitChange) Kind() Kind        { return "limit_change" }
func (*FileCopy) Kind() Kind           { return "file_copy" }
func (*SandboxLife) Kind() Kind        { return "sandbox_life" }
func (*SandboxJoin) Kind() Kind        { return "sandbox_join" }
func (*SandboxJoinEnd) Kind() Kind     { return "sandbox_join_end" }
func (*SandboxPause) Kind() Kind       { return "sandbox_pause" }
func (*PortPublish) Kind() Kind        { return "port_publish" }
func (*Image) Kind() Kind              { return "image" }
func (*SandboxSignal) Kind() Kind      { return "sandbox_signal" }

// Kinds lists every kind in its order.
func Kinds() []Kind {
	all := make([]Kind, len(kinds))
	for i, k := range kinds {
		all[i] = k.record.Kind()
	}
	return all
}

var recordTypes = sync.OnceValue(func() map[Kind]reflect.Type {
	all := map[Kind]reflect.Type{}
	for _, k := range kinds {
		all[k.record.Kind()] = reflect.TypeOf(k.record).Elem()
	}
	return all
})

// ParseKind returns "" and false for a name that is no kind.
func ParseKind(name string) (Kind, bool) {
	if _, ok := recordTypes()[Kind(name)]; !ok {
		return "", false
	}
	return Kind(name), true
}

// newRecord returns an empty record of a kind, nil for what is none.
func newRecord(k Kind) Record {
	t, ok := recordTypes()[k]
	if !ok {
		return nil
	}
	r, _ := reflect.New(t).Interface().(Record)
	return r
}
