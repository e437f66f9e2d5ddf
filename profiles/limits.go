// SPDX-License-Identifier: Apache-2.0

package profiles

import (
	"cmp"
	"fmt"
	"time"

	"agentrun/internal/read"
)

// Range is an inclusive range.
type Range[T cmp.Ordered] struct{ Min, Max T }

// has is false for NaN, which no comparison holds of.
func (r Range[T]) has(v T) bool { return v >= r.Min && v <= r.Max }

// Ranges are the bounds that Limits must lie in. The zero value contains nothing, so it refuses everything.
type Ranges struct {
	CPU          Range[float64]
	Memory       Range[Size]
	PIDs         Range[int]
	OpenFiles    Range[int]
	ScratchSize  Range[Size]
	MaxOutput    Range[Size]
	Timeout      Range[Duration]
	CPUTime      Range[Duration]
	FileSize     Range[Size]
	LockedMemory Range[Size]
	MaxSteps     Range[int]

	file string // where the operator allows more; empty: nowhere
	adds bool   // to a section that is there
	ring int
	plan string // that a rule in force names
}

// The upper bounds of M-3 for a run. The lower ones are no policy: tightening needs nobody's leave, so they are only
// what the kernel can count and a sandbox can be started with.
const (
	// The kernel's smallest quota is 1 ms of a period, which is 100 ms (sched_cfs_bandwidth).
	MinCPU = 0.01
	MaxCPU = 1.0
	// The static first process and the smallest of commands fit; what doesn't ends as `oom`, not as a launch that failed.
	MinMemory  = 4 * MiB
	MaxMemory  = 1024 * MiB
	MinTimeout = Duration(time.Millisecond)
	MaxTimeout = Duration(300 * time.Second)
)

// The bounds that M-3 leaves open.
const (
	// Pid 1, the agent, and the threads that runtimes start with: Node 20 has seven.
	MinPIDs = 16
	// A task costs some 20 KiB of kernel stack and structures, charged to the run: 4096 take 80 MiB, which the smallest
	// memory limit bears, and eight such runs stay under the default pid_max of 32768.
	MaxPIDs = 4096

	// Node opens about 20 at start, Python 5; each listener and library needs some more.
	MinOpenFiles = 32
	// Kernel memory again (256 B a file, charged); above 65536 select-based and close-in-a-loop programs crawl.
	MaxOpenFiles = 65536

	// Below a page there is no file.
	MinScratchSize = 4 * KiB
	// Scratch is memory of the run: more than its memory can never be filled (see Check).
	MaxScratchSize = MaxMemory

	MinMaxOutput = Size(1)
	// 1 GiB in 300 s is 3.5 MB/s through the supervisor: a caller that wants more writes to the workspace.
	MaxMaxOutput = 1 * GiB

	MinCPUTime = Duration(time.Millisecond)
	// One processor for the longest timeout.
	MaxCPUTime = MaxTimeout

	MinFileSize = 4 * KiB
	// The workspace is the owner's disk: one runaway file must not fill it. Model weights and images fit.
	MaxFileSize = 64 * GiB

	// One page: RLIMIT_MEMLOCK 0 makes libraries that lock a key complain.
	MinLockedMemory = 4 * KiB
	// Locked pages can't be reclaimed; the quarter of the smallest run.
	MaxLockedMemory = 64 * MiB

	MinMaxSteps = 1
	// At ring 1's 50 calls a second, 300 s are 15000.
	MaxMaxSteps = 15000
)

// SpecRanges are the specification's ranges (M-3), whether a value came from a profile or a flag. Those that hold on a node are
// NodeRanges.
func SpecRanges() Ranges {
	return Ranges{
		CPU:          Range[float64]{MinCPU, MaxCPU},
		Memory:       Range[Size]{MinMemory, MaxMemory},
		PIDs:         Range[int]{MinPIDs, MaxPIDs},
		OpenFiles:    Range[int]{MinOpenFiles, MaxOpenFiles},
		ScratchSize:  Range[Size]{MinScratchSize, MaxScratchSize},
		MaxOutput:    Range[Size]{MinMaxOutput, MaxMaxOutput},
		Timeout:      Range[Duration]{MinTimeout, MaxTimeout},
		CPUTime:      Range[Duration]{MinCPUTime, MaxCPUTime},
		FileSize:     Range[Size]{MinFileSize, MaxFileSize},
		LockedMemory: Range[Size]{MinLockedMemory, MaxLockedMemory},
		MaxSteps:     Range[int]{MinMaxSteps, MaxMaxSteps},
	}
}

// TestOnlyUnsafeRanges reach above the spec, so that a test can give room to what it doesn't test. Never for a run of
// somebody else's agent.
func TestOnlyUnsafeRanges() Ranges {
	r := SpecRanges()
	r.CPU.Max = 64
	r.Memory.Max, r.ScratchSize.Max, r.MaxOutput.Max = 16*GiB, 16*GiB, 16*GiB
	r.PIDs = Range[int]{1, 32768}
	r.Timeout.Max, r.CPUTime.Max = Duration(time.Hour), Duration(time.Hour)
	return r
}

// Check reports every limit outside r, by the path of its field, and those that contradict each other.
func (l Limits) Check(r Ranges) read.Problems {
	var ps read.Problems
	inRange(&ps, r, "cpu", l.CPU, r.CPU)
	inRange(&ps, r, "memory", l.Memory, r.Memory)
	inRange(&ps, r, "pids", l.PIDs, r.PIDs)
	inRange(&ps, r, "open_files", l.OpenFiles, r.OpenFiles)
	inRange(&ps, r, "scratch_size", l.ScratchSize, r.ScratchSize)
	inRange(&ps, r, "max_output", l.MaxOutput, r.MaxOutput)
	inRange(&ps, r, "timeout", l.Timeout, r.Timeout)
	inRange(&ps, r, "cpu_time", l.CPUTime, r.CPUTime)
	inRange(&ps, r, "file_size", l.FileSize, r.FileSize)
	inRange(&ps, r, "locked_memory", l.LockedMemory, r.LockedMemory)
	inRange(&ps, r, "max_steps", l.MaxSteps, r.MaxSteps)
	if r.ScratchSize.has(l.ScratchSize) && r.Memory.has(l.Memory) && l.ScratchSize > l.Memory {
		ps.Add("limits.scratch_size", "%v is more than limits.memory (%v), whose pages it uses", l.ScratchSize, l.Memory)
	}
	return ps
}

func inRange[T cmp.Ordered](ps *read.Problems, r Ranges, key string, v T, in Range[T]) {
	var zero T
	if v == zero {
		ps.Add("limits."+key, "not set or zero; want %v to %v", in.Min, in.Max)
	} else if why := Outside(r, key, v, in); why != "" {
		ps.Add("limits."+key, "%s", why)
	}
}

// Outside says what is wrong with one limit, by its key in profiles, and what an operator writes to allow more; "" if nothing is. in
// is the range of r with that key.
func Outside[T cmp.Ordered](r Ranges, key string, v T, in Range[T]) string {
	if in.has(v) {
		return ""
	}
	why := fmt.Sprintf("%v is outside the range %v to %v", v, in.Min, in.Max)
	if how := r.ToAllow(key, v); how != "" && v > in.Max {
		why += " (to allow it, " + how + ")"
	}
	return why
}
