// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"agentrun/audit"
	"agentrun/internal/fault"
	"agentrun/rings"
	"agentrun/store"
	"agentrun/toolproxy/link"
)

// ElevateRequest asks for a ring for a while.
type ElevateRequest struct {
	Target rings.Ring
	TTL    time.Duration // 0 or less: 300 s; more than 3600 s is cut to that (H-14)
	Reason string        // for people; required, at most 1024 bytes
	Note   string        // the same where an operator says it, for the audit: an agent's own words are its data (H-27)
	By     string        // who asks, as the audit shall have it: "uid:0"; AgentItself for the agent
}

// AgentItself is who asks for an elevation that no operator was asked about.
const AgentItself = "agent"

// Codes of refused elevations, beside those of H-13.
const (
	CodeInvalidReason rings.Code = "invalid_reason"
	CodeNotElevatable rings.Code = "not_elevatable" // the run's profile has no room
	CodeUnapplied     rings.Code = "unapplied"      // granted, and ended because it couldn't be given
)

const maxElevationReason = 1024

// Elevate lends the run a ring. The elevation is on record, on disk, before it counts; a refusal, a *DeniedError, is on
// record too. Any other error means that it couldn't be decided or recorded: then nothing was lent.
func (c *Control) Elevate(ctx context.Context, r ElevateRequest) (rings.Elevation, error) {
	c.loanMu.Lock()
	defer c.loanMu.Unlock()
	c.bookLocked("")
	req, locks, err := c.decideLocked(ctx, r)
	if err != nil {
		return rings.Elevation{}, c.deniedLocked(r, req, err)
	}
	until := c.h.boot() // before the grant: what passes in between is the elevation's
	e, d := c.live.loans.Request(req)
	if !d.Allowed() {
		locks.unlock()
		return rings.Elevation{}, c.deniedLocked(r, req, c.denial(r, d))
	}
	err = c.h.record(c.adm.Session, true, c.recordOf(r, req, string(rings.CodeOK), e))
	if err != nil {
		_, _ = c.live.loans.Revoke(e.ID)
		_ = c.live.loans.Tick() // if it was over by itself: an elevation that isn't on record has no end there either
		locks.unlock()
		return rings.Elevation{}, fmt.Errorf("elevation of run %s: %w", c.opt.Run, err)
	}
	_ = fault.At("elevate/lent") // to die or wait at; what failed before is taken back there
	c.lock = locks.only
	if locks.turn != nil {
		c.turn.Store(locks.turn)
	}
	c.lent.Store(&lent{e, r.Reason})
	c.live.arm(e.ID, until+e.TTL())
	c.tick()
	c.expireAtLocked(until + e.TTL())
	c.notify(EventElevated, map[string]string{"elevation_id": e.ID, "target": e.Target.String(), "expires_at": e.ExpiresAt.UTC().Format(time.RFC3339Nano)})
	return e, nil
}

// CheckElevation says what Elevate would, and leaves nothing behind.
func (c *Control) CheckElevation(ctx context.Context, r ElevateRequest) error {
	return c.look(ctx, r, false)
}

// look decides without granting; tell puts a refusal on record.
func (c *Control) look(ctx context.Context, r ElevateRequest, tell bool) error {
	c.loanMu.Lock()
	defer c.loanMu.Unlock()
	c.bookLocked("")
	req, locks, err := c.decideLocked(ctx, r)
	locks.unlock()
	if err != nil && tell {
		err = c.deniedLocked(r, req, err)
	}
	return err
}

// places are what a run holds on the node for an elevation.
type places struct {
	only *store.Lock // of its agent, in its session; the elevation's
	turn *store.Lock // in a strong session; the run's
}

func (p places) unlock() {
	p.only.Unlock()
	p.turn.Unlock()
}

