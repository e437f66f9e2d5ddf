// SPDX-License-Identifier: Apache-2.0

package safetyloop

const (
	// ShowProgram is started by the supervisors of sandboxes to show a code where agentrun itself can't: it has TLS.
	ShowProgram = "agentrun-safety"
	// ShowCode is its first argument then; the challenge comes as a Shown on its standard input. It is no command of people's.
	ShowCode = "show-code"
)

// Shown is a challenge as operators get it, with the code that refuses to print in a Challenge (M-18). fmt prints it without.
type Shown struct {
	Challenge
	Code string `json:"code"`
}

// Shown gives the challenge with its code, for a channel or an answer that is an operator's alone.
func (c Challenge) Shown() Shown { return Shown{c, c.Code.Reveal()} }

// ShowArgs are the arguments of ShowProgram; empty ones name no channel.
func ShowArgs(terminal, webhook, key string) []string {
	return []string{ShowCode, "--show-codes-on=" + terminal, "--webhook=" + webhook, "--webhook-key=" + key}
}
