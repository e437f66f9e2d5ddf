// SPDX-License-Identifier: Apache-2.0

// Package daemon is the supervisor of many runs (docs/daemon.md). Callers hand over what they want to have
// run; each is carried out in this process as it would be in one of its own, by package supervisor.
//
//	err := daemon.Serve(ctx, daemon.Options{Node: node, Settings: settings, Read: read, Reload: reload})
//
// What a caller sends is its command line, which its program sends before it could read it. What that asks
// for is told by Read, which is passed in: nothing here knows of flags.
//
// Guarantees. A caller gets what it would get alone: its environment, folder, streams and signals are its
// run's, and no other's. One whose view of the host, node or program differs is declined, before anything of
// its run has happened, and runs alone. One daemon serves a run folder. A daemon that is asked to end lets
// every run end first, within the grace time.
//
// Errors. Serve returns why the daemon could not begin, or what kept it from hearing callers. What goes wrong
// with a run is its caller's to hear. What it does not protect against: its callers are root or its own user
// (package handoff); they share its limits, and one that is let in can use up what there is.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/cgroups"
	"agentrun/internal/early"
	"agentrun/internal/handoff"
	"agentrun/internal/hinted"
	"agentrun/internal/thread"
	"agentrun/supervisor"
	"agentrun/supervisor/daemon/pool"
	"agentrun/supervisor/daemon/queue"
	"agentrun/supervisor/daemon/systemd"
	"agentrun/supervisor/live"
	"agentrun/supervisor/sandboxes"
)

// Options say which node a daemon is for. All are required.
type Options struct {
	Node     *supervisor.Node
	Settings Settings
	Metrics  Metrics
	// Read tells what a caller's command line asks for. It has told the caller what is wrong with it, and
	// whatever else there is to say where there is nothing to run. It is called for many callers at once.
	Read func(ctx context.Context, by *supervisor.Caller, args []string) Asked
	// ReadCreate is Read of agentrun create.
	ReadCreate func(ctx context.Context, by *supervisor.Caller, args []string) Asked
	// Reload reads the settings again. After an error they stay as they are.
	Reload func() (Settings, error)
	// Current is the node by what the daemon's configuration says now.
	Current func() (*supervisor.Node, error)
}

// Settings are what can change while a daemon lives.
type Settings struct {
	queue.Limits
	Grace time.Duration // between SIGTERM to the runs and their kill, when the daemon ends
	// PoolMax is how many sandboxes are kept ready at most, and Pool how many always are, by profile.
	PoolMax int
	Pool    map[string]int
}

// Asked is what a command line asks for.
type Asked struct {
	Node    *supervisor.Node // that it is meant for
	Request *supervisor.Request
	Sandbox *sandboxes.Sandbox // that is to be created by Request (ReadCreate)
	// Code is the caller's exit code where there is no request: all is said.
	Code int
}

// Daemon is the supervisor of many runs. One goroutine, that of Serve, hears signals and the service manager and
// changes the settings; one accepts callers; each caller has one of its own; and the pool has one.
//
// It ends in this order, each part when nobody asks it any more: no new callers and no queue, then the pool, while
// live runs are asked to end, and killed after the grace time; then the control API, whose operators may still
// have been waiting for one of the runs; then the safety loops and what they keep; at last the lock, so that
// the next daemon finds nothing of this one.
type Daemon struct {
	opt   Options
	node  *supervisor.Node
	build string
	queue *queue.Queue
	pool  *pool.Pool
	runs  *live.Runs
	grace time.Duration // between SIGTERM and the kill, when we end

	mu      sync.Mutex                    // guards what follows
	signals map[chan<- os.Signal]struct{} // of whoever asked for the runs
	serving context.Context               //nolint:containedctx // of the runs; nil: none may begin
	starts  int                           // that were asked for over the API and don't live yet
	callers sync.WaitGroup

	width     *width
	collected atomic.Int64 // when, in Unix seconds
}

func newDaemon(o Options) *Daemon {
	return &Daemon{
		opt: o, node: o.Node, build: early.BuildID(), grace: o.Settings.Grace,
		width: newWidth(), queue: queue.New(o.Settings.Limits, queue.ThisHost()), signals: map[chan<- os.Signal]struct{}{},
	}
}