// decideLocked is the decision, in the order of H-13. The caller gives the locks back, which are none after an error.
func (c *Control) decideLocked(ctx context.Context, r ElevateRequest) (req rings.ElevationRequest, locks places, err error) {
	req = rings.ElevationRequest{Target: r.Target, TTLSeconds: r.TTL.Seconds()}
	a, ring, err := c.live.now(ctx)
	if err != nil {
		return req, locks, fmt.Errorf("elevation of run %s: %w", c.opt.Run, err)
	}
	req.Current, req.TrustScore, req.HasConsensus = ring, trustOf(a), a.Consensus
	req.Quarantined = a.Quarantined != nil || c.live.held.Load()
	switch {
	case c.over():
		return req, locks, c.deny(r, "H-22", link.CodeCanceled, "the run has ended or is being killed")
	case r.Reason == "" || len(r.Reason) > maxElevationReason || !utf8.ValidString(r.Reason):
		return req, locks, c.deny(r, "H-27", CodeInvalidReason, fmt.Sprintf("a reason of 1 to %d bytes is needed", maxElevationReason))
	}
	if locks.only, req.Elsewhere, err = c.onlyOne(ctx); err != nil {
		return req, locks, fmt.Errorf("elevation of run %s: %w", c.opt.Run, err)
	}
	d := c.live.loans.Check(req)
	switch {
	case d.Code == rings.CodeQuarantined && c.keyEnded():
		err = c.deny(r, "M-9", link.CodeKeyInvalid, "the run's key has expired or was revoked")
	case !d.Allowed():
		err = c.denial(r, d)
	case c.opt.Elevatable == nil:
		err = c.deny(r, "M-22", CodeNotElevatable, "nothing applies another ring to this run")
	default:
		if why := c.opt.Elevatable(r.Target); why != nil {
			err = c.deny(r, "M-22", CodeNotElevatable, why.Error())
		}
	}
	if err == nil {
		locks.turn, err = c.takeTurn(ctx, r)
	}
	if err != nil {
		locks.unlock()
		locks = places{}
	}
	return req, locks, err
}

// takeTurn takes the turn in a strong session for a run that was admitted to read, and would write in the ring that it asks for (H-32).
// nil: it has it, or needs none. It is the run's until its end, as the turn of one that was admitted to write: what a demotion closes
// closes after it is decided.
func (c *Control) takeTurn(ctx context.Context, r ElevateRequest) (*store.Lock, error) {
	if c.adm.Session == "" || c.mayWrite() {
		return nil, nil
	}
	var v verdict
	err := c.h.view(ctx, func(tx *store.Tx) (err error) {
		v, err = c.h.inSession(tx, v, Request{Agent: c.adm.Agent, Session: c.adm.Session})
		return err
	})
	adm := Admission{Session: c.adm.Session}
	if err == nil && v.Code == "" && v.serial {
		v, err = c.h.turn(&adm, v)
	}
	if err == nil && v.Code != "" {
		err = c.denial(r, v.Decision)
	}
	return adm.lock, err
}

// mayWrite tells whether the run has the turn in its session, if that is strong.
func (c *Control) mayWrite() bool { return c.adm.lock != nil || c.turn.Load() != nil }

// onlyOne takes the place that an elevation of this agent in this session has on the node (H-13): a lock, which the kernel
// gives back when we die, however we die. Neither agents nor sessions have a slash in their names, so ("a", "b:c") and
// ("a:b", "c") are two. What an operator runs itself is one run, and loans knows of its own.
func (c *Control) onlyOne(ctx context.Context) (lock *store.Lock, elsewhere bool, err error) {
	if c.adm.Agent == "" || c.lock != nil {
		return nil, c.lock != nil, nil
	}
	db, err := c.h.store()
	if err != nil {
		return nil, false, err
	}
	for try := 0; ; try++ {
		lock, err = db.TryLock("elevation-" + c.adm.Agent + "/" + c.adm.Session)
		if !errors.Is(err, store.ErrBusy) {
			return lock, false, err
		}
		if try == lockTries || ctx.Err() != nil {
			return nil, true, nil
		}
		time.Sleep(time.Millisecond) // somebody may only be asking: a dry run holds it for an instant
	}
}

const lockTries = 5

func (c *Control) deny(r ElevateRequest, rule string, code rings.Code, reason string) *DeniedError {
	return c.denial(r, rings.Decision{Verdict: rings.Deny, Code: code, Reason: reason, Rule: rule})
}

