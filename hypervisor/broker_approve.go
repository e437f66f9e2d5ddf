// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"agentrun/audit"
	"agentrun/rings"
	"agentrun/store"
	"agentrun/toolproxy/link"
)

const (
	// MaxApprovalWait is how long a call may wait for an operator: a run lasts 300 s at most (M-3).
	MaxApprovalWait = 5 * time.Minute

	maxApprovalArgs = 64 << 10 // what an operator can read; a call with more is refused rather than shown in part
	maxPendingRun   = 32       // as many as a ring has tools at once (H-11)
	maxPendingNode  = 1000     // an operator answers none of a thousand
	keepApprovals   = 24 * time.Hour
	maxKept         = 1000    // that ended: each question reads all of them, but for their arguments
	maxKeptArgs     = 8 << 20 // their bytes

	// askTime is how often a waiting call looks at the state's stamp. An operator takes seconds.
	askTime = 100 * time.Millisecond
)

func refused(id string, code rings.Code, message string) link.Approved {
	return link.Approved{ID: id, Code: code, Message: message}
}

// Approve implements link.Supervisor. A standing grant answers at once; else the call waits for an operator until a.Wait is
// over, ctx or the run ends, or its agent is put into quarantine or stopped. Whatever ends the wait also ends the request: an answer that
// comes later is refused, and none is good for a second call.
func (b *Broker) Approve(ctx context.Context, a link.Approval) (link.Approved, error) {
	return b.approve(ctx, a, "")
}

// approve has a kind that no gateway can claim: "" is a call of a tool.
func (b *Broker) approve(ctx context.Context, a link.Approval, kind string) (link.Approved, error) {
	b.mu.Lock()
	if b.closed || b.control.over() {
		b.mu.Unlock()
		return refused("", link.CodeCanceled, "the run has ended"), nil
	}
	b.calls.Add(1)
	b.mu.Unlock()
	defer b.calls.Done()
	if b.live.isStopped() {
		return refused("", link.CodeStopped, stoppedText), nil
	}
	if err := checkApproval(a); err != nil {
		return link.Approved{}, err
	}
	if held, err := b.held(ctx); err != nil {
		return link.Approved{}, err
	} else if held {
		return refused("", rings.CodeQuarantined, "the agent is in quarantine"), nil
	}
	if kind == "" {
		grant, err := b.standing(ctx, a)
		if err != nil {
			return link.Approved{}, err
		}
		if grant != "" {
			return link.Approved{Allowed: true, ID: grant, By: "standing grant", Code: rings.CodeOK}, nil
		}
	}
	if a.Wait <= 0 {
		return refused("", link.CodeApproval, "an operator has to approve this call, and it doesn't wait"), nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(b.ctx, cancel)()
	asked, err := b.ask(ctx, a, kind)
	if err != nil {
		if errors.Is(err, errTooMany) || errors.Is(err, errTooManyOfAgent) {
			return refused("", link.CodeApproval, err.Error()), nil
		}
		return link.Approved{}, err
	}
	// From here on somebody can answer. What recording the question took is no operator's time.
	ctx, stop := context.WithTimeout(ctx, asked.Expires.Sub(asked.Asked))
	defer stop()
	return b.wait(ctx, asked)
}

func checkApproval(a link.Approval) error {
	switch _, err := audit.ParseHash(a.Digest); {
	case err != nil:
		return fmt.Errorf("approval: arguments: %w", err)
	case rings.CheckActionID(a.Tool) != nil:
		return fmt.Errorf("approval: %.80q is no tool's name", a.Tool)
	case len(a.Args) > maxApprovalArgs || !json.Valid(a.Args):
		return fmt.Errorf("approval of %s: %d bytes of arguments: want JSON of at most %d", a.Tool, len(a.Args), maxApprovalArgs)
	}
	return nil
}

func (b *Broker) held(ctx context.Context) (bool, error) {
	a, _, err := b.live.now(ctx)
	return a.Quarantined != nil, err
}

// standing finds a grant for the call.
func (b *Broker) standing(ctx context.Context, a link.Approval) (id string, err error) {
	if b.adm.Agent == "" {
		return "", nil
	}
	grants, err := b.h.StandingGrants(ctx)
	if err != nil {
		return "", err
	}
	for _, g := range grants {
		// Before it was given: the clock has been set back, and how much of the grant's time has passed isn't known any more.
		if b.h.now().Before(g.Granted) {
			continue
		}
		if g.Agent == b.adm.Agent && g.Tool == a.Tool && (g.Digest == "" || g.Digest == a.Digest) {
			return g.ID, nil
		}
	}
	return "", nil
}

// No agent's calls may take more places than are free, as with undos: one that takes all it can leaves others half.
var (
	errTooMany        = errors.New("too many calls wait for an operator")
	errTooManyOfAgent = errors.New("too many calls of the agent's runs wait for an operator")
)

// waits says that somebody is here to hear an answer, until Close or our death.
func (b *Broker) waits(db *store.DB) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.asks != nil {
		return nil
	}
	for {
		lock, err := db.TryLock(waitsLock(b.run))
		if err == nil {
			b.asks = lock
			return nil
		}
		if !errors.Is(err, store.ErrBusy) || b.ctx.Err() != nil {
			return err
		}
		// Somebody lists approvals and looks at the lock in this instant.
		time.Sleep(time.Millisecond)
	}
}

