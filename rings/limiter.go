// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"math"
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
	// MaxBuckets bounds how many agents and sessions are counted at once on a node (H-17, package meter).
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

// mostCost is the dearest call: each bucket holds more.
const mostCost = 3

// Draw takes as many tokens as a call in ring r costs (Action.RateCost), at least one, from a bucket that will be full again at fullAt, or was full then; now is of the
// same clock, which nobody sets back. It returns when the bucket will be full after that: fullAt itself if the call is refused, which
// costs nothing, or if r is Root, which has no bucket and leaves the one of lesser days as it is.
//
// The used fraction stays when the ring changes: an agent that emptied its bucket in ring 1 finds it empty in ring 3, and one
// that flaps between rings gets back in a second what either of them would have given it.
func Draw(fullAt, now int64, r Ring, cost int) (int64, RateResult) {
	limit, unlimited := RateLimitOf(r)
	if unlimited {
		return fullAt, RateResult{Allowed: true, Unlimited: true, Code: CodeOK}
	}
	now = min(max(now, 0), farthestNow)
	token := int64(time.Second) / int64(limit.PerSecond)
	takes := token * int64(min(max(cost, 1), mostCost))
	used := min(max(fullAt-now, 0), int64(refillTime))
	if over := used + takes - int64(refillTime); over > 0 {
		return fullAt, RateResult{Tokens: tokens(used, token), RetryAfter: time.Duration(over), Code: CodeRateLimited}
	}
	used += takes
	return now + used, RateResult{Allowed: true, Tokens: tokens(used, token), Code: CodeOK}
}

func tokens(used, cost int64) float64 { return float64(int64(refillTime)-used) / float64(cost) }
