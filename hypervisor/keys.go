// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"agentrun/audit"
	"agentrun/internal/read"
	"agentrun/rings"
	"agentrun/store"
	"agentrun/telemetry"
	"agentrun/toolproxy/link"
)

// Bounds of an agent's key. MaxKeyTTL is how far ahead its end may lie: a key that nobody has looked at for longer should be issued
// anew. MaxKeyText is what the longest key takes as text, with room.
const (
	DefaultKeyTTL = 24 * time.Hour
	MaxKeyTTL     = 90 * 24 * time.Hour
	maxMay        = 64
	MaxKeyText    = 16 << 10
)

const (
	keysBucket   = "agent-keys"
	agentKeyName = "agent" // of what signs, in the folder of keys: not the key of checkpoints
	keyPrefix    = "agentrun-key-v1."
	// keepKeys is how long an expired key stays listed. It counts for nothing: a key that the state doesn't have is refused.
	keepKeys = 7 * 24 * time.Hour
)

var (
	// ErrKey is a key that can't be issued as it was asked for.
	ErrKey = errors.New("agent key")
	// ErrNoKey is an id that no key of the node has.
	ErrNoKey = errors.New("no such agent key")
)

// AgentKey is what an agent's runs are started with: whose it is, what it may be used for, and for how long (M-9, M-21). It is signed by
// the node that issued it, whose state also has it: a key that the state doesn't know, or knows as revoked, is none.
type AgentKey struct {
	ID      string    `json:"key_id"`
	Agent   string    `json:"agent_id"`
	May     []string  `json:"may"` // capabilities by their full names, sorted: agent.run.invoke, tool.math.invoke
	Issued  time.Time `json:"issued"`
	Expires time.Time `json:"expires"`
	Revoked time.Time `json:"revoked,omitzero"` // in the state only
}

// Token is a key as its holder presents it: a secret, which refuses to print. The zero value is none.
type Token struct{ telemetry.Plaintext[string] }

// NewToken takes text that somebody presents, with the line end of its file.
func NewToken(text string) Token { return Token{telemetry.NewPlaintext(strings.TrimSpace(text))} }

// Given tells whether there is one, good or not.
func (t Token) Given() bool { return t.Reveal() != "" }

// Issued is a key with its text, for whoever has issued it.
type Issued struct {
	AgentKey
	Text string `json:"key"`
}

// With shows a key's text, once.
func (k AgentKey) With(t Token) Issued { return Issued{k, t.Reveal()} }

// IssueKey makes a key for an agent. May are capabilities, the last word of which may be left out: tool.math. The error is ErrKey if
// there can't be such a key. That it was issued, and by whom, is on disk in the audit before anybody has it.
func (h *Hypervisor) IssueKey(ctx context.Context, by, agent string, may []string, ttl time.Duration) (AgentKey, Token, error) {
	fail := func(err error) (AgentKey, Token, error) {
		return AgentKey{}, Token{}, fmt.Errorf("issue key: %w", err)
	}
	if err := rings.CheckAgentID(agent); err != nil {
		return fail(fmt.Errorf("%w: --agent %.80q: %w", ErrKey, agent, err))
	}
	if ttl < time.Second || ttl > MaxKeyTTL {
		return fail(fmt.Errorf("%w: --ttl %v: want 1s to %v", ErrKey, ttl, MaxKeyTTL))
	}
	may, err := capabilities(may)
	if err != nil {
		return fail(err)
	}
	now := h.now().UTC()
	k := AgentKey{ID: newID(), Agent: agent, May: may, Issued: now, Expires: now.Add(ttl)}
	signer, _, err := audit.LoadOrCreateNamedKey(filepath.Join(h.opt.StateDir, keysDir), agentKeyName)
	if err != nil {
		return fail(err)
	}
	token, err := sealed(signer, k)
	if err != nil {
		return fail(err)
	}
	err = h.update(ctx, func(tx *store.Tx) error {
		b := tx.Bucket(keysBucket)
		err := store.EachJSON(b, "", func(id string, old AgentKey) error {
			if now.Sub(old.Expires) < keepKeys {
				return nil
			}
			return b.Delete(id)
		})
		if err != nil {
			return err
		}
		if err := h.record("", true, &audit.AgentKey{AgentID: agent, By: claimedBy(by), Event: "issued", ExpiresAt: k.Expires, KeyID: k.ID, May: may}); err != nil {
			return err
		}
		return store.PutJSON(b, k.ID, k)
	})
	if err != nil {
		return fail(err)
	}
	return k, token, nil
}

