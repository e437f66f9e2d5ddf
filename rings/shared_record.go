// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"errors"
	"fmt"
	"slices"
)

// SharedKey is one key of a session's context, as a store keeps it.
type SharedKey struct {
	Key     string        `json:"key"`
	Values  []SharedValue `json:"values"`
	Version uint64        `json:"version"`        // strong
	Seen    VectorClock   `json:"seen,omitempty"` // causal: all writes to the key there ever were
}

// SharedRecord is a session's whole context, by key.
type SharedRecord struct {
	Version uint64      `json:"version"` // strong: the last one given, of whatever key
	Keys    []SharedKey `json:"keys"`
	Others  SharedSize  `json:"-"` // of keys that are there and not among Keys; they count against the bounds
}

// SharedSize is what a context, or a part of it, holds.
type SharedSize struct {
	Keys  int `json:"keys"`
	Bytes int `json:"bytes"` // of all values
}

// Size returns that of the whole context.
func (s *Shared) Size() SharedSize {
	s.mu.Lock()
	defer s.mu.Unlock()
	return SharedSize{Keys: len(s.entries) + s.others.Keys, Bytes: s.bytes + s.others.Bytes}
}

// Size is what a key counts against the bounds.
func (k SharedKey) Size() SharedSize { return SharedSize{Keys: 1, Bytes: sizeOf(k.Values)} }

// Record returns a copy of the context.
func (s *Shared) Record() SharedRecord {
	rec := SharedRecord{Keys: []SharedKey{}}
	if s == nil || s.session == nil {
		return rec
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	rec.Version = s.version
	for key, e := range s.entries {
		rec.Keys = append(rec.Keys, SharedKey{Key: key, Values: cloneValues(e.values), Version: e.version, Seen: VectorClock(nil).join(e.seen)})
	}
	slices.SortFunc(rec.Keys, func(a, b SharedKey) int {
		if a.Key < b.Key {
			return -1
		}
		return 1
	})
	return rec
}

// RestoreShared returns the context that rec describes, or an error if no writes can have led to it.
func RestoreShared(session *Session, rec SharedRecord, opt SharedOptions) (*Shared, error) {
	s, err := NewShared(session, opt)
	if err != nil {
		return nil, err
	}
	mode := session.Record().Config.ConsistencyMode
	if s.others = rec.Others; s.others.Keys < 0 || s.others.Bytes < 0 {
		return nil, fmt.Errorf("shared state: other keys: %w", ErrSharedBounds)
	}
	s.version = rec.Version
	for _, k := range rec.Keys {
		if err := k.check(mode, rec.Version); err != nil {
			return nil, fmt.Errorf("shared state: key %.64q: %w", k.Key, err)
		}
		if _, twice := s.entries[k.Key]; twice {
			return nil, fmt.Errorf("shared state: key %.64q is there twice", k.Key)
		}
		s.entries[k.Key] = sharedEntry{values: cloneValues(k.Values), version: k.Version, seen: VectorClock(nil).join(k.Seen)}
		s.bytes += sizeOf(k.Values)
	}
	if size := s.Size(); size.Keys > MaxSharedKeys || size.Bytes > MaxSharedBytes {
		return nil, fmt.Errorf("shared state: %w", ErrSharedBounds)
	}
	return s, nil
}

func (k SharedKey) check(mode ConsistencyMode, version uint64) error {
	if len(k.Values) == 0 || len(k.Values) > MaxSharedSiblings || mode != Causal && len(k.Values) > 1 {
		return fmt.Errorf("%d values", len(k.Values))
	}
	if k.Version > version || (mode == Strong) != (k.Version > 0) {
		return fmt.Errorf("version %d of %d", k.Version, version)
	}
	if len(k.Seen) > maxClockAgents || (mode == Causal) != (len(k.Seen) > 0) {
		return errors.New("its clock doesn't fit the session")
	}
	for _, v := range k.Values {
		if err := checkShared(SharedWrite{Key: k.Key, Value: v.Value}); err != nil {
			return err
		}
		if err := CheckAgentID(v.Agent); err != nil {
			return err
		}
		if !k.Seen.Covers(v.Clock) {
			return errors.New("a value's clock knows writes that never were")
		}
	}
	return nil
}
