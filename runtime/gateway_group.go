// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"path"
	goruntime "runtime"
	"sync"

	"agentrun/cgroups"
)

// What a run's gateway may have. It works on the agent's behalf: without a group of its own a run with a
// fifth of a processor kept three quarters of one busy with requests that were refused. The group is a
// sibling of the run's and not part of it, so that neither uses up the other's memory, and the run is frozen
// without it: a gateway must answer the supervisor and put its records when the agent is held. That also is
// what cgroup v2 asks for: a group that divides has no processes of its own.
//
// GOMEMLIMIT makes Go collect at half of it. Go ends when it can't make a thread, and so does the run.
const (
	gatewayMemory = 512 << 20
	gatewayPIDs   = 256
)

// gatewaySuffix makes the group's name of the run's. Ids of runs have no "-".
const gatewaySuffix = "-gateway"

func gatewayLimits(cpu float64) cgroups.Limits {
	return cgroups.Limits{CPU: cpu, Memory: gatewayMemory, PIDs: gatewayPIDs}
}

// runGroup is the run's cgroup, and that of its gateway once there is one. The gateway's quota follows the
// run's.
type runGroup struct {
	*cgroups.Group

	mu      sync.Mutex
	gateway *cgroups.Group
	serves  bool // its quota holds
	used    cgroups.Stats

	joined joinGroups
	pacer  pacer
}

// Update changes the run's limits, and the gateway's quota. On v1 a joined command has no more than the run's until it is told anew.
func (r *runGroup) Update(l cgroups.Limits) error {
	if err := r.Group.Update(l); err != nil {
		return err
	}
	if err := r.eachJoin(false, func(g *cgroups.Group) error { return g.Update(g.Limits()) }); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gateway == nil || !r.serves {
		return nil
	}
	return r.gateway.Update(gatewayLimits(l.CPU))
}

// enter puts a gateway that just began into its group. It has read nothing of the agent's. Until it serves it
// runs at full speed, as a launch does: to begin takes it tens of milliseconds, which under a fifth of a
// processor would be periods of 100.
func (r *runGroup) enter(pid int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	g, err := cgroups.Create(cgroupParent+"/"+path.Base(r.Name())+gatewaySuffix, gatewayLimits(float64(goruntime.NumCPU())))
	if err != nil {
		return err
	}
	r.gateway = g
	return g.Add(pid)
}

// begin sets the quota.
func (r *runGroup) begin() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gateway == nil {
		return errors.New("the gateway has no cgroup")
	}
	r.serves = true
	return r.gateway.Update(gatewayLimits(r.Limits().CPU))
}

// gatewayUsed is what it has used until now, or until it was removed.
func (r *runGroup) gatewayUsed() cgroups.Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gateway != nil {
		if used, err := r.gateway.Account(); err == nil {
			r.used = used
		}
	}
	return r.used
}

// leave kills what is left in the gateway's group and removes it.
func (r *runGroup) leave(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gateway == nil {
		return nil
	}
	if _, err := r.gateway.Kill(ctx); err != nil {
		return err
	}
	if err := r.gateway.Remove(ctx); err != nil {
		return err
	}
	r.gateway = nil
	return nil
}
