// SPDX-License-Identifier: Apache-2.0

package mcpaql

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrun/safetyloop"
	"agentrun/safetyloop/tool"
)

// fake answers what it was asked, and who asked.
type fake struct {
	mu    sync.Mutex
	calls []safetyloop.Call
}

func (f *fake) Do(_ context.Context, c safetyloop.Call) safetyloop.Reply {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, c)
	switch c.Operation {
	case "panic":
		panic("secret-in-panic")
	case "no":
		return safetyloop.Reply{Error: &safetyloop.Error{
			Code: "PERMISSION_DENIED", Message: "no", Details: map[string]any{"a": 1},
		}}
	}
	return safetyloop.Reply{Success: true, Data: map[string]any{"principal": c.Caller.Principal, "operator": c.Caller.Operator, "endpoint": c.Endpoint.String(), "params": string(c.Params.Reveal())}}
}

func newServer(t *testing.T, e Endpoints) (*Server, *fake) {
	t.Helper()
	f := &fake{}
	s, err := New(Options{Loop: f, Endpoints: e, Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return s, f
}

// overStdio connects a client by two pipes, as a process would.
func overStdio(t *testing.T, s *Server) *mcp.ClientSession {
	t.Helper()
	serverIn, clientOut := io.Pipe()
	clientIn, serverOut := io.Pipe()
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { ended <- s.ServeStdio(ctx, serverIn, serverOut, safetyloop.Caller{Principal: "stdio"}) }()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, nil).Connect(t.Context(), &mcp.IOTransport{Reader: clientIn, Writer: clientOut}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = session.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the end of the client is an error: %v", err)
		}
	})
	return session
}

func call(t *testing.T, c *mcp.ClientSession, tool string, arguments any) (map[string]any, *mcp.CallToolResult) {
	t.Helper()
	r, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil {
		t.Fatal(err)
	}
	var text map[string]any
	if err := json.Unmarshal([]byte(r.Content[0].(*mcp.TextContent).Text), &text); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(text, r.StructuredContent); d != "" {
		t.Errorf("text and structured content differ:\n%s", d)
	}
	return text, r
}

// A client that doesn't speak the protocol ends its server, which says where the nonsense came from.
func TestS1NonsenseOnStdioIsAnError(t *testing.T) {
	s, _ := newServer(t, Crude)
	err := s.ServeStdio(t.Context(), io.NopCloser(strings.NewReader("garbage\n")), nopWriter{}, safetyloop.Caller{Principal: "stdio"})
	if err == nil || !strings.Contains(err.Error(), "client on stdio") {
		t.Errorf("got %v", err)
	}
}

// A client that asks and reads no answers is read from no further.
func TestStdioReadsWhatItAnswers(t *testing.T) {
	c, err := patient{endlessTransport{}}.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for n := range maxUnderWay {
		if _, err := c.Read(t.Context()); err != nil {
			t.Fatalf("call %d: %v", n, err)
		}
	}
	if _, err := c.Read(over); err == nil {
		t.Error("one more was read")
	}
	if err := c.Write(t.Context(), &jsonrpc.Response{}); err != nil {
		t.Error(err)
	}
	if _, err := c.Read(t.Context()); err != nil {
		t.Errorf("after an answer: %v", err)
	}
	c.Close()
	if _, err := c.Read(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the end", err)
	}
}

// endlessTransport asks without end.
type endlessTransport struct{ mcp.Connection }

func (e endlessTransport) Connect(context.Context) (mcp.Connection, error) { return e, nil }

func (endlessTransport) Read(context.Context) (jsonrpc.Message, error) {
	id, err := jsonrpc.MakeID("x")
	return &jsonrpc.Request{ID: id, Method: "ping"}, err
}

func (endlessTransport) Write(context.Context, jsonrpc.Message) error { return nil }

func (endlessTransport) Close() error { return nil }

// Nor does the end of the server wait for it.
func TestStdioClientThatDoesNotListen(t *testing.T) {
	s, _ := newServer(t, Crude)
	in, client := io.Pipe()
	deaf := &deafWriter{hears: make(chan struct{}), waits: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.ServeStdio(ctx, in, deaf, safetyloop.Caller{Principal: "stdio"}) }()
	_, _ = io.WriteString(client, initialize+"\n")
	<-deaf.waits
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	close(deaf.hears)
	client.Close()
}

