// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"agentrun/hypervisor"
	"agentrun/profiles"
	"agentrun/safetyloop"
	"agentrun/safetyloop/desk"
	"agentrun/safetyloop/judge"
	"agentrun/toolproxy/link"
)

// safetyLoops are those of this process, one for each kind that a run of it has asked for. They are the Enforcer of each (S-15), and
// to operators one loop (safety_desk.go).
//
// A block is the node's: it stands in the state, which several supervisors read. Here are only its effects on the
// runs of this process. A stop that another supervisor has decided reaches them within syncTime, by watch; one of
// our own at once. mu is not held while a run is frozen, which takes time, nor while a loop is asked about a step:
// it asks ownOf, which takes mu.
type safetyLoops struct {
	// node opens what the loops keep their state in; own: it is closed with them.
	node  func() (*hypervisor.Hypervisor, error)
	own   bool
	codes Codes
	warn  func(error)

	metrics desk.Metrics

	mu     sync.Mutex
	h      *hypervisor.Hypervisor
	loops  map[loopKind]*safetyloop.Loop
	joined map[*Run]*safetyloop.Loop
	unwind context.CancelFunc // ends the watch
	work   sync.WaitGroup
}

func newSafetyLoops(runs *Runs, o Options) *safetyLoops {
	return &safetyLoops{
		node: o.Node, own: o.OwnNode, codes: o.Codes, warn: runs.warn,
		loops: map[loopKind]*safetyloop.Loop{}, joined: map[*Run]*safetyloop.Loop{},
	}
}

// join gives the loop of a run, or nil if its plan has none. The run must be known to operators by then.
func (l *safetyLoops) join(v *Run) (link.Safeties, error) {
	if v.Plan.Safety == nil {
		return nil, nil
	}
	if v.Plan.Wayout == nil { // the command line says so earlier, and better
		return nil, errors.New("safety loop: the run has no way out to reach it by")
	}
	k, err := kindOf(v.Plan.Safety)
	if err != nil {
		return nil, fmt.Errorf("safety loop: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	loop, err := l.loopLocked(k)
	if err == nil {
		if !v.follows && l.aloneLocked(v) {
			loop.Forget(v.principal()) // what one counted that could be followed: a human has started this one
		}
		err = loop.Follow(v.safetyCaller())
	}
	if err != nil {
		return nil, fmt.Errorf("safety loop: %w", err)
	}
	l.joined[v] = loop
	if l.unwind == nil && k.mode == safetyloop.Enforcing {
		ctx, cancel := context.WithCancel(context.Background())
		l.unwind = cancel
		l.work.Go(func() { l.watch(ctx) })
	}
	return runSafety{loop: loop, who: v.safetyCaller}, nil
}

// loopLocked gives the loop of a kind. The node's state is opened by the first that is asked for and kept to
// the end: most runs have no safety loop, and a supervisor without one never opens it a second time.
func (l *safetyLoops) loopLocked(k loopKind) (*safetyloop.Loop, error) {
	if loop := l.loops[k]; loop != nil {
		return loop, nil
	}
	if l.h == nil {
		h, err := l.node()
		if err != nil {
			return nil, err
		}
		l.h = h
	}
	channels, err := l.codes.open(l.warn)
	if err != nil {
		return nil, err
	}
	loop, err := l.h.SafetyLoop(safetyloop.Settings{
		Mode: k.mode, Confirm: k.confirm, Tolerance: safetyloop.Moderate, MaxSteps: profiles.DefaultSafetySteps,
		OnlyOperators: true, // principals are agents: two of them must not agree on what neither may do
		Judge:         carried{}, For: l.ownOf, Enforcer: l, Observe: l.metrics.Observe, Channels: channels,
	})
	if err == nil {
		l.loops[k] = loop
	}
	return loop, err
}

// ownOf is what the profiles of an agent's live runs say, the strictest of it: a step isn't one run's.
func (l *safetyLoops) ownOf(c safetyloop.Caller, _ string) (o safetyloop.Own) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for v := range l.joined {
		if v.principal() != c.Principal {
			continue
		}
		s := v.Plan.Safety
		t, err := judge.ParseTolerance(string(s.Tolerance))
		if err != nil {
			t = safetyloop.Moderate // not set: profiles lets nothing else by
		}
		if o.Tolerance == safetyloop.NoTolerance || t.Score() < o.Tolerance.Score() {
			o.Tolerance = t
		}
		steps := s.MaxSteps
		if steps == 0 {
			steps = profiles.DefaultSafetySteps
		}
		if o.MaxSteps == 0 || steps < o.MaxSteps {
			o.MaxSteps = steps
		}
	}
	return o
}

// forgetTime bounds the release of a run that nobody will ever be called by again.
const forgetTime = 30 * time.Second

// leave ends what join began, when no process of the run is left. What the loop remembers of an agent's steps
// is forgotten with the last of its runs only: another that is alive still adds to it, and so does one that
// follows without a human, or an agent would be rid of its step limit by ending its run. The loop itself stays
// for runs to come.
func (l *safetyLoops) leave(v *Run) {
	l.mu.Lock()
	loop := l.joined[v]
	delete(l.joined, v)
	alone := l.aloneLocked(v)
	if len(l.joined) == 0 && l.unwind != nil {
		l.unwind()
		l.unwind = nil
	}
	l.mu.Unlock()
	if loop == nil || !alone {
		return
	}
	if v.Plan.Agent == "" {
		// Nobody will ever be called so again: its block would stay for good.
		ctx, cancel := context.WithTimeout(context.Background(), forgetTime)
		defer cancel()
		if err := loop.Unblock(ctx, "agentrun", v.principal(), "its run has ended"); err != nil && !errors.Is(err, safetyloop.ErrNotFound) {
			l.warn(fmt.Errorf("block of a run that has ended: %w", err))
		}
	}
	if !v.followed || v.Plan.Agent == "" {
		loop.Forget(v.principal())
	}
}

// aloneLocked tells whether no other run of the agent has a loop here.
func (l *safetyLoops) aloneLocked(v *Run) bool {
	for other := range l.joined {
		if other != v && other.principal() == v.principal() {
			return false
		}
	}
	return true
}

// close ends all of them. Nothing may ask them any more. The watch has returned before the first loop is
// closed: it would ask one that is; and the state is closed last, since closing a loop may still write to it.
func (l *safetyLoops) close() {
	l.mu.Lock()
	if l.unwind != nil {
		l.unwind()
		l.unwind = nil
	}
	l.mu.Unlock()
	l.work.Wait()
	for _, loop := range l.all() {
		loop.Close()
	}
	if l.own && l.h != nil {
		if err := l.h.Close(); err != nil {
			l.warn(fmt.Errorf("closing the state of the safety loops: %w", err))
		}
	}
}

// syncTime is how soon a stop or a release of another supervisor holds here.
const syncTime = time.Second

// watch keeps the runs in line with the node's state: a run of an agent that another supervisor stops makes no call here.
func (l *safetyLoops) watch(ctx context.Context) {
	t := time.NewTicker(syncTime)
	defer t.Stop()
	said := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		var errs []error
		for _, loop := range l.all() {
			errs = append(errs, loop.Sync(ctx))
		}
		for _, agent := range l.shut() {
			errs = append(errs, l.Resume(ctx, agent))
		}
		if err := errors.Join(errs...); err == nil {
			said = ""
		} else if ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			l.warn(fmt.Errorf("safety loop: %w", err))
		}
	}
}

