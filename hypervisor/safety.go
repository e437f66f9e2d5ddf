// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"agentrun/audit"
	"agentrun/rings"
	"agentrun/safetyloop"
	"agentrun/store"
	"agentrun/toolproxy/link"
)

// CodeAgentStopped is why a run doesn't begin whose agent a safety loop has stopped (S-8).
const CodeAgentStopped rings.Code = "agent_stopped"

// SafetyLoop makes a safety loop (S-15) whose state is this node's, and whose records are in its chains, on disk before an answer is
// given (H-28). Store, Record and Now of s are set here. Loops of one node, in whatever process, know each other's blocks. It must be
// closed before the Hypervisor is.
func (h *Hypervisor) SafetyLoop(s safetyloop.Settings) (*safetyloop.Loop, error) {
	db, err := h.store()
	if err != nil {
		return nil, err
	}
	s.Store, s.Record, s.Now = db, recorder{h}, h.now
	return safetyloop.New(s)
}

// SafetyBlocks lists who is stopped on this node, oldest first. A node without a state isn't given one for being asked.
func (h *Hypervisor) SafetyBlocks(ctx context.Context) (list []safetyloop.Block, err error) {
	err = h.view(ctx, func(tx *store.Tx) error {
		list, err = safetyloop.BlocksIn(tx)
		return err
	})
	return list, err
}

type recorder struct{ h *Hypervisor }

// Record implements safetyloop.Recorder.
func (r recorder) Record(_ context.Context, session string, rec audit.Record) error {
	return r.h.record(session, true, rec)
}

// notStopped denies a run to an agent that a safety loop has stopped, whatever the run's own profile says of loops: one started
// without would be the way around a stop.
func notStopped(tx *store.Tx, id string, v verdict) (verdict, error) {
	b, err := safetyloop.BlockIn(tx, id)
	if err != nil || b == nil {
		return v, err
	}
	return denied(v, "S-8", CodeAgentStopped, "agentrun challenges blocks tells why; agentrun challenges unblock "+id+" --reason WHY lets it go on",
		"the safety loop has stopped agent %s since %s: %s", id, b.Since.Format("2006-01-02 15:04:05Z07:00"), b.Reason), nil
}

// Stop shuts every way out of the run: its tool proxy is in ring 3 and refuses each call, until Resume. Its processes keep their ring.
// They are frozen by whoever calls this and can do nothing with it; a demotion would kill some of them, and a stop is to be taken
// back whole where the judge was wrong.
func (c *Control) Stop() { c.live.shut(true) }

// Resume takes back what Stop did, and nothing else.
func (c *Control) Resume() { c.live.shut(false) }

// KillSoon is Kill for who can't wait for it: because the kill may wait for them.
func (c *Control) KillSoon(r KillRequest) { c.killSoon(r) }

// shut tells those who wait for a change, whether or not the ring is another.
func (l *live) shut(on bool) {
	l.ringMu.Lock()
	defer l.ringMu.Unlock()
	if l.over || l.stopped == on {
		return
	}
	l.stopped = on
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *live) isStopped() bool {
	l.ringMu.Lock()
	defer l.ringMu.Unlock()
	return l.stopped
}

// exitRing is the ring that the tool proxy goes by.
func (l *live) exitRing() (rings.Ring, <-chan struct{}) {
	ring, changed := l.ring()
	if l.isStopped() {
		// Stopped or resumed since the line before: then changed is closed, and who waits for it asks again.
		return rings.Sandbox, changed
	}
	return ring, changed
}

var (
	_ link.Safeties = (*Exit)(nil)

	errNoSafetyLoop = errors.New("this run has no safety loop")
	errStopped      = errors.New("the safety loop has stopped the agent")
)

const (
	stoppedText = "the safety loop has stopped the agent"
	stoppedNext = "nothing: an operator has to let the agent go on"
)

// safetyRate answers a request that came too soon after others (S-1).
func safetyRate(wait time.Duration) json.RawMessage {
	return json.RawMessage(`{"success":false,"error":{"code":"` + safetyloop.CodeRateLimit + `","message":"Too many requests; repeat it in ` + wait.String() + `"}}`)
}

// Safety implements link.Safeties. How often is bounded by the ring's rate (H-16), apart from that of tools: each call that needs a
// step would else cost two. In the long run it is a fifth of that, which is a report for each of the run's steps: every answer
// of the loop is an entry in the audit, on disk before it is given.
func (e *Exit) Safety(ctx context.Context, s link.Safety) (json.RawMessage, error) {
	loop, err := e.safety()
	if err != nil {
		return nil, err
	}
	ring, _ := e.live.ring()
	if r, err := e.h.limits.Take(e.bucket(), "(safety)", ring); err != nil {
		return safetyRate(r.RetryAfter), nil
	}
	if most, unlimited := rings.RateLimitOf(ring); !unlimited {
		long := pace{burst: float64(8 * most.PerSecond), perSecond: float64(most.PerSecond) / 5}
		if !e.takeFrom(&e.reports, long) {
			return safetyRate(time.Duration(float64(time.Second) / long.perSecond)), nil
		}
	}
	return loop.Safety(ctx, s)
}

// Intent implements link.Safeties.
func (e *Exit) Intent(ctx context.Context, tool, target string) error {
	loop, err := e.safety()
	if err != nil {
		return err
	}
	if e.live.isStopped() {
		return link.ErrStopped
	}
	return loop.Intent(ctx, tool, target)
}

// Blocked implements link.Safeties.
func (e *Exit) Blocked(ctx context.Context) error {
	loop, err := e.safety()
	if err != nil {
		return err
	}
	if e.live.isStopped() {
		return link.ErrStopped
	}
	return loop.Blocked(ctx)
}

func (e *Exit) safety() (link.Safeties, error) {
	switch {
	case e.opt.Safety == nil:
		return nil, errNoSafetyLoop
	case e.over():
		return nil, errors.New("the run has ended")
	}
	return e.opt.Safety, nil
}
