// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"time"

	"agentrun/cgroups"
)

// A run that keeps a processor busy yields to those that don't: it was measured that a run with little to do waited 21 ms in the median and
// a second at p99 for its turn beside twenty that computed, by nothing but fair shares. What a run is used for isn't known, only
// how much it uses, so it is looked at again each second, and a run is only behind others as long as others want something:
// quotas and limits stay what they are. Between the two bounds it stays as it is, since one of many that yield gets little, and would
// seem modest by that.
const (
	busy   = 10 // percent of one processor: above it yields
	modest = 2  // below it doesn't
)

// pacer follows one group.
type pacer struct {
	used   time.Duration
	at     time.Time
	yields bool
}

// look is to be called each second. What can't be read or written is left as it is: it is fairness, and no limit that anybody relies on.
func (p *pacer) look(g *cgroups.Group, now time.Time) {
	used, err := g.CPUTime()
	if err != nil {
		return
	}
	share := 100 * (used - p.used) / max(now.Sub(p.at), time.Millisecond)
	first := p.at.IsZero()
	p.used, p.at = used, now
	switch {
	case first:
	case share > busy:
		p.yields = g.Yield(true) == nil // again and again: a kill or freeze ends it
	case share < modest && p.yields:
		p.yields = g.Yield(false) != nil
	}
}

// pace looks at the run's two groups.
func (r *runGroup) pace(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.agentPace.look(r.Group, now)
	if r.gateway != nil {
		r.gatewayPace.look(r.gateway, now)
	}
}
