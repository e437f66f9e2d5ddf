// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"agentrun/hypervisor"
	"agentrun/runtime"
	"agentrun/supervisor"
	"agentrun/supervisor/live"
	"agentrun/supervisor/tidy"
)

// host is the place of a run that this command line asks for.
func (g *global) host() supervisor.Host {
	if d := g.caller.home; d != nil {
		return &served{d: d}
	}
	return alone{g}
}

// alone is a run in a process of its own.
type alone struct{ g *global }

func (alone) Admit(context.Context, int64) error { return nil }

func (alone) Cold() bool { return true }

func (alone) Take(*runtime.Plan) {}

func (a alone) Begin(h *hypervisor.Hypervisor, adm hypervisor.Admission, plan *runtime.Plan, o live.RunOptions) (*live.Run, func(), error) {
	runs := live.New(live.Options{Node: func() (*hypervisor.Hypervisor, error) { return h, nil }, Log: a.g.log})
	silence, err := runs.Serve(a.g.runDir, plan.ID, version, a.g.access)
	if err != nil {
		return nil, nil, err
	}
	end := func() {
		silence()
		runs.Close()
	}
	v, err := runs.Begin(h, adm, plan, o)
	if err != nil {
		end()
		return nil, nil, err
	}
	return v, func() { v.Close(); end() }, nil
}

func (a alone) Collect(ctx context.Context) {
	if removed, err := a.g.collect(ctx, false); err != nil {
		a.g.log.Warn("cleaning up after crashed runs", "removed", removed, "err", err)
	} else if len(removed) > 0 {
		a.g.log.Info("cleaned up after crashed runs", "removed", removed)
	}
}

func (alone) Started() { tidy.Soon() }

func (alone) Cool() {}

func (alone) Close() {}
