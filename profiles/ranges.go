// SPDX-License-Identifier: Apache-2.0

package profiles

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"agentrun/internal/read"
)

// NodeRanges are the ranges of a node: the specification's, and what the operator's configuration says of them (section `ranges:` of
// config.yaml, M-3). The zero value is the specification's.
type NodeRanges struct {
	File     string     // the configuration, where more is allowed; refusals name it. Empty: they name none
	Rules    RangeRules // of two that fit a run, the later one counts
	Plan     string     // of the run's agent
	TestOnly bool       // TestOnlyUnsafeRanges, whatever the rest says
}

// RangeRules are the section.
type RangeRules []RangeRule

// RangeRule says what runs of a ring, of a plan, or of both may ask for at most. What it doesn't name stays as it was before. The
// lower ends are no rule's: less is always allowed.
type RangeRule struct {
	Ring        int      `yaml:"ring"` // 1 to 3; 0: each. One of Ring and Plan must be named, or a slip would widen all of them
	Plan        string   `yaml:"plan"` // of agents; empty: each
	CPU         float64  `yaml:"cpu"`
	Memory      Size     `yaml:"memory"`
	PIDs        int      `yaml:"pids"`
	OpenFiles   int      `yaml:"open_files"`
	ScratchSize Size     `yaml:"scratch_size"` // not named: as much as memory
	MaxOutput   Size     `yaml:"max_output"`
	Timeout     Duration `yaml:"timeout"`  // NoLimit: a run may have none
	CPUTime     Duration `yaml:"cpu_time"` // not named: what cpu gives in timeout
	FileSize    Size     `yaml:"file_size"`
	MaxSteps    int      `yaml:"max_steps"`
}

// What even an operator can't give: more than the kernel or a cgroup takes.
const (
	mostCPU       = 8192
	mostBytes     = Size(1 << 50)
	mostPIDs      = 4194304 // PID_MAX_LIMIT
	mostOpenFiles = 1 << 20 // fs.nr_open as it comes
	mostSteps     = math.MaxInt32
)

// Check returns what is wrong with the rules, by their place in config.yaml.
func (rules RangeRules) Check() error {
	var ps read.Problems
	for i, r := range rules {
		at := fmt.Sprintf("ranges[%d]", i)
		if r.Ring < 0 || r.Ring > 3 || r.Ring == 0 && r.Plan == "" {
			ps.Add(at, "want ring: 1, 2 or 3, or plan: the name of one, or both")
		}
		spec := SpecRanges()
		upTo(&ps, at+".cpu", r.CPU, spec.CPU.Min, mostCPU)
		upTo(&ps, at+".memory", r.Memory, spec.Memory.Min, mostBytes)
		upTo(&ps, at+".pids", r.PIDs, spec.PIDs.Min, mostPIDs)
		upTo(&ps, at+".open_files", r.OpenFiles, spec.OpenFiles.Min, mostOpenFiles)
		upTo(&ps, at+".scratch_size", r.ScratchSize, spec.ScratchSize.Min, mostBytes)
		upTo(&ps, at+".max_output", r.MaxOutput, spec.MaxOutput.Min, mostBytes)
		upTo(&ps, at+".timeout", r.Timeout, spec.Timeout.Min, NoLimit)
		upTo(&ps, at+".cpu_time", r.CPUTime, spec.CPUTime.Min, NoLimit)
		upTo(&ps, at+".file_size", r.FileSize, spec.FileSize.Min, mostBytes)
		upTo(&ps, at+".max_steps", r.MaxSteps, spec.MaxSteps.Min, mostSteps)
	}
	return ps.Err()
}

func upTo[T cmp.Ordered](ps *read.Problems, path string, v, low, high T) {
	var unnamed T
	if v != unnamed && !(v >= low && v <= high) {
		ps.Add(path, "%v: want %v to %v", v, low, high)
	}
}

// Of returns the ranges of runs in a ring. A ring of which nothing is said has the specification's.
func (n NodeRanges) Of(ring int) Ranges {
	if n.TestOnly {
		return TestOnlyUnsafeRanges()
	}
	r := SpecRanges()
	r.file, r.adds, r.ring = n.File, len(n.Rules) > 0, ring
	var scratch Size
	var compute Duration
	for _, rule := range n.Rules {
		if rule.Ring != 0 && rule.Ring != ring || rule.Plan != "" && rule.Plan != n.Plan {
			continue
		}
		rule.over(&r)
		scratch, compute = cmp.Or(rule.ScratchSize, scratch), cmp.Or(rule.CPUTime, compute)
		r.plan = cmp.Or(rule.Plan, r.plan)
	}
	r.ScratchSize.Max = min(cmp.Or(scratch, r.Memory.Max), r.Memory.Max)
	r.CPUTime.Max = cmp.Or(compute, r.Timeout.Max.times(max(r.CPU.Max, 1)))
	return r
}

