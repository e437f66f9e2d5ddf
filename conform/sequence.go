// SPDX-License-Identifier: Apache-2.0

package conform

import (
	"time"

	"agentrun/audit"
	"agentrun/rings"
)

func rate(f *fields) (any, error) {
	ring := f.ring("ring")
	type call struct {
		agent, session string
		at             time.Time
		timed          bool
	}
	var calls []call
	f.each("calls", "call", func(_ int, g *fields) {
		c := call{agent: g.text("agent"), session: g.text("session")}
		c.at, c.timed = g.instant("at")
		calls = append(calls, c)
	})
	var now time.Time
	for _, c := range calls {
		if c.timed {
			now = c.at
			break
		}
	}
	type key struct{ agent, session string }
	fullAt := map[key]int64{}
	start := now
	allowed := make([]bool, len(calls))
	for i, c := range calls {
		if !c.timed { // at no time that is known is anything allowed
			continue
		}
		if c.at.After(now) { // a clock set back earns nothing
			now = c.at
		}
		k := key{c.agent, c.session}
		var result rings.RateResult
		fullAt[k], result = rings.Draw(fullAt[k], int64(now.Sub(start)), ring, 1)
		allowed[i] = result.Allowed && c.agent != "" && c.session != ""
	}
	return map[string][]bool{"allowed": allowed}, nil
}

func breach(f *fields) (any, error) {
	var calls []rings.Call
	var last time.Time
	f.each("calls", "call", func(_ int, g *fields) {
		c := rings.Call{AgentRing: g.ring("agent_ring"), CalledRing: g.ring("called_ring")}
		at, timed := g.instant("at")
		if !timed { // a made-up time must not move an attempt out of the window
			at = last
		}
		c.At, last = at, at
		calls = append(calls, c)
	})
	r := rings.AssessCalls(calls)
	return struct {
		Severity rings.Severity `json:"severity"`
		Tripped  bool           `json:"tripped"`
	}{r.Severity, r.Tripped}, nil
}

func auditVerify(f *fields) (any, error) {
	entries := f.list("entries", true)
	type answer struct {
		Valid   bool        `json:"valid"`
		Index   *int        `json:"index"` // null if valid
		Problem *audit.Code `json:"problem"`
	}
	r := audit.VerifyEntries(entries)
	if r.Valid {
		return answer{Valid: true}, nil
	}
	return answer{Index: &r.Index, Problem: &r.Problem}, nil
}
