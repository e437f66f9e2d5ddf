// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// fataler is what *testing.T and *rapid.T have in common.
type fataler interface {
	Helper()
	Fatal(args ...any)
}

func activeSession(t fataler, mode ConsistencyMode) *Session {
	t.Helper()
	s, err := NewSession(config(mode), time.Now)
	if err := errors.Join(err, s.Join("a"), s.Join("b"), s.Join("c"), s.Activate()); err != nil {
		t.Fatal(err)
	}
	return s
}

type conflicts struct {
	list []SharedResult
	err  error
}

func (c *conflicts) note(r SharedResult) error {
	if c.err == nil {
		c.list = append(c.list, r)
	}
	return c.err
}

func newShared(t fataler, mode ConsistencyMode, c *conflicts, clock func() time.Time) *Shared {
	t.Helper()
	s, err := NewShared(activeSession(t, mode), SharedOptions{Clock: clock, Conflict: c.note})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func texts(values []SharedValue) []string {
	list := []string{}
	for _, v := range values {
		list = append(list, string(v.Value))
	}
	slices.Sort(list)
	return list
}

func reading(t fataler, s *Shared, key string) SharedRead {
	t.Helper()
	r, err := s.Get("a", key)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestH32Strong(t *testing.T) {
	s := newShared(t, Strong, nil, time.Now)
	first, err := s.Put(SharedWrite{Agent: "a", Key: "k", Value: []byte("1")})
	must(t, err)
	if _, err := s.Put(SharedWrite{Agent: "b", Key: "k", Value: []byte("2")}); !errors.Is(err, ErrVersion) {
		t.Errorf("write that doesn't know of the first: %v", err)
	}
	other, err := s.Put(SharedWrite{Agent: "b", Key: "other", Value: []byte("x")})
	must(t, err)
	second, err := s.Put(SharedWrite{Agent: "b", Key: "k", Value: []byte("2"), Version: first.Version})
	must(t, err)
	if first.Version >= other.Version || other.Version >= second.Version {
		t.Errorf("versions %d, %d, %d don't grow", first.Version, other.Version, second.Version)
	}
	if _, err := s.Put(SharedWrite{Agent: "a", Key: "k", Value: []byte("3"), Version: first.Version}); !errors.Is(err, ErrVersion) {
		t.Errorf("write over a version that is gone: %v", err)
	}
	if r := reading(t, s, "k"); !slices.Equal(texts(r.Values), []string{"2"}) || r.Version != second.Version || r.Values[0].Agent != "b" {
		t.Errorf("got %+v", r)
	}
}

// Counting up with compare-and-set loses nothing, which it would if two writes were let through on one version.
func TestH32StrongConcurrent(t *testing.T) {
	s := newShared(t, Strong, nil, time.Now)
	var won atomic.Int64
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			agent := []string{"a", "b", "c"}[i%3]
			for range 200 {
				r, err := s.Get(agent, "n")
				n := 0
				if len(r.Values) > 0 {
					n, _ = strconv.Atoi(string(r.Values[0].Value))
				}
				if _, err2 := s.Put(SharedWrite{Agent: agent, Key: "n", Value: strconv.AppendInt(nil, int64(n+1), 10), Version: r.Version}); err == nil && err2 == nil {
					won.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if got := texts(reading(t, s, "n").Values); got[0] != strconv.FormatInt(won.Load(), 10) {
		t.Errorf("counted to %v in %d writes", got, won.Load())
	}
}

func TestH32CausalConflict(t *testing.T) {
	var c conflicts
	s := newShared(t, Causal, &c, time.Now)
	put := func(agent, value string, clock VectorClock) SharedResult {
		t.Helper()
		r, err := s.Put(SharedWrite{Agent: agent, Key: "k", Value: []byte(value), Clock: clock})
		must(t, err)
		return r
	}
	put("a", "1", nil)
	seen := reading(t, s, "k").Clock
	if r := put("b", "2", seen); r.Conflict != NoConflict || !slices.Equal(texts(r.Values), []string{"2"}) {
		t.Errorf("a write that knew of the first: %+v, want it replaced", r)
	}
	r := put("c", "3", seen)
	if r.Conflict != Concurrent || !slices.Equal(texts(r.Values), []string{"2", "3"}) {
		t.Errorf("a write that didn't know of the second: %+v, want both", r)
	}
	if len(c.list) != 1 || !slices.Equal(texts(c.list[0].Values), []string{"2", "3"}) || c.list[0].Key != "k" {
		t.Errorf("told of %+v, want both values", c.list)
	}
	if r := put("a", "both", reading(t, s, "k").Clock); r.Conflict != NoConflict || !slices.Equal(texts(r.Values), []string{"both"}) {
		t.Errorf("a write that knew of both: %+v, want it alone", r)
	}
	for name, clock := range map[string]VectorClock{"ahead": {"a": 100}, "stranger": {"z": 1}, "many": {"a": 1, "b": 1, "c": 1, "d": 0, "e": 0}} {
		if _, err := s.Put(SharedWrite{Agent: "b", Key: "k", Value: []byte("x"), Clock: clock}); !errors.Is(err, ErrFuture) {
			t.Errorf("%s clock: %v", name, err)
		}
	}
}

// A write that met no conflict replaced only what its writer had read; one that did left the others standing. So
// nobody's value goes unseen.
func TestH32CausalLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c conflicts
		s := newShared(t, Causal, &c, time.Now)
		knows := map[string]SharedRead{}
		for i := range rapid.IntRange(1, 40).Draw(t, "steps") {
			agent := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "agent")
			if rapid.Bool().Draw(t, "read") {
				knows[agent] = reading(t, s, "k")
				continue
			}
			before := reading(t, s, "k")
			r, err := s.Put(SharedWrite{Agent: agent, Key: "k", Value: []byte(strconv.Itoa(i)), Clock: knows[agent].Clock})
			if errors.Is(err, ErrSharedBounds) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range before.Values {
				stands := slices.Contains(texts(r.Values), string(v.Value))
				known := knows[agent].Clock.Covers(v.Clock)
				if !stands && !known && v.Agent != agent {
					t.Fatalf("%s replaced %q of %s, which it hadn't read", agent, v.Value, v.Agent)
				}
				if stands && known {
					t.Fatalf("%s read %q, and didn't replace it", agent, v.Value)
				}
			}
			if (r.Conflict == Concurrent) != (len(r.Values) > 1) {
				t.Fatalf("conflict %q with %d values", r.Conflict, len(r.Values))
			}
			for i, v := range r.Values {
				for _, w := range r.Values[:i] {
					if v.Clock.Covers(w.Clock) || w.Clock.Covers(v.Clock) {
						t.Fatalf("%v and %v stand side by side", v.Clock, w.Clock)
					}
				}
			}
		}
	})
}

