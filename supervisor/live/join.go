// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/containerd/console"
	"golang.org/x/sys/unix"

	"agentrun/control"
	"agentrun/hypervisor"
	"agentrun/rings"
	"agentrun/runtime"
)

// Exec implements control.Controller. Nothing is decided anew: whoever may ask is an operator, the run was
// admitted, and the command is confined by what holds for the run at each moment.
func (s *Runs) Exec(ctx context.Context, id string, r control.ExecRequest, by string, conn io.ReadWriter) error {
	v, err := s.find(id)
	if err != nil {
		return err
	}
	run, err := v.process()
	if err != nil {
		return err
	}
	if v.stopped.Load() {
		return &control.Error{
			Status: 409, Code: control.CodeConflict, Message: "the safety loop has stopped the agent of run " + id,
			Hint: "agentrun challenges list shows what is to be verified",
		}
	}
	done, err := v.wake(ctx, by, forExec)
	if err != nil {
		return err
	}
	defer done()
	j := &joined{v: v, ask: r, by: by, id: joinID(), started: make(chan struct{})}
	j.frames = control.NewAttachServer(conn)
	if r.Detach {
		return j.detached(ctx, run)
	}
	return j.attached(ctx, run)
}

// joined is one command that an operator has another run execute, on their connection.
type joined struct {
	v       *Run
	ask     control.ExecRequest
	by, id  string
	frames  *control.AttachConn
	master  *os.File // nil: no terminal
	started chan struct{}
}

func joinID() string {
	return strings.ToLower(rand.Text()[:16])
}

func (j *joined) spec() runtime.Join {
	return runtime.Join{
		Command: j.ask.Command, Env: j.ask.Env, Cwd: j.ask.Cwd, TTY: j.ask.TTY, Timeout: j.ask.Timeout,
		Limits: runtime.Limits{CPU: j.ask.Limits.CPU, Memory: j.ask.Limits.Memory, PIDs: j.ask.Limits.PIDs},
		Stdout: io.Discard, Stderr: io.Discard,
		OnRecord: func(program []string, ring rings.Ring) error {
			return j.v.Control.RecordJoin(hypervisor.JoinOrder{ID: j.id, By: j.by, Program: program, Ring: ring})
		},
		OnStart: func() { close(j.started) },
		OnEnd: func(s runtime.Status) {
			if err := j.v.Control.RecordJoinEnd(j.id, s); err != nil {
				j.v.all.warn(fmt.Errorf("join of run %s: %w", j.v.Plan.ID, err))
			}
		},
	}
}

// detached answers when the command has been executed. It ends by itself, at its time limit, or with the run.
func (j *joined) detached(ctx context.Context, run *runtime.Live) error {
	failed := make(chan error, 1)
	go func() {
		_, err := run.Join(context.WithoutCancel(ctx), j.spec())
		failed <- err
	}()
	select {
	case <-j.started:
		return j.frames.SendExit(0)
	case err := <-failed:
		select {
		case <-j.started: // and it is over already
			return j.frames.SendExit(0)
		default:
			return joinError(err)
		}
	}
}

// attached is the command's input and output until it ends. The answer begins with it: what comes before is
// a refusal.
func (j *joined) attached(ctx context.Context, run *runtime.Live) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stdin, typed := io.Pipe()
	defer stdin.Close()
	spec := j.spec()
	spec.Stdin, spec.Stdout, spec.Stderr = stdin, j.frames.Writer(control.Stdout), j.frames.Writer(control.Stderr)
	spec.OnTTY = func(master *os.File) {
		j.master = master
		j.resize(j.ask.Rows, j.ask.Columns)
		_ = console.ClearONLCR(master.Fd()) // the operator's terminal does it once more
	}
	spec.OnStart = func() {
		close(j.started)
		go j.listen(typed, cancel)
	}
	status, err := run.Join(ctx, spec)
	if err != nil {
		return joinError(err)
	}
	if status.Reason != "" {
		end := "\n"
		if j.ask.TTY {
			end = "\r\n"
		}
		_, _ = fmt.Fprint(spec.Stderr, "agentrun: ", status.Reason, end)
	}
	return j.frames.SendExit(status.ExitCode)
}

var errHungUp = errors.New("whoever ran it has hung up")

// listen passes on what the operator sends. The end of the connection ends the command.
func (j *joined) listen(typed *io.PipeWriter, hangUp context.CancelCauseFunc) {
	for {
		stream, p, err := j.frames.Next()
		switch {
		case err != nil:
			typed.Close()
			hangUp(errHungUp)
			return
		case stream == control.Resize:
			j.resize(int(binary.BigEndian.Uint16(p)), int(binary.BigEndian.Uint16(p[2:])))
		case len(p) == 0:
			typed.Close()
		default:
			_, _ = typed.Write(p) // a command that has ended or closed its input reads no more
		}
	}
}

func (j *joined) resize(rows, columns int) {
	if j.master != nil && rows > 0 && columns > 0 {
		size := unix.Winsize{Row: uint16(rows), Col: uint16(columns)} //nolint:gosec // checked
		_ = unix.IoctlSetWinsize(int(j.master.Fd()), unix.TIOCSWINSZ, &size)
	}
}

// joinError gives what kept a command from starting its code on the API.
func joinError(err error) error {
	if c, ok := errors.AsType[*runtime.CommandError](err); ok {
		code := control.CodeNoProgram
		if c.NotFound {
			code = control.CodeNoCommand
		}
		return &control.Error{Status: 422, Code: code, Message: c.Error(), Hint: c.Hint}
	}
	if bad, ok := errors.AsType[*runtime.InvalidSpec](err); ok {
		return &control.Error{
			Status: 400, Code: control.CodeBadRequest, Message: bad.Error(),
			Hint: "agentrun exec --help lists what a command can be given",
		}
	}
	conflict := func(hint string) error {
		return &control.Error{Status: 409, Code: control.CodeConflict, Message: err.Error(), Hint: hint}
	}
	switch {
	case errors.Is(err, runtime.ErrFrozen):
		return conflict("agentrun thaw lets it go on; a command in it would stand still too")
	case errors.Is(err, runtime.ErrNoCgroup):
		return conflict("limits of its own take a cgroup (docs/rootless.md); leave them out")
	case errors.Is(err, runtime.ErrFull):
		return conflict("agentrun ps REF lists them, agentrun update REF --pids N gives it room")
	case errors.Is(err, runtime.ErrNoTTY):
		return conflict("try again, or without -t")
	case errors.Is(err, runtime.ErrNotYet):
		return conflict("try again in a moment")
	}
	return endedError(err)
}
