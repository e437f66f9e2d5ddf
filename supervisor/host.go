// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"

	"agentrun/hypervisor"
	"agentrun/runtime"
	"agentrun/supervisor/live"
)

// Host is one run's place in the process that supervises it: a process of its own, or a daemon's. It is all that the two differ in.
// Its methods are called in this order; those after Admit only if it gave no error, Close in any case and last.
type Host interface {
	// Admit waits until the node has room for a run that may use so much memory.
	Admit(ctx context.Context, memory int64) error
	// Cold tells that no sandbox is ready, of whatever shape: the launch will have to move its first process into a cgroup.
	Cold() bool
	// Take looks for a sandbox that is ready for the plan, which it then is part of.
	Take(plan *runtime.Plan)
	// Begin makes the admitted run known to operators, until the function that it returns is called.
	Begin(h *hypervisor.Hypervisor, adm hypervisor.Admission, plan *runtime.Plan, o live.RunOptions) (run *live.Run, end func(), err error)
	// Collect removes what crashed runs have left behind.
	Collect(ctx context.Context)
	// Started is called when the agent has been executed.
	Started()
	// Cool gives back the sandbox that was taken and not used. The launch is over.
	Cool()
	// Close gives back the place. Nothing of the run is left.
	Close()
}
