// SPDX-License-Identifier: Apache-2.0

package seccomp

import "time"

// limiter spaces refusals out (the generic cell rate algorithm): each one moves the schedule by one interval; as long as
// the schedule is less than the burst ahead of the clock, the answer leaves at once. Due times never decrease, so a ring
// buffer holds them in order.
type limiter struct {
	interval, burst time.Duration
	next            time.Time // when the schedule has caught up with everything answered so far
	ring            []heldCall
	head, n         int
}

// heldCall is a call with its answer, and when that may leave.
type heldCall struct {
	id     uint64
	pid    int
	due    time.Time
	answer Answer
}

func newLimiter(rate, burst int) limiter {
	if rate == 0 {
		rate = DefaultDenyRate
	}
	if burst <= 0 {
		burst = DefaultDenyBurst
	}
	if rate < 0 {
		return limiter{}
	}
	interval := time.Second / time.Duration(rate)
	return limiter{interval: interval, burst: time.Duration(burst) * interval, ring: make([]heldCall, maxHeld)}
}

// hold takes a refusal to be answered later, or says false when it may leave now. Not to be called when full.
func (l *limiter) hold(now time.Time, c heldCall) bool {
	if l.interval == 0 {
		return false
	}
	if l.next.Before(now) {
		l.next = now
	}
	cost := l.interval
	if c.answer.light {
		cost /= 8 // what it costs us: 20 µs in a flood, and a refusal 100
	}
	l.next = l.next.Add(cost)
	c.due = l.next.Add(-l.burst)
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

// spacer is the same for calls that are let run, which can't be held after they are decided: by then another ring may hold.
type spacer struct {
	interval, burst time.Duration
	next            time.Time
}

func newSpacer(rate, burst int) spacer {
	if rate == 0 {
		rate = DefaultAllowRate
	}
	if burst <= 0 {
		burst = DefaultAllowBurst
	}
	if rate < 0 {
		return spacer{}
	}
	interval := time.Second / time.Duration(rate)
	return spacer{interval: interval, burst: time.Duration(burst) * interval}
}

func (s *spacer) spend(now time.Time) {
	if s.next.Before(now) {
		s.next = now
	}
	s.next = s.next.Add(s.interval)
}

// wait is 0 where the next call need not; else a millisecond or more, so that a flood doesn't wake us for each.
func (s *spacer) wait(now time.Time) time.Duration {
	if wait := s.next.Add(-s.burst).Sub(now); wait > 0 {
		return max(wait, time.Millisecond)
	}
	return 0
}
