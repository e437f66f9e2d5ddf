// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"agentrun/pdp"
	"agentrun/rings"
	"agentrun/toolproxy/egress"
	"agentrun/toolproxy/gate"
)

// other stands for every label value that isn't on a list.
const other = "other"

// codes are those that an agent can be refused with: the values of the label "code". One that is missing counts as "other".
func codes() []rings.Code {
	return []rings.Code{
		rings.CodeOK,
		gate.CodeToolUnknown, gate.CodeToolRestricted, gate.CodeCapabilityMissing, gate.CodeToolTimeout, gate.CodeToolFailed,
		gate.CodeBadArguments, gate.CodeBadRequest, gate.CodeRouteForbidden, gate.CodeNotFound, gate.CodeTooLarge,
		gate.CodeRateLimited, gate.CodeConcurrency, gate.CodeSteps, gate.CodeQuota, gate.CodeCost, gate.CodeApproval,
		gate.CodeQuarantined, gate.CodeStopped, gate.CodeIntent, gate.CodeRing, gate.CodeConfidential, gate.CodeSuspicious, gate.CodeUnavailable, gate.CodeCanceled,
		pdp.CodeKeyInvalid, pdp.CodeNoRole, pdp.CodeCapabilityMissing, pdp.CodeRBACDenied, pdp.CodeACLBlock,
		pdp.CodeUnavailable, pdp.CodeTimeout, pdp.CodeMalformed, pdp.CodeError,
		egress.CodeEgressDenied, rings.CodeInsufficientRing, rings.CodeRing0Forbidden, rings.CodeRateLimited,
	}
}

// list maps allowed values to themselves and everything else to other.
type list map[string]struct{}

func listOf[S ~string](values []S) list {
	l := list{}
	for _, v := range values {
		l[string(v)] = struct{}{}
	}
	return l
}

func (l list) label(v string) string {
	if _, ok := l[v]; ok {
		return v
	}
	return other
}
