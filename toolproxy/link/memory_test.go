// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/rings"
)

// keeper is a supervisor that keeps what its function says.
type keeper struct {
	*world
	do func(context.Context, MemoryRequest) (MemoryAnswer, error)
}

func (k keeper) Memory(ctx context.Context, q MemoryRequest) (MemoryAnswer, error) {
	return k.do(ctx, q)
}

func linked(t *testing.T, s Supervisor) *Client {
	t.Helper()
	ours, theirs, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- (&Server{Start: Start{Ring: rings.Sandbox}, Supervisor: s}).Serve(ctx, ours) }()
	l, err := Connect(theirs)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Hello(nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); cancel(); <-done })
	return l
}

func TestM14MemoryOverTheLink(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	asked := make(chan MemoryRequest, 1)
	answer := MemoryAnswer{Allowed: true, ID: "m1", At: at, Version: 7, More: true, Items: []MemoryItem{{ID: "a", Kind: MemorySummary, Summary: "s", Author: "x", At: at}}}
	l := linked(t, keeper{newWorld(), func(_ context.Context, q MemoryRequest) (MemoryAnswer, error) {
		asked <- q
		return answer, nil
	}})
	q := MemoryRequest{Op: MemoryPut, Item: MemoryItem{Kind: MemoryEmbedding, Embedding: PackEmbedding([]float32{1, -0.5}), Tags: []string{"é"}}}
	a, err := l.Memory(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(q, <-asked); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(answer, a); d != "" {
		t.Error(d)
	}
}

// The largest of what a page may hold fits a frame: the link would end with one that doesn't.
func TestM14LargestItemsFitAFrame(t *testing.T) {
	big := MemoryItem{ID: strings.Repeat("i", MaxMemoryID), Kind: MemorySummary, Summary: strings.Repeat("\x00", MaxMemorySummary), Author: strings.Repeat("a", 256)}
	for range MaxMemoryTags {
		big.Tags = append(big.Tags, strings.Repeat("<", MaxMemoryTag))
	}
	if err := big.Check(); err != nil {
		t.Fatal(err)
	}
	wide := big
	wide.Kind, wide.Summary, wide.Embedding = MemoryEmbedding, "", PackEmbedding(make([]float32, MaxMemoryEmbedding))
	l := linked(t, keeper{newWorld(), func(_ context.Context, q MemoryRequest) (MemoryAnswer, error) {
		return MemoryAnswer{Allowed: true, Items: []MemoryItem{q.Item, q.Item, q.Item}}, nil
	}})
	for _, item := range []MemoryItem{big, wide} {
		if a, err := l.Memory(t.Context(), MemoryRequest{Op: MemoryPut, Item: item}); err != nil || len(a.Items) != 3 {
			t.Errorf("%s: %d items, %v, want 3", item.Kind, len(a.Items), err)
		}
	}
}

func TestM14NothingIsKeptWithoutAKeeper(t *testing.T) {
	l := linked(t, newWorld())
	if a, err := l.Memory(t.Context(), MemoryRequest{Op: MemoryList}); err == nil || a.Allowed {
		t.Errorf("got %v, %v, want an error", a, err)
	}
	if b, err := l.Budget(t.Context()); err != nil || b.Steps != 7 {
		t.Errorf("after it: got %v, %v, want the link to go on", b, err)
	}
}

// What a gateway that was taken over might say never reaches the keeper, and costs it an answer only.
func TestM14HostileMemoryRequests(t *testing.T) {
	var asked atomic.Int64
	l := linked(t, keeper{newWorld(), func(context.Context, MemoryRequest) (MemoryAnswer, error) {
		asked.Add(1)
		return MemoryAnswer{Allowed: true}, nil
	}})
	put := func(i MemoryItem) MemoryRequest { return MemoryRequest{Op: MemoryPut, Item: i} }
	summary := func(s string) MemoryRequest { return put(MemoryItem{Kind: MemorySummary, Summary: s}) }
	vector := func(b []byte) MemoryRequest { return put(MemoryItem{Kind: MemoryEmbedding, Embedding: b}) }
	for name, q := range map[string]any{
		"no op":           MemoryRequest{},
		"other op":        MemoryRequest{Op: "steal"},
		"null":            nil,
		"no object":       []int{1},
		"unknown field":   map[string]any{"op": "list", "scope": "agent/b"},
		"message":         map[string]any{"op": "put", "item": map[string]any{"kind": "summary", "summary": "s", "messages": []string{"hi"}}},
		"kind":            put(MemoryItem{Kind: "message", Summary: "s"}),
		"both":            put(MemoryItem{Kind: MemorySummary, Summary: "s", Embedding: make([]byte, 4)}),
		"neither":         put(MemoryItem{Kind: MemoryEmbedding}),
		"long":            summary(strings.Repeat("a", MaxMemorySummary+1)),
		"transcript":      summary("User: hi\nAssistant: hello"),
		"api's messages":  summary(`[{"role":"user","content":"hi"}]`),
		"wide":            vector(make([]byte, 4*MaxMemoryEmbedding+4)),
		"crooked":         vector(make([]byte, 5)),
		"not a number":    vector(PackEmbedding([]float32{float32(math.NaN())})),
		"infinite":        vector(PackEmbedding([]float32{float32(math.Inf(-1))})),
		"id of a path":    put(MemoryItem{ID: "../b/x", Kind: MemorySummary, Summary: "s"}),
		"id of another's": MemoryRequest{Op: MemoryDelete, Item: MemoryItem{ID: "x/y"}},
		"no id":           MemoryRequest{Op: MemoryDelete},
		"after a path":    MemoryRequest{Op: MemoryList, After: "b/"},
		"tags":            put(MemoryItem{Kind: MemorySummary, Summary: "s", Tags: make([]string, 9)}),
		"bad tag":         put(MemoryItem{Kind: MemorySummary, Summary: "s", Tags: []string{"a\nb"}}),
	} {
		if r, _, err := l.ask(t.Context(), opMemory, q, nil); err == nil {
			t.Errorf("%s: got %s, want an error", name, r.Body)
		}
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("%d of them reached the keeper", n)
	}
	if _, err := l.Memory(t.Context(), MemoryRequest{Op: MemoryList}); err != nil {
		t.Errorf("after them: %v", err)
	}
}

func TestM14AnswerWithoutGrantRefuses(t *testing.T) {
	l := linked(t, keeper{newWorld(), func(context.Context, MemoryRequest) (MemoryAnswer, error) {
		return MemoryAnswer{Allowed: true}, errors.New("the disk is full")
	}})
	if a, err := l.Memory(t.Context(), MemoryRequest{Op: MemoryList}); err == nil || a.Allowed {
		t.Errorf("got %v, %v, want an error and no grant", a, err)
	}
}

// Whatever is taken is what a memory may hold, and stays the same when it is written and read again.
func FuzzDecodeMemory(f *testing.F) {
	for _, s := range []string{
		`{"op":"list","after":"a","version":3}`, `{"op":"delete","item":{"id":"m1"}}`,
		`{"op":"put","item":{"kind":"summary","summary":"s","tags":["t"]}}`, `{"op":"put","item":{"kind":"embedding","embedding":"AACAPw=="}}`,
		`{"op":"put","item":{"kind":"embedding","embedding":"AADAfw=="}}`, `{"op":"put","OP":"list"}`, `{}x`, `null`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		q, err := decode[MemoryRequest](b)
		if err != nil {
			if d := cmp.Diff(MemoryRequest{}, q); d != "" {
				t.Errorf("refused, and yet:\n%s", d)
			}
			return
		}
		if len(q.Item.Summary) > MaxMemorySummary || len(q.Item.Embedding) > 4*MaxMemoryEmbedding || len(q.Item.ID) > MaxMemoryID || strings.ContainsAny(q.Item.ID+q.After, "/\x00") {
			t.Errorf("took %+v", q)
		}
		text, err := json.Marshal(q)
		if err != nil {
			return // a time that JSON can't have
		}
		if len(text) > MaxFrame/2 && q.Op != MemoryPut {
			t.Errorf("%d bytes", len(text))
		}
		again, err := decode[MemoryRequest](text)
		if err != nil {
			t.Fatalf("%q, once taken, isn't again: %v", text, err)
		}
		if d := cmp.Diff(q.Item.Summary, again.Item.Summary); d != "" {
			t.Error(d)
		}
	})
}