func (l *safetyLoops) all() []*safetyloop.Loop {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []*safetyloop.Loop
	for _, loop := range l.loops {
		all = append(all, loop)
	}
	return all
}

// shut are the agents with runs whose ways out are shut. A loop resumes what it has stopped; of a stop that failed half-way, and was
// released before it was tried again, it knows nothing.
func (l *safetyLoops) shut() (agents []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for v := range l.joined {
		if v.stopped.Load() && !slices.Contains(agents, v.principal()) {
			agents = append(agents, v.principal())
		}
	}
	return agents
}

// of are the live runs of an agent that a stop is for.
func (l *safetyLoops) of(agent string) []*Run {
	l.mu.Lock()
	defer l.mu.Unlock()
	var mine []*Run
	for v := range l.joined {
		if v.principal() == agent && v.enforced() {
			mine = append(mine, v)
		}
	}
	return mine
}

// Stop implements safetyloop.Enforcer.
func (l *safetyLoops) Stop(ctx context.Context, agent, reason string) error {
	return l.each(agent, func(v *Run) error { return v.stop(ctx, reason) })
}

// Resume implements safetyloop.Enforcer. Each loop of the process calls it when it comes to see a release. The last to do so must not
// undo what another has stopped since: a block is in the state before anything stops, so a look under the lock that stops take tells.
func (l *safetyLoops) Resume(ctx context.Context, agent string) error {
	return l.each(agent, func(v *Run) error {
		for _, loop := range l.all() {
			switch err := loop.Blocked(ctx, safetyloop.Caller{Principal: agent}); {
			case errors.Is(err, safetyloop.ErrBlocked):
				return nil
			case err != nil:
				return err
			}
		}
		return v.resume(ctx)
	})
}

// each does the same to all live runs of an agent at once: a freeze may take a second, and a stop that is
// late for the last run is none. The lock of a run keeps a stop and a resume of it apart; which of them is
// right, Resume looks at under it.
func (l *safetyLoops) each(agent string, do func(*Run) error) error {
	var errs []error
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, v := range l.of(agent) {
		all.Go(func() {
			v.enforcing.Lock()
			err := do(v)
			v.enforcing.Unlock()
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