// deafWriter takes nothing until it hears.
type deafWriter struct{ hears, waits chan struct{} }

func (w *deafWriter) Write(p []byte) (int, error) {
	close(w.waits)
	<-w.hears
	return len(p), nil
}

func (w *deafWriter) Close() error { return nil }

type nopWriter struct{}

func (nopWriter) Write(p []byte) (int, error) { return len(p), nil }

func (nopWriter) Close() error { return nil }

func TestS1ToolsAreTheEndpoints(t *testing.T) {
	for e, want := range map[Endpoints]map[string]string{
		Crude:  {"mcp_aql_read": "AUTO_APPROVE", "mcp_aql_create": "CONFIRM_SESSION", "mcp_aql_execute": "CONFIRM_SINGLE_USE"},
		Single: {"mcp_aql": "CONFIRM_SINGLE_USE"},
	} {
		s, _ := newServer(t, e)
		list, err := overStdio(t, s).ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		got, operations := map[string]string{}, 0
		for _, tool := range list.Tools {
			got[tool.Name], _ = tool.Meta["mcp-aql/permission"].(string)
			a := tool.Annotations
			if a.ReadOnlyHint != (tool.Name == "mcp_aql_read") || *a.DestructiveHint != strings.HasPrefix(got[tool.Name], "CONFIRM_SINGLE") || *a.OpenWorldHint {
				t.Errorf("%s: got annotations %+v", tool.Name, a)
			}
			schema := tool.InputSchema.(map[string]any)
			operations += len(schema["properties"].(map[string]any)["operation"].(map[string]any)["enum"].([]any))
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		if operations != len(safetyloop.Operations()) {
			t.Errorf("got %d operations, want %d", operations, len(safetyloop.Operations()))
		}
	}
}

func TestS1RepliesAreTheLoops(t *testing.T) {
	s, f := newServer(t, Crude)
	c := overStdio(t, s)
	got, r := call(t, c, "mcp_aql_create", map[string]any{"operation": "x", "params": map[string]any{"a": 1}})
	want := map[string]any{"success": true, "data": map[string]any{"principal": "stdio", "operator": false, "endpoint": "CREATE", "params": `{"a":1}`}}
	if d := cmp.Diff(want, got); d != "" || r.IsError {
		t.Errorf("error %v (-want +got):\n%s", r.IsError, d)
	}
	got, r = call(t, c, "mcp_aql_read", map[string]any{"operation": "no"})
	if e, _ := got["error"].(map[string]any); !r.IsError || got["success"] != false || e["code"] != "PERMISSION_DENIED" {
		t.Errorf("got %v, error %v", got, r.IsError)
	}
	got, _ = call(t, c, "mcp_aql_read", map[string]any{"operation": "panic"})
	if text, _ := json.Marshal(got); !strings.Contains(string(text), "INTERNAL_ERROR") || strings.Contains(string(text), "secret") {
		t.Errorf("a panic: got %s", text)
	}
	if n := len(f.calls); n != 3 {
		t.Errorf("got %d calls, want 3", n)
	}
}

// What has two meanings, or is no call, never reaches the loop.
func TestS1ArgumentsHaveOneMeaning(t *testing.T) {
	for arguments, want := range map[string]string{
		`{"operation":"x","extra":1}`:                           safetyloop.CodeUnknownParam,
		`{"operation":"x","Operation":"y"}`:                     safetyloop.CodeUnknownParam,
		`{"operation":"x","operation":"y"}`:                     safetyloop.CodeInvalidType,
		`{"operation":"x","params":{"a":{"b":1,"b":2}}}`:        safetyloop.CodeInvalidType,
		`{"operation":"x","params":{"a":[{"b":1,"\u0062":2}]}}`: safetyloop.CodeInvalidType,
		`{"params":{}}`:                  safetyloop.CodeMissingParam,
		``:                               safetyloop.CodeMissingParam,
		`{"operation":null}`:             safetyloop.CodeInvalidType,
		`{"operation":7}`:                safetyloop.CodeInvalidType,
		`{"operation":"x","params":[]}`:  safetyloop.CodeInvalidType,
		`{"operation":"x","params":"a"}`: safetyloop.CodeInvalidType,
		`[]`:                             safetyloop.CodeInvalidType,
		`null`:                           safetyloop.CodeInvalidType,
		"{\"operation\":\"\xff\"}":       safetyloop.CodeInvalidType,
		`{"operation":"x"}{}`:            safetyloop.CodeInvalidType,
		`{"operation":"x","params":` + strings.Repeat(`{"a":`, 70) + `1` + strings.Repeat(`}`, 71): safetyloop.CodeInvalidType,
		`{"operation":"` + strings.Repeat("x", MaxArguments) + `"}`:                                safetyloop.CodeTooLarge,
	} {
		q, refusal := tool.Read([]byte(arguments), MaxArguments)
		if refusal == nil || refusal.Code != want {
			t.Errorf("%.60q: got %q, %+v, want %s", arguments, q.Operation, refusal, want)
		}
	}
	for _, arguments := range []string{`{"operation":"x"}`, `{"operation":"x","params":null}`, `{"params":{"b":{"a":1},"a":1},"operation":"x"}`} {
		if q, refusal := tool.Read([]byte(arguments), MaxArguments); q.Operation != "x" || refusal != nil {
			t.Errorf("%s: got %q, %+v", arguments, q.Operation, refusal)
		}
	}
}

func FuzzArguments(f *testing.F) {
	f.Add(`{"operation":"record_execution_step","params":{"nextActionHint":"rm"}}`)
	f.Add(`{"operation":"x","params":{"a":1,"a":2}}`)
	f.Fuzz(func(t *testing.T, arguments string) {
		q, refusal := tool.Read([]byte(arguments), MaxArguments)
		if refusal != nil {
			if q.Operation != "" || q.Params != nil || refusal.Code == "" {
				t.Errorf("got %q, %s, %+v", q.Operation, q.Params, refusal)
			}
			return
		}
		var v struct{ Operation string }
		if err := json.Unmarshal([]byte(arguments), &v); err != nil || v.Operation != q.Operation {
			t.Errorf("got %q, encoding/json has %q, %v", q.Operation, v.Operation, err)
		}
	})
}

func tokensOf(t *testing.T, roles map[string]Role) (texts map[string]string, tokens *Tokens) {
	t.Helper()
	texts = map[string]string{}
	var list []Token
	for name, role := range roles {
		text, one, err := NewToken(name, role)
		if err != nil {
			t.Fatal(err)
		}
		texts[name], list = text, append(list, one)
	}
	tokens, err := newTokens(list)
	if err != nil {
		t.Fatal(err)
	}
	return texts, tokens
}

type bearer struct{ token string }

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if b.token != "" {
		r.Header.Set("Authorization", "Bearer "+b.token)
	}
	return http.DefaultTransport.RoundTrip(r)
}