func (c *Control) denial(r ElevateRequest, d rings.Decision) *DeniedError {
	return &DeniedError{What: "elevate run " + c.opt.Run + " to " + r.Target.String(), Decision: d, Hint: c.elevationHint(d.Code)}
}

func (c *Control) elevationHint(code rings.Code) string {
	switch code {
	case rings.CodeInvalidTarget, rings.CodeRing0Forbidden:
		return "rings 1 and 2 can be lent, to a run in a less privileged one"
	case rings.CodeDuplicateElevation:
		return "wait for its end, or take it back: agentrun revoke"
	case rings.CodeQuarantined:
		return "an operator releases the agent: agentrun agent release"
	case link.CodeKeyInvalid:
		return "start the run anew with a key that is good: agentrun key issue"
	case CodeSessionBusy:
		return "wait for the end of the run that can write"
	case rings.CodeInsufficientTrust, rings.CodeNoConsensus:
		return "agentrun agent show " + c.who + " tells its score; ring 2 needs 0.50, ring 1 0.85 and consensus"
	case CodeUnapplied:
		return "the run goes on in its ring; mend what stands in the way and elevate it again"
	case CodeNotElevatable:
		return "start the run in the ring it needs"
	}
	return "nothing was changed"
}

// deniedLocked puts a refusal on record. Agents can ask as often as their rate allows: it needn't be on disk at once.
func (c *Control) deniedLocked(r ElevateRequest, req rings.ElevationRequest, err error) error {
	d, ok := errors.AsType[*DeniedError](err)
	if !ok {
		return err
	}
	c.notify(EventNotElevated, map[string]string{"code": string(d.Code)})
	return errors.Join(err, c.h.record(c.adm.Session, false, c.recordOf(r, req, string(d.Code), rings.Elevation{})))
}

func (c *Control) recordOf(r ElevateRequest, req rings.ElevationRequest, code string, e rings.Elevation) *audit.Elevation {
	rec := &audit.Elevation{
		AgentID: c.who, CurrentRing: audit.RingOf(req.Current.Value()), Granted: e.ID != "", HasConsensus: req.HasConsensus, Reason: code, RunID: c.opt.Run,
		TargetRing: audit.RingOf(r.Target.Value()), TrustScore: audit.NumberOf(req.TrustScore), Note: noteOf(r.Note),
	}
	if r.By != "" {
		rec.By = audit.Claimed(r.By)
	}
	if rec.Granted {
		rec.Reason, rec.ElevationID, rec.ExpiresAt = "granted", e.ID, e.ExpiresAt.UTC()
	}
	return rec
}

// lent is an elevation as it was granted, with its reason.
type lent struct {
	rings.Elevation
	reason string
}

// Elevation is the one that counts now, and its reason; ok is false if there is none. It waits for nothing.
func (c *Control) Elevation() (e rings.Elevation, reason string, ok bool) {
	l, armed := c.lent.Load(), c.live.armed()
	if l == nil || l.ID != armed.id || c.h.boot() >= armed.until || c.over() {
		return rings.Elevation{}, "", false
	}
	if active, _ := c.live.loans.Active(); active.ID != l.ID {
		return rings.Elevation{}, "", false
	}
	return l.Elevation, l.reason, true
}

// Revoke ends an elevation at once (H-15); "" is the one there is. For one that isn't there the error is
// rings.ErrElevationNotFound. It takes effect even if the audit can't be written; the error is then returned.
func (c *Control) Revoke(_ context.Context, id, by string) (rings.Elevation, error) {
	if active, ok := c.live.loans.Active(); id == "" && ok {
		id = active.ID
	}
	e, err := c.live.loans.Revoke(id)
	c.live.settle()
	c.loanMu.Lock()
	defer c.loanMu.Unlock()
	if err != nil {
		return rings.Elevation{}, fmt.Errorf("run %s: %w", c.opt.Run, err)
	}
	return e, c.endLocked(e, "revoked", by)
}

// unapplied is an elevation that was granted and couldn't be given.
type unapplied struct {
	id  string
	why error
}

