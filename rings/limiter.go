// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"container/heap"
	"math"
	"strings"
	"sync"
	"time"
)

// RateLimit is what a ring may take (H-16).
type RateLimit struct {
	PerSecond int // tokens that come back each second
	Burst     int // tokens of a full bucket
}

// RateLimitOf returns r's limit; unlimited is true for Root only. What is no ring gets Sandbox's.
func RateLimitOf(r Ring) (limit RateLimit, unlimited bool) {
	switch r.OrSandbox() {
	case Root:
		return RateLimit{}, true
	case Privileged:
		return RateLimit{PerSecond: 50, Burst: 100}, false
	case Standard:
		return RateLimit{PerSecond: 20, Burst: 40}, false
	default:
		return RateLimit{PerSecond: 5, Burst: 10}, false
	}
}

const (
	// MaxBuckets bounds the limiter's memory (H-17): about 15 MB with names of ordinary length.
	MaxBuckets = 100_000

	// refillTime is how long an empty bucket takes to be full. It is the same in every ring: each burst is two
	// seconds of its rate, and TestH16 holds the table to that. So one number, the time until full, says which
	// fraction of a bucket is used whatever the ring, and a change of ring leaves it alone (H-17). Counted in
	// whole nanoseconds a token costs 20, 50 or 200 ms exactly: nothing is gained by rounding.
	refillTime = 2 * time.Second

	// farthestNow is where the limiter's time ends, 292 years on: what is added to it must not overflow.
	farthestNow = math.MaxInt64 - int64(2*refillTime)

	maxKeyBytes = MaxIdentifier // bounds what a key holds
)

const (
	CodeRateLimited   Code = "rate_limit_exceeded" // the bucket is empty
	CodeRateTableFull Code = "rate_table_full"     // MaxBuckets are in use and none is full
	CodeRateKey       Code = "rate_key_invalid"    // agent or session is empty or too long
	CodeUnconfigured  Code = "unconfigured"        // a zero value was asked
)

// RateResult is the answer to one Take. Its zero value refuses.
type RateResult struct {
	Allowed    bool
	Unlimited  bool          // ring 0: there is no bucket, and Tokens says nothing
	Tokens     float64       // left after this call; what the audit calls bucket_tokens
	RetryAfter time.Duration // when refused: the earliest time at which asking again can succeed; 0 if never
	Code       Code
}

// bucketKey keeps agent and session apart: joined into one string, ("a", "b:c") and ("a:b", "c") would share a bucket.
type bucketKey struct{ agent, session string }

type bucket struct {
	key    bucketKey
	fullAt int64 // when it will be full again, on the limiter's clock
	place  int   // in Limiter.byFull
}

// Limiter holds a token bucket for each agent in each session (H-16, H-17). It is safe for concurrent use;
// its zero value and nil refuse everything.
//
// A bucket can't be removed by anyone but the limiter: who could drop a bucket could refill it.
type Limiter struct {
	clock func() time.Time
	start time.Time
	max   int

	mu      sync.Mutex
	now     int64 // the latest time seen, from start
	buckets map[bucketKey]*bucket
	byFull  fullHeap
}

// NewLimiter returns a limiter that reads the time from clock (time.Now outside tests). A nil clock gives a
// limiter that refuses.
func NewLimiter(clock func() time.Time) *Limiter {
	l := &Limiter{clock: clock, max: MaxBuckets, buckets: map[bucketKey]*bucket{}}
	if clock != nil {
		l.start = clock()
	}
	return l
}

// Take takes one token from the bucket of agent in session, which is as large as ring says. A refused call costs nothing.
//
// A bucket's first use finds it full. The used fraction stays when the ring changes: an agent that emptied its bucket
// in ring 1 finds it empty in ring 3, and one that flaps between rings gets back in a second what either of them
// would have given it. Ring 0 has no bucket, and leaves the one of lesser days as it is.
func (l *Limiter) Take(agent, session string, ring Ring) RateResult {
	if l == nil || l.clock == nil {
		return RateResult{Code: CodeUnconfigured}
	}
	// Only lengths are checked: what an identifier may look like is decided where it is given out, and a struct key
	// keeps any two apart.
	if agent == "" || session == "" || len(agent) > maxKeyBytes || len(session) > maxKeyBytes {
		return RateResult{Code: CodeRateKey}
	}
	limit, unlimited := RateLimitOf(ring)
	if unlimited {
		return RateResult{Allowed: true, Unlimited: true, Code: CodeOK}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.advance()
	key := bucketKey{agent, session}
	b := l.buckets[key]
	if b == nil {
		if b = l.add(key, now); b == nil {
			return RateResult{RetryAfter: time.Duration(l.byFull[0].fullAt - now), Code: CodeRateTableFull}
		}
	}
	cost := int64(time.Second) / int64(limit.PerSecond)
	used := max(b.fullAt-now, 0)
	if over := used + cost - int64(refillTime); over > 0 {
		return RateResult{Tokens: tokens(used, cost), RetryAfter: time.Duration(over), Code: CodeRateLimited}
	}
	used += cost
	b.fullAt = now + used
	heap.Fix(&l.byFull, b.place)
	return RateResult{Allowed: true, Tokens: tokens(used, cost), Code: CodeOK}
}

func tokens(used, cost int64) float64 { return float64(int64(refillTime)-used) / float64(cost) }

// advance reads the clock. The limiter's time is the latest it was ever told: a clock set back earns nothing, and
// neither does one that swings, since only what lies beyond its farthest swing counts as time.
func (l *Limiter) advance() int64 {
	l.now = max(l.now, min(int64(l.clock().Sub(l.start)), farthestNow))
	return l.now
}

// add makes a full bucket for key, in place of a full one if there is no room; nil if there is none. A full bucket
// says of its owner only that it exists, so whoever comes back after its was dropped gains nothing. Dropping any other
// would give its owner the tokens back, and a flood of made-up sessions would be a way to get them (H-17).
func (l *Limiter) add(key bucketKey, now int64) *bucket {
	if len(l.byFull) >= l.max {
		// The root of the heap is the bucket that is full first: if it isn't, none is. So a flood of new keys costs
		// one comparison each.
		if len(l.byFull) == 0 || l.byFull[0].fullAt > now {
			return nil
		}
		delete(l.buckets, heap.Pop(&l.byFull).(*bucket).key)
	}
	// Cloned, or a name cut out of a large request would keep the request in memory.
	b := &bucket{key: bucketKey{strings.Clone(key.agent), strings.Clone(key.session)}, fullAt: now}
	l.buckets[b.key] = b
	heap.Push(&l.byFull, b)
	return b
}

// Len returns how many buckets there are, at most MaxBuckets.
func (l *Limiter) Len() int {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.byFull)
}

// fullHeap orders buckets by when they are full, the first at the root.
type fullHeap []*bucket

func (h fullHeap) Len() int           { return len(h) }
func (h fullHeap) Less(i, j int) bool { return h[i].fullAt < h[j].fullAt }

func (h fullHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

func (h *fullHeap) Push(x any) {
	b := x.(*bucket)
	b.place = len(*h)
	*h = append(*h, b)
}

func (h *fullHeap) Pop() any {
	old := *h
	b := old[len(old)-1]
	old[len(old)-1] = nil // or the array keeps it alive
	*h = old[:len(old)-1]
	return b
}
