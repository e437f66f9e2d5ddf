// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"io/fs"
	"testing"

	"agentrun/witness"
)

func TestWitnessHints(t *testing.T) {
	for _, err := range []error{witness.ErrMalformed, witness.ErrUnknownKey, witness.ErrSignature, witness.ErrAction, witness.ErrSubject,
		witness.ErrExpired, witness.ErrTooFar, witness.ErrNonceUsed} {
		if WitnessHint(err) == "" {
			t.Errorf("%v: no hint", err)
		}
	}
	if h := WitnessHint(errors.Join(witness.ErrNonces, fs.ErrPermission)); h != "" {
		t.Errorf("a store that can't be written is not mended by %q", h)
	}
}
