// SPDX-License-Identifier: Apache-2.0

package killhooks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/hypervisor"
	"agentrun/internal/sibling"
	"agentrun/internal/thread"
	"agentrun/rings"
	"agentrun/runtime"
)

// Backstop is when the kill switch no longer waits for a hook. A hook's own limit ends it before, unless the kernel can't end
// its process.
const Backstop = maxTime + 500*time.Millisecond

// maxSaid is how much of a hook's output the log has.
const maxSaid = 4 << 10

// killed is what a hook reads on its standard input.
type killed struct {
	ID      string           `json:"id"`
	Name    string           `json:"name"`
	Agent   string           `json:"agent"`
	Session string           `json:"session"`
	Reason  rings.KillReason `json:"reason"`
	Action  string           `json:"action"`
	By      string           `json:"by"`
	Detail  string           `json:"detail"`
	Ring    int              `json:"ring"` // that it was started in
}

// Register has the hooks run by the run's kill switch, in their order.
func (h Hooks) Register(with *hypervisor.Control, plan *runtime.Plan, log *slog.Logger) error {
	var errs []error
	add := func(kind string, hooks []hook, to func(string, rings.Callback) error) {
		for _, hook := range hooks {
			errs = append(errs, to(hook.name, func(ctx context.Context) error {
				began := time.Now()
				said, err := hook.run(ctx, plan, log.Enabled(ctx, slog.LevelDebug))
				log.Debug("kill "+kind, "run", plan.ID, "name", hook.name, "took", time.Since(began), "err", err, "output", said)
				return err
			}))
		}
	}
	add("handler", h.handlers, with.RegisterHandler)
	add("compensation", h.compensations, with.RegisterCompensation)
	return errors.Join(errs...)
}

// run runs the program, as the user we are, and returns when it has ended or was killed. It has nothing of ours: its descriptors
// are its input, which is one JSON object, and its output; its environment and folder say nothing of the run's caller.
func (h hook) run(ctx context.Context, plan *runtime.Plan, listen bool) (said string, err error) {
	r := hypervisor.KillRequestOf(ctx)
	if !r.Reason.Valid() {
		r.Reason = rings.KillManual
	}
	about, err := json.Marshal(killed{plan.ID, plan.Name, plan.Agent, plan.Session, r.Reason, r.Action, r.By, r.Detail, plan.Ring})
	if err != nil {
		return "", err
	}
	// Looked at again: the configuration may be days old.
	program, err := sibling.Trust(h.command[0])
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, h.limit)
	defer cancel()
	var out head
	var sink io.Writer // nil: /dev/null, which nobody has to read
	if listen {
		sink = &out
	}
	// All of ours close on exec already. Whoever started us may have left us some that don't. Linux 5.11; before, they pass.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	// The parent-death signal is the thread's that forks. With us dead nobody would keep the hook to its time.
	thread.Throwaway(func() {
		cmd := exec.CommandContext(ctx, program, h.command[1:]...) //nolint:gosec // the operator's own
		cmd.Args[0], cmd.Dir = h.command[0], "/"
		cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(append(about, '\n')), sink, sink
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
		cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
		cmd.WaitDelay = 100 * time.Millisecond // for the output that others hold when it has ended
		err = cmd.Run()
	})
	return string(out.text), hookError(ctx, err, h.limit)
}

// hookError says how a hook ended, in the words of the kill's record. A hook that was killed by its limit has
// no exit code; one that exits by itself just as the limit passes has one, and that counts.
func hookError(ctx context.Context, err error, limit time.Duration) error {
	exit, ended := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil || errors.Is(err, exec.ErrWaitDelay): // it ended well; what it left running has its output
		return nil
	case ctx.Err() != nil && (!ended || !exit.Exited()):
		return fmt.Errorf("%w of %v, and was killed", rings.ErrHung, limit)
	case !ended:
		return err
	}
	if s, ok := exit.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return fmt.Errorf("ended by %s", unix.SignalName(s.Signal()))
	}
	return fmt.Errorf("exit code %d", exit.ExitCode())
}

// head keeps the beginning of what is written to it, and takes the rest: who writes is never held up.
type head struct{ text []byte }

func (h *head) Write(b []byte) (int, error) {
	h.text = append(h.text, b[:min(len(b), maxSaid-len(h.text))]...)
	return len(b), nil
}
