// SPDX-License-Identifier: Apache-2.0

// Package queue lets runs in as long as the node has room for them, in the order they came. Whoever finds no room waits: a bounded
// number of runs for a bounded time, so that a full node gives each caller one answer instead of launches that fail half-way.
//
// It decides by memory and by number. What a run may take counts until it is taken; what it has taken is gone from the host's
// available memory already. One that stands still (paused, frozen) takes no more, and counts again when it goes on. A host that doesn't
// tell how much it has counts as full, and so does one that waits for memory most of the time, however much it calls available.
package queue

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"agentrun/cgroups"
	"agentrun/internal/hinted"
	"agentrun/internal/read"
)

// Limits say what a node has room for.
type Limits struct {
	Runs    int           // that live at once; 0: as many as there is memory for
	Waiting int           // runs that wait; more are refused
	Timeout time.Duration // how long they wait
	Reserve int64         // bytes that are left to the host
	Share   float64       // how many times what live runs may still take is promised; less than 1 counts as 1: once
}

// Queue is the queue of one node.
//
// A run is in waiting or in live, and moves from one to the other under mu, with its answer, so that a caller who
// gives up meets either its place in the queue or the answer, and never loses a slot. Room comes back in two ways:
// a run leaves, which is known at once, or a program of the host's ends, which nobody tells; therefore the retry.
type Queue struct {
	host  Memory
	ahead atomic.Pointer[reading] // of one who will enter; nil: there is none

	mu      sync.Mutex
	limits  Limits
	live    map[*Slot]struct{}
	waiting []*waiter // the longest wait first
	closed  bool
	retry   *time.Timer // memory comes back without anybody telling
	taken   claim
}

// Memory is what the queue asks the host; tests give their own.
type Memory struct {
	Available func() (int64, error)        // bytes that can be had without swapping
	Used      func(run string) (now int64) // by a run; 0: not known; math.MaxInt64: it takes no more, since it stands still
	Stalled   func() float64               // percent of the last 10 s in which all that wanted to run waited for memory; nil: not known
}

// mostStalled is where a host has no room for more, whatever it calls available: what runs already is slowed by as much.
const mostStalled = 10

// Slot is the place of one run.
type Slot struct {
	memory int64 // its limit
	run    string
}

type waiter struct {
	slot *Slot
	in   chan error // one answer
}

// claim is what live runs may still take, read at a time: reading is a file for each.
type claim struct {
	bytes int64
	at    time.Time
}

const (
	aheadTime = 2 * time.Millisecond
	claimTime = 100 * time.Millisecond
	retryTime = 200 * time.Millisecond
)

// New returns a queue in which nobody waits.
func New(l Limits, host Memory) *Queue {
	return &Queue{limits: l, host: host, live: map[*Slot]struct{}{}}
}

// Refusal is an error of Enter's that is no fault of who asks: there is no room, or there will be no more runs.
type Refusal string

func (r Refusal) Error() string { return string(r) }

var errEnding = hinted.New(Refusal("the daemon is ending: no new runs"), "start it again, or run without it: AGENTRUN_NO_DAEMON=1")

func fullError(why string) error {
	return hinted.New(Refusal("the node is full: "+why), "the node is full: try later, end runs (agentrun ps), or raise serve.max_sandboxes")
}

// reading is what the host has at a moment.
type reading struct {
	at        time.Time
	available int64
	stalled   float64
	err       error
}

func (q *Queue) look() *reading {
	r := &reading{at: time.Now()}
	if r.available, r.err = q.host.Available(); r.err == nil && q.host.Stalled != nil {
		r.stalled = q.host.Stalled()
	}
	return r
}

// Ahead looks at the host's memory for the next who enters, if that is within aheadTime: what was let in meanwhile is counted by its limit.
func (q *Queue) Ahead() { q.ahead.Store(q.look()) }

// Enter waits for room for a run of so much memory. leave gives it back.
func (q *Queue) Enter(ctx context.Context, memory int64) (*Slot, error) {
	w := &waiter{slot: &Slot{memory: memory}, in: make(chan error, 1)}
	q.mu.Lock()
	timeout := q.limits.Timeout
	switch why := ""; {
	case q.closed:
		q.mu.Unlock()
		return nil, errEnding
	case len(q.waiting) == 0 && q.fits(memory, q.ahead.Swap(nil), &why):
		q.live[w.slot] = struct{}{}
		q.mu.Unlock()
		return w.slot, nil
	case len(q.waiting) >= q.limits.Waiting:
		n := len(q.waiting)
		q.mu.Unlock()
		return nil, fullError(fmt.Sprintf("%d runs wait already", n))
	}
	q.waiting = append(q.waiting, w)
	q.again()
	q.mu.Unlock()
	over := time.NewTimer(timeout)
	defer over.Stop()
	select {
	case err := <-w.in:
		return w.slot, err
	case <-over.C:
		return q.giveUp(w, func() error {
			why := "no room"
			q.fits(memory, nil, &why)
			return fullError(fmt.Sprintf("%s, for %s", why, timeout))
		})
	case <-ctx.Done():
		return q.giveUp(w, func() error { return context.Cause(ctx) })
	}
}

// giveUp leaves the queue, unless the answer has come meanwhile.
func (q *Queue) giveUp(w *waiter, why func() error) (*Slot, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.waiting, w)
	if i < 0 {
		return w.slot, <-w.in
	}
	q.waiting = slices.Delete(q.waiting, i, i+1)
	err := why()
	q.admitLocked()
	return nil, err
}

