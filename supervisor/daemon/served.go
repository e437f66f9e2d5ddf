// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"os"
	"sync"
	"time"

	"agentrun/hypervisor"
	"agentrun/profiles"
	"agentrun/runtime"
	"agentrun/supervisor"
	"agentrun/supervisor/daemon/queue"
	"agentrun/supervisor/live"
	"agentrun/telemetry/counts"
)

// prepare builds a sandbox for nobody yet.
func (d *Daemon) prepare(shape runtime.Shape) (*runtime.Prepared, error) {
	return runtime.Prepare(shape, runtime.PrepareOptions{
		RunDir: d.node.RunDir, CacheDir: d.node.FilterCache(), OnCacheError: d.node.NoFilterCache,
		OnStep: d.node.Steps("prepare"),
	})
}

// roomForOneMore keeps what nobody asked for yet out of the way of who waits. A sandbox that waits uses under
// a mebibyte; while one is built it is some.
func (d *Daemon) roomForOneMore() bool {
	const building = 32 << 20
	return d.queue.Spare(building)
}

// shapes of a profile's runs as most callers ask for them: without flags, with a workspace and without.
func (d *Daemon) shapes(profile string) ([]runtime.Shape, error) {
	p, err := profiles.Load(profiles.Sources{Dirs: d.node.ProfileDirs, Ranges: d.node.Ranges}, profile)
	if err != nil {
		return nil, err
	}
	file, err := d.node.ReadGateway("")
	if err != nil {
		return nil, err
	}
	plan, err := runtime.NewPlan(runtime.Spec{
		Profile: p, Limits: p.Limits, Ranges: d.node.Ranges, Command: []string{"/usr/bin/true"}, WorkDir: "/",
		Wayout: true, CapturePorts: file.CapturePorts, WayoutCA: file.Intercepts, Dialects: file.Dialects,
	})
	if err != nil {
		return nil, err
	}
	shape, err := plan.Shape()
	if err != nil {
		return nil, err
	}
	shapes := []runtime.Shape{shape.Kept()}
	if p.Files.Workspace != profiles.WorkspaceNone {
		if shape, err = shape.WithWorkspace(true); err != nil {
			return nil, err
		}
		shapes = append(shapes, shape)
	}
	return shapes, nil
}

// settleTime is how long a run has for itself before the next sandbox is prepared: most of the short ones are
// over by then.
const settleTime = 20 * time.Millisecond

// asker is who asked for a run: a client that handed its command over, or an operator over the control API.
type asker interface {
	heard() <-chan os.Signal
	letGo(log *os.File)
	answer(code int)
}

// served is a run of the daemon's.
type served struct {
	d     *Daemon
	cl    asker
	ahead *supervisor.Ahead
	slot  *queue.Slot
	ready *runtime.Prepared
	over  func() // the launch, for the pool; nil: nothing was taken
	begun func() // it is known to operators, or never will be
}

var _ supervisor.Host = (*served)(nil)

func (s *served) Outlives() bool { return true }

func (s *served) Admit(ctx context.Context, memory int64, who live.Coming) error {
	s.begun = s.d.runs.Expect(&who)
	began := time.Now()
	slot, err := s.d.queue.Enter(ctx, memory)
	counts.At(s.d.node.StateDir).Waited(time.Since(began))
	if err == nil {
		s.slot = slot
	}
	return err
}

func (s *served) Ahead() (a *supervisor.Ahead) {
	a, s.ahead = s.ahead, nil
	return a
}

func (s *served) Take(plan *runtime.Plan) {
	left := s.d.width.enter()
	ready, launched := s.d.pool.Take(plan)
	s.ready, s.over = ready, sync.OnceFunc(func() { left(); launched() })
	counts.At(s.d.node.StateDir).Taken(s.ready != nil)
}

func (s *served) Begin(
	h *hypervisor.Hypervisor, adm hypervisor.Admission, plan *runtime.Plan, o live.RunOptions,
) (*live.Run, func(), error) {
	s.d.queue.Started(s.slot, plan.ID)
	o.Room = func(memory int64) error { return s.d.queue.Resize(s.slot, memory) }
	v, err := s.d.runs.Begin(h, adm, plan, o)
	s.begun()
	return v, func() { v.Close() }, err
}

// Collect looks at every live run, so not at each start.
func (s *served) Collect(context.Context) { s.d.collectLately() }

func (s *served) Signals() <-chan os.Signal { return s.cl.heard() }

func (s *served) Started() { time.AfterFunc(settleTime, s.over) }

func (s *served) LetGo(log *os.File) error {
	s.cl.letGo(log)
	return nil
}

func (s *served) Answer(code int) { s.cl.answer(code) }

// Cool gives back what Take took. The pool builds nothing before it has heard that the launch is over, so
// over is called whatever came of the launch; Started calls it too, and the first counts.
func (s *served) Cool() {
	if s.ready != nil {
		s.d.pool.Drop([]*runtime.Prepared{s.ready})
	}
	if s.over != nil {
		s.over()
	}
}

func (s *served) Close() {
	s.begun()
	if s.slot != nil {
		s.d.queue.Leave(s.slot)
	}
}
