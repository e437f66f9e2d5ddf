// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"errors"
	"fmt"
	"strconv"
)

// Ring is a privilege ring (H-1). Its zero value is no ring: it is never more privileged than anything, and
// where a ring must be chosen it counts as Sandbox. So a forgotten assignment can't mean Root.
type Ring uint8

const (
	NoRing     Ring = iota
	Root            // 0: the hypervisor's own configuration; never an agent's
	Privileged      // 1: actions that can't be undone
	Standard        // 2: actions that can be undone, scoped resources
	Sandbox         // 3: reading only; the default
)

// ErrRing is what a value that names no ring gives.
var ErrRing = errors.New("a ring is 0, 1, 2 or 3")

// RingOf returns the ring with the number n, or NoRing and an error that is ErrRing.
func RingOf(n int) (Ring, error) {
	if n < 0 || n > 3 {
		return NoRing, fmt.Errorf("ring %d: %w", n, ErrRing)
	}
	return Root + Ring(n), nil
}

// Valid tells whether r is one of the four rings.
func (r Ring) Valid() bool { return r >= Root && r <= Sandbox }

// OrSandbox returns r, or Sandbox if r is no ring (H-1).
func (r Ring) OrSandbox() Ring {
	if !r.Valid() {
		return Sandbox
	}
	return r
}

// Value returns the ring's number, 0 to 3; 3 for what is no ring.
func (r Ring) Value() int { return int(r.OrSandbox() - Root) }

func (r Ring) String() string {
	if !r.Valid() {
		return "no ring"
	}
	return "ring " + strconv.Itoa(r.Value())
}

// MorePrivilegedThan compares two rings; it is false if either is none.
func (r Ring) MorePrivilegedThan(other Ring) bool { return r.Valid() && other.Valid() && r < other }

// MarshalJSON gives the ring's number. What is no ring has none, and is an error.
func (r Ring) MarshalJSON() ([]byte, error) {
	if !r.Valid() {
		return nil, ErrRing
	}
	return []byte{'0' + byte(r.Value())}, nil
}

// UnmarshalJSON takes exactly 0, 1, 2 or 3: no other spelling of the numbers, no strings, bools or null.
func (r *Ring) UnmarshalJSON(b []byte) error {
	if len(b) != 1 || b[0] < '0' || b[0] > '3' {
		*r = NoRing
		return fmt.Errorf("ring %.20s: %w", b, ErrRing)
	}
	*r = Root + Ring(b[0]-'0')
	return nil
}
