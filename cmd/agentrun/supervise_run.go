// SPDX-License-Identifier: Apache-2.0

package main

import (
	"agentrun/hypervisor"
	"agentrun/runtime"
	"agentrun/supervisor"
	"agentrun/supervisor/live"
)

// supervise makes an admitted run known to its operators, from before its first step to when its account is complete. close ends
// that; it comes after the run's exit is closed and before the admission is given back.
func (g *global) supervise(r *supervisor.Request, h *hypervisor.Hypervisor, adm hypervisor.Admission, plan *runtime.Plan) (v *live.Run, closeIt func(), err error) {
	o := live.RunOptions{KillOnBreach: r.KillOnBreach, QuarantineTimeout: r.QuarantineTimeout, Hooks: g.hooks}
	if r.Detach {
		o.Output = g.outputs().File(plan.ID)
	}
	if home := g.caller.home; home != nil {
		home.queue.Started(g.caller.slot, plan.ID)
		v, err = home.runs.Begin(h, adm, plan, o)
		return v, func() { v.Close() }, err
	}
	runs := live.New(live.Options{Node: func() (*hypervisor.Hypervisor, error) { return h, nil }, Log: g.log})
	silence, err := runs.Serve(g.runDir, plan.ID, version, g.access)
	if err != nil {
		return nil, nil, err
	}
	end := func() {
		silence()
		runs.Close()
	}
	if v, err = runs.Begin(h, adm, plan, o); err != nil {
		end()
		return nil, nil, err
	}
	return v, func() { v.Close(); end() }, nil
}
