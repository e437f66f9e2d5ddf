// SPDX-License-Identifier: Apache-2.0

package main

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

	libcgroups "github.com/opencontainers/cgroups"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"agentrun/hypervisor"
	"agentrun/internal/handoff"
	"agentrun/internal/hinted"
	"agentrun/supervisor/daemon/pool"
	"agentrun/supervisor/daemon/queue"
	"agentrun/supervisor/daemon/systemd"
	"agentrun/supervisor/live"
)

func serveCommand(g *global) *cli.Command {
	return &cli.Command{
		Name:  "serve",
		Usage: "supervise many sandboxes in one process",
		Description: `Runs in the foreground. While it does, agentrun exec hands its runs over: same output, signals and exit
codes, less work for each. SIGTERM: no new runs, those there are get SIGTERM and the grace time; a second
one kills them at once. SIGHUP: read the configuration again. Under systemd it says when it is ready.

   agentrun serve
   agentrun serve --max-sandboxes 100 --queue-timeout 30s`,
		Flags:        serveFlags(),
		OnUsageError: usageError,
		Action:       func(c *cli.Context) error { return serveAction(g, c) },
	}
}

// daemon is the supervisor of many runs.
type daemon struct {
	g     *global
	build string
	queue *queue.Queue
	pool  *pool.Pool
	runs  *live.Runs
	grace time.Duration // between SIGTERM and the kill, when we end

	reading sync.Mutex // the flag library's variables: one caller's flags at a time

	mu      sync.Mutex // guards clients
	clients map[*client]struct{}
	callers sync.WaitGroup

	collected atomic.Int64 // when, in Unix seconds
}

func serveAction(g *global, c *cli.Context) error {
	if c.NArg() > 0 {
		return usageError(c, fmt.Errorf("serve takes no arguments, got %q", c.Args().First()), false)
	}
	limits, err := g.serve.withFlags(c).limits()
	if err != nil {
		return err
	}
	if _, err := g.kill.Hooks(); err != nil { // callers read the same file as a rule; better told now than at each run
		return err
	}
	most, least, err := g.serve.withFlags(c).pool()
	if err != nil {
		return err
	}
	manager := systemd.Started()
	lock, err := g.lockDaemon()
	if err != nil {
		return err
	}
	d := &daemon{g: g, build: handoff.BuildID(), grace: limits.grace, queue: queue.New(limits.Limits, queue.ThisHost()), clients: map[*client]struct{}{}}
	_, given := manager.Sockets["exec"]
	defer func() { d.tidy(lock, !given) }()
	if d.build == "" {
		return hinted.New(errors.New("this program was linked without a build id: its clients can't be told from another version's"), "build it with make build")
	}
	holdCgroupRoot()
	d.collect(c.Context)
	l, err := d.listen(manager)
	if err != nil {
		return err
	}
	d.runs = live.New(live.Options{Node: func() (*hypervisor.Hypervisor, error) { return hypervisor.Open(g.hypervisor()) }, OwnNode: true, Log: d.g.log})
	defer d.runs.Close()
	silence, err := d.runs.Serve(g.runDir, daemonName, version, g.access)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	defer silence()
	d.pool = pool.New(pool.Options{Prepare: d.prepare, Room: d.roomForOneMore, Always: d.shapes, Warn: func(what string, err error) { d.g.log.Warn(what, "err", err) }})
	d.pool.Set(most, least)
	d.pool.Begin()
	defer d.pool.Close()
	return d.serve(c, l, manager)
}

// daemonName is the daemon's on the control API, where a run alone has its id.
const daemonName = "daemon"

// holdCgroupRoot has libcontainer's cgroup library open /sys/fs/cgroup here. It does so once, where it first needs it, and keeps the
// descriptor for good: in the first run's thread that is a mount namespace which ends with the run, and every later run then fails.
func holdCgroupRoot() {
	f, err := libcgroups.OpenFile("/sys/fs/cgroup", "cgroup.procs", unix.O_RDONLY)
	if err == nil {
		f.Close()
	}
}

