// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// handClock is a clock that tests set.
type handClock struct {
	mu  sync.Mutex
	now time.Time
}

func newHandClock() *handClock { return &handClock{now: time.Unix(1_700_000_000, 0)} }

func (c *handClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *handClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// bucket is one, with the clock that Draw wants to be told.
type bucket struct {
	clock  func() time.Time
	fullAt int64
}

func (b *bucket) Take(r Ring) (res RateResult) {
	b.fullAt, res = Draw(b.fullAt, b.clock().UnixNano(), r, 1)
	return res
}

// all takes until refused and returns how often it could.
func (b *bucket) all(r Ring) int {
	for n := 0; ; n++ {
		if !b.Take(r).Allowed || n > 1000 {
			return n
		}
	}
}

func TestH16Limits(t *testing.T) {
	for _, tt := range []struct {
		ring          Ring
		burst, second int
	}{
		{Privileged, 100, 50}, {Standard, 40, 20}, {Sandbox, 10, 5}, {NoRing, 10, 5}, {Ring(200), 10, 5},
	} {
		clock := newHandClock()
		l := &bucket{clock: clock.Now}
		if got := l.all(tt.ring); got != tt.burst {
			t.Errorf("%v: took %d from a full bucket, want %d", tt.ring, got, tt.burst)
		}
		clock.advance(time.Second)
		if got := l.all(tt.ring); got != tt.second {
			t.Errorf("%v: took %d a second later, want %d", tt.ring, got, tt.second)
		}
		clock.advance(time.Hour)
		if got := l.all(tt.ring); got != tt.burst {
			t.Errorf("%v: took %d an hour later, want %d", tt.ring, got, tt.burst)
		}
		limit, _ := RateLimitOf(tt.ring)
		if d := time.Duration(limit.Burst) * time.Second / time.Duration(limit.PerSecond); d != refillTime {
			t.Errorf("%v: a bucket fills in %v, want %v: the used fraction is kept as the time until full", tt.ring, d, refillTime)
		}
	}
}

func TestH16RootIsUnlimited(t *testing.T) {
	l := &bucket{clock: newHandClock().Now}
	l.all(Sandbox)
	was := l.fullAt
	for range 10_000 {
		if res := l.Take(Root); !res.Allowed || !res.Unlimited || l.fullAt != was {
			t.Fatalf("got %+v, want allowed, and the bucket as it was", res)
		}
	}
}

func TestH16RetryAfter(t *testing.T) {
	clock := newHandClock()
	l := &bucket{clock: clock.Now}
	l.all(Sandbox)
	clock.advance(50 * time.Millisecond)
	res := l.Take(Sandbox)
	if res.Allowed || res.Code != CodeRateLimited {
		t.Fatalf("got %+v, want %s", res, CodeRateLimited)
	}
	if res.RetryAfter != 150*time.Millisecond || res.Tokens != 0.25 {
		t.Errorf("got retry after %v with %v tokens, want 150ms, 0.25", res.RetryAfter, res.Tokens)
	}
	clock.advance(res.RetryAfter - 1)
	if l.Take(Sandbox).Allowed {
		t.Error("allowed a nanosecond before retry-after")
	}
	clock.advance(1)
	if !l.Take(Sandbox).Allowed {
		t.Error("refused after retry-after")
	}
}

func TestH17Flapping(t *testing.T) {
	clock := newHandClock()
	l := &bucket{clock: clock.Now}
	l.all(Privileged)
	for _, ring := range []Ring{Sandbox, Standard, Root, Sandbox, Privileged, NoRing, Standard} {
		if ring == Root {
			l.Take(ring)
			continue
		}
		if got := l.all(ring); got != 0 {
			t.Errorf("emptied in ring 1, %d tokens in %v", got, ring)
		}
	}
	clock.advance(time.Second) // half a bucket, whatever its size
	if res := l.Take(Sandbox); res.Tokens != 4 {
		t.Errorf("half full in ring 3: %v tokens after one was taken, want 4", res.Tokens)
	}
	if res := l.Take(Privileged); res.Tokens != 39 {
		t.Errorf("two fifths full in ring 1: %v tokens after one was taken, want 39", res.Tokens)
	}
}

// Whatever a word says that others could have written, and whatever the time, no more than a bucket is given, and nothing overflows.
func TestH17AnyWord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := rapid.Int64().Draw(t, "now")
		full, n := rapid.Int64().Draw(t, "full"), 0
		for ; n < 1000; n++ {
			next, res := Draw(full, now, Sandbox, 1)
			if res.Tokens < 0 || res.Tokens > 10 || res.RetryAfter < 0 || res.RetryAfter > refillTime {
				t.Fatalf("%d at %d: %+v", full, now, res)
			}
			if !res.Allowed {
				break
			}
			full = next
		}
		if n > 10 {
			t.Fatalf("%d tokens at once", n)
		}
	})
}

// In whatever way rings and clock go on, over any stretch of time an agent takes no more than one full bucket and what came back
// meanwhile, in fractions of a bucket.
func TestH17NothingGained(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clock := newHandClock()
		l := &bucket{clock: clock.Now}
		used, now := 0.0, time.Duration(0) // in buckets
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			d := time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "d"))
			clock.advance(d)
			now += d
			ring := rapid.SampledFrom([]Ring{NoRing, Privileged, Standard, Sandbox}).Draw(t, "ring")
			if l.Take(ring).Allowed {
				limit, _ := RateLimitOf(ring)
				used += 1 / float64(limit.Burst)
			}
			if may := 1 + float64(now)/float64(refillTime); used > may+1e-9 {
				t.Fatalf("used %v buckets, may %v", used, may)
			}
		}
	})
}
