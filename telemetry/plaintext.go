// SPDX-License-Identifier: Apache-2.0

// Package telemetry has the type for what must not be logged: prompts, messages, tool arguments (M-18). Beneath it are
// masking (mask), the logs of runs (runlog) and trace context (trace).
//
// Guarantees. A Plaintext gives nothing but its length and the beginning of its digest to fmt, slog, encoding/json and
// encoding.TextMarshaler, and to code that walks values by reflection, also where it is an unexported field of another
// type: the text is held by a function, which reflection can't look into. Reveal is the only way to it.
//
//	args := telemetry.NewPlaintext(body)
//	slog.Info("tool called", "args", args) // args="«plaintext 312 bytes sha256:ab12cd34ef567890»"
//	upstream.Call(args.Reveal())
//
// Nothing here fails.
//
// What it does not protect against. What was revealed is an ordinary string: a test holds the list of files that may do
// that. The digest lets two logs be compared, and so lets whoever reads one try out guesses: of a text with few
// possibilities ("yes") it tells which. Memory isn't wiped; a core dump has the text.
package telemetry

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"log/slog"
)

// Plaintext is text that refuses to print. The zero value is the empty text. It can't be compared with ==; see Equal.
type Plaintext struct{ reveal func() string }

// NewPlaintext wraps text.
func NewPlaintext(text string) Plaintext { return Plaintext{func() string { return text }} }

// Reveal gives the text. Each file that calls it stands in the list of TestM18WhoReveals, with its reason.
func (p Plaintext) Reveal() string {
	if p.reveal == nil {
		return ""
	}
	return p.reveal()
}

// Len is the length in bytes.
func (p Plaintext) Len() int { return len(p.text()) }

// text is Reveal for this file, whose results don't leave it.
func (p Plaintext) text() string {
	if p.reveal == nil {
		return ""
	}
	return p.reveal()
}

// Equal tells whether both texts are the same, in time that depends on their lengths only. go-cmp uses it.
func (p Plaintext) Equal(q Plaintext) bool {
	return subtle.ConstantTimeCompare([]byte(p.text()), []byte(q.text())) == 1
}

// String gives length and digest: the first 8 bytes of SHA-256.
func (p Plaintext) String() string {
	sum := sha256.Sum256([]byte(p.text()))
	return fmt.Sprintf("«plaintext %d bytes sha256:%x»", p.Len(), sum[:8])
}

// GoString is String.
func (p Plaintext) GoString() string { return p.String() }

// Format is String for every verb and flag: %x of a string type would be its bytes.
func (p Plaintext) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(p.String())) }

// MarshalJSON gives String as a JSON string. There is no way back.
func (p Plaintext) MarshalJSON() ([]byte, error) { return json.Marshal(p.String()) }

// MarshalText gives String.
func (p Plaintext) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText takes the text, so that a request is decoded without a bare string in between.
func (p *Plaintext) UnmarshalText(text []byte) error {
	*p = NewPlaintext(string(text))
	return nil
}

// LogValue gives String to slog.
func (p Plaintext) LogValue() slog.Value { return slog.StringValue(p.String()) }
