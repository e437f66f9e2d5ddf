// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"errors"
	"fmt"
)

// Effective scores lie in [0,1]. The thresholds of H-3; RING_1_TRUST_THRESHOLD and RING_2_TRUST_THRESHOLD must be exceeded,
// RING_1_ENFORCER_THRESHOLD must be reached.
const (
	Ring1TrustThreshold    = 0.95
	Ring2TrustThreshold    = 0.60
	Ring1EnforcerThreshold = 0.70
)

// ErrScore is what a score gives that is no number from 0 to 1.
var ErrScore = errors.New("a score is a number from 0 to 1")

// CheckScore returns nil for a number in [0,1], else an error that is ErrScore; so for NaN and the infinities.
func CheckScore(score float64) error {
	if !validScore(score) {
		return fmt.Errorf("score %v: %w", score, ErrScore)
	}
	return nil
}

// NaN compares false with everything: the test must be one that it can't pass, not one that it can't fail.
func validScore(score float64) bool { return score >= 0 && score <= 1 }

// Assign returns the ring that an effective score gives (H-2): more than 0.95 with consensus Privileged, more than 0.60
// Standard, else Sandbox; never Root. A score outside [0,1] gives an error that is ErrScore, and Sandbox with it,
// for where a ring must be chosen all the same.
func Assign(effScore float64, hasConsensus bool) (Ring, error) {
	switch {
	case !validScore(effScore):
		return Sandbox, CheckScore(effScore)
	case effScore > Ring1TrustThreshold && hasConsensus:
		return Privileged, nil
	case effScore > Ring2TrustThreshold:
		return Standard, nil
	default:
		return Sandbox, nil
	}
}

// ShouldDemote tells whether an agent in the ring current must go down (H-4): the score and the consensus that it has now
// give a less privileged ring. A score that is no score gives Sandbox. Root, which no score gives, is always to be left.
func ShouldDemote(current Ring, effScore float64, hasConsensus bool) bool {
	deserved, _ := Assign(effScore, hasConsensus) // with an error it is Sandbox
	return current.MorePrivilegedThan(deserved)
}

// LeastPrivileged returns the less privileged of two rings; what is no ring counts as Sandbox. It is how a limit is laid
// over a ring: an operator's --ring, a quarantine, a parent's ring.
func LeastPrivileged(a, b Ring) Ring { return max(a.OrSandbox(), b.OrSandbox()) }
