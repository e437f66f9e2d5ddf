// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"slices"
	"strings"

	"agentrun/audit"
	"agentrun/rings"
	"agentrun/runtime"
	"agentrun/telemetry/counts"
)

// Counts are the node's counters (M-20). What is on record is counted as it is put there, so the numbers are
// those of the audit, whoever caused them.
func (h *Hypervisor) Counts() *counts.File { return counts.At(h.opt.StateDir) }

// tally counts what was just put on record.
func (h *Hypervisor) tally(r audit.Record) {
	c := h.Counts()
	switch r := r.(type) {
	case *audit.Kill:
		c.Killed(r.Reason)
	case *audit.Breach:
		c.Breached(r.Severity)
	case *audit.Refusal:
		c.Called("syscall", "syscall", false, r.Count)
	case *audit.ToolCall:
		c.Called(r.Type, r.Code, r.Allowed, r.Count)
		c.Cost(r.Cost)
	case *audit.Egress:
		if r.Type == "ingress" {
			return // nothing that an agent called
		}
		c.Called(r.Type, r.Code, r.Allowed, r.Count)
	}
}

// causes are how the reasons of a status begin, and what the counters call them.
var causes = []struct{ prefix, cause string }{
	{"wall clock", "wall_clock"}, {"cpu time", "cpu_time"}, {"output over", "output"}, {"ring breach", "ring_breach"},
	{"asked to end by", "signal"}, {"whoever asked for the run", "caller"},
}

// causeOf tells why a run ended, more closely than its state does.
func causeOf(s runtime.Status) string {
	switch {
	case s.State == runtime.Exited && s.ExitCode == 0:
		return "ok"
	case s.State == runtime.Exited:
		return "error"
	case s.State == runtime.Signaled:
		return "signal"
	case s.State == runtime.OOM:
		return "memory"
	case s.State == runtime.Failed:
		return "launch"
	}
	// A kill's own words: see KillRequest.String.
	if reason, ok := strings.CutPrefix(s.Reason, "killed ("); ok {
		reason, _, _ = strings.Cut(reason, ")")
		if slices.Contains(rings.KillReasons(), rings.KillReason(reason)) {
			return reason
		}
	}
	for _, c := range causes {
		if strings.HasPrefix(s.Reason, c.prefix) {
			return c.cause
		}
	}
	return "other"
}
