// SPDX-License-Identifier: Apache-2.0

package daemon

import (
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
	"agentrun/internal/thread"
	"agentrun/profiles"
	"agentrun/supervisor"
)

// client is one caller of the daemon, from the request to the end of its run. Three goroutines share it: the one
// that carries the run out (serveClient), one that hears its signals and its end (listen), and the daemon's own,
// which passes signals on when the daemon ends (tellAll).
//
// A caller leaves in one of four ways, and its run stays or goes by which it was. Declined: nothing has happened,
// and it goes on alone. Answered: it has its exit code, and what is left of the run is taken down here. Let go: it
// has the id of a detached run, which goes on without it. Gone: it died first, so its streams are stopped, lest
// anybody write to them for ever, and its run is killed.
type client struct {
	d        *Daemon
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

// unreadTime is for how long a daemon that ends waits, when it has killed the runs, for callers to read what those wrote: one who doesn't, as
// who has stopped at the first page, would keep it for ever.
const unreadTime = 2 * time.Second

var errNotRead = fmt.Errorf("the daemon ended before it was read: %w", unix.ECANCELED)

// errGone kills the run of a caller that died, as its run alone would have died with it.
var errGone = errors.New("whoever asked for the run is gone")

// serveClient does for a caller what it would do alone.
func (d *Daemon) serveClient(ctx context.Context, conn *handoff.Conn, ahead *supervisor.Ahead) {
	cl := &client{d: d, conn: conn, signals: make(chan os.Signal, 16), resized: make(chan os.Signal, 1)}
	defer func() {
		if err := conn.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			d.node.Log.Info("hand-off", "err", err)
		}
	}()
	if err := conn.Receive(receiveTime); err != nil {
		d.node.Log.Warn("hand-off", "pid", conn.PID, "err", err)
		return
	}
	if err := d.willing(conn); err != nil {
		_ = conn.Decline(err.Error())
		return
	}
	killed := ctx
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer d.track(cl.signals)()
	defer context.AfterFunc(killed, func() { time.AfterFunc(unreadTime, func() { conn.Stop(errNotRead) }) })()
	if err := cl.listen(end); err != nil {
		_ = conn.Decline("the daemon can't hear its caller: " + err.Error())
		return
	}
	cl.stderr.turn(conn.Stderr)
	code, why := d.carryOut(ctx, cl.caller(), &served{d: d, cl: cl, ahead: ahead}, conn.Args)
	if why != "" {
		d.node.Log.Info("declined", "pid", conn.PID, "why", why)
		_ = conn.Decline(why)
		return
	}
	d.node.Log.Info("carried out", "pid", conn.PID, "code", code)
	cl.answer(code)
	profiles.Ahead()
}

// willing finds out whether the outcome here is that which the caller would have alone.
func (d *Daemon) willing(conn *handoff.Conn) error {
	if d.build == "" || conn.Build != d.build {
		return errors.New("the daemon is another version of agentrun")
	}
	return conn.Same()
}

// listen has the caller heard until it is answered.
func (cl *client) listen(end context.CancelCauseFunc) error {
	return cl.conn.Hear(func(s syscall.Signal) {
		to := cl.signals
		if s == unix.SIGWINCH {
			to = cl.resized
		}
		select {
		case to <- s:
		default: // as the kernel, which merges those that nobody has taken yet
		}
	}, func() {
		if !cl.detached.Load() {
			cl.conn.Stop(unix.EPIPE)
			end(errGone)
		}
	})
}

// carryOut does what a caller's words ask for. What it declines, for a reason, has no effect and no output.
func (d *Daemon) carryOut(
	ctx context.Context, by *supervisor.Caller, host supervisor.Host, args []string,
) (code int, declined string) {
	asked := d.opt.Read(ctx, by, args)
	if asked.Request == nil {
		return asked.Code, ""
	}
	if why := d.foreign(asked.Node); why != "" {
		return 0, why
	}
	asked.Node.Signer = d.node.Signer
	code, err := supervisor.Run(ctx, asked.Node, by, host, asked.Request)
	if err != nil {
		code = supervisor.Report(by.Stderr, err)
	}
	return code, ""
}

