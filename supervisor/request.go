// SPDX-License-Identifier: Apache-2.0

// Package supervisor holds what starts, keeps and ends runs on behalf of whoever asked for them. Its rooms:
//
//   - here: Request, what is asked for; Node and Caller, where and by whom; Host, a run's place in the process
//     that supervises it; and Run, which takes a request through its steps (run.go). All but Host are plain data;
//   - live: the runs while they live, for operators;
//   - killhooks: the operator's programs around a kill;
//   - toolcmd: the operator's programs that tools run;
//   - outputs: what runs leave for people to read;
//   - homes: what agents keep from one run to the next;
//   - tidy: what gives a launch's memory back;
//   - sagarun: work of several steps, each a run;
//   - daemon: many runs in one process: clients, queue, pool, service manager.
//
// From the request on nothing knows which door it came by: the command line today. A run's words, to whoever
// asked for it, are written here too (Tell, Report): a daemon's client hears what it would hear alone.
package supervisor

import (
	"time"

	"agentrun/governance"
	"agentrun/hypervisor"
	"agentrun/internal/read"
	"agentrun/profiles"
	"agentrun/runtime"
	"agentrun/supervisor/sandboxes"
)

// Request is what somebody wants to have run, and how. It is plain data: nothing of the host was looked at.
// Paths are as this process can open them. The zero value of a field is what nobody asked for; where that is
// a value too, the field is a pointer.
type Request struct {
	Command              []string
	Name, Agent, Session string
	Ring                 *int
	Profile              string
	Key                  hypervisor.Token // of the agent
	KeyFile              string           // that it is read from; Key counts only without

	Workspace, Rootfs, Keep string
	Image                   string             // whose root is used in the place of Rootfs (package images); empty: none
	NoEntrypoint            bool               // the command is run by itself, and not by the image's entrypoint
	WorkspaceMode           string             // direct or overlay; empty: direct
	Home                    string             // kept for the agent under this name (package homes); empty: a new one that goes with the run
	Sandbox                 string             // kept, that this is a start of (package sandboxes); empty: of none
	Draft                   *sandboxes.Sandbox // what Sandbox is going to be, where a plan is made for one that isn't there yet
	Cwd                     string             // inside
	Binds                   []runtime.BindMount
	Tmpfs                   []runtime.Tmpfs
	Env, EnvPass            []string
	Limits                  Limits
	TTY, Interactive        bool
	BestEffort              bool

	NoGateway       bool
	Gateway, Policy string
	Allow, Tools    []string
	OfTool          bool   // a tool's program: of the way out it has the names, and neither tools nor models
	Metrics         string // HOST:PORT
	Expect          governance.Estimate
	Safety          *profiles.SafetyMode
	RequireIntent   *bool

	Detach            bool
	OnBreach          profiles.OnBreach // empty: the profile's
	QuarantineTimeout time.Duration
	IdlePause         time.Duration // of a detached run; 0: never
	Hold              string        // of a run that is made and started by two commands: the socket that its start is told on; empty: it begins at once
	CgroupAbove       string        // with Hold: a cgroup of the engine's whose limits hold for the run, too; empty: none
	Bundle            string        // with Hold: a file with the configuration of the container's bundle; empty: there is none
	HoldFor           int           // with Hold: a descriptor that ends without a byte if nobody will ever start it
	StatusFile        string
	JSON              bool // how it ended, on stderr

	// Malformed is what of it could not be read. It is refused with all else that is wrong, so that one round
	// of corrections is enough.
	Malformed []read.Problem
}

// DefaultRing is that of a run that no agent and no wish has another for.
const DefaultRing = 3

// RingOr3 is the ring asked for, and the default where none was.
func (r *Request) RingOr3() int {
	if r.Ring == nil {
		return DefaultRing
	}
	return *r.Ring
}

// Account tells whether a full account was asked for, which is not known before all of the run is taken down.
func (r *Request) Account() bool { return r.JSON || r.StatusFile != "" || r.Detach }

// Limits are those asked for; nil: the profile's.
type Limits struct {
	CPU                            *float64
	Memory, ScratchSize, MaxOutput *profiles.Size
	PIDs, MaxSteps                 *int
	Timeout, CPUTime               *profiles.Duration
}

// Over lays the limits asked for over the profile's. Whether they are in range is checked with all the rest.
func (l Limits) Over(p *profiles.Limits) {
	lay(&p.CPU, l.CPU)
	lay(&p.Memory, l.Memory)
	lay(&p.PIDs, l.PIDs)
	lay(&p.MaxSteps, l.MaxSteps)
	lay(&p.Timeout, l.Timeout)
	lay(&p.CPUTime, l.CPUTime)
	lay(&p.ScratchSize, l.ScratchSize)
	lay(&p.MaxOutput, l.MaxOutput)
	// Files can't be larger than the place they are in, and a smaller memory bounds the default scratch; only
	// a contradiction that the caller wrote is an error.
	if l.Memory != nil && l.ScratchSize == nil && p.Memory > 0 {
		p.ScratchSize = min(p.ScratchSize, p.Memory)
	}
}

func lay[T any](to, asked *T) {
	if asked != nil {
		*to = *asked
	}
}
