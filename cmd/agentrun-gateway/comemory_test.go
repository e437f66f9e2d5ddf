// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/toolproxy/builtin"
	"agentrun/toolproxy/link"
)

// keeper is a supervisor's memory, with pages of two items.
type keeper struct {
	link.Supervisor // what is not overridden panics: nobody may ask it

	items   map[string]link.MemoryItem
	version uint64
	refuse  string
	broken  error
	lists   int
	answer  *link.MemoryAnswer // whatever is asked
}

func (k *keeper) Memory(_ context.Context, q link.MemoryRequest) (link.MemoryAnswer, error) {
	if k.answer != nil || k.broken != nil || k.refuse != "" {
		a := link.MemoryAnswer{Refused: k.refuse}
		if k.answer != nil {
			a = *k.answer
		}
		return a, k.broken
	}
	if err := q.Check(); err != nil {
		return link.MemoryAnswer{}, err
	}
	a := link.MemoryAnswer{Allowed: true}
	switch q.Op {
	case link.MemoryList:
		k.lists++
		a.Version = k.version
		if q.After == "" && q.Version == k.version && q.Version != 0 {
			a.Same = true
			return a, nil
		}
		for _, id := range slices.Sorted(maps.Keys(k.items)) {
			if id <= q.After {
				continue
			}
			if a.More = len(a.Items) == 2; a.More {
				break
			}
			a.Items = append(a.Items, k.items[id])
		}
	case link.MemoryPut:
		k.version++
		i := q.Item
		if i.ID == "" {
			i.ID = fmt.Sprintf("m%d", k.version)
		}
		i.Author, i.At = "a", time.Unix(int64(k.version), 0).UTC()
		k.items[i.ID] = i
		a.ID, a.At, a.Version = i.ID, i.At, k.version
	case link.MemoryDelete:
		k.version++
		delete(k.items, q.Item.ID)
		a.Version = k.version
	}
	return a, nil
}

var ofA = link.Caller{Run: "r", Agent: "a"}

// What the gateway shows is what the supervisor has, whoever changed it, and no more is asked than is new.
func TestM14TheGatewayShowsWhatIsKept(t *testing.T) {
	k := &keeper{items: map[string]link.MemoryItem{}}
	one, two := memoryOf(ofA, k), memoryOf(ofA, k)
	scope, ctx := builtin.ScopeOf(ofA), t.Context()
	same := func(s builtin.MemoryStore) {
		t.Helper()
		got, err := s.List(ctx, scope)
		if err != nil {
			t.Fatal(err)
		}
		var want []builtin.Item
		for _, id := range slices.Sorted(maps.Keys(k.items)) {
			i, err := itemOf(k.items[id])
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, i)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("-kept +shown\n%s", d)
		}
	}
	same(one)
	for i := range 5 {
		s := []builtin.MemoryStore{one, two}[i%2]
		if _, err := s.Put(ctx, scope, builtin.Item{Kind: link.MemoryEmbedding, Embedding: []float32{float32(i), -1.5}, Tags: []string{"t"}}); err != nil {
			t.Fatal(err)
		}
		same(one)
		same(two)
	}
	lists := k.lists
	if _, err := one.Put(ctx, scope, builtin.Item{ID: "m1", Kind: link.MemorySummary, Summary: "s"}); err != nil {
		t.Fatal(err)
	}
	same(one)
	if err := one.Delete(ctx, scope, "m2", "a"); err != nil {
		t.Fatal(err)
	}
	same(one)
	if _, err := one.Put(ctx, scope, builtin.Item{ID: "a", Kind: link.MemorySummary, Summary: "first"}); err != nil {
		t.Fatal(err)
	}
	same(one)
	if n := k.lists - lists; n != 3 {
		t.Errorf("asked %d times, want once for each list: the changes were its own", n)
	}
	same(two)
}

func TestM14WhoHasAMemoryThatLivesOn(t *testing.T) {
	k := &keeper{items: map[string]link.MemoryItem{}}
	if s := memoryOf(link.Caller{Run: "r"}, k); s != nil {
		t.Errorf("a run without agent: got %T", s)
	}
	if s := memoryOf(ofA, k.Supervisor); s != nil {
		t.Errorf("a supervisor without memory: got %T", s)
	}
	s := memoryOf(ofA, k)
	for _, other := range []builtin.Scope{{}, {Kind: "agent", ID: "b"}, {Kind: "session", ID: "a"}} {
		_, perr := s.Put(t.Context(), other, builtin.Item{Kind: link.MemorySummary, Summary: "s"})
		_, lerr := s.List(t.Context(), other)
		if derr := s.Delete(t.Context(), other, "x", "a"); perr == nil || lerr == nil || derr == nil {
			t.Errorf("scope %v: got %v, %v, %v, want errors", other, perr, lerr, derr)
		}
	}
	if k.version != 0 || k.lists != 0 {
		t.Errorf("the supervisor was asked for other scopes")
	}
}

func TestM14RefusalsOfTheSupervisor(t *testing.T) {
	scope, ctx := builtin.ScopeOf(ofA), t.Context()
	for refused, want := range map[string]error{
		link.MemoryFull: builtin.ErrFull, link.MemoryMissing: builtin.ErrNoItem, link.MemoryOthers: builtin.ErrOthers, "?": errAnswer,
	} {
		s := memoryOf(ofA, &keeper{refuse: refused})
		_, perr := s.Put(ctx, scope, builtin.Item{Kind: link.MemorySummary, Summary: "s"})
		_, lerr := s.List(ctx, scope)
		derr := s.Delete(ctx, scope, "x", "a")
		for _, err := range []error{perr, lerr, derr} {
			if !errors.Is(err, want) {
				t.Errorf("%s: got %v, want %v", refused, err, want)
			}
		}
	}
	summary := link.MemoryItem{ID: "a", Kind: link.MemorySummary, Summary: "s"}
	for name, a := range map[string]link.MemoryAnswer{
		"zero":           {},
		"endless":        {Allowed: true, More: true},
		"same as none":   {Allowed: true, Same: true, More: true},
		"twice":          {Allowed: true, Items: []link.MemoryItem{summary, summary}},
		"without id":     {Allowed: true, Items: []link.MemoryItem{{Kind: link.MemorySummary, Summary: "s"}}},
		"message":        {Allowed: true, Items: []link.MemoryItem{{ID: "a", Kind: "message", Summary: "s"}}},
		"page for ever":  {Allowed: true, More: true, Items: []link.MemoryItem{summary}},
		"broken numbers": {Allowed: true, Items: []link.MemoryItem{{ID: "a", Kind: link.MemoryEmbedding, Embedding: []byte{1}}}},
	} {
		if items, err := memoryOf(ofA, &keeper{answer: &a}).List(ctx, scope); err == nil {
			t.Errorf("%s: got %v, want an error", name, items)
		}
	}
	if id, err := memoryOf(ofA, &keeper{answer: &link.MemoryAnswer{Allowed: true, ID: "other"}}).Put(ctx, scope, builtin.Item{ID: "x", Kind: link.MemorySummary, Summary: "s"}); err == nil {
		t.Errorf("put under another id: got %q", id)
	}
}

func TestM14AWaitForTheMemoryEnds(t *testing.T) {
	s, ok := memoryOf(ofA, &keeper{}).(*coMemory)
	if !ok {
		t.Fatal("no store")
	}
	s.turn <- struct{}{} // somebody else asks, for ever
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.List(ctx, builtin.ScopeOf(ofA)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}
