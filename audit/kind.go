// SPDX-License-Identifier: Apache-2.0

package audit

import "reflect"

// Kind says what a record is about.
type Kind uint8

// Appended, never reordered: see the rule above Record. The zero value is invalid.
const (
	Invalid Kind = iota
	KindActionAttempt
	KindRingCheck
	KindRateLimit
	KindElevation
	KindElevationEnd
	KindKillOrder
	KindKill
	KindSagaStep
	KindSaga
	KindQuarantine
	KindRelease
	KindScore
	KindBreach
	KindSession
	KindConflict
	KindSandboxStart
	KindSandboxEnd
	KindRefusal
	KindOperator
	KindKey
	KindRepair
	KindRotation
	KindToolCall
	KindEgress
	KindApprovalRequest
	KindApprovalDecision
	KindStandingGrant
	KindQuotaWarning
	KindAgentSettings
	KindSafetyOperation
	KindSafetyStep
	KindSafetyChallenge
	KindSafetyConfirmation
	KindSafetyBlock
	KindCheckpointLost
	numKinds
)

// kinds has what there is to say about each. The name stands in the log.
var kinds = [numKinds]struct {
	name   string
	record Record
	why    string
}{
	KindActionAttempt:      {"action_attempt", &ActionAttempt{}, "what an agent asked for, before anything was decided (H-27)"},
	KindRingCheck:          {"ring_check", &RingCheck{}, "the enforcer's answer (H-9, H-27)"},
	KindRateLimit:          {"rate_limit", &RateLimit{}, "a question to a token bucket (H-16, H-27)"},
	KindElevation:          {"elevation", &Elevation{}, "a request for a higher ring, and the answer (H-13, H-27)"},
	KindElevationEnd:       {"elevation_end", &ElevationEnd{}, "from here on the ring is no longer on loan (H-14, H-15)"},
	KindKillOrder:          {"kill_order", &KillOrder{}, "a kill was decided, before anything dies (H-28)"},
	KindKill:               {"kill", &Kill{}, "what a kill did (H-22, H-27)"},
	KindSagaStep:           {"saga_step", &SagaStep{}, "how far a step came: what has to be undone (H-18)"},
	KindSaga:               {"saga", &Saga{}, "how far a saga came (H-18, H-19)"},
	KindQuarantine:         {"quarantine", &Quarantine{}, "an agent has ring 3 until a witness lets it out (H-31)"},
	KindRelease:            {"release", &Release{}, "somebody answers for an agent being let out (H-12, H-31)"},
	KindScore:              {"score", &Score{}, "what an agent may have follows from it (H-2, H-4)"},
	KindBreach:             {"breach", &Breach{}, "an agent tried what it may not, too often (H-24)"},
	KindSession:            {"session", &Session{}, "who was in a session, and when (H-29)"},
	KindConflict:           {"conflict", &Conflict{}, "of two writes one is lost: which (H-32)"},
	KindSandboxStart:       {"sandbox_start", &SandboxStart{}, "a run, by the digest of its plan, before there is a sandbox (H-27)"},
	KindSandboxEnd:         {"sandbox_end", &SandboxEnd{}, "how it ended; a start without one was cut off (H-27)"},
	KindRefusal:            {"refusal", &Refusal{}, "a system call that was refused"},
	KindOperator:           {"operator", &Operator{}, "an attestation that was presented, good or not (H-12)"},
	KindKey:                {"key", &Key{}, "whose signatures count from here on"},
	KindRepair:             {"repair", &Repair{}, "bytes that are no entry are accounted for, and stay"},
	KindRotation:           {"rotation", &Rotation{}, "the chain goes on in the next file"},
	KindToolCall:           {"tool_call", &ToolCall{}, "what was asked of tools and models, and what it cost (M-9, M-18, M-19)"},
	KindEgress:             {"egress", &Egress{}, "what was connected to, or refused (M-8, M-18)"},
	KindApprovalRequest:    {"approval_request", &ApprovalRequest{}, "a call waits for an operator (M-11)"},
	KindApprovalDecision:   {"approval_decision", &ApprovalDecision{}, "what the operator said, before it takes effect (M-11)"},
	KindStandingGrant:      {"standing_grant", &StandingGrant{}, "an approval given beforehand, or taken back (M-11)"},
	KindQuotaWarning:       {"quota_warning", &QuotaWarning{}, "80 % of a quota are used (M-19)"},
	KindAgentSettings:      {"agent_settings", &AgentSettings{}, "what an operator set for an agent (M-15, M-19)"},
	KindSafetyOperation:    {"safety_operation", &SafetyOperation{}, "what the safety loop was asked, where it is no step"},
	KindSafetyStep:         {"safety_step", &SafetyStep{}, "what an agent said it would do, and the verdict (S-5, S-7)"},
	KindSafetyChallenge:    {"safety_challenge", &SafetyChallenge{}, "what became of a code given out of band (S-10, S-11)"},
	KindSafetyConfirmation: {"safety_confirmation", &SafetyConfirmation{}, "what became of a confirmation (S-12)"},
	KindSafetyBlock:        {"safety_block", &SafetyBlock{}, "an agent is stopped, or released (S-8, S-15)"},
	KindCheckpointLost:     {"checkpoint_lost", &CheckpointLost{}, "what vouched for the chain was gone or contradicted it"},
}

