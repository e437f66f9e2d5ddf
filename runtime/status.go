// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/fsjail"
)

// State is how a run ended (M-6). The zero value is no state.
type State string

// States of an ended run.
const (
	Exited   State = "exited"   // the agent's first process ended by itself
	Signaled State = "signaled" // a signal ended it
	TimedOut State = "timeout"  // wall-clock or CPU-time limit
	OOM      State = "oom"      // over its memory limit
	Killed   State = "killed"   // by the operator, or with the supervisor
	Failed   State = "failed"   // it never ran: the launch failed
	Policy   State = "policy"   // it broke a limit that is not time or memory, such as its output size
)

// Exit codes of agentrun itself; every other code is the agent's own (docs/exit-codes.md).
const (
	ExitTimeout       = 124
	ExitFailed        = 125
	ExitNotExecutable = 126
	ExitNotFound      = 127
	ExitKilled        = 137
)

// Event is something the supervisor saw a run try. Repeated attempts of one kind are one event.
type Event struct {
	At      time.Time `json:"at"`
	Last    time.Time `json:"last"`
	Kind    string    `json:"kind"` // "syscall"
	Syscall string    `json:"syscall,omitempty"`
	Detail  string    `json:"args_class,omitempty"`
	Verdict string    `json:"verdict"`
	Count   uint64    `json:"count"`
}

// GatewayRefusal is something that the run's way out refused, counted.
type GatewayRefusal struct {
	Kind string `json:"kind"` // "egress", "dns", "tool" or "llm"
	// Name is what the agent asked for, in its own words, at most 256 bytes: HOST:PORT, a host, a tool, a model.
	Name    string `json:"name"`
	Code    string `json:"code"`              // why, as the audit has it: not_listed, private_address and so on
	Address string `json:"address,omitempty"` // that the name leads to, where that decided
	Count   int64  `json:"count"`
	Hint    string `json:"hint,omitempty"` // the flags that would allow it
}

// Status is the account of a run, written to --status-file as JSON. Sizes are bytes, times are
// nanoseconds. Fields are only ever added.
//
// It grows: what the plan says is there from the beginning, StartedAt from the exec on, the rest with the
// end. A run that never started has state failed, the error, and the launch's step where it was one of those.
type Status struct {
	ID         string            `json:"id"`
	Name       string            `json:"name,omitempty"`
	Agent      string            `json:"agent,omitempty"`
	Session    string            `json:"session,omitempty"`
	Parent     string            `json:"parent_run_id,omitempty"` // the run whose tool this one was (H-15)
	Ring       int               `json:"ring"`
	Profile    string            `json:"profile"`
	PlanDigest string            `json:"plan_digest,omitempty"`
	State      State             `json:"state"`
	Reason     string            `json:"reason,omitempty"`
	ExitCode   int               `json:"exit_code"` // what agentrun exits with
	Signal     string            `json:"signal,omitempty"`
	StartedAt  time.Time         `json:"started_at,omitzero"`
	WallTime   time.Duration     `json:"wall_time_ns"`
	CPUTime    time.Duration     `json:"cpu_time_ns"`
	PeakMemory int64             `json:"peak_memory_bytes"`
	OOMKills   uint64            `json:"oom_kills"`
	Output     int64             `json:"output_bytes"`
	Refused    map[string]uint64 `json:"refused"` // system call → how often refused
	Events     []Event           `json:"events"`
	FailedStep string            `json:"failed_step,omitempty"`
	Error      string            `json:"error,omitempty"`
	Hint       string            `json:"hint,omitempty"`
	Image      string            `json:"image,omitempty"`        // whose root it has: sha256:… of its configuration
	BestEffort []string          `json:"best_effort,omitempty"`  // protections that were asked for and are missing
	Wider      []string          `json:"wider_ranges,omitempty"` // above the specification's, by the operator's configuration (M-3)
	LaunchTime time.Duration     `json:"launch_ns,omitempty"`    // from the first step to the exec
	Leftovers  []string          `json:"leftovers,omitempty"`    // what could not be removed, if anything

	// Command is the program, and the script where its extension says who runs it. The other arguments may be
	// prompts or secrets, and accounts are kept.
	Command []string `json:"command,omitempty"`

	// What went by the run's way out.
	ToolCalls      int64            `json:"tool_calls,omitempty"`
	Tokens         int64            `json:"tokens,omitempty"`
	Cost           int64            `json:"cost,omitempty"` // in millionths, as governance counts
	GatewayRefused []GatewayRefusal `json:"gateway_refused,omitempty"`

	// FilesChanged is how many files of a workspace that is written to itself were made or changed while the run lived, by whomever,
	// but for those of .git and node_modules. What was deleted isn't counted.
	FilesChanged int `json:"files_changed,omitempty"`
	// FileConflicts are paths of a session's workspace that the run and another one, which lived at the same time, have both written (H-32).
	FileConflicts []string `json:"file_conflicts,omitempty"`
	// RiskyFiles are what was changed in the workspace while the run lived that the host runs later, or that says what is run: relative
	// paths, which the agent may have chosen. RiskyMore: there are more, or the look was cut off.
	RiskyFiles []string `json:"risky_files,omitempty"`
	RiskyMore  bool     `json:"risky_more,omitempty"`
	// ScratchFull: when the agent's first process ended, and not with 0, the scratch had no room left.
	ScratchFull bool `json:"scratch_full,omitempty"`

	// What the run's gateway used beside it, if there was one.
	GatewayCPUTime    time.Duration `json:"gateway_cpu_time_ns,omitempty"`
	GatewayPeakMemory int64         `json:"gateway_peak_memory_bytes,omitempty"`
}

// setEnd fills state, exit code and signal from a wait status.
func (s *Status) setEnd(ws unix.WaitStatus) {
	switch {
	case ws.Signaled():
		s.State, s.Signal, s.ExitCode = Signaled, unix.SignalName(ws.Signal()), 128+int(ws.Signal())
	default:
		s.State, s.ExitCode = Exited, ws.ExitStatus()
	}
}

// WriteFile puts the status where a reader never sees half of it.
func (s *Status) WriteFile(to *fsjail.Output) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode status: %w", err)
	}
	return to.Write(func(f *os.File) error {
		_, err := f.Write(append(b, '\n'))
		return err
	})
}
