// SPDX-License-Identifier: Apache-2.0

package profiles

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/internal/read"
)

// M-3: the node's configuration says what a ring or plan may have at most; where it says nothing, the specification does.
func TestM3NodeRanges(t *testing.T) {
	hour := Duration(time.Hour)
	for name, tt := range map[string]struct {
		rules RangeRules
		ring  int
		plan  string
		want  func(*Ranges)
		wider []string
	}{
		"nothing said": {ring: 2},
		"another ring": {rules: RangeRules{{Ring: 1, Memory: 8 * GiB}}, ring: 2},
		"another plan": {rules: RangeRules{{Ring: 2, Plan: "premium", Memory: 8 * GiB}}, ring: 2, plan: "casual"},
		"a ring": {rules: RangeRules{{Ring: 2, Memory: 8 * GiB, PIDs: 9000}}, ring: 2,
			want:  func(r *Ranges) { r.Memory.Max, r.ScratchSize.Max, r.PIDs.Max = 8*GiB, 8*GiB, 9000 },
			wider: []string{"memory 8GiB", "pids 9000", "scratch_size 8GiB"}},
		"a plan, in each ring": {rules: RangeRules{{Plan: "premium", OpenFiles: 1 << 20}}, ring: 3, plan: "premium",
			want: func(r *Ranges) { r.OpenFiles.Max = 1 << 20 }, wider: []string{"open_files 1048576"}},
		"the later one counts": {rules: RangeRules{{Ring: 2, MaxSteps: 100000}, {Ring: 2, Plan: "casual", MaxSteps: 10}}, ring: 2, plan: "casual",
			want: func(r *Ranges) { r.MaxSteps.Max = 10 }},
		"processor time follows time and processors": {rules: RangeRules{{Ring: 2, CPU: 4, Timeout: hour}}, ring: 2,
			want:  func(r *Ranges) { r.CPU.Max, r.Timeout.Max, r.CPUTime.Max = 4, hour, 4*hour },
			wider: []string{"cpu 4", "timeout 3600s", "cpu_time 14400s"}},
		"no limit": {rules: RangeRules{{Ring: 2, Timeout: NoLimit}}, ring: 2,
			want:  func(r *Ranges) { r.Timeout.Max, r.CPUTime.Max = NoLimit, NoLimit },
			wider: []string{"timeout none", "cpu_time none"}},
		"its own processor time and scratch": {rules: RangeRules{{Ring: 2, Timeout: NoLimit, CPUTime: hour, Memory: 4 * GiB, ScratchSize: GiB}}, ring: 2,
			want: func(r *Ranges) {
				r.Timeout.Max, r.CPUTime.Max, r.Memory.Max = NoLimit, hour, 4*GiB
			},
			wider: []string{"memory 4GiB", "timeout none", "cpu_time 3600s"}},
		"less": {rules: RangeRules{{Ring: 3, Memory: 64 * MiB, Timeout: Duration(time.Second), CPU: 0.1}}, ring: 3,
			want: func(r *Ranges) {
				r.Memory.Max, r.ScratchSize.Max, r.CPU.Max = 64*MiB, 64*MiB, 0.1
				r.Timeout.Max, r.CPUTime.Max = Duration(time.Second), Duration(time.Second)
			}},
	} {
		t.Run(name, func(t *testing.T) {
			want := SpecRanges()
			if tt.want != nil {
				tt.want(&want)
			}
			if err := tt.rules.Check(); err != nil {
				t.Error(err)
			}
			got := NodeRanges{Rules: tt.rules, Plan: tt.plan}.Of(tt.ring)
			if diff := cmp.Diff(tt.wider, got.Wider()); diff != "" {
				t.Errorf("on record (-want +got):\n%s", diff)
			}
			got.adds, got.ring, got.plan = false, 0, ""
			if got != want {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

// M-3: a rule that could be meant for everybody, or gives what no kernel has, or nothing, is refused by its line.
func TestM3RangeRulesAreChecked(t *testing.T) {
	var file struct {
		Ranges RangeRules `yaml:"ranges"`
	}
	for text, want := range map[string]string{
		"ranges: []":                                 "",
		"ranges: [{ring: 2, timeout: none}]":         "",
		"ranges: [{plan: premium, memory: 16G}]":     "",
		"ranges: [{memory: 16G}]":                    "1: ranges[0]: want ring: 1, 2 or 3, or plan",
		"ranges: [{ring: 0, plan: x}, {ring: 4}]":    "1: ranges[1]: want ring",
		"ranges: [{ring: -1, plan: x}]":              "1: ranges[0]: want ring",
		"ranges:\n- {ring: 2}\n- {ring: 2, cpu: -1}": "3: ranges[1].cpu: -1: want 0.01 to 8192",
		"ranges: [{ring: 2, cpu: .inf}]":             "ranges[0].cpu: want a decimal number",
		"ranges: [{ring: 2, memory: 1k}]":            "ranges[0].memory: 1KiB: want 4MiB to 1048576GiB",
		"ranges: [{ring: 2, memory: 2000000G}]":      "ranges[0].memory: 2000000GiB: want",
		"ranges: [{ring: 2, memory: none}]":          "ranges[0].memory: size \"none\"",
		"ranges: [{ring: 2, pids: 5000000}]":         "ranges[0].pids: 5000000: want 16 to 4194304",
		"ranges: [{ring: 2, max_steps: -1}]":         "ranges[0].max_steps: -1: want 1 to",
		"ranges: [{ring: 2, timeout: 60}]":           "ranges[0].timeout: duration \"60\"",
		"ranges: [{ring: 2, memroy: 2G}]":            "ranges[0].memroy: unknown key; did you mean memory?",
		"ranges: {ring: 2}":                          "ranges: want a list",
	} {
		file.Ranges = nil
		n := read.YAML(read.Source{File: "config.yaml", Max: 1 << 10}, []byte(text))
		n.Into(&file)
		err := n.Done(file.Ranges.Check())
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngot  %v\nwant %s", text, err, want)
		}
	}
}

// M-3: a refusal names the file and the lines to write, which then allow just that.
func TestM3RefusalsSayWhatAllowsIt(t *testing.T) {
	l := builtinProfile(t, "ring2").Limits
	l.Memory, l.Timeout = 2*GiB, NoLimit
	for name, tt := range map[string]struct {
		of   NodeRanges
		want []string
	}{
		"no configuration": {NodeRanges{}, []string{"2GiB is outside the range 4MiB to 1GiB", "none is outside the range 1ms to 300s"}},
		"none yet": {NodeRanges{File: "/c.yaml"}, []string{
			"2GiB is outside the range 4MiB to 1GiB (to allow it, in /c.yaml write ranges: [{ring: 2, memory: 2GiB}])",
			"none is outside the range 1ms to 300s (to allow it, in /c.yaml write ranges: [{ring: 2, timeout: none}])"}},
		"some": {NodeRanges{File: "/c.yaml", Rules: RangeRules{{Ring: 2, Memory: 2 * GiB}}}, []string{
			"none is outside the range 1ms to 300s (to allow it, in /c.yaml add to ranges: - {ring: 2, timeout: none})"}},
		"of a plan": {NodeRanges{File: "/c.yaml", Plan: "casual", Rules: RangeRules{{Ring: 2, Timeout: NoLimit}, {Plan: "casual", Memory: 64 * MiB, ScratchSize: 64 * MiB}}}, []string{
			"2GiB is outside the range 4MiB to 64MiB (to allow it, in /c.yaml add to ranges: - {ring: 2, plan: casual, memory: 2GiB})", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			ps := l.Check(tt.of.Of(2))
			for i, want := range tt.want {
				if want != "" && (i >= len(ps) || ps[i].Message != want) {
					t.Errorf("got %v\nwant %s", ps, want)
				}
			}
		})
	}
	small := l
	small.Memory, small.ScratchSize, small.LockedMemory, small.Timeout = MiB, 64*KiB, GiB, 1
	for _, p := range small.Check(NodeRanges{File: "/c.yaml"}.Of(2)) {
		if strings.Contains(p.Message, "/c.yaml") {
			t.Errorf("%s: nothing in a configuration allows it", p.Message)
		}
	}
}

// M-3: a built-in profile's defaults are nobody's wish: a node that gives less gives less.
func TestM3BuiltInsKeepToNarrowerRanges(t *testing.T) {
	node := NodeRanges{Rules: RangeRules{{Ring: 2, Memory: 64 * MiB, Timeout: Duration(time.Second), CPU: 0.1, PIDs: 20, OpenFiles: 40, MaxOutput: 1, FileSize: 4096, MaxSteps: 1}}}
	p, err := Load(Sources{Ranges: node}, "ring2")
	if err != nil {
		t.Fatal(err)
	}
	if ps := p.Limits.Check(node.Of(2)); len(ps) > 0 || p.Limits.Memory != 64*MiB || p.Limits.CPUTime != Duration(time.Second) {
		t.Errorf("%+v: %v", p.Limits, ps)
	}
	if q, err := Load(Sources{Ranges: node}, "ring3"); err != nil || q.Limits != builtinProfile(t, "ring3").Limits {
		t.Errorf("another ring: %+v, %v", q.Limits, err)
	}
}

// NoLimit is text everywhere that people read or write it, and no sum overflows into a short time.
func TestNoLimit(t *testing.T) {
	d, err := ParseDuration("none")
	if err != nil || d != NoLimit || d.String() != "none" {
		t.Errorf("%v, %v", d, err)
	}
	for _, text := range []string{"None", "none ", "-none", "unlimited", "9223372036854775808ns"} {
		if d, err := ParseDuration(text); err == nil {
			t.Errorf("%q: %v", text, d)
		}
	}
	for d, n := range map[Duration]float64{NoLimit: 0.5, NoLimit - 1: 2, Duration(time.Hour): math.Inf(1), 1: 1e300} {
		if got := d.times(n); got != NoLimit {
			t.Errorf("%v times %v: %v", d, n, got)
		}
	}
}
