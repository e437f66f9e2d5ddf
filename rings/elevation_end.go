// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"math"
	"time"
)

// ratchet measures how long it has been by a clock that may be set back. Steps forward count, steps back count as no
// time at all. So an elevation that has expired can't become young again, and setting the clock back before it
// expires wins at most the time since the ratchet was last read. time.Now needs none of this, as its monotonic reading
// never goes back; a clock without one does.
type ratchet struct {
	last    time.Time
	elapsed time.Duration
}

func (r *ratchet) advance(now time.Time) {
	if step := now.Sub(r.last); step > 0 && !r.last.IsZero() {
		r.elapsed = addUpTo(r.elapsed, step)
	}
	r.last = now
}

// addUpTo adds durations that are not negative, and stays at the largest where they would overflow: what would last for
// ever is then over at once.
func addUpTo(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// readLocked reads the clock, within the lock so that two readings can't be used in the wrong order.
func (e *Elevations) readLocked() time.Time {
	clock := e.options.Now
	if clock == nil {
		clock = time.Now
	}
	now := clock()
	e.clock.advance(now)
	return now
}

// whyEnded returns why a loan is over at now, or "". The ratchet stands still while the machine is suspended, wall time
// doesn't; wall time can be set back, the ratchet can't. The first to say that it is over wins.
func (e *Elevations) whyEnded(l loan, now time.Time) Code {
	switch {
	case e.clock.elapsed >= l.end || !now.Round(0).Before(l.ExpiresAt):
		return CodeExpired
	case e.quarantined(l.Agent):
		return CodeQuarantined
	case e.options.Trust != nil:
		score, consensus := e.options.Trust(l.Agent)
		if d := elevationEarned(l.Target, score, consensus); !d.Allowed() {
			return d.Code
		}
	}
	return ""
}

// activeLocked tells whether the key has an elevation that counts; one that is over is dropped for good, whatever the clock
// or the score do next.
func (e *Elevations) activeLocked(key elevationKey, now time.Time) bool {
	l, held := e.held[key]
	if !held {
		return false
	}
	code := e.whyEnded(l, now)
	if code != "" {
		e.endLocked(l, code)
	}
	return code == ""
}

func (e *Elevations) sweepLocked(now time.Time) {
	for key := range e.held {
		e.activeLocked(key, now)
	}
}

// sweepEvery is how often a full table is looked through for elevations that are over. Without a pause each refused request
// would cost a walk over a hundred thousand of them, and that under the lock that every decision takes.
const sweepEvery = time.Second

// fullLocked makes room where it can: no request may depend on somebody having called Tick.
func (e *Elevations) fullLocked(now time.Time) bool {
	if len(e.held) < MaxElevationsAtOnce {
		return false
	}
	if e.swept == 0 || e.clock.elapsed-e.swept >= sweepEvery {
		e.sweepLocked(now)
		e.swept = max(e.clock.elapsed, 1)
	}
	return len(e.held) >= MaxElevationsAtOnce
}

// maxUncollected bounds the ended elevations that nobody has fetched with Tick.
const maxUncollected = 1000

func (e *Elevations) endLocked(l loan, code Code) {
	e.dropLocked(l)
	if len(e.ended) >= maxUncollected {
		e.ended = e.ended[1:]
	}
	e.ended = append(e.ended, EndedElevation{l.Elevation, code})
}

func (e *Elevations) dropLocked(l loan) {
	delete(e.held, elevationKey{l.Agent, l.Session})
	delete(e.byID, l.ID)
}
