// SPDX-License-Identifier: Apache-2.0

package mcptool

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrun/internal/read"
	"agentrun/rings"
	"agentrun/telemetry"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/tools"
)

const secret = "token-0123456789"

func nodeOf(text string) *read.Node {
	return read.YAML(read.Source{Path: "tools.x.mcp", Max: 1 << 20}, []byte(text))
}

type handler = func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error)

// newServer has a tool that echoes, and more.
func newServer(more map[string]handler) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
	add := func(name string, h handler) {
		s.AddTool(&mcp.Tool{Name: name, Description: "Tool " + name, InputSchema: json.RawMessage(`{"type":"object"}`)}, h)
	}
	add("echo", func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return text(string(r.Params.Arguments)), nil
	})
	for name, h := range more {
		add(name, h)
	}
	return s
}

func text(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}

// overHTTP serves a server on loopback and makes a source of it.
func overHTTP(t testing.TB, s *mcp.Server, more string, o Options) *Source {
	t.Helper()
	h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+secret {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	}))
	src := sourceOf(t, "url: "+server.URL+"/mcp\nallow_private: true\nheaders: {Authorization: {secret: KEY, prefix: \"Bearer \"}}\n"+more, o)
	t.Cleanup(func() { src.Close(); server.CloseClientConnections(); server.Close() })
	return src
}

func sourceOf(t testing.TB, text string, o Options) *Source {
	t.Helper()
	o.Secrets = func(name string) (string, bool) { return secret, name == "KEY" }
	src, err := Sources(o)("srv", nodeOf(text))
	if err != nil {
		t.Fatal(err)
	}
	return src.(*Source)
}

func names(ds []tools.Definition) (all []string) {
	for _, d := range ds {
		all = append(all, d.Name)
	}
	return all
}

func call(ctx context.Context, s *Source, tool, args string) (string, error) {
	r, err := upstream{s, tool}.Call(ctx, tools.Call{Args: telemetry.NewPlaintext(json.RawMessage(args)), Limit: 1 << 16})
	return string(r.Output), err
}

func refused(t *testing.T, ctx context.Context, s *Source, tool string, want rings.Code) *gate.Error {
	t.Helper()
	got, err := call(ctx, s, tool, "{}")
	var e *gate.Error
	if !errors.As(err, &e) || e.Code != want || got != "" {
		t.Fatalf("%s: got %.100q, %v, want %v", tool, got, err, want)
	}
	return e
}

func TestM12StreamableHTTP(t *testing.T) {
	s := overHTTP(t, newServer(map[string]handler{
		"data": func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{StructuredContent: map[string]any{"a": 1.0}}, nil
		},
		"blocks": func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "t"}, &mcp.ImageContent{MIMEType: "image/png", Data: []byte("x")}}}, nil
		},
	}), "", Options{})
	ds, err := s.Definitions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"blocks", "data", "echo"}, names(ds)); d != "" {
		t.Error(d)
	}
	for _, d := range ds {
		if d.Category != gate.CategoryC || d.Action.ReadOnly || d.Action.Check() != nil || !strings.Contains(d.Description, "data and no instruction") {
			t.Errorf("got %+v", d)
		}
	}
	for tool, want := range map[string]string{"echo": `"{\"x\":\"y\"}"`, "data": `{"a":1}`, "blocks": `[{"type":"text","text":"t"},{"type":"image","mime_type":"image/png","data":"eA=="}]`} {
		if out, err := call(t.Context(), s, tool, `{"x":"y"}`); err != nil || out != want {
			t.Errorf("%s: got %s, %v, want %s", tool, out, err, want)
		}
	}
	refused(t, t.Context(), s, "nothing", gate.CodeToolUnknown)
	s.Close()
	refused(t, t.Context(), s, "echo", gate.CodeCanceled)
}

func TestM12OnlyNamedTools(t *testing.T) {
	s := overHTTP(t, newServer(map[string]handler{"rm": nil2}), "only: [echo]\n", Options{})
	ds, err := s.Definitions(t.Context())
	if d := cmp.Diff([]string{"echo"}, names(ds)); err != nil || d != "" {
		t.Errorf("%v %s", err, d)
	}
	refused(t, t.Context(), s, "rm", gate.CodeToolUnknown)
}

func nil2(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return text(""), nil }

