// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"agentrun/audit"
	"agentrun/rings"
	"agentrun/store"
)

const (
	approvalsBucket = "approvals"
	// approvalArgsBucket has the arguments, by the same ids: agents make them as long as they like, and each question reads all of the
	// other bucket, in a transaction that all runs of the node wait for.
	approvalArgsBucket = "approval-args"
	grantsBucket       = "approval-grants"
)

// ApprovalState is how far a call that needs an operator has come. The zero value is none, and approves nothing.
type ApprovalState string

// The states. Only ApprovalPending can be answered; only ApprovalApproved lets a call go on, which makes it ApprovalUsed.
const (
	ApprovalPending  ApprovalState = "pending"
	ApprovalApproved ApprovalState = "approved"
	ApprovalDenied   ApprovalState = "denied"
	ApprovalUsed     ApprovalState = "used"
	ApprovalExpired  ApprovalState = "expired"
	ApprovalCanceled ApprovalState = "canceled" // the call or its run ended
)

// Approval is a call of category D (M-11). It is bound to this run, this tool and exactly these arguments, by their digest.
type Approval struct {
	ID       string          `json:"approval_id"`
	Kind     string          `json:"kind,omitempty"` // empty: a tool's call; ApprovalElevation
	Run      string          `json:"run_id"`
	Agent    string          `json:"agent_id,omitempty"`
	Session  string          `json:"session_id,omitempty"`
	Tool     string          `json:"tool"`
	Args     json.RawMessage `json:"args"` // secrets and personal data masked
	Digest   string          `json:"digest"`
	Reason   string          `json:"reason,omitempty"`
	Asked    time.Time       `json:"asked"`
	Expires  time.Time       `json:"expires"`
	State    ApprovalState   `json:"state"`
	By       string          `json:"by,omitempty"`
	Answered time.Time       `json:"answered,omitzero"`
}

// ApprovalElevation is a ring that an agent asks to have on loan (H-13): Args are its target, time and reason. No standing
// grant is good for one.
const ApprovalElevation = "elevation"

// StandingGrant is an operator's approval beforehand: of a tool, for one agent, until a time; of exactly some arguments if
// Digest is there, of any if not.
type StandingGrant struct {
	ID      string    `json:"grant_id"`
	Agent   string    `json:"agent_id"`
	Tool    string    `json:"tool"`
	Digest  string    `json:"digest,omitempty"`
	By      string    `json:"by"`
	Granted time.Time `json:"granted"`
	Expires time.Time `json:"expires"`
}

// MaxGrant is how long a standing grant lasts at most. What nobody has looked at for a month, somebody should.
const MaxGrant = 30 * 24 * time.Hour

var (
	// ErrNoApproval is an approval or standing grant that isn't there, or no longer.
	ErrNoApproval = errors.New("there is no such approval")
	// ErrLate is an answer to what has been answered, has expired, or whose run has ended.
	ErrLate = errors.New("it can't be answered any more")
	// ErrGrant is a standing grant that can't be.
	ErrGrant = errors.New("impossible grant")
)

// Approvals returns what is known of calls that asked for an operator, by when they asked: those that wait, and for a day
// those that ended. One that waited for longer than it may is shown as expired.
func (h *Hypervisor) Approvals(ctx context.Context) ([]Approval, error) {
	all := []Approval{}
	err := h.view(ctx, func(tx *store.Tx) error {
		return store.EachJSON(tx.Bucket(approvalsBucket), "", func(_ string, a Approval) error {
			all = append(all, a)
			return nil
		})
	})
	for from := 0; err == nil && from < len(all); {
		from, err = h.addArgs(ctx, all, from)
	}
	all = slices.DeleteFunc(all, func(a Approval) bool { return a.ID == "" })
	for i, a := range all {
		all[i] = h.shown(a)
	}
	return all, err
}

// argsPage is how many bytes of arguments are read at a time: what waits may have tens of megabytes, and all runs of the node wait for a
// transaction.
const argsPage = 1 << 20

