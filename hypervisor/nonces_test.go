// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"agentrun/store"
	"agentrun/witness"
	"agentrun/witness/noncetest"
)

// oneByOne uses each nonce in a transaction of its own, as Release does.
type oneByOne struct {
	t   *testing.T
	db  store.Store
	now func() time.Time
}

func (o oneByOne) Use(n witness.Nonce, expires time.Time) error {
	return o.db.Update(o.t.Context(), func(tx *store.Tx) error { return nonces{tx, o.now()}.Use(n, expires) })
}

func openNonces(t *testing.T, now func() time.Time) witness.NonceStore {
	db, err := store.Open(filepath.Join(t.TempDir(), "state"), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return oneByOne{t, db, now}
}

func TestH12Nonces(t *testing.T) { noncetest.Run(t, openNonces) }

// H-12: what was forgotten can't be used again, however far the clock is set back.
func TestH12ForgottenNoncesStayUsed(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	now := start
	s := openNonces(t, func() time.Time { return now })
	first := witness.NewNonce()
	if err := s.Use(first, start.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	now = start.Add(keepNonces + time.Hour)
	if err := s.Use(witness.NewNonce(), now.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	now = start
	if err := s.Use(first, start.Add(time.Minute)); !errors.Is(err, witness.ErrNonceUsed) {
		t.Errorf("got %v, want that it counts as used", err)
	}
	if err := s.Use(witness.NewNonce(), start.Add(2*time.Minute)); err != nil {
		t.Errorf("a fresh one that expires later: %v", err)
	}
}
