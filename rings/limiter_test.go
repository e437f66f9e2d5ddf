// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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

// takeAll takes until refused and returns how often it could.
func takeAll(l *Limiter, agent, session string, ring Ring) int {
	for n := 0; ; n++ {
		if !l.Take(agent, session, ring).Allowed || n > 1000 {
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
		l := NewLimiter(clock.Now)
		if got := takeAll(l, "a", "s", tt.ring); got != tt.burst {
			t.Errorf("%v: took %d from a full bucket, want %d", tt.ring, got, tt.burst)
		}
		clock.advance(time.Second)
		if got := takeAll(l, "a", "s", tt.ring); got != tt.second {
			t.Errorf("%v: took %d a second later, want %d", tt.ring, got, tt.second)
		}
		clock.advance(time.Hour)
		if got := takeAll(l, "a", "s", tt.ring); got != tt.burst {
			t.Errorf("%v: took %d an hour later, want %d", tt.ring, got, tt.burst)
		}
		limit, _ := RateLimitOf(tt.ring)
		if d := time.Duration(limit.Burst) * time.Second / time.Duration(limit.PerSecond); d != refillTime {
			t.Errorf("%v: a bucket fills in %v, want %v: the used fraction is kept as the time until full", tt.ring, d, refillTime)
		}
	}
}

func TestH16RootIsUnlimited(t *testing.T) {
	l := NewLimiter(newHandClock().Now)
	for range 10_000 {
		if res := l.Take("a", "s", Root); !res.Allowed || !res.Unlimited {
			t.Fatalf("got %+v, want allowed", res)
		}
	}
	if l.Len() != 0 {
		t.Errorf("%d buckets, want none for ring 0", l.Len())
	}
}

func TestH16RetryAfter(t *testing.T) {
	clock := newHandClock()
	l := NewLimiter(clock.Now)
	takeAll(l, "a", "s", Sandbox)
	clock.advance(50 * time.Millisecond)
	res := l.Take("a", "s", Sandbox)
	if res.Allowed || res.Code != CodeRateLimited {
		t.Fatalf("got %+v, want %s", res, CodeRateLimited)
	}
	if res.RetryAfter != 150*time.Millisecond || res.Tokens != 0.25 {
		t.Errorf("got retry after %v with %v tokens, want 150ms, 0.25", res.RetryAfter, res.Tokens)
	}
	clock.advance(res.RetryAfter - 1)
	if l.Take("a", "s", Sandbox).Allowed {
		t.Error("allowed a nanosecond before retry-after")
	}
	clock.advance(1)
	if !l.Take("a", "s", Sandbox).Allowed {
		t.Error("refused after retry-after")
	}
}

func TestH16ZeroRefuses(t *testing.T) {
	for name, l := range map[string]*Limiter{"nil": nil, "zero": {}, "no clock": NewLimiter(nil)} {
		for _, ring := range []Ring{Root, Privileged, Sandbox} {
			if res := l.Take("a", "s", ring); res.Allowed {
				t.Errorf("%s limiter, %v: allowed", name, ring)
			}
		}
	}
	l := NewLimiter(newHandClock().Now)
	for _, key := range [][2]string{{"", "s"}, {"a", ""}, {strings.Repeat("a", 257), "s"}, {"a", strings.Repeat("s", 257)}} {
		if res := l.Take(key[0], key[1], Root); res.Code != CodeRateKey {
			t.Errorf("key %.10q: got %+v, want %s", key, res, CodeRateKey)
		}
	}
}

func TestH17KeysDontCollide(t *testing.T) {
	l := NewLimiter(newHandClock().Now)
	takeAll(l, "a", "b:c", Sandbox)
	if got := takeAll(l, "a:b", "c", Sandbox); got != 10 {
		t.Errorf(`("a:b","c") had %d tokens after ("a","b:c") took its own, want 10`, got)
	}
}

func TestH17Flood(t *testing.T) {
	clock := newHandClock()
	l := NewLimiter(clock.Now)
	if got := takeAll(l, "victim", "s", Sandbox); got != 10 {
		t.Fatalf("took %d", got)
	}
	for i := range MaxBuckets - 1 {
		if !l.Take("flood", strconv.Itoa(i), Sandbox).Allowed {
			t.Fatalf("bucket %d: refused", i)
		}
	}
	// Every bucket has been used: nobody comes in, and nobody's tokens come back.
	for i := range 1000 {
		res := l.Take("flood", "more"+strconv.Itoa(i), Sandbox)
		if res.Allowed || res.Code != CodeRateTableFull || res.RetryAfter != 200*time.Millisecond {
			t.Fatalf("bucket beyond the bound: got %+v, want %s and retry after 200ms", res, CodeRateTableFull)
		}
	}
	if res := l.Take("victim", "s", Sandbox); res.Allowed {
		t.Errorf("the flood filled a bucket: %+v", res)
	}
	// One of a token's time later the flood's buckets are full and make room; the emptied one isn't, and stays.
	clock.advance(200 * time.Millisecond)
	for i := range MaxBuckets - 1 {
		if !l.Take("second", strconv.Itoa(i), Sandbox).Allowed {
			t.Fatalf("bucket %d of the second flood: refused", i)
		}
	}
	if l.Take("second", "one too many", Sandbox).Allowed {
		t.Error("a bucket that wasn't full made room")
	}
	if got := takeAll(l, "victim", "s", Sandbox); got != 1 {
		t.Errorf("the emptied bucket has %d tokens after 200 ms, want 1", got)
	}
	if l.Len() != MaxBuckets {
		t.Errorf("%d buckets, want %d", l.Len(), MaxBuckets)
	}
}

func TestH17Flapping(t *testing.T) {
	clock := newHandClock()
	l := NewLimiter(clock.Now)
	takeAll(l, "a", "s", Privileged)
	for _, ring := range []Ring{Sandbox, Standard, Root, Sandbox, Privileged, NoRing, Standard} {
		if ring == Root {
			l.Take("a", "s", ring)
			continue
		}
		if got := takeAll(l, "a", "s", ring); got != 0 {
			t.Errorf("emptied in ring 1, %d tokens in %v", got, ring)
		}
	}
	clock.advance(time.Second) // half a bucket, whatever its size
	if res := l.Take("a", "s", Sandbox); res.Tokens != 4 {
		t.Errorf("half full in ring 3: %v tokens after one was taken, want 4", res.Tokens)
	}
	if res := l.Take("a", "s", Privileged); res.Tokens != 39 {
		t.Errorf("two fifths full in ring 1: %v tokens after one was taken, want 39", res.Tokens)
	}
}

func TestH17ClockSetBack(t *testing.T) {
	clock := newHandClock()
	l := NewLimiter(clock.Now)
	takeAll(l, "a", "s", Sandbox)
	for range 100 {
		clock.advance(-time.Hour)
		if got := takeAll(l, "a", "s", Sandbox); got != 0 {
			t.Fatalf("%d tokens from a clock that was set back", got)
		}
		clock.advance(time.Hour)
		if got := takeAll(l, "a", "s", Sandbox); got != 0 {
			t.Fatalf("%d tokens from a clock that swings", got)
		}
	}
	clock.advance(1 << 62)
	clock.advance(1 << 62)
	clock.advance(1 << 62)
	if got := takeAll(l, "a", "s", Sandbox); got != 10 {
		t.Errorf("%d tokens at the end of time, want 10", got)
	}
}

func TestH17Concurrent(t *testing.T) {
	l := NewLimiter(newHandClock().Now)
	var taken atomic.Int64
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			for range 10 {
				if l.Take("a", "s", Standard).Allowed {
					taken.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if taken.Load() != 40 {
		t.Errorf("100 goroutines took %d, want 40", taken.Load())
	}
}

// In whatever way rings, clocks and names change, over any stretch of time an agent takes no more than one full bucket
// and what came back meanwhile, in fractions of a bucket; and the heap's order and places stay right.
func TestH17NothingGained(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clock := newHandClock()
		l := NewLimiter(clock.Now)
		l.max = 4
		used := map[string]float64{} // in buckets
		begun := map[string]time.Duration{}
		var latest, now time.Duration
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			d := time.Duration(rapid.Int64Range(-int64(time.Second), int64(time.Second)).Draw(t, "d"))
			clock.advance(d)
			now += d
			latest = max(latest, now)
			agent := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"}).Draw(t, "agent")
			ring := rapid.SampledFrom([]Ring{NoRing, Privileged, Standard, Sandbox}).Draw(t, "ring")
			res := l.Take(agent, "s", ring)
			if res.Allowed {
				if _, ok := begun[agent]; !ok {
					begun[agent] = latest
				}
				limit, _ := RateLimitOf(ring)
				used[agent] += 1 / float64(limit.Burst)
			}
			if may := 1 + float64(latest-begun[agent])/float64(refillTime); used[agent] > may+1e-9 {
				t.Fatalf("%s used %v buckets, may %v", agent, used[agent], may)
			}
			checkHeap(t, l)
		}
	})
}

