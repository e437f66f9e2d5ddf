// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"agentrun/audit"
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
		if res, err = s.Put(w); err != nil {
			return err
		}
		rec := s.Record()
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

// ListShared gives the keys of a session's context after one of them, of as many as a page has, to one of its participants (H-32).
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
		b := tx.Bucket(sharedBucket)
		err = b.EachAfter(session+"/", session+"/"+after, func(key string, _ []byte) error {
			if more = len(keys) == page; more {
				return errPage
			}
			var k rings.SharedKey
			if _, err := store.GetJSON(b, key, &k); err != nil {
				return err
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
