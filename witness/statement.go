// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
)

// ReleaseQuarantine lets an agent out of quarantine (H-31); its subject is "agent:" and the agent's id.
const ReleaseQuarantine = "release-quarantine"

// MaxTTL is how far ahead an expiry may lie. An attestation is for the incident at hand: what lies in a drawer for longer is a
// second key that nobody watches.
const MaxTTL = 24 * time.Hour

// DefaultTTL is time enough to carry an attestation from one terminal to another.
const DefaultTTL = 10 * time.Minute

const (
	maxAction  = 64
	maxSubject = 512
)

// Nonce makes a statement single use. 128 random bits don't meet again.
type Nonce [16]byte

// NewNonce returns a random one.
func NewNonce() Nonce {
	var n Nonce
	_, _ = rand.Read(n[:]) // never fails: it ends the program instead
	return n
}

func (n Nonce) String() string { return hex.EncodeToString(n[:]) }

// Statement is what an operator signs (H-12).
type Statement struct {
	Action  string    // a lower-case word with digits, dots and dashes, at most 64 bytes
	Subject string    // KIND:ID, as in agent:planner-1, at most 512 bytes
	Nonce   Nonce     // not all zero
	Expires time.Time // to the second; in the second it names it has expired
}

// Want is the action and subject that the caller is about to permit.
type Want struct{ Action, Subject string }

func (w Want) check() error {
	switch {
	case !validAction(w.Action):
		return fmt.Errorf("action %.80q is no lower-case word of letters, digits, dots and dashes, at most %d long: %w", w.Action, maxAction, ErrMalformed)
	case !validSubject(w.Subject):
		return fmt.Errorf("subject %.80q is not KIND:ID, as in agent:planner-1, at most %d long: %w", w.Subject, maxSubject, ErrMalformed)
	}
	return nil
}

func (s Statement) check() error {
	switch y := s.Expires.UTC().Year(); {
	case s.Nonce == Nonce{}:
		return fmt.Errorf("the nonce is zero: %w", ErrMalformed)
	case s.Expires.IsZero(), y < 2000, y > 9999:
		return fmt.Errorf("expiry in the year %d: %w", y, ErrMalformed)
	}
	return Want{s.Action, s.Subject}.check()
}

// timeForm has no fraction and no zone but UTC, so that an instant has one spelling.
const timeForm = "2006-01-02T15:04:05Z"

// canonical is the text that stands before the signature. No field can hold the separator, hence two different statements never give
// the same text.
func (s Statement) canonical(keyID string) string {
	return strings.Join([]string{version, s.Action, s.Subject, s.Expires.UTC().Format(timeForm), s.Nonce.String(), keyID}, separator)
}

const (
	version   = "agentrun-witness-v1"
	separator = "/"
)

// signed returns the bytes that are signed. Operator keys have the form of note keys, so someone may use one key for both. No signed
// note begins like this: notes hold no NUL and end with a line end, which this never does. So a checkpoint can't be passed off
// as an attestation, nor the other way round.
func signed(canonical string) []byte { return []byte("agentrun witness\x00" + canonical) }

func validAction(a string) bool {
	if a == "" || len(a) > maxAction || !lower(a[0]) || a[len(a)-1] == '-' || a[len(a)-1] == '.' {
		return false
	}
	for _, c := range []byte(a) {
		if !lower(c) && !digit(c) && c != '-' && c != '.' {
			return false
		}
	}
	return true
}

func validSubject(s string) bool {
	kind, id, found := strings.Cut(s, ":")
	if !found || kind == "" || id == "" || len(s) > maxSubject {
		return false
	}
	for _, c := range []byte(kind) {
		if !lower(c) {
			return false
		}
	}
	for _, c := range []byte(id) { // the characters of H-29's identifiers; whether it is one, the caller knows
		if !lower(c) && !digit(c) && (c < 'A' || c > 'Z') && !strings.ContainsRune("._:-", rune(c)) {
			return false
		}
	}
	return true
}

func lower(c byte) bool { return c >= 'a' && c <= 'z' }

func digit(c byte) bool { return c >= '0' && c <= '9' }
