// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"encoding/json"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func repeat(n int, agent, called Ring, every time.Duration) []Call {
	calls := make([]Call, n)
	for i := range calls {
		calls[i] = Call{agent, called, time.Unix(0, 0).Add(time.Duration(i) * every)}
	}
	return calls
}

func TestH24Severity(t *testing.T) {
	for _, tt := range []struct {
		name  string
		calls []Call
		want  Severity
	}{
		{"nothing", nil, SeverityNone},
		{"a few ordinary calls at once", repeat(5, Sandbox, Sandbox, 0), SeverityNone},
		{"thousands of ordinary calls", repeat(5000, Standard, Sandbox, time.Millisecond), SeverityNone},
		{"two slips", repeat(2, Sandbox, Standard, 0), SeverityNone},
		{"one slip and its retries", repeat(3, Sandbox, Standard, time.Second), SeverityLow},
		{"ten", repeat(10, Standard, Privileged, time.Second), SeverityMedium},
		{"hammering", repeat(20, Standard, Privileged, time.Second), SeverityHigh},
		{"hammering harder", repeat(40, Standard, Privileged, time.Second), SeverityCritical},
		{"hammering slowly", repeat(200, Standard, Privileged, 4*time.Second), SeverityMedium},
		{"two rings up, once", repeat(1, Sandbox, Privileged, 0), SeverityLow},
		{"two rings up, five times", repeat(5, Sandbox, Privileged, time.Second), SeverityHigh},
		{"root, once", repeat(1, Sandbox, Root, 0), SeverityLow},
		{"root, twice", repeat(2, Sandbox, Root, 0), SeverityMedium},
		{"root, three times", repeat(3, Sandbox, Root, 0), SeverityHigh},
		{"root, five times", repeat(5, Sandbox, Root, 0), SeverityCritical},
		{"root, once a minute", repeat(50, Sandbox, Root, time.Minute), SeverityLow},
		{"no ring calls no ring", repeat(5, NoRing, NoRing, 0), SeverityCritical},
		{"ring 0 calls ring 0", repeat(50, Root, Root, 0), SeverityNone},
	} {
		got := AssessCalls(tt.calls)
		if got.Severity != tt.want || got.Tripped != (tt.want >= SeverityHigh) {
			t.Errorf("%s: got %v, tripped %v, want %v", tt.name, got.Severity, got.Tripped, tt.want)
		}
	}
}

func TestH24WindowSlides(t *testing.T) {
	var w Attempts
	root := BreachWeight(Sandbox, Root)
	for range 2 {
		w.Add(0, root, 0)
	}
	if res := w.Add(BreachWindow-1, 0, 0); res.Severity != SeverityMedium || w.Over(BreachWindow-1) {
		t.Errorf("a nanosecond before the window's end: %+v, want medium", res)
	}
	if res := w.Add(BreachWindow-1, root, 0); res.Severity != SeverityHigh || !res.Tripped {
		t.Errorf("third attempt: %+v, want high, tripped", res)
	}
	if res := w.Add(BreachWindow, 0, 0); res.Score != 9 || res.Attempts != 1 {
		t.Errorf("at the window's end: %+v, want only the last attempt", res)
	}
	if w.Over(2*BreachWindow-2) || !w.Over(2*BreachWindow-1) {
		t.Error("the last attempt counts for a window, no less and no more")
	}
}

func TestH24ClockSetBack(t *testing.T) {
	var w Attempts
	var res BreachResult
	for _, at := range []time.Duration{24 * time.Hour, 0, time.Hour} {
		res = w.Add(at, BreachWeight(Sandbox, Root), 0)
	}
	if !res.Tripped {
		t.Errorf("three attempts under a clock that was set back: %+v, want tripped", res)
	}
}

