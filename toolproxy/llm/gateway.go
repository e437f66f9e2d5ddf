// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"agentrun/rings"
	"agentrun/toolproxy/boundary"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
)

// Options of New.
type Options struct {
	Config   Config
	Entrance gate.Entrance                      // required
	Caller   link.Caller                        // its Mode: everything but "public" is confidential (M-15)
	Secret   func(name string) (string, bool)   // required if a provider names a secret
	Upstream func(p Provider) http.RoundTripper // nil: a transport that checks every address it connects to
	Now      func() time.Time                   // nil: time.Now
	Random   io.Reader                          // nil: crypto/rand.Reader; nonces and ids
	Log      *slog.Logger                       // nil: none. Codes, counts and names of models only (M-18)
	// puts trace context on a request to a provider (M-20); nil: none
	Trace func(context.Context, http.Header)
}

// Gateway is the handler. It is safe for concurrent use.
type Gateway struct {
	o         Options
	mux       *http.ServeMux
	chats     map[string]*target
	embeds    map[string]*target
	first     string // chat model of a request without one
	summaries *summarising
	order     []*target
}

// target is a model and where it is.
type target struct {
	model    *Model
	provider *Provider
	key      string
	rt       http.RoundTripper // nil: the test model
}

// New returns the handler of /internal/llm/… and /v1/…. A secret that isn't there is an error. Without an
// entrance there is no handler at all: one that decides nothing by default would be found by the first
// mistake in wiring. A configuration that didn't come from ParseConfig, as in tests and examples, is
// completed and checked here, by the same rules.
func New(o Options) (*Gateway, error) {
	if o.Entrance == nil {
		return nil, errors.New("llm: no entrance: nobody would decide")
	}
	if o.Config.TestModel == nil {
		o.Config.defaults()
		if err := errors.Join(o.Config.check()...); err != nil {
			return nil, err
		}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Random == nil {
		o.Random = rand.Reader
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Upstream == nil {
		o.Upstream = transport
	}
	g := &Gateway{o: o, chats: map[string]*target{}, embeds: map[string]*target{}}
	if err := g.targets(); err != nil {
		return nil, err
	}
	var err error
	if g.summaries, err = g.summariser(); err != nil {
		return nil, err
	}
	g.routes()
	return g, nil
}

// targets makes the models that can be asked for. Keys are resolved here, once, before anything hostile is
// read: a key that isn't there is told at the start and not at the first call. Each provider has a transport
// of its own, so that connections, and what a provider can learn by them, are never shared between two.
func (g *Gateway) targets() error {
	for i := range g.o.Config.Providers {
		p := &g.o.Config.Providers[i]
		key := ""
		if p.Secret != "" {
			ok := false
			if g.o.Secret != nil {
				key, ok = g.o.Secret(p.Secret)
			}
			if !ok || key == "" {
				return fmt.Errorf("llm provider %s: secret %q is not configured", p.Name, p.Secret)
			}
		}
		rt := g.o.Upstream(*p)
		for j := range p.Models {
			g.addTarget(&target{model: &p.Models[j], provider: p, key: key, rt: rt})
		}
	}
	if t := g.o.Config.TestModel; t.Enabled {
		local := &Provider{Name: "agentrun", Timeout: mostTime, Idle: mostTime}
		for _, kind := range []string{kindChat, kindEmbeddings} {
			g.addTarget(&target{provider: local, model: &Model{Name: TestModelName, Upstream: TestModelName, Kind: kind, Input: t.Input, Output: t.Output, MaxTokens: 4096}})
		}
	}
	if g.o.Config.Default != "" {
		g.first = g.o.Config.Default
	}
	return nil
}

func (g *Gateway) addTarget(t *target) {
	g.order = append(g.order, t)
	if t.model.Kind == kindEmbeddings {
		g.embeds[t.model.Name] = t
		return
	}
	g.chats[t.model.Name] = t
	if g.first == "" {
		g.first = t.model.Name
	}
}

func (g *Gateway) routes() {
	m := http.NewServeMux()
	for _, path := range []string{"/internal/llm/chat", "/v1/chat/completions"} {
		m.HandleFunc("POST "+path, g.chat)
	}
	for _, path := range []string{"/internal/llm/embeddings", "/v1/embeddings"} {
		m.HandleFunc("POST "+path, g.embeddings)
	}
	m.HandleFunc("GET /v1/models", g.models)
	m.HandleFunc("GET /v1/models/{name...}", g.oneModel)
	g.mux = m
}

// ServeHTTP answers. The path must have been normalised before (egress.ParsePath): this is the last of
// several gates.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, pattern := g.mux.Handler(r); pattern == "" {
		writeError(w, refuse(gate.CodeNotFound, "there is no such endpoint, or not with this method",
			"POST /v1/chat/completions, POST /v1/embeddings, GET /v1/models"))
		return
	}
	g.mux.ServeHTTP(w, r)
}

func (g *Gateway) confidential() bool { return g.o.Caller.Mode != boundary.ModePublic }

func find(in map[string]*target, name string) (*target, *gate.Error) {
	if t := in[name]; t != nil {
		return t, nil
	}
	return nil, refuse(gate.CodeNotFound, "there is no such model for this", "GET /v1/models lists those there are")
}

// action classifies the call: read-only, so ring 3 may make it (H-6; the argument is in the package comment).
func action(tool, api string) rings.Action {
	return rings.Action{ID: "tool." + tool + ".invoke", Name: tool, ExecuteAPI: api, Reversibility: rings.Full, ReadOnly: true}
}

type modelEntry struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

func entryOf(t *target) modelEntry {
	return modelEntry{t.model.Name, "model", 0, t.provider.Name}
}

// models lists what can be asked for, as OpenAI's clients expect it. It is the operator's choice and no
// secret; what a model costs, and under which name its provider knows it, stays here. It takes no permit:
// nothing is spent or sent by it.
func (g *Gateway) models(w http.ResponseWriter, _ *http.Request) {
	list := struct {
		Object string       `json:"object"`
		Data   []modelEntry `json:"data"`
	}{"list", []modelEntry{}}
	for _, t := range g.order {
		if t.model.Kind == kindEmbeddings && g.chats[t.model.Name] != nil {
			continue // one name, both kinds
		}
		list.Data = append(list.Data, entryOf(t))
	}
	writeJSON(w, http.StatusOK, list)
}

func (g *Gateway) oneModel(w http.ResponseWriter, r *http.Request) {
	for _, in := range []map[string]*target{g.chats, g.embeds} {
		if t := in[r.PathValue("name")]; t != nil {
			writeJSON(w, http.StatusOK, entryOf(t))
			return
		}
	}
	_, e := find(nil, "")
	writeError(w, e)
}
