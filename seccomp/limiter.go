// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"cmp"
	"time"
)

// spacer spaces calls out (the generic cell rate algorithm): each one moves the schedule by one interval; as long as the
// schedule is less than the burst ahead of the clock, the call leaves at once.
type spacer struct {
	interval, burst time.Duration // 0: nothing waits
	next            time.Time     // when the schedule has caught up with everything so far
}

// newSpacer takes the usual rate and burst where they are 0; a rate below that is none.
func newSpacer(rate, burst, usualRate, usualBurst int) spacer {
	rate = cmp.Or(rate, usualRate)
	if rate < 0 {
		return spacer{}
	}
	interval := time.Second / time.Duration(rate)
	return spacer{interval: interval, burst: time.Duration(cmp.Or(max(burst, 0), usualBurst)) * interval}
}

// spend moves the schedule, and returns when what it is spent for may leave.
func (s *spacer) spend(now time.Time, cost time.Duration) (due time.Time) {
	if s.next.Before(now) {
		s.next = now
	}
	s.next = s.next.Add(cost)
	return s.next.Add(-s.burst)
}

// wait is 0 where the next call need not; else a millisecond or more, so that a flood doesn't wake us for each. It is for calls that
// are let run, which can't be held after they are decided: by then another ring may hold.
func (s *spacer) wait(now time.Time) time.Duration {
	if wait := s.next.Add(-s.burst).Sub(now); wait > 0 {
		return max(wait, time.Millisecond)
	}
	return 0
}

// limiter spaces refusals out. Due times never decrease, so a ring buffer holds them in order.
type limiter struct {
	spacer
	ring    []heldCall
	head, n int
}

// heldCall is a call with its answer, and when that may leave.
type heldCall struct {
	id     uint64
	pid    int
	due    time.Time
	answer Answer
}

func newLimiter(rate, burst int) limiter {
	l := limiter{spacer: newSpacer(rate, burst, DefaultDenyRate, DefaultDenyBurst)}
	if l.interval > 0 {
		l.ring = make([]heldCall, maxHeld)
	}
	return l
}

// hold takes a refusal to be answered later, or says false when it may leave now. Not to be called when full.
func (l *limiter) hold(now time.Time, c heldCall) bool {
	if l.interval == 0 {
		return false
	}
	cost := l.interval
	if c.answer.light {
		cost /= 8 // what it costs us: 20 µs in a flood, and a refusal 100
	}
	c.due = l.spend(now, cost)
	if !c.due.After(now) && l.n == 0 {
		return false
	}
	l.ring[(l.head+l.n)%len(l.ring)] = c
	l.n++
	return true
}

func (l *limiter) full() bool       { return l.n > 0 && l.n == len(l.ring) }
func (l *limiter) first() *heldCall { return &l.ring[l.head] }

func (l *limiter) pop() {
	l.ring[l.head] = heldCall{}
	l.head = (l.head + 1) % len(l.ring)
	l.n--
}
