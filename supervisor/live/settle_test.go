// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"agentrun/rings"
)

// ringState is a ring that is decided, and one that is applied.
type ringState struct {
	mu      sync.Mutex
	ring    rings.Ring
	whole   bool
	changed chan struct{}
}

func (s *ringState) become(ring rings.Ring, whole bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.changed
	s.ring, s.whole, s.changed = ring, whole, make(chan struct{})
	close(was)
}

type decidedRing struct{ *ringState }

func (d decidedRing) Ring() (rings.Ring, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ring, d.changed
}

func (decidedRing) Unapplied(rings.Ring, error) {}

type appliedRing struct{ *ringState }

func (a appliedRing) Ring() (rings.Ring, bool, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ring, a.whole, a.changed
}

// Who elevates waits for what holds, is told when it does, and no later; who waits for what never comes is
// let go at the time.
func TestM22Settle(t *testing.T) {
	const bound = time.Second
	for _, tt := range []struct {
		name    string
		decided rings.Ring
		later   func(decided, applied *ringState) // after 10 ms, and 20
		want    time.Duration
	}{
		{"it holds already", rings.Sandbox, func(_, _ *ringState) {}, 0},
		{"applied", rings.Standard, func(_, a *ringState) { a.become(rings.Standard, true) }, 10 * time.Millisecond},
		{"applied in part, then whole", rings.Standard, func(_, a *ringState) { a.become(rings.Standard, a.ring == rings.Standard) }, 20 * time.Millisecond},
		{"taken back before it was applied", rings.Standard, func(d, _ *ringState) { d.become(rings.Sandbox, true) }, 10 * time.Millisecond},
		{"the run ends", rings.Standard, func(_, a *ringState) { a.become(rings.NoRing, true) }, 10 * time.Millisecond},
		{"the source has ended", rings.Standard, func(d, _ *ringState) {
			if d.ring != rings.Privileged {
				d.become(rings.Privileged, true)
				close(d.changed)
			}
		}, bound},
		{"never", rings.Standard, func(_, _ *ringState) {}, bound},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &ringState{ring: tt.decided, whole: true, changed: make(chan struct{})}
				a := &ringState{ring: rings.Sandbox, whole: true, changed: make(chan struct{})}
				ctx, cancel := context.WithTimeout(t.Context(), bound)
				defer cancel()
				done := make(chan struct{})
				began := time.Now()
				go func() {
					defer close(done)
					settle(ctx, decidedRing{d}, appliedRing{a})
				}()
				for range 2 {
					select {
					case <-done:
					case <-time.After(10 * time.Millisecond):
						tt.later(d, a)
						synctest.Wait()
					}
				}
				<-done
				if took := time.Since(began); took != tt.want {
					t.Errorf("took %v, want %v", took, tt.want)
				}
			})
		})
	}
}