func (cl *client) caller() *supervisor.Caller {
	by := &supervisor.Caller{
		Stdin: cl.conn.Stdin, Stdout: cl.conn.Stdout, Stderr: &cl.stderr, Environ: cl.conn.Env, Dir: cl.conn.Dir,
		Watched: supervisor.IsTerminal(cl.conn.Stderr.FD()),
	}
	if supervisor.IsTerminal(cl.conn.Stdin.FD()) {
		by.Terminal = terminal{cl}
	}
	return by
}

// terminal is a caller's.
type terminal struct{ cl *client }

func (t terminal) FD() int { return t.cl.conn.Stdin.FD() }

// Raw asks the caller for it, who restores it at its end.
func (t terminal) Raw() (func(), error) { return func() {}, t.cl.conn.Raw() }

func (t terminal) Resized() (<-chan os.Signal, func()) {
	changes, stop, over := make(chan os.Signal), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		defer close(changes)
		for {
			select {
			case s := <-t.cl.resized:
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
}

func (cl *client) heard() <-chan os.Signal { return cl.signals }

// answer ends the caller. Its files are closed before: whoever reads its output then sees the end of it.
//
// It comes from the observer, as soon as the account is on record, and once more from serveClient at the end of
// all: only the first is heard. What is said after it, of leftovers for example, nobody waits for any more: it goes
// to the daemon's own log.
func (cl *client) answer(code int) {
	cl.answered.Do(func() {
		cl.stderr.turn(os.Stderr)
		cl.conn.Release()
		if err := cl.conn.Exit(code); err != nil && !errors.Is(err, unix.EPIPE) {
			cl.d.node.Log.Info("hand-off", "pid", cl.conn.PID, "err", err)
		}
		thread.Yield()
	})
}

// letGo ends the caller of a detached run, which goes on.
func (cl *client) letGo(log *os.File) {
	cl.detached.Store(true)
	cl.answer(0)
	cl.stderr.turn(log)
}

// current is the daemon's node for what is asked for over the API, by the configuration of now, as each exec that is handed over goes by: what
// has been demanded since the daemon began, of keys, limits, policies or images, holds for it too.
func (d *Daemon) current() (*supervisor.Node, error) {
	n, err := d.opt.Current()
	if err != nil {
		return nil, err
	}
	if why := d.foreign(n); why != "" {
		return nil, errors.New(why)
	}
	n.Signer, n.Log = d.node.Signer, d.node.Log
	return n, nil
}

// foreign tells why a run belongs to another node than this daemon's: its agents, budgets and audit lie
// elsewhere.
func (d *Daemon) foreign(n *supervisor.Node) string {
	switch {
	case n.StateDir != d.node.StateDir:
		return fmt.Sprintf("the daemon's state folder is %s, not %s", d.node.StateDir, n.StateDir)
	case n.RunDir != d.node.RunDir:
		return fmt.Sprintf("the daemon's run folder is %s, not %s", d.node.RunDir, n.RunDir)
	}
	return ""
}

// track is for the drain: who is here gets the signals that we get.
func (d *Daemon) track(signals chan<- os.Signal) (gone func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.signals[signals] = struct{}{}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.signals, signals)
	}
}

// tellAll passes a signal to every run.
func (d *Daemon) tellAll(s os.Signal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for signals := range d.signals {
		select {
		case signals <- s:
		default:
		}
	}
}

var errKilledAtEnd = errors.New("the daemon was told to end")

// collect removes what a daemon that crashed, or a run alone, left.
func (d *Daemon) collect(ctx context.Context) {
	d.collected.Store(time.Now().Unix())
	removed, err := d.node.Collect(ctx, true)
	if err != nil {
		d.node.Log.Warn("cleaning up after crashed runs", "removed", removed, "err", err)
	} else if len(removed) > 0 {
		d.node.Log.Warn("cleaned up after crashed runs", "removed", removed)
	}
}

// collectTime is between two looks at what crashed runs alone left; a daemon's own runs leave nothing while
// it lives.
const collectTime = time.Minute

// collectLately collects beside the run, if it was not done lately.
func (d *Daemon) collectLately() {
	last, now := d.collected.Load(), time.Now().Unix()
	if now-last < int64(collectTime/time.Second) || !d.collected.CompareAndSwap(last, now) {
		return
	}
	d.callers.Go(func() { d.collect(context.Background()) })
}
