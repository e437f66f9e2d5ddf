// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"encoding/json"
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"
)

var allRings = []Ring{NoRing, Root, Privileged, Standard, Sandbox, 5, 255}

// noScores are what must never pass for a score.
var noScores = []float64{math.NaN(), math.Inf(1), math.Inf(-1), -0.0001, 1.0001, 1e308, -1e308, math.Nextafter(1, 2), -math.SmallestNonzeroFloat64}

func ringGen() *rapid.Generator[Ring] { return rapid.SampledFrom(allRings) }

// scoreGen prefers what lies around the thresholds and what is no score.
func scoreGen() *rapid.Generator[float64] {
	edges := append([]float64{0, 1, math.Copysign(0, -1)}, noScores...)
	for _, t := range []float64{Ring1TrustThreshold, Ring2TrustThreshold, Ring1EnforcerThreshold, ElevationRing1Trust, ElevationRing2Trust} {
		edges = append(edges, t, math.Nextafter(t, 0), math.Nextafter(t, 1))
	}
	return rapid.OneOf(rapid.SampledFrom(edges), rapid.Float64Range(0, 1), rapid.Float64())
}

func TestH1Rings(t *testing.T) {
	for n := range 4 {
		r, err := RingOf(n)
		if err != nil || r.Value() != n || !r.Valid() {
			t.Errorf("RingOf(%d) = %v, %v", n, r, err)
		}
		for m := range 4 {
			other, _ := RingOf(m)
			if r.MorePrivilegedThan(other) != (n < m) {
				t.Errorf("ring %d more privileged than ring %d: got %v", n, m, n >= m)
			}
		}
	}
	for _, n := range []int{-1, 4, 255, 256, 257, math.MaxInt, math.MinInt} {
		if r, err := RingOf(n); r != NoRing || !errors.Is(err, ErrRing) {
			t.Errorf("RingOf(%d) = %v, %v, want NoRing and ErrRing", n, r, err)
		}
	}
	for _, none := range []Ring{NoRing, 5, 255} {
		if none.Valid() || none.Value() != 3 || none.OrSandbox() != Sandbox {
			t.Errorf("%d counts as %v", uint8(none), none.OrSandbox())
		}
		if none.MorePrivilegedThan(Sandbox) || Sandbox.MorePrivilegedThan(none) || none.MorePrivilegedThan(none) {
			t.Errorf("%d takes part in the order of rings", uint8(none))
		}
		if _, err := json.Marshal(none); err == nil {
			t.Errorf("%d has JSON", uint8(none))
		}
	}
}

func TestH1RingJSON(t *testing.T) {
	for _, r := range []Ring{Root, Privileged, Standard, Sandbox} {
		text, err := json.Marshal(r)
		var back Ring
		if err != nil || json.Unmarshal(text, &back) != nil || back != r {
			t.Errorf("%v: %s, %v, back %v", r, text, err, back)
		}
	}
	for _, text := range []string{`null`, `true`, `false`, `"1"`, `1.0`, `1e0`, `-0`, `-1`, `4`, `01`, `[1]`, `{}`, `99999999999999999999`, `""`} {
		r := Root
		if err := r.UnmarshalJSON([]byte(text)); err == nil || r != NoRing {
			t.Errorf("%s: got %v, %v, want an error and no ring", text, r, err)
		}
	}
}

func TestH1LeastPrivileged(t *testing.T) {
	for _, a := range allRings {
		for _, b := range allRings {
			got := LeastPrivileged(a, b)
			if !got.Valid() || got.Value() < a.Value() || got.Value() < b.Value() {
				t.Errorf("LeastPrivileged(%v, %v) = %v", a, b, got)
			}
		}
	}
}

