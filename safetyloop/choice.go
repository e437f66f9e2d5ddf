// SPDX-License-Identifier: Apache-2.0

package safetyloop

import "agentrun/safetyloop/judge"

// What is said by judge, in the words of the loop.
type (
	Rule      = judge.Rule
	Factor    = judge.Factor
	Judgement = judge.Judgement
	Judge     = judge.Judge
	Mode      = judge.Mode
	Tolerance = judge.Tolerance
	Confirm   = judge.Confirm
	Endpoint  = judge.Endpoint
	Reply     = judge.Reply
	Error     = judge.Error
)

const (
	// MaxParams is judge's.
	MaxParams = judge.MaxParams

	NoEndpoint = judge.NoEndpoint
	Create     = judge.Create
	Read       = judge.Read
	Execute    = judge.Execute
	Any        = judge.Any

	RuleInvalid          = judge.RuleInvalid
	RuleDefault          = judge.RuleDefault
	RuleAutoApprove      = judge.RuleAutoApprove
	RuleRequiresApproval = judge.RuleRequiresApproval
	RuleDeny             = judge.RuleDeny

	NoMode     = judge.NoMode
	Enforcing  = judge.Enforcing
	Monitoring = judge.Monitoring
	Logging    = judge.Logging
	Disabled   = judge.Disabled

	NoTolerance  = judge.NoTolerance
	Conservative = judge.Conservative
	Moderate     = judge.Moderate
	Aggressive   = judge.Aggressive

	NoConfirm     = judge.NoConfirm
	ConfirmServer = judge.ConfirmServer
	ConfirmClient = judge.ConfirmClient
	ConfirmPolicy = judge.ConfirmPolicy
)
