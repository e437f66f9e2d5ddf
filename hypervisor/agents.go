// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"agentrun/audit"
	"agentrun/rings"
	"agentrun/store"
	"agentrun/witness"
)

// The store's buckets. Names last for ever: they are in files.
const (
	agentsBucket     = "agents"
	settingsBucket   = "agent-settings"
	quarantineBucket = "quarantine"
	noncesBucket     = "nonces"
)

// agentRecord is what the store keeps of an agent.
type agentRecord struct {
	Score     float64   `json:"score"`
	Consensus bool      `json:"has_consensus"`
	Updated   time.Time `json:"updated"`
}

// Agent is what the node knows of an agent. An agent it was never told of has no score and is in ring 3 (H-1).
type Agent struct {
	ID          string                 `json:"agent_id"`
	Ring        rings.Ring             `json:"ring"` // from the score, or 3 in quarantine
	Score       *float64               `json:"eff_score"`
	Consensus   bool                   `json:"has_consensus"`
	Updated     time.Time              `json:"updated,omitzero"`
	Quarantined *rings.QuarantineEntry `json:"quarantine"`
	AgentSettings
}

// score is the number the policy works with: an agent without a score has earned nothing.
func (a Agent) score() float64 {
	if a.Score == nil {
		return 0
	}
	return *a.Score
}

func recordedScore(a Agent) audit.Number {
	if a.Score == nil {
		return audit.Number{}
	}
	return audit.NumberOf(*a.Score)
}

// Agent returns what the node knows of id, also if that is nothing.
func (h *Hypervisor) Agent(ctx context.Context, id string) (a Agent, err error) {
	if err := rings.CheckAgentID(id); err != nil {
		return Agent{}, err
	}
	err = h.view(ctx, func(tx *store.Tx) error {
		a, err = agent(tx, id)
		return err
	})
	return a, err
}

// agent reads id in a transaction. On an error there is no agent to act for.
func agent(tx *store.Tx, id string) (Agent, error) {
	a := Agent{ID: id, Ring: rings.Sandbox}
	var r agentRecord
	found, err := store.GetJSON(tx.Bucket(agentsBucket), id, &r)
	if err != nil {
		return Agent{}, err
	}
	if found {
		if a.Ring, err = rings.Assign(r.Score, r.Consensus); err != nil {
			return Agent{}, fmt.Errorf("agent %s: %w", id, err)
		}
		a.Score, a.Consensus, a.Updated = &r.Score, r.Consensus, r.Updated
	}
	if _, err := store.GetJSON(tx.Bucket(settingsBucket), id, &a.AgentSettings); err != nil {
		return Agent{}, err
	}
	var q rings.QuarantineEntry
	held, err := store.GetJSON(tx.Bucket(quarantineBucket), id, &q)
	if err != nil {
		return Agent{}, err
	}
	if held {
		a.Ring, a.Quarantined = rings.Sandbox, &q
	}
	return a, nil
}

