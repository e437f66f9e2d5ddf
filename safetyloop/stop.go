// SPDX-License-Identifier: Apache-2.0

package safetyloop

import (
	"context"
	"errors"
	"fmt"
	"time"

	"agentrun/audit"
	"agentrun/store"
)

const blocksBucket = "safety_blocks"

// block is a stopped principal as kept (S-8). The key is the principal, not the agent: a client that goes on under another
// element_name is the same one.
type block struct {
	Agent     string    `json:"agent"`
	Element   string    `json:"element,omitempty"`
	Principal string    `json:"principal"`
	Bound     bool      `json:"bound,omitempty"`
	Session   string    `json:"session,omitempty"`
	Hint      string    `json:"hint,omitempty"`
	Reason    string    `json:"reason"`
	Code      string    `json:"code"` // deny_pattern, danger_zone
	Since     time.Time `json:"since"`
}

// readBlocks reads all of them, at each call: another process may have stopped the agent, or an operator released it there.
func (l *Loop) readBlocks(ctx context.Context) (all map[string]block, err error) {
	err = l.set.Store.View(ctx, func(tx *store.Tx) error {
		all, err = blocksIn(tx)
		return err
	})
	if err != nil {
		l.observe("block", "unreadable")
		if !errors.Is(err, ErrUnread) {
			err = fmt.Errorf("%w: %w", ErrUnread, err)
		}
		return nil, err
	}
	return all, nil
}

// allBlocks are those in the store, and those that couldn't be saved.
func (l *Loop) allBlocks(ctx context.Context) (map[string]block, error) {
	all, err := l.readBlocks(ctx)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, p := range l.principals {
		if p.unsaved != nil {
			all[name] = *p.unsaved
		}
	}
	return all, nil
}

func (l *Loop) save(ctx context.Context, b block) error {
	return l.set.Store.Update(ctx, func(tx *store.Tx) error { return store.PutJSON(tx.Bucket(blocksBucket), b.Principal, b) })
}

// blockOf gives the block that holds for a principal now, and brings what the Enforcer did in line with it.
func (l *Loop) blockOf(ctx context.Context, p *principal) (*block, error) {
	b, err := l.currentBlock(ctx, p)
	if err == nil && l.set.Mode == Enforcing {
		l.mu.Lock()
		differs := (b != nil) != p.frozen
		l.mu.Unlock()
		if differs {
			l.reconcile(ctx, p)
		}
	}
	return b, err
}

// currentBlock tries again to save a block that couldn't be saved before; until it is, it holds in memory.
func (l *Loop) currentBlock(ctx context.Context, p *principal) (*block, error) {
	l.mu.Lock()
	unsaved := p.unsaved
	l.mu.Unlock()
	if unsaved != nil {
		if err := l.save(ctx, *unsaved); err != nil {
			return unsaved, nil
		}
		l.mu.Lock()
		p.unsaved = nil
		l.mu.Unlock()
	}
	all, err := l.readBlocks(ctx)
	if err != nil {
		return nil, err
	}
	if b, is := all[p.name]; is {
		return &b, nil
	}
	return nil, nil
}

// reconcile makes the Enforcer stop whom a block holds, and resume whom none does. It looks the block up itself, behind the lock:
// a release and a call that saw the block before it must not end with a frozen agent that nobody blocks. What fails is recorded,
// and tried again with the next call; whether that record was kept decides nothing, since the call's own is still to come.
func (l *Loop) reconcile(ctx context.Context, p *principal) {
	if l.set.Enforcer == nil || !p.isBound(l) {
		return
	}
	select {
	case p.enforcing <- struct{}{}:
		defer func() { <-p.enforcing }()
	case <-ctx.Done():
		return
	}
	b, err := l.currentBlock(ctx, p)
	if err != nil {
		return // everybody is refused anyway, and nothing is known that could be resumed
	}
	l.mu.Lock()
	frozen := p.frozen
	l.mu.Unlock()
	ectx, cancel := context.WithTimeout(ctx, enforceTime)
	defer cancel()
	switch {
	case b != nil && !frozen:
		if err := l.set.Enforcer.Stop(ectx, p.name, b.Reason); err != nil {
			l.observe("enforcer", "stop_failed")
			_ = l.keep(ctx, b.Session, &audit.SafetyBlock{AgentID: audit.Claimed(b.Agent), Event: "stop_failed", Reason: "enforcer"})
			return
		}
		frozen = true
	case b == nil && frozen:
		if err := l.set.Enforcer.Resume(ectx, p.name); err != nil {
			l.observe("enforcer", "resume_failed")
			_ = l.keep(ctx, "", &audit.SafetyBlock{AgentID: audit.Claimed(p.name), Event: "resume_failed", Reason: "enforcer"})
			return
		}
		frozen = false
	}
	l.mu.Lock()
	p.frozen = frozen
	l.mu.Unlock()
}