// capabilities are those of agents' keys: to run, and to call tools by their exact names, nothing else (M-21).
func capabilities(asked []string) ([]string, error) {
	var may []string
	for _, name := range asked {
		if !strings.HasSuffix(name, ".invoke") {
			name += ".invoke"
		}
		tool, ok := toolOf(name)
		if name != runAction && (!ok || rings.CheckAgentID(tool) != nil || strings.Contains(tool, ":")) {
			return nil, fmt.Errorf("%w: --may %.80q: want %s and tool.NAME, by exact names", ErrKey, name, runAction)
		}
		may = append(may, name)
	}
	slices.Sort(may)
	may = slices.Compact(may)
	if len(may) == 0 || len(may) > maxMay {
		return nil, fmt.Errorf("%w: --may has %d capabilities: want 1 to %d", ErrKey, len(may), maxMay)
	}
	return may, nil
}

// toolOf is the name in tool.NAME.invoke.
func toolOf(action string) (string, bool) {
	name, ok := strings.CutPrefix(action, "tool.")
	if !ok {
		return "", false
	}
	return strings.CutSuffix(name, ".invoke")
}

// sealed is the text of a key: a note as the node's checkpoints are, signed by a key of its own, as one word that needs no quoting.
func sealed(by *audit.SigningKey, k AgentKey) (Token, error) {
	text, err := json.Marshal(k)
	if err != nil {
		return Token{}, err
	}
	signed, err := by.Sign(string(text) + "\n")
	if err != nil {
		return Token{}, err
	}
	return NewToken(keyPrefix + base64.RawURLEncoding.EncodeToString(signed)), nil
}

var (
	errForm   = errors.New("it is no key of this version of agentrun")
	errSigned = errors.New("this node hasn't signed it")
)

// opened believes nothing of a token before its signature.
func (h *Hypervisor) opened(t Token) (k AgentKey, err error) {
	presented := t.Reveal()
	word, ok := strings.CutPrefix(presented, keyPrefix)
	signed, err := base64.RawURLEncoding.Strict().DecodeString(word)
	if !ok || err != nil || len(presented) > MaxKeyText {
		return AgentKey{}, errForm
	}
	signer, err := audit.LoadNamedKey(filepath.Join(h.opt.StateDir, keysDir), agentKeyName)
	if errors.Is(err, fs.ErrNotExist) {
		return AgentKey{}, errSigned
	}
	if err != nil {
		return AgentKey{}, err
	}
	text, err := signer.Open(signed)
	if err != nil {
		return AgentKey{}, errSigned
	}
	if err := read.Exactly([]byte(text), &k); err != nil {
		return AgentKey{}, errForm
	}
	return k, nil
}

// UseKey returns the key that a token is, where a run of agent may begin with it now, and puts that on record. A *DeniedError says why
// not, which is on record too.
func (h *Hypervisor) UseKey(ctx context.Context, t Token, r Request, ring rings.Ring) (AgentKey, error) {
	k, err := h.opened(t)
	if err == nil {
		err = h.good(ctx, k, r.Agent)
	}
	if err != nil {
		return AgentKey{}, h.RefuseKey(r, ring, err.Error())
	}
	err = h.record(r.Session, false, &audit.AgentKey{AgentID: k.Agent, Event: "used", ExpiresAt: k.Expires, KeyID: k.ID, RunID: r.Run})
	return k, err
}

