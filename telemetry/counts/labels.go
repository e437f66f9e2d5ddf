// SPDX-License-Identifier: Apache-2.0

package counts

import (
	"slices"
	"strconv"
	"time"
)

// other stands for every value that isn't on a label's list.
const other = "other"

// The lists of what a label may say. What a gateway tells is among it, and a gateway may have fallen.
var (
	ringWords  = []string{"1", "2", "3"}
	stateWords = []string{"exited", "signaled", "timeout", "oom", "killed", "failed", "policy"}
	killWords  = []string{
		"manual", "ring_breach", "policy_violation", "circuit_breaker", "behavioral_drift", "rate_limit",
		"quarantine_timeout", "session_timeout", "resource_exhaustion",
	}
	causeWords = append([]string{
		"ok", "error", "signal", "wall_clock", "cpu_time", "memory", "output", "launch", "caller",
	}, killWords...)
	kindWords     = []string{"syscall", "tool", "llm", "egress", "dns"}
	severityWords = []string{"low", "medium", "high", "critical"}
	codeWords     = []string{
		"ok", "several", "syscall",
		"acl_block", "agent_missing", "agent_stopped", "approval_required", "bad_arguments", "bad_request", "canceled",
		"capability_missing", "concurrency_limit", "confidential_mode_restriction", "cost_exceeded", "duplicate_elevation",
		"egress_denied", "expired", "insufficient_ring", "insufficient_trust", "intent_required", "invalid", "invalid_action",
		"invalid_identifier", "invalid_ring", "invalid_score", "key_expired", "key_invalid", "missing", "no_consensus",
		"no_role", "not_a_participant", "not_found", "other_session", "path_outside_session", "pdp_error", "pdp_malformed",
		"pdp_timeout", "pdp_unavailable", "plan_unknown", "quarantined", "quota_exceeded", "rate_limit_exceeded", "rate_limited", "rbac_denied",
		"resource_forbidden", "ring_0_forbidden", "ring_denied", "route_forbidden", "run_ended", "session_busy",
		"session_not_active", "session_unknown", "steps_exceeded", "suspicious_input", "symlink_escapes", "too_large",
		"tool_capability_missing", "tool_failed", "tool_restricted", "tool_timeout", "tool_unknown", "unavailable",
		"unknown_session",
	}
)

// Known tells whether a code is a label's value; any other counts as "other".
func Known(code string) bool { return slices.Contains(codeWords, code) }

func of(words []string, s string) string {
	if slices.Contains(words, s) {
		return s
	}
	return other
}

// RunStarted counts a run whose start is on record.
func (f *File) RunStarted(ring int) {
	f.add(`runs_started_total{ring="`+of(ringWords, strconv.Itoa(ring))+`"}`, 1)
}

// RunEnded counts a run that has a status, those whose launch failed among them. Cause says why, more closely
// than the state; took is its wall-clock time.
func (f *File) RunEnded(ring int, state, cause string, took time.Duration) {
	f.add(`runs_total{ring="`+of(ringWords, strconv.Itoa(ring))+`",state="`+of(stateWords, state)+
		`",cause="`+of(causeWords, cause)+`"}`, 1)
	f.observe("run_seconds", runBounds, took)
}

// Launched counts how long a start took, from the launch's first step to the exec.
func (f *File) Launched(took time.Duration) { f.observe("start_seconds", startBounds, took) }

// RunRefused counts a run that was never begun.
func (f *File) RunRefused(code string) {
	f.add(`runs_refused_total{code="`+of(codeWords, code)+`"}`, 1)
}

// Collected counts sandboxes whose supervisor had died, and that were cleaned up after.
func (f *File) Collected(n int) { f.add("crashes_collected_total", uint64(max(n, 0))) }

// Killed counts a kill, by its reason (H-23).
func (f *File) Killed(reason string) { f.add(`kills_total{reason="`+of(killWords, reason)+`"}`, 1) }

// Breached counts a breach (H-24).
func (f *File) Breached(severity string) {
	f.add(`breaches_total{severity="`+of(severityWords, severity)+`"}`, 1)
}

// Called counts calls and connections of a kind: those that were let in by how they ended, else by why not.
func (f *File) Called(kind, code string, allowed bool, n int64) {
	name := "denials_total"
	if allowed {
		name = "calls_total"
	}
	f.add(name+`{kind="`+of(kindWords, kind)+`",code="`+of(codeWords, code)+`"}`, uint64(max(n, 0)))
}

// Tokens counts those of models.
func (f *File) Tokens(prompt, completion int64) {
	f.add(`tokens_total{direction="prompt"}`, uint64(max(prompt, 0)))
	f.add(`tokens_total{direction="completion"}`, uint64(max(completion, 0)))
}

// Cost counts what was booked, in millionths of the plans' unit.
func (f *File) Cost(millionths int64) { f.add("cost_total", uint64(max(millionths, 0))) }

// Taken counts a run of the daemon's by whether a sandbox was ready for it.
func (f *File) Taken(ready bool) {
	from := "built"
	if ready {
		from = "ready"
	}
	f.add(`pool_taken_total{from="`+from+`"}`, 1)
}

// Waited counts how long a run of the daemon's waited for room.
func (f *File) Waited(took time.Duration) { f.observe("queue_seconds", startBounds, took) }

// Bounds of histograms, in seconds.
var (
	runBounds   = []string{"0.1", "1", "5", "15", "30", "60", "120", "300", "3600"}
	startBounds = []string{"0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "1", "5", "30"}
)

// observe counts a time in each bucket that it fits, all of which there are from the first time on.
func (f *File) observe(family string, bounds []string, took time.Duration) {
	took = max(took, 0)
	for _, le := range bounds {
		bound, _ := strconv.ParseFloat(le, 64)
		var one uint64
		if took.Seconds() <= bound {
			one = 1
		}
		f.add(family+`_bucket{le="`+le+`"}`, one)
	}
	f.add(family+`_bucket{le="+Inf"}`, 1)
	f.add(family+"_sum", uint64(took))
	f.add(family+"_count", 1)
}
