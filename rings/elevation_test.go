// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// setClock is a clock that a test sets. It has no monotonic reading, so it can go back.
type setClock struct{ nanos atomic.Int64 }

func newSetClock() *setClock {
	c := &setClock{}
	c.nanos.Store(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixNano())
	return c
}

func (c *setClock) now() time.Time       { return time.Unix(0, c.nanos.Load()).UTC() }
func (c *setClock) add(d time.Duration)  { c.nanos.Add(int64(d)) }
func (c *setClock) set(at time.Time)     { c.nanos.Store(at.UnixNano()) }
func (c *setClock) elevate() *Elevations { return NewElevations(ElevationOptions{Now: c.now}) }

// asking is a request that is granted.
func asking() ElevationRequest {
	return ElevationRequest{Current: Sandbox, Target: Privileged, TrustScore: 0.85, HasConsensus: true}
}

func mustGrant(t *testing.T, e *Elevations, r ElevationRequest) Elevation {
	t.Helper()
	granted, d := e.Request(r)
	if !d.Allowed() || d.Code != CodeOK {
		t.Fatalf("request %+v: %+v", r, d)
	}
	return granted
}

// Each row leaves out what refuses before it and keeps everything that would refuse after it.
func TestH13ElevationOrder(t *testing.T) {
	all := ElevationRequest{Quarantined: true, TrustScore: math.NaN(), TTLSeconds: math.NaN()}
	for _, tt := range []struct {
		name            string
		current, target Ring
		change          func(*ElevationRequest)
		active          bool
		want            Code
	}{
		{"the same ring", Standard, Standard, nil, true, CodeInvalidTarget},
		{"less privileged", Privileged, Sandbox, nil, true, CodeInvalidTarget},
		{"ring 0 from ring 0", Root, Root, nil, true, CodeInvalidTarget},
		{"no target", Sandbox, NoRing, nil, true, CodeInvalidTarget},
		{"target 9", Sandbox, 9, nil, true, CodeInvalidTarget},
		{"no current ring", NoRing, Standard, nil, true, CodeInvalidTarget},
		{"ring 0", Privileged, Root, nil, true, CodeRing0Forbidden},
		{"ring 0 from ring 3", Sandbox, Root, nil, true, CodeRing0Forbidden},
		{"duplicate", Standard, Privileged, nil, true, CodeDuplicateElevation},
		{"quarantined", Standard, Privileged, nil, false, CodeQuarantined},
		{"no trust", Standard, Privileged, func(r *ElevationRequest) { r.Quarantined = false }, false, CodeInsufficientTrust},
		{"consensus", Standard, Privileged, func(r *ElevationRequest) { r.Quarantined, r.TrustScore = false, 0.85 }, false, CodeNoConsensus},
		{"ttl", Standard, Privileged, func(r *ElevationRequest) { r.Quarantined, r.TrustScore, r.HasConsensus = false, 0.85, true }, false, CodeInvalidTTL},
	} {
		e := newSetClock().elevate()
		if tt.active {
			mustGrant(t, e, asking())
		}
		r := all
		r.Current, r.Target = tt.current, tt.target
		if tt.change != nil {
			tt.change(&r)
		}
		got, d := e.Request(r)
		if d.Code != tt.want || d.Allowed() || d.Reason == "" || d.Rule == "" {
			t.Errorf("%s: got %+v, want %s", tt.name, d, tt.want)
		}
		if got != (Elevation{}) {
			t.Errorf("%s: refused, but with %+v", tt.name, got)
		}
	}
	if _, d := new(Elevations).Request(asking()); d.Code != CodeUnconfigured || d.Allowed() {
		t.Errorf("zero Elevations: %+v", d)
	}
}

func TestH13Thresholds(t *testing.T) {
	type row struct {
		target    Ring
		score     float64
		consensus bool
		want      Code
	}
	rows := []row{
		{Privileged, 0.85, true, CodeOK}, {Privileged, 1, true, CodeOK}, {Privileged, math.Nextafter(0.85, 0), true, CodeInsufficientTrust},
		{Privileged, 1, false, CodeNoConsensus}, {Privileged, 0.60, true, CodeInsufficientTrust}, {Privileged, 0.84, false, CodeInsufficientTrust},
		{Standard, 0.50, false, CodeOK}, {Standard, math.Nextafter(0.50, 0), true, CodeInsufficientTrust}, {Standard, 0, true, CodeInsufficientTrust},
	}
	for _, score := range noScores {
		rows = append(rows, row{Privileged, score, true, CodeInsufficientTrust}, row{Standard, score, true, CodeInsufficientTrust})
	}
	for _, tt := range rows {
		r := asking()
		r.Target, r.TrustScore, r.HasConsensus = tt.target, tt.score, tt.consensus
		if _, d := newSetClock().elevate().Request(r); d.Code != tt.want {
			t.Errorf("%+v: got %+v", tt, d)
		}
	}
}

