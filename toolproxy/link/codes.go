// SPDX-License-Identifier: Apache-2.0

package link

import "agentrun/rings"

// Codes of denials that supervisor and gateway both say, beside those of rings. They are stable: agents are written against
// them. The budget's are those of package governance, which knows no link.
const (
	CodeRateLimited    rings.Code = "rate_limited"
	CodeConcurrency    rings.Code = "concurrency_limit"
	CodeSteps          rings.Code = "steps_exceeded"
	CodeRing           rings.Code = "ring_denied"
	CodeToolRestricted rings.Code = "tool_restricted"
	CodeKeyInvalid     rings.Code = "key_invalid" // of the run's key; the policy has the same reason (M-9)
	CodeApproval       rings.Code = "approval_required"
	CodeQuota          rings.Code = "quota_exceeded"
	CodeCost           rings.Code = "cost_exceeded"
	CodeUnavailable    rings.Code = "unavailable" // supervisor, policy or upstream can't be asked
	CodeCanceled       rings.Code = "run_ended"

	CodeStopped  rings.Code = "AGENT_STOPPED"   // by the safety loop (S-8)
	CodeNoIntent rings.Code = "INTENT_REQUIRED" // no approved step matches the call (S-15)
)
