// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"agentrun/profiles"
	"agentrun/runtime"
)

// prepare builds a sandbox for nobody yet.
func (d *daemon) prepare(shape runtime.Shape) (*runtime.Prepared, error) {
	return runtime.Prepare(shape, runtime.PrepareOptions{
		RunDir: d.g.runDir, CacheDir: d.g.filterCache(), OnCacheError: d.g.noFilterCache,
		OnStep: func(name string, took time.Duration) { d.g.log.Debug("prepare", "step", name, "took", took) },
	})
}

// roomForOneMore keeps what nobody asked for yet out of the way of who waits. A sandbox that waits uses under a mebibyte; while one is
// built it is some.
func (d *daemon) roomForOneMore() bool {
	const building = 32 << 20
	return d.queue.Spare(building)
}

// shapes of a profile's runs as most callers ask for them: without flags, with a workspace and without.
func (d *daemon) shapes(profile string) ([]runtime.Shape, error) {
	p, err := profiles.Load(profiles.Sources{Dirs: d.g.profileDirs}, profile)
	if err != nil {
		return nil, err
	}
	file, err := readGatewayFile("")
	if err != nil {
		return nil, err
	}
	plan, err := runtime.NewPlan(runtime.Spec{
		Profile: p, Limits: p.Limits, Command: []string{"/usr/bin/true"}, WorkDir: "/",
		Exit: true, CapturePorts: file.Egress.CapturePorts, ExitCA: file.intercepts(),
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

// settleTime is how long a run has for itself before the next sandbox is prepared: most of the short ones are over by then.
const settleTime = 20 * time.Millisecond

// cold says that no sandbox is ready, of whatever shape: the launch will have to move its first process into a cgroup.
func (c *caller) cold() bool { return c.home == nil || c.home.pool.Ready() == 0 }

// warm looks for a sandbox that is ready for the plan. cool gives it back if it was not used, and ends the launch for the pool.
func (c *caller) warm(plan *runtime.Plan) (begun, cool func()) {
	if c.home == nil || c.home.pool == nil {
		return func() {}, func() {}
	}
	pool := c.home.pool
	ready, launched := pool.Take(plan)
	return func() { time.AfterFunc(settleTime, launched) }, func() {
		if ready != nil {
			pool.Drop([]*runtime.Prepared{ready})
		}
		launched()
	}
}