// ask keeps the request where an operator finds it.
func (b *Broker) ask(ctx context.Context, a link.Approval, kind string) (Approval, error) {
	db, err := b.h.store()
	if err != nil {
		return Approval{}, err
	}
	if err := b.waits(db); err != nil {
		return Approval{}, err
	}
	reason := ""
	if a.Reason != "" {
		reason = audit.Claimed(a.Reason)
	}
	asked := Approval{
		ID: newID(), Kind: kind, Run: b.run, Agent: b.adm.Agent, Session: b.adm.Session, Tool: a.Tool, Args: a.Args, Digest: a.Digest, Reason: reason,
		State: ApprovalPending,
	}
	err = db.Update(ctx, func(tx *store.Tx) error {
		now := b.h.now().UTC()
		asked.Asked, asked.Expires = now, now.Add(min(a.Wait, MaxApprovalWait))
		w, err := b.sweep(tx, now)
		switch {
		case err != nil:
			return err
		case w.run >= maxPendingRun || w.node >= maxPendingNode || kind == "" && !b.mayAsk():
			return errTooMany
		case b.adm.Agent != "" && w.agent >= maxPendingNode-w.node:
			return errTooManyOfAgent
		}
		return b.h.putApproval(tx, asked)
	})
	return asked, err
}

// mayAsk counts: a call that needs approval has taken a step before, but a gateway that has fallen may ask without.
func (b *Broker) mayAsk() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.asked >= b.taken+maxPendingRun {
		return false
	}
	b.asked++
	return true
}

// waiting are the calls that wait for an operator: of the run, of its agent's runs, and of the node.
type waiting struct{ run, agent, node int }

// sweep forgets what ended long ago and counts what waits.
func (b *Broker) sweep(tx *store.Tx, now time.Time) (w waiting, err error) {
	sizes := map[string]int{} // of the arguments, which nobody reads here
	err = tx.Bucket(approvalArgsBucket).Sizes("", func(id string, size int) error {
		sizes[id] = size
		return nil
	})
	if err != nil {
		return waiting{}, err
	}
	type old struct {
		id   string
		at   time.Time
		size int
	}
	var ended []old
	err = store.EachJSON(tx.Bucket(approvalsBucket), "", func(id string, a Approval) error {
		switch {
		case now.Sub(a.Expires) >= keepApprovals:
			return forgetApproval(tx, id)
		case a.State == ApprovalApproved: // and not used yet
			return nil
		case a.State != ApprovalPending || !now.Before(a.Expires):
			ended = append(ended, old{id, a.Asked, len(a.Args) + sizes[id]})
			return nil
		}
		w.node++
		if a.Agent == b.adm.Agent {
			w.agent++
		}
		if a.Run == b.run {
			w.run++
		}
		return nil
	})
	if err != nil {
		return waiting{}, err
	}
	// Agents ask, run after run: what ended goes, the oldest first, before a day is over if there is too much of it.
	slices.SortFunc(ended, func(a, b old) int { return b.at.Compare(a.at) })
	size := 0
	for i, a := range ended {
		if size += a.size; i < maxKept && size <= maxKeptArgs {
			continue
		}
		if err := forgetApproval(tx, a.id); err != nil {
			return waiting{}, err
		}
	}
	g := tx.Bucket(grantsBucket)
	err = store.EachJSON(g, "", func(id string, grant StandingGrant) error {
		if now.Sub(grant.Expires) >= keepApprovals {
			return g.Delete(id)
		}
		return nil
	})
	return w, err
}