// addArgs gives a page of approvals their arguments, and tells where the next begins. One that was forgotten since it was read has no id
// any more.
func (h *Hypervisor) addArgs(ctx context.Context, all []Approval, from int) (next int, err error) {
	next = from
	err = h.view(ctx, func(tx *store.Tx) error {
		for size := 0; next < len(all) && size < argsPage; next++ {
			a := &all[next]
			found, err := addArgs(tx, a)
			if err != nil {
				return err
			}
			if size += len(a.Args); !found && (a.Args == nil || string(a.Args) == "null") { // an older agentrun's have them by themselves
				a.ID = ""
			}
		}
		return nil
	})
	return next, err
}

// Approval returns one.
func (h *Hypervisor) Approval(ctx context.Context, id string) (a Approval, err error) {
	if rings.CheckAgentID(id) != nil {
		return Approval{}, fmt.Errorf("approval %.80q: %w", id, ErrNoApproval)
	}
	err = h.view(ctx, func(tx *store.Tx) error {
		a, err = approval(tx, id)
		return err
	})
	return h.shown(a), err
}

func (h *Hypervisor) shown(a Approval) Approval {
	switch {
	case a.State != ApprovalPending:
	case !h.now().Before(a.Expires):
		a.State = ApprovalExpired
	case h.nobodyWaits(a.Run):
		a.State = ApprovalCanceled
	}
	return a
}

// waitsLock is held by the supervisor of a run that has asked something. The kernel releases it when that is dead: then an
// answer would find nobody, and an operator shouldn't be asked for one.
func waitsLock(run string) string { return "asks-" + run }

// nobodyWaits is false if it can't be told: an approval that is shown too long does no harm, it can't be used.
func (h *Hypervisor) nobodyWaits(run string) bool {
	db, err := h.store()
	if err != nil {
		return false
	}
	lock, err := db.TryLock(waitsLock(run))
	if err != nil {
		return false
	}
	lock.Unlock()
	return true
}

func approval(tx *store.Tx, id string) (a Approval, err error) {
	found, err := store.GetJSON(tx.Bucket(approvalsBucket), id, &a)
	if err == nil && !found {
		err = fmt.Errorf("approval %.80q: %w", id, ErrNoApproval)
	}
	if err == nil {
		_, err = addArgs(tx, &a)
	}
	return a, err
}

// addArgs gives an approval its arguments, if they are kept. One that an older agentrun has kept has them by itself.
func addArgs(tx *store.Tx, a *Approval) (found bool, err error) {
	args, found, err := tx.Bucket(approvalArgsBucket).Get(a.ID)
	if found {
		a.Args = args
	}
	return found, err
}

// keepApproval keeps an approval, apart from its arguments.
func keepApproval(tx *store.Tx, a Approval) error {
	if err := tx.Bucket(approvalArgsBucket).Put(a.ID, a.Args); err != nil {
		return err
	}
	a.Args = nil
	return store.PutJSON(tx.Bucket(approvalsBucket), a.ID, a)
}

// forgetApproval forgets both.
func forgetApproval(tx *store.Tx, id string) error {
	return errors.Join(tx.Bucket(approvalsBucket).Delete(id), tx.Bucket(approvalArgsBucket).Delete(id))
}

// AnswerApproval approves or denies a call that waits. The answer is on disk in the audit before the call hears of it. by is
// the operator, as the audit shall have it.
func (h *Hypervisor) AnswerApproval(ctx context.Context, id string, approve bool, by string) (a Approval, err error) {
	if rings.CheckAgentID(id) != nil {
		return Approval{}, fmt.Errorf("approval %.80q: %w", id, ErrNoApproval)
	}
	err = h.update(ctx, func(tx *store.Tx) error {
		if a, err = approval(tx, id); err != nil {
			return err
		}
		if a = h.shown(a); a.State != ApprovalPending {
			return fmt.Errorf("approval %s is %s: %w", id, a.State, ErrLate)
		}
		a.State = ApprovalDenied
		if approve {
			if a.Agent != "" {
				if err := notHeld(tx, a.Agent, "approve a call of agent "+a.Agent); err != nil {
					return err
				}
			}
			a.State = ApprovalApproved
		}
		a.By, a.Answered = audit.Claimed(by), h.now().UTC()
		return h.putApproval(tx, a)
	})
	if err != nil {
		return Approval{}, err
	}
	return a, nil
}

