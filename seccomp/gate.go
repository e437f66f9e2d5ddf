// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Gate lets others reach into the loop of a Serve while it runs: when a ring changes, answers by the old one must be out
// before anybody looks what they led to. One Gate serves one Serve. The zero value is ready.
type Gate struct {
	hurry atomic.Bool

	mu      sync.Mutex
	loop    *loop // nil: not yet, or no more
	ended   bool
	waiting []chan struct{}
}

// Hurry answers refusals at once while on, those held back by the rate limit too. A caller that waits for an answer may be in a
// wait that only the answer or death ends (SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV), and such a wait can't be frozen: without
// this an agent could hold off a freeze by making refused calls. Switch it off again soon: it lifts the limit.
func (g *Gate) Hurry(on bool) {
	g.hurry.Store(on)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pokeLocked()
}

// Barrier returns when every call that was being answered when Barrier was called has its answer, or its answer is held: what
// is received later is decided later. It returns ctx's error if that takes too long, and nil when nobody serves any more.
func (g *Gate) Barrier(ctx context.Context) error {
	passed := make(chan struct{})
	g.mu.Lock()
	if g.ended || g.loop == nil {
		g.mu.Unlock()
		return nil
	}
	g.waiting = append(g.waiting, passed)
	g.pokeLocked()
	g.mu.Unlock()
	select {
	case <-passed:
		return nil
	case <-ctx.Done():
		g.mu.Lock()
		defer g.mu.Unlock()
		g.waiting = slices.DeleteFunc(g.waiting, func(c chan struct{}) bool { return c == passed })
		return fmt.Errorf("wait for the seccomp notification loop: %w", context.Cause(ctx))
	}
}

func (g *Gate) attach(l *loop) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.loop = l
}

// detach comes before the loop's descriptor is closed: a poke after that would write to a number that may be another file's.
func (g *Gate) detach() {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.loop, g.ended = nil, true
	g.passLocked()
}

func (g *Gate) pokeLocked() {
	if g.loop != nil {
		g.loop.poke()
	}
}

func (g *Gate) passLocked() {
	for _, c := range g.waiting {
		close(c)
	}
	g.waiting = nil
}

// pass runs on the loop, between two calls.
func (g *Gate) pass() {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.passLocked()
}

func (g *Gate) hurried() bool { return g != nil && g.hurry.Load() }

// poke wakes the loop's poll.
func (l *loop) poke() {
	one := [8]byte{1} // any non-zero number
	_, _ = unix.Write(l.wake, one[:])
}
