// SPDX-License-Identifier: Apache-2.0

// Package telemetry has the type for what must not be logged: prompts, messages, arguments of tools and one-time codes
// (M-18). Beneath it are masking (mask), the logs of runs (runlog) and trace context (trace).
//
// Guarantees. A Plaintext gives nothing of what it holds to fmt, slog, encoding/json and encoding.TextMarshaler, nor to
// code that walks values by reflection, also where it is an unexported field of another type: the value is held by a
// function, which reflection can't look into. Reveal is the only way to it.
//
//	call := gate.Call{Tool: "search", Args: telemetry.NewPlaintext(body)}
//	slog.Info("tool called", "call", call) // "Args":"[plaintext]"
//	upstream.Send(call.Args.Reveal())
//
// Nothing here fails.
//
// What it does not protect against. What was revealed is an ordinary value: TestM18WhoReveals holds the list of functions
// that may do that, each with its reason. Memory isn't wiped; a core dump has the text.
package telemetry

import (
	"encoding/json"
	"fmt"
	"log/slog"
)

// printed stands for every Plaintext. It says neither length nor digest: of a code, or a text that is one of few, these
// tell which it is.
const printed = "[plaintext]"

// Plaintext is a value that refuses to print. The zero value holds the zero value of T. It can't be compared with ==.
type Plaintext[T any] struct{ reveal func() T }

// NewPlaintext wraps a value. The caller must not print the one it still has.
func NewPlaintext[T any](value T) Plaintext[T] {
	return Plaintext[T]{func() T { return value }}
}

// Reveal gives the value. Each function that calls it stands in the list of TestM18WhoReveals, with its reason.
func (p Plaintext[T]) Reveal() (value T) {
	if p.reveal != nil {
		value = p.reveal()
	}
	return value
}

// String gives what stands for every Plaintext.
func (p Plaintext[T]) String() string { return printed }

// GoString is String.
func (p Plaintext[T]) GoString() string { return printed }

// Format is String for every verb and flag: %x of a string type would be its bytes.
func (p Plaintext[T]) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(printed)) }

// MarshalJSON gives String as a JSON string. There is no way back.
func (p Plaintext[T]) MarshalJSON() ([]byte, error) { return json.Marshal(printed) }

// MarshalText gives String.
func (p Plaintext[T]) MarshalText() ([]byte, error) { return []byte(printed), nil }

// LogValue gives String to slog.
func (p Plaintext[T]) LogValue() slog.Value { return slog.StringValue(printed) }
