// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// requiring returns a valid action that needs the ring.
func requiring(ring Ring) Action {
	a := valid()
	switch ring {
	case Root:
		a.Admin = true
	case Privileged:
		a.Reversibility = Irreversible
	case Sandbox:
		a.ReadOnly = true
	}
	return a
}

func TestH5Ring1NeedsMore(t *testing.T) {
	for _, tt := range []struct {
		name      string
		agent     Ring
		score     float64
		consensus bool
		needs     Ring
		want      Code
		missing   bool // consensus is what is missing
	}{
		{"enough", Privileged, 0.70, false, Privileged, CodeOK, false},
		{"just not", Privileged, math.Nextafter(0.70, 0), true, Privileged, CodeInsufficientTrust, false},
		{"not, and no consensus: that would not help", Privileged, 0.5, false, Privileged, CodeInsufficientTrust, false},
		{"only for ring 1 actions", Privileged, 0.1, false, Standard, CodeOK, false},
		{"and reading", Privileged, 0, false, Sandbox, CodeOK, false},
		{"nor does ring 0 get around it", Root, 0.5, true, Privileged, CodeInsufficientTrust, false},
		{"ring 2 whose score is ring 1's", Standard, 0.96, false, Privileged, CodeInsufficientRing, true},
		{"at the threshold", Standard, 0.95, false, Privileged, CodeInsufficientRing, false},
		{"has consensus already", Standard, 0.96, true, Privileged, CodeInsufficientRing, false},
		{"consensus gives no ring 2", Sandbox, 0.96, false, Standard, CodeInsufficientRing, false},
	} {
		got := Check(tt.agent, tt.score, tt.consensus, requiring(tt.needs))
		if got.Code != tt.want || got.RequiresConsensus != tt.missing {
			t.Errorf("%s: got %s, requires_consensus %v", tt.name, got.Code, got.RequiresConsensus)
		}
		if got.Code == CodeInsufficientTrust && got.Rule != "H-5" {
			t.Errorf("%s: rule %s", tt.name, got.Rule)
		}
	}
}

func TestH9Order(t *testing.T) {
	broken := requiring(Standard)
	broken.Name = ""
	unknown := requiring(Sandbox)
	unknown.Reversibility = "none"
	brokenAdmin := requiring(Root)
	brokenAdmin.Name = ""
	for _, tt := range []struct {
		name    string
		agent   Ring
		score   float64
		action  Action
		want    Code
		witness bool
	}{
		{"ring 0, even for ring 0", Root, 1, requiring(Root), CodeRing0Forbidden, true},
		{"ring 0 before the ring", Sandbox, 0, requiring(Root), CodeRing0Forbidden, true},
		{"ring 0 before the score", Privileged, math.NaN(), requiring(Root), CodeRing0Forbidden, true},
		{"ring 0 before no ring", NoRing, 1, requiring(Root), CodeRing0Forbidden, true},
		{"ring 0 before the rest of the action", Privileged, 1, brokenAdmin, CodeRing0Forbidden, true},
		{"ring 3, ring 2 action", Sandbox, 1, requiring(Standard), CodeInsufficientRing, false},
		{"ring 3, ring 1 action", Sandbox, 1, requiring(Privileged), CodeInsufficientRing, false},
		{"ring 2, ring 1 action", Standard, 1, requiring(Privileged), CodeInsufficientRing, false},
		{"the ring before H-5", Standard, 0.1, requiring(Privileged), CodeInsufficientRing, false},
		{"ring 3 reads", Sandbox, 0, requiring(Sandbox), CodeOK, false},
		{"ring 2", Standard, 0, requiring(Standard), CodeOK, false},
		{"ring 1", Privileged, 1, requiring(Privileged), CodeOK, false},
		{"ring 1 below", Privileged, 1, requiring(Standard), CodeOK, false},
		{"no ring reads", NoRing, 1, requiring(Sandbox), CodeInvalidRing, false},
		{"ring 255", 255, 1, requiring(Sandbox), CodeInvalidRing, false},
		{"NaN reads", Sandbox, math.NaN(), requiring(Sandbox), CodeInvalidScore, false},
		{"score above 1", Privileged, 1.01, requiring(Standard), CodeInvalidScore, false},
		{"infinite score", Privileged, math.Inf(1), requiring(Privileged), CodeInvalidScore, false},
		{"no name", Privileged, 1, broken, CodeInvalidAction, false},
		{"unknown reversibility, though it reads", Privileged, 1, unknown, CodeInvalidAction, false},
		{"no action", Privileged, 1, Action{}, CodeInvalidAction, false},
	} {
		got := Check(tt.agent, tt.score, true, tt.action)
		if got.Code != tt.want || got.Allowed != (tt.want == CodeOK) || got.RequiresSREWitness != tt.witness {
			t.Errorf("%s: got %+v, want %s", tt.name, got, tt.want)
		}
		if got.Reason == "" || got.Rule == "" || got.Decision().Allowed() != got.Allowed {
			t.Errorf("%s: no grounds, or a decision that differs: %+v", tt.name, got)
		}
	}
	if (CheckResult{}).Decision().Allowed() {
		t.Error("the zero result allows")
	}
}

