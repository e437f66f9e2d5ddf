// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"testing"

	"agentrun/profiles"
)

func benchSpec(b *testing.B) Spec {
	b.Helper()
	p, ok := profiles.Builtin("ring3")
	if !ok {
		b.Fatal("no profile ring3")
	}
	return Spec{Profile: p, Limits: p.Limits, Command: []string{"/bin/true"}, WorkDir: "/", Wayout: true, BestEffort: true}
}

func benchPlan(b *testing.B) *Plan {
	b.Helper()
	plan, err := NewPlan(benchSpec(b))
	if err != nil {
		b.Skipf("need: a host that gives a plan: %v", err)
	}
	return plan
}

// BenchmarkPlan is what a run costs before it is admitted.
func BenchmarkPlan(b *testing.B) {
	benchPlan(b)
	spec := benchSpec(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := NewPlan(spec); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkShape is what it costs to know which prepared sandbox suits.
func BenchmarkShape(b *testing.B) {
	plan := benchPlan(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := plan.Shape(); err != nil {
			b.Fatal(err)
		}
	}
}
