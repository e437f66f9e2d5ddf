// SPDX-License-Identifier: Apache-2.0

package conform

import (
	"encoding/json"
	"fmt"
	"time"

	"agentrun/rings"
)

func rate(in json.RawMessage) (any, error) {
	f := readFields("rate", in)
	ring := f.ring("ring")
	type call struct {
		agent, session string
		at             time.Time
		timed          bool
	}
	var calls []call
	for i, raw := range f.list("calls", true) {
		g := readFields(fmt.Sprintf("rate: call %d", i), raw)
		c := call{agent: g.text("agent"), session: g.text("session")}
		c.at, c.timed = g.instant("at")
		if err := g.done(); err != nil {
			return nil, err
		}
		calls = append(calls, c)
	}
	if err := f.done(); err != nil {
		return nil, err
	}
	var now time.Time
	for _, c := range calls {
		if c.timed {
			now = c.at
			break
		}
	}
	limiter := rings.NewLimiter(func() time.Time { return now })
	allowed := make([]bool, len(calls))
	for i, c := range calls {
		if !c.timed { // at no time that is known is anything allowed
			continue
		}
		now = c.at
		result, _ := limiter.Take(c.agent, c.session, ring)
		allowed[i] = result.Allowed
	}
	return map[string][]bool{"allowed": allowed}, nil
}

func breach(in json.RawMessage) (any, error) {
	f := readFields("breach", in)
	var calls []rings.Call
	var last time.Time
	for i, raw := range f.list("calls", true) {
		g := readFields(fmt.Sprintf("breach: call %d", i), raw)
		c := rings.Call{AgentRing: g.ring("agent_ring"), CalledRing: g.ring("called_ring")}
		at, timed := g.instant("at")
		if err := g.done(); err != nil {
			return nil, err
		}
		if !timed { // a made-up time must not move an attempt out of the window
			at = last
		}
		c.At, last = at, at
		calls = append(calls, c)
	}
	if err := f.done(); err != nil {
		return nil, err
	}
	r := rings.AssessCalls(calls)
	return struct {
		Severity rings.Severity `json:"severity"`
		Tripped  bool           `json:"tripped"`
	}{r.Severity, r.Tripped}, nil
}
