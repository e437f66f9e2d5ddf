// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"encoding/json"
	"fmt"
	"strconv"
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
	clock := newHandClock()
	d := NewBreachDetector(clock.Now)
	for range 2 {
		d.Denied("a", "s", Sandbox, Root)
	}
	clock.advance(BreachWindow - 1)
	if res := d.Denied("a", "s", Sandbox, Sandbox); res.Severity != SeverityMedium || res.Raised {
		t.Errorf("a nanosecond before the window's end: %+v, want medium, not raised", res)
	}
	if res := d.Denied("a", "s", Sandbox, Root); res.Severity != SeverityHigh || !res.Tripped || !res.Raised {
		t.Errorf("third attempt: %+v, want high, tripped, raised", res)
	}
	clock.advance(1)
	if res := d.Denied("a", "s", Sandbox, Sandbox); res.Score != 9 || res.Attempts != 1 {
		t.Errorf("at the window's end: %+v, want only the last attempt", res)
	}
	if res := d.Denied("a", "other", Sandbox, Sandbox); res.Score != 0 {
		t.Errorf("another session: %+v, want none of this one's", res)
	}
}

func TestH24ClockSetBack(t *testing.T) {
	clock := newHandClock()
	d := NewBreachDetector(clock.Now)
	d.Denied("a", "s", Sandbox, Root)
	clock.advance(-24 * time.Hour)
	d.Denied("a", "s", Sandbox, Root)
	if res := d.Denied("a", "s", Sandbox, Root); !res.Tripped {
		t.Errorf("three attempts under a clock that was set back: %+v, want tripped", res)
	}
}

func TestH24ZeroTrips(t *testing.T) {
	for name, d := range map[string]*BreachDetector{"nil": nil, "zero": {}, "no clock": NewBreachDetector(nil)} {
		if res := d.Denied("a", "s", Sandbox, Standard); !res.Tripped {
			t.Errorf("%s: %+v, want tripped", name, res)
		}
	}
}

// A flood of names neither washes an agent clean nor finds a place to hide.
func TestH24Bounded(t *testing.T) {
	clock := newHandClock()
	d := NewBreachDetector(clock.Now)
	d.max = 100
	for range 2 {
		d.Denied("hostile", "s", Sandbox, Root)
	}
	var last BreachResult
	for i := range 1000 {
		last = d.Denied("flood", strconv.Itoa(i), Sandbox, Root)
	}
	if d.Len() != 100 {
		t.Errorf("%d windows, want 100", d.Len())
	}
	if !last.Shared || last.Severity != SeverityCritical {
		t.Errorf("names beyond the bound: %+v, want shared and critical", last)
	}
	if res := d.Denied("hostile", "s", Sandbox, Root); !res.Tripped || res.Shared {
		t.Errorf("third attempt after the flood: %+v, want tripped", res)
	}
	clock.advance(BreachWindow)
	if res := d.Denied("new", "s", Sandbox, Root); res.Shared || res.Score != 9 || d.Len() != 1 {
		t.Errorf("a minute later: %+v and %d windows, want a window of its own and no other", res, d.Len())
	}
}

// What the bounded window says is what adding up all attempts would.
func TestH24WindowIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clock := newHandClock()
		d := NewBreachDetector(clock.Now)
		type attempt struct {
			at     time.Time
			weight int
		}
		var all []attempt
		for range rapid.IntRange(1, 300).Draw(t, "calls") {
			clock.advance(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond)
			agent, called := rapid.SampledFrom([]Ring{Privileged, Standard, Sandbox}).Draw(t, "agent"), rapid.SampledFrom([]Ring{Root, Privileged, Standard, Sandbox}).Draw(t, "called")
			all = append(all, attempt{clock.Now(), BreachWeight(agent, called)})
			score := 0
			for _, a := range all {
				if clock.Now().Sub(a.at) < BreachWindow {
					score += a.weight
				}
			}
			if got := d.Denied("a", "s", agent, called); got.Severity != severityOf(score) {
				t.Fatalf("got %+v, want %v of score %d", got, severityOf(score), score)
			}
		}
	})
}

func BenchmarkBreach(b *testing.B) {
	for _, n := range []int{1, 10_000} {
		b.Run(fmt.Sprintf("agents=%d", n), func(b *testing.B) {
			d := NewBreachDetector(time.Now)
			names := make([]string, n)
			for i := range names {
				names[i] = "agent-" + strconv.Itoa(i)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				d.Denied(names[i%n], "session", Sandbox, Standard)
			}
		})
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
