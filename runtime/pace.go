// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"time"

	"agentrun/cgroups"
)

// A run that keeps a processor busy yields to those that don't: it was measured that a run with little to do
// waited 21 ms in the median and a second at p99 for its turn beside twenty that computed, by nothing but
// fair shares. What a run is used for isn't known, only how much it uses, so it has an allowance, and yields
// from when that is used up until it is full again. A run is only behind others as long as others want
// something: quotas and limits stay what they are.
//
// What its gateway does is done for it, and counts for it: a run that only asks and is refused is as busy as
// one that computes.
const (
	allowance   = 150 * time.Millisecond // of processor time: an agent in Python has begun with 100
	refill      = 20                     // one in so many, of the time that passes
	paceFirst   = 200 * time.Millisecond // between two looks, and a second
	paceSettled = 2 * time.Second        // from when the run has lasted so long
)

// pacer follows the run's groups.
type pacer struct {
	at         time.Time
	used, left time.Duration
	yields     bool
}

// look is to be called a few times a second. What can't be read or written is left as it is: it is fairness,
// and no limit that anybody relies on.
func (p *pacer) look(now time.Time, groups ...*cgroups.Group) {
	var used time.Duration
	for _, g := range groups {
		n, err := g.CPUTime()
		if err != nil {
			return
		}
		used += n
	}
	if p.at.IsZero() {
		p.at, p.left = now, allowance/2
	}
	p.left = min(allowance, p.left+now.Sub(p.at)/refill-max(0, used-p.used))
	p.at, p.used = now, used
	switch {
	case p.left <= 0:
		p.left, p.yields = 0, true
	case p.left == allowance && p.yields:
		p.yields = false
	default:
		if !p.yields {
			return
		}
	}
	for _, g := range groups {
		_ = g.Yield(p.yields) // again and again: a kill or freeze ends it, and a gateway begins later
	}
}

// pace looks at the run's two groups.
func (r *runGroup) pace(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gateway == nil {
		r.pacer.look(now, r.Group)
		return
	}
	r.pacer.look(now, r.Group, r.gateway)
}