// Unapplied implements runtime.RingSource: the elevation to this ring ends, since it holds for nothing.
func (c *Control) Unapplied(ring rings.Ring, why error) {
	e, ok := c.live.loans.Active()
	if !ok || e.Target != ring {
		return
	}
	c.failed.Store(&unapplied{e.ID, why}) // before the ring falls, which is what Settled waits for
	if _, err := c.live.loans.Revoke(e.ID); err != nil {
		return // it has just ended
	}
	c.live.settle()
	c.loanMu.Lock()
	defer c.loanMu.Unlock()
	c.warn(c.endLocked(e, "unapplied", ""))
}

// Held says why an elevation that was granted could not be given, a *DeniedError; nil where nothing is known against it. It is to
// be asked after Settled.
func (c *Control) Held(r ElevateRequest, id string) error {
	f := c.failed.Load()
	if f == nil || f.id != id {
		return nil
	}
	return c.deny(r, "M-22", CodeUnapplied, f.why.Error())
}

// expireAtLocked has the ring fall at the instant of expiry, by whichever clock is there first. A timer stands still while
// the machine is suspended; watch finds out then.
func (c *Control) expireAtLocked(until time.Duration) {
	left := until - c.h.boot()
	if at, ok := c.live.loans.Next(); ok {
		left = min(left, at.Sub(c.h.now()))
	}
	c.timer = time.AfterFunc(max(left, 0), func() {
		c.live.settle()
		c.nudge()
	})
}

// bookLocked accounts for an elevation that is over by itself, or ends it for the cause given. The ring fell before.
func (c *Control) bookLocked(cause string) {
	if c.lent.Load() == nil {
		return
	}
	for _, e := range c.live.loans.Tick() {
		c.warn(c.endLocked(e.Elevation, c.causeOf(e.Code), ""))
	}
	armed := c.live.armed()
	if armed.id == "" {
		return
	}
	if why := c.dueCause(armed); why != "" {
		cause = why
	}
	if cause == "" {
		return
	}
	e, err := c.live.loans.Revoke(armed.id)
	if err != nil {
		return // Revoke took it, and is about to book it
	}
	c.live.settle()
	c.warn(c.endLocked(e, cause, ""))
}

// dueCause is why the elevation must end beside what loans knows of; "" if it needn't.
func (c *Control) dueCause(l loan) string {
	switch {
	case c.isKilled():
		return "killed"
	case c.live.stands.Load().sessionOver:
		return "session_end"
	case c.h.boot() >= l.until:
		return "expired"
	}
	return ""
}

// causeOf is the audit's word for why loans ended an elevation.
func (c *Control) causeOf(code rings.Code) string {
	switch {
	case c.isKilled():
		return "killed" // which holds the run, too
	case code == rings.CodeInsufficientTrust || code == rings.CodeNoConsensus:
		return "demoted"
	case code == rings.CodeQuarantined && c.keyEnded():
		return string(link.CodeKeyInvalid)
	}
	return string(code)
}

// keyEnded tells whether it is the run's key alone that holds it, as a quarantine of its agent would (M-9).
func (c *Control) keyEnded() bool {
	return !c.live.held.Load() && c.live.stands.Load().Quarantined == nil && c.KeyOver()
}

// KeyOver tells whether the key that the run was started with isn't good any more.
func (c *Control) KeyOver() bool { return c.live.keyOver() }

func (c *Control) isKilled() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.killed
}

// endLocked books the end of an elevation that counts no more. Its place on the node is free after the ring has fallen.
func (c *Control) endLocked(e rings.Elevation, cause, by string) error {
	ring := c.live.ringWithout(e.ID)
	if l := c.lent.Load(); l != nil && l.ID == e.ID {
		c.timer.Stop()
		c.lock.Unlock()
		c.lock, c.timer = nil, nil
		c.lent.Store(nil)
	}
	r := &audit.ElevationEnd{AgentID: c.who, Cause: cause, ElevationID: e.ID, Ring: audit.RingOf(ring.Value()), RunID: c.opt.Run}
	if by != "" {
		r.By = audit.Claimed(by)
	}
	err := c.h.record(c.adm.Session, false, r)
	c.notify(EventElevationEnd, map[string]string{"elevation_id": e.ID, "cause": cause})
	return err
}

func (c *Control) over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed || c.killed || c.opt.Parent != nil && c.opt.Parent.over()
}
