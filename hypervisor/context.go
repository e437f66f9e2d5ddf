// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"agentrun/audit"
	"agentrun/internal/read"
	"agentrun/rings"
	"agentrun/store"
)

// sharedBucket holds the sessions' contexts, one record for each key: "SESSION/KEY". A session id has no slash.
const sharedBucket = "shared"

// versionBucket holds the last version that a strong session gave.
const versionBucket = "shared-version"

// sharedSizeBucket holds what each session's context has in all, so that a write needs to read no other key: a context of 8 MiB read
// anew at each call of an agent's would hold up the whole node.
const sharedSizeBucket = "shared-size"

// sharedByBucket holds what each agent's values in a session's context come to: "SESSION/AGENT".
const sharedByBucket = "shared-by"

// GetShared reads a key of a session's context as one of its participants (H-32).
func (h *Hypervisor) GetShared(ctx context.Context, session, agentID, key string) (r rings.SharedRead, err error) {
	err = h.view(ctx, func(tx *store.Tx) error {
		if err := notHeld(tx, agentID, "read the context of session "+session); err != nil {
			return err
		}
		s, err := h.shared(tx, session, key)
		if err != nil {
			return err
		}
		r, err = s.Get(agentID, key)
		return err
	})
	if err != nil {
		return rings.SharedRead{}, fmt.Errorf("session %.256s: %w", session, err)
	}
	return r, nil
}

// PutShared writes a key of a session's context, as its consistency mode has it (H-32). What a write loses is on record
// before it is lost.
func (h *Hypervisor) PutShared(ctx context.Context, session string, w rings.SharedWrite) (res rings.SharedResult, err error) {
	err = h.update(ctx, func(tx *store.Tx) error {
		if err := notHeld(tx, w.Agent, "write the context of session "+session); err != nil {
			return err
		}
		s, err := h.shared(tx, session, w.Key)
		if err != nil {
			return err
		}
		was := s.Record()
		if err := h.leavesRoom(tx, session, w, was, s.Size()); err != nil {
			return err
		}
		if res, err = s.Put(w); err != nil {
			return err
		}
		rec := s.Record()
		if err := countBy(tx, session, w.Key, was, rec); err != nil {
			return err
		}
		for _, k := range rec.Keys {
			if k.Key != w.Key {
				continue
			}
			if err := store.PutJSON(tx.Bucket(sharedBucket), session+"/"+k.Key, k); err != nil {
				return err
			}
		}
		if err := store.PutJSON(tx.Bucket(sharedSizeBucket), session, s.Size()); err != nil {
			return err
		}
		return store.PutJSON(tx.Bucket(versionBucket), session, rec.Version)
	})
	if err != nil {
		return rings.SharedResult{}, fmt.Errorf("session %.256s: %w", session, err)
	}
	return res, nil
}

// shared restores a session's context in a transaction, of its keys only the one.
func (h *Hypervisor) shared(tx *store.Tx, session, key string) (*rings.Shared, error) {
	s, err := h.session(tx, session)
	if err != nil {
		return nil, err
	}
	var rec rings.SharedRecord
	if _, err := store.GetJSON(tx.Bucket(versionBucket), session, &rec.Version); err != nil {
		return nil, err
	}
	if rec.Others, err = sharedSize(tx, session); err != nil {
		return nil, err
	}
	var k rings.SharedKey
	found, err := store.GetJSON(tx.Bucket(sharedBucket), session+"/"+key, &k)
	if err != nil {
		return nil, err
	}
	if found {
		if k.Key != key {
			return nil, fmt.Errorf("key %.80q: %w", key, store.ErrDecode)
		}
		rec.Keys = append(rec.Keys, k)
		rec.Others.Keys--
		rec.Others.Bytes -= k.Size().Bytes
	}
	return rings.RestoreShared(s, rec, rings.SharedOptions{Clock: h.now, Conflict: func(r rings.SharedResult) error { return h.conflict(session, r) }})
}

// sharedSize is that of a session's whole context. One that was written before it was counted is counted once.
func sharedSize(tx *store.Tx, session string) (size rings.SharedSize, err error) {
	found, err := store.GetJSON(tx.Bucket(sharedSizeBucket), session, &size)
	if err != nil || found {
		return size, err
	}
	err = store.EachJSON(tx.Bucket(sharedBucket), session+"/", func(_ string, k rings.SharedKey) error {
		size.Keys++
		size.Bytes += k.Size().Bytes
		return nil
	})
	return size, err
}

