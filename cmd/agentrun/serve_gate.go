// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"agentrun/cgroups"
	"agentrun/internal/hinted"
	"agentrun/internal/hostcaps"
)

// gate lets runs in as long as the node has room, in the order they came. Whoever finds none waits, a bounded number for a
// bounded time: a node that is full gives each caller one answer instead of a storm of launches that fail half-way.
type gate struct {
	host hostMemory

	mu     sync.Mutex
	limits serveLimits
	live   map[*slot]struct{}
	queue  []*waiter // the longest wait first
	closed bool
	retry  *time.Timer // memory comes back without anybody telling
	taken  claim
}

// hostMemory is what the gate asks the host; tests give their own.
type hostMemory struct {
	available func() (int64, error)        // bytes that can be had without swapping
	used      func(run string) (now int64) // by a run; 0: not known
}

// slot is the place of one run.
type slot struct {
	memory int64 // its limit
	run    string
}

type waiter struct {
	slot *slot
	in   chan error // one answer
}

// claim is what live runs may still take, read at a time: reading is a file for each.
type claim struct {
	bytes int64
	at    time.Time
}

const (
	claimTime = 100 * time.Millisecond
	retryTime = 200 * time.Millisecond
)

func newGate(l serveLimits, host hostMemory) *gate {
	return &gate{limits: l, host: host, live: map[*slot]struct{}{}}
}

var errEnding = hinted.New(errors.New("the daemon is ending: no new runs"), "start it again, or run without it: AGENTRUN_NO_DAEMON=1")

func fullError(why string) error {
	return hinted.New(errors.New("the node is full: "+why), "the node is full: try later, end runs (agentrun ps), or raise serve.max_sandboxes")
}

// enter waits for room for a run of so much memory. leave gives it back.
func (g *gate) enter(ctx context.Context, memory int64) (*slot, error) {
	w := &waiter{slot: &slot{memory: memory}, in: make(chan error, 1)}
	g.mu.Lock()
	timeout := g.limits.queueTimeout
	switch why := ""; {
	case g.closed:
		g.mu.Unlock()
		return nil, errEnding
	case len(g.queue) == 0 && g.fits(memory, &why):
		g.live[w.slot] = struct{}{}
		g.mu.Unlock()
		return w.slot, nil
	case len(g.queue) >= g.limits.queue:
		n := len(g.queue)
		g.mu.Unlock()
		return nil, fullError(fmt.Sprintf("%d runs wait already", n))
	}
	g.queue = append(g.queue, w)
	g.again()
	g.mu.Unlock()
	over := time.NewTimer(timeout)
	defer over.Stop()
	select {
	case err := <-w.in:
		return w.slot, err
	case <-over.C:
		return g.giveUp(w, func() error {
			why := "no room"
			g.fits(memory, &why)
			return fullError(fmt.Sprintf("%s, for %s", why, timeout))
		})
	case <-ctx.Done():
		return g.giveUp(w, func() error { return context.Cause(ctx) })
	}
}

// giveUp leaves the queue, unless the answer has come meanwhile.
func (g *gate) giveUp(w *waiter, why func() error) (*slot, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.queue, w)
	if i < 0 {
		return w.slot, <-w.in
	}
	g.queue = slices.Delete(g.queue, i, i+1)
	err := why()
	g.admitLocked()
	return nil, err
}

func (g *gate) leave(s *slot) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.live, s)
	g.taken = claim{}
	g.admitLocked()
}

// started names the run that a slot is for, so that what it uses is counted.
func (g *gate) started(s *slot, run string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s.run = run
}

// admitLocked lets in whoever fits now. The first that doesn't fit holds up those behind it: a large run would never
// come in past a stream of small ones.
func (g *gate) admitLocked() {
	for len(g.queue) > 0 {
		w, why := g.queue[0], ""
		if !g.fits(w.slot.memory, &why) {
			break
		}
		g.queue = g.queue[1:]
		g.live[w.slot] = struct{}{}
		w.in <- nil
	}
	g.again()
}

func (g *gate) again() {
	if len(g.queue) == 0 || g.retry != nil {
		return
	}
	g.retry = time.AfterFunc(retryTime, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.retry = nil
		g.admitLocked()
	})
}

// close refuses everybody who waits or comes.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for _, w := range g.queue {
		w.in <- errEnding
	}
	g.queue = nil
}

func (g *gate) set(l serveLimits) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.limits = l
	g.admitLocked()
}

func (g *gate) counts() (live, waiting int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.live), len(g.queue)
}

// fits tells whether there is room, and why not.
func (g *gate) fits(memory int64, why *string) bool {
	if g.limits.max > 0 && len(g.live) >= g.limits.max {
		*why = fmt.Sprintf("%d runs live, the most there may be", len(g.live))
		return false
	}
	available, err := g.host.available()
	if err != nil {
		*why = err.Error()
		return false
	}
	free := available - g.limits.reserve - memory
	if free >= g.share(g.promised()) {
		return true // even if none of the live ones used anything yet
	}
	if free >= g.share(g.claimed()) {
		return true
	}
	*why = fmt.Sprintf("%d MiB of memory available, of which live runs may take %d and the host keeps %d", available>>20, g.share(g.claimed())>>20, g.limits.reserve>>20)
	return false
}

func (g *gate) share(bytes int64) int64 { return int64(g.limits.share * float64(bytes)) }

func (g *gate) promised() (sum int64) {
	for s := range g.live {
		sum += s.memory
	}
	return sum
}

// claimed is what of that isn't in use: what is, is not available any more.
func (g *gate) claimed() int64 {
	if now := time.Now(); now.Sub(g.taken.at) > claimTime {
		g.taken = claim{at: now}
		for s := range g.live {
			g.taken.bytes += max(0, s.memory-g.host.used(s.run))
		}
	}
	return g.taken.bytes
}

// thisHost asks the kernel.
func thisHost() hostMemory {
	return hostMemory{available: memAvailable, used: func(run string) int64 {
		if run == "" {
			return 0
		}
		group, err := cgroups.Open("agentrun/" + run)
		if err != nil {
			return 0
		}
		stats, err := group.Stats()
		if err != nil {
			return 0
		}
		return stats.MemoryCurrent
	}}
}

// memAvailable is the kernel's own estimate (proc_meminfo(5)).
func memAvailable() (int64, error) {
	text, err := hostcaps.ReadKernel("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("/proc/meminfo: %w", err)
			}
			return kib << 10, nil
		}
	}
	return 0, errors.New("/proc/meminfo: no MemAvailable")
}

func (g *gate) grace() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.limits.grace
}

func (g *gate) reserve() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.limits.reserve
}
