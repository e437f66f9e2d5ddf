// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
)

func TestM14MemoryKeepsSummariesAndEmbeddings(t *testing.T) {
	k := newKit(t)
	k.want(t, "memory", `{"op":"put","kind":"summary","summary":"the build is green","tags":["ci"]}`, `{"id":"m1"}`)
	k.want(t, "memory", `{"op":"put","id":"v","kind":"embedding","embedding":[1,0],"tags":["vec"]}`, `{"id":"v"}`)
	k.want(t, "memory", `{"op":"put","id":"w","kind":"embedding","embedding":[0.6,0.8]}`, `{"id":"w"}`)
	k.want(t, "memory", `{"op":"get","id":"m1"}`, `{"id":"m1","kind":"summary","summary":"the build is green","tags":["ci"],"author":"agent-1","at":"2026-03-28T23:30:00Z"}`)
	k.want(t, "memory", `{"op":"list","tag":"nothing"}`, `{"items":[],"more":false}`)
	got, err := k.call(t.Context(), "memory", `{"op":"search","embedding":[0.5,0.9],"limit":1}`)
	if err != nil || !strings.Contains(got, `"id":"w"`) || !strings.Contains(got, `"more":true`) || strings.Contains(got, "embedding\":[") {
		t.Errorf("search: got %s, %v, want w first", got, err)
	}
	k.want(t, "memory", `{"op":"delete","id":"v"}`, `{"deleted":"v"}`)
	k.refused(t, "memory", `{"op":"get","id":"v"}`, gate.CodeNotFound)
}

func TestM14RawMessagesAreRefused(t *testing.T) {
	k := newKit(t)
	for _, args := range []string{
		`{"op":"put","kind":"summary","summary":"s","messages":[{"role":"user","content":"hi"}]}`,
		`{"op":"put","kind":"summary","summary":"s","raw":"hi"}`,
		`{"op":"put","kind":"summary","summary":"s","transcript":"hi"}`,
		`{"op":"put","kind":"summary","summary":"s","content":"hi"}`,
		`{"op":"put","kind":"summary","summary":"s","Messages":"hi"}`,
		`{"op":"put","kind":"message","summary":"s"}`,
		`{"op":"put","kind":"summary","summary":"[{\"role\":\"user\",\"content\":\"hi\"}]"}`,
		`{"op":"put","kind":"summary","summary":"User: hi\nAssistant: hello"}`,
		`{"op":"put","kind":"summary","summary":"**Human**: hi\n\n**AI**: hello"}`,
		`{"op":"put","kind":"embedding","summary":"s"}`,
		`{"op":"put","kind":"summary","summary":"s","embedding":[1]}`,
		`{"op":"put","kind":"summary","summary":"` + strings.Repeat("a", link.MaxMemorySummary+1) + `"}`,
		`{"op":"put","kind":"embedding","embedding":[1e300]}`,
		`{"op":"put","kind":"embedding","embedding":[` + strings.Repeat("1,", link.MaxMemoryEmbedding) + `1]}`,
		`{"op":"put","id":"../x","kind":"summary","summary":"s"}`,
		`{"op":"put","kind":"summary","summary":"s","tags":["a\u0000b"]}`,
		`{"op":"put","kind":"summary","summary":"s","tags":["1","2","3","4","5","6","7","8","9"]}`,
	} {
		k.refused(t, "memory", args, gate.CodeBadArguments)
	}
	k.want(t, "memory", `{"op":"list"}`, `{"items":[],"more":false}`)
}