// Serve works until a signal ends it, and returns when no run is left.
func Serve(ctx context.Context, o Options) error {
	// Callers read the same file as a rule; better told now than at each run.
	if _, err := o.Node.Kill.Hooks(); err != nil {
		return err
	}
	manager := systemd.Started()
	if err := supervisor.OwnDescriptors(); err != nil {
		return err
	}
	lock, err := lockFolder(o.Node)
	if err != nil {
		return err
	}
	d := newDaemon(o)
	_, given := manager.Sockets["exec"]
	defer func() { d.tidy(lock, !given) }()
	if d.build == "" {
		return hinted.New(errors.New("this program was linked without a build id: its clients can't be told from another version's"),
			"build it with make build")
	}
	d.collect(ctx)
	l, err := d.listen(manager)
	if err != nil {
		return err
	}
	d.node.Signer = d.node.NewSigner()
	defer func() {
		if err := d.node.Signer.Close(); err != nil {
			d.node.Log.Warn("audit", "err", err)
		}
	}()
	cgroups.Prepare()
	d.pool = pool.New(pool.Options{
		Prepare: d.prepare, Room: d.roomForOneMore, Always: d.shapes,
		Warn: func(what string, err error) { d.node.Log.Warn(what, "err", err) },
	})
	d.runs = live.New(live.Options{
		Node: d.node.Open, OwnNode: true, Log: d.node.Log, Codes: d.node.Codes, Metrics: d.metrics,
		Undo: d.node.Undoer(supervisor.OwnCaller()), Operators: d.node.Operators, More: d.routes(),
	})
	defer d.runs.Close()
	silence, err := d.runs.Serve(d.node.RunDir, ControlName, d.node.Version, d.node.Access)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	defer silence()
	silenceMetrics, err := d.serveMetrics(o.Metrics)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	defer silenceMetrics()
	d.pool.Set(o.Settings.PoolMax, o.Settings.Pool)
	d.pool.Begin()
	defer d.pool.Close()
	return d.serve(ctx, l, manager)
}

// ControlName is the daemon's on the control API, where a run alone has its id.
const ControlName = "daemon"

// lockFolder makes the folder of the sockets and keeps any other daemon out of it. The kernel gives the lock
// back, however we end.
func lockFolder(n *supervisor.Node) (*os.File, error) {
	dir := n.ControlDir()
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	for {
		f, err := os.OpenFile(filepath.Join(dir, "serve.lock"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, hinted.New(fmt.Errorf("a daemon serves %s already", n.RunDir), "another needs a --run-dir of its own")
			}
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		// The daemon before may have removed the file between our open and our lock: that lock would keep
		// nobody out.
		mine, err := f.Stat()
		if err != nil {
			f.Close()
			return nil, err
		}
		if there, err := os.Lstat(f.Name()); err == nil && os.SameFile(mine, there) {
			return f, nil
		}
		f.Close()
	}
}

// tidy removes what a daemon has in the folder. The lock is the last to go.
func (d *Daemon) tidy(lock *os.File, ownSocket bool) {
	var errs []error
	if ownSocket {
		errs = append(errs, os.Remove(filepath.Join(filepath.Dir(lock.Name()), handoff.SocketName)))
	}
	if err := errors.Join(append(errs, os.Remove(lock.Name()), lock.Close())...); err != nil {
		d.node.Log.Warn("taking down the daemon", "err", err)
	}
}

func (d *Daemon) listen(manager systemd.Manager) (*handoff.Listener, error) {
	if f, ok := manager.Sockets["exec"]; ok {
		defer f.Close()
		return handoff.FromFile(f)
	}
	return handoff.Listen(d.node.ControlDir())
}

// serve works until a signal ends it, and returns when no run is left.
func (d *Daemon) serve(ctx context.Context, l *handoff.Listener, manager systemd.Manager) error {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGUSR1)
	defer signal.Stop(signals)
	ctx, kill := context.WithCancelCause(ctx)
	defer kill(nil)
	lost := make(chan error, 1)
	d.callers.Go(func() { d.accept(ctx, l, lost) })
	d.letStart(ctx)
	kept, end := context.WithCancel(ctx)
	defer end()
	d.callers.Go(func() { d.node.StartSandboxes(kept, os.Environ()) })
	manager.Tell("READY=1", d.state())
	d.node.Log.Info("serving", "run_dir", d.node.RunDir, "state_dir", d.node.StateDir, "pid", os.Getpid())
	alive := manager.Alive()
	defer alive.Stop()
	var failure error
	for {
		select {
		case s := <-signals:
			switch s {
			case unix.SIGHUP:
				manager.Reloading()
				d.reload()
				manager.Tell("READY=1", d.state())
				continue
			case unix.SIGUSR1:
				d.node.Log.Warn("state", "what", d.state(), "goroutines", goruntime.NumGoroutine())
				continue
			}
		case failure = <-lost:
			failure = fmt.Errorf("accept callers: %w", failure)
		case <-alive.C:
			manager.Tell("WATCHDOG=1", d.state())
			continue
		}
		break
	}
	manager.Tell("STOPPING=1", d.state())
	end()
	d.queue.Close()
	d.letNone()
	d.callers.Go(d.pool.Close)
	failure = errors.Join(failure, l.Close())
	d.drain(signals, alive, manager, kill)
	return failure
}

