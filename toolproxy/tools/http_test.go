// SPDX-License-Identifier: Apache-2.0

package tools_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/rings"
	"agentrun/toolproxy/egress"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/tools"
)

func TestM9CallOverHTTP(t *testing.T) {
	w := newWorld(define("math", func(_ context.Context, c tools.Call) (tools.Result, error) {
		if string(c.Args.Reveal()) != `{"a":1,"expression":"6*7"}` {
			t.Errorf("got %s, want canonical arguments", c.Args.Reveal())
		}
		return tools.Result{Output: json.RawMessage(`42`)}, nil
	}))
	url := w.serve(t).URL
	a := post(t, url+"/internal/tools/math", ` { "args" : {"expression":"6*7","a":1.0} } `)
	if a.Status != 200 || !a.OK || string(a.Output) != "42" || a.Error != nil {
		t.Errorf("got %+v, want 42", a)
	}
	if got := len(w.s.Records()); got != 1 {
		t.Errorf("got %d records, want 1", got)
	}
}

func TestListOverHTTP(t *testing.T) {
	drop := define("drop", echo)
	drop.Action.ReadOnly, drop.Action.UndoAPI = false, new("undrop")
	ask := define("ask", echo)
	ask.Approve = true
	w := newWorld(define("math", echo), drop, ask)
	url := w.serve(t).URL
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/internal/tools", nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []tools.Listing{
		{Name: "ask", Description: "Test.", Category: "A", Args: json.RawMessage(anything), Approval: true},
		{Name: "math", Description: "Test.", Category: "A", Args: json.RawMessage(anything)},
	}
	if d := cmp.Diff(want, do(t, req).Tools); d != "" {
		t.Errorf("ring 3 (-want +got):\n%s", d)
	}
	w.s.SetRing(rings.Standard)
	if got := do(t, req).Tools; len(got) != 3 {
		t.Errorf("ring 2: got %v, want three tools", got)
	}
}

// M-7 by every spelling. None may reach a handler, whatever is mounted.
func TestM7ForbiddenRoutesHaveNoSpelling(t *testing.T) {
	w := newWorld(define("math", echo))
	var reached atomic.Value
	reached.Store("")
	trap := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reached.Store(r.URL.Path)
		w.WriteHeader(http.StatusTeapot)
	})
	w.mux.Mounts = map[egress.Family]http.Handler{}
	for _, f := range []egress.Family{egress.LLMChat, egress.LLMEmbeddings, egress.Router, egress.Usage, egress.MCP} {
		w.mux.Mounts[f] = trap
	}
	server := w.serve(t)
	addr := server.Listener.Addr().String()
	var targets []string
	for _, family := range []string{"wallet", "embassy", "rwa", "projects", "messages", "governance"} {
		for _, format := range []string{
			"/internal/%s", "/internal/%s/x", "//internal/%s", "/internal//%s", "/internal/./%s", "/internal/tools/../%s", "/internal/tools/%%2e%%2e/%s",
			"/internal/tools/..;/%s", "/internal%%2f%s", "/INTERNAL/%s", "/internal/router/internal/%s", "/internal/router/..%%2f%s", "/internal/router/%%252e%%252e/%s",
			"/internal/usage/%%2e%%2e%%2f%s", "/%%69nternal/%s", "/internal/%s%%00", "/internal\\%s", "/internal/%s;x=1", "/internal/%s?x=1", "/internal/%s/",
			"/internal/tools/%%c0%%ae%%c0%%ae/%s", "/internal/router/x/../../%s", "http://" + addr + "/internal/%s", "http://evil/internal/%s", "/internal/%s#", "/./internal/%s",
		} {
			targets = append(targets, fmt.Sprintf(format, family))
		}
	}
	targets = append(targets, "/internal/elevation", "/internal", "/", "*", "/internal/router/", "/v1/", "/v1/models/", "/v1/models/../x", "/mcp/", "/MCP", "internal/wallet", addr)
	for _, target := range targets {
		for _, method := range []string{"GET", "POST"} {
			status, body := raw(t, addr, method+" "+target+" HTTP/1.1\r\nHost: "+addr+"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			if status != 403 && status != 404 && status != 400 {
				t.Errorf("%s %s: got %d %s, want a refusal", method, target, status, body)
			}
			if got := reached.Swap("").(string); got != "" {
				t.Errorf("%s %s: reached the handler of %s", method, target, got)
			}
		}
	}
	places, _, _ := w.s.Held()
	if places != 0 {
		t.Errorf("got %d places", places)
	}
	if records := w.s.Records(); !slices.ContainsFunc(records, func(r link.Record) bool {
		return r.Code == egress.CodeRouteForbidden && r.Weight == rings.Root && !r.Allowed
	}) {
		t.Errorf("got %+v, want attempts on record", records)
	}
}