func TestH13OneAtATime(t *testing.T) {
	e := newSetClock().elevate()
	mustGrant(t, e, asking())
	r := asking()
	r.Target = Standard
	if _, d := e.Request(r); d.Code != CodeDuplicateElevation {
		t.Errorf("a second one, to another ring: %+v", d)
	}
}

func TestH14Duration(t *testing.T) {
	for _, tt := range []struct {
		seconds float64
		want    time.Duration
	}{
		{0, 300 * time.Second}, {-1, 300 * time.Second}, {math.Inf(-1), 300 * time.Second}, {math.Copysign(0, -1), 300 * time.Second},
		{60, 60 * time.Second}, {0.5, 500 * time.Millisecond}, {3600, time.Hour}, {3600.1, time.Hour}, {1e300, time.Hour}, {math.Inf(1), time.Hour},
	} {
		clock := newSetClock()
		r := asking()
		r.TTLSeconds = tt.seconds
		got := mustGrant(t, clock.elevate(), r)
		if got.TTL() != tt.want || !got.GrantedAt.Equal(clock.now()) || !got.ExpiresAt.Equal(clock.now().Add(tt.want)) {
			t.Errorf("%v s: got %v, granted %v", tt.seconds, got.TTL(), got)
		}
	}
	r := asking()
	r.TTLSeconds = math.NaN()
	if _, d := newSetClock().elevate().Request(r); d.Code != CodeInvalidTTL {
		t.Errorf("NaN: %+v", d)
	}
}

func TestH14ExpiresWithoutTick(t *testing.T) {
	clock := newSetClock()
	e := clock.elevate()
	granted := mustGrant(t, e, asking())
	if got := e.Effective(Sandbox); got != Privileged {
		t.Errorf("at once: %v", got)
	}
	clock.set(granted.ExpiresAt.Add(-1))
	if got := e.Effective(Sandbox); got != Privileged {
		t.Errorf("a nanosecond before: %v", got)
	}
	clock.set(granted.ExpiresAt)
	if got := e.Effective(Sandbox); got != Sandbox {
		t.Errorf("in the instant of expiry: %v", got)
	}
	clock.set(granted.GrantedAt)
	if got := e.Effective(Sandbox); got != Sandbox {
		t.Errorf("after the clock was set back: %v", got)
	}
	if _, err := e.Revoke(granted.ID); !errors.Is(err, ErrElevationNotFound) {
		t.Errorf("revoking what expired: %v", err)
	}
	if diff := cmp.Diff([]EndedElevation{{granted, CodeExpired}}, e.Tick()); diff != "" {
		t.Errorf("Tick (-want +got):\n%s", diff)
	}
	if again := e.Tick(); len(again) != 0 {
		t.Errorf("told twice: %v", again)
	}
	mustGrant(t, e, asking()) // the place is free again
}

// Set back before it expires, too: the time that has been seen to pass has passed.
func TestH14ClockSetBack(t *testing.T) {
	clock := newSetClock()
	e := clock.elevate()
	r := asking()
	r.TTLSeconds = 100
	mustGrant(t, e, r)
	for i := range 4 {
		clock.add(24 * time.Second)
		if got := e.Effective(Sandbox); got != Privileged {
			t.Fatalf("after %d s: %v", (i+1)*24, got)
		}
		clock.add(-time.Hour)
		e.Effective(Sandbox)
	}
	clock.add(4 * time.Second)
	if got := e.Effective(Sandbox); got != Sandbox {
		t.Errorf("after 100 s that were seen to pass: %v", got)
	}
}

func TestH14ClockJumpsAhead(t *testing.T) {
	clock := newSetClock()
	e := clock.elevate()
	mustGrant(t, e, asking())
	clock.set(time.Date(2262, 1, 1, 0, 0, 0, 0, time.UTC))
	if got := e.Effective(Sandbox); got != Sandbox {
		t.Errorf("two centuries on: %v", got)
	}
	clock.set(time.Date(1700, 1, 1, 0, 0, 0, 0, time.UTC))
	e.Check(asking())                                      // reads the clock
	clock.set(time.Date(2262, 1, 1, 0, 0, 0, 0, time.UTC)) // the elapsed time overflows an int64
	if granted, d := e.Request(asking()); d.Allowed() && e.Effective(Sandbox) != Sandbox {
		t.Errorf("%v can't be measured any more, and counts", granted)
	}
}