func TestH32EventualLastWriterWins(t *testing.T) {
	var c conflicts
	clock := newHandClock()
	s := newShared(t, Eventual, &c, clock.Now)
	now := clock.Now()
	put := func(agent, value string, ago time.Duration) SharedResult {
		t.Helper()
		r, err := s.Put(SharedWrite{Agent: agent, Key: "k", Value: []byte(value), At: now.Add(-ago)})
		must(t, err)
		return r
	}
	for _, tt := range []struct {
		agent, value string
		ago          time.Duration
		want         ConflictKind
		stands       string
		loser        string
	}{
		{"a", "1", 5, NoConflict, "1", ""},
		{"b", "2", 4, Replaced, "2", "1"},
		{"a", "late", 6, Late, "2", "late"},
		{"a", "tie", 4, Late, "2", "tie"},
		{"c", "tie", 4, Replaced, "tie", "2"},
		{"c", "tie", 4, NoConflict, "tie", ""},
	} {
		c.list = nil
		r := put(tt.agent, tt.value, tt.ago)
		if r.Conflict != tt.want || !slices.Equal(texts(r.Values), []string{tt.stands}) || len(c.list) != len(r.Losers) {
			t.Errorf("%s writes %s: %+v, want %q and %q to stand", tt.agent, tt.value, r, tt.want, tt.stands)
		}
		if tt.loser != "" && (len(c.list) != 1 || !slices.Equal(texts(c.list[0].Losers), []string{tt.loser})) {
			t.Errorf("%s writes %s: told of %+v, want the loser %q", tt.agent, tt.value, c.list, tt.loser)
		}
	}
	if _, err := s.Put(SharedWrite{Agent: "a", Key: "k", At: now.Add(1)}); !errors.Is(err, ErrFuture) {
		t.Errorf("a write of the future: %v", err)
	}
	c.err = errors.New("disk full")
	if _, err := s.Put(SharedWrite{Agent: "c", Key: "k", Value: []byte("4"), At: now}); !errors.Is(err, c.err) {
		t.Errorf("what can't be recorded: %v", err)
	}
	if got := texts(reading(t, s, "k").Values); !slices.Equal(got, []string{"tie"}) {
		t.Errorf("%v stands after a write that couldn't be recorded", got)
	}
}