func (p *principal) isBound(l *Loop) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return p.bound
}

// halt stops an agent: the block is on the disk before anything else happens, then its processes stand still, then it is
// recorded, then a human gets the code, then it is answered.
func (l *Loop) halt(ctx context.Context, call Call, v values, p *principal, e *execution, got verdict, by *token) Reply {
	element := v.text(pElement)
	code := tierDanger
	if got.stage == "pattern" {
		code = "deny_pattern"
	}
	b := block{
		Agent: agentName(call.Caller, element), Element: element, Principal: p.name, Bound: call.Caller.Bound, Session: call.Caller.Session,
		Hint: shown(v.text(pHint), maxSummary), Reason: reasonOf(got), Code: code, Since: l.now().UTC(),
	}
	event := "blocked"
	if err := l.save(ctx, b); err != nil {
		event = "unsaved"
		l.observe("block", "unsaved")
		l.mu.Lock()
		p.unsaved = &b
		l.mu.Unlock()
	}
	l.reconcile(ctx, p)
	l.revoke(p)
	c, err := l.issue(ctx, p, call.Caller, element, challengeDanger, v.text(pHint), b.Reason)
	if err == nil {
		err = l.keep(ctx, b.Session, &audit.SafetyBlock{AgentID: audit.Claimed(b.Agent), ChallengeID: idOf(c), Event: event, Reason: code})
	}
	if err == nil {
		err = l.recordStep(ctx, call.Caller, v, got, idOf(c), by)
	}
	l.broadcast(e, idOf(c))
	l.show(c)
	if err != nil {
		return failed(unrecorded())
	}
	return succeed(l.stopDirective(e, got, c))
}

// revoke takes back what a stopped agent still had in hand: confirmations, approved steps, verifications of other steps.
func (l *Loop) revoke(p *principal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for h, t := range l.tokens {
		if t.Principal == p.name && !t.used {
			delete(l.tokens, h)
		}
	}
	for id, c := range l.challenges {
		if c.principal == p.name {
			delete(l.challenges, id)
		}
	}
	p.approvals, p.intents = nil, nil
}

func (l *Loop) stopDirective(e *execution, got verdict, c *challenge) Directive {
	d := Directive{Stopped: true, Factors: got.factors, Reason: got.reason, NextStepRisk: tierDanger}
	if e != nil {
		d.Notifications = l.pull(e)
	}
	d.Notifications = append(d.Notifications, l.note(noteDanger, got.reason, toVerify(c)))
	return d
}

// stopped answers whatever a stopped principal asks for (S-8), but for introspect and verify_challenge.
func (l *Loop) stopped(ctx context.Context, call Call, op *Operation, v values, p *principal, b *block, unread error) Reply {
	got := verdict{kind: halt, stage: "block", tier: tierDanger}
	var c *challenge
	if unread != nil {
		got.reason = ErrUnread.Error()
	} else {
		got.reason = "The agent is stopped: " + b.Reason
		var err error
		if c, err = l.dangerChallenge(ctx, p, b); err != nil {
			return failed(unrecorded())
		}
	}
	got.factors = []string{got.reason}
	l.observe("block", "stop")
	if op.Name != opStep {
		details := map[string]any{"stopped": true, "reason": got.reason}
		if c != nil {
			details["verificationId"] = c.ID
		}
		return l.refuse(ctx, call, v.text(pElement), refusal(CodeDenied, details, "Permission denied: %s", got.reason))
	}
	if err := l.recordStep(ctx, call.Caller, v, got, idOf(c), nil); err != nil {
		return failed(unrecorded())
	}
	l.mu.Lock()
	e := p.running[v.text(pElement)]
	l.mu.Unlock()
	return succeed(l.stopDirective(e, got, c))
}

// dangerChallenge gives the block's live challenge, or a new one: the old one has expired, or was another process's.
func (l *Loop) dangerChallenge(ctx context.Context, p *principal, b *block) (*challenge, error) {
	if c := l.waiting(p.name, challengeDanger, ""); c != nil {
		return c, nil
	}
	c := Caller{Principal: b.Principal, Bound: b.Bound, Session: b.Session}
	ch, err := l.issue(ctx, p, c, b.Element, challengeDanger, b.Hint, b.Reason)
	if err == nil {
		l.show(ch)
	}
	return ch, err
}

