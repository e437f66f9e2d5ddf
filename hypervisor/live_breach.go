// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"errors"
	"fmt"

	"agentrun/audit"
	"agentrun/rings"
)

// attempt weighs one refused attempt at what belongs to ring called. An error means that the run must end, and that a kill has
// begun if anything can carry it out.
func (c *Control) attempt(called rings.Ring) error {
	b, trips := c.adm.alarm.denied(c.live.weighed(), called)
	if !trips {
		return nil
	}
	return c.breach(b)
}

// breach does what H-24 asks for: the agent is put into quarantine, which is ring 3 at once, and the run is killed if its
// operator said so, or if that can't be put on record. An operator's own run has nobody to put there, and its ring is the operator's
// word: the breach is on record and told, and the run goes on, as a test suite does that tries what it may not.
func (c *Control) breach(b rings.BreachResult) error {
	err := c.adm.alarm.flush() // what led to it stands before it
	reason := fmt.Sprintf("ring breach, severity %s: %d refused calls in run %s", b.Severity, b.Attempts, c.opt.Run)
	err = errors.Join(err, c.h.record(c.adm.Session, true, &audit.Breach{
		AgentID: c.who, Calls: int64(b.Attempts), RunID: c.opt.Run, Severity: b.Severity.String(), Tripped: true,
		Weight: audit.NumberOf(float64(b.Score)),
	}))
	err = errors.Join(err, c.seclude(reason))
	c.notify(EventBreach, map[string]string{"severity": b.Severity.String()})
	switch {
	case err != nil:
		err = fmt.Errorf("%s: %w", reason, err)
	case c.opt.KillOnBreach:
		err = errors.New(reason)
	default:
		return nil
	}
	c.killSoon(KillRequest{Reason: rings.KillRingBreach, By: "breach detector", Detail: err.Error()})
	return err
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
