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
	now := e.options.Now()
	e.clock.advance(now)
	return now
}

// whyEndedLocked returns why the loan is over at now, or "". The ratchet stands still while the machine is suspended, wall
// time doesn't; wall time can be set back, the ratchet can't. The first to say that it is over wins.
func (e *Elevations) whyEndedLocked(now time.Time) Code {
	switch {
	case e.clock.elapsed >= e.held.end || !now.Round(0).Before(e.held.ExpiresAt):
		return CodeExpired
	case e.quarantined():
		return CodeQuarantined
	case e.options.Trust != nil:
		score, consensus := e.options.Trust()
		if d := elevationEarned(e.held.Target, score, consensus); !d.Allowed() {
			return d.Code
		}
	}
	return ""
}

// activeLocked tells whether there is an elevation that counts; one that is over is dropped for good, whatever the clock
// or the score do next.
func (e *Elevations) activeLocked(now time.Time) bool {
	if e.held == nil {
		return false
	}
	if code := e.whyEndedLocked(now); code != "" {
		e.ended = append(e.ended, EndedElevation{e.held.Elevation, code})
		e.held = nil
	}
	return e.held != nil
}
