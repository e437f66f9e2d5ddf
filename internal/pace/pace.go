// SPDX-License-Identifier: Apache-2.0

// Package pace spreads requests in time: an agent that asks without end must not get a core of the gateway's, which is no part of
// the run's own limits. What comes too soon waits for its turn and is not refused, so nobody who is merely quick gets an error.
//
//	p := pace.New(500, 1000)
//	if !p.Wait(ctx) {
//		return ctx.Err()
//	}
//
// It bounds how often, not how much at once: whoever waits holds what it holds.
package pace

import (
	"context"
	"sync"
	"time"
)

// Pace compares arrival times with those of an even stream (the generic cell rate algorithm). Its methods can be called from
// several goroutines. The zero value lets nobody wait: make it with New.
type Pace struct {
	interval, ahead time.Duration

	mu   sync.Mutex
	next time.Time // when the next request of an even stream would come
}

// New returns a pace of perSecond requests, burst of which may come at once.
func New(perSecond, burst int) *Pace {
	interval := time.Second / time.Duration(perSecond)
	return &Pace{interval: interval, ahead: time.Duration(burst) * interval}
}

// Wait returns when it is this request's turn; false if ctx ended before.
func (p *Pace) Wait(ctx context.Context) bool {
	d := p.reserve(time.Now())
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Now takes a turn if there is one at once, and else none: then it tells in how long there is.
func (p *Pace) Now() (wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.next.Before(now) {
		p.next = now
	}
	if wait = p.next.Add(p.interval).Sub(now) - p.ahead; wait > 0 {
		return wait
	}
	p.next = p.next.Add(p.interval)
	return 0
}

// Owe takes n more turns for what has had one: those after it wait for them.
func (p *Pace) Owe(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = p.next.Add(time.Duration(n) * p.interval)
}

func (p *Pace) reserve(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next.Before(now) {
		p.next = now
	}
	p.next = p.next.Add(p.interval)
	return p.next.Sub(now) - p.ahead
}
