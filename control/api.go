// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"io"
	"time"

	"agentrun/rings"
)

// State is where a live run is. The zero value is none.
type State string

// States of a live run.
const (
	Starting State = "starting"
	Running  State = "running"
	Frozen   State = "frozen"
	Paused   State = "paused" // frozen by a pause alone
	Ending   State = "ending" // being killed or taken down
	Ended    State = "ended"
)

// Sandbox is a run as lists show it.
type Sandbox struct {
	ID          string     `json:"id"`
	Name        string     `json:"name,omitempty"`
	Agent       string     `json:"agent,omitempty"`
	Session     string     `json:"session,omitempty"`
	Parent      string     `json:"parent_run_id,omitempty"` // the run whose tool this one is (H-15)
	Profile     string     `json:"profile"`
	State       State      `json:"state"`
	BaseRing    int        `json:"base_ring"` // what it was admitted to
	Ring        int        `json:"ring"`      // what holds now
	Quarantined bool       `json:"quarantined,omitempty"`
	Stopped     bool       `json:"stopped,omitempty"` // its agent, by a safety loop (S-15)
	Pause       *Pause     `json:"pause,omitempty"`   // absent: it isn't paused
	Elevation   *Elevation `json:"elevation,omitempty"`
	Command     []string   `json:"command"`
	PID         int        `json:"pid"`        // of the agent's first process, on the host
	Supervisor  int        `json:"supervisor"` // the process that answers for it
	StartedAt   time.Time  `json:"started_at"`
	EndsAt      time.Time  `json:"ends_at,omitzero"` // by its time limit; absent: it has none
	Limits      Limits     `json:"limits"`
	Usage       Usage      `json:"usage"`
	Detached    bool       `json:"detached,omitempty"`
	Writes      []string   `json:"writes,omitempty"` // of the host's files and folders, in its ring or one that it may be lent
}

// Pause is why a run stands still that nobody has frozen, or not only (M-23).
type Pause struct {
	Since     time.Time `json:"since"`
	By        string    `json:"by"`               // who, as in the audit; "agentrun" of a run that was idle
	Cause     string    `json:"cause"`            // operator, idle
	GivenBack int64     `json:"given_back_bytes"` // memory, as far as that is done
}

// Limits are those that can change while a run lives. In a change 0 means: as it is.
type Limits struct {
	CPU    float64 `json:"cpu,omitempty"`          // processors
	Memory int64   `json:"memory_bytes,omitempty"` // bytes, swap included
	PIDs   int64   `json:"pids,omitempty"`         // processes and threads
}

// Usage is what a run uses now.
type Usage struct {
	CPUTime    time.Duration `json:"cpu_time_ns"`
	Memory     int64         `json:"memory_bytes"`
	MemoryPeak int64         `json:"memory_peak_bytes"`
	PIDs       int64         `json:"pids"`
	Output     int64         `json:"output_bytes"`
	// Of the run's gateway, beside it; absent as long as there is none.
	GatewayCPUTime    time.Duration `json:"gateway_cpu_time_ns,omitempty"`
	GatewayMemoryPeak int64         `json:"gateway_memory_peak_bytes,omitempty"`
	Pressure          *Pressure     `json:"pressure,omitempty"` // absent: the kernel tells none for a run, as with cgroup v1
}

// Pressure is how much of the last 10 s something of the run waited for what it lacked, in percent (PSI).
type Pressure struct {
	CPU    float64 `json:"cpu"`
	Memory float64 `json:"memory"`
	IO     float64 `json:"io"`
}

// Process is one process of a run. PID and Parent are those on the host. Name and Command are what the process says.
type Process struct {
	PID       int       `json:"pid"`
	Inside    int       `json:"inside_pid"`
	Parent    int       `json:"parent"`
	User      int       `json:"user"` // inside; -1: none that the sandbox has
	Threads   int       `json:"threads"`
	State     string    `json:"state"` // running, sleeping, waiting (for the disk as a rule), stopped, traced, zombie, dead
	StartedAt time.Time `json:"started_at"`
	Name      string    `json:"name"`              // the kernel's, at most 15 bytes
	Command   []string  `json:"command,omitempty"` // the first 4 KiB
	First     bool      `json:"first,omitempty"`
	From      string    `json:"from,omitempty"` // command: the run's own; entered: by exec --in; absent: its parent has ended
}

// Inspection is everything the supervisor knows of a run. Plan is what `agentrun plan --json` prints.
type Inspection struct {
	Sandbox
	Plan      json.RawMessage   `json:"plan"`
	Processes []Process         `json:"processes"`
	Refused   map[string]uint64 `json:"refused"` // system call → how often
}

