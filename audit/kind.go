// SPDX-License-Identifier: Apache-2.0

package audit

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

// Kinds lists every valid kind in its order.
func Kinds() []Kind {
	all := make([]Kind, 0, numKinds-1)
	for k := Invalid + 1; k < numKinds; k++ {
		all = append(all, k)
	}
	return all
}

// String gives the name that stands in the log; "invalid" for a number that is no kind.
func (k Kind) String() string {
	switch k {
	case KindActionAttempt:
		return "action_attempt"
	case KindRingCheck:
		return "ring_check"
	case KindRateLimit:
		return "rate_limit"
	case KindElevation:
		return "elevation"
	case KindElevationEnd:
		return "elevation_end"
	case KindKillOrder:
		return "kill_order"
	case KindKill:
		return "kill"
	case KindSagaStep:
		return "saga_step"
	case KindSaga:
		return "saga"
	case KindQuarantine:
		return "quarantine"
	case KindRelease:
		return "release"
	case KindScore:
		return "score"
	case KindBreach:
		return "breach"
	case KindSession:
		return "session"
	case KindConflict:
		return "conflict"
	case KindSandboxStart:
		return "sandbox_start"
	case KindSandboxEnd:
		return "sandbox_end"
	case KindRefusal:
		return "refusal"
	case KindOperator:
		return "operator"
	case KindKey:
		return "key"
	case KindRepair:
		return "repair"
	case KindRotation:
		return "rotation"
	case KindToolCall:
		return "tool_call"
	case KindEgress:
		return "egress"
	case KindApprovalRequest:
		return "approval_request"
	case KindApprovalDecision:
		return "approval_decision"
	case KindStandingGrant:
		return "standing_grant"
	case KindQuotaWarning:
		return "quota_warning"
	case KindAgentSettings:
		return "agent_settings"
	case KindSafetyOperation:
		return "safety_operation"
	case KindSafetyStep:
		return "safety_step"
	case KindSafetyChallenge:
		return "safety_challenge"
	case KindSafetyConfirmation:
		return "safety_confirmation"
	case KindSafetyBlock:
		return "safety_block"
	case KindCheckpointLost:
		return "checkpoint_lost"
	}
	return "invalid"
}

// MarshalText writes the name.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// ParseKind gives Invalid and false for a name that is no kind.
func ParseKind(name string) (Kind, bool) {
	for k := Invalid + 1; k < numKinds; k++ {
		if k.String() == name {
			return k, true
		}
	}
	return Invalid, false
}

func newRecord(k Kind) Record {
	switch k {
	case KindActionAttempt:
		return &ActionAttempt{}
	case KindRingCheck:
		return &RingCheck{}
	case KindRateLimit:
		return &RateLimit{}
	case KindElevation:
		return &Elevation{}
	case KindElevationEnd:
		return &ElevationEnd{}
	case KindKillOrder:
		return &KillOrder{}
	case KindKill:
		return &Kill{}
	case KindSagaStep:
		return &SagaStep{}
	case KindSaga:
		return &Saga{}
	case KindQuarantine:
		return &Quarantine{}
	case KindRelease:
		return &Release{}
	case KindScore:
		return &Score{}
	case KindBreach:
		return &Breach{}
	case KindSession:
		return &Session{}
	case KindConflict:
		return &Conflict{}
	case KindSandboxStart:
		return &SandboxStart{}
	case KindSandboxEnd:
		return &SandboxEnd{}
	case KindRefusal:
		return &Refusal{}
	case KindOperator:
		return &Operator{}
	case KindKey:
		return &Key{}
	case KindRepair:
		return &Repair{}
	case KindRotation:
		return &Rotation{}
	case KindToolCall:
		return &ToolCall{}
	case KindEgress:
		return &Egress{}
	case KindApprovalRequest:
		return &ApprovalRequest{}
	case KindApprovalDecision:
		return &ApprovalDecision{}
	case KindStandingGrant:
		return &StandingGrant{}
	case KindQuotaWarning:
		return &QuotaWarning{}
	case KindAgentSettings:
		return &AgentSettings{}
	case KindSafetyOperation:
		return &SafetyOperation{}
	case KindSafetyStep:
		return &SafetyStep{}
	case KindSafetyChallenge:
		return &SafetyChallenge{}
	case KindSafetyConfirmation:
		return &SafetyConfirmation{}
	case KindSafetyBlock:
		return &SafetyBlock{}
	case KindCheckpointLost:
		return &CheckpointLost{}
	}
	return nil
}