// Whatever order the same writes arrive in, the same value stands, and every other went to the audit.
func TestH32EventualConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clock := newHandClock()
		writes := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) SharedWrite {
			return SharedWrite{
				Agent: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "agent"), Key: "k",
				Value: []byte(rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "value")),
				At:    clock.Now().Add(-time.Duration(rapid.IntRange(0, 3).Draw(t, "ago"))),
			}
		}), 1, 20, func(w SharedWrite) string { return fmt.Sprint(w.Agent, w.Value, w.At) }).Draw(t, "writes")
		var want []SharedValue
		for range 4 {
			var c conflicts
			s := newShared(t, Eventual, &c, clock.Now)
			for _, w := range rapid.Permutation(writes).Draw(t, "order") {
				if _, err := s.Put(w); err != nil {
					t.Fatal(err)
				}
			}
			got := reading(t, s, "k").Values
			if want == nil {
				want = got
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("other order, other value (-first +this):\n%s", diff)
			}
			if len(c.list) != len(writes)-1 {
				t.Fatalf("%d writes, %d losers", len(writes), len(c.list))
			}
		}
	})
}

func TestH32OnlyParticipantsOfAnActiveSession(t *testing.T) {
	var c conflicts
	s := newShared(t, Eventual, &c, time.Now)
	write := func(agent string) error {
		_, err := s.Put(SharedWrite{Agent: agent, Key: "k", Value: []byte("v")})
		_, err2 := s.Get(agent, "k")
		if (err == nil) != (err2 == nil) {
			t.Errorf("%s: write %v, read %v", agent, err, err2)
		}
		return err
	}
	must(t, write("a"))
	if err := write("stranger"); !errors.Is(err, ErrNotParticipant) {
		t.Errorf("a stranger: %v", err)
	}
	must(t, s.session.Leave("b"))
	if err := write("b"); !errors.Is(err, ErrNotParticipant) {
		t.Errorf("one who left: %v", err)
	}
	must(t, s.session.Terminate())
	if err := write("a"); !errors.Is(err, ErrTransition) {
		t.Errorf("after the end: %v", err)
	}
	for name, s := range map[string]*Shared{"nil": nil, "zero": {}} {
		_, err := s.Put(SharedWrite{Agent: "a", Key: "k"})
		_, err2 := s.Get("a", "k")
		if err == nil || err2 == nil {
			t.Errorf("%s: not refused", name)
		}
	}
	if _, err := NewShared(activeSession(t, Causal), SharedOptions{Clock: time.Now}); err == nil {
		t.Error("conflicts that nobody is told of")
	}
}