// Elevation is a ring on loan (H-13).
type Elevation struct {
	ID        string     `json:"elevation_id"`
	From      rings.Ring `json:"from_ring"`
	Target    rings.Ring `json:"target_ring"`
	GrantedAt time.Time  `json:"granted_at"`
	ExpiresAt time.Time  `json:"expires_at"`
	Reason    string     `json:"reason,omitempty"`
}

// ElevateRequest asks for a ring for a while.
type ElevateRequest struct {
	Target rings.Ring    `json:"target_ring" read:"required"`
	TTL    time.Duration `json:"ttl_ns,omitempty"`       // 0: 300 s; more than 3600 s is cut to that (H-14)
	Reason string        `json:"reason" read:"required"` // for the audit and other operators; required, at most 1024 bytes
	DryRun bool          `json:"dry_run,omitempty"`
}

// LimitChange is what Update did, or would do.
type LimitChange struct {
	Before Limits `json:"before"`
	After  Limits `json:"after"`
	DryRun bool   `json:"dry_run,omitempty"`
}

// ExtendRequest gives a run more time (M-3). At least one of the times is above 0.
type ExtendRequest struct {
	Time    time.Duration `json:"time_ns,omitempty"`     // of the wall clock
	CPUTime time.Duration `json:"cpu_time_ns,omitempty"` // of processors
	Reason  string        `json:"reason,omitempty"`      // for the audit, at most 1024 bytes
}

// Lease is the time that a run has, in all. Absent: it has no such limit.
type Lease struct {
	Timeout time.Duration `json:"timeout_ns,omitempty"`
	CPUTime time.Duration `json:"cpu_time_ns,omitempty"`
	EndsAt  time.Time     `json:"ends_at,omitzero"`
}

// ExecRequest asks for a further command in a live run. It is confined as the run's first one is.
type ExecRequest struct {
	Command []string      `json:"command" read:"required"` // a name in the sandbox's PATH, a path inside, or one in the workspace; then its arguments
	Env     []string      `json:"env,omitempty"`           // NAME=VALUE, over the run's own
	Cwd     string        `json:"cwd,omitempty"`           // absolute, inside; empty: the run's
	TTY     bool          `json:"tty,omitempty"`           // a terminal of its own
	Rows    int           `json:"rows,omitempty"`          // of it, at first
	Columns int           `json:"columns,omitempty"`
	Timeout time.Duration `json:"timeout_ns,omitempty"` // 0: as long as the run lives
	Limits  Limits        `json:"limits,omitzero"`      // of its own, within the run's; then what it leaves behind ends with it
	Detach  bool          `json:"detach,omitempty"`     // it is answered when the command has been executed, which goes on; what it writes is nobody's
}

// Selector says which runs; exactly one field is set.
type Selector struct {
	ID      string `json:"id,omitempty"`
	Agent   string `json:"agent,omitempty"`
	Session string `json:"session,omitempty"`
	All     bool   `json:"all,omitempty"`
}

// KillResult is rings.KillResult's JSON (H-22) with the run it was about.
type KillResult struct {
	ID     string          `json:"id"`
	Result json.RawMessage `json:"result"`
}

// Event is something that happened to a run. Fields are only ever added.
type Event struct {
	Seq  uint64            `json:"seq"` // per supervisor, from 1, without gaps; "gap" events say what was lost
	At   time.Time         `json:"at"`
	Kind string            `json:"kind"`
	ID   string            `json:"id"` // the run's
	Ring int               `json:"ring,omitempty"`
	Data map[string]string `json:"data,omitempty"`
}

// Kinds of events.
const (
	EventStarted      = "started"
	EventRing         = "ring_changed"      // Data: from, to, took, killed; sent when it holds for all of the run
	EventElevated     = "elevation_granted" // Data: elevation_id, target, expires_at
	EventNotElevated  = "elevation_denied"  // Data: code
	EventElevationEnd = "elevation_ended"   // Data: elevation_id, cause (expired, revoked, …)
	EventFrozen       = "frozen"
	EventThawed       = "thawed"
	EventPaused       = "paused"  // Data: by, cause, given_back_bytes; after frozen, when its memory is given back
	EventUnpaused     = "resumed" // Data: by, cause
	EventLimits       = "limits_changed"
	EventExtended     = "extended"       // Data: timeout, cpu_time, and ends_at if it ends
	EventEndsSoon     = "ends_soon"      // Data: ends_at; a minute before the time limit ends it
	EventRefused      = "refused"        // Data: syscall, count; at most one a second and kind
	EventBreach       = "breach"         // Data: severity
	EventNearBreach   = "near_breach"    // Data: severity (medium), program, call: what brings the run close to a breach, before anything is held
	EventQuarantine   = "quarantine"     // Data: cause
	EventKill         = "kill"           // Data: reason
	EventKeyEnded     = "key_ended"      // Data: key_id; the key that it was started with has run out, or was revoked
	EventStopped      = "safety_stopped" // Data: reason; by a safety loop
	EventResumed      = "safety_resumed"
	EventFailed       = "agent.run.failed" // Data: state, exit_code, and as far as there is one signal, reason, failed_step, error; just before ended, of every run that did not exit with 0 (M-6)
	EventEnded        = "ended"            // Data: state, exit_code
	EventGap          = "gap"              // Data: lost; the reader was slower than the events
)