// While the machine is suspended the monotonic reading stands still and wall time goes on: both must have time left.
func TestH14MachineSuspended(t *testing.T) {
	clock := newSetClock()
	e := clock.elevate()
	granted := mustGrant(t, e, asking())
	sleep := func(until time.Time) {
		clock.set(until)
		e.clock.last = until
	}
	sleep(granted.ExpiresAt.Add(-time.Second))
	if at, ok := e.Next(); !ok || !at.Equal(granted.ExpiresAt) {
		t.Errorf("Next: %v, want %v", at, granted.ExpiresAt)
	}
	if got := e.Effective(Sandbox); got != Privileged {
		t.Errorf("woken before: %v", got)
	}
	sleep(granted.ExpiresAt)
	if got := e.Effective(Sandbox); got != Sandbox {
		t.Errorf("woken after: %v", got)
	}
}

// A loan never lowers, and what is no ring is none of the better ones.
func TestEffectiveBase(t *testing.T) {
	e := newSetClock().elevate()
	r := asking()
	r.Target = Standard
	mustGrant(t, e, r)
	none := newSetClock().elevate()
	for base, want := range map[Ring][2]Ring{
		Root: {Root, Root}, Privileged: {Privileged, Privileged}, Standard: {Standard, Standard}, Sandbox: {Standard, Sandbox},
		NoRing: {Standard, Sandbox}, 255: {Standard, Sandbox},
	} {
		if got := e.Effective(base); got != want[0] {
			t.Errorf("base %v with a loan of ring 2: got %v, want %v", base, got, want[0])
		}
		if got := none.Effective(base); got != want[1] {
			t.Errorf("base %v: got %v, want %v", base, got, want[1])
		}
	}
}

// The same with the clock that is used, whose monotonic reading goes on.
func TestH14RealClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := NewElevations(ElevationOptions{})
		mustGrant(t, e, asking())
		at, ok := e.Next()
		if !ok || time.Until(at) != DefaultElevation {
			t.Errorf("Next: in %v, %v", time.Until(at), ok)
		}
		time.Sleep(time.Until(at) - 1)
		if got := e.Effective(Standard); got != Privileged {
			t.Errorf("before: %v", got)
		}
		time.Sleep(time.Nanosecond)
		if got := e.Effective(Standard); got != Standard {
			t.Errorf("after: %v", got)
		}
	})
}

func TestH14Next(t *testing.T) {
	clock := newSetClock()
	e := clock.elevate()
	if _, ok := e.Next(); ok {
		t.Error("nothing is held, and something expires next")
	}
	for _, want := range []time.Duration{30 * time.Second, 300 * time.Second} {
		r := asking()
		r.TTLSeconds = want.Seconds()
		mustGrant(t, e, r)
		at, ok := e.Next()
		if got := at.Sub(clock.now()); !ok || got != want {
			t.Fatalf("got %v, %v, want %v", got, ok, want)
		}
		clock.set(at)
		if ended := e.Tick(); len(ended) != 1 {
			t.Errorf("at Next: %v", ended)
		}
	}
}

func TestH15Revoke(t *testing.T) {
	e := newSetClock().elevate()
	for _, id := range []string{"", "x", "not-an-id"} {
		if _, err := e.Revoke(id); !errors.Is(err, ErrElevationNotFound) {
			t.Errorf("unknown id %q: %v", id, err)
		}
	}
	granted := mustGrant(t, e, asking())
	got, err := e.Revoke(granted.ID)
	if err != nil || got != granted {
		t.Errorf("got %+v, %v", got, err)
	}
	if got := e.Effective(Sandbox); got != Sandbox {
		t.Errorf("after it: %v", got)
	}
	if _, err := e.Revoke(granted.ID); !errors.Is(err, ErrElevationNotFound) {
		t.Errorf("twice: %v", err)
	}
	again := mustGrant(t, e, asking())
	if again.ID == granted.ID {
		t.Error("an id is used again: revoking by it would end the wrong one")
	}
	if _, err := new(Elevations).Revoke("x"); !errors.Is(err, ErrElevationNotFound) {
		t.Errorf("zero Elevations: %v", err)
	}
}

func TestH15ChildRing(t *testing.T) {
	for parent, want := range map[Ring]Ring{
		Root: Privileged, Privileged: Standard, Standard: Sandbox, Sandbox: Sandbox, NoRing: Sandbox, 5: Sandbox, 255: Sandbox,
	} {
		if got := ChildRing(parent); got != want {
			t.Errorf("child of %v: got %v, want %v", parent, got, want)
		}
	}
}

