// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"slices"
	"time"
)

// Severity says how much an agent's refused attempts look like an attack (H-24). Its JSON is its name.
type Severity uint8

const (
	SeverityNone Severity = iota
	SeverityLow
	SeverityMedium
	SeverityHigh     // trips
	SeverityCritical // trips
)

// String returns the name; what isn't known is the worst.
func (s Severity) String() string {
	return [...]string{"none", "low", "medium", "high", "critical"}[min(s, SeverityCritical)]
}

// MarshalText returns the name.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Trips tells whether s trips the breaker: something must follow, as the run's on_breach says.
func (s Severity) Trips() bool { return s >= SeverityHigh }

// BreachWindow is how long an attempt counts (H-24). One made exactly that long ago no longer does.
const BreachWindow = 60 * time.Second

// The thresholds are sums of weights within one window. The weight is the square of the distance: 1 for the next
// ring up, 4 for two, 9 from the sandbox to root. The next ring is what elevation is for, and honest agents run into
// its wall: a model that was refused tries again, commonly twice more. Two rings up is no slip any more, and root is
// never given to an agent at all; asking must cost more than proportionally.
//
//	                          low         medium        high (trips)   critical (trips)
//	next ring up, ×1          3           10            20             40
//	two rings up, ×4          1           3             5              10
//	sandbox to root, ×9       1           2             3              5
//
// So an ordinary call and its two retries into the next ring stay at low, a single attempt of any kind can't trip, and
// hammering at the next ring trips after 20 in a minute: one in three seconds without rest, though each was refused.
const (
	lowScore      = 3
	mediumScore   = 10
	highScore     = 20
	criticalScore = 40
)

func severityOf(score int) Severity {
	switch {
	case score >= criticalScore:
		return SeverityCritical
	case score >= highScore:
		return SeverityHigh
	case score >= mediumScore:
		return SeverityMedium
	case score >= lowScore:
		return SeverityLow
	}
	return SeverityNone
}

// BreachWeight is what an attempt counts of an agent in ring agent at something that needs ring called: 0 at or below
// its own privilege, else the square of the number of rings between. An agent without ring counts as sandboxed, a call
// of no known ring as one for root: what can't be placed is taken for the worst.
func BreachWeight(agent, called Ring) int {
	if !called.Valid() {
		called = Root
	}
	above := agent.Value() - called.Value()
	if above <= 0 {
		return 0
	}
	return above * above
}

// neverWeight makes three system calls that no ring has a breach, in every ring: no agent is ever given them, no program of daily use
// needs them, so there is nothing to be lenient about but a slip and its repetition.
const neverWeight = 7

// CallWeight is what a refused system call counts. never: no ring has it.
func CallWeight(agent, called Ring, never bool) int {
	w := BreachWeight(agent, called)
	if never && w > 0 {
		w = max(w, neverWeight)
	}
	return w
}

// BreachResult is what the detector makes of an attempt. The zero value is what nothing but ordinary calls gives.
type BreachResult struct {
	Severity Severity `json:"severity"`
	Tripped  bool     `json:"tripped"` // the severity trips: quarantine or kill
	Score    int      `json:"score"`   // sum of weights in the window; beyond critical it may be too low
	Attempts int      `json:"attempts"`
}

// Attempts is one sliding window: the refused attempts of an agent in a session (H-24). Its zero value is an empty one. It
// holds as many as are needed to know the severity exactly: each weighs at least 1, so criticalScore of them are critical
// whatever else there was, and what is dropped to make room is older than all that is kept and leaves the window before it.
//
// It is plain data without pointers, so that it can lie in memory that processes share; whoever shares it takes turns.
type Attempts struct {
	at     [criticalScore]int64 // nanoseconds of the caller's clock, oldest first
	kind   [criticalScore]uint16
	weight [criticalScore]uint8
	n      uint8
}

// Add records one that weighs so much at a time, and judges all that count. One that weighs nothing (at or below the agent's
// own privilege, refused for its rate, say) only tells where the agent stands. A clock set back makes no attempt older. Of a kind other
// than 0 one counts within a window: a program that is refused and tries the same again and again is busy, one that tries many things
// is looking for a way.
func (a *Attempts) Add(now time.Duration, weight int, kind uint16) BreachResult {
	a.expire(now)
	if weight > 0 && (kind == 0 || !slices.Contains(a.kind[:a.n], kind)) {
		if a.n == criticalScore {
			a.drop(1)
		}
		at := int64(now)
		if a.n > 0 {
			at = max(at, a.at[a.n-1])
		}
		a.at[a.n], a.weight[a.n], a.kind[a.n] = at, uint8(min(weight, criticalScore)), kind
		a.n++
	}
	res := BreachResult{Attempts: int(a.n)}
	for _, w := range a.weight[:a.n] {
		res.Score += int(w)
	}
	res.Severity = severityOf(res.Score)
	res.Tripped = res.Severity.Trips()
	return res
}

// Over tells whether nothing counts any more.
func (a *Attempts) Over(now time.Duration) bool {
	b := *a
	b.expire(now)
	return b.n == 0
}

func (a *Attempts) expire(now time.Duration) {
	a.n = min(a.n, criticalScore) // shared memory may say anything
	old := 0
	for old < int(a.n) && int64(now)-a.at[old] >= int64(BreachWindow) {
		old++
	}
	a.drop(old)
}

func (a *Attempts) drop(n int) {
	copy(a.at[:], a.at[n:a.n])
	copy(a.weight[:], a.weight[n:a.n])
	copy(a.kind[:], a.kind[n:a.n])
	a.n -= uint8(n)
}

// Call is one call of an agent as `agentrun conform` and tests give it: a call above the agent's ring is a denied
// attempt, any other an ordinary call.
type Call struct {
	AgentRing, CalledRing Ring
	At                    time.Time
}

// AssessCalls judges the calls of one agent in the order given. It returns the worst that was seen on the way, as a
// breaker does, which stays tripped when the window has moved on. A call that claims an earlier time than the one
// before it counts as made at the same time.
func AssessCalls(calls []Call) BreachResult {
	var worst BreachResult
	if len(calls) == 0 {
		return worst
	}
	var w Attempts
	start, now := calls[0].At, time.Duration(0)
	for _, c := range calls {
		now = max(now, c.At.Sub(start))
		if res := w.Add(now, BreachWeight(c.AgentRing, c.CalledRing), 0); res.Severity > worst.Severity || res.Score > worst.Score {
			worst = res
		}
	}
	return worst
}