// Agents returns every agent that has a score or settings or is in quarantine, by id.
func (h *Hypervisor) Agents(ctx context.Context) ([]Agent, error) {
	agents := []Agent{}
	err := h.view(ctx, func(tx *store.Tx) error {
		ids, err := keysOf(tx, agentsBucket, settingsBucket, quarantineBucket)
		if err != nil {
			return err
		}
		for _, id := range ids {
			a, err := agent(tx, id)
			if err != nil {
				return err
			}
			agents = append(agents, a)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return agents, nil
}

// keysOf are the keys of some buckets, each once, in order.
func keysOf(tx *store.Tx, buckets ...string) (keys []string, err error) {
	for _, b := range buckets {
		if err := tx.Bucket(b).Each("", func(key string, _ []byte) error { keys = append(keys, key); return nil }); err != nil {
			return nil, err
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

// SetScore gives an agent a new effective score (H-2) and returns it with the ring it had before. A ring that rises is
// on disk in the audit first; one that falls takes effect even if the audit can't be written, and the error is returned. by is the operator,
// as the audit shall have it.
func (h *Hypervisor) SetScore(ctx context.Context, id string, score float64, consensus bool, by string) (now Agent, before rings.Ring, err error) {
	if err := rings.CheckAgentID(id); err != nil {
		return Agent{}, rings.NoRing, err
	}
	if score == 0 {
		score = 0 // not -0, which JSON would keep
	}
	ring, err := rings.Assign(score, consensus)
	if err != nil {
		return Agent{}, rings.NoRing, err
	}
	var unwritten error
	err = h.update(ctx, func(tx *store.Tx) error {
		old, err := agent(tx, id)
		if err != nil {
			return err
		}
		// The ring that the score gives, not the one a quarantine holds the agent in: that must not hide a rise.
		earned, err := rings.Assign(old.score(), old.Consensus)
		if err != nil {
			return err
		}
		before = earned
		demoted := rings.ShouldDemote(earned, score, consensus)
		rises := ring.MorePrivilegedThan(earned)
		err = h.record("", rises, &audit.Score{AgentID: id, By: claimedBy(by), HasConsensus: consensus, NewRing: audit.RingOf(ring.Value()), NewScore: audit.NumberOf(score),
			OldRing: audit.RingOf(earned.Value()), OldScore: recordedScore(old), Source: "operator"})
		if err != nil && !demoted {
			return err
		}
		unwritten = err
		if err := store.PutJSON(tx.Bucket(agentsBucket), id, agentRecord{Score: score, Consensus: consensus, Updated: h.now().UTC()}); err != nil {
			return err
		}
		now, err = agent(tx, id)
		return err
	})
	if err != nil {
		return Agent{}, rings.NoRing, fmt.Errorf("score of agent %s: %w", id, err)
	}
	return now, before, unwritten
}

const causeOperator = "operator"

// Cause is why an agent is put into quarantine, as the audit has it; the reason in words stays in the state.
type Cause struct {
	Code   string // operator, ring_breach
	Reason string // for people; an operator's is on record too
	Run    string // id of the run it was seen in; may be empty
	By     string // the operator, as the audit shall have it; empty: nobody
}

// Quarantine holds an agent (H-31): no run is admitted and no elevation granted until an operator releases it. It takes
// effect even if the audit can't be written; the error is then returned. For an agent held already the first entry stays.
func (h *Hypervisor) Quarantine(ctx context.Context, id string, cause Cause) (rings.QuarantineEntry, error) {
	var entry rings.QuarantineEntry
	var unwritten error
	err := h.update(ctx, func(tx *store.Tx) error {
		held, err := heldBy(tx, id, &entry)
		if err != nil || held {
			return err
		}
		was, err := agent(tx, id)
		if err != nil {
			return err
		}
		if entry, err = rings.Hold(id, cause.Reason, cause.Code, h.now()); err != nil {
			return err
		}
		r := &audit.Quarantine{AgentID: id, By: claimedBy(cause.By), Cause: cause.Code, OldRing: audit.RingOf(was.Ring.Value()), RunID: cause.Run}
		if cause.Code == causeOperator {
			r.Note = noteOf(cause.Reason)
		}
		unwritten = h.record("", true, r)
		return store.PutJSON(tx.Bucket(quarantineBucket), id, entry)
	})
	if err != nil {
		return rings.QuarantineEntry{}, fmt.Errorf("quarantine of agent %s: %w", id, err)
	}
	return entry, unwritten
}

// heldBy reads what holds an agent, and tells whether anything does. One bad entry is an error: it sets nobody free.
func heldBy(tx *store.Tx, id string, e *rings.QuarantineEntry) (bool, error) {
	if err := rings.CheckAgentID(id); err != nil {
		return false, err
	}
	held, err := store.GetJSON(tx.Bucket(quarantineBucket), id, e)
	if err != nil || !held {
		return false, err
	}
	if err := e.Check(); err != nil {
		return false, fmt.Errorf("quarantine entry: %w", err)
	}
	return true, nil
}

// Release lets an agent out of quarantine by an attestation that one of the operators' keys signed (H-12, H-31). It is
// spent with the release; one that is refused is on record too.
// The note is why, in the operator's words; it may be empty. by is who presents it.
func (h *Hypervisor) Release(ctx context.Context, id, attestation string, operators witness.Keys, note, by string) (was rings.QuarantineEntry, operator string, err error) {
	fail := func(err error) (rings.QuarantineEntry, string, error) {
		return rings.QuarantineEntry{}, "", fmt.Errorf("release of agent %.256q: %w", id, err)
	}
	presented := audit.Hash(sha256.Sum256([]byte(attestation)))
	err = h.update(ctx, func(tx *store.Tx) error {
		held, err := heldBy(tx, id, &was)
		if err != nil {
			return err
		}
		if !held {
			return rings.ErrNotQuarantined // before the attestation is looked at: it stays good
		}
		want := witness.Want{Action: rings.ActionRelease, Subject: "agent:" + id}
		a, err := operators.Verify(attestation, want, h.now(), nonces{tx, h.now()})
		said := &audit.Operator{
			Accepted: err == nil, Action: want.Action, KeyID: a.Key, ExpiresAt: a.Expires, Reason: "accepted",
			Statement: presented, Subject: want.Subject,
		}
		if err != nil {
			said.Reason = refusedCode(err)
			return errors.Join(err, h.record("", false, said))
		}
		said.Nonce = a.Nonce.String()
		operator = a.Key
		if err := tx.Bucket(quarantineBucket).Delete(id); err != nil {
			return err
		}
		now, err := agent(tx, id)
		if err != nil {
			return err
		}
		if err := h.record("", false, said); err != nil {
			return err
		}
		return h.record("", true, &audit.Release{AgentID: id, By: claimedBy(by), KeyID: a.Key, Note: noteOf(note), Ring: audit.RingOf(now.Ring.Value()), Statement: presented})
	})
	if err != nil {
		return fail(err)
	}
	return was, operator, h.forgive(ctx, id)
}

// forgive empties the windows of what an agent was refused (H-24): else its next refused call would hold it again.
func (h *Hypervisor) forgive(ctx context.Context, id string) error {
	all, err := h.Sessions(ctx)
	if err != nil {
		return err
	}
	for _, s := range append(all, rings.SessionRecord{}) { // the last is for its runs in no session
		if s.Config.SessionID != "" && !s.Has(id) {
			continue
		}
		a, err := h.account(id, s.Config.SessionID)
		if err != nil {
			return err
		}
		err = a.Forgive()
		a.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// refusedCode is the audit's word for why an attestation was refused.
func refusedCode(err error) string {
	for _, e := range []struct {
		err  error
		code string
	}{
		{witness.ErrMalformed, "malformed"}, {witness.ErrUnknownKey, "unknown_key"}, {witness.ErrSignature, "bad_signature"},
		{witness.ErrAction, "wrong_action"}, {witness.ErrSubject, "wrong_subject"}, {witness.ErrExpired, "expired"},
		{witness.ErrTooFar, "expiry_too_far"}, {witness.ErrNonceUsed, "nonce_used"},
	} {
		if errors.Is(err, e.err) {
			return e.code
		}
	}
	return "not_checked"
}
