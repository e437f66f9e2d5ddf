// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
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
	marker    *boundary.Marker              // of the run: with one for each request no provider's cache would ever hit
	named     map[string]map[string]*target // by dialect or kind, and by name
	wild      map[string][]pattern          // by dialect, in the order of the file
	first     string                        // chat model of a request without one
	summaries *summarising
	order     []*target

	mu     sync.Mutex
	looked map[[sha256.Size]byte][]string // flags of what was said before (marked)
}

// pattern is a model's name with a *.
type pattern struct {
	before, after string
	*target
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
	g := &Gateway{o: o, named: map[string]map[string]*target{}, wild: map[string][]pattern{}, looked: map[[sha256.Size]byte][]string{}}
	var err error
	if g.marker, err = boundary.NewMarker(o.Random); err != nil {
		return nil, err
	}
	if err := g.targets(); err != nil {
		return nil, err
	}
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
		rt, err := g.transport(*p)
		if err != nil {
			return fmt.Errorf("llm provider %s: %w", p.Name, err)
		}
		for j := range p.Models {
			g.addTarget(&target{model: &p.Models[j], provider: p, key: key, rt: rt})
		}
	}
	if t := g.o.Config.TestModel; t.Enabled {
		local := &Provider{Name: "agentrun", Models: []Model{
			{Name: TestModelName, Input: t.Input, Output: t.Output}, {Name: TestModelName, Kind: kindEmbeddings, Input: t.Input, Output: t.Output},
		}}
		local.defaults()
		for i := range local.Models {
			g.addTarget(&target{provider: local, model: &local.Models[i]})
		}
	}
	if g.o.Config.Default != "" {
		g.first = g.o.Config.Default
	}
	return nil
}

func (g *Gateway) addTarget(t *target) {
	g.order = append(g.order, t)
	for _, kind := range t.provider.kinds(t.model) {
		if g.named[kind] == nil {
			g.named[kind] = map[string]*target{}
		}
		for _, name := range t.model.names() {
			if before, after, wild := strings.Cut(name, "*"); wild {
				g.wild[kind] = append(g.wild[kind], pattern{before, after, t})
				continue
			}
			g.named[kind][name] = t
			if g.first == "" && kind == dialectChat && t.model.Mode == modeGuarded {
				g.first = name
			}
		}
	}
}

// upstream is the provider's name of a model that was asked for by this one.
func (t *target) upstream(asked string) string { return cmp.Or(t.model.Upstream, asked) }

func (g *Gateway) routes() {
	m := http.NewServeMux()
	for _, path := range []string{"/internal/llm/chat", "/v1/chat/completions"} {
		m.HandleFunc("POST "+path, g.chat)
	}
	for _, path := range []string{"/internal/llm/embeddings", "/v1/embeddings"} {
		m.HandleFunc("POST "+path, g.embeddings)
	}
	for _, path := range []string{"/v1/messages", "/v1/messages/count_tokens"} {
		m.HandleFunc("POST "+path, g.opens(dialectMessages))
	}
	m.HandleFunc("POST /v1/responses", g.opens(dialectResponses))
	m.HandleFunc("POST /v1beta/models/{call}", g.opens(dialectGemini))
	for _, version := range []string{"v1", "v1beta"} {
		m.HandleFunc("GET /"+version+"/models", g.models)
		m.HandleFunc("GET /"+version+"/models/{name...}", g.oneModel)
	}
	g.mux = m
}

// ServeHTTP answers. The path must have been normalised before (egress.ParsePath): this is the last of
// several gates.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, pattern := g.mux.Handler(r); pattern == "" {
		writeError(w, refuse(gate.CodeNotFound, "there is no such endpoint, or not with this method",
			"POST /v1/chat/completions, /v1/messages, /v1/responses, /v1/embeddings, GET /v1/models"))
		return
	}
	g.mux.ServeHTTP(w, r)
}

func (g *Gateway) confidential() bool { return g.o.Caller.Mode != boundary.ModePublic }

// find returns the model of this name for a dialect, or for embeddings: by its whole name first, then by the first
// pattern of the file that fits.
func (g *Gateway) find(kind, name string) (*target, *gate.Error) {
	if t := g.named[kind][name]; t != nil {
		return t, nil
	}
	for _, p := range g.wild[kind] {
		if len(name) >= len(p.before)+len(p.after) && strings.HasPrefix(name, p.before) && strings.HasSuffix(name, p.after) && modelName().MatchString(name) {
			return p.target, nil
		}
	}
	return nil, refuse(gate.CodeNotFound, "there is no such model for this", "GET /v1/models lists those there are")
}

// action classifies the call: read-only, so ring 3 may make it (H-6; the argument is in the package comment).
func action(tool, api string) rings.Action {
	return rings.Action{ID: "tool." + tool + ".invoke", Name: tool, ExecuteAPI: api, Reversibility: rings.Full, ReadOnly: true}
}

// modelEntry is one model of a list, with the members of OpenAI and those of Anthropic: clients of either find
// theirs.
type modelEntry struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"`
	OwnedBy     string `json:"owned_by"`
	Type        string `json:"type"`
	DisplayName string `json:"display_name"`
	CreatedAt   string `json:"created_at"`
}

func entryOf(name string, t *target) modelEntry {
	return modelEntry{name, "model", 0, t.provider.Name, "model", name, "1970-01-01T00:00:00Z"}
}

// googleEntry is one as Google's clients expect it.
type googleEntry struct {
	Name        string   `json:"name"`
	DisplayName string   `json:"displayName"`
	Methods     []string `json:"supportedGenerationMethods"`
}

func googleOf(name string) googleEntry {
	return googleEntry{"models/" + name, name, []string{"generateContent", "streamGenerateContent", "countTokens"}}
}

// isGoogle tells of a request by Google's paths.
func isGoogle(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/v1beta/") }

// models lists what can be asked for by name; what a pattern lets pass is the provider's to list. It is the
// operator's choice and no secret; what a model costs, and under which name its provider knows it, stays here. It
// takes no permit: nothing is spent or sent by it.
func (g *Gateway) models(w http.ResponseWriter, r *http.Request) {
	list := struct {
		Object string       `json:"object"`
		Data   []modelEntry `json:"data"`
		More   bool         `json:"has_more"`
	}{"list", []modelEntry{}, false}
	google := struct {
		Models []googleEntry `json:"models"`
	}{[]googleEntry{}}
	seen := map[string]bool{}
	for _, t := range g.order {
		for _, name := range t.model.names() {
			if seen[name] || strings.Contains(name, "*") {
				continue // one name, several kinds
			}
			seen[name] = true
			list.Data = append(list.Data, entryOf(name, t))
			if g.named[dialectGemini][name] != nil {
				google.Models = append(google.Models, googleOf(name))
			}
		}
	}
	if isGoogle(r) {
		writeJSON(w, http.StatusOK, google)
		return
	}
	writeJSON(w, http.StatusOK, list)
}

func (g *Gateway) oneModel(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	if isGoogle(r) {
		if _, e := g.find(dialectGemini, name); e != nil {
			writeErrorIn(w, dialectOf(dialectGemini), e)
			return
		}
		writeJSON(w, http.StatusOK, googleOf(name))
		return
	}
	var e *gate.Error
	for _, kind := range []string{dialectChat, dialectMessages, dialectResponses, dialectGemini, kindEmbeddings} {
		var t *target
		if t, e = g.find(kind, name); e == nil {
			writeJSON(w, http.StatusOK, entryOf(name, t))
			return
		}
	}
	writeError(w, e)
}
