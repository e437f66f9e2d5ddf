// SPDX-License-Identifier: Apache-2.0

package boundary

import (
	"slices"
	"strings"
	"unicode/utf8"

	"agentrun/telemetry"
)

// redacted stands where a secret was.
const redacted = "[masked:secret]"

// minSecret: shorter ones occur in ordinary text, and replacing them would tell more than it hides.
const minSecret = 6

// Redactor replaces known secrets in a text that comes in pieces: an upstream that echoes the key it was called with must
// not hand it to the agent (THREATS, "secrets echoed by upstream errors"). What is held back is shorter than the longest
// secret by one byte, whatever it says: were it only what may begin a secret, an agent that has a model say guesses would
// learn by the pieces in which they come which of them is right, letter by letter (M-12). It knows a secret as it is
// written, not in another encoding.
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
	var out strings.Builder
	for {
		end := len(in) // a secret that begins before it is all there
		if !final {
			end = max(0, len(in)-len(r.secrets[0])+1)
		}
		for back := 1; back < utf8.UTFMax && end > 0 && end < len(in) && !utf8.RuneStart(in[end]); back++ {
			end--
		}
		at, length := r.find(in, end)
		out.WriteString(in[:at])
		in = in[at+length:]
		if length == 0 {
			break
		}
		out.WriteString(redacted)
		r.found = true
	}
	r.held = telemetry.NewPlaintext(in) // nothing, at the end
	return out.String()
}

// find returns the first place before end where a secret stands, and the longest that does; end and 0: there is none.
func (r *Redactor) find(in string, end int) (at, length int) {
	at = end
	for _, s := range r.secrets {
		if i := strings.Index(in[:min(len(in), at+len(s)-1)], s); i >= 0 && i < at {
			at, length = i, len(s)
		}
	}
	return at, length
}
