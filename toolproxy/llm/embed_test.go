// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/telemetry"
	"agentrun/toolproxy/gate"
)

// embedder is a gateway with an embeddings model of a provider's.
func embedder(t *testing.T, upstream http.HandlerFunc) (*Gateway, *entrance) {
	t.Helper()
	up := httptest.NewServer(upstream)
	t.Cleanup(up.Close)
	config, err := ParseConfig(section(fmt.Sprintf("providers:\n- name: up\n  base_url: %s/v1\n  secret: KEY\n  allow_private: true\n  idle_timeout: 300ms\n"+
		"  models:\n  - {name: m}\n  - {name: e, upstream: real, kind: embeddings, input: 1000000}\n", up.URL)))
	if err != nil {
		t.Fatal(err)
	}
	in := &entrance{deny: &gate.Error{Code: gate.CodeSteps}} // nobody may ask it: the call has passed
	g, err := New(Options{Config: config, Entrance: in, Secret: func(string) (string, bool) { return key, true }})
	if err != nil {
		t.Fatal(err)
	}
	return g, in
}

// spending notes what a call's permit was told.
type spending struct {
	told []int64
	room int64
}

func (s *spending) spent(cost, _ int64) *gate.Error {
	s.told = append(s.told, cost)
	if s.room != 0 && cost > s.room {
		return &gate.Error{Code: gate.CodeCost, Message: "used up"}
	}
	return nil
}

func TestM11EmbedForATool(t *testing.T) {
	g, in := embedder(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+key {
			t.Errorf("the key is %q", r.Header.Get("Authorization"))
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"data":[{"index":1,"embedding":[3,4]},{"index":0,"embedding":[1,2]}],"usage":{"prompt_tokens":3}}`)
	})
	if !g.Embeds() {
		t.Fatal("a provider has an embeddings model, and it isn't known")
	}
	for _, model := range []string{"", "e"} {
		s := &spending{}
		got, e := g.Embed(t.Context(), Embedding{Model: model, Texts: telemetry.NewPlaintext([]string{"some text", "b"}), Spent: s.spent})
		if e != nil {
			t.Fatal(e)
		}
		if d := cmp.Diff([][]float32{{1, 2}, {3, 4}}, got.Vectors); d != "" {
			t.Error(d)
		}
		if got.Model != "e" || got.Cost != 3 || got.Tokens != 3 || got.Sent == 0 || got.Received == 0 {
			t.Errorf("got %+v, want the model e and 3 tokens at 1 each", got)
		}
		if len(s.told) < 2 || s.told[0] == 0 || s.told[len(s.told)-1] != 3 {
			t.Errorf("the budget was told %v, want an estimate first and what it was at last", s.told)
		}
	}
	if len(in.calls) != 0 {
		t.Errorf("the entrance was asked %d times: that would count a step twice", len(in.calls))
	}
}

// A budget that is used up ends the call before anything is sent (M-19).
func TestM19EmbedWithoutRoomIsNotSent(t *testing.T) {
	sent := false
	g, _ := embedder(t, func(http.ResponseWriter, *http.Request) { sent = true })
	s := &spending{room: 1}
	got, e := g.Embed(t.Context(), Embedding{Texts: telemetry.NewPlaintext([]string{strings.Repeat("a", 300)}), Spent: s.spent})
	if e == nil || e.Code != gate.CodeCost || got.Vectors != nil || sent {
		t.Errorf("got %+v, %v, sent %v, want %v and nothing sent", got, e, sent, gate.CodeCost)
	}
}

func TestM13EmbedRefuses(t *testing.T) {
	reply := `{"data":[{"index":0,"embedding":[1]}]}`
	g, _ := embedder(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, reply)
	})
	for name, q := range map[string]Embedding{
		"no text": {}, "empty text": {Texts: telemetry.NewPlaintext([]string{"a", ""})}, "long": {Texts: telemetry.NewPlaintext([]string{strings.Repeat("a", maxInputBytes+1)})},
		"many": {Texts: telemetry.NewPlaintext(make([]string, maxInputs+1))}, "chat model": {Model: "m", Texts: telemetry.NewPlaintext([]string{"a"})}, "no such model": {Model: "x", Texts: telemetry.NewPlaintext([]string{"a"})},
	} {
		if got, e := g.Embed(t.Context(), q); e == nil || got.Cost != 0 || got.Vectors != nil {
			t.Errorf("%s: got %+v, %v, want a refusal that costs nothing", name, got, e)
		}
	}
	for _, reply = range []string{`{"data":[]}`, `{"data":[{"index":0,"embedding":["x"]}]}`, `<html>` + key, `{"error":{"message":"` + key + `"}}`} {
		got, e := g.Embed(t.Context(), Embedding{Texts: telemetry.NewPlaintext([]string{"a"})})
		if e == nil || e.Code != gate.CodeToolFailed || got.Vectors != nil || strings.Contains(e.Message+e.Next, key) {
			t.Errorf("%s: got %+v, %v", reply, got, e)
		}
		if got.Cost == 0 {
			t.Errorf("%s: the attempt was free", reply)
		}
	}
}

func TestM11EmbedEndsWithItsCall(t *testing.T) {
	hang := make(chan struct{})
	g, _ := embedder(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-hang:
		}
	})
	defer close(hang)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, &gate.Error{Code: gate.CodeToolTimeout})
	defer cancel()
	got, e := g.Embed(ctx, Embedding{Texts: telemetry.NewPlaintext([]string{"a"})})
	if e == nil || got.Vectors != nil || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Errorf("got %+v, %v", got, e)
	}
}

func TestM11TheTestModelIsNoProvider(t *testing.T) {
	config, err := ParseConfig(nil)
	if err != nil {
		t.Fatal(err)
	}
	g, err := New(Options{Config: config, Entrance: &entrance{}})
	if err != nil {
		t.Fatal(err)
	}
	if g.Embeds() {
		t.Error("without providers there is an embeddings model")
	}
	if got, e := g.Embed(t.Context(), Embedding{Texts: telemetry.NewPlaintext([]string{"a"})}); e == nil {
		t.Errorf("got %+v, want an error", got)
	}
}