// wait looks for the answer whenever the state has changed. The stamp is as good here as in live: an answer that shares it
// with the write before is found within anywayTime, or at the end.
func (b *Broker) wait(ctx context.Context, asked Approval) (link.Approved, error) {
	t := time.NewTicker(askTime)
	defer t.Stop()
	path := filepath.Join(b.h.opt.StateDir, stateFile)
	var seen stamp
	var read time.Time
	for {
		s, err := stampOf(path)
		if err != nil || b.control.over() || b.live.isStopped() {
			return b.settleApproval(asked, ApprovalCanceled)
		}
		if now := time.Now(); s != seen || now.Sub(read) >= anywayTime {
			seen, read = s, now
			if a, err := b.h.Approval(ctx, asked.ID); err == nil && a.State != ApprovalPending {
				return b.settleApproval(asked, ApprovalExpired)
			}
			if held, err := b.held(ctx); ctx.Err() == nil && (err != nil || held) {
				return b.settleApproval(asked, ApprovalCanceled)
			}
		}
		select {
		case <-ctx.Done():
			ends := ApprovalExpired
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				ends = ApprovalCanceled
			}
			return b.settleApproval(asked, ends)
		case <-t.C:
		}
	}
}

// settleApproval ends the request, in one transaction with reading its answer: one that was given in time is used up, what
// nobody answered gets the state ends. After a wait that was canceled even an approval isn't used: nobody is left to call.
func (b *Broker) settleApproval(asked Approval, ends ApprovalState) (link.Approved, error) {
	ctx, cancel := context.WithTimeout(context.Background(), readTime)
	defer cancel()
	var now Approval
	granted := false
	err := b.h.update(ctx, func(tx *store.Tx) (err error) {
		if now, err = approval(tx, asked.ID); err != nil {
			return err
		}
		if now.Run != asked.Run || now.Kind != asked.Kind || now.Tool != asked.Tool || now.Digest != asked.Digest {
			return fmt.Errorf("approval %s is another's", asked.ID)
		}
		switch now.State {
		case ApprovalPending:
			now.State, now.By = ends, "nobody"
			return b.h.putApproval(tx, now)
		case ApprovalApproved:
			// Its agent may have been put into quarantine between the answer and now.
			if b.adm.Agent != "" {
				a, err := agent(tx, b.adm.Agent)
				if err != nil {
					return err
				}
				if a.Quarantined != nil {
					ends = ApprovalCanceled
				}
			}
			now.State = ApprovalUsed
			if ends == ApprovalCanceled || b.ctx.Err() != nil || b.live.isStopped() {
				now.State = ApprovalCanceled
				return b.h.putApproval(tx, now)
			}
			granted = true
			return keepApproval(tx, now)
		}
		return nil
	})
	if err != nil {
		return link.Approved{}, err
	}
	if granted {
		return link.Approved{Allowed: true, ID: now.ID, By: now.By, Code: rings.CodeOK}, nil
	}
	switch now.State {
	case ApprovalDenied:
		return link.Approved{ID: now.ID, By: now.By, Code: link.CodeApproval, Message: "an operator denied this call"}, nil
	case ApprovalExpired:
		return refused(now.ID, link.CodeApproval, "no operator answered in time"), nil
	}
	return refused(now.ID, link.CodeCanceled, "the call was canceled while it waited for an operator"), nil
}