func TestH2Assign(t *testing.T) {
	for _, tt := range []struct {
		score     float64
		consensus bool
		want      Ring
	}{
		{1, true, Privileged}, {1, false, Standard},
		{math.Nextafter(0.95, 1), true, Privileged}, {0.95, true, Standard}, {math.Nextafter(0.95, 1), false, Standard},
		{math.Nextafter(0.60, 1), false, Standard}, {0.60, true, Sandbox}, {0.60, false, Sandbox},
		{0, true, Sandbox}, {math.Copysign(0, -1), true, Sandbox}, {math.SmallestNonzeroFloat64, true, Sandbox},
	} {
		got, err := Assign(tt.score, tt.consensus)
		if got != tt.want || err != nil {
			t.Errorf("Assign(%v, %v) = %v, %v, want %v", tt.score, tt.consensus, got, err, tt.want)
		}
		if err := CheckScore(tt.score); err != nil {
			t.Errorf("CheckScore(%v): %v", tt.score, err)
		}
	}
	for _, score := range noScores {
		for _, consensus := range []bool{false, true} {
			if got, err := Assign(score, consensus); got != Sandbox || !errors.Is(err, ErrScore) {
				t.Errorf("Assign(%v, %v) = %v, %v, want ring 3 and ErrScore", score, consensus, got, err)
			}
		}
	}
}

func TestH2LessTrustNeverGivesMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := scoreGen().Draw(t, "a"), scoreGen().Draw(t, "b")
		ca, cb := rapid.Bool().Draw(t, "ca"), rapid.Bool().Draw(t, "cb")
		ra, errA := Assign(a, ca)
		rb, errB := Assign(b, cb)
		if ra == Root || rb == Root || !ra.Valid() || !rb.Valid() {
			t.Fatalf("assigned %v and %v", ra, rb)
		}
		if (errA != nil) != !(a >= 0 && a <= 1) {
			t.Fatalf("score %v: error %v", a, errA)
		}
		less := errA != nil || errB == nil && a <= b && (cb || !ca)
		if less && ra.MorePrivilegedThan(rb) {
			t.Fatalf("%v,%v gives %v, but %v,%v only %v", a, ca, ra, b, cb, rb)
		}
	})
}

func TestH3Thresholds(t *testing.T) {
	if Ring1TrustThreshold != 0.95 || Ring2TrustThreshold != 0.60 || Ring1EnforcerThreshold != 0.70 {
		t.Error("the thresholds are not H-3's")
	}
}

func TestH4Demotion(t *testing.T) {
	for _, tt := range []struct {
		name      string
		current   Ring
		score     float64
		consensus bool
		want      bool
	}{
		{"ring 1 with all it needs stays", Privileged, 0.99, true, false},
		{"ring 1 loses consensus", Privileged, 0.99, false, true},
		{"ring 1 at the threshold", Privileged, 0.95, true, true},
		{"ring 2 stays", Standard, 0.61, false, false},
		{"ring 2 at the threshold", Standard, 0.60, false, true},
		{"ring 2 that deserves more", Standard, 0.99, true, false},
		{"ring 3 can't go down", Sandbox, 0, false, false},
		{"ring 0 is no agent's", Root, 1, true, true},
		{"NaN in ring 2", Standard, math.NaN(), true, true},
		{"NaN in ring 3", Sandbox, math.NaN(), true, false},
		{"more than 1", Privileged, 1.5, true, true},
		{"no ring counts as ring 3", NoRing, 0, false, false},
	} {
		if got := ShouldDemote(tt.current, tt.score, tt.consensus); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestVerdictsOfADecision(t *testing.T) {
	if (Decision{}).Allowed() || (Decision{Verdict: 2}).Allowed() || !allow("H-9", "why").Allowed() {
		t.Error("only Allow allows")
	}
	if Deny.String() != "deny" || Allow.String() != "allow" || Verdict(2).String() != "deny" {
		t.Error("a verdict reads as another one")
	}
}

func TestNoAllocations(t *testing.T) {
	action := valid()
	action.Reversibility = Irreversible
	e := NewElevations(ElevationOptions{})
	e.Request(ElevationRequest{Current: Sandbox, Target: Standard, TrustScore: 1})
	for name, f := range map[string]func(){
		"Assign":       func() { Assign(0.97, true) },
		"ShouldDemote": func() { ShouldDemote(Privileged, 0.5, true) },
		"Check":        func() { Check(Privileged, 0.97, true, action) },
		"Effective":    func() { e.Effective(Sandbox) },
		"CheckAgentID": func() { CheckAgentID("did:mesh:7f") },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}