// putApproval puts a decision on record, on disk, and keeps it.
func (h *Hypervisor) putApproval(tx *store.Tx, a Approval) error {
	digest, err := audit.ParseHash(a.Digest)
	if err != nil {
		return err
	}
	r := audit.Record(&audit.ApprovalDecision{AgentID: a.Agent, ApprovalID: a.ID, Args: digest, By: a.By, Decision: string(a.State), RunID: a.Run, Tool: a.Tool})
	if a.State == ApprovalPending {
		r = &audit.ApprovalRequest{AgentID: a.Agent, ApprovalID: a.ID, Args: digest, ExpiresAt: a.Expires, RunID: a.Run, Tool: a.Tool}
	}
	// A refusal raises nothing: the next sync is soon enough.
	if err := h.record(a.Session, a.State == ApprovalApproved, r); err != nil {
		return err
	}
	return keepApproval(tx, a)
}

// newID names approvals and grants: a word that can be typed, and not guessed.
func newID() string { return strings.ToLower(rand.Text()[:16]) }

// GrantApproval gives a standing grant. ID, Granted and, if it is later than MaxGrant, Expires are set here.
func (h *Hypervisor) GrantApproval(ctx context.Context, g StandingGrant) (StandingGrant, error) {
	now := h.now().UTC()
	g.ID, g.Granted, g.Expires, g.By = newID(), now, g.Expires.UTC(), audit.Claimed(g.By)
	if err := rings.CheckAgentID(g.Agent); err != nil {
		return StandingGrant{}, err
	}
	if _, err := audit.ParseHash(g.Digest); g.Digest != "" && err != nil {
		return StandingGrant{}, fmt.Errorf("%w: arguments: %w", ErrGrant, err)
	}
	switch {
	case rings.CheckActionID(g.Tool) != nil:
		return StandingGrant{}, fmt.Errorf("%w: tool %.80q is no tool's name", ErrGrant, g.Tool)
	case !g.Expires.After(now) || g.Expires.Sub(now) > MaxGrant:
		return StandingGrant{}, fmt.Errorf("%w: it must end within %v", ErrGrant, MaxGrant)
	}
	err := h.update(ctx, func(tx *store.Tx) error {
		if err := notHeld(tx, g.Agent, "give agent "+g.Agent+" a standing grant"); err != nil {
			return err
		}
		if err := h.record("", true, g.record("granted", g.By)); err != nil {
			return err
		}
		return store.PutJSON(tx.Bucket(grantsBucket), g.ID, g)
	})
	if err != nil {
		return StandingGrant{}, err
	}
	return g, nil
}

func (g StandingGrant) record(event, by string) audit.Record {
	return &audit.StandingGrant{AgentID: g.Agent, Args: g.Digest, By: by, Event: event, ExpiresAt: g.Expires, GrantID: g.ID, Tool: g.Tool}
}

// RevokeApproval takes a standing grant back. It takes effect even if the audit can't be written; the error is then returned.
func (h *Hypervisor) RevokeApproval(ctx context.Context, id, by string) (g StandingGrant, err error) {
	if rings.CheckAgentID(id) != nil {
		return StandingGrant{}, fmt.Errorf("grant %.80q: %w", id, ErrNoApproval)
	}
	var unwritten error
	err = h.update(ctx, func(tx *store.Tx) error {
		found, err := store.GetJSON(tx.Bucket(grantsBucket), id, &g)
		if err != nil {
			return err
		}
		if !found {
			return fmt.Errorf("grant %s: %w", id, ErrNoApproval)
		}
		unwritten = h.record("", true, g.record("revoked", audit.Claimed(by)))
		return tx.Bucket(grantsBucket).Delete(id)
	})
	if err != nil {
		return StandingGrant{}, err
	}
	return g, unwritten
}

// StandingGrants returns those that still hold.
func (h *Hypervisor) StandingGrants(ctx context.Context) ([]StandingGrant, error) {
	all := []StandingGrant{}
	err := h.view(ctx, func(tx *store.Tx) error {
		return store.EachJSON(tx.Bucket(grantsBucket), "", func(_ string, g StandingGrant) error {
			if h.now().Before(g.Expires) {
				all = append(all, g)
			}
			return nil
		})
	})
	return all, err
}
