// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"
	"unicode/utf8"
)

// Bounds of a session's shared state. With them a session holds 8 MiB of values, and no write takes work in
// proportion to anything an agent chose.
const (
	MaxSharedKeys       = 1024
	MaxSharedKeyBytes   = 256
	MaxSharedValueBytes = 64 << 10
	MaxSharedBytes      = 8 << 20 // of all values, siblings included
	MaxSharedSiblings   = 16      // values of one key that stand side by side (causal)

	// A session has at most 100 participants at a time, but agents come and go.
	maxClockAgents = 4 * MaxParticipants
)

var (
	// ErrSharedBounds is what a write beyond a bound gives.
	ErrSharedBounds = errors.New("beyond the bounds of shared state")
	// ErrVersion is what a strong write gives whose version is not the key's (any more): read again.
	ErrVersion = errors.New("the version is another")
	// ErrFuture is what a write gives that claims to be later than now, or to know writes that never were.
	ErrFuture = errors.New("from the future")
	// ErrMode is what a write gives that sets what its session's consistency mode doesn't know.
	ErrMode = errors.New("not part of this consistency mode")
)

// SharedWrite is one write. Which of the last three fields it may set depends on the session's mode: the others must
// be zero, or somebody relies on what isn't done.
type SharedWrite struct {
	Agent string
	Key   string
	Value []byte

	Version uint64      // strong: the version this replaces, 0 for a key that isn't there
	Clock   VectorClock // causal: what SharedRead.Clock said when the agent read; nil if it didn't
	At      time.Time   // eventual: when it was written; zero means now
}

// SharedValue is a value with its origin.
type SharedValue struct {
	Agent string      `json:"agent_id"`
	At    time.Time   `json:"at"`
	Value []byte      `json:"value"`
	Clock VectorClock `json:"clock,omitempty"` // causal
}

func (v SharedValue) clone() SharedValue {
	v.Value, v.Clock = bytes.Clone(v.Value), maps.Clone(v.Clock)
	return v
}

// SharedRead is what stands under a key: one value, or in causal mode several that were written without knowing of each
// other.
type SharedRead struct {
	Values  []SharedValue `json:"values"`
	Version uint64        `json:"version"`         // strong: for the next write
	Clock   VectorClock   `json:"clock,omitempty"` // causal: for a write that resolves what it read
}

// ConflictKind says what a write met.
type ConflictKind string

const (
	NoConflict ConflictKind = ""
	// Replaced: eventual; the write won, and Losers holds the value it replaced.
	Replaced ConflictKind = "replaced"
	// Late: eventual; a later value stands already, and Losers holds the one that was written.
	Late ConflictKind = "late"
	// Concurrent: causal; the write stands beside what it didn't know, and both are in Values.
	Concurrent ConflictKind = "concurrent"
)

// SharedResult says what became of a write.
type SharedResult struct {
	Key      string        `json:"key"`
	Conflict ConflictKind  `json:"conflict"`
	Values   []SharedValue `json:"values"`           // what stands under the key now
	Losers   []SharedValue `json:"losers,omitempty"` // what doesn't stand, of the writes that lost (eventual)
	Version  uint64        `json:"version"`          // strong: the key's new version
	Clock    VectorClock   `json:"clock,omitempty"`  // causal: the new value's clock
}

// SharedOptions configures a Shared.
type SharedOptions struct {
	Clock func() time.Time // required
	// Conflict is told of each result that has a conflict, before it takes effect (H-28), and refuses the write by
	// returning an error: what would be lost without a trace doesn't happen. It must not call back, and it gets the
	// agents' data: what goes into the audit is a digest of it (H-27). Required unless the mode is strong, where there
	// are no conflicts.
	Conflict func(SharedResult) error
}

// Shared is the key/value context of one session (H-32), consistent in the session's mode. Only participants of the
// active session read and write; after that nobody does. It is safe for concurrent use as long as nobody changes its
// session; nil and the zero value refuse.
// Values can't be taken out again: the session's end is theirs.
//
//   - strong: writes happen one after the other, each naming the version it replaces. Versions only grow, over all keys.
//   - causal: each value has a vector clock. A write replaces exactly what it knew of; what it didn't stands beside it.
//   - eventual: the later write wins, by (time, agent, value), whatever the order of arrival.
//
// An agent can only lie about itself: it may claim to have read what it did not, and so replace it unseen, and in
// eventual mode claim an earlier time, and lose. Claiming writes that don't exist or a time to come is refused.
type Shared struct {
	session *Session
	mode    ConsistencyMode // the session's, which never changes
	opt     SharedOptions

	mu      sync.Mutex
	version uint64
	bytes   int
	entries map[string]sharedEntry
	others  SharedSize // of keys that are kept elsewhere
}