func TestH10RingCheckResult(t *testing.T) {
	for _, tt := range []struct {
		name string
		got  CheckResult
		want string
	}{
		{"granted", Check(Standard, 0.7, false, requiring(Standard)),
			`{"allowed":true,"required_ring":2,"agent_ring":2,"eff_score":0.7,"reason":"the agent's ring is enough","requires_consensus":false,` +
				`"requires_sre_witness":false,"denied_resources":[],"code":"ok","rule":"H-9"}`},
		{"denied", Check(Sandbox, 0.5, false, requiring(Standard)),
			`{"allowed":false,"required_ring":2,"agent_ring":3,"eff_score":0.5,"reason":"ring 3 is not enough, the action requires ring 2","requires_consensus":false,` +
				`"requires_sre_witness":false,"denied_resources":["network","filesystem","subprocess"],"code":"insufficient_ring","rule":"H-9"}`},
		{"nothing valid", Check(NoRing, math.NaN(), false, requiring(Sandbox)),
			`{"allowed":false,"required_ring":3,"agent_ring":null,"eff_score":null,"reason":"the agent's ring is none of 0, 1, 2, 3","requires_consensus":false,` +
				`"requires_sre_witness":false,"denied_resources":[],"code":"invalid_ring","rule":"H-9"}`},
		{"zero", CheckResult{},
			`{"allowed":false,"required_ring":null,"agent_ring":null,"eff_score":0,"reason":"","requires_consensus":false,` +
				`"requires_sre_witness":false,"denied_resources":[],"code":"","rule":""}`},
	} {
		got, err := json.Marshal(tt.got)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if diff := cmp.Diff(tt.want, string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestH10DeniedResources(t *testing.T) {
	all := []Resource{Network, Filesystem, Subprocess}
	for _, tt := range []struct {
		agent, needs Ring
		want         []Resource
	}{
		{Sandbox, Standard, all}, {Sandbox, Privileged, all}, {Standard, Privileged, nil}, {Sandbox, Sandbox, nil}, {Standard, Standard, nil},
	} {
		if diff := cmp.Diff(tt.want, Check(tt.agent, 0.9, true, requiring(tt.needs)).DeniedResources); diff != "" {
			t.Errorf("%v for %v (-want +got):\n%s", tt.agent, tt.needs, diff)
		}
	}
}

// What is granted stays granted with more trust, consensus or privilege, and nothing is granted that a literal reading of
// the rules refuses.
func TestH9Monotone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ring, score, consensus := ringGen().Draw(t, "ring"), scoreGen().Draw(t, "score"), rapid.Bool().Draw(t, "consensus")
		a := valid()
		a.Admin, a.ReadOnly = rapid.Bool().Draw(t, "admin"), rapid.Bool().Draw(t, "read-only")
		a.Reversibility = rapid.SampledFrom([]Reversibility{Full, Partial, Irreversible, ""}).Draw(t, "reversibility")
		got := Check(ring, score, consensus, a)

		want := !a.Admin && ring.Valid() && a.Reversibility != "" && score >= 0 && score <= 1 &&
			(a.ReadOnly || ring.Value() <= 1 && score >= 0.70 || a.Reversibility != Irreversible && ring.Value() <= 2)
		if got.Allowed != want {
			t.Fatalf("got %+v, want allowed = %v", got, want)
		}
		if got.RequiresSREWitness != a.Admin || got.RequiresSREWitness && got.Allowed {
			t.Fatalf("witness: %+v", got)
		}
		moreRing := rapid.SampledFrom([]Ring{Root, Privileged, Standard, Sandbox}).Draw(t, "more ring")
		moreScore := rapid.Float64Range(0, 1).Draw(t, "more score")
		if got.Allowed && moreRing <= ring && moreScore >= score {
			if more := Check(moreRing, moreScore, true, a); !more.Allowed {
				t.Fatalf("granted to %v with %v, denied to %v with %v: %+v", ring, score, moreRing, moreScore, more)
			}
		}
		if text, err := json.Marshal(got); err != nil || !json.Valid(text) {
			t.Fatalf("%+v has no JSON: %v", got, err)
		}
	})
}

func BenchmarkAssign(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		Assign(0.97, true)
	}
}

func BenchmarkCheck(b *testing.B) {
	for name, ring := range map[string]Ring{"granted": Privileged, "denied": Sandbox} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			action := requiring(Privileged)
			for b.Loop() {
				Check(ring, 0.97, true, action)
			}
		})
	}
}
