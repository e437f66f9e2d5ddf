// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// ErrWitness is what an act of ring 0 without a fitting witness gives.
var ErrWitness = errors.New("no operator's witness for this")

// Witness proves that an operator attested to one action on one subject (H-12). There is no way to make one but
// WitnessOf, and it is good for one use. Nil and the zero value prove nothing.
type Witness struct {
	action, subject, operator string
	used                      atomic.Bool
}

// WitnessOf asks verify for an attestation of action on subject, and returns the witness if verify gives the name of
// the operator who signed it. Verifying (signature, configured key, expiry, nonce never seen before) belongs to package
// witness, which this one can't import; verify is the bridge:
//
//	w, err := rings.WitnessOf(rings.ActionRelease, agent, func(action, subject string) (string, error) {
//		return verifier.Verify(attestation, action, subject) // and spends the nonce
//	})
//
// Action and subject go into verify and into the witness from the same variables, so that one can't be verified for
// something and used for something else.
func WitnessOf(action, subject string, verify func(action, subject string) (operator string, err error)) (*Witness, error) {
	if action == "" || subject == "" || verify == nil {
		return nil, fmt.Errorf("witness of %q on %q: %w", action, subject, ErrWitness)
	}
	operator, err := verify(action, subject)
	if err != nil {
		return nil, fmt.Errorf("witness of %q on %q: %w: %w", action, subject, ErrWitness, err)
	}
	if operator == "" {
		return nil, fmt.Errorf("witness of %q on %q: nobody signed: %w", action, subject, ErrWitness)
	}
	return &Witness{action: action, subject: subject, operator: operator}, nil
}

// Use spends the witness for action on subject and names the operator. A witness of something else is not spent.
func (w *Witness) Use(action, subject string) (operator string, err error) {
	switch {
	case w == nil || w.operator == "":
		return "", fmt.Errorf("%s %q: %w", action, subject, ErrWitness)
	case w.action != action || w.subject != subject:
		return "", fmt.Errorf("%s %q: the witness is of %s %q: %w", action, subject, w.action, w.subject, ErrWitness)
	case !w.used.CompareAndSwap(false, true):
		return "", fmt.Errorf("%s %q: the witness has been used: %w", action, subject, ErrWitness)
	}
	return w.operator, nil
}