func raw(t testing.TB, addr, request string) (int, string) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("%q: %v", request, err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body)
}

// THREATS, tool proxy: another sandbox's identity. Nothing of a request says who calls.
func TestM9IdentityIsNotTakenFromRequests(t *testing.T) {
	var got link.Caller
	w := newWorld(define("who", func(_ context.Context, c tools.Call) (tools.Result, error) {
		got = c.Caller
		return tools.Result{Output: json.RawMessage(`1`)}, nil
	}))
	url := w.serve(t).URL
	a := post(t, url+"/internal/tools/who", `{"args":{"agent":"agent-2","caller":{"run":"run-2"}}}`,
		"X-Agent-Id", "agent-2", "X-Run-Id", "run-2", "X-Team-Id", "team-2", "X-Forwarded-For", "10.0.0.1", "Forwarded", "for=10.0.0.1", "Authorization", "Bearer key-2",
		"Cookie", "session=run-2", "Mcp-Session-Id", "run-2", "X-Original-URL", "/internal/wallet", "X-HTTP-Method-Override", "GET")
	if a.Status != 200 || got != w.options.Caller {
		t.Errorf("got %d, %+v, want the link's caller", a.Status, got)
	}
}

func TestM13ErrorsAreJSON(t *testing.T) {
	retry := define("busy", func(context.Context, tools.Call) (tools.Result, error) {
		return tools.Result{}, &gate.Error{Code: gate.CodeRateLimited, Message: "m", Next: "n", Retry: 1500 * time.Millisecond}
	})
	w := newWorld(define("math", echo), retry)
	url := w.serve(t).URL
	deep := strings.Repeat(`{"a":`, 80) + "1" + strings.Repeat("}", 80)
	for _, tt := range []struct {
		name, path, body string
		headers          []string
		status           int
		code             rings.Code
	}{
		{"unknown tool", "/internal/tools/nothing", `{"args":{}}`, nil, 404, gate.CodeToolUnknown},
		{"below a tool", "/internal/tools/math/x", `{"args":{}}`, nil, 404, gate.CodeNotFound},
		{"unknown route", "/internal/nothing", `{}`, nil, 404, gate.CodeNotFound},
		{"not mounted", "/mcp", `{}`, nil, 404, gate.CodeNotFound},
		{"query", "/internal/tools/math?x=1", `{"args":{}}`, nil, 400, gate.CodeBadRequest},
		{"empty body", "/internal/tools/math", ``, nil, 400, gate.CodeBadRequest},
		{"no JSON", "/internal/tools/math", `args`, nil, 400, gate.CodeBadRequest},
		{"trailing", "/internal/tools/math", `{"args":{}}x`, nil, 400, gate.CodeBadRequest},
		{"twice", "/internal/tools/math", `{"args":{}}{"args":{}}`, nil, 400, gate.CodeBadRequest},
		{"other member", "/internal/tools/math", `{"args":{},"agent":"x"}`, nil, 400, gate.CodeBadRequest},
		{"case", "/internal/tools/math", `{"Args":{}}`, nil, 400, gate.CodeBadRequest},
		{"args twice", "/internal/tools/math", `{"args":{},"args":{}}`, nil, 400, gate.CodeBadRequest},
		{"array", "/internal/tools/math", `[]`, nil, 400, gate.CodeBadRequest},
		{"args array", "/internal/tools/math", `{"args":[]}`, nil, 400, gate.CodeBadArguments},
		{"args null", "/internal/tools/math", `{"args":null}`, nil, 400, gate.CodeBadArguments},
		{"name twice", "/internal/tools/math", `{"args":{"a":1,"a":2}}`, nil, 400, gate.CodeBadRequest},
		{"name twice by escape", "/internal/tools/math", `{"args":{"a":1,"\u0061":2}}`, nil, 400, gate.CodeBadRequest},
		{"deep", "/internal/tools/math", `{"args":` + deep + `}`, nil, 400, gate.CodeBadArguments},
		{"not UTF-8", "/internal/tools/math", "{\"args\":{\"a\":\"\xff\"}}", nil, 400, gate.CodeBadRequest},
		{"half a surrogate", "/internal/tools/math", `{"args":{"a":"\ud800"}}`, nil, 400, gate.CodeBadRequest},
		{"large number", "/internal/tools/math", `{"args":{"a":9007199254740993}}`, nil, 400, gate.CodeBadArguments},
		{"endless number", "/internal/tools/math", `{"args":{"a":1e999}}`, nil, 400, gate.CodeBadArguments},
		{"text", "/internal/tools/math", `{"args":{}}`, []string{"Content-Type", "text/plain"}, 400, gate.CodeBadRequest},
		{"form", "/internal/tools/math", `{"args":{}}`, []string{"Content-Type", "application/x-www-form-urlencoded"}, 400, gate.CodeBadRequest},
		{"charset", "/internal/tools/math", `{"args":{}}`, []string{"Content-Type", "application/json; charset=utf-16"}, 400, gate.CodeBadRequest},
		{"compressed", "/internal/tools/math", `{"args":{}}`, []string{"Content-Encoding", "gzip"}, 400, gate.CodeBadRequest},
		{"rebound name", "/internal/tools/math", `{"args":{}}`, []string{"Host", "evil.example"}, 400, gate.CodeBadRequest},
		{"web page", "/internal/tools/math", `{"args":{}}`, []string{"Origin", "https://evil.example"}, 400, gate.CodeBadRequest},
		{"null page", "/internal/tools/math", `{"args":{}}`, []string{"Origin", "null"}, 400, gate.CodeBadRequest},
		{"busy", "/internal/tools/busy", `{"args":{}}`, nil, 429, gate.CodeRateLimited},
		{"post to the list", "/internal/tools", `{"args":{}}`, nil, 405, gate.CodeBadRequest},
		{"well", "/internal/tools/math", `{}`, []string{"Content-Type", "application/json; charset=UTF-8"}, 200, ""},
	} {
		a := post(t, url+tt.path, tt.body, tt.headers...)
		if a.Status != tt.status || a.code() != tt.code || a.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: got %d %+v, want %d %s", tt.name, a.Status, a.Error, tt.status, tt.code)
		}
		if a.Error != nil && (a.OK || a.Error.Message == "" || a.Error.Next == "") {
			t.Errorf("%s: got %+v, want a sentence and a next step", tt.name, a.Error)
		}
		if tt.name == "busy" && a.Header.Get("Retry-After") != "2" {
			t.Errorf("got Retry-After %q, want 2", a.Header.Get("Retry-After"))
		}
	}
	w.balanced(t)
}

