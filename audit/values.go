// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// Limits. They keep a line below MaxLine, so that every reader can have a buffer that no writer overflows.
const (
	// MaxInteger is the largest integer that every reader of JSON keeps exactly: 2^53-1.
	MaxInteger = 1<<53 - 1
	// MaxLine is the length of the longest entry in bytes, its newline included. Sixty-four identifiers of 256 bytes,
	// every byte of them escaped as \u00xx, are 98 304; nothing that agentrun records comes near.
	MaxLine = 128 << 10

	maxID    = 256 // of H-29
	maxCode  = 64
	maxList  = 64
	maxChain = len(sessionPrefix) + 256
	// maxTorn bounds what is read from the end of a file to find its last entry: a batch of writes (maxBatch and the entry
	// that crossed it) and some repairs that were torn themselves. More without an entry in it is damage, not a torn write.
	maxTorn  = 4 << 20
	maxBatch = 1 << 20
)

// Hash is a SHA-256.
type Hash [sha256.Size]byte

// String writes 64 lower-case hexadecimal digits.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// MarshalText writes what String writes.
func (h Hash) MarshalText() ([]byte, error) { return appendHex(nil, h), nil }

// UnmarshalText reads what String writes.
func (h *Hash) UnmarshalText(text []byte) error {
	var read Hash
	if len(text) != hex.EncodedLen(len(h)) || bytes.ContainsAny(text, "ABCDEF") {
		return fmt.Errorf("hash %.80q: want 64 lower-case hexadecimal digits", text)
	}
	if _, err := hex.Decode(read[:], text); err != nil {
		return fmt.Errorf("hash %.80q: want 64 lower-case hexadecimal digits", text)
	}
	*h = read
	return nil
}

// ParseHash reads 64 lower-case hexadecimal digits.
func ParseHash(s string) (h Hash, err error) {
	err = h.UnmarshalText([]byte(s))
	return h, err
}

func appendHex(b []byte, h Hash) []byte { return hex.AppendEncode(b, h[:]) }

// Number is a finite number, or null: not given, not a number, infinite. The zero value is null and not 0: a trust score
// that was missing is not one of zero, and the record must say which it was.
type Number struct {
	value float64
	known bool
}

// NumberOf gives null for NaN and the infinities.
func NumberOf(v float64) Number {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return Number{}
	}
	return Number{v + 0, true} // -0 becomes 0: RFC 8785 has only one
}

// Value gives NaN and false for null.
func (n Number) Value() (float64, bool) {
	if !n.known {
		return math.NaN(), false
	}
	return n.value, true
}

// String writes the number as the record has it.
func (n Number) String() string {
	if !n.known {
		return "null"
	}
	return string(appendDouble(nil, n.value))
}

// Ring is a ring as recorded. This package is a leaf and doesn't know rings.Ring; RingOf(r.Value()) converts.
type Ring uint8

// The zero value is no ring: null where a record allows it (somebody claimed a ring that doesn't exist), refused elsewhere.
const (
	NoRing Ring = iota
	Root
	Privileged
	Standard
	Sandbox
)

// RingOf gives the ring of a number from 0 to 3, NoRing for any other.
func RingOf(v int) Ring {
	if v < 0 || v > 3 {
		return NoRing
	}
	return Root + Ring(v)
}

// String writes 0 to 3, or "none".
func (r Ring) String() string {
	if r == NoRing || r > Sandbox {
		return "none"
	}
	return string('0' + rune(r-Root))
}

// Claimed makes text that comes from outside fit for a record. Text that fits is left alone. Otherwise bytes that are not
// UTF-8 become U+FFFD, and what is longer than 256 bytes is cut and ends in "…sha256:" and the first 16 digits of the hash
// of the whole. Without it, an agent that claims a name of a megabyte would be refused without a trace (an unfit text is
// an error of Append). Empty text becomes "(empty)".
func Claimed(s string) string {
	switch {
	case s == "":
		return "(empty)"
	case len(s) <= maxID && utf8.ValidString(s):
		return s
	}
	sum := sha256.Sum256([]byte(s))
	mark := "…sha256:" + hex.EncodeToString(sum[:8])
	valid := strings.ToValidUTF8(s[:min(len(s), 4*maxID)], "\uFFFD")
	if room := maxID - len(mark); len(valid) > room {
		valid = valid[:room]
		for !utf8.ValidString(valid) {
			valid = valid[:len(valid)-1]
		}
	}
	return valid + mark
}
