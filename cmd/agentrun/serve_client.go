// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/handoff"
)

// client is one caller of the daemon, from the request to the end of its run.
type client struct {
	d        *daemon
	conn     *handoff.Conn
	stderr   divert
	signals  chan os.Signal
	resized  chan os.Signal
	answered sync.Once
	detached atomic.Bool
}

// divert is where the words of a run go: to its caller, and when that is gone to our own log.
type divert struct {
	mu sync.Mutex
	to io.Writer
}

func (v *divert) Write(b []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.to.Write(b)
}

func (v *divert) turn(to io.Writer) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.to = to
}

// receiveTime bounds how long a caller may take to say what it wants: it sends it in one piece.
const receiveTime = 5 * time.Second

// errGone kills the run of a caller that died, as its run alone would have died with it.
var errGone = errors.New("whoever asked for the run is gone")

// declined lets the caller run alone.
type declined struct{ why string }

func (e *declined) Error() string { return "declined: " + e.why }

// serveClient does for a caller what it would do alone.
func (d *daemon) serveClient(ctx context.Context, conn *handoff.Conn) {
	cl := &client{d: d, conn: conn, signals: make(chan os.Signal, 16), resized: make(chan os.Signal, 1)}
	defer func() {
		if err := conn.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			d.g.log.Info("hand-off", "err", err)
		}
	}()
	if err := conn.Receive(receiveTime); err != nil {
		d.g.log.Warn("hand-off", "pid", conn.PID, "err", err)
		return
	}
	if err := d.willing(conn); err != nil {
		_ = conn.Decline(err.Error())
		return
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer d.track(cl)()
	go cl.listen(end)
	cl.stderr.turn(conn.Stderr)
	code, err := d.carryOut(ctx, cl.caller(), conn.Args)
	if no, ok := errors.AsType[*declined](err); ok {
		d.g.log.Info("declined", "pid", conn.PID, "why", no.why)
		_ = conn.Decline(no.why)
		return
	}
	d.g.log.Info("carried out", "pid", conn.PID, "code", code)
	cl.answer(code)
}

// willing finds out whether the outcome here is that which the caller would have alone.
func (d *daemon) willing(conn *handoff.Conn) error {
	if d.build == "" || conn.Build != d.build {
		return errors.New("the daemon is another version of agentrun")
	}
	return conn.Same()
}

// listen ends with the caller.
func (cl *client) listen(end context.CancelCauseFunc) {
	cl.conn.Signals(func(s syscall.Signal) {
		to := cl.signals
		if s == unix.SIGWINCH {
			to = cl.resized
		}
		select {
		case to <- s:
		default: // as the kernel, which merges those that nobody has taken yet
		}
	})
	if !cl.detached.Load() {
		cl.conn.Stop()
		end(errGone)
	}
}

// carryOut runs a command of by's. What the library prints is kept until it has let go of its lock: a caller that doesn't read its
// output must not hold up the others.
func (d *daemon) carryOut(ctx context.Context, by *caller, args []string) (code int, err error) {
	g := &global{caller: by}
	d.reading.Lock()
	by.read = sync.OnceFunc(d.reading.Unlock)
	defer by.read()
	app := g.app()
	var printed, complaints bytes.Buffer
	app.Writer, app.ErrWriter = &printed, &complaints
	err = app.RunContext(ctx, flagsFirst(app, args))
	by.read()
	if _, ok := errors.AsType[*declined](err); ok {
		return 0, err
	}
	_, _ = by.stdout.Write(printed.Bytes())
	_, _ = by.stderr.Write(complaints.Bytes())
	return report(by.stderr, cmp.Or(err, g.unknown)), nil
}

func (cl *client) caller() *caller {
	by := &caller{
		home: cl.d, stdin: cl.conn.Stdin, stdout: cl.conn.Stdout, stderr: &cl.stderr, environ: cl.conn.Env, dir: cl.conn.Dir,
		signals: func() <-chan os.Signal { return cl.signals },
		settled: cl.answer,
		detach:  cl.letGo,
	}
	if fd := cl.conn.Stdin.FD(); terminalAt(fd) {
		by.tty = &terminal{
			fd:  fd,
			raw: func() (func(), error) { return func() {}, cl.conn.Raw() }, // the caller restores it at its end
			resized: func() (<-chan os.Signal, func()) {
				changes, stop, over := make(chan os.Signal), make(chan struct{}), make(chan struct{})
				go func() {
					defer close(over)
					defer close(changes)
					for {
						select {
						case s := <-cl.resized:
							select {
							case changes <- s:
							case <-stop:
								return
							}
						case <-stop:
							return
						}
					}
				}()
				return changes, func() { close(stop); <-over }
			},
		}
	}
	return by
}

// answer ends the caller. Its files are closed before: whoever reads its output then sees the end of it.
func (cl *client) answer(code int) {
	cl.answered.Do(func() {
		cl.stderr.turn(os.Stderr)
		cl.conn.Release()
		if err := cl.conn.Exit(code); err != nil && !errors.Is(err, unix.EPIPE) {
			cl.d.g.log.Info("hand-off", "pid", cl.conn.PID, "err", err)
		}
	})
}

// letGo ends the caller of a detached run, which goes on.
func (cl *client) letGo(log *os.File) error {
	cl.detached.Store(true)
	cl.answer(0)
	cl.stderr.turn(log)
	return nil
}

// suits refuses a run that belongs to another node than this daemon's: its agents, budgets and audit lie elsewhere.
func (d *daemon) suits(g *global) error {
	switch {
	case g.stateDir != d.g.stateDir:
		return &declined{fmt.Sprintf("the daemon's state folder is %s, not %s", d.g.stateDir, g.stateDir)}
	case g.runDir != d.g.runDir:
		return &declined{fmt.Sprintf("the daemon's run folder is %s, not %s", d.g.runDir, g.runDir)}
	}
	return nil
}

// track is for the drain: who is here gets the signals that we get.
func (d *daemon) track(cl *client) (gone func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clients[cl] = struct{}{}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.clients, cl)
	}
}

// tellAll passes a signal to every run.
func (d *daemon) tellAll(s os.Signal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for cl := range d.clients {
		select {
		case cl.signals <- s:
		default:
		}
	}
}

var errKilledAtEnd = errors.New("the daemon was told to end")

// collect removes what a daemon that crashed, or a run alone, left.
func (d *daemon) collect(ctx context.Context) {
	d.collected.Store(time.Now().Unix())
	removed, err := d.g.collect(ctx, true)
	if err != nil {
		d.g.log.Warn("cleaning up after crashed runs", "removed", removed, "err", err)
	} else if len(removed) > 0 {
		d.g.log.Warn("cleaned up after crashed runs", "removed", removed)
	}
}

// collectTime is between two looks at what crashed runs alone left; a daemon's own runs leave nothing while it lives.
const collectTime = time.Minute

// collectLately collects beside the run, if it was not done lately.
func (d *daemon) collectLately() {
	last, now := d.collected.Load(), time.Now().Unix()
	if now-last < int64(collectTime/time.Second) || !d.collected.CompareAndSwap(last, now) {
		return
	}
	d.callers.Go(func() { d.collect(context.Background()) })
}
