// SPDX-License-Identifier: Apache-2.0

package pdp

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// thousand are policies as an operator with many teams, roles and tools has them: most name one of them, every tenth is
// general and must be tried for each request.
func thousand() string {
	var b strings.Builder
	for i := range 1000 {
		switch i % 10 {
		case 0:
			fmt.Fprintf(&b, "forbid (principal, action, resource) when { context.plan == \"plan-%d\" && context.ring > 1 };\n", i)
		case 1, 2, 3:
			fmt.Fprintf(&b, "forbid (principal, action == Action::\"tool.invoke\", resource == Tool::\"tool-%d\") when { context.ring > 2 };\n", i)
		case 4, 5, 6:
			fmt.Fprintf(&b, "permit (principal in Role::\"role-%d\", action, resource);\n", i%50)
		default:
			fmt.Fprintf(&b, "permit (principal in Team::\"team-%d\", action == Action::\"tool.invoke\", resource);\n", i)
		}
	}
	b.WriteString("permit (principal in Role::\"analyst\", action, resource);\n")
	return b.String()
}

func benchmarkDecide(b *testing.B, text string) {
	set := compile(b, text)
	r := good()
	for i := range 20 {
		r.Context.Capabilities = append(r.Context.Capabilities, ToolAction(fmt.Sprint("tool-", i)))
	}
	took := make([]time.Duration, 0, 1<<20)
	b.ReportAllocs()
	for b.Loop() {
		start := time.Now()
		d := set.Decide(b.Context(), r)
		if len(took) < cap(took) {
			took = append(took, time.Since(start))
		}
		if !d.Allowed() {
			b.Fatal(d)
		}
	}
	slices.Sort(took)
	for _, p := range []int{50, 95, 99} {
		b.ReportMetric(float64(took[len(took)*p/100].Nanoseconds())/1e3, fmt.Sprintf("p%d-µs", p))
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
}

func BenchmarkDecideBuiltin(b *testing.B) { benchmarkDecide(b, "") }

func BenchmarkDecideThousandPolicies(b *testing.B) { benchmarkDecide(b, thousand()) }

func BenchmarkDecideParallel(b *testing.B) {
	set, r := compile(b, thousand()), good()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if d := set.Decide(b.Context(), r); !d.Allowed() {
				b.Error(d)
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
}

func BenchmarkCompileBuiltin(b *testing.B) {
	for b.Loop() {
		compile(b, "")
	}
}

func BenchmarkCompileThousandPolicies(b *testing.B) {
	text := thousand()
	for b.Loop() {
		compile(b, text)
	}
}