// release lifts a block: recorded, then off the disk, then the processes go on.
func (l *Loop) release(ctx context.Context, name, by, reason, note string) error {
	l.mu.Lock()
	p := l.principals[name]
	l.mu.Unlock()
	agent, session := name, ""
	if all, err := l.readBlocks(ctx); err != nil {
		return err
	} else if b, is := all[name]; is {
		agent, session = b.Agent, b.Session
	}
	err := l.keep(ctx, session, &audit.SafetyBlock{AgentID: audit.Claimed(agent), By: claimedOr(by), Event: "released", Note: claimedOr(note), Reason: reason})
	if err != nil {
		return err
	}
	err = l.set.Store.Update(ctx, func(tx *store.Tx) error { return tx.Bucket(blocksBucket).Delete(name) })
	if err != nil {
		l.observe("block", "release_failed")
		_ = l.keep(ctx, session, &audit.SafetyBlock{AgentID: audit.Claimed(agent), By: claimedOr(by), Event: "release_failed", Reason: "store"})
		return fmt.Errorf("release %.80q: %w", agent, err)
	}
	l.observe("block", "released")
	if p == nil {
		return nil
	}
	l.mu.Lock()
	p.unsaved = nil
	l.mu.Unlock()
	l.reconcile(ctx, p)
	return nil
}

// Blocks lists who is stopped, oldest first. An error means: everybody.
func (l *Loop) Blocks(ctx context.Context) ([]Block, error) {
	if l.set.Store == nil {
		return []Block{}, nil // Logging or Disabled without one
	}
	all, err := l.allBlocks(ctx)
	if err != nil {
		return nil, err
	}
	list := []Block{}
	for name, b := range all {
		list = append(list, Block{Agent: b.Agent, Reason: b.Reason, Since: b.Since, Challenge: idOf(l.waiting(name, challengeDanger, ""))})
	}
	sortBlocks(list)
	return list, nil
}

// Unblock releases an agent without a code, by its name as Blocks gives it. reason is recorded.
func (l *Loop) Unblock(ctx context.Context, by, agent, reason string) error {
	if l.set.Store == nil {
		return fmt.Errorf("agent %.80q: %w", agent, ErrNotFound)
	}
	all, err := l.allBlocks(ctx)
	if err != nil {
		return err
	}
	var hits []string
	for name, b := range all {
		if b.Agent == agent {
			hits = append(hits, name)
		}
	}
	switch len(hits) {
	case 0:
		return fmt.Errorf("agent %.80q: %w", agent, ErrNotFound)
	case 1:
	default:
		return fmt.Errorf("agent %.80q: %d clients have one of that name: %w", agent, len(hits), ErrSetting)
	}
	if err := l.release(ctx, hits[0], by, "operator", reason); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, c := range l.challenges {
		if c.principal == hits[0] && c.Kind == challengeDanger {
			delete(l.challenges, id)
		}
	}
	return nil
}

// Blocked tells whether the caller's agent is stopped: nil, ErrBlocked, or ErrUnread, which means the same. For a supervisor before
// it starts a run, and for a tool proxy at each call. Where nothing is enforced, nobody is stopped.
func (l *Loop) Blocked(ctx context.Context, c Caller) error {
	if l.set.Mode != Enforcing {
		return nil
	}
	l.mu.Lock()
	p := l.principals[c.Principal]
	unsaved := p != nil && p.unsaved != nil
	l.mu.Unlock()
	if unsaved {
		return fmt.Errorf("agent %.80q: %w", c.Principal, ErrBlocked)
	}
	all, err := l.readBlocks(ctx)
	if err != nil {
		return err
	}
	if b, is := all[c.Principal]; is {
		return fmt.Errorf("agent %.80q: %w: %s", b.Agent, ErrBlocked, b.Code)
	}
	return nil
}

// Sync brings the Enforcer in line with the store for the agents that this loop has seen: one that another process blocked is
// stopped, one that another process released is resumed. A stopped agent makes no call that would do it.
func (l *Loop) Sync(ctx context.Context) error {
	if l.set.Mode != Enforcing || l.set.Enforcer == nil {
		return nil
	}
	l.mu.Lock()
	var seen []*principal
	for _, p := range l.principals {
		if p.bound {
			seen = append(seen, p)
		}
	}
	l.mu.Unlock()
	var errs []error
	for _, p := range seen {
		b, err := l.blockOf(ctx, p)
		l.mu.Lock()
		differs := err == nil && (b != nil) != p.frozen
		l.mu.Unlock()
		if differs {
			err = fmt.Errorf("agent %.80q: the sandbox doesn't follow", p.name)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
