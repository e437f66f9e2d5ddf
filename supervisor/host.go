// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"os"

	"agentrun/hypervisor"
	"agentrun/runtime"
	"agentrun/supervisor/live"
)

// Host is one run's place in the process that supervises it: a process of its own (Alone), or a daemon's. It
// is all that the two differ in. Run calls the methods in this order; each from Begin on only if those before
// it gave no error, Cool if Take was called, and Close if Admit was, last of all.
type Host interface {
	// Outlives tells that the process goes on when the run is over. The node's state is in use then, and
	// whoever asked for the run hears by Answer how it ended, as soon as that is on record.
	Outlives() bool
	// Admit waits until the node has room for a run that may use so much memory. A kill that means the run ends it by who.End until Begin has
	// made it known.
	Admit(ctx context.Context, memory int64, who live.Coming) error
	// Ahead returns the looks that were begun for the run, once; nil: none were.
	Ahead() *Ahead
	// Take looks for a sandbox that is ready for the plan, which it then is part of.
	Take(plan *runtime.Plan)
	// Begin makes the admitted run known to operators, until the function that it returns is called.
	Begin(
		h *hypervisor.Hypervisor, adm hypervisor.Admission, plan *runtime.Plan, o live.RunOptions,
	) (run *live.Run, end func(), err error)
	// Collect removes what crashed runs have left behind. It is called beside the rest, before Close.
	Collect(ctx context.Context)
	// Signals returns those that are for the agent.
	Signals() <-chan os.Signal
	// Started is called when the agent has been executed.
	Started()
	// LetGo ends the command that asked for a detached run. What there is to say from then on goes to log.
	LetGo(log *os.File) error
	// Answer ends the command that asked for a run, with the exit code. It is called only if the process
	// outlives the run, and then before the last of it is taken down.
	Answer(code int)
	// Cool gives back the sandbox that was taken and not used. The launch is over.
	Cool()
	// Close gives back the place. Nothing of the run is left.
	Close()
}
