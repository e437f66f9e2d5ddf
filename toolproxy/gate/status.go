// SPDX-License-Identifier: Apache-2.0

package gate

import "agentrun/rings"

// Status returns the HTTP status that goes with a code, wherever it is told (M-13): tools, models and router alike. A code that
// it doesn't know is a denial, 403.
//
// Clients of models' APIs repeat 408, 409, 429 and 5xx by themselves. So only what may pass by waiting has one of those: an agent
// whose call was not approved must not put the same question to the operator again without knowing that it does.
func Status(code rings.Code) int {
	switch code {
	case CodeBadArguments, CodeBadRequest, rings.CodeInvalidTTL:
		return 400
	case CodeQuota, CodeCost, CodeSteps:
		return 402
	case CodeToolUnknown, CodeNotFound:
		return 404
	case CodeTooLarge:
		return 413
	case rings.CodeDuplicateElevation:
		return 409
	case CodeRateLimited, CodeConcurrency:
		return 429
	case CodeToolFailed:
		return 502
	case CodeUnavailable, CodeToolUnavailable:
		return 503
	case CodeToolTimeout:
		return 504
	}
	return 403
}