func TestElevationEndsWithWhatItNeeded(t *testing.T) {
	for _, tt := range []struct {
		name        string
		quarantined bool
		score       float64
		consensus   bool
		want        Code
		ring        Ring // while it lasts, from ring 2
	}{
		{"score drops", false, 0.84, true, CodeInsufficientTrust, Standard},
		{"score is lost", false, math.NaN(), true, CodeInsufficientTrust, Standard},
		{"consensus is lost", false, 1, false, CodeNoConsensus, Standard},
		{"quarantine", true, 1, true, CodeQuarantined, Sandbox},
	} {
		for _, first := range []string{"Effective", "Tick", "Revoke", "Active", "Request"} {
			quarantined, score, consensus := false, 0.9, true
			e := NewElevations(ElevationOptions{
				Now:         newSetClock().now,
				Quarantined: func() bool { return quarantined },
				Trust:       func() (float64, bool) { return score, consensus },
			})
			granted := mustGrant(t, e, asking())
			quarantined, score, consensus = tt.quarantined, tt.score, tt.consensus
			var ended []EndedElevation
			switch first {
			case "Effective":
				if got := e.Effective(Standard); got != tt.ring {
					t.Errorf("%s: %v", tt.name, got)
				}
			case "Tick":
				ended = e.Tick()
			case "Revoke":
				if _, err := e.Revoke(granted.ID); !errors.Is(err, ErrElevationNotFound) {
					t.Errorf("%s: revoke: %v", tt.name, err)
				}
			case "Active":
				if got, ok := e.Active(); ok {
					t.Errorf("%s: active: %v", tt.name, got)
				}
			case "Request":
				if _, d := e.Request(asking()); d.Code != tt.want {
					t.Errorf("%s: request: %+v", tt.name, d)
				}
			}
			quarantined, score, consensus = false, 1, true
			if got := e.Effective(Standard); got != Standard {
				t.Errorf("%s, seen by %s: it comes back: %v", tt.name, first, got)
			}
			if diff := cmp.Diff([]EndedElevation{{granted, tt.want}}, append(ended, e.Tick()...)); diff != "" {
				t.Errorf("%s, seen by %s: Tick (-want +got):\n%s", tt.name, first, diff)
			}
		}
	}
}

// modelLoan is what the rules say of one elevation, told without the code under test.
type modelLoan struct {
	id      string
	target  Ring
	left    time.Duration // of the time that is seen to pass
	expires time.Time
}

// Whatever happens in whatever order, with a clock that goes both ways: the effective ring is never above what base ring,
// running elevation, score and quarantine allow. The model looks after each step, so it knows the ring exactly.
func TestNoInterleavingEndsAboveTheRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clock := newSetClock()
		quarantined, score, consensus := false, rapid.SampledFrom([]float64{1, 0.7}).Draw(t, "first score"), true
		e := NewElevations(ElevationOptions{
			Now:         clock.now,
			Quarantined: func() bool { return quarantined },
			Trust:       func() (float64, bool) { return score, consensus },
		})
		var model *modelLoan
		earned := func(target Ring) bool {
			return target == Privileged && score >= 0.85 && score <= 1 && consensus || target == Standard && score >= 0.5 && score <= 1
		}
		t.Repeat(map[string]func(*rapid.T){
			"request": func(t *rapid.T) {
				r := ElevationRequest{
					Current: ringGen().Draw(t, "current"), Target: ringGen().Draw(t, "target"), TrustScore: score, HasConsensus: consensus,
					TTLSeconds: rapid.SampledFrom([]float64{-1, 0, 10, 1000, 5000, math.NaN()}).Draw(t, "ttl"),
				}
				granted, d := e.Request(r)
				want := (r.Target == Privileged || r.Target == Standard) && r.Current.Valid() && r.Target < r.Current && model == nil &&
					!quarantined && earned(r.Target) && !math.IsNaN(r.TTLSeconds)
				if d.Allowed() != want {
					t.Fatalf("%+v: got %+v, want allowed = %v", r, d, want)
				}
				if want {
					model = &modelLoan{granted.ID, r.Target, granted.TTL(), granted.ExpiresAt}
				}
			},
			"revoke": func(t *rapid.T) {
				id := "none"
				if model != nil {
					id = model.id
				}
				if _, err := e.Revoke(id); (err == nil) != (model != nil) {
					t.Fatalf("revoke %v: %v", id, err)
				}
				model = nil
			},
			"tick":       func(t *rapid.T) { e.Tick() },
			"quarantine": func(t *rapid.T) { quarantined = true },
			"release":    func(t *rapid.T) { quarantined = false },
			"score":      func(t *rapid.T) { score, consensus = scoreGen().Draw(t, "score"), rapid.Bool().Draw(t, "consensus") },
			"clock": func(t *rapid.T) {
				step := time.Duration(rapid.IntRange(-2000, 2000).Draw(t, "seconds")) * time.Second
				clock.add(step)
				if model != nil {
					model.left -= max(step, 0)
				}
			},
			"": func(t *rapid.T) {
				base, _ := Assign(score, consensus)
				want := base
				if quarantined {
					want = Sandbox
				}
				if model != nil {
					if model.left <= 0 || !clock.now().Before(model.expires) || quarantined || !earned(model.target) {
						model = nil
					} else {
						want = min(want, model.target)
					}
				}
				if got := e.Effective(base); got != want {
					t.Fatalf("got %v, want %v", got, want)
				}
				if _, ok := e.Active(); ok != (model != nil) {
					t.Fatalf("active is %v, want %v", ok, model != nil)
				}
			},
		})
	})
}

