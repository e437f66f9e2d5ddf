// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"sync"
	"time"

	"agentrun/internal/read"
	"agentrun/profiles"
	"agentrun/rings"
	"agentrun/toolproxy/link"
)

// Lease is the time that a live run has: the limits it was started with, and what operators gave it since (M-3).
type Lease struct {
	Timeout profiles.Duration // wall clock, in all
	CPUTime profiles.Duration // processor time, in all
	Ends    time.Time         // by the wall clock, as far as is known: a run that waits for a human's word ends later. Zero: never
}

// More is what an operator adds to a lease; 0 adds nothing.
type More struct{ Timeout, CPUTime time.Duration }

// warnTime is how long before its end a run's operators, its terminal and the agent are told of it.
const warnTime = link.WarnTime

// leased is a run's lease, for those who follow it.
type leased struct {
	mu      sync.Mutex
	now     Lease
	changed chan struct{} // closed at the next change
}

func (l *leased) set(now Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = now
	close(l.changed)
	l.changed = make(chan struct{})
}

// Lease returns what holds, and a channel that is closed when it doesn't any more.
func (v *Live) Lease() (Lease, <-chan struct{}) {
	v.lease.mu.Lock()
	defer v.lease.mu.Unlock()
	return v.lease.now, v.lease.changed
}

// extension asks watch, whose the clocks are.
type extension struct {
	by   More
	done chan Lease // holds one
}

// Extend gives the run more time, within the ranges of the ring that holds (*InvalidSpec). agreed is asked before; its error leaves all
// as it was. The run that ended meanwhile gets none: ErrEnded. What else ends a run, as its agent's quarantine or a kill, stays.
func (v *Live) Extend(ctx context.Context, by More, agreed func(Lease) error) (Lease, error) {
	if err := v.take(ctx); err != nil {
		return Lease{}, err
	}
	defer v.give()
	was, _ := v.Lease()
	err := v.launch.plan.checkLease(v.now.ring, was, by)
	if err == nil {
		err = agreed(was.plus(by))
	}
	if err != nil {
		return was, err
	}
	e := extension{by, make(chan Lease, 1)}
	select {
	case v.extensions <- e:
	case <-v.life.Done():
		return was, ErrEnded
	case <-ctx.Done():
		return was, context.Cause(ctx)
	}
	now := <-e.done
	v.tell(LiveEvent{Kind: LiveExtended, Lease: now})
	return now, nil
}

// plus leaves the end to who has the clock.
func (l Lease) plus(by More) Lease {
	l.Timeout, l.CPUTime = l.Timeout.Plus(by.Timeout), l.CPUTime.Plus(by.CPUTime)
	return l
}

// checkLease holds a longer lease to the plan of the run's agent and to the ranges of a ring.
func (p *Plan) checkLease(ring rings.Ring, was Lease, by More) error {
	if by.Timeout < 0 || by.CPUTime < 0 || by == (More{}) {
		return errors.New("extend: want a time above zero")
	}
	var ps read.Problems
	r, to := p.ranges.Of(ring.Value()), was.plus(by)
	switch {
	case by.Timeout == 0:
	case was.Timeout == profiles.NoLimit:
		ps.Add("--timeout", "the run has none already")
	case to.Timeout > p.mostTime:
		ps.Add("--timeout", "the agent's plan gives a run %v at most", p.mostTime)
	default:
		if why := profiles.Outside(r, "timeout", to.Timeout, r.Timeout); why != "" {
			ps.Add("--timeout", "%s", why)
		}
	}
	if by.CPUTime > 0 {
		if why := profiles.Outside(r, "cpu_time", to.CPUTime, r.CPUTime); why != "" {
			ps.Add("--cpu-time", "%s", why)
		}
	}
	if len(ps) > 0 {
		return &InvalidSpec{ps}
	}
	return nil
}

// wallClock is the time limit of a run. Only watch's goroutine uses it. It fires twice: when the run is to be warned, which soon
// tells, and at the end.
type wallClock struct {
	*time.Timer
	now    func() time.Time
	ends   time.Time
	warned bool
	paused time.Time // since when it stands still; zero: it runs
	most   time.Duration
}

func newWallClock(limit time.Duration, now func() time.Time) *wallClock {
	c := &wallClock{Timer: time.NewTimer(limit), now: now, ends: now().Add(limit)}
	c.warned = limit <= warnTime // at its start would be no warning
	c.arm()
	return c
}

// arm sets the timer to what comes next.
func (c *wallClock) arm() {
	at := c.ends
	switch {
	case !c.paused.IsZero():
		at = c.ends.Add(c.most)
	case !c.warned:
		at = c.ends.Add(-warnTime)
	}
	c.Reset(at.Sub(c.now()))
}

// soon tells of a timer that has fired that it was for the warning.
func (c *wallClock) soon() bool {
	if c.warned || !c.paused.IsZero() {
		return false
	}
	c.warned = true
	c.arm()
	return true
}

// pause has the clock stand still for that long at most; 0: it goes on. One that stands still already stays as it is.
func (c *wallClock) pause(most time.Duration) {
	switch now := c.now(); {
	case most > 0 && c.paused.IsZero():
		c.paused, c.most = now, most
	case most == 0 && !c.paused.IsZero():
		c.ends = c.ends.Add(min(now.Sub(c.paused), c.most))
		c.paused = time.Time{}
	default:
		return
	}
	c.arm()
}

// extend puts the end off, and the warning with it.
func (c *wallClock) extend(by time.Duration) {
	c.ends = c.ends.Add(by)
	at := c.now()
	if !c.paused.IsZero() {
		at = c.paused // where it stands
	}
	c.warned = c.warned && c.ends.Sub(at) <= warnTime
	c.arm()
}
