// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"errors"
	"fmt"
)

// MaxIdentifier is the longest identifier, in bytes; they are ASCII (H-29).
const MaxIdentifier = 256

// ErrIdentifier is what a malformed identifier gives.
var ErrIdentifier = errors.New("malformed identifier")

// CheckAgentID returns nil for ^[a-zA-Z0-9]([a-zA-Z0-9._:-]*[a-zA-Z0-9])?$ of at most 256 bytes, the whole
// string (H-29); for anything else an error that is ErrIdentifier. A DID such as did:mesh:7f fits.
func CheckAgentID(id string) error { return checkIdentifier("agent id", id, false) }

// CheckActionID takes what CheckAgentID takes.
func CheckActionID(id string) error { return checkIdentifier("action id", id, false) }

// CheckSessionID returns nil for ^[a-zA-Z0-9_-]+$ of at most 256 bytes, the whole string (H-29). Such a
// name is a safe file name too: it has no dot and no slash.
func CheckSessionID(id string) error { return checkIdentifier("session id", id, true) }

// The bytes are looked at one by one rather than matched by a regular expression: in many of them $ also
// matches before a last newline, which would put "admin\n" and "admin" apart in one place and together in
// another. A byte that is not ASCII is refused wherever it stands, so no Cyrillic а can pass for an a.
func checkIdentifier(kind, id string, session bool) error {
	switch {
	case id == "":
		return fmt.Errorf("%s: %w: empty", kind, ErrIdentifier)
	case len(id) > MaxIdentifier:
		return fmt.Errorf("%s %.32q…: %w: %d bytes, at most %d are allowed", kind, id, ErrIdentifier, len(id), MaxIdentifier)
	}
	for i := range len(id) {
		if !allowedAt(id, i, session) {
			return fmt.Errorf("%s %.64q: %w: byte %q at %d is not allowed there", kind, id, ErrIdentifier, id[i], i)
		}
	}
	return nil
}

func allowedAt(id string, i int, session bool) bool {
	c := id[i]
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	case session:
		return c == '_' || c == '-'
	default:
		inside := i > 0 && i < len(id)-1
		return inside && (c == '.' || c == '_' || c == ':' || c == '-')
	}
}