// leavesRoom refuses a write by which one participant's values would come to more than is free, as far as the session has others: nothing
// is taken out of a context, and who fills all of it ends it for them. What doesn't grow is never refused.
func (h *Hypervisor) leavesRoom(tx *store.Tx, session string, w rings.SharedWrite, was rings.SharedRecord, all rings.SharedSize) error {
	s, err := h.session(tx, session)
	if err != nil || s.Record().Config.MaxParticipants == 1 {
		return err
	}
	own, err := sharedBy(tx, session, w.Agent)
	if err != nil {
		return err
	}
	here := valuesBy(was, w.Key, w.Agent)
	if keys := own.Keys - here.Keys + 1; here.Keys == 0 && keys+all.Keys > rings.MaxSharedKeys {
		return fmt.Errorf("write %.64q: %w: agent %s has written %d of %d keys, and %d are free", w.Key, rings.ErrSharedBounds, w.Agent, own.Keys, all.Keys, rings.MaxSharedKeys-all.Keys)
	}
	if more := len(w.Value) - here.Bytes; more > 0 && own.Bytes+more+all.Bytes > rings.MaxSharedBytes {
		return fmt.Errorf("write %.64q: %w: agent %s has %d of %d bytes, and %d are free", w.Key, rings.ErrSharedBounds, w.Agent, own.Bytes, all.Bytes, rings.MaxSharedBytes-all.Bytes)
	}
	return nil
}

// valuesBy is what an agent's values under a key come to.
func valuesBy(rec rings.SharedRecord, key, agent string) (size rings.SharedSize) {
	for _, k := range rec.Keys {
		for _, v := range k.Values {
			if k.Key == key && v.Agent == agent {
				size.Keys, size.Bytes = 1, size.Bytes+len(v.Value)
			}
		}
	}
	return size
}

// sharedBy is what an agent's values in a session's context come to. Those that were written before it was kept are counted once.
func sharedBy(tx *store.Tx, session, agent string) (size rings.SharedSize, err error) {
	found, err := store.GetJSON(tx.Bucket(sharedByBucket), session+"/"+agent, &size)
	if err != nil || found {
		return size, err
	}
	err = store.EachJSON(tx.Bucket(sharedBucket), session+"/", func(_ string, k rings.SharedKey) error {
		one := valuesBy(rings.SharedRecord{Keys: []rings.SharedKey{k}}, k.Key, agent)
		size.Keys += one.Keys
		size.Bytes += one.Bytes
		return nil
	})
	return size, err
}

// countBy keeps what a write has changed for the agents whose values stood under the key, or stand there now. It comes before the key
// is written.
func countBy(tx *store.Tx, session, key string, was, now rings.SharedRecord) error {
	agents := map[string]bool{}
	for _, k := range slices.Concat(was.Keys, now.Keys) {
		for _, v := range k.Values {
			agents[v.Agent] = true
		}
	}
	for agent := range agents {
		size, err := sharedBy(tx, session, agent)
		if err != nil {
			return err
		}
		before, after := valuesBy(was, key, agent), valuesBy(now, key, agent)
		size.Keys += after.Keys - before.Keys
		size.Bytes += after.Bytes - before.Bytes
		if err := store.PutJSON(tx.Bucket(sharedByBucket), session+"/"+agent, size); err != nil {
			return err
		}
	}
	return nil
}

// sharedPage is how many bytes of a context are read at most for a page of its keys, unless the first has more. All runs of the node wait
// for a transaction, and an agent lists as often as its rate allows.
const sharedPage = 1 << 20

// ListShared gives the keys of a session's context after one of them, of as many as a page has at most, to one of its participants (H-32).
func (h *Hypervisor) ListShared(ctx context.Context, session, agentID, after string, page int) (keys []rings.SharedKey, more bool, err error) {
	err = h.view(ctx, func(tx *store.Tx) error {
		if err := notHeld(tx, agentID, "read the context of session "+session); err != nil {
			return err
		}
		s, err := h.shared(tx, session, "")
		if err != nil {
			return err
		}
		if _, err := s.Get(agentID, ""); err != nil { // whether it may read at all
			return err
		}
		size := 0
		err = tx.Bucket(sharedBucket).EachAfter(session+"/", session+"/"+after, func(key string, raw []byte) error {
			size += len(raw)
			if more = len(keys) == page || len(keys) > 0 && size > sharedPage; more {
				return errPage
			}
			var k rings.SharedKey
			if err := read.Exactly(raw, &k); err != nil {
				return fmt.Errorf("key %.80q: %w: %w", key, store.ErrDecode, err)
			}
			keys = append(keys, k)
			return nil
		})
		if errors.Is(err, errPage) {
			err = nil
		}
		return err
	})
	if err != nil {
		return nil, false, fmt.Errorf("session %.256s: %w", session, err)
	}
	return keys, more, nil
}

// conflict puts what a write loses on record, as digests: the values are the agents' data (H-27). Concurrent values lose
// nothing, both stand.
func (h *Hypervisor) conflict(session string, r rings.SharedResult) error {
	for _, lost := range r.Losers {
		kept := r.Values[0]
		err := h.record(session, false, &audit.Conflict{
			Key: sha256.Sum256([]byte(r.Key)), Kept: sha256.Sum256(kept.Value), KeptBy: kept.Agent,
			Lost: sha256.Sum256(lost.Value), LostBy: lost.Agent, SessionID: session,
		})
		if err != nil {
			return err
		}
	}
	return nil
}
