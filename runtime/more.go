// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"fmt"
	"strings"

	"agentrun/profiles"
)

// What the reasons of the two time limits open with.
const (
	overTime    = "wall clock: "
	overCompute = "cpu time: "
)

// moreFor says how a run that a limit has ended gets more of it the next time: the flag with a value that fits, and where more than
// the range comes from (M-3). It is empty where no more of anything would have helped.
func (p *Plan) moreFor(s *Status, had Lease, memory int64) string {
	r := p.ranges.Of(p.Ring)
	switch {
	case s.State == OOM:
		return more(r, "memory", 2*profiles.Size(memory), r.Memory) //nolint:gosec // a limit that was in force
	case s.ScratchFull && (s.State == Exited || s.State == Signaled):
		return more(r, "scratch_size", 2*profiles.Size(p.Limits.ScratchSize), r.ScratchSize) //nolint:gosec // it is positive
	case s.State == TimedOut && strings.HasPrefix(s.Reason, overCompute):
		return more(r, "cpu_time", had.CPUTime.Twice(), r.CPUTime)
	case s.State == TimedOut && strings.HasPrefix(s.Reason, overTime):
		if had.Timeout >= p.mostTime && p.Agent == "" {
			return fmt.Sprintf("the operator's plan gives a run %v at most: plans.yaml", p.mostTime)
		}
		if had.Timeout >= p.mostTime {
			return fmt.Sprintf("the agent's plan gives a run %v at most: agentrun agent set %s --plan PLAN", p.mostTime, p.Agent)
		}
		return more(r, "timeout", had.Timeout.Twice(), r.Timeout) + "; agentrun extend gives a live run more"
	}
	return ""
}

func more[T cmp.Ordered](r profiles.Ranges, key string, fits T, in profiles.Range[T]) string {
	flag, how := limitFlag("limits."+key), r.ToAllow(key, fits)
	switch {
	case fits <= in.Max && how == "":
		return fmt.Sprintf("%s %v, up to %v", flag, fits, in.Max)
	case fits <= in.Max:
		return fmt.Sprintf("%s %v, up to %v; more by ranges: in %s", flag, fits, in.Max, r.File())
	case how == "":
		return fmt.Sprintf("%s %v is the most", flag, in.Max)
	}
	return fmt.Sprintf("%s %v is the most here; to allow %v, %s", flag, in.Max, fits, how)
}
