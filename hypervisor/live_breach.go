// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"agentrun/audit"
	"agentrun/profiles"
	"agentrun/rings"
	"agentrun/runtime"
)

// attempt weighs one refused attempt at what belongs to ring called, factor times (H-8). An error means that the run must end, and that a kill has
// begun if anything can carry it out.
func (c *Control) attempt(called rings.Ring, factor int, what string) error {
	b, trips := c.adm.alarm.denied(factor*rings.BreachWeight(c.live.weighed(), called), 0)
	c.near(b, func() string { return "" }, what)
	if !trips {
		return nil
	}
	return c.breach(b)
}

// near tells operators, before anything is held, that what the run is refused comes close to a breach, and by which program and call.
// Both are the agent's words: data.
func (c *Control) near(b rings.BreachResult, program func() string, call string) {
	if c.adm.alarm.nears(b) {
		c.notify(EventNearBreach, map[string]string{"severity": b.Severity.String(), "program": program(), "call": call})
	}
}

// breach does what H-24 asks for. It is on record and told; what follows is as the run's on_breach says, and nothing that follows
// waits for the processes: one of them waits for our answer. What can't be put on record, or not be held, is killed.
func (c *Control) breach(b rings.BreachResult) error {
	if p := c.opt.Parent; p != nil { // a child's is its parent's, and holds that
		return errors.Join(c.adm.alarm.flush(), p.breach(b))
	}
	if c.over() {
		return nil // it is being killed
	}
	mode := cmp.Or(c.opt.OnBreach, profiles.BreachQuarantine)
	err := c.adm.alarm.flush() // what led to it stands before it
	reason := fmt.Sprintf("ring breach, severity %s: %d refused calls in run %s", b.Severity, b.Attempts, c.opt.Run)
	err = errors.Join(err, c.h.record(c.adm.Session, true, &audit.Breach{
		AgentID: c.who, Calls: int64(b.Attempts), OnBreach: string(mode), RunID: c.opt.Run, Severity: b.Severity.String(), Tripped: true,
		Weight: audit.NumberOf(float64(b.Score)),
	}))
	if mode != profiles.BreachRecord {
		err = errors.Join(err, c.seclude(reason))
	}
	c.notify(EventBreach, map[string]string{"severity": b.Severity.String()})
	kill := KillRequest{Reason: rings.KillRingBreach, By: "breach detector", Detail: reason}
	switch {
	case err != nil:
		kill.Detail = fmt.Sprintf("%s: %v", reason, err)
	case mode == profiles.BreachRecord:
		return nil
	case mode == profiles.BreachFreeze:
		c.freezeSoon(kill)
		return nil
	case mode != profiles.BreachKill && b.Severity < rings.SeverityCritical:
		if c.adm.Agent != "" {
			return nil
		}
		kill.State = runtime.Policy // there is nobody to hold, and nobody whom an operator could release
	}
	c.killSoon(kill)
	if kill.State == runtime.Policy {
		return &runtime.PolicyError{Reason: kill.String()}
	}
	return errors.New(kill.Detail)
}

// freezeSoon has the run stand still. One that can't be made to is killed.
func (c *Control) freezeSoon(otherwise KillRequest) {
	if !c.underWay() {
		return
	}
	c.frozen.Store(true)
	go func() {
		defer c.work.Done()
		p, err := c.those()
		if err == nil {
			err = p.Freeze(c.ctx)
		}
		if err != nil {
			otherwise.Detail += fmt.Sprintf("; freeze: %v", err)
			c.killSoon(otherwise)
		}
	}()
}

// Thawed is told when an operator lets the run go on: after a freeze for a breach the next breach is one again. What it did before is
// forgiven where there is no agent, whom a release forgives.
func (c *Control) Thawed() {
	if !c.frozen.Swap(false) {
		return
	}
	if c.adm.Agent == "" {
		c.adm.alarm.reset()
	}
	c.adm.alarm.told.Store(0)
}

// seclude puts the run's agent, if there is one, into quarantine, and with it the run into ring 3.
func (c *Control) seclude(reason string) error {
	if c.adm.Agent == "" {
		return nil
	}
	_, err := c.h.Quarantine(context.Background(), c.adm.Agent, Cause{Code: "ring_breach", Reason: reason, Run: c.opt.Run})
	if err != nil {
		c.live.hold() // it may not be in the state
	}
	_, _, _ = c.live.now(context.Background()) // the ring falls before the caller hears of its refusal
	if err == nil {
		c.mu.Lock()
		c.secluded = true
		c.mu.Unlock()
		c.nudge() // it may be out again by now
	}
	return err
}
