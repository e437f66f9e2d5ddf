// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"agentrun/control"
	"agentrun/hypervisor"
	"agentrun/runtime"
	"agentrun/safetyloop/desk"
	"agentrun/supervisor/killhooks"
)

// Options are what the runs of a supervisor have in common.
type Options struct {
	// Node opens what the safety loops keep their state in. It is asked when the first run needs one.
	Node func() (*hypervisor.Hypervisor, error)
	// OwnNode: what Node gave is closed with the loops.
	OwnNode bool
	Codes   Codes
	// Metrics gives the node's numbers, which are told before those of the safety loops; nil: another process tells them.
	Metrics func() (string, error)
	// More is what the supervisor itself answers beside what is about runs and the node.
	More []control.Route
	// Undo carries out the undo of a call that an operator asks for (H-7); nil: nobody can.
	Undo hypervisor.Undoer
	// Operators is the file of the keys whose attestations release agents.
	Operators string
	Log       *slog.Logger
}

// New returns a supervisor's runs, of which there are none yet.
func New(o Options) *Runs {
	s := &Runs{bus: control.NewBus(time.Now), live: map[string]*Run{}, coming: map[*Coming]struct{}{}, log: o.Log, opt: o}
	s.safety = newSafetyLoops(s, o)
	return s
}

func (s *Runs) warn(err error) { s.log.Warn("control", "err", err) }

// Close ends the safety loops. No run may be left, and nobody may ask any more: see Serve.
func (s *Runs) Close() { s.safety.close() }

// Serve answers operators under a name: the control API of these runs, and that of their safety loops. The function it returns ends
// that, when those who asked have their answers.
func (s *Runs) Serve(runDir, name, version string, access control.Access) (silence func(), err error) {
	l, err := control.Listen(runDir, name, access)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	srv := &control.Server{Controller: s, Access: access, Version: version, More: s.routes(), Report: s.warn}
	go func() {
		defer close(done)
		if err := srv.Serve(ctx, l); err != nil {
			s.warn(err)
		}
	}()
	return func() {
		s.bus.Close()
		cancel()
		<-done
	}, nil
}

// routes are what is answered beside what is about one run.
func (s *Runs) routes() []control.Route {
	return slices.Concat(desk.Routes(s.safety), s.nodeRoutes(), s.opt.More, []control.Route{s.safety.metrics.Route(s.opt.Metrics)})
}

// Metrics are the numbers of GET /metrics.
func (s *Runs) Metrics() (string, error) { return s.safety.metrics.With(s.opt.Metrics) }

// RunOptions are what was asked for about one run.
type RunOptions struct {
	Output            string        // file of a detached run's output; empty: its caller has it
	QuarantineTimeout time.Duration // 0: it is never killed for its agent's quarantine
	IdlePause         time.Duration // it is paused when it is idle for so long; 0: never, else at least LeastIdle
	Hooks             killhooks.Hooks
	Ordered           func() error           // hears of each kill of the live run before it is on record; nil: nobody does
	Stands            func(still bool) error // hears when the run is frozen, other than by a pause, and when nobody has it so any more; nil: nobody does
	Undo              hypervisor.Undoer      // of the run's calls when it is killed (H-7)
	// Room has the run's place on the node count for so much memory; its error refuses. nil: nobody counts.
	Room   func(memory int64) error
	Parent *Run // whose tool it is, and who admitted it (H-15); nil: it is none's
	// Follows: nobody but its sandbox has started it. Followed: another run may follow it so.
	Follows, Followed bool
}

// Begin makes an admitted run known to its operators, from before its first step to when its account is complete: to Close, which
// comes after the run's broker is closed and before the admission is given back.
func (s *Runs) Begin(h *hypervisor.Hypervisor, adm hypervisor.Admission, plan *runtime.Plan, o RunOptions) (*Run, error) {
	v := &Run{all: s, Plan: plan, since: time.Now().UTC(), output: o.Output, room: o.Room, stands: o.Stands, idleAfter: o.IdlePause, ended: make(chan struct{}),
		follows: o.Follows, followed: o.Followed}
	var parent *hypervisor.Control
	if o.Parent != nil {
		parent = o.Parent.Control
	}
	v.Control = h.Control(adm, hypervisor.ControlOptions{
		Parent: parent, Run: plan.ID, Name: plan.Name, Settled: v.settled, Elevatable: plan.ElevatableNow, OnBreach: plan.OnBreach, QuarantineTimeout: o.QuarantineTimeout, Undo: o.Undo,
		HandlerLimit: killhooks.Backstop, Ordered: v.ordered(o.Ordered), Notify: v.decided, Warn: s.warn,
	})
	if err := o.Hooks.Register(v.Control, plan, s.log); err != nil {
		return nil, errors.Join(err, v.Control.Close())
	}
	s.add(v)
	var err error
	if v.Safety, err = s.safety.join(v); err != nil {
		v.Close()
		return nil, err
	}
	return v, nil
}

// ordered leaves out kills that a run's own end causes (Over): those are nobody's order.
func (v *Run) ordered(tell func() error) func() error {
	return func() error {
		v.mu.Lock()
		over := v.status != nil
		v.mu.Unlock()
		if over || tell == nil {
			return nil
		}
		return tell()
	}
}

// BeginChild is Begin for a run that is a tool of this one (H-15): it is one of the same supervisor's.
func (v *Run) BeginChild(h *hypervisor.Hypervisor, adm hypervisor.Admission, plan *runtime.Plan, o RunOptions) (*Run, error) {
	o.Parent = v
	return v.all.Begin(h, adm, plan, o)
}

// Close ends what Begin began.
func (v *Run) Close() {
	v.ports.close()
	v.all.remove(v)
	v.all.safety.leave(v)
	if err := v.Control.Close(); err != nil {
		v.all.warn(err)
	}
}

// Follow lets the run be changed while it lives.
func (v *Run) Follow(opt *runtime.Options) {
	opt.Ring, opt.OnLive, opt.OnEvent = v.Control, v.begun, v.changed
}