// Kinds lists every valid kind in its order.
func Kinds() []Kind {
	all := make([]Kind, 0, numKinds-1)
	for k := Invalid + 1; k < numKinds; k++ {
		all = append(all, k)
	}
	return all
}

// String returns the name that stands in the log; "invalid" for a number that is no kind.
func (k Kind) String() string {
	if k == Invalid || k >= numKinds {
		return "invalid"
	}
	return kinds[k].name
}

// MarshalText writes the name.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// ParseKind returns Invalid and false for a name that is no kind.
func ParseKind(name string) (Kind, bool) {
	for k := Invalid + 1; k < numKinds; k++ {
		if kinds[k].name == name {
			return k, true
		}
	}
	return Invalid, false
}

func newRecord(k Kind) Record {
	if k == Invalid || k >= numKinds {
		return nil
	}
	r, _ := reflect.New(reflect.TypeOf(kinds[k].record).Elem()).Interface().(Record)
	return r
}

// Each record tells its kind.

func (*ActionAttempt) Kind() Kind      { return KindActionAttempt }
func (*RingCheck) Kind() Kind          { return KindRingCheck }
func (*RateLimit) Kind() Kind          { return KindRateLimit }
func (*Elevation) Kind() Kind          { return KindElevation }
func (*ElevationEnd) Kind() Kind       { return KindElevationEnd }
func (*KillOrder) Kind() Kind          { return KindKillOrder }
func (*Kill) Kind() Kind               { return KindKill }
func (*SagaStep) Kind() Kind           { return KindSagaStep }
func (*Saga) Kind() Kind               { return KindSaga }
func (*Quarantine) Kind() Kind         { return KindQuarantine }
func (*Release) Kind() Kind            { return KindRelease }
func (*Score) Kind() Kind              { return KindScore }
func (*Breach) Kind() Kind             { return KindBreach }
func (*Session) Kind() Kind            { return KindSession }
func (*Conflict) Kind() Kind           { return KindConflict }
func (*SandboxStart) Kind() Kind       { return KindSandboxStart }
func (*SandboxEnd) Kind() Kind         { return KindSandboxEnd }
func (*Refusal) Kind() Kind            { return KindRefusal }
func (*Operator) Kind() Kind           { return KindOperator }
func (*Key) Kind() Kind                { return KindKey }
func (*Repair) Kind() Kind             { return KindRepair }
func (*Rotation) Kind() Kind           { return KindRotation }
func (*ToolCall) Kind() Kind           { return KindToolCall }
func (*Egress) Kind() Kind             { return KindEgress }
func (*ApprovalRequest) Kind() Kind    { return KindApprovalRequest }
func (*ApprovalDecision) Kind() Kind   { return KindApprovalDecision }
func (*StandingGrant) Kind() Kind      { return KindStandingGrant }
func (*QuotaWarning) Kind() Kind       { return KindQuotaWarning }
func (*AgentSettings) Kind() Kind      { return KindAgentSettings }
func (*SafetyOperation) Kind() Kind    { return KindSafetyOperation }
func (*SafetyStep) Kind() Kind         { return KindSafetyStep }
func (*SafetyChallenge) Kind() Kind    { return KindSafetyChallenge }
func (*SafetyConfirmation) Kind() Kind { return KindSafetyConfirmation }
func (*SafetyBlock) Kind() Kind        { return KindSafetyBlock }
func (*CheckpointLost) Kind() Kind     { return KindCheckpointLost }
