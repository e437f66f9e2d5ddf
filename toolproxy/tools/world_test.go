// SPDX-License-Identifier: Apache-2.0

package tools_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"agentrun/internal/read"
	"agentrun/pdp"
	"agentrun/rings"
	"agentrun/toolproxy/egress"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/gate/gatetest"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/tools"
)

type toolFunc func(ctx context.Context, c tools.Call) (tools.Result, error)

func (f toolFunc) Call(ctx context.Context, c tools.Call) (tools.Result, error) { return f(ctx, c) }

func echo(_ context.Context, c tools.Call) (tools.Result, error) {
	return tools.Result{Output: c.Args.Reveal()}, nil
}

const anything = `{"type":"object"}`

func define(name string, f toolFunc) tools.Definition {
	return tools.Definition{
		Name: name, Description: "Test.", Category: gate.CategoryA, Schema: json.RawMessage(anything),
		Action: tools.ReadAction(name), Tool: f,
	}
}

func pass(_ string, output json.RawMessage) (json.RawMessage, []string, error) {
	return output, nil, nil
}

// world is a registry behind its gate and Mux.
type world struct {
	s       *gatetest.Supervisor
	gate    gate.Options
	options tools.Options
	mux     tools.MuxOptions
}

func newWorld(builtin ...tools.Definition) *world {
	s := gatetest.New(rings.Sandbox)
	who := link.Caller{Run: "run-1", Agent: "agent-1", Team: "team-1", Role: "member", Plan: "premium", Mode: "public"}
	return &world{
		s: s,
		gate: gate.Options{
			Supervisor: s, Caller: who, MaxSteps: 1 << 40, Granted: gate.Granting(nil),
			Policy: pdp.DeciderFunc(func(context.Context, pdp.Request) pdp.Decision {
				return pdp.Decision{Verdict: rings.Allow, Code: pdp.CodeOK}
			}),
		},
		options: tools.Options{Caller: who, Builtin: builtin, Filter: pass},
		mux:     tools.MuxOptions{Record: s.Record},
	}
}

func (w *world) registry(t testing.TB) *tools.Registry {
	t.Helper()
	g, err := gate.New(w.gate)
	if err != nil {
		t.Fatal(err)
	}
	w.options.Entrance = g
	r, err := tools.New(w.options)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (w *world) serve(t testing.TB) *httptest.Server {
	t.Helper()
	if w.mux.Mounts == nil {
		w.mux.Mounts = map[egress.Family]http.Handler{}
	}
	w.mux.Mounts[egress.Tools] = w.registry(t).Handler()
	server := httptest.NewUnstartedServer(nil)
	if w.mux.Hosts == nil {
		w.mux.Hosts = []string{server.Listener.Addr().String()}
	}
	server.Config = tools.NewServer(tools.NewMux(w.mux))
	server.Start()
	t.Cleanup(server.Close)
	return server
}

func (w *world) balanced(t testing.TB) {
	t.Helper()
	if places, reservations, wrong := w.s.Held(); places != 0 || reservations != 0 || wrong != nil {
		t.Errorf("got %d places, %d reservations, %v, want none", places, reservations, wrong)
	}
}

type answer struct {
	Status int
	Header http.Header
	OK     bool
	Output json.RawMessage
	Error  *struct{ Code, Message, Next string }
	Tools  []tools.Listing
}

func (a answer) code() rings.Code {
	if a.Error == nil {
		return ""
	}
	return rings.Code(a.Error.Code)
}

func do(t testing.TB, req *http.Request) answer {
	t.Helper()
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	a := answer{Status: resp.StatusCode, Header: resp.Header}
	if err := json.Unmarshal(body, &a); err != nil {
		t.Fatalf("status %d: %q is no JSON: %v", resp.StatusCode, body, err)
	}
	return a
}

func post(t testing.TB, url, body string, headers ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
		req.Header.Set(headers[i], headers[i+1])
	}
	return do(t, req)
}

func factory(f toolFunc) tools.Factory {
	return func(_ string, node *read.Node) (tools.Tool, error) {
		var own struct {
			URL string `yaml:"url"`
		}
		if node.Into(&own); own.URL == "" {
			return nil, node.Done(read.Bad("url", "required"))
		}
		return f, nil
	}
}
