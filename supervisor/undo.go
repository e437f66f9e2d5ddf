// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"agentrun/hypervisor"
	"agentrun/internal/read"
	"agentrun/internal/thread"
	"agentrun/rings"
	"agentrun/runtime"
	"agentrun/toolproxy/link"
)

// What a gateway may say in answer to an ask, and in complaint.
const maxUndone = 64 << 10

// Undoer carries out what undoes tools' calls on this node (H-7), for an operator or the kill of a run, whether or not the run still
// lives: a gateway that serves nobody makes the call, or names the program to run in a sandbox of its own. Both are as gateway.yaml
// declares them now; secrets that come from variables are looked up in by's environment.
func (n *Node) Undoer(by *Caller) hypervisor.Undoer { return n.undoer(by, Run) }

// runner is Run, or what goes the same way.
type runner func(ctx context.Context, n *Node, by *Caller, host Host, want *Request) (code int, err error)

// another is Run for who is on the way already.
func (s *run) another(ctx context.Context, n *Node, by *Caller, host Host, want *Request) (code int, err error) {
	return newRun(ctx, n, by, host, want).whole(s.way)
}

func (n *Node) undoer(by *Caller, run runner) hypervisor.Undoer {
	return func(ctx context.Context, u hypervisor.Undoable, args json.RawMessage) error {
		answer, err := n.askUndo(ctx, by, u, args)
		switch {
		case err != nil:
			return err
		case answer.Code != rings.CodeOK:
			return &hypervisor.UndoError{Code: answer.Code, Err: fmt.Errorf("undo call %s of %s: %s", u.Call, u.Tool, answer.Message)}
		case answer.Command != nil:
			ctx, cancel := context.WithTimeout(ctx, answer.Limit)
			defer cancel()
			return n.runUndo(ctx, by, run, u, *answer.Command, args)
		}
		return nil
	}
}

// askUndo starts a gateway for one undo. An error is that nothing was done, but for an *hypervisor.UndoError: whoever was killed or cut
// short may have done it.
func (n *Node) askUndo(ctx context.Context, by *Caller, u hypervisor.Undoable, args json.RawMessage) (answer link.Undone, err error) {
	file, err := n.ReadGateway(u.Gateway)
	if err != nil {
		return answer, err
	}
	program, err := n.Gateway.Find()
	if err != nil {
		return answer, err
	}
	uid, release, err := runtime.GatewayUser()
	if err != nil {
		return answer, err
	}
	defer func() { err = errors.Join(err, release()) }()
	ask, err := json.Marshal(link.UndoAsk{Tool: u.Tool, Args: args, Made: u.Made, Begun: u.At, Start: link.Start{
		Version: n.Version, UID: uid, Ring: rings.Sandbox, Config: link.Config{Path: file.Path, Text: file.Text},
	}})
	if err != nil {
		return answer, err
	}
	var said, complaint bytes.Buffer
	thread.Throwaway(func() { // the parent-death signal is the thread's that forks
		cmd := exec.CommandContext(ctx, program, "undo")
		cmd.Env = append([]string{"GOMEMLIMIT=256MiB", "GOTRACEBACK=single"}, file.Environ(by.LookupEnv)...)
		cmd.Dir, cmd.Stdin = "/", bytes.NewReader(ask)
		cmd.Stdout, cmd.Stderr = &atMost{&said, maxUndone}, &atMost{&complaint, maxUndone}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
		err = cmd.Run()
	})
	exited, ended := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil:
		err = read.Exactly(said.Bytes(), &answer)
	case ended && exited.Exited():
		return answer, fmt.Errorf("undo call %s: %s", u.Call, strings.TrimSpace(complaint.String()))
	}
	if err != nil {
		err = &hypervisor.UndoError{Code: codeUnknown, Err: fmt.Errorf("undo call %s: the gateway gave no answer: %w", u.Call, err)}
	}
	return answer, err
}

// codeUnknown: nobody knows whether it was undone.
const codeUnknown rings.Code = "unknown"

// runUndo runs the operator's program that undoes a call: a run of its own and of nobody's, since what it takes back is the agent's.
func (n *Node) runUndo(ctx context.Context, by *Caller, run runner, u hypervisor.Undoable, cmd link.Command, args json.RawMessage) error {
	own := *n
	own.KeysRequired = false // keys are agents'
	r := toolRequest(by, cmd)
	r.Name = "undo-" + u.Call
	as := &Caller{Stdin: bytes.NewReader(args), Stdout: io.Discard, Stderr: io.Discard, Environ: by.Environ, Dir: by.Dir}
	code, err := run(ctx, &own, as, undoing{Alone{Node: &own}}, r)
	switch {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return &hypervisor.UndoError{Code: "tool_timeout", Err: fmt.Errorf("undo call %s: the command ran out of time", u.Call)}
	case code != 0:
		return &hypervisor.UndoError{Code: "tool_failed", Err: fmt.Errorf("undo call %s: the command's exit code is %d", u.Call, code)}
	}
	return nil
}

// undoing is the place of a run that undoes a call: in the process that was asked to, whose signals are not the run's.
type undoing struct{ Alone }

func (undoing) Signals() <-chan os.Signal { return nil }

func (undoing) Started() {}

func (undoing) Collect(context.Context) {}

// atMost takes no more than its bytes, and then fails whoever writes.
type atMost struct {
	to   *bytes.Buffer
	left int
}

func (a *atMost) Write(b []byte) (int, error) {
	if a.left -= len(b); a.left < 0 {
		return 0, io.ErrShortWrite
	}
	return a.to.Write(b)
}