func TestH32Bounds(t *testing.T) {
	s := newShared(t, Strong, nil, time.Now)
	put := func(key string, size int) error {
		_, err := s.Put(SharedWrite{Agent: "a", Key: key, Value: make([]byte, size)})
		return err
	}
	for name, err := range map[string]error{
		"no key": put("", 1), "long key": put(strings.Repeat("k", MaxSharedKeyBytes+1), 1), "broken key": put("\xff", 1),
		"value": put("k", MaxSharedValueBytes+1),
	} {
		if !errors.Is(err, ErrSharedBounds) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for i := range MaxSharedBytes / MaxSharedValueBytes {
		must(t, put("big"+strconv.Itoa(i), MaxSharedValueBytes))
	}
	if err := put("more", 1); !errors.Is(err, ErrSharedBounds) {
		t.Errorf("over the total: %v", err)
	}
	// What makes room may be written.
	if _, err := s.Put(SharedWrite{Agent: "a", Key: "big0", Version: reading(t, s, "big0").Version}); err != nil {
		t.Errorf("a smaller value: %v", err)
	}
	for i := range MaxSharedKeys - MaxSharedBytes/MaxSharedValueBytes {
		must(t, put(strconv.Itoa(i), 1))
	}
	if err := put("more", 0); !errors.Is(err, ErrSharedBounds) {
		t.Errorf("too many keys: %v", err)
	}
	if keys := s.Record().Keys; len(keys) != MaxSharedKeys {
		t.Errorf("%d keys", len(keys))
	}
}

func TestH32CausalBounds(t *testing.T) {
	cfg := SessionConfig{SessionID: "s", MaxParticipants: 100, MinParticipants: 1, ConsistencyMode: Causal}
	session, err := NewSession(cfg, time.Now)
	must(t, err, session.Join("a"), session.Activate())
	s, err := NewShared(session, SharedOptions{Clock: time.Now, Conflict: func(SharedResult) error { return nil }})
	must(t, err)
	for i := range MaxSharedSiblings + 1 {
		agent := "x" + strconv.Itoa(i)
		must(t, session.Join(agent))
		if _, err := s.Put(SharedWrite{Agent: agent, Key: "k"}); (err != nil) != (i == MaxSharedSiblings) {
			t.Fatalf("concurrent value %d: %v", i, err)
		}
	}
	_, err = s.Put(SharedWrite{Agent: "a", Key: "k", Clock: reading(t, s, "k").Clock})
	must(t, err)
	// Agents that come, write and go don't make the clock grow without end.
	for i := range 10 * MaxParticipants {
		agent := "y" + strconv.Itoa(i)
		must(t, session.Join(agent))
		_, err = s.Put(SharedWrite{Agent: agent, Key: "k", Clock: reading(t, s, "k").Clock})
		must(t, session.Leave(agent))
		if err != nil {
			break
		}
	}
	if n := len(reading(t, s, "k").Clock); !errors.Is(err, ErrSharedBounds) || n != maxClockAgents {
		t.Errorf("clock of %d agents, %v", n, err)
	}
}

func TestH32ModesDontMix(t *testing.T) {
	for mode, bad := range map[ConsistencyMode][]SharedWrite{
		Strong:   {{Clock: VectorClock{}}, {At: time.Unix(1, 0)}},
		Causal:   {{Version: 1}, {At: time.Unix(1, 0)}},
		Eventual: {{Version: 1}, {Clock: VectorClock{}}},
	} {
		var c conflicts
		s := newShared(t, mode, &c, time.Now)
		for _, w := range bad {
			w.Agent, w.Key = "a", "k"
			if _, err := s.Put(w); !errors.Is(err, ErrMode) {
				t.Errorf("%s: %+v: got %v", mode, w, err)
			}
		}
	}
}

// What is handed out is a copy: nobody changes what stands by changing what they got or gave.
func TestH32NothingIsShared(t *testing.T) {
	var c conflicts
	s := newShared(t, Causal, &c, time.Now)
	given := []byte("good")
	r, err := s.Put(SharedWrite{Agent: "a", Key: "k", Value: given})
	must(t, err)
	got := reading(t, s, "k")
	copy(given, "evil")
	copy(r.Values[0].Value, "evil")
	copy(got.Values[0].Value, "evil")
	for _, clock := range []VectorClock{r.Clock, got.Clock, got.Values[0].Clock} {
		clock["a"] = 99
		maps.DeleteFunc(clock, func(string, uint64) bool { return true })
	}
	if r := reading(t, s, "k"); string(r.Values[0].Value) != "good" || r.Clock["a"] != 1 || r.Values[0].Clock["a"] != 1 {
		t.Errorf("got %+v", r)
	}
}

func BenchmarkShared(b *testing.B) {
	for _, mode := range []ConsistencyMode{Strong, Causal, Eventual} {
		b.Run(string(mode), func(b *testing.B) {
			session, err := NewSession(config(mode), time.Now)
			if err := errors.Join(err, session.Join("a"), session.Join("b"), session.Activate()); err != nil {
				b.Fatal(err)
			}
			s, err := NewShared(session, SharedOptions{Clock: time.Now, Conflict: func(SharedResult) error { return nil }})
			if err != nil {
				b.Fatal(err)
			}
			w := SharedWrite{Agent: "a", Key: "k", Value: make([]byte, 100)}
			b.ReportAllocs()
			for b.Loop() {
				r, err := s.Put(w)
				if err != nil {
					b.Fatal(err)
				}
				w.Version, w.Clock = r.Version, r.Clock
			}
		})
	}
}

func BenchmarkSession(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		s, err := NewSession(SessionConfig{SessionID: "s", MaxParticipants: 10, MinParticipants: 1, ConsistencyMode: Strong}, time.Now)
		if err := errors.Join(err, s.Join("a"), s.Activate(), s.Terminate(), s.Archive()); err != nil {
			b.Fatal(err)
		}
	}
}