// Leave gives back the place of a run of which nothing is left. What live runs may still take is read anew:
// the one that is gone would be counted for up to claimTime, and hold up who fits by now.
func (q *Queue) Leave(s *Slot) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.live, s)
	q.taken = claim{}
	q.admitLocked()
}

// Started names the run that a slot is for, so that what it uses is counted.
func (q *Queue) Started(s *Slot, run string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s.run = run
}

// Resize has a run's place count for so much memory, and refuses more than the node has room for. What is less is always taken.
func (q *Queue) Resize(s *Slot, memory int64) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	why := ""
	if more := memory - s.memory; more > 0 && !q.fitsMemory(more, nil, &why) {
		return fullError(why)
	}
	s.memory, q.taken = memory, claim{}
	q.admitLocked()
	return nil
}

// admitLocked lets in whoever fits now. The first that doesn't fit holds up those behind it: a large run would never
// come in past a stream of small ones.
func (q *Queue) admitLocked() {
	for len(q.waiting) > 0 {
		w, why := q.waiting[0], ""
		if !q.fits(w.slot.memory, nil, &why) {
			break
		}
		q.waiting = q.waiting[1:]
		q.live[w.slot] = struct{}{}
		w.in <- nil
	}
	q.again()
}

// again looks once more after retryTime, if anybody waits: memory that the host's other programs give back is
// told by nobody. There is one timer for all who wait, and none for a queue that is empty.
func (q *Queue) again() {
	if len(q.waiting) == 0 || q.retry != nil {
		return
	}
	q.retry = time.AfterFunc(retryTime, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.retry = nil
		q.admitLocked()
	})
}

// Close refuses everybody who waits or comes. Each waiter's answer has a place of its own to stand in, so
// that nobody who gives up at this moment holds up the others.
func (q *Queue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for _, w := range q.waiting {
		w.in <- errEnding
	}
	q.waiting = nil
}

// Set changes the limits. What waits and fits now is let in.
func (q *Queue) Set(l Limits) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.limits = l
	q.admitLocked()
}

// Counts returns how many runs live and how many wait.
func (q *Queue) Counts() (live, waiting int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.live), len(q.waiting)
}

// fits tells whether there is room, and why not. What live runs may still take counts against what is available,
// because limits of memory are promises: two runs that were let in by what is free at this moment could both use
// all of it later. Most runs never do, so a byte may be promised Share times over; the new run's own limit is always free at its
// start, and where many runs grow at once after that, the kernel ends the least privileged first (runtime.oomScore). The cheap bound is looked at first: if there is room even for all of every limit, nobody's use
// has to be read.
func (q *Queue) fits(memory int64, host *reading, why *string) bool {
	if q.limits.Runs > 0 && len(q.live) >= q.limits.Runs {
		*why = fmt.Sprintf("%d runs live, the most there may be", len(q.live))
		return false
	}
	return q.fitsMemory(memory, host, why)
}

func (q *Queue) fitsMemory(memory int64, host *reading, why *string) bool {
	if host == nil || time.Since(host.at) > aheadTime {
		host = q.look()
	}
	if host.err != nil {
		*why = host.err.Error()
		return false
	}
	if host.stalled > mostStalled {
		*why = fmt.Sprintf("the host waits for memory %.0f %% of its time (/proc/pressure/memory)", host.stalled)
		return false
	}
	free := host.available - q.limits.Reserve - memory
	if free >= q.share(q.promised()) {
		return true // even if none of the live ones used anything yet
	}
	if free >= q.share(q.claimed()) {
		return true
	}
	*why = fmt.Sprintf("%d MiB of memory available, of which live runs may take %d and the host keeps %d", host.available>>20, q.share(q.claimed())>>20, q.limits.Reserve>>20)
	return false
}

func (q *Queue) share(bytes int64) int64 { return int64(float64(bytes) / max(q.limits.Share, 1)) }

func (q *Queue) promised() (sum int64) {
	for s := range q.live {
		sum += s.memory
	}
	return sum
}

// claimed is what of that isn't in use: what is, is not available any more.
func (q *Queue) claimed() int64 {
	if now := time.Now(); now.Sub(q.taken.at) > claimTime {
		q.taken = claim{at: now}
		for s := range q.live {
			q.taken.bytes += max(0, s.memory-q.host.Used(s.run))
		}
	}
	return q.taken.bytes
}

// ThisHost asks the kernel.
func ThisHost() Memory {
	return Memory{Available: memAvailable, Used: func(run string) int64 {
		if run == "" {
			return 0
		}
		group, err := cgroups.Open("agentrun/" + run)
		if err != nil {
			return 0
		}
		if group.Frozen() {
			return math.MaxInt64
		}
		stats, err := group.Stats()
		if err != nil {
			return 0
		}
		return stats.MemoryCurrent
	}, Stalled: memStalled}
}

// memStalled reads PSI (Documentation/accounting/psi.rst); 0 where the kernel keeps none.
func memStalled() (percent float64) {
	text, err := read.Kernel("/proc/pressure/memory")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "full avg10="); ok {
			number, _, _ := strings.Cut(rest, " ")
			percent, _ = strconv.ParseFloat(number, 64)
			return percent
		}
	}
	return 0
}

// memAvailable is the kernel's own estimate (proc_meminfo(5)).
func memAvailable() (int64, error) {
	text, err := read.Kernel("/proc/meminfo")
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

// Spare tells whether the host has so many bytes more than its reserve, and nobody waits for them.
func (q *Queue) Spare(bytes int64) bool {
	q.mu.Lock()
	reserve, waiting := q.limits.Reserve, len(q.waiting)
	q.mu.Unlock()
	available, err := q.host.Available()
	return waiting == 0 && err == nil && available > reserve+bytes
}