func TestH13ConcurrentRequestsGrantOne(t *testing.T) {
	e := NewElevations(ElevationOptions{})
	var granted atomic.Int32
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if _, d := e.Request(asking()); d.Allowed() {
				granted.Add(1)
			} else if d.Code != CodeDuplicateElevation {
				t.Errorf("got %+v", d)
			}
		})
	}
	wg.Wait()
	if granted.Load() != 1 {
		t.Errorf("%d of 100 granted", granted.Load())
	}
}

// Once the quarantine, or the revocation, has returned, no goroutine sees more than the base ring, whoever requests meanwhile.
func TestQuarantineAgainstConcurrentRequests(t *testing.T) {
	for range 50 {
		var held atomic.Bool
		e := NewElevations(ElevationOptions{Quarantined: func() bool { return held.Load() }})
		var wg sync.WaitGroup
		stop := make(chan struct{})
		for g := range 4 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					switch g {
					case 0, 1:
						e.Request(asking())
					case 2:
						e.Tick()
					case 3:
						before := held.Load()
						if got := e.Effective(Standard); before && got != Sandbox {
							t.Errorf("in quarantine: %v", got)
						}
					}
				}
			})
		}
		e.Effective(Standard)
		held.Store(true)
		for range 20 {
			if got := e.Effective(Standard); got != Sandbox {
				t.Errorf("in quarantine: %v", got)
			}
		}
		e.Tick()
		if active, ok := e.Active(); ok {
			t.Errorf("active in quarantine: %v", active)
		}
		close(stop)
		wg.Wait()
	}
}

func BenchmarkElevationRequest(b *testing.B) {
	b.Run("granted and revoked", func(b *testing.B) {
		b.ReportAllocs()
		e := NewElevations(ElevationOptions{})
		for b.Loop() {
			granted, _ := e.Request(asking())
			e.Revoke(granted.ID)
		}
	})
	b.Run("refused", func(b *testing.B) {
		b.ReportAllocs()
		e := NewElevations(ElevationOptions{})
		e.Request(asking())
		for b.Loop() {
			e.Request(asking())
		}
	})
}

func BenchmarkEffective(b *testing.B) {
	for _, held := range []bool{false, true} {
		b.Run(fmt.Sprint("held=", held), func(b *testing.B) {
			b.ReportAllocs()
			e := NewElevations(ElevationOptions{})
			if held {
				e.Request(asking())
			}
			for b.Loop() {
				e.Effective(Sandbox)
			}
		})
	}
}

// Check decides as Request does and leaves no trace; an elevation that another run keeps refuses where a duplicate does.
func TestH13CheckGrantsNothing(t *testing.T) {
	c := &setClock{}
	e := c.elevate()
	elsewhere := asking()
	elsewhere.Elsewhere, elsewhere.Quarantined = true, true
	for _, tt := range []struct {
		r    ElevationRequest
		want Code
	}{{asking(), CodeOK}, {asking(), CodeOK}, {elsewhere, CodeDuplicateElevation}, {ElevationRequest{}, CodeInvalidTarget}} {
		if d := e.Check(tt.r); d.Code != tt.want {
			t.Errorf("got %+v, want %s", d, tt.want)
		}
	}
	if got, ok := e.Active(); ok {
		t.Errorf("got %+v", got)
	}
	elsewhere.Target = elsewhere.Current
	if d := e.Check(elsewhere); d.Code != CodeInvalidTarget {
		t.Errorf("got %s, want the target first", d.Code)
	}
	if d := new(Elevations).Check(asking()); d.Allowed() {
		t.Error("the zero value allows")
	}
}