// over lays the rule over ranges.
func (w RangeRule) over(r *Ranges) {
	r.CPU.Max = cmp.Or(w.CPU, r.CPU.Max)
	r.Memory.Max = cmp.Or(w.Memory, r.Memory.Max)
	r.PIDs.Max = cmp.Or(w.PIDs, r.PIDs.Max)
	r.OpenFiles.Max = cmp.Or(w.OpenFiles, r.OpenFiles.Max)
	r.MaxOutput.Max = cmp.Or(w.MaxOutput, r.MaxOutput.Max)
	r.Timeout.Max = cmp.Or(w.Timeout, r.Timeout.Max)
	r.FileSize.Max = cmp.Or(w.FileSize, r.FileSize.Max)
	r.MaxSteps.Max = cmp.Or(w.MaxSteps, r.MaxSteps.Max)
}

// Twice returns the double, at most NoLimit.
func (d Duration) Twice() Duration { return d.times(2) }

// Plus returns the sum, at most NoLimit.
func (d Duration) Plus(t time.Duration) Duration {
	if Duration(t) > NoLimit-d {
		return NoLimit
	}
	return d + Duration(t)
}

// times returns the duration n times over; NoLimit stays.
func (d Duration) times(n float64) Duration {
	if d == NoLimit || float64(d)*n >= float64(NoLimit) {
		return NoLimit
	}
	return Duration(float64(d) * n)
}

// Wider lists what of the ranges is above the specification's, as "memory 8GiB", for the record.
func (r Ranges) Wider() (list []string) {
	spec := SpecRanges()
	add := func(is bool, key string, most any) {
		if is {
			list = append(list, fmt.Sprintf("%s %v", key, most))
		}
	}
	add(r.CPU.Max > spec.CPU.Max, "cpu", r.CPU.Max)
	add(r.Memory.Max > spec.Memory.Max, "memory", r.Memory.Max)
	add(r.PIDs.Max > spec.PIDs.Max, "pids", r.PIDs.Max)
	add(r.OpenFiles.Max > spec.OpenFiles.Max, "open_files", r.OpenFiles.Max)
	add(r.ScratchSize.Max > spec.ScratchSize.Max, "scratch_size", r.ScratchSize.Max)
	add(r.MaxOutput.Max > spec.MaxOutput.Max, "max_output", r.MaxOutput.Max)
	add(r.Timeout.Max > spec.Timeout.Max, "timeout", r.Timeout.Max)
	add(r.CPUTime.Max > spec.CPUTime.Max, "cpu_time", r.CPUTime.Max)
	add(r.FileSize.Max > spec.FileSize.Max, "file_size", r.FileSize.Max)
	add(r.MaxSteps.Max > spec.MaxSteps.Max, "max_steps", r.MaxSteps.Max)
	return list
}

// ToAllow says what the operator writes so that runs like this one may have so much of a limit, by its key in profiles; "" where no
// configuration can.
func (r Ranges) ToAllow(key string, v any) string {
	if r.file == "" || !slices.Contains(widened, key) {
		return ""
	}
	plan := ""
	if r.plan != "" {
		plan = "plan: " + r.plan + ", "
	}
	line := fmt.Sprintf("{ring: %d, %s%s: %v}", r.ring, plan, key, v)
	if r.adds {
		return "in " + r.file + " add to ranges: - " + line
	}
	return "in " + r.file + " write ranges: [" + line + "]"
}

// File is the configuration that allows more; empty: none does.
func (r Ranges) File() string { return r.file }

// widened are the limits that a RangeRule has.
var widened = []string{"cpu", "memory", "pids", "open_files", "scratch_size", "max_output", "timeout", "cpu_time", "file_size", "max_steps"}

// within lowers each limit to what the ranges give at most: a built-in profile's are nobody's wish, so a node that gives less gives
// that (M-3).
func (l *Limits) within(r Ranges) {
	l.CPU = min(l.CPU, r.CPU.Max)
	l.Memory = min(l.Memory, r.Memory.Max)
	l.PIDs = min(l.PIDs, r.PIDs.Max)
	l.OpenFiles = min(l.OpenFiles, r.OpenFiles.Max)
	l.ScratchSize = min(l.ScratchSize, r.ScratchSize.Max, l.Memory)
	l.MaxOutput = min(l.MaxOutput, r.MaxOutput.Max)
	l.Timeout = min(l.Timeout, r.Timeout.Max)
	l.CPUTime = min(l.CPUTime, r.CPUTime.Max)
	l.FileSize = min(l.FileSize, r.FileSize.Max)
	l.MaxSteps = min(l.MaxSteps, r.MaxSteps.Max)
}