// THREATS, tool proxy: oversized bodies.
func TestOversizedBodies(t *testing.T) {
	w := newWorld(define("math", echo))
	server := w.serve(t)
	addr := server.Listener.Addr().String()
	long := `{"args":{"a":"` + strings.Repeat("a", tools.MaxArguments) + `"}}`
	if a := post(t, server.URL+"/internal/tools/math", long); a.Status != 413 || a.code() != gate.CodeTooLarge {
		t.Errorf("got %d %v, want 413", a.Status, a.Error)
	}
	head := "POST /internal/tools/math HTTP/1.1\r\nHost: " + addr + "\r\nContent-Type: application/json\r\n"
	if status, body := raw(t, addr, head+"Content-Length: 99999999999\r\n\r\n"); status != 413 {
		t.Errorf("announced: got %d %s, want 413 before a byte of it", status, body)
	}
	chunks := strings.Repeat(fmt.Sprintf("%x\r\n%s\r\n", 64<<10, strings.Repeat("a", 64<<10)), 17)
	if status, body := raw(t, addr, head+"Transfer-Encoding: chunked\r\n\r\n"+chunks+"0\r\n\r\n"); status != 413 {
		t.Errorf("chunked: got %d %.100s, want 413", status, body)
	}
	if got := len(w.s.Asked()); got > 3 {
		t.Errorf("got %d questions, want none but records", got)
	}
}

func TestSlowBodiesEnd(t *testing.T) {
	w := newWorld(define("math", echo))
	w.mux.BodyTimeout = 50 * time.Millisecond
	addr := w.serve(t).Listener.Addr().String()
	status, body := raw(t, addr, "POST /internal/tools/math HTTP/1.1\r\nHost: "+addr+"\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"args\"")
	if status != 408 || !strings.Contains(body, "bad_request") {
		t.Errorf("got %d %s, want 408", status, body)
	}
}

