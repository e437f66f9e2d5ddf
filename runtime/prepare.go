// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/fsjail"
	"agentrun/internal/thread"
)

// Prepared is a sandbox that was built before anybody asked for it: folder, uid range, cgroup, namespaces,
// root view and its pid 1, which waits. It has run nothing but our own init and shares nothing with any
// other. It is used once: Run takes it down with the run it was handed out to, Close if there is none.
//
// The thread that forked it stays its parent: the kernel kills it when we die. Its run folder is locked as a
// live run's, so that Collect leaves it alone while we live and removes it afterwards.
type Prepared struct {
	shape Shape
	id    string
	since time.Time
	l     *launch
	pid1  int // pidfd

	// Free, and then taken for good: by the run it is handed out to, or by Close. Who takes it closes pid1
	// and next; until then pid1 tells whether it lives, and its thread waits for next.
	mu    sync.Mutex
	taken bool        // a run has it, or it is being taken down
	next  chan func() // what its thread is to do; closed when nothing is left
	over  chan struct{}
}

// PrepareOptions are what preparing needs of its caller. RunDir is required; the others are those of Options.
type PrepareOptions struct {
	RunDir       string
	CacheDir     string
	OnCacheError func(error)
	OnStep       func(name string, took, cpu time.Duration)
}

// ErrShapeChanged says that the host is no longer what the shape was taken from.
var ErrShapeChanged = errors.New("the host has changed since the shape was taken")

// Prepare does of a launch what doesn't depend on the run. On error nothing is left.
func Prepare(shape Shape, opt PrepareOptions) (*Prepared, error) {
	if err := shape.holds(); err != nil {
		return nil, fmt.Errorf("prepare: %w", err)
	}
	plan := *shape.plan
	plan.ID = newID()
	plan.Cgroup = plan.cgroupOf()
	p := &Prepared{shape: shape.Kept(), id: plan.ID, since: time.Now(), pid1: -1, next: make(chan func()), over: make(chan struct{})}
	o := Options{RunDir: opt.RunDir, OnStep: opt.OnStep, CacheDir: opt.CacheDir, OnCacheError: opt.OnCacheError}
	if plan.Wayout != nil {
		o.Wayout = &Wayout{} // who answers it is the run's
	}
	stuck := make(chan error, 1)
	p.l = &launch{plan: &plan, opt: o, shape: &p.shape, ctx: context.Background(), stuck: stuck}
	if shape.waits {
		var err error
		if p.l.bpf, err = plan.compile(&o); err != nil {
			return nil, fmt.Errorf("prepare: %w", err)
		}
	}
	up := make(chan error, 1) // nobody may wait for it
	go func() {
		defer close(p.over)
		thread.Throwaway(func() {
			err := p.l.upAhead()
			up <- err
			if err != nil {
				return
			}
			for fn := range p.next {
				fn()
			}
		})
	}()
	var err error
	select {
	case err = <-up:
	case err = <-stuck:
		return nil, fmt.Errorf("prepare: %w", err) // its thread undoes it when it comes back
	}
	if err == nil {
		// What the run will most likely have; if it can't be set now, it is when the sandbox is handed out.
		if p.l.group.Update(limitsOf(shape.plan)) != nil {
			plan.Limits.CPU = p.l.group.Limits().CPU
		}
		if err = p.watch(); err == nil && shape.waits {
			err = errors.Join(p.l.verify(), p.l.watchMemory())
		}
		if err == nil {
			err = shape.holds() // it may have changed while we were building
		}
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("prepare: %w", err)
	}
	return p, nil
}

func (s Shape) holds() error {
	now, err := s.Renewed()
	if err == nil && now.key != s.key {
		err = ErrShapeChanged
	}
	return err
}

func (p *Prepared) watch() (err error) {
	if p.pid1, err = unix.PidfdOpen(p.l.initPID, 0); err != nil {
		return fmt.Errorf("pidfd_open: %w", err)
	}
	return nil
}

// ID is the run's that it will be handed out to.
func (p *Prepared) ID() string { return p.id }

// Since is when it was begun.
func (p *Prepared) Since() time.Time { return p.since }

// Alive says whether it can still be handed out.
func (p *Prepared) Alive() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken {
		return false
	}
	fds := []unix.PollFd{{Fd: int32(p.pid1), Events: unix.POLLIN}} //nolint:gosec // a descriptor
	for {
		n, err := unix.Poll(fds, 0)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && n == 0 // readable: it has ended (pidfd_open(2))
		}
	}
}

// Close takes it down unused. It does nothing if a run has it or had it, and on nil.
func (p *Prepared) Close() error {
	if p == nil {
		return nil
	}
	if !p.claim() {
		return nil
	}
	var err error
	p.atHome(func() { err = p.l.down() })
	p.leave()
	return err
}

// claim is for whoever decides what becomes of it; only the first gets it.
func (p *Prepared) claim() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken {
		return false
	}
	p.taken = true
	if p.pid1 >= 0 {
		unix.Close(p.pid1)
	}
	return true
}

// run does the rest of a launch, and the run, while the thread that is the sandbox's parent lives on.
func (p *Prepared) run(fn func()) {
	defer p.leave()
	thread.Room16()
	fn()
}

// atHome does something on that thread.
func (p *Prepared) atHome(fn func()) {
	done := make(chan struct{})
	p.next <- func() { defer close(done); fn() }
	<-done
}

func (p *Prepared) leave() {
	close(p.next)
	<-p.over
}

// Use makes a prepared sandbox the one that the plan of this shape runs in: the plan takes over its id. Call
// it before anybody is told the plan's id, and Close the sandbox when the run is over or will not be: then it
// does nothing or takes it down.
func (s Shape) Use(p *Prepared) error {
	switch {
	case s.of == nil:
		return errors.New("use a prepared sandbox: the shape is of no plan")
	case s.key != p.shape.key:
		return errors.New("use a prepared sandbox: it is of another shape")
	}
	s.of.in, s.of.ID = p, p.id
	s.of.Cgroup = s.of.cgroupOf()
	return nil
}

const handOutStep = "hand-out"

// handOut mounts the workspace into a sandbox that was prepared without. No thread of ours but the home has
// another mount namespace than the host's.
func (l *launch) handOut() error {
	if l.shape == nil {
		return nil
	}
	_, late := l.plan.split()
	if len(late) == 0 {
		return nil
	}
	var err error
	if l.guarded, err = holdPlaceholders(l.opt.RunDir, late); err != nil {
		return err
	}
	d, err := fsjail.Detach(late, fsjail.IDs{UID: l.ids.hostAgent(), GID: l.ids.hostAgent()})
	if err != nil {
		return err
	}
	defer d.Close()
	if l.waits() {
		if err := l.addRules(d); err != nil {
			return err
		}
	}
	return d.Attach(l.initPID)
}