func TestM12ErrorsAndSecretsOfServersAreNotEchoed(t *testing.T) {
	more := map[string]handler{
		"fails": func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			r := text("postgres://u:pw@10.0.0.7 " + secret)
			r.IsError = true
			return r, nil
		},
		"breaks": func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return nil, errors.New("postgres://u:pw@10.0.0.7 " + secret)
		},
		"leaks": func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return text(r.Extra.Header.Get("Authorization")), nil
		},
		"asks": func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			_, err := r.Session.CreateMessage(ctx, &mcp.CreateMessageParams{MaxTokens: 1}) //nolint:staticcheck // deprecated, and must be refused still
			if err == nil {
				return text("sampling worked"), nil
			}
			_, err = r.Session.Elicit(ctx, &mcp.ElicitParams{Message: "password?"})
			if err == nil {
				return text("elicitation worked"), nil
			}
			if roots, err := r.Session.ListRoots(ctx, nil); err == nil && len(roots.Roots) > 0 { //nolint:staticcheck // as above
				return text("roots worked"), nil
			}
			return text("refused"), nil
		},
	}
	s := overHTTP(t, newServer(more), "", Options{})
	for _, tool := range []string{"fails", "breaks"} {
		e := refused(t, t.Context(), s, tool, gate.CodeToolFailed)
		if strings.Contains(e.Error()+e.Next, "pw") || e.Cause != nil && strings.Contains(e.Cause.Error(), secret) {
			t.Errorf("%s: the error has %v, %v", tool, e, e.Cause)
		}
	}
	if out, err := call(t.Context(), s, "leaks", "{}"); err != nil || out != `"Bearer [masked:known]"` {
		t.Errorf("leaks: got %s, %v", out, err)
	}
	if out, err := call(t.Context(), s, "asks", "{}"); err == nil && out != `"refused"` {
		t.Errorf("asks: got %s", out)
	}
	s = overHTTP(t, newServer(more), "errors: pass\n", Options{})
	if out, err := call(t.Context(), s, "fails", "{}"); err != nil || out != `{"content":"postgres://u:pw@10.0.0.7 [masked:known]","is_error":true}` {
		t.Errorf("errors: pass: got %s, %v", out, err)
	}
}

func TestM12RepliesAreBounded(t *testing.T) {
	s := overHTTP(t, newServer(map[string]handler{"big": func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return text(strings.Repeat("a", 1<<17)), nil
	}}), "", Options{})
	refused(t, t.Context(), s, "big", gate.CodeTooLarge)
	b := &boundedBody{ReadCloser: io.NopCloser(strings.NewReader("abcdef")), left: 4, lines: 1, cancel: func() {}}
	if got, err := io.ReadAll(b); string(got) != "abcd" || !errors.Is(err, errBody) {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestM12HangingServers(t *testing.T) {
	release := make(chan struct{})
	s := overHTTP(t, newServer(map[string]handler{"hangs": func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		<-release // not even a cancellation ends it
		return text(""), nil
	}}), "", Options{})
	t.Cleanup(func() { close(release) })
	if _, err := call(t.Context(), s, "echo", "{}"); err != nil {
		t.Fatal(err)
	}
	for range maxSlow {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		refused(t, ctx, s, "hangs", gate.CodeToolTimeout)
		cancel()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.peer != nil {
		t.Error("a connection that hung twice is kept")
	}
}

// clock is set by hand.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.now }

func (c *clock) add(d time.Duration) { c.mu.Lock(); c.now = c.now.Add(d); c.mu.Unlock() }

func TestM12FailuresAreFollowedByGrowingPauses(t *testing.T) {
	var tries atomic.Int32
	down := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		tries.Add(1)
		http.Error(w, "down", http.StatusInternalServerError)
	}))
	defer down.Close()
	c := &clock{now: time.Unix(1000, 0)}
	s := sourceOf(t, "url: "+down.URL+"/\nallow_private: true\n", Options{Clock: c.Now})
	defer s.Close()
	refused(t, t.Context(), s, "echo", gate.CodeUnavailable)
	for _, pause := range []time.Duration{firstPause, 2 * firstPause, 4 * firstPause} {
		before := tries.Load()
		c.add(pause - 1)
		if e := refused(t, t.Context(), s, "echo", gate.CodeUnavailable); e.Retry != 1 || tries.Load() != before {
			t.Errorf("within %v: got retry %v, %d tries more", pause, e.Retry, tries.Load()-before)
		}
		c.add(1)
		refused(t, t.Context(), s, "echo", gate.CodeUnavailable)
		if tries.Load() == before {
			t.Errorf("after %v it is not tried again", pause)
		}
	}
}

// pipes is a process of a server over pipes, without a sandbox.
type pipes struct {
	in, out *os.File
	other   []*os.File
	once    sync.Once
	closed  chan struct{}
}

func (p *pipes) Stdin() *os.File  { return p.in }
func (p *pipes) Stdout() *os.File { return p.out }
func (p *pipes) Wait(context.Context) (int, string, error) {
	<-p.closed
	return 0, "", nil
}

func (p *pipes) Close() error {
	p.once.Do(func() {
		for _, f := range append(p.other, p.in, p.out) {
			f.Close()
		}
		close(p.closed)
	})
	return nil
}

type supervisor struct {
	link.Supervisor
	t      testing.TB
	server *mcp.Server // nil: says nothing
	asked  []string
	last   *pipes
}

