// SPDX-License-Identifier: Apache-2.0

package rings

// Why something was refused. Those of elevation are the words of H-13; CodeQuarantined is declared with Quarantine.
const (
	CodeInvalidAction     Code = "invalid_action"
	CodeInvalidIdentifier Code = "invalid_identifier"
	CodeInvalidRing       Code = "invalid_ring"
	CodeInvalidScore      Code = "invalid_score"
	CodeInvalidTTL        Code = "invalid_ttl"

	CodeInsufficientRing  Code = "insufficient_ring"
	CodeResourceForbidden Code = "resource_forbidden"
	CodeUnknownResource   Code = "unknown_resource"

	CodeInvalidTarget      Code = "invalid_target"
	CodeRing0Forbidden     Code = "ring_0_forbidden"
	CodeDuplicateElevation Code = "duplicate_elevation"
	CodeInsufficientTrust  Code = "insufficient_trust"
	CodeNoConsensus        Code = "no_consensus"
	CodeNotFound           Code = "not_found"
	CodeExpired            Code = "expired"
)
