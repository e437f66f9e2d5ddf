// SPDX-License-Identifier: Apache-2.0

package sagarun

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"agentrun/governance"
	"agentrun/hypervisor"
	"agentrun/internal/thread"
	"agentrun/profiles"
	"agentrun/rings"
	"agentrun/sagas"
	"agentrun/sagas/sagafile"
	"agentrun/supervisor"
)

// execRunner runs a saga's command as `agentrun exec`, so that a step is contained like any agent.
type execRunner struct {
	node *supervisor.Node
	out  io.Writer
	// notNow tells why a run would be refused now that may be admitted later.
	notNow func(context.Context, hypervisor.Request) error
	// grant tells what the plan of an agent gives, or of "" the operator's.
	grant func(ctx context.Context, agent string) (governance.Grant, error)
}

// killAfter is how long agentrun exec gets to end its sandbox after SIGTERM, within the orchestrator's grace
// of 5 s.
const killAfter = 4 * time.Second

// minRunTime is the least time limit that exec takes.
const minRunTime = time.Duration(profiles.MinTimeout)

// RunCommand starts the child from a thread that lives as long as it does: the parent-death signal
// (PR_SET_PDEATHSIG in prctl(2)) is sent when the thread ends that forked, and Go ends threads when it likes.
// When we die it gets SIGKILL, and its sandbox dies with it; while we live, SIGTERM first, so that it can
// clean up.
func (r *execRunner) RunCommand(ctx context.Context, c sagafile.Command, limit time.Duration, call sagas.Call) (err error) {
	args, err := r.args(c, limit, r.longest(ctx, c.Ring, call.Agent), call)
	if err != nil {
		return err
	}
	// An undo is tried once, and exec would refuse it: the agent could get itself held or stopped so that what it did stays (H-31, S-8).
	if call.Undo && call.Agent != "" {
		ring, _ := rings.RingOf(c.Ring)
		if err := r.notNow(ctx, hypervisor.Request{Agent: call.Agent, Session: call.Session, Ring: ring}); err != nil {
			return fmt.Errorf("%w: %w", sagas.ErrNotBegun, err)
		}
	}
	thread.Throwaway(func() {
		// The file of this process, not what stands at its path by now.
		cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
		cmd.Args[0] = "agentrun"
		cmd.Stdout, cmd.Stderr = r.out, r.out
		// Its own process group: Ctrl-C is for the saga, which decides what it means for the step.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		if call.Lock != nil {
			cmd.ExtraFiles = []*os.File{call.Lock}
		}
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.WaitDelay = killAfter
		err = cmd.Run()
	})
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return stepExit(exit)
	}
	return err
}

// longest is what the node and the agent's plan give a run (M-3, M-19): exec refuses a step that asks for more, and its undo. What can't be
// found out exec tells.
func (r *execRunner) longest(ctx context.Context, ring int, agent string) time.Duration {
	grant, err := r.grant(ctx, agent)
	if err != nil {
		return sagafile.MaxCommandTimeout
	}
	return time.Duration(r.node.MostTime(grant, ring))
}

func (r *execRunner) args(c sagafile.Command, limit, longest time.Duration, call sagas.Call) ([]string, error) {
	if c.Ring < 1 || c.Ring > 3 {
		return nil, fmt.Errorf("ring %d: %w", c.Ring, supervisor.ErrRing0)
	}
	// Alone: who supervises the step holds the saga's lock and dies with us. A daemon would do neither (H-20).
	args := append(r.node.Flags(), "exec", "--no-daemon", "--ring", fmt.Sprint(c.Ring), "--name",
		"saga-"+call.SagaID, "--env", "AGENTRUN_IDEMPOTENCY_KEY="+call.Key)
	if c.Profile != "" {
		args = append(args, "--profile", c.Profile)
	} else if limit == 0 {
		limit = sagas.DefaultStepTimeout
	}
	// The ring's profile, or the named one, has a time limit of its own, and the one of ring 3 is 60 s: the step's goes before it
	// (H-19). A step's shorter limit is the orchestrator's to keep; this one is only behind it.
	if limit > 0 {
		limit = min(max(limit, minRunTime), sagafile.MaxCommandTimeout) // a fraction of a second counts as one
		args = append(args, "--timeout", min((limit+time.Second-1).Truncate(time.Second), longest).String())
	}
	// Whose work it is decides what is allowed: exec asks for this agent, in this session.
	if call.Agent != "" {
		args = append(args, "--agent", call.Agent)
	}
	if call.Session != "" {
		args = append(args, "--session", call.Session)
	}
	if c.Workspace != "" {
		args = append(args, "--workspace", c.Workspace)
	}
	return append(append(args, "--"), c.Command...), nil
}

func stepExit(exit *exec.ExitError) error {
	if s, ok := exit.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return fmt.Errorf("agentrun exec ended by %v: %w", s.Signal(), sagas.ErrUnknown)
	}
	switch code := exit.ExitCode(); code {
	case 124:
		return errors.New("exit code 124: over its sandbox's time limit")
	case 125, 126, 127:
		return fmt.Errorf("exit code %d: see its output for why", code)
	default:
		return fmt.Errorf("exit code %d", code)
	}
}
