// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestQuantile(t *testing.T) {
	for _, c := range []struct {
		values []float64
		q      float64
		want   float64
	}{
		{nil, 0.5, 0},
		{[]float64{7}, 0.9, 7},
		{[]float64{3, 1, 2}, 0.5, 2},
		{[]float64{4, 1, 3, 2}, 0.5, 2.5},
		{[]float64{0, 10}, 0.1, 1},
		{[]float64{1, 2, 3}, 1, 3},
	} {
		if got := quantile(c.values, c.q); got != c.want {
			t.Errorf("quantile(%v, %v): got %v, want %v", c.values, c.q, got, c.want)
		}
	}
}

// A slow minute hits both sides of a pair, so the median of ratios differs from the ratio of medians.
func TestComparisonsGoRoundByRound(t *testing.T) {
	s := samples{"ours": {1, 20, 3}, "theirs": {2, 10, 30}, "short": {1}}
	row := s.row("ours", "ms", []reference{
		{name: "theirs", label: "theirs"}, {name: "theirs", label: "theirs", added: true},
		{name: "ours", label: "itself"}, {name: "short", label: "fewer rounds"}, {name: "absent", label: "absent"},
	})
	want := []Comparison{{"theirs", "ratio", 0.5}, {"theirs", "added", -1}}
	if diff := cmp.Diff(want, row.Against); diff != "" {
		t.Errorf("comparisons (-want +got):\n%s", diff)
	}
}

func TestStepsAreReadFromTheLog(t *testing.T) {
	log := `{"level":"DEBUG","msg":"launch","step":"cgroup","took":787330,"cpu":600000}
the agent's own words
{"level":"DEBUG","msg":"launch","step":"probe","took":646557}
{"level":"INFO","msg":"started","launch":7000000}
`
	steps, launch, err := parseSteps([]byte(log))
	if err != nil {
		t.Fatal(err)
	}
	want := []stepTime{{"cgroup", 787330, 600000}, {"probe", 646557, 0}}
	if diff := cmp.Diff(want, steps, cmp.AllowUnexported(stepTime{})); diff != "" || launch != 7*time.Millisecond {
		t.Errorf("launch %v, steps (-want +got):\n%s", launch, diff)
	}
	if _, _, err := parseSteps([]byte("nothing of the kind\n")); err == nil {
		t.Error("a log without steps passed for one")
	}
}

// What could not be run must be seen, in the table and in the exit code; only an optional peer may be
// missing.
func TestWhatDidNotRunIsTold(t *testing.T) {
	r := Report{Rows: []Row{{Group: "g", Name: "crun", NotRun: "no | good\nat all", Optional: true}}}
	if r.broken() {
		t.Error("an optional peer's absence counts as a failure")
	}
	if md := r.markdown(); !strings.Contains(md, "not run: no ¦ good at all") {
		t.Errorf("the reason is not in its cell:\n%s", md)
	}
	r.Rows = append(r.Rows, Row{Group: "g", Name: "runc", NotRun: "gone"})
	if !r.broken() {
		t.Error("a needed peer's absence counts as success")
	}
}

// Only groups that are named after our own folder may be removed.
func TestForeignCgroupsAreRefused(t *testing.T) {
	for _, name := range []string{"", "agentrun", "..", "system.slice"} {
		if err := removeCgroups(name); err == nil {
			t.Errorf("removeCgroups(%q) was not refused", name)
		}
	}
}
