// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// Requests beyond the pace wait; all have their turn, later.
func TestM8Pace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const perSecond, burst, seconds = 100, 256, 10
		p, begin := New(perSecond, burst), time.Now()
		for range burst + seconds*perSecond {
			if !p.Wait(t.Context()) {
				t.Fatal("gave up")
			}
		}
		if took := time.Since(begin); took != seconds*time.Second {
			t.Errorf("%d at once and %d more took %v, want %d s", burst, seconds*perSecond, took, seconds)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if p.Wait(ctx) {
			t.Error("its turn, though ctx ended before")
		}
	})
}