// Controller is a supervisor as its operators see it. Ids are whole and exact: names and prefixes are the client's. An error that
// is no *Error is a failure of the node (500). By is who asks, for the audit: "uid:0".
type Controller interface {
	Sandboxes(ctx context.Context) ([]Sandbox, error)
	Inspect(ctx context.Context, id string) (Inspection, error)
	Freeze(ctx context.Context, id, by string) error
	Thaw(ctx context.Context, id, by string) error
	// Pause freezes a run and gives its memory back; Resume, and whatever needs it running, lets it go on unless others have frozen it.
	Pause(ctx context.Context, id, by string) (Pause, error)
	Resume(ctx context.Context, id, by string) error
	Update(ctx context.Context, id string, to Limits, dryRun bool, by string) (LimitChange, error)
	Elevate(ctx context.Context, id string, r ElevateRequest, by string) (Elevation, error)
	Extend(ctx context.Context, id string, r ExtendRequest, by string) (Lease, error)
	// Revoke ends the run's elevation; elevation may be empty, or must be its id.
	Revoke(ctx context.Context, id, elevation, by string) error
	// Kill returns when every process of each run is dead. A selector that nothing fits gives an empty list.
	Kill(ctx context.Context, s Selector, reason, by string) ([]KillResult, error)
	Signal(ctx context.Context, id string, signal int, by string) error
	// Wait returns the runtime.Status of an ended run as JSON.
	Wait(ctx context.Context, id string) (json.RawMessage, error)
	// Events calls send for each event after since, in order, until ctx ends or send fails. follow false: those there are.
	Events(ctx context.Context, since uint64, follow bool, send func(Event) error) error
	// Output writes what a detached run has written; follow: until it ends.
	Output(ctx context.Context, id string, follow bool, w io.Writer) error
	// Attach connects a detached run's input and output to conn until either ends.
	Attach(ctx context.Context, id string, conn io.ReadWriter) error
	// Files lists what a folder of the sandbox has, or describes what the path names.
	Files(ctx context.Context, id string, r FilesRequest) ([]FileInfo, error)
	// ReadFiles sends a tar of what the path names over conn (Stdout), and then what it copied; WriteFiles unpacks one that comes (Stdin, up
	// to an empty frame) into the folder that the path names. By is on record.
	ReadFiles(ctx context.Context, id string, r FilesRequest, by string, conn io.ReadWriter) error
	WriteFiles(ctx context.Context, id string, r FilesRequest, by string, conn io.ReadWriter) error
	// Watch calls send for what changes below the folder that the path names, until ctx ends, the run or the folder does, or send fails.
	Watch(ctx context.Context, id string, r FilesRequest, send func(FileChange) error) error
	// Exec runs a further command in a run, with conn as its input and output, and returns when it has ended. The end of conn kills it.
	Exec(ctx context.Context, id string, r ExecRequest, by string, conn io.ReadWriter) error
	// Publish has a server in a run be reached from the host, Ports lists what is, and Unpublish ends it. By is on record.
	Publish(ctx context.Context, id string, r PortRequest, by string) (Published, error)
	Ports(ctx context.Context, id string) ([]PortInfo, error)
	Unpublish(ctx context.Context, id string, port int, by string) error
}

// Error is a refusal with a stable code. Status is HTTP's.
type Error struct {
	Status  int    `json:"-"`
	Code    string `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

func (e *Error) Error() string { return e.Message }

// Codes beside those of package rings.
const (
	CodeNotFound   = "not_found"
	CodeForbidden  = "forbidden"
	CodeBadRequest = "bad_request"
	CodeConflict   = "conflict"
	CodeEnded      = "run_ended"
	CodeInternal   = "internal"
	CodeOutOfRange = "out_of_range"           // a limit that the node's ranges don't have
	CodeBusy       = "busy"                   // as many connections as there may be, or the supervisor ends
	CodeNoCommand  = "command_not_found"      // of Exec: the sandbox has none of that name
	CodeNoProgram  = "command_not_executable" // of Exec: what is there can't be executed
	CodeAmbiguous  = "ambiguous"              // several runs fit; the client's
	CodeUnreached  = "unreached"              // a supervisor that doesn't answer; the client's
)
