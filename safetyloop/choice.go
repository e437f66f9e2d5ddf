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
	EnvMode = judge.EnvMode
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
)

// ErrChoice is judge's.
var ErrChoice = judge.ErrChoice

// ParseMode is judge's.
func ParseMode(word string) (Mode, error) { return judge.ParseMode(word) }

// ModeOf is judge's.
func ModeOf(lookup func(string) (string, bool), otherwise Mode) (Mode, error) {
	return judge.ModeOf(lookup, otherwise)
}

// ParseTolerance is judge's.
func ParseTolerance(word string) (Tolerance, error) { return judge.ParseTolerance(word) }

// ParseConfirm is judge's.
func ParseConfirm(word string) (Confirm, error) { return judge.ParseConfirm(word) }
