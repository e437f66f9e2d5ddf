// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"agentrun/audit"
	"agentrun/rings"
)

// A child is a run that a tool of a live run is: the code-executor, an operator's command. It belongs to its parent (H-15): it has the
// parent's agent and session, and a ring below the parent's; what it is refused counts in the parent's window, so that nobody gets a
// fresh one by asking a tool (H-24); its steps and costs are the parent's. Whatever holds the parent holds it: it is in ring 3 where
// the parent may only have children there, its ways out are shut with the parent's, and it ends before a kill of the parent has ended.

// ErrParentOver is why a child is ended, or is not let begin: its parent is being killed, or has ended.
var ErrParentOver = errors.New("the run whose tool this is has ended")

// ChildRing is the most privileged ring that a child may have now (H-15).
func (c *Control) ChildRing() rings.Ring {
	ring, _ := c.live.ring()
	return rings.ChildRing(ring)
}

// AdmitChild decides whether a child, run, may begin in a ring, and puts that on record as Admit does. From then on until Done the run waits
// for the child's end with its own, and calls end when it is killed. A denial is a *DeniedError.
func (c *Control) AdmitChild(ctx context.Context, run string, ring rings.Ring, end context.CancelCauseFunc) (Admission, error) {
	leave, err := c.join(end)
	if err != nil {
		return Admission{}, err
	}
	a, own, err := c.live.now(ctx)
	if err != nil {
		leave()
		return Admission{}, err
	}
	adm := Admission{
		Agent: c.adm.Agent, Session: c.adm.Session, Ring: ring, Workspace: c.adm.Workspace, Settings: c.adm.Settings, Grant: c.adm.Grant, Key: c.adm.Key,
		meter: c.adm.meter, reports: c.adm.reports, parent: elder{c.opt.Run, c.who, leave}, alarm: c.h.newAlarm(c.adm.Session, c.adm.meter),
	}
	adm.alarm.whole = c.adm.alarm
	v := verdict{agentRing: own, score: a.score(), Decision: rings.Decision{
		Verdict: rings.Allow, Code: rings.CodeOK, Reason: "a tool of run " + c.opt.Run, Rule: "H-15",
	}}
	switch most := rings.ChildRing(own); {
	case a.Quarantined != nil:
		d := deniedQuarantine("", a)
		v.Decision, v.hint = d.Decision, d.Hint
	case ring.MorePrivilegedThan(most):
		v = denied(v, "H-15", rings.CodeInsufficientRing, "call the tool again: the ring of the run has fallen meanwhile", "a tool of a run in %s runs in %s", own, most)
	}
	err = c.h.record(c.adm.Session, false, &audit.RingCheck{
		Action: runAction, AgentID: c.who, AgentRing: audit.RingOf(own.Value()), Allowed: v.Allowed(), EffScore: audit.NumberOf(v.score),
		ParentRunID: c.opt.Run, Reason: string(v.Code), RequiredRing: audit.RingOf(ring.Value()), Rule: v.Rule, RunID: run,
		SessionID: c.adm.Session,
	})
	if err = errors.Join(v.err(Request{Agent: c.adm.Agent}, ring), err); err != nil {
		adm.Done()
		return Admission{}, err
	}
	return adm, nil
}

// join counts a child that begins. It is refused from the instant on in which a kill begins: so whoever kills finds each child that
// there is among those it ends, the one that is just being started too.
func (c *Control) join(end context.CancelCauseFunc) (leave func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.killed || c.opt.Parent != nil && c.opt.Parent.over() {
		return nil, ErrParentOver
	}
	if c.live.isStopped() {
		return nil, errors.New("the run whose tool this is has been stopped")
	}
	if c.children == nil {
		c.children = map[*context.CancelCauseFunc]struct{}{}
	}
	key := &end
	c.children[key] = struct{}{}
	c.brood.Add(1)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if _, there := c.children[key]; there {
			delete(c.children, key)
			c.brood.Done()
		}
	}, nil
}

// endChildrenLocked ends what the run's tools are doing.
func (c *Control) endChildrenLocked() {
	for end := range c.children {
		(*end)(ErrParentOver)
	}
}

// childrenTime bounds how long a kill waits for the children to be taken down; it takes them some milliseconds.
const childrenTime = 10 * time.Second

// awaitChildren returns when no child is left.
func (c *Control) awaitChildren(ctx context.Context) error {
	c.mu.Lock()
	none := len(c.children) == 0
	c.mu.Unlock()
	if none {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, childrenTime)
	defer cancel()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		c.brood.Wait()
	}()
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("runs of its tools are still being ended: %w", ctx.Err())
	}
}

// heed has a child follow what changes for its parent, until either ends.
func (c *Control) heed(parent *live) {
	for {
		_, changed := parent.ring()
		c.live.rouse()
		select {
		case <-changed:
		case <-c.ctx.Done():
			return
		}
		if _, next := parent.ring(); next == changed { // it has ended, and the channel stays closed
			c.live.rouse()
			return
		}
	}
}