// lockDaemon makes the folder of the sockets and keeps any other daemon out of it. The kernel gives the lock back, however we end.
func (g *global) lockDaemon() (*os.File, error) {
	dir := filepath.Join(g.runDir, controlDir)
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
				return nil, hinted.New(fmt.Errorf("a daemon serves %s already", g.runDir), "another needs a --run-dir of its own")
			}
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		// The daemon before may have removed the file between our open and our lock: that lock would keep nobody out.
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
func (d *daemon) tidy(lock *os.File, ownSocket bool) {
	var errs []error
	if ownSocket {
		errs = append(errs, os.Remove(filepath.Join(filepath.Dir(lock.Name()), handoff.SocketName)))
	}
	if err := errors.Join(append(errs, os.Remove(lock.Name()), lock.Close())...); err != nil {
		d.g.log.Warn("taking down the daemon", "err", err)
	}
}

func (d *daemon) listen(manager systemd.Manager) (*handoff.Listener, error) {
	if f, ok := manager.Sockets["exec"]; ok {
		defer f.Close()
		return handoff.FromFile(f)
	}
	return handoff.Listen(filepath.Join(d.g.runDir, controlDir))
}

// serve works until a signal ends it, and returns when no run is left.
func (d *daemon) serve(c *cli.Context, l *handoff.Listener, manager systemd.Manager) error {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGUSR1)
	defer signal.Stop(signals)
	ctx, kill := context.WithCancelCause(c.Context)
	defer kill(nil)
	lost := make(chan error, 1)
	d.callers.Go(func() { lost <- d.accept(ctx, l) })
	manager.Tell("READY=1", d.state())
	d.g.log.Info("serving", "run_dir", d.g.runDir, "state_dir", d.g.stateDir, "pid", os.Getpid())
	alive := manager.Alive()
	defer alive.Stop()
	var failure error
	for {
		select {
		case s := <-signals:
			switch s {
			case unix.SIGHUP:
				manager.Reloading()
				d.reload(c)
				manager.Tell("READY=1", d.state())
				continue
			case unix.SIGUSR1:
				d.g.log.Warn("state", "what", d.state(), "goroutines", goruntime.NumGoroutine())
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
	d.queue.Close()
	d.callers.Go(d.pool.Close)
	failure = errors.Join(failure, l.Close())
	d.drain(signals, alive, manager, kill)
	return failure
}

// drain asks every run to end, and ends those that don't.
func (d *daemon) drain(signals <-chan os.Signal, alive *time.Ticker, manager systemd.Manager, kill context.CancelCauseFunc) {
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

// state is for people (systemctl status). It takes the lock of the queue: a daemon stuck there shows no sign of life.
func (d *daemon) state() string {
	live, waiting := d.queue.Counts()
	return fmt.Sprintf("STATUS=%d runs, %d waiting, %d sandboxes ready", live, waiting, d.pool.Ready())
}

func (d *daemon) accept(ctx context.Context, l *handoff.Listener) error {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if _, ok := errors.AsType[*handoff.PeerError](err); ok {
			d.g.log.Warn("hand-off", "err", err)
			continue
		}
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ECONNABORTED) {
			d.g.log.Warn("hand-off", "err", err)
			select {
			case <-time.After(100 * time.Millisecond): // runs that end give descriptors back
				continue
			case <-ctx.Done():
				return nil
			}
		}
		if err != nil {
			return err
		}
		d.callers.Go(func() { d.serveClient(ctx, conn) })
	}
}

// reload takes what can change while runs live. A configuration that can't be used changes nothing.
func (d *daemon) reload(c *cli.Context) {
	cfg, err := readConfig(d.g.caller, c.String("config"))
	var limits serveLimits
	var most int
	var least map[string]int
	if err == nil {
		limits, err = cfg.Serve.withFlags(c).limits()
	}
	if err == nil {
		most, least, err = cfg.Serve.withFlags(c).pool()
	}
	if err != nil {
		d.g.log.Error("the configuration stays as it was", "err", err)
		return
	}
	d.queue.Set(limits.Limits)
	d.grace = limits.grace
	d.pool.Set(most, least)
	d.g.log.Info("configuration read again")
}