type sharedEntry struct {
	values  []SharedValue
	version uint64
	seen    VectorClock // of all writes to the key there ever were
}

// NewShared returns the empty context of session.
func NewShared(session *Session, opt SharedOptions) (*Shared, error) {
	if session == nil || opt.Clock == nil {
		return nil, errors.New("shared state: needs a session and a clock")
	}
	mode := session.Record().Config.ConsistencyMode
	if mode != Strong && opt.Conflict == nil {
		return nil, errors.New("shared state: needs to tell somebody of conflicts")
	}
	return &Shared{session: session, mode: mode, opt: opt, entries: map[string]sharedEntry{}}, nil
}

var errNoShared = errors.New("shared state: not set up")

// Get returns what stands under key; without values if nothing does.
func (s *Shared) Get(agent, key string) (SharedRead, error) {
	if s == nil || s.session == nil {
		return SharedRead{}, errNoShared
	}
	if err := s.session.works(agent); err != nil {
		return SharedRead{}, fmt.Errorf("read %.64q: %w", key, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[key]
	return SharedRead{Values: cloneValues(e.values), Version: e.version, Clock: maps.Clone(e.seen)}, nil
}

func cloneValues(values []SharedValue) []SharedValue {
	c := make([]SharedValue, len(values))
	for i, v := range values {
		c[i] = v.clone()
	}
	return c
}

// Put writes, as the session's mode has it. On an error nothing has changed.
func (s *Shared) Put(w SharedWrite) (SharedResult, error) {
	res, err := s.put(w)
	if err != nil {
		return SharedResult{}, fmt.Errorf("write %.64q: %w", w.Key, err)
	}
	return res, nil
}

func (s *Shared) put(w SharedWrite) (SharedResult, error) {
	if s == nil || s.session == nil {
		return SharedResult{}, errNoShared
	}
	if err := checkShared(w); err != nil {
		return SharedResult{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Under the lock, so that nothing is written after a Terminate that happened before.
	if err := s.session.works(w.Agent); err != nil {
		return SharedResult{}, err
	}
	old, there := s.entries[w.Key]
	if !there && len(s.entries)+s.others.Keys >= MaxSharedKeys {
		return SharedResult{}, fmt.Errorf("%w: %d keys", ErrSharedBounds, MaxSharedKeys)
	}
	next, res, err := s.decide(old, w)
	if err != nil {
		return SharedResult{}, err
	}
	size := s.bytes - sizeOf(old.values) + sizeOf(next.values)
	if size+s.others.Bytes > MaxSharedBytes {
		return SharedResult{}, fmt.Errorf("%w: %d bytes", ErrSharedBounds, MaxSharedBytes)
	}
	res.Key, res.Values, res.Version = w.Key, cloneValues(next.values), next.version
	if res.Conflict != NoConflict {
		if err := s.opt.Conflict(res.clone()); err != nil {
			return SharedResult{}, fmt.Errorf("record the conflict: %w", err)
		}
	}
	s.entries[w.Key], s.bytes, s.version = next, size, max(s.version, next.version)
	return res, nil
}

func checkShared(w SharedWrite) error {
	if w.Key == "" || len(w.Key) > MaxSharedKeyBytes || !utf8.ValidString(w.Key) {
		return fmt.Errorf("%w: a key has 1 to %d bytes of UTF-8", ErrSharedBounds, MaxSharedKeyBytes)
	}
	if len(w.Value) > MaxSharedValueBytes {
		return fmt.Errorf("%w: a value has at most %d bytes", ErrSharedBounds, MaxSharedValueBytes)
	}
	return nil
}

func sizeOf(values []SharedValue) int {
	n := 0
	for _, v := range values {
		n += len(v.Value)
	}
	return n
}

func (r SharedResult) clone() SharedResult {
	r.Values, r.Losers, r.Clock = cloneValues(r.Values), cloneValues(r.Losers), maps.Clone(r.Clock)
	return r
}

// decide returns what old becomes by w. It changes nothing.
func (s *Shared) decide(old sharedEntry, w SharedWrite) (sharedEntry, SharedResult, error) {
	now := s.opt.Clock()
	v := SharedValue{Agent: w.Agent, At: now, Value: bytes.Clone(w.Value)}
	switch s.mode {
	case Strong:
		if w.Clock != nil || !w.At.IsZero() {
			return sharedEntry{}, SharedResult{}, fmt.Errorf("%w: clock or time in a strong session", ErrMode)
		}
		return s.strong(old, w, v)
	case Causal:
		if w.Version != 0 || !w.At.IsZero() {
			return sharedEntry{}, SharedResult{}, fmt.Errorf("%w: version or time in a causal session", ErrMode)
		}
		return causal(old, w, v)
	case Eventual:
		if w.Version != 0 || w.Clock != nil {
			return sharedEntry{}, SharedResult{}, fmt.Errorf("%w: version or clock in an eventual session", ErrMode)
		}
		return eventual(old, w, v)
	default:
		return sharedEntry{}, SharedResult{}, errNoShared
	}
}

func (s *Shared) strong(old sharedEntry, w SharedWrite, v SharedValue) (sharedEntry, SharedResult, error) {
	if w.Version != old.version {
		return sharedEntry{}, SharedResult{}, fmt.Errorf("%w: %d, not %d", ErrVersion, old.version, w.Version)
	}
	return sharedEntry{values: []SharedValue{v}, version: s.version + 1}, SharedResult{}, nil
}

func causal(old sharedEntry, w SharedWrite, v SharedValue) (sharedEntry, SharedResult, error) {
	// Else a writer could put itself ahead of all that others will ever write, and replace it unseen.
	if len(w.Clock) > len(old.seen) || !old.seen.Covers(w.Clock) {
		return sharedEntry{}, SharedResult{}, fmt.Errorf("%w: the clock knows writes that never were", ErrFuture)
	}
	v.Clock = VectorClock(nil).join(w.Clock)
	v.Clock[w.Agent] = old.seen[w.Agent] + 1
	next := sharedEntry{seen: old.seen.join(v.Clock)}
	if len(next.seen) > maxClockAgents {
		return sharedEntry{}, SharedResult{}, fmt.Errorf("%w: %d agents have written it", ErrSharedBounds, maxClockAgents)
	}
	for _, o := range old.values {
		if !v.Clock.Covers(o.Clock) {
			next.values = append(next.values, o)
		}
	}
	res := SharedResult{Clock: maps.Clone(v.Clock)}
	if len(next.values) > 0 {
		res.Conflict = Concurrent
	}
	if len(next.values) >= MaxSharedSiblings {
		return sharedEntry{}, SharedResult{}, fmt.Errorf("%w: %d concurrent values; read and resolve them", ErrSharedBounds, MaxSharedSiblings)
	}
	next.values = append(next.values, v)
	return next, res, nil
}

func eventual(old sharedEntry, w SharedWrite, v SharedValue) (sharedEntry, SharedResult, error) {
	if w.At.After(v.At) {
		return sharedEntry{}, SharedResult{}, fmt.Errorf("%w: at %v", ErrFuture, w.At)
	}
	if !w.At.IsZero() {
		v.At = w.At
	}
	// Without the monotonic part, which would order writes of one process other than what is stored and exported.
	v.At = v.At.Round(0).UTC()
	if len(old.values) == 0 {
		return sharedEntry{values: []SharedValue{v}}, SharedResult{}, nil
	}
	stands := old.values[0]
	switch c := later(v, stands); {
	case c > 0:
		return sharedEntry{values: []SharedValue{v}}, SharedResult{Conflict: Replaced, Losers: []SharedValue{stands.clone()}}, nil
	case c < 0:
		return old, SharedResult{Conflict: Late, Losers: []SharedValue{v}}, nil
	}
	return old, SharedResult{}, nil // the very same write, once more
}

// later orders writes: any two that differ are ordered the same way wherever and whenever they meet, so all who have
// seen the same writes have the same value.
func later(a, b SharedValue) int {
	return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Agent, b.Agent), bytes.Compare(a.Value, b.Value))
}
