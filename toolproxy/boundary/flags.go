// SPDX-License-Identifier: Apache-2.0

package boundary

import "slices"

// Names of what was noticed. They stand in records and policies, and don't change their meaning.
const (
	FlagOverride     = "override_instructions" // "ignore previous instructions", in several languages
	FlagReveal       = "reveal_prompt"         // asks for the hidden instructions
	FlagRoleChange   = "role_change"           // "you are now …", modes without limits
	FlagExfiltration = "exfiltration"          // markup or a sentence that would carry data out
	FlagToolCall     = "tool_call_imitation"   // text that looks like a call that a model made
	FlagToken        = "template_token"        // a chat template's token, or a delimiter
	FlagRole         = "role_imitation"        // a speaker's name at the start of a line
	FlagHidden       = "hidden_text"           // characters that can't be seen
	FlagTerminal     = "terminal_escape"       // control characters that drive a terminal
	FlagEncoded      = "encoded_blob"          // a long run of base64 or hex, or one that hides text

	// What the boundary itself did. These say nothing about the input.
	FlagReasoning = "reasoning_stripped"
	FlagPlaintext = "plaintext_removed"
	FlagEscaped   = "escaped"
	FlagSecret    = "secret_redacted"
)

// Suspicious tells whether one of the flags makes an input suspicious for a policy (pdp.Suspicious). A speaker's name or a
// joiner is too common in honest text to be that; both are escaped anyway.
func Suspicious(flags []string) bool {
	return slices.ContainsFunc(flags, func(f string) bool {
		switch f {
		case FlagReasoning, FlagPlaintext, FlagEscaped, FlagSecret, FlagRole, FlagHidden, FlagTerminal:
			return false
		}
		return true
	})
}

// Merge returns the flags of both, each once, sorted.
func Merge(a, b []string) []string {
	if len(a)+len(b) == 0 {
		return nil
	}
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}