// A call may take longer than a body may: the body's deadline must not end it.
func TestLongCallsOutliveTheBodysDeadline(t *testing.T) {
	w := newWorld(define("slow", func(ctx context.Context, _ tools.Call) (tools.Result, error) {
		select {
		case <-ctx.Done():
			return tools.Result{}, ctx.Err()
		case <-time.After(200 * time.Millisecond):
			return tools.Result{Output: json.RawMessage(`1`)}, nil
		}
	}))
	w.mux.BodyTimeout = 50 * time.Millisecond
	if a := post(t, w.serve(t).URL+"/internal/tools/slow", `{"args":{}}`); a.Status != 200 {
		t.Errorf("got %d %+v, want 200", a.Status, a.Error)
	}
}

func TestRequestsAtOnceAreBounded(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	w := newWorld(define("wait", func(context.Context, tools.Call) (tools.Result, error) {
		close(entered)
		<-release
		return tools.Result{Output: json.RawMessage(`1`)}, nil
	}))
	w.mux.AtOnce = 1
	url := w.serve(t).URL
	first := make(chan answer)
	go func() { first <- post(t, url+"/internal/tools/wait", `{"args":{}}`) }()
	<-entered
	if a := post(t, url+"/internal/tools/wait", `{"args":{}}`); a.Status != 429 || a.code() != gate.CodeConcurrency || a.Header.Get("Retry-After") == "" {
		t.Errorf("got %d %+v, want 429", a.Status, a.Error)
	}
	close(release)
	if a := <-first; a.Status != 200 {
		t.Errorf("got %d, want 200", a.Status)
	}
}

func TestBodiesAtOnceAreBounded(t *testing.T) {
	w := newWorld(define("math", echo))
	w.mux.BodiesAt = 64 << 10
	url := w.serve(t).URL
	for range 3 {
		long := `{"args":{"a":"` + strings.Repeat("a", 100<<10) + `"}}`
		if a := post(t, url+"/internal/tools/math", long); a.Status != 429 {
			t.Errorf("got %d %+v, want 429", a.Status, a.Error)
		}
		if a := post(t, url+"/internal/tools/math", `{"args":{"a":"`+strings.Repeat("a", 20<<10)+`"}}`); a.Status != 200 {
			t.Errorf("got %d %+v, want 200: memory is given back", a.Status, a.Error)
		}
	}
}

func TestUnixSocketTakesAnyHost(t *testing.T) {
	w := newWorld(define("math", echo))
	w.mux.Hosts = []string{"127.0.0.1:7600"}
	w.mux.Mounts = map[egress.Family]http.Handler{egress.Tools: w.registry(t).Handler()}
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: l, Config: tools.NewServer(tools.NewMux(w.mux))}
	server.Start()
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", path) }}}
	resp, err := client.Post("http://anything/internal/tools/math", "application/json", strings.NewReader(`{"args":{}}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("got %d, want 200", resp.StatusCode)
	}
}

func TestRefusalsAreGathered(t *testing.T) {
	w := newWorld()
	mux := tools.NewMux(tools.MuxOptions{Record: w.s.Record, PerSecond: 1e6}) // the pace is another test's
	for range 1000 {
		req := httptest.NewRequest(http.MethodGet, "/internal/wallet/keys", nil)
		req.Host = "127.0.0.1:7600"
		mux.ServeHTTP(httptest.NewRecorder(), req)
	}
	mux.Close()
	var count int64
	records := w.s.Records()
	for _, r := range records {
		count += r.Count
	}
	if len(records) > 50 || count != 1000 {
		t.Errorf("got %d records of %d refusals, want few of 1000", len(records), count)
	}
}

// An agent that goes away ends its call, and the place comes back.
func TestAgentThatGoesAwayEndsItsCall(t *testing.T) {
	entered, ended := make(chan struct{}), make(chan struct{})
	w := newWorld(define("wait", func(ctx context.Context, _ tools.Call) (tools.Result, error) {
		close(entered)
		<-ctx.Done()
		close(ended)
		return tools.Result{}, ctx.Err()
	}))
	url := w.serve(t).URL
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/internal/tools/wait", strings.NewReader(`{"args":{}}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	go func() { <-entered; cancel() }()
	if resp, err := http.DefaultClient.Do(req); err == nil {
		resp.Body.Close()
		t.Error("got a reply, want none")
	}
	<-ended
}

func BenchmarkHTTP(b *testing.B) {
	w := newWorld(define("math", echo))
	url := w.serve(b).URL + "/internal/tools/math"
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1}}
	var n atomic.Int64
	b.ReportAllocs()
	for b.Loop() {
		resp, err := client.Post(url, "application/json", strings.NewReader(`{"args":{"expression":"6*7"}}`))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != 200 {
			b.Fatal(resp.StatusCode, err)
		}
		resp.Body.Close()
		if n.Add(1)%1024 == 0 {
			w.s.Forget()
		}
	}
}