// Another agent's memory isn't there; a session's is shared, but what one wrote only that one changes.
func TestM14ScopesAreApart(t *testing.T) {
	k := newKit(t)
	k.want(t, "memory", `{"op":"put","id":"x","kind":"summary","summary":"mine"}`, `{"id":"x"}`)
	other := k
	other.caller = link.Caller{Run: "run-2", Agent: "agent-2"}
	other.refused(t, "memory", `{"op":"get","id":"x"}`, gate.CodeNotFound)
	other.refused(t, "memory", `{"op":"delete","id":"x"}`, gate.CodeNotFound)
	// An agent called like a session, and a run like an agent, are still others.
	other.caller = link.Caller{Run: "r", Agent: "a", Session: "agent-1"}
	other.refused(t, "memory", `{"op":"get","id":"x"}`, gate.CodeNotFound)
	other.caller = link.Caller{Run: "agent-1"}
	other.refused(t, "memory", `{"op":"get","id":"x"}`, gate.CodeNotFound)
	other.caller = link.Caller{}
	other.refused(t, "memory", `{"op":"list"}`, gate.CodeUnavailable)

	k.caller.Session = "s"
	k.want(t, "memory", `{"op":"put","id":"x","kind":"summary","summary":"ours"}`, `{"id":"x"}`)
	member := k
	member.caller = link.Caller{Run: "run-3", Agent: "agent-3", Session: "s"}
	if got, err := member.call(t.Context(), "memory", `{"op":"get","id":"x"}`); err != nil || !strings.Contains(got, "ours") {
		t.Errorf("got %s, %v, want the session's item", got, err)
	}
	member.refused(t, "memory", `{"op":"delete","id":"x"}`, gate.CodeToolRestricted)
	member.refused(t, "memory", `{"op":"put","id":"x","kind":"summary","summary":"theirs"}`, gate.CodeToolRestricted)
}

func TestM14MemoryHasAQuota(t *testing.T) {
	s, ctx, scope := NewMemory(), t.Context(), Scope{"agent", "a"}
	big := Item{Kind: link.MemoryEmbedding, Embedding: make([]float32, link.MaxMemoryEmbedding), Author: "a"}
	n := 0
	for ; n < MaxItems; n++ {
		if _, err := s.Put(ctx, scope, big); err != nil {
			if !errors.Is(err, ErrFull) {
				t.Fatal(err)
			}
			break
		}
	}
	if most := MaxMemoryBytes / (4 * link.MaxMemoryEmbedding); n > most || n < most-2 {
		t.Errorf("%d items of 16 KiB fit, want about %d", n, most)
	}
	if err := s.Delete(ctx, scope, "m1", "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(ctx, scope, big); err != nil {
		t.Errorf("after a deletion: %v", err)
	}
	// Replacing counts the difference, and never runs full of itself.
	for range 10 {
		big.ID = "m2"
		if _, err := s.Put(ctx, scope, big); err != nil {
			t.Fatal(err)
		}
	}
	small := Scope{"agent", "b"}
	for range MaxItems {
		if _, err := s.Put(ctx, small, Item{Kind: link.MemorySummary, Summary: "s"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Put(ctx, small, Item{Kind: link.MemorySummary, Summary: "s"}); !errors.Is(err, ErrFull) {
		t.Errorf("item %d: got %v, want %v", MaxItems+1, err, ErrFull)
	}
}

type brokenStore struct{ MemoryStore }

func (brokenStore) List(context.Context, Scope) ([]Item, error) {
	return nil, errors.New("dial unix /secret/path: refused")
}

func TestM13StoreErrorsAreNotTheAgents(t *testing.T) {
	for _, d := range Definitions(Options{Memory: brokenStore{}}) {
		if d.Name != "memory" {
			continue
		}
		k := newKit(t)
		k.defs["memory"] = d
		_, err := k.call(t.Context(), "memory", `{"op":"list"}`)
		var e *gate.Error
		if !errors.As(err, &e) || e.Code != gate.CodeUnavailable {
			t.Fatalf("got %v, want %v", err, gate.CodeUnavailable)
		}
		if b, _ := json.Marshal(e); strings.Contains(string(b), "secret") {
			t.Errorf("the agent is told %s", b)
		}
	}
}

func BenchmarkMemorySearch(b *testing.B) {
	k := newKit(b)
	for range 250 {
		if _, err := k.call(b.Context(), "memory", `{"op":"put","kind":"embedding","embedding":[`+strings.Repeat("0.5,", 255)+`1]}`); err != nil {
			b.Fatal(err)
		}
	}
	query := `{"op":"search","embedding":[` + strings.Repeat("0.1,", 255) + `1]}`
	b.ReportAllocs()
	for b.Loop() {
		if _, err := k.call(b.Context(), "memory", query); err != nil {
			b.Fatal(err)
		}
	}
}