func overHTTP(t *testing.T, url, token string) (*mcp.ClientSession, error) {
	c, err := mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, nil).Connect(t.Context(), &mcp.StreamableClientTransport{
		Endpoint: url + "/mcp", HTTPClient: &http.Client{Transport: bearer{token}}, DisableStandaloneSSE: true, MaxRetries: -1,
	}, nil)
	if err == nil {
		t.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

func serve(t *testing.T, s *Server, o HTTPOptions) string {
	t.Helper()
	h := httptest.NewUnstartedServer(nil)
	o.Listens = h.Listener.Addr().String()
	handler, err := s.Handler(o)
	if err != nil {
		t.Fatal(err)
	}
	h.Config.Handler = handler
	h.Start()
	t.Cleanup(h.Close)
	return h.URL
}

// S-12: who calls is the token's owner, and no session carries it over to another.
func TestS12PrincipalIsTheTokens(t *testing.T) {
	s, f := newServer(t, Crude)
	texts, tokens := tokensOf(t, map[string]Role{"planner": Agent, "alice": Operator})
	now := tokens
	url := serve(t, s, HTTPOptions{Tokens: func() *Tokens { return now }})
	for name, operator := range map[string]bool{"planner": false, "alice": true} {
		c, err := overHTTP(t, url, texts[name])
		if err != nil {
			t.Fatal(err)
		}
		got, _ := call(t, c, "mcp_aql_create", map[string]any{"operation": "x", "params": map[string]any{"principal": "root", "operator": true}})
		if data := got["data"].(map[string]any); data["principal"] != name || data["operator"] != operator {
			t.Errorf("%s: got %v", name, data)
		}
	}
	for _, token := range []string{"", "agentrun_guess", texts["planner"] + "x", strings.ToUpper(texts["planner"])} {
		if _, err := overHTTP(t, url, token); err == nil {
			t.Errorf("token %.20q was let in", token)
		}
	}
	// A session that somebody has heard of is of no use with another token.
	c, err := overHTTP(t, url, texts["alice"])
	if err != nil {
		t.Fatal(err)
	}
	before := len(f.calls)
	body := `{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"mcp_aql_execute","arguments":{"operation":"confirm_operation"}}}`
	for token, want := range map[string]int{texts["planner"]: http.StatusForbidden, "": http.StatusUnauthorized} {
		if got := post(t, url, body, map[string]string{"Mcp-Session-Id": c.ID(), "Authorization": "Bearer " + token}); got != want {
			t.Errorf("session of another: got %d, want %d", got, want)
		}
	}
	// A token that was taken out ends its sessions with the next request.
	_, now = tokensOf(t, map[string]Role{"bob": Agent})
	if got := post(t, url, body, map[string]string{"Mcp-Session-Id": c.ID(), "Authorization": "Bearer " + texts["alice"]}); got != http.StatusUnauthorized {
		t.Errorf("revoked token: got %d", got)
	}
	if len(f.calls) != before {
		t.Error("a call of another's session has reached the loop")
	}
}

func post(t *testing.T, url, body string, header map[string]string) int {
	t.Helper()
	return send(t, http.MethodPost, url+"/mcp", body, header)
}

func send(t *testing.T, method, url, body string, header map[string]string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for k, v := range header {
		if k == "Host" {
			r.Host = v
			continue
		}
		r.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`

// DNS rebinding and foreign pages, other paths and methods, and what is too large.
func TestHTTPRefusesWhatBrowsersBring(t *testing.T) {
	s, f := newServer(t, Crude)
	url := serve(t, s, HTTPOptions{Principal: "local", Hosts: []string{"safety.example"}, Origins: []string{"https://app.example"}})
	for _, tt := range []struct {
		method, path, body string
		header             map[string]string
		want               int
	}{
		{"POST", "/mcp", initialize, nil, 200},
		{"POST", "/mcp", initialize, map[string]string{"Host": "localhost:1"}, 200},
		{"POST", "/mcp", initialize, map[string]string{"Host": "SAFETY.example"}, 200},
		{"POST", "/mcp", initialize, map[string]string{"Host": "[::1]:80"}, 200},
		{"POST", "/mcp", initialize, map[string]string{"Host": "evil.example"}, 403},
		{"POST", "/mcp", initialize, map[string]string{"Host": "127.0.0.1.evil.example"}, 403},
		{"POST", "/mcp", initialize, map[string]string{"Origin": "https://app.example"}, 200},
		{"POST", "/mcp", initialize, map[string]string{"Origin": "https://app.example.evil"}, 403},
		{"POST", "/mcp", initialize, map[string]string{"Origin": "http://localhost"}, 403},
		{"POST", "/mcp", initialize, map[string]string{"Origin": "null"}, 403},
		{"POST", "/", initialize, nil, 404},
		{"POST", "/mcp/", initialize, nil, 404},
		{"GET", "/mcp", "", nil, 405},
		{"OPTIONS", "/mcp", "", nil, 405},
		{"POST", "/mcp", initialize, map[string]string{"Content-Type": "text/plain"}, 415},
		{"POST", "/mcp", strings.Repeat(" ", maxMessage+1), nil, 400},
		{"DELETE", "/mcp", "", map[string]string{"Mcp-Session-Id": "made-up"}, 404},
	} {
		if got := send(t, tt.method, url+tt.path, tt.body, tt.header); got != tt.want && !(len(tt.body) > maxMessage && got == 413) {
			t.Errorf("%s %s %v: got %d, want %d", tt.method, tt.path, tt.header, got, tt.want)
		}
	}
	if len(f.calls) != 0 {
		t.Errorf("got %d calls, want none", len(f.calls))
	}
}

// endless is a cursor as the SDK writes them, by encoding/gob, of a structure with 2^63-1 empty ones in a map.
const endless = "Hn8DAQL_gAABAgEBWAH_hAABB0xhc3RVSUQBDAAAACf_gwQBARVtYXBbbWFpbi5rZXldbWFpbi5rZXkB_4QAAf-CAf-CAAAS_4EDAQL_ggABAQEBQQEEAAAADP-AAfh__________w=="

// What one client sends keeps no other waiting: a cursor, of any list, isn't looked at.
func TestCursorsAreRefused(t *testing.T) {
	s, _ := newServer(t, Crude)
	url := serve(t, s, HTTPOptions{Principal: "local"})
	for name, connect := range map[string]func() *mcp.ClientSession{
		"stdio": func() *mcp.ClientSession { return overStdio(t, s) },
		"http": func() *mcp.ClientSession {
			c, err := overHTTP(t, url, "")
			if err != nil {
				t.Fatal(err)
			}
			return c
		},
	} {
		c := connect()
		_, tools := c.ListTools(t.Context(), &mcp.ListToolsParams{Cursor: endless})
		_, prompts := c.ListPrompts(t.Context(), &mcp.ListPromptsParams{Cursor: endless})
		_, resources := c.ListResources(t.Context(), &mcp.ListResourcesParams{Cursor: endless})
		_, templates := c.ListResourceTemplates(t.Context(), &mcp.ListResourceTemplatesParams{Cursor: endless})
		for _, err := range []error{tools, prompts, resources, templates} {
			if err == nil || !strings.Contains(err.Error(), "no such cursor") {
				t.Errorf("%s: got %v", name, err)
			}
		}
		if list, err := connect().ListTools(t.Context(), nil); err != nil || len(list.Tools) != 3 {
			t.Errorf("%s: another client: got %v, %v", name, list, err)
		}
	}
}

// Each message is a request of its own: thousands in one would have their answers wait for each other in memory.
func TestHTTPTakesNoBatches(t *testing.T) {
	s, f := newServer(t, Crude)
	url := serve(t, s, HTTPOptions{Principal: "local"})
	c, err := overHTTP(t, url, "")
	if err != nil {
		t.Fatal(err)
	}
	body := `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"mcp_aql_read","arguments":{"operation":"x"}}}`
	header := map[string]string{"Mcp-Session-Id": c.ID()}
	for _, batch := range []string{"[" + fmt.Sprintf(body, 7) + "," + fmt.Sprintf(body, 8) + "]", " \n[" + fmt.Sprintf(body, 9) + "]"} {
		if got := post(t, url, batch, header); got != http.StatusBadRequest {
			t.Errorf("%.30q: got %d, want it refused", batch, got)
		}
	}
	if got := post(t, url, " "+fmt.Sprintf(body, 10), header); got != http.StatusOK || len(f.calls) != 1 {
		t.Errorf("one message: got %d and %d calls, want one", got, len(f.calls))
	}
}

// Each call is an entry of the audit, which a client can't have grow at its own pace. What is too soon doesn't reach the loop.
func TestCallsAreBoundedByTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := newServer(t, Crude)
		ask := func(who string) string {
			if e := s.call(t.Context(), safetyloop.Caller{Principal: who}, safetyloop.Read, []byte(`{"operation":"x"}`)).Error; e != nil {
				return e.Code
			}
			return ""
		}
		got := map[string]int{}
		for range 3 * burst {
			got[ask("a")]++
		}
		got["b"+ask("b")]++
		time.Sleep(2 * time.Second)
		for range burst {
			got["later"+ask("a")]++
		}
		want := map[string]int{
			"": burst, safetyloop.CodeRateLimit: 2 * burst, "b": 1, "later": 2 * perSecond, "later" + safetyloop.CodeRateLimit: burst - 2*perSecond,
		}
		if d := cmp.Diff(want, got); d != "" || len(f.calls) != burst+1+2*perSecond {
			t.Errorf("%d calls (-want +got):\n%s", len(f.calls), d)
		}
	})
}

func TestHTTPNeedsTokensBeyondTheLoopback(t *testing.T) {
	s, _ := newServer(t, Crude)
	_, tokens := tokensOf(t, map[string]Role{"a": Agent})
	with := func() *Tokens { return tokens }
	for _, tt := range []struct {
		o  HTTPOptions
		ok bool
	}{
		{HTTPOptions{Listens: "127.0.0.1:80", Principal: "local"}, true},
		{HTTPOptions{Listens: "[::1]:80", Principal: "local"}, true},
		{HTTPOptions{Listens: "127.0.0.1:80"}, false},
		{HTTPOptions{Listens: "0.0.0.0:80", Principal: "local"}, false},
		{HTTPOptions{Listens: "10.0.0.1:80", Principal: "local"}, false},
		{HTTPOptions{Listens: "[::]:80", Tokens: with}, true},
		{HTTPOptions{Listens: "safety.example:80", Tokens: with}, false},
		{HTTPOptions{Listens: "127.0.0.1", Principal: "local"}, false},
	} {
		if _, err := s.Handler(tt.o); (err == nil) != tt.ok {
			t.Errorf("%s, tokens %v: got %v, want ok %v", tt.o.Listens, tt.o.Tokens != nil, err, tt.ok)
		}
	}
	if _, err := New(Options{Loop: &fake{}}); err == nil {
		t.Error("no endpoints were taken")
	}
	if _, err := New(Options{Endpoints: Crude}); err == nil {
		t.Error("no loop was taken")
	}
	if err := s.ServeStdio(t.Context(), io.NopCloser(strings.NewReader("")), nil, safetyloop.Caller{}); err == nil {
		t.Error("a caller without a principal was served")
	}
}

func TestHTTPSessionsAreBounded(t *testing.T) {
	s, _ := newServer(t, Crude)
	texts, tokens := tokensOf(t, map[string]Role{"greedy": Agent, "other": Agent})
	url := serve(t, s, HTTPOptions{Tokens: func() *Tokens { return tokens }, Idle: time.Hour})
	got := map[int]int{}
	for range maxSessions + 3 {
		got[post(t, url, initialize, map[string]string{"Authorization": "Bearer " + texts["greedy"]})]++
	}
	if _, err := overHTTP(t, url, texts["other"]); err != nil {
		t.Errorf("another agent is kept out: %v", err)
	}
	if d := cmp.Diff(map[int]int{200: maxSessions, 503: 3}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// What a client says of itself is kept while its session lasts.
func TestHTTPOpeningsAreSmall(t *testing.T) {
	s, f := newServer(t, Crude)
	url := serve(t, s, HTTPOptions{Principal: "local"})
	long := strings.Repeat("{},", maxOpening/3)
	opening := strings.Replace(initialize, `"capabilities":{}`, `"capabilities":{"experimental":{"a":[`+long+`{}]}}`, 1)
	if got := post(t, url, opening, nil); got != http.StatusRequestEntityTooLarge {
		t.Errorf("got %d, want it too large", got)
	}
	c, err := overHTTP(t, url, "")
	if err != nil {
		t.Fatal(err)
	}
	if call(t, c, "mcp_aql_read", map[string]any{"operation": "x", "params": map[string]any{"a": long}}); len(f.calls) != 1 {
		t.Errorf("got %d calls, want one", len(f.calls))
	}
}

func TestTokensFileIsItsOwnersAlone(t *testing.T) {
	dir := t.TempDir()
	text, one, err := NewToken("planner", Agent)
	if err != nil {
		t.Fatal(err)
	}
	line := "tokens:\n  - {name: planner, role: agent, sha256: " + one.SHA256 + "}\n"
	file := func(content string, mode os.FileMode) string {
		path := filepath.Join(dir, "tokens.yaml")
		_ = os.Remove(path)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	tokens, err := LoadTokens(file(line, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := tokens.find(text); !ok || got.Name != "planner" || got.Role != Agent {
		t.Errorf("got %+v, %v", got, ok)
	}
	if strings.Contains(line, text) {
		t.Error("the file has the token itself")
	}
	twice := line + "  - {name: other, role: operator, sha256: " + one.SHA256 + "}\n"
	for _, tt := range []struct {
		content string
		mode    os.FileMode
	}{
		{line, 0o640}, {line, 0o604}, {twice, 0o600}, {"tokens: []\n", 0o600}, {"", 0o600}, {strings.Replace(line, "agent,", "root,", 1), 0o600},
		{strings.Replace(line, "name: planner, ", "", 1), 0o600}, {strings.Replace(line, "sha256", "hash", 1), 0o600}, {strings.Replace(line, one.SHA256, "ff", 1), 0o600},
	} {
		if _, err := LoadTokens(file(tt.content, tt.mode)); err == nil {
			t.Errorf("mode %04o was taken:\n%s", tt.mode, tt.content)
		}
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(file(line, 0o600), link); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadTokens(link); err == nil {
		t.Error("a link was followed")
	}
	if !slices.Contains(strings.Split(strings.TrimSpace(text), "_"), "agentrun") {
		t.Errorf("the token has no mark: %q", text)
	}
}
