// SPDX-License-Identifier: Apache-2.0

package gate_test

import (
	"testing"

	"agentrun/pdp"
	"agentrun/rings"
	"agentrun/toolproxy/gate"
)

func TestM13StatusOfEveryCode(t *testing.T) {
	for code, want := range map[rings.Code]int{
		gate.CodeToolUnknown: 404, gate.CodeToolRestricted: 403, gate.CodeCapabilityMissing: 403, gate.CodeToolTimeout: 504, gate.CodeToolFailed: 502,
		gate.CodeBadArguments: 400, gate.CodeBadRequest: 400, gate.CodeRouteForbidden: 403, gate.CodeNotFound: 404, gate.CodeTooLarge: 413,
		gate.CodeRateLimited: 429, gate.CodeConcurrency: 429, gate.CodeSteps: 402, gate.CodeQuota: 402, gate.CodeCost: 402, gate.CodeApproval: 403,
		gate.CodeQuarantined: 403, gate.CodeRing: 403, gate.CodeConfidential: 403, gate.CodeSuspicious: 403, gate.CodeUnavailable: 503, gate.CodeCanceled: 403,
		gate.CodeToolUnavailable: 503, rings.CodeDuplicateElevation: 409, rings.CodeInvalidTTL: 400,
		rings.CodeInvalidTarget: 403, rings.CodeRing0Forbidden: 403, rings.CodeInsufficientTrust: 403, rings.CodeNoConsensus: 403,
		pdp.CodeACLBlock: 403, pdp.CodeRBACDenied: 403, "a code of tomorrow": 403, "": 403,
	} {
		if got := gate.Status(code); got != want {
			t.Errorf("%s: got %d, want %d", code, got, want)
		}
	}
}