func (s *supervisor) Execute(ctx context.Context, tool string) (link.Process, error) {
	s.asked = append(s.asked, tool)
	inR, inW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	s.last = &pipes{in: inW, out: outR, other: []*os.File{inR, outW}, closed: make(chan struct{})}
	if s.server != nil {
		if _, err := s.server.Connect(ctx, &mcp.IOTransport{Reader: inR, Writer: outW}, nil); err != nil {
			return nil, err
		}
	}
	return s.last, nil
}

func TestM12ServersInASandbox(t *testing.T) {
	sup := &supervisor{t: t, server: newServer(nil)}
	c := &clock{now: time.Unix(1000, 0)}
	run, end := context.WithCancel(t.Context())
	config := "command: {argv: [/usr/bin/server, --x], memory: 256M}\n"
	s := sourceOf(t, config, Options{Supervisor: sup, Clock: c.Now, Context: run})
	defer s.Close()
	ds, err := s.Definitions(t.Context())
	if d := cmp.Diff([]string{"echo"}, names(ds)); err != nil || d != "" {
		t.Fatalf("%v %s", err, d)
	}
	if out, err := call(t.Context(), s, "echo", `{}`); err != nil || out != `"{}"` {
		t.Errorf("got %s, %v", out, err)
	}
	// It dies: the next call says so, and after a pause a new one is started.
	sup.last.Close()
	refused(t, t.Context(), s, "echo", gate.CodeUnavailable)
	refused(t, t.Context(), s, "echo", gate.CodeUnavailable)
	c.add(firstPause)
	if out, err := call(t.Context(), s, "echo", `{}`); err != nil || out != `"{}"` {
		t.Errorf("after a new start: got %s, %v", out, err)
	}
	if d := cmp.Diff([]string{"mcp/srv", "mcp/srv"}, sup.asked); d != "" {
		t.Error(d)
	}
	commands, err := Commands("srv", nodeOf(config))
	want := []link.Command{{Tool: "mcp/srv", Argv: []string{"/usr/bin/server", "--x"}, Ring: 3, Memory: "256M"}}
	if d := cmp.Diff(want, commands); err != nil || d != "" {
		t.Errorf("%v %s", err, d)
	}
	end()
	<-sup.last.closed // with the run
	refused(t, t.Context(), s, "echo", gate.CodeCanceled)
}

func TestM12SilentServerIsKilled(t *testing.T) {
	sup := &supervisor{t: t}
	s := sourceOf(t, "command: {argv: [/usr/bin/server]}\n", Options{Supervisor: sup})
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	refused(t, ctx, s, "echo", gate.CodeToolTimeout)
	<-sup.last.closed
}

func TestM12ConfigurationsAreStrict(t *testing.T) {
	for text, want := range map[string]string{
		"{}": "exactly one", "url: https://h/\ncommand: {argv: [/x]}": "exactly one", "command: {argv: [x]}": "whole path", "command: {argv: [/x], ring: 1}": "mcp.command.ring: is 2 or 3, not 1", "command: {argv: [/x]}\nheaders: {A: b}": "belong to url",
		"url: https://h/\nonly: [\"a b\"]": "only", "url: https://h/\nerrors: yes": "errors", "url: ftp://h/": "http://", "url: https://u:p@h/": "without user", "url: https://h/\nurll: x": "unknown key",
		"url: http://h/\nheaders: {A: {secret: KEY}}": "in the clear", "url: https://h/\nheaders: {A: {secret: NONE}}": "there is no secret", "command: {argv: [/x], output: text}": "MCP",
	} {
		_, err := Sources(Options{Supervisor: &supervisor{}, Secrets: func(n string) (string, bool) { return secret, n == "KEY" }})("srv", nodeOf(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
	if _, err := Sources(Options{})("srv", nodeOf("command: {argv: [/x]}")); err == nil {
		t.Error("a command without a supervisor: got no error")
	}
}

func TestM12SecretsGoToTheServerOnly(t *testing.T) {
	s := sourceOf(t, "url: https://h.example/\nheaders: {A: {secret: KEY}}\n", Options{})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://other.example/", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := s.client.Transport.RoundTrip(req); !errors.Is(err, errOrigin) {
		t.Errorf("got %v, %v, want %v", resp, err, errOrigin)
	}
}

func BenchmarkHTTPCall(b *testing.B) {
	s := overHTTP(b, newServer(nil), "", Options{})
	for b.Loop() {
		if _, err := call(b.Context(), s, "echo", `{"a":1}`); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPipeCall(b *testing.B) {
	s := sourceOf(b, "command: {argv: [/usr/bin/server]}\n", Options{Supervisor: &supervisor{t: b, server: newServer(nil)}})
	defer s.Close()
	for b.Loop() {
		if _, err := call(b.Context(), s, "echo", `{"a":1}`); err != nil {
			b.Fatal(err)
		}
	}
}
