// SPDX-License-Identifier: Apache-2.0

package boundary

import (
	"slices"
	"strings"

	"agentrun/telemetry"
)

// redacted stands where a secret was.
const redacted = "[masked:secret]"

// minSecret: shorter ones occur in ordinary text, and replacing them would tell more than it hides.
const minSecret = 6

// Redactor replaces known secrets in a text that comes in pieces: an upstream that echoes the key it was called with must
// not hand it to the agent (THREATS, "secrets echoed by upstream errors"). What is held back is shorter than the longest
// secret. It knows a secret as it is written, not in another encoding.
type Redactor struct {
	secrets []string
	held    telemetry.Plaintext[string]
	found   bool
}

// NewRedactor returns one for these secrets; empty and very short ones are left out.
func NewRedactor(secrets ...string) *Redactor {
	r := &Redactor{}
	for _, s := range secrets {
		if len(s) >= minSecret {
			r.secrets = append(r.secrets, s)
		}
	}
	// The longer first: of two that begin at one place, the shorter would leave the end of the other.
	slices.SortFunc(r.secrets, func(a, b string) int { return len(b) - len(a) })
	return r
}

// Found tells whether any was replaced so far.
func (r *Redactor) Found() bool { return r.found }

// Write takes the next piece and returns what can be given out.
func (r *Redactor) Write(piece string) string {
	if len(r.secrets) == 0 {
		return piece
	}
	return r.consume(piece, false)
}

// Close returns the rest.
func (r *Redactor) Close() string { return r.consume("", true) }

// Text replaces in a whole text.
func (r *Redactor) Text(text string) string {
	whole := &Redactor{secrets: r.secrets}
	out := whole.Write(text) + whole.Close()
	r.found = r.found || whole.found
	return out
}

func (r *Redactor) consume(piece string, final bool) string {
	in := r.held.Reveal() + piece
	r.held = telemetry.Plaintext[string]{}
	var out strings.Builder
	for in != "" {
		at, length, wait := r.find(in, final)
		out.WriteString(in[:at])
		in = in[at:]
		if wait || length == 0 {
			r.held = telemetry.NewPlaintext(in) // nothing, at the end: find waits for no more then
			break
		}
		out.WriteString(redacted)
		r.found = true
		in = in[length:]
	}
	return out.String()
}

// find returns the first place where a secret stands, or where in ends with what may be the beginning of one (wait).
func (r *Redactor) find(in string, final bool) (at, length int, wait bool) {
	at = len(in)
	for _, s := range r.secrets {
		if i := strings.Index(in[:min(len(in), at+len(s))], s); i >= 0 && i < at {
			at, length, wait = i, len(s), false
		}
		if final {
			continue
		}
		for i := max(0, len(in)-len(s)+1); i < at; i++ {
			if in[i] == s[0] && strings.HasPrefix(s, in[i:]) {
				at, length, wait = i, 0, true
				break
			}
		}
	}
	return at, length, wait
}
