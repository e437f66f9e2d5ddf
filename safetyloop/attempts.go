// SPDX-License-Identifier: Apache-2.0

package safetyloop

import (
	"context"
	"time"

	"agentrun/store"
)

const attemptsBucket = "safety_attempts"

// attempts are an agent's failed verifications, as kept (S-11). Times are the wall clock's in nanoseconds: a restart mustn't free
// anybody, and a monotonic clock ends with its process.
type attempts struct {
	Failures []int64 `json:"failures,omitempty"` // in the window
	Latest   int64   `json:"latest"`
	Locked   int64   `json:"locked_until,omitempty"`
	Level    int     `json:"level,omitempty"` // lockouts so far; each doubles the next
}

// outcome of an attempt. The zero value is none.
type outcome uint8

const (
	noOutcome outcome = iota
	right
	wrong
	lockedOut // wrong, and one too many
	refused   // locked out before: it wasn't looked at
)

func (o outcome) String() string {
	return [...]string{"none", "verified", "wrong_code", "locked_out", "refused"}[o]
}

func (a attempts) until() time.Time {
	if a.Locked == 0 {
		return time.Time{}
	}
	return time.Unix(0, a.Locked).UTC()
}

// fail counts one more. The clock only ever goes forward here: one that was set back would push the failures out of the window, or
// keep them in it for ever.
func (a *attempts) fail(now int64) outcome {
	now = max(now, a.Latest)
	if a.Latest != 0 && now-max(a.Latest, a.Locked) > int64(forgiveAfter) {
		a.Level = 0
	}
	a.Latest = now
	recent := a.Failures[:0]
	for _, at := range a.Failures {
		if now-at < int64(failureWindow) {
			recent = append(recent, at)
		}
	}
	a.Failures = append(recent, now)
	if len(a.Failures) < maxFailures {
		return wrong
	}
	lockout := maxLockout
	if a.Level < 10 {
		lockout = min(failureWindow<<a.Level, maxLockout)
	}
	a.Level++
	a.Locked = now + int64(lockout)
	return lockedOut
}

// attempt compares a code and counts a failure, in one transaction: two attempts at once, in whatever processes, can't both be the
// tenth. Whoever is locked out isn't compared at all. c is nil for a challenge that isn't there or isn't the caller's; that counts.
// An error means that nothing was verified.
func (l *Loop) attempt(ctx context.Context, who string, c *challenge, code string) (outcome, attempts, error) {
	now := l.now().UnixNano()
	got := noOutcome
	var kept attempts
	err := l.set.Store.Update(ctx, func(tx *store.Tx) error {
		b := tx.Bucket(attemptsBucket)
		if _, err := store.GetJSON(b, who, &kept); err != nil {
			return err
		}
		if now < kept.Locked {
			got = refused
			return nil
		}
		if kept.Locked != 0 {
			kept.Failures, kept.Locked = nil, 0
		}
		if c != nil && c.matches(code) {
			got = right
			return nil
		}
		got = kept.fail(now)
		return store.PutJSON(b, who, kept)
	})
	if err != nil {
		return noOutcome, attempts{}, err
	}
	return got, kept, nil
}

// forgetOldFailures clears at the start what no longer counts. An error changes nothing: what is left there only locks out.
func (l *Loop) forgetOldFailures() {
	ctx, cancel := context.WithTimeout(context.Background(), enforceTime)
	defer cancel()
	now := l.now().UnixNano()
	old := func(a attempts) bool { return now-max(a.Latest, a.Locked) > int64(forgiveAfter) }
	stale := false
	_ = l.set.Store.View(ctx, func(tx *store.Tx) error {
		return store.EachJSON(tx.Bucket(attemptsBucket), "", func(_ string, a attempts) error { stale = stale || old(a); return nil })
	})
	if !stale {
		return
	}
	_ = l.set.Store.Update(ctx, func(tx *store.Tx) error {
		b := tx.Bucket(attemptsBucket)
		return store.EachJSON(b, "", func(who string, a attempts) error {
			if old(a) {
				return b.Delete(who)
			}
			return nil
		})
	})
}
