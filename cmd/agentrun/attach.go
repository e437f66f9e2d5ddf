// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"

	"github.com/containerd/console"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"agentrun/control"
	"agentrun/internal/hinted"
	"agentrun/internal/shown"
)

func (l *liveVerbs) attach() *cli.Command {
	return l.agentsVerb(&cli.Command{
		Name:      "attach",
		Usage:     "connect this terminal to a detached run",
		ArgsUsage: "REF",
		Description: `What is typed goes to the agent, what it writes comes here, as with exec. If the run has a terminal of its own, Ctrl-P Ctrl-Q lets
go of it and the run goes on.

   agentrun attach planner
   echo yes | agentrun attach planner

Exit code: the run's, as exec gives it; 0 after Ctrl-P Ctrl-Q; 125 if agentrun can't tell, or the command line is wrong.`,
		Action: func(c *cli.Context) error {
			a, err := refs(c, 1, 1)
			if err != nil {
				return err
			}
			r, tty, err := l.attachable(c.Context, a[0])
			if err != nil {
				return err
			}
			on := attached{
				doing: "attach to " + r.label(), leaves: "detached from " + r.label() + "; it goes on", in: os.Stdin, out: os.Stdout, err: os.Stderr,
				connect: func(ctx context.Context, conn io.ReadWriter) error { return r.by.Attach(ctx, r.ID, conn) },
			}
			if tty && isTerminal(os.Stdin) {
				restore, err := on.rawTerminal()
				if err != nil {
					return err
				}
				defer restore()
			}
			return on.serve(c.Context)
		},
	})
}

// attachable finds the run, and whether it has a terminal.
func (l *liveVerbs) attachable(ctx context.Context, ref string) (liveRun, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	r, err := l.findOne(ctx, ref)
	if err != nil {
		return r, false, err
	}
	if !r.Detached {
		return r, false, hinted.New(fmt.Errorf("attach to %s: its input and output belong to the agentrun exec that started it", r.label()), "agentrun exec --detach starts runs that can be attached to")
	}
	in, err := r.by.Inspect(ctx, r.ID)
	if err != nil {
		return r, false, refusal("attach to "+r.label(), err)
	}
	var plan struct {
		TTY bool `json:"tty"`
	}
	return r, json.Unmarshal(in.Plan, &plan) == nil && plan.TTY, nil
}

// attached is the input and output of a run, or of a command in one, on ours.
type attached struct {
	doing    string // what for, in errors
	leaves   string // what is said after the keys that let go; empty: there are none
	connect  func(ctx context.Context, conn io.ReadWriter) error
	in       io.Reader
	out, err io.Writer
	screen   *shown.Screen    // what out is; nil: no terminal
	sizes    <-chan [2]uint16 // rows, columns
}

var errDetached = errors.New("detached")

// serve returns when that ends, with its exit code, or nil when it was let go of.
func (a *attached) serve(ctx context.Context) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	ours, theirs := net.Pipe()
	defer func() { _ = ours.Close() }()
	conn := control.NewAttachClient(ours)
	answer := make(chan error, 1)
	go func() {
		err := a.connect(ctx, theirs)
		_ = theirs.Close()
		answer <- err
	}()
	go a.pass(conn, end, ours.Close)
	code, err := a.show(conn)
	a.screen.Reset()
	if errors.Is(context.Cause(ctx), errDetached) {
		fmt.Fprintf(a.err, "\r\nagentrun: %s\r\n", a.leaves)
		return nil
	}
	if err == nil {
		return exitError(code)
	}
	_ = ours.Close()
	if refused := <-answer; refused != nil {
		err = refused
	} else if errors.Is(err, io.EOF) {
		err = errors.New("the connection ended before the run did")
	}
	return refusal(a.doing, err)
}

// show writes what the run writes until it says how it ended.
func (a *attached) show(conn *control.AttachConn) (int, error) {
	for {
		stream, p, err := conn.Next()
		if err != nil {
			return 0, err
		}
		switch stream {
		case control.Exit:
			return control.ExitCode(p)
		case control.Stdout:
			_, err = a.out.Write(p)
		case control.Stderr:
			_, err = a.err.Write(p)
		}
		if err != nil {
			return 0, err
		}
	}
}

// pass sends what is typed, and sizes of the terminal.
func (a *attached) pass(conn *control.AttachConn, end context.CancelCauseFunc, letGo func() error) {
	go func() {
		for size := range a.sizes {
			if conn.SendResize(size[0], size[1]) != nil {
				return
			}
		}
	}()
	_, err := io.Copy(conn.Writer(control.Stdin), a.in)
	switch {
	case errors.Is(err, errDetached):
		end(errDetached)
		_ = letGo() // show sees the end
	case err == nil:
		_ = conn.Send(control.Stdin, nil)
	}
}

// Keys that let go of a run. They mean nothing to programs in a row.
const (
	ctrlP = 0x10
	ctrlQ = 0x11
)

// detachKeys reads until the keys are typed; then its error is errDetached. A lone Ctrl-P is passed on with what follows it.
type detachKeys struct {
	r     io.Reader
	held  bool   // a Ctrl-P is not passed on yet
	ready []byte // to be given out
	err   error
	buf   [4096]byte
}

func (d *detachKeys) Read(p []byte) (int, error) {
	for len(d.ready) == 0 && d.err == nil {
		n, err := d.r.Read(d.buf[:])
		d.err = err
		d.take(d.buf[:n])
	}
	if len(d.ready) > 0 {
		n := copy(p, d.ready)
		d.ready = d.ready[n:]
		return n, nil
	}
	return 0, d.err
}

func (d *detachKeys) take(typed []byte) {
	for _, b := range typed {
		switch {
		case d.held && b == ctrlQ:
			d.held, d.err = false, errDetached
			return
		case b == ctrlP && !d.held:
			d.held = true
		default:
			if d.held {
				d.ready = append(d.ready, ctrlP)
			}
			d.held = b == ctrlP
			if !d.held {
				d.ready = append(d.ready, b)
			}
		}
	}
	if d.err != nil && d.held { // the input ended with one
		d.ready, d.held = append(d.ready, ctrlP), false
	}
}

// rawTerminal lets every key act on the run's terminal, and tells it the size of ours.
func (a *attached) rawTerminal() (restore func(), err error) {
	ours, err := console.ConsoleFromFile(os.Stdin)
	if err != nil {
		return nil, fmt.Errorf("terminal: %w", err)
	}
	if err := ours.SetRaw(); err != nil {
		return nil, fmt.Errorf("terminal: %w", err)
	}
	if a.leaves != "" {
		a.in = &detachKeys{r: os.Stdin}
	}
	a.screen = &shown.Screen{To: a.out}
	a.out = a.screen
	winch := make(chan os.Signal, 1)
	sizes := make(chan [2]uint16, 1)
	tell := func() {
		if size, err := ours.Size(); err == nil {
			sizes <- [2]uint16{size.Height, size.Width}
		}
	}
	signal.Notify(winch, unix.SIGWINCH)
	tell()
	go func() {
		for range winch {
			tell()
		}
	}()
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, unix.SIGTERM, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT)
	go func() {
		if s, ok := (<-ends).(unix.Signal); ok { // the terminal is somebody's after us
			a.screen.Reset()
			_ = ours.Reset()
			os.Exit(128 + int(s))
		}
	}()
	a.sizes = sizes
	return func() {
		signal.Stop(winch)
		_ = ours.Reset()
	}, nil
}
