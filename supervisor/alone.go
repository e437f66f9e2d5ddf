// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"agentrun/hypervisor"
	"agentrun/runtime"
	"agentrun/supervisor/live"
	"agentrun/supervisor/tidy"
)

// Alone is a run in a process of its own. There is nothing to wait for and nothing to give back: the kernel takes
// back what the process had. Where a daemon would answer its caller early, whoever waits for this process waits
// until it has taken the run down.
type Alone struct {
	Node *Node
	// Lives is the descriptor on which the supervisor of a detached run says that the run lives; 0: the run
	// isn't detached.
	Lives int
}

var _ Host = Alone{}

// Outlives implements Host.
func (Alone) Outlives() bool { return false }

// Admit implements Host.
func (Alone) Admit(context.Context, int64, live.Coming) error { return nil }

// catchPipe is because Go lets SIGPIPE end a process that writes to its stdout (os/signal, "SIGPIPE"): whoever reads an agent's output
// could end its supervisor by going away, and folder, cgroup and an open end in the audit would stay. Caught and not ignored: programs
// that we start would inherit that.
var catchPipe = sync.OnceFunc(func() { signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE) })

// Ahead implements Host: what comes before the plan is over in less time than another thread takes to begin.
func (Alone) Ahead() *Ahead { return nil }

// Take implements Host.
func (Alone) Take(*runtime.Plan) {}

// Begin implements Host. The run has a control socket of its own, by its id.
func (a Alone) Begin(
	h *hypervisor.Hypervisor, adm hypervisor.Admission, plan *runtime.Plan, o live.RunOptions,
) (*live.Run, func(), error) {
	runs := live.New(live.Options{
		Node: func() (*hypervisor.Hypervisor, error) { return h, nil }, Log: a.Node.Log, Operators: a.Node.Operators, Codes: a.Node.Codes,
		Undo: a.Node.Undoer(OwnCaller()),
	})
	silence, err := runs.Serve(a.Node.RunDir, plan.ID, a.Node.Version, a.Node.Access)
	if err != nil {
		return nil, nil, err
	}
	end := func() {
		silence()
		runs.Close()
	}
	v, err := runs.Begin(h, adm, plan, o)
	if err != nil {
		end()
		return nil, nil, err
	}
	return v, func() { v.Close(); end() }, nil
}

// Collect implements Host.
func (a Alone) Collect(ctx context.Context) {
	if removed, err := a.Node.Collect(ctx, false); err != nil {
		a.Node.Log.Warn("cleaning up after crashed runs", "removed", removed, "err", err)
	} else if len(removed) > 0 {
		a.Node.Log.Info("cleaned up after crashed runs", "removed", removed)
	}
}

// passedOn are the signals that an agent gets of its caller's.
var passedOn = []os.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2}

// Signals implements Host. They are caught to the end of the process: one more SIGTERM while the run is
// settled would end us before its account is written.
func (Alone) Signals() <-chan os.Signal {
	signals := make(chan os.Signal, 16)
	catchPipe()
	// One that we were started to ignore stays ignored: by nohup(1), or by a shell whose script has us in the background.
	signal.Notify(signals, slices.DeleteFunc(slices.Clone(passedOn), signal.Ignored)...)
	return signals
}

// Started implements Host.
func (Alone) Started() { tidy.Soon() }

// LetGo implements Host: nobody holds the output of the command that asked for the run any more.
func (a Alone) LetGo(log *os.File) error {
	for _, own := range []int{1, 2} {
		if err := unix.Dup3(int(log.Fd()), own, 0); err != nil {
			return os.NewSyscallError("dup3", err)
		}
	}
	_, err := unix.Write(a.Lives, []byte{1})
	unix.Close(a.Lives)
	return os.NewSyscallError("write", err) // its reader is gone: nobody knows of the run
}

// Answer implements Host.
func (Alone) Answer(int) {}

// Cool implements Host.
func (Alone) Cool() {}

// Close implements Host.
func (Alone) Close() {}