// RefuseKey denies a run for its key, or for want of one, and puts that on record.
func (h *Hypervisor) RefuseKey(r Request, ring rings.Ring, why string) error {
	return h.Refuse(r, ring, &DeniedError{
		What:     "run " + cmp.Or(r.Agent, "without agent") + " in " + ring.String(),
		Decision: rings.Decision{Code: link.CodeKeyInvalid, Rule: "M-9", Reason: why},
		Hint:     "agentrun key issue --agent ID --may agent.run.invoke makes one; --key-file or AGENTRUN_KEY presents it",
	})
}

// good tells what is wrong with a key that is signed.
func (h *Hypervisor) good(ctx context.Context, k AgentKey, agent string) error {
	if k.Agent != agent {
		return fmt.Errorf("key %s is agent %s's: want --agent %s", k.ID, k.Agent, k.Agent)
	}
	switch now := h.now(); {
	case !now.Before(k.Expires):
		return fmt.Errorf("key %s has expired at %s", k.ID, k.Expires.Format(time.RFC3339))
	case now.Before(k.Issued): // the clock has been set back, and how much of the key's time has passed isn't known any more
		return fmt.Errorf("key %s was issued at %s, and the clock shows a time before that", k.ID, k.Issued.Format(time.RFC3339))
	}
	return h.view(ctx, func(tx *store.Tx) error { return stands(tx, k.ID) })
}

// stands tells why the state doesn't have a key, or has it as one that was revoked.
func stands(tx *store.Tx, id string) error {
	var kept AgentKey
	found, err := store.GetJSON(tx.Bucket(keysBucket), id, &kept)
	switch {
	case err != nil:
		return err
	case !found:
		return fmt.Errorf("key %s isn't in this node's state", id)
	case !kept.Revoked.IsZero():
		return fmt.Errorf("key %s was revoked at %s", id, kept.Revoked.Format(time.RFC3339))
	}
	return nil
}

// Keys returns the keys that were issued, by agent and time, also those that expired within a week.
func (h *Hypervisor) Keys(ctx context.Context) ([]AgentKey, error) {
	keys := []AgentKey{}
	err := h.view(ctx, func(tx *store.Tx) error {
		return store.EachJSON(tx.Bucket(keysBucket), "", func(_ string, k AgentKey) error { keys = append(keys, k); return nil })
	})
	slices.SortFunc(keys, func(a, b AgentKey) int {
		return cmp.Or(strings.Compare(a.Agent, b.Agent), a.Issued.Compare(b.Issued), strings.Compare(a.ID, b.ID))
	})
	return keys, err
}

// RevokeKey takes a key back. It takes effect even if the audit can't be written, and the error is then returned; live runs of the key
// are in ring 3 within 100 ms, and each of their calls is refused (see live). Revoking it once more changes nothing.
func (h *Hypervisor) RevokeKey(ctx context.Context, id, by string) (k AgentKey, err error) {
	var unwritten error
	err = h.update(ctx, func(tx *store.Tx) error {
		b := tx.Bucket(keysBucket)
		found, err := store.GetJSON(b, id, &k)
		if err != nil || !k.Revoked.IsZero() {
			return err
		}
		if !found {
			return fmt.Errorf("%w: %.80q", ErrNoKey, id)
		}
		k.Revoked = h.now().UTC()
		unwritten = h.record("", true, &audit.AgentKey{AgentID: k.Agent, By: claimedBy(by), Event: "revoked", ExpiresAt: k.Expires, KeyID: k.ID})
		return store.PutJSON(b, id, k)
	})
	if err != nil {
		return AgentKey{}, fmt.Errorf("revoke key: %w", err)
	}
	return k, unwritten
}

// State is the word for what a key is worth now: valid, expired or revoked.
func (k AgentKey) State(now time.Time) string {
	switch {
	case !k.Revoked.IsZero():
		return "revoked"
	case !now.Before(k.Expires):
		return "expired"
	}
	return "valid"
}

func (k *AgentKey) toLink() *link.Key {
	if k == nil {
		return nil
	}
	return &link.Key{ID: k.ID, May: k.May, Expires: k.Expires}
}