// A flood of attempts is critical, and washes nobody clean; nor does a count that others wrote.
func TestH24Bounded(t *testing.T) {
	w := Attempts{n: 255}
	var last BreachResult
	for range 1000 {
		last = w.Add(time.Hour, BreachWeight(Sandbox, Standard), 0)
	}
	if last.Severity != SeverityCritical || last.Attempts != criticalScore {
		t.Errorf("%+v, want critical", last)
	}
	if res := w.Add(time.Hour+BreachWindow, BreachWeight(Sandbox, Root), 0); res.Score != 9 || res.Attempts != 1 {
		t.Errorf("a minute later: %+v, want the one attempt", res)
	}
}

// What the bounded window says is what adding up all attempts would.
func TestH24WindowIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w Attempts
		type attempt struct {
			at     time.Duration
			weight int
		}
		var all []attempt
		var now time.Duration
		for range rapid.IntRange(1, 300).Draw(t, "calls") {
			now += time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond
			agent, called := rapid.SampledFrom([]Ring{Privileged, Standard, Sandbox}).Draw(t, "agent"), rapid.SampledFrom([]Ring{Root, Privileged, Standard, Sandbox}).Draw(t, "called")
			all = append(all, attempt{now, BreachWeight(agent, called)})
			score := 0
			for _, a := range all {
				if now-a.at < BreachWindow {
					score += a.weight
				}
			}
			if got := w.Add(now, BreachWeight(agent, called), 0); got.Severity != severityOf(score) {
				t.Fatalf("got %+v, want %v of score %d", got, severityOf(score), score)
			}
		}
	})
}

func BenchmarkBreach(b *testing.B) {
	var w Attempts
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		w.Add(time.Duration(i), BreachWeight(Sandbox, Standard), 0)
	}
}

func TestH24SeverityNames(t *testing.T) {
	for s, want := range map[Severity]string{SeverityNone: "none", SeverityLow: "low", SeverityMedium: "medium", SeverityHigh: "high", SeverityCritical: "critical", 99: "critical"} {
		if got, err := json.Marshal(s); err != nil || string(got) != `"`+want+`"` {
			t.Errorf("%d: got %s, %v, want %s", s, got, err, want)
		}
		if s.Trips() != (s >= SeverityHigh) {
			t.Errorf("%v trips: %v", s, s.Trips())
		}
	}
}

// H-24: of a kind one attempt counts within a window, however often it is made; what has no kind counts each time.
func TestH24KindsCount(t *testing.T) {
	var w Attempts
	var res BreachResult
	for i := range 1000 {
		res = w.Add(time.Duration(i), BreachWeight(Sandbox, Privileged), 7)
	}
	if res.Score != 4 || res.Attempts != 1 {
		t.Errorf("the same a thousand times: %+v, want one attempt of 4", res)
	}
	for kind := range uint16(5) {
		res = w.Add(time.Second, BreachWeight(Sandbox, Privileged), 8+kind)
	}
	if res.Score != 24 || !res.Tripped {
		t.Errorf("five others: %+v, want a breach", res)
	}
	if res = w.Add(time.Second+BreachWindow, BreachWeight(Sandbox, Privileged), 7); res.Score != 4 {
		t.Errorf("a minute later: %+v, want it counted anew", res)
	}
	for range 4 {
		res = w.Add(time.Second+BreachWindow, BreachWeight(Sandbox, Privileged), 0)
	}
	if res.Score != 20 {
		t.Errorf("without a kind: %+v, want 20", res)
	}
}

// H-24: three calls that no ring has are a breach in each ring; two, and one with all that an honest agent does beside it, are none.
func TestH24NeverWeighs(t *testing.T) {
	for _, ring := range []Ring{Privileged, Standard, Sandbox} {
		var w Attempts
		for n, want := range []Severity{SeverityLow, SeverityMedium, SeverityHigh} {
			if res := w.Add(0, CallWeight(ring, Root, true), 0); res.Severity != want {
				t.Errorf("%v, attempt %d: got %+v, want %v", ring, n+1, res, want)
			}
		}
	}
	if CallWeight(Sandbox, Standard, true) < BreachWeight(Sandbox, Standard) || CallWeight(Root, Root, true) != 0 || CallWeight(Sandbox, Root, false) != 9 {
		t.Error("CallWeight takes away from BreachWeight, or adds to nothing")
	}
}