func checkHeap(t *rapid.T, l *Limiter) {
	if len(l.byFull) != len(l.buckets) || len(l.byFull) > l.max {
		t.Fatalf("%d in the heap, %d in the map, at most %d", len(l.byFull), len(l.buckets), l.max)
	}
	for i, b := range l.byFull {
		if b.place != i || l.buckets[b.key] != b || b.fullAt < l.byFull[(i-1)/2*min(i, 1)].fullAt {
			t.Fatalf("heap: bucket %d is %+v", i, b)
		}
	}
}

func BenchmarkTake(b *testing.B) {
	for _, n := range []int{1, 1000, MaxBuckets} {
		b.Run(fmt.Sprintf("buckets=%d", n), func(b *testing.B) {
			l := NewLimiter(time.Now)
			names := make([]string, n)
			for i := range names {
				names[i] = "agent-" + strconv.Itoa(i)
				l.Take(names[i], "session", Privileged)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				l.Take(names[i%n], "session", Privileged)
			}
		})
	}
	b.Run("flood", func(b *testing.B) {
		clock := newHandClock()
		l := NewLimiter(clock.Now)
		for i := range MaxBuckets {
			l.Take("agent", strconv.Itoa(i), Sandbox)
		}
		b.ReportAllocs()
		for b.Loop() {
			if l.Take("agent", "new", Sandbox).Allowed {
				b.Fatal("let in")
			}
		}
	})
	b.Run("parallel", func(b *testing.B) {
		l := NewLimiter(time.Now)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				l.Take("agent", "session", Privileged)
			}
		})
	})
}