// drain asks every run to end, and ends those that don't: after the grace time, or at a second signal. It
// returns when the last caller's goroutine has, and says meanwhile to the service manager that it is alive:
// taking down many runs may take longer than the watchdog waits.
func (d *Daemon) drain(signals <-chan os.Signal, alive *time.Ticker, manager systemd.Manager, kill context.CancelCauseFunc) {
	d.tellAll(unix.SIGTERM)
	ended := make(chan struct{})
	go func() {
		d.callers.Wait()
		close(ended)
	}()
	over := time.NewTimer(d.grace)
	defer over.Stop()
	for {
		select {
		case <-ended:
			return
		case <-over.C:
			kill(errKilledAtEnd)
		case s := <-signals:
			if s == unix.SIGTERM || s == unix.SIGINT {
				kill(errKilledAtEnd)
			}
		case <-alive.C:
			manager.Tell("WATCHDOG=1", d.state())
		}
	}
}

// state is for people (systemctl status). It takes the lock of the queue: a daemon stuck there shows no sign
// of life.
func (d *Daemon) state() string {
	live, waiting := d.queue.Counts()
	return fmt.Sprintf("STATUS=%d runs, %d waiting, %d sandboxes ready", live, waiting, d.pool.Ready())
}

// accept takes a caller and serves it, when another has been begun that takes the next: who is woken by a caller has it, and wakes nobody for it.
// The last, when the listener is closed, which is how the daemon stops taking callers, tells lost.
func (d *Daemon) accept(ctx context.Context, l *handoff.Listener, lost chan<- error) {
	conn, err := d.admit(ctx, l)
	if conn == nil {
		lost <- err
		return
	}
	thread.Room16()
	ahead := d.node.LookAhead()
	thread.Beside(func() {
		d.queue.Ahead()
		ahead.Look()
		thread.Stay(stayTime)
	})
	d.callers.Go(func() { d.accept(ctx, l, lost) })
	d.serveClient(ctx, conn, ahead)
}

// stayTime is for how long whoever has looked ahead stays, so as to take what the run then begins.
const stayTime = 200 * time.Microsecond

// admit waits for a caller; nil without an error: the listener is closed. A caller who isn't let in, and a host short of descriptors or memory,
// end nothing: the one is told of, the other waited out, since runs that end give both back. Any other error ends the daemon: it would look alive
// and answer nobody.
func (d *Daemon) admit(ctx context.Context, l *handoff.Listener) (*handoff.Conn, error) {
	for {
		conn, err := l.Accept()
		if err == nil {
			return conn, nil
		}
		if errors.Is(err, net.ErrClosed) {
			return nil, nil
		}
		if _, ok := errors.AsType[*handoff.PeerError](err); ok {
			d.node.Log.Warn("hand-off", "err", err)
			continue
		}
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ECONNABORTED) {
			d.node.Log.Warn("hand-off", "err", err)
			select {
			case <-time.After(100 * time.Millisecond): // runs that end give descriptors back
				continue
			case <-ctx.Done():
				return nil, nil
			}
		}
		return nil, err
	}
}

// reload takes what can change while runs live. A configuration that can't be used changes nothing.
func (d *Daemon) reload() {
	s, err := d.opt.Reload()
	if err != nil {
		d.node.Log.Error("the configuration stays as it was", "err", err)
		return
	}
	d.queue.Set(s.Limits)
	d.grace = s.Grace
	d.pool.Set(s.PoolMax, s.Pool)
	d.node.Log.Info("configuration read again")
}
