// SPDX-License-Identifier: Apache-2.0

// Package noncetest is what every witness.NonceStore has to pass, for the tests of its implementations. It can't see whether a
// record reached the disk, nor other processes: those tests are the implementation's own.
//
//	noncetest.Run(t, func(t *testing.T, now func() time.Time) witness.NonceStore { return open(t, now) })
package noncetest

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentrun/witness"
)

// Run tests the stores that open gives, each of them empty and telling the time by now.
func Run(t *testing.T, open func(t *testing.T, now func() time.Time) witness.NonceStore) {
	start := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	t.Run("once", func(t *testing.T) {
		s := open(t, func() time.Time { return start })
		n, other := witness.NewNonce(), witness.NewNonce()
		want(t, s.Use(n, start.Add(time.Minute)), nil)
		want(t, s.Use(n, start.Add(time.Minute)), witness.ErrNonceUsed)
		want(t, s.Use(n, start.Add(time.Hour)), witness.ErrNonceUsed)
		want(t, s.Use(other, start.Add(time.Minute)), nil)
	})
	t.Run("one of many", func(t *testing.T) {
		s := open(t, func() time.Time { return start })
		n := witness.NewNonce()
		var won, lost atomic.Int32
		var all sync.WaitGroup
		for range 32 {
			all.Go(func() {
				switch err := s.Use(n, start.Add(time.Minute)); {
				case err == nil:
					won.Add(1)
				case errors.Is(err, witness.ErrNonceUsed):
					lost.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		all.Wait()
		if won.Load() != 1 || lost.Load() != 31 {
			t.Errorf("%d of 32 used the nonce and %d were refused, want 1 and 31", won.Load(), lost.Load())
		}
	})
	t.Run("clock set back", func(t *testing.T) {
		var now atomic.Pointer[time.Time]
		set := func(d time.Duration) { at := start.Add(d); now.Store(&at) }
		set(0)
		s := open(t, func() time.Time { return *now.Load() })
		n := witness.NewNonce()
		want(t, s.Use(n, start.Add(time.Minute)), nil)
		set(time.Hour)
		want(t, s.Use(witness.NewNonce(), start.Add(2*time.Hour)), nil) // gives it the occasion to forget
		set(0)
		want(t, s.Use(n, start.Add(time.Minute)), witness.ErrNonceUsed)
		want(t, s.Use(witness.NewNonce(), start.Add(3*time.Hour)), nil)
	})
}

func want(t *testing.T, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("Use: %v, want %v", got, want)
	}
}
