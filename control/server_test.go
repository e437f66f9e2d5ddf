// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"agentrun/internal/agentuid"
	"agentrun/rings"
)

// fake is a Controller with one run, r1, that keeps account of what it was told.
type fake struct {
	mu    sync.Mutex
	calls []string
	hook  func(verb string)
	bus   *Bus
	runs  []Sandbox
	out   string
	ended chan struct{}
}

func newFake() *fake {
	return &fake{bus: NewBus(nil), runs: []Sandbox{{ID: "r1", Name: "planner", Profile: "ring3", State: Running, BaseRing: 3, Ring: 3}}, out: "hello\n", ended: make(chan struct{})}
}

func (f *fake) did(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	f.mu.Lock()
	f.calls = append(f.calls, s)
	hook := f.hook
	f.mu.Unlock()
	if hook != nil {
		hook(s)
	}
}

func (f *fake) said() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string{}, f.calls...)
}

func (f *fake) has(id string) error {
	for _, r := range f.runs {
		if r.ID == id {
			return nil
		}
	}
	return notFound(id)
}

func (f *fake) Sandboxes(context.Context) ([]Sandbox, error) { f.did("list"); return f.runs, nil }
func (f *fake) Inspect(_ context.Context, id string) (Inspection, error) {
	f.did("inspect %s", id)
	return Inspection{Sandbox: f.runs[0], Plan: json.RawMessage(`{"ring":3}`), Refused: map[string]uint64{"ptrace": 2}}, f.has(id)
}
func (f *fake) Freeze(_ context.Context, id, by string) error {
	f.did("freeze %s %s", id, by)
	return f.has(id)
}
func (f *fake) Thaw(_ context.Context, id, by string) error {
	f.did("thaw %s %s", id, by)
	return f.has(id)
}
func (f *fake) Pause(_ context.Context, id, by string) (Pause, error) {
	f.did("pause %s %s", id, by)
	return Pause{By: by, Cause: "operator", GivenBack: 4096}, f.has(id)
}
func (f *fake) Resume(_ context.Context, id, by string) error {
	f.did("resume %s %s", id, by)
	return f.has(id)
}
func (f *fake) Extend(_ context.Context, id string, r ExtendRequest, by string) (Lease, error) {
	f.did("extend %s %v %s", id, r, by)
	return Lease{Timeout: r.Time, CPUTime: r.CPUTime}, f.has(id)
}
func (f *fake) Update(_ context.Context, id string, to Limits, dry bool, by string) (LimitChange, error) {
	f.did("update %s %v %v %s", id, to, dry, by)
	return LimitChange{Before: Limits{PIDs: 1}, After: to, DryRun: dry}, f.has(id)
}
func (f *fake) Elevate(_ context.Context, id string, r ElevateRequest, by string) (Elevation, error) {
	f.did("elevate %s %v %s", id, r, by)
	return Elevation{ID: "e1", From: rings.Sandbox, Target: r.Target, Reason: r.Reason}, f.has(id)
}
func (f *fake) Revoke(_ context.Context, id, e, by string) error {
	f.did("revoke %s %q %s", id, e, by)
	return f.has(id)
}
func (f *fake) Kill(ctx context.Context, s Selector, reason, by string) ([]KillResult, error) {
	f.did("kill %v %s %s", s, reason, by)
	if ctx.Err() != nil {
		f.did("cut short")
	}
	if !s.All && f.has(s.ID) != nil {
		return nil, nil
	}
	return []KillResult{{ID: "r1", Result: json.RawMessage(`{"processes_killed":3}`)}}, nil
}
func (f *fake) Signal(_ context.Context, id string, n int, by string) error {
	f.did("signal %s %d %s", id, n, by)
	return f.has(id)
}
func (f *fake) Wait(ctx context.Context, id string) (json.RawMessage, error) {
	f.did("wait %s", id)
	select {
	case <-f.ended:
		return json.RawMessage(`{"exit_code":7}`), nil
	case <-ctx.Done():
		f.did("wait left")
		return nil, ctx.Err()
	}
}
func (f *fake) Events(ctx context.Context, since uint64, follow bool, send func(Event) error) error {
	err := f.bus.Events(ctx, since, follow, send)
	f.did("events over")
	return err
}
func (f *fake) Output(_ context.Context, id string, _ bool, w io.Writer) error {
	if err := f.has(id); err != nil {
		return err
	}
	_, err := io.WriteString(w, f.out)
	if f.out == "broken" {
		return errors.New("disk")
	}
	return err
}
func (f *fake) Files(_ context.Context, id string, r FilesRequest) ([]FileInfo, error) {
	return []FileInfo{{Name: r.Path, Kind: "file"}}, f.has(id)
}

// ReadFiles sends the path, and WriteFiles says how much came.
func (f *fake) ReadFiles(_ context.Context, id string, r FilesRequest, by string, conn io.ReadWriter) error {
	if err := f.has(id); err != nil {
		return err
	}
	a := NewAttachServer(conn)
	if err := a.Send(Stdout, []byte(r.Path+" for "+by)); err != nil {
		return err
	}
	return a.Send(Stderr, []byte(`{"entries":1,"bytes":2,"left":0,"changed":0,"sha256":""}`))
}

func (f *fake) WriteFiles(_ context.Context, id string, r FilesRequest, _ string, conn io.ReadWriter) error {
	if err := f.has(id); err != nil {
		return err
	}
	a := NewAttachServer(conn)
	if r.Path == "full" {
		return a.Send(Stderr, []byte(`{"entries":0,"bytes":0,"left":0,"changed":0,"sha256":"","error":{"code":"conflict","message":"full"}}`))
	}
	for n := 0; ; {
		s, p, err := a.Next()
		if err != nil {
			return err
		}
		if n += len(p); s != Stdin || len(p) == 0 {
			return a.Send(Stderr, fmt.Appendf(nil, `{"entries":1,"bytes":%d,"left":0,"changed":0,"sha256":"","error":{"code":"conflict","message":"full"}}`, n))
		}
	}
}

func (f *fake) Watch(_ context.Context, id string, r FilesRequest, send func(FileChange) error) error {
	if err := f.has(id); err != nil {
		return err
	}
	return errors.Join(send(FileChange{Kind: "watching", Path: r.Path}), send(FileChange{Kind: "created", Path: r.Path + "/a\nb"}))
}

func (f *fake) Publish(_ context.Context, id string, r PortRequest, by string) (Published, error) {
	f.did("publish %s %v %s", id, r, by)
	return Published{PortInfo: PortInfo{Port: r.Port, Address: "127.0.0.1:4"}, URL: "u", Token: "t"}, f.has(id)
}

func (f *fake) Ports(_ context.Context, id string) ([]PortInfo, error) {
	return []PortInfo{{Port: 8000, Address: "127.0.0.1:4", Open: 1}}, f.has(id)
}

func (f *fake) Unpublish(_ context.Context, id string, port int, by string) error {
	f.did("unpublish %s %d %s", id, port, by)
	return f.has(id)
}

func (f *fake) Exec(ctx context.Context, id string, r ExecRequest, by string, conn io.ReadWriter) error {
	f.did("exec %s %v %s", id, r, by)
	if r.Command[0] == "waits" { // without a look at its input
		if err := NewAttachServer(conn).Send(Stdout, []byte("begun")); err != nil {
			return err
		}
		<-ctx.Done()
		f.did("exec left: %v", context.Cause(ctx))
		return nil
	}
	return f.Attach(ctx, id, conn)
}
func (f *fake) Attach(_ context.Context, id string, conn io.ReadWriter) error {
	if err := f.has(id); err != nil {
		return err
	}
	a := NewAttachServer(conn)
	for {
		s, p, err := a.Next()
		if err != nil {
			return err
		}
		if s == Stdin && len(p) == 0 {
			return a.SendExit(7)
		}
		if err := a.Send(Stdout, p); err != nil {
			return err
		}
	}
}

// served is a running server on a socket of its own.
type served struct {
	*fake
	dir    string
	client *Client
	stop   func()
	faults func() string
}

func runDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "control")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func startServer(t *testing.T, a Access) *served {
	t.Helper()
	return startIn(t, runDir(t), "sup1", newFake(), a)
}

func startIn(t *testing.T, dir, name string, f *fake, a Access) *served {
	t.Helper()
	l, err := Listen(dir, name, a)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var faults strings.Builder
	srv := &Server{Controller: f, Access: a, Version: "1.2.3", Report: func(err error) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintln(&faults, err)
	}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, l) }()
	var once sync.Once
	stop := func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("serve: %v", err)
			}
		})
	}
	t.Cleanup(stop)
	client, err := Open(dir, name)
	if err != nil {
		t.Fatal(err)
	}
	return &served{f, dir, client, stop, func() string {
		mu.Lock()
		defer mu.Unlock()
		return faults.String()
	}}
}

func (s *served) dial(t *testing.T) net.Conn {
	t.Helper()
	c, err := dial(t.Context(), s.dir, s.client.name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// send writes bytes as they are and returns the status, 0 for silence, and all of the answer.
func (s *served) send(t *testing.T, text string) (int, string) {
	t.Helper()
	c := s.dial(t)
	_, _ = io.WriteString(c, text)
	return answer(c)
}

func answer(c net.Conn) (int, string) {
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	b, _ := io.ReadAll(c)
	var status int
	_, _ = fmt.Sscanf(string(b), "HTTP/1.1 %d", &status)
	return status, string(b)
}

// raw sends "METHOD /path" with a body.
func (s *served) raw(t *testing.T, line, body string) (int, string) {
	t.Helper()
	return s.send(t, fmt.Sprintf("%s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", line, len(body), body))
}

// M-23: a held pause ends with its connection, and with it no pause that somebody else has begun since.
func TestM23HeldPause(t *testing.T) {
	for name, since := range map[string]time.Time{"ours": {}, "another's": time.Unix(1, 0)} {
		t.Run(name, func(t *testing.T) {
			s := startServer(t, Access{})
			looked := make(chan struct{})
			s.hook = func(what string) {
				if what == "inspect r1" {
					close(looked)
				}
			}
			p, letGo, err := s.client.Hold(t.Context(), "r1")
			if err != nil || p.GivenBack != 4096 {
				t.Fatalf("%+v, %v", p, err)
			}
			if said := s.said(); !slices.Equal(said, []string{"pause r1 uid:0"}) {
				t.Errorf("while it is held: %q", said)
			}
			s.mu.Lock()
			s.runs[0].Pause = &Pause{Since: since}
			s.mu.Unlock()
			letGo()
			<-looked
			s.stop()
			if resumed := slices.Contains(s.said(), "resume r1 uid:0"); resumed != (name == "ours") {
				t.Errorf("when it isn't: %q", s.said())
			}
		})
	}
	_, _, err := startServer(t, Access{}).client.Hold(t.Context(), "r2")
	if e, ok := errors.AsType[*Error](err); !ok || e.Code != CodeNotFound {
		t.Error(err)
	}
}

func TestM23VerbsReachTheController(t *testing.T) {
	s := startServer(t, Access{})
	ctx, c := t.Context(), s.client
	try := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	list, err := c.Sandboxes(ctx)
	try(err)
	if diff := cmp.Diff(s.runs, list); diff != "" {
		t.Error(diff)
	}
	i, err := c.Inspect(ctx, "r1")
	try(err)
	if string(i.Plan) != `{"ring":3}` || i.Refused["ptrace"] != 2 || i.ID != "r1" {
		t.Errorf("got %+v", i)
	}
	try(c.Freeze(ctx, "r1", "uid:666"))
	try(c.Thaw(ctx, "r1", ""))
	paused, err := c.Pause(ctx, "r1", "")
	try(err)
	if paused.GivenBack != 4096 || paused.By != "uid:0" {
		t.Errorf("got %+v", paused)
	}
	try(c.Resume(ctx, "r1", ""))
	change, err := c.Update(ctx, "r1", Limits{CPU: 1.5, PIDs: 9}, true, "")
	try(err)
	if want := (LimitChange{Limits{PIDs: 1}, Limits{CPU: 1.5, PIDs: 9}, true}); change != want {
		t.Errorf("got %v, want %v", change, want)
	}
	e, err := c.Elevate(ctx, "r1", ElevateRequest{Target: rings.Standard, TTL: time.Minute, Reason: "deploy"}, "")
	try(err)
	if e.ID != "e1" || e.Target != rings.Standard {
		t.Errorf("got %+v", e)
	}
	try(c.Revoke(ctx, "r1", "e1", ""))
	try(c.Signal(ctx, "r1", 15, ""))
	killed, err := c.Kill(ctx, Selector{All: true}, "policy_violation", "")
	try(err)
	if len(killed) != 1 || killed[0].ID != "r1" {
		t.Errorf("got %v", killed)
	}
	if none, err := c.Kill(ctx, Selector{ID: "nobody"}, "", ""); err != nil || none == nil || len(none) != 0 {
		t.Errorf("got %v, %v, want an empty list", none, err)
	}
	close(s.ended)
	status, err := c.Wait(ctx, "r1")
	try(err)
	if string(status) != "{\"exit_code\":7}\n" && string(status) != `{"exit_code":7}` {
		t.Errorf("got %q", status)
	}
	var out strings.Builder
	try(c.Output(ctx, "r1", true, &out))
	if out.String() != "hello\n" {
		t.Errorf("got %q", out.String())
	}
	if v, err := c.Version(ctx); err != nil || v != (Version{"1.2.3", APIVersion, os.Getpid()}) {
		t.Errorf("got %v, %v", v, err)
	}
	want := []string{"list", "inspect r1", "freeze r1 uid:0", "thaw r1 uid:0", "pause r1 uid:0", "resume r1 uid:0", "update r1 {1.5 0 9} true uid:0", "elevate r1 {ring 2 1m0s deploy false} uid:0",
		`revoke r1 "e1" uid:0`, "signal r1 15 uid:0", "kill {   true} policy_violation uid:0", "kill {nobody   false} manual uid:0", "wait r1"}
	if diff := cmp.Diff(want, s.said()); diff != "" {
		t.Error(diff)
	}
}

func TestM23RefusalsKeepTheirCode(t *testing.T) {
	s := startServer(t, Access{})
	err := s.client.Freeze(t.Context(), "nobody/../r1", "")
	want := &Error{Status: 404, Code: CodeBadRequest}
	if e, ok := errors.AsType[*Error](err); !ok || e.Code != want.Code {
		t.Errorf("got %v, want %s", err, want.Code)
	}
	err = s.client.Freeze(t.Context(), "nobody", "")
	if e, ok := errors.AsType[*Error](err); !ok || e.Code != CodeNotFound || e.Status != 404 || !strings.HasPrefix(e.Hint, "agentrun ps") {
		t.Errorf("got %v, want not_found", err)
	}
	if status, text := s.raw(t, "POST /v1/sandboxes/nobody/kill", ""); status != 404 {
		t.Errorf("got %s, want 404", text)
	}
	s.out = "broken"
	if err := s.client.Output(t.Context(), "r1", false, io.Discard); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v, want a broken answer", err)
	}
	s.stop()
	if err := s.client.Freeze(t.Context(), "r1", ""); err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("got %v", err)
	}
}

// TestM23MalformedRequests: what isn't exactly a request of the API reaches no Controller.
func TestM23MalformedRequests(t *testing.T) {
	s := startServer(t, Access{})
	for _, c := range []struct {
		want int
		text string
	}{
		{400, "\r\n\r\n"}, {400, "GET /v1/version\r\n\r\n"}, {400, "GET  /v1/version HTTP/1.1\r\nHost: a\r\n\r\n"}, {505, "GET /v1/version HTTP/1.0\r\nHost: a\r\n\r\n"},
		{505, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"}, {400, "GET /v1/version HTTP/1.1\nHost: a\n\n"}, {400, "GET /v1/version HTTP/1.1\r\n\r\n"},
		{400, "GET /v1/version HTTP/1.1\r\nHost: a\r\nX: b\r\n folded\r\n\r\n"}, {400, "GET /v1/version HTTP/1.1\r\nHost : a\r\n\r\n"},
		{400, "POST /v1/kill HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}"}, {400, "POST /v1/kill HTTP/1.1\r\nHost: a\r\nContent-Length: +2\r\n\r\n{}"},
		{400, "POST /v1/kill HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n"}, {411, "POST /v1/kill HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
		{400, "POST /v1/kill HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n"}, {501, "POST /v1/kill HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n"},
		{413, "POST /v1/kill HTTP/1.1\r\nHost: a\r\nContent-Length: 65537\r\n\r\n"}, {413, "POST /v1/kill HTTP/1.1\r\nHost: a\r\nContent-Length: 999999999999\r\n\r\n"},
		{431, "GET /v1/version HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 9000) + "\r\n\r\n"}, {431, "GET /" + strings.Repeat("x", 1<<20)},
		{400, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"}, {417, "POST /v1/kill HTTP/1.1\r\nHost: a\r\nExpect: tea\r\n\r\n"},
		{400, "GET http://a/v1/version HTTP/1.1\r\nHost: a\r\n\r\n"}, {400, "GET //v1/version HTTP/1.1\r\nHost: a\r\n\r\n"}, {400, "GET /v1/./version HTTP/1.1\r\nHost: a\r\n\r\n"},
		{400, "GET /v1/x/%2e%2e/version HTTP/1.1\r\nHost: a\r\n\r\n"}, {400, "GET /v1%2fversion HTTP/1.1\r\nHost: a\r\n\r\n"}, {400, "GET /v1/version/ HTTP/1.1\r\nHost: a\r\n\r\n"},
		{400, "GET /v1/version%00 HTTP/1.1\r\nHost: a\r\n\r\n"}, {400, "GET /v1/version%zz HTTP/1.1\r\nHost: a\r\n\r\n"}, {400, "GET /v1/version#a HTTP/1.1\r\nHost: a\r\n\r\n"},
		{400, "GET /v1/events?since=1&since=2 HTTP/1.1\r\nHost: a\r\n\r\n"}, {400, "GET /v1/events?follow=yes HTTP/1.1\r\nHost: a\r\n\r\n"}, {400, "GET /v1/events?since=-1 HTTP/1.1\r\nHost: a\r\n\r\n"},
		{400, "GET /v1/events?x=1 HTTP/1.1\r\nHost: a\r\n\r\n"}, {400, "GET /v1/events?since=9 HTTP/1.1\r\nHost: a\r\n\r\n"}, {400, "GET /v1/version HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"},
		{404, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"}, {404, "GET /v2/version HTTP/1.1\r\nHost: a\r\n\r\n"}, {404, "GET /V1/version HTTP/1.1\r\nHost: a\r\n\r\n"}, {400, "GET * HTTP/1.1\r\nHost: a\r\n\r\n"},
		{405, "DELETE /v1/version HTTP/1.1\r\nHost: a\r\n\r\n"}, {405, "HEAD /v1/version HTTP/1.1\r\nHost: a\r\n\r\n"}, {405, "get /v1/version HTTP/1.1\r\nHost: a\r\n\r\n"},
		{400, "POST /v1/sandboxes/r1/attach HTTP/1.1\r\nHost: a\r\n\r\n"}, {400, "POST /v1/kill HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"},
		{400, "CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n"},
	} {
		status, text := s.send(t, c.text)
		if status != c.want {
			t.Errorf("%.90q: got %d %.200q, want %d", c.text, status, text, c.want)
		}
		if _, body, _ := strings.Cut(text, "\r\n\r\n"); !strings.HasPrefix(body, `{"error":{"code":"`) {
			t.Errorf("%.90q: got %q, want an error in JSON", c.text, body)
		}
	}
	for _, call := range s.said() {
		if call != "events over" {
			t.Errorf("the controller was told %q", call)
		}
	}
}

func TestM23BodiesAreStrict(t *testing.T) {
	s := startServer(t, Access{})
	for _, c := range []struct{ line, body, want string }{
		{"POST /v1/kill", `{"selector":{"all":true},"force":true}`, "force: unknown key; known: reason, selector"},
		{"POST /v1/kill", `{"selector":{"all":true,"id":"r1"}}`, "selector: exactly one"},
		{"POST /v1/kill", `{"selector":{}}`, "selector: exactly one"},
		{"POST /v1/kill", `{}`, "selector: exactly one"},
		{"POST /v1/kill", ``, "selector: exactly one"},
		{"POST /v1/kill", `{"selector":null}`, "selector: want an object, got null"},
		{"POST /v1/kill", `{"selector":{"all":"true"}}`, "selector.all: want true or false, got text\""},
		{"POST /v1/kill", `{"selector":{"ALL":true}}`, "selector.ALL: unknown key"},
		{"POST /v1/kill", `{"selector":{"id":"a","id":"r1"}}`, "selector.id: given twice"},
		{"POST /v1/kill", `{"selector":{"id":"a","\u0069d":"r1"}}`, "selector.id: given twice"},
		{"POST /v1/kill", `{"selector":{"all":true}}{}`, "body: something follows"},
		{"POST /v1/kill", `{"selector":{"all":true}`, "body: not JSON: it ends early"},
		{"POST /v1/kill", `[{"selector":{"all":true}}]`, "body: want an object, got a list"},
		{"POST /v1/kill", `{"selector":{"all":true},"reason":"be\ncause"}`, "reason: want printable text"},
		{"POST /v1/kill", "{\"selector\":{\"id\":\"\xff\"}}", "body: not UTF-8"},
		{"POST /v1/kill", strings.Repeat(`{"selector":`, 5000), "body: not JSON"},
		{"POST /v1/kill", `{"selector":{"selector":{"all":true}}}`, "selector.selector: unknown key"},
		{"POST /v1/sandboxes/r1/freeze", `{"a":1}`, "a: unknown key; there are none here"},
		{"POST /v1/sandboxes/r1/freeze", `null`, "body: want an object, got null"},
		{"POST /v1/sandboxes/r1/elevate", ``, "reason: missing; target_ring: missing"},
		{"POST /v1/sandboxes/r1/elevate", `{"ttl_ns":"5m","dryrun":true}`, "dryrun: unknown key; did you mean dry_run?; reason: missing; target_ring: missing; ttl_ns: want a whole number, got text"},
		{"POST /v1/sandboxes/r1/elevate", `{"target_ring":2}`, "reason: missing"},
		{"POST /v1/sandboxes/r1/elevate", `{"reason":"x"}`, "target_ring: missing"},
		{"POST /v1/sandboxes/r1/elevate", `{"target_ring":4,"reason":"x"}`, "target_ring: ring 4: a ring is 0, 1, 2 or 3"},
		{"POST /v1/sandboxes/r1/elevate", `{"target_ring":"2","reason":"x"}`, "target_ring: ring"},
		{"POST /v1/sandboxes/r1/elevate", `{"target_ring":null,"reason":"x"}`, "target_ring: ring null"},
		{"POST /v1/sandboxes/r1/elevate", `{"target_ring":2,"reason":"a\nb"}`, "reason: want printable"},
		{"POST /v1/sandboxes/r1/elevate", `{"target_ring":2,"reason":"a\u202eb"}`, "reason: want printable"},
		{"POST /v1/sandboxes/r1/elevate", `{"target_ring":2,"reason":"` + strings.Repeat("a", 1025) + `"}`, "reason: want at most 1024 bytes"},
		{"POST /v1/sandboxes/r1/elevate", `{"target_ring":2,"ttl_ns":1e30,"reason":"x"}`, "ttl_ns: want a whole number"},
		{"POST /v1/sandboxes/r1/signal", `{"signal":0}`, "signal: want 1 to 64"},
		{"POST /v1/sandboxes/r1/signal", `{"signal":65}`, "signal: want 1 to 64"},
		{"POST /v1/sandboxes/r1/signal", `{"signal":9}`, "signal: kill, freeze and thaw do this"},
		{"POST /v1/sandboxes/r1/signal", `{"signal":19}`, "signal: kill, freeze and thaw do this"},
		{"POST /v1/sandboxes/r1/signal", `{"signal":9.5}`, "signal: want a whole number"},
		{"POST /v1/sandboxes/r1/signal", `{"\u001b[31m":9}`, `\"\\x1b[31m\": unknown key`},
		{"PATCH /v1/sandboxes/r1/limits", `{}`, "body: it changes nothing"},
		{"PATCH /v1/sandboxes/r1/limits", `{"cpu":-1}`, "cpu: want"},
		{"PATCH /v1/sandboxes/r1/limits", `{"cpu":1e999}`, "cpu: want a decimal number"},
		{"PATCH /v1/sandboxes/r1/limits", `{"pids":-1}`, "pids: want"},
		{"PATCH /v1/sandboxes/r1/limits?dry_run=1", `{"pids":1}`, "dry_run: want true or false"},
		{"PATCH /v1/sandboxes/r1/limits?dryrun=true", `{"pids":1}`, "dryrun: unknown parameter"},
	} {
		status, text := s.raw(t, c.line, c.body)
		if status != 400 || !strings.Contains(text, `"message":"`+c.want) {
			t.Errorf("%s %.60s: got %d %.300q, want 400 with %q", c.line, c.body, status, text, c.want)
		}
	}
	if calls := s.said(); len(calls) > 0 {
		t.Errorf("the controller was told %v", calls)
	}
}

// TestM23NoSecondRequest: bytes after the request are nobody's, whether called a longer body or a pipeline.
func TestM23NoSecondRequest(t *testing.T) {
	s := startServer(t, Access{})
	status, text := s.send(t, "POST /v1/sandboxes/r1/freeze HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"+
		"POST /v1/kill HTTP/1.1\r\nHost: a\r\nContent-Length: 25\r\n\r\n{\"selector\":{\"all\":true}}")
	if status != 200 || strings.Count(text, "HTTP/1.1") != 1 {
		t.Errorf("got %q, want one answer", text)
	}
	if diff := cmp.Diff([]string{"freeze r1 uid:0"}, s.said()); diff != "" {
		t.Error(diff)
	}
}

// as runs f on a thread that has other credentials; the rest of the process keeps its own.
func as(t *testing.T, uid, gid int, groups []uint32, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("these tests need root, to be somebody else")
	}
	done := make(chan error)
	go func() {
		goruntime.LockOSThread() // never unlocked: the thread ends with its credentials
		var list *uint32
		if len(groups) > 0 {
			list = &groups[0]
		}
		err := setThreadGroups(len(groups), list)
		for _, set := range []struct {
			call uintptr
			id   int
		}{{unix.SYS_SETRESGID, gid}, {unix.SYS_SETRESUID, uid}} {
			if _, _, errno := unix.RawSyscall(set.call, uintptr(set.id), uintptr(set.id), uintptr(set.id)); errno != 0 && err == nil {
				err = errno
			}
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func (s *served) rawAs(t *testing.T, uid, gid int, groups []uint32, line, body string) (status int, text string) {
	t.Helper()
	as(t, uid, gid, groups, func() {
		c, err := dial(t.Context(), s.dir, s.client.name)
		if err != nil {
			text = err.Error()
			return
		}
		defer c.Close()
		fmt.Fprintf(c, "%s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", line, len(body), body)
		status, text = answer(c)
	})
	return status, text
}

func TestM23PeersByCredentials(t *testing.T) {
	const readers, operators = 54321, 54322
	s := startServer(t, Access{ReadGroup: readers, OperateGroup: operators})
	many := make([]uint32, 300)
	for i := range many {
		many[i] = uint32(60000 + i)
	}
	for _, c := range []struct {
		name             string
		uid, gid         int
		groups           []uint32
		get, post, limit int // limit: PATCH; 0: silence
	}{
		{"root", 0, 0, nil, 200, 200, 200},
		{"another user", 1000, 1000, nil, 403, 403, 403},
		{"a reader by its group", 1000, readers, nil, 200, 403, 403},
		{"a reader by a supplementary group", 1000, 1000, []uint32{7, readers}, 200, 403, 403},
		{"an operator", 1000, 1000, []uint32{operators}, 200, 200, 200},
		{"an operator by its group", 1000, operators, nil, 200, 200, 200},
		{"both", 1000, readers, []uint32{operators}, 200, 200, 200},
		{"an operator of 301 groups", 1000, 1000, append(many, operators), 200, 200, 200},
		{"group root is no access", 1000, 0, []uint32{0}, 403, 403, 403},
		{"an agent", agentuid.First + 1000, agentuid.First + 1000, nil, 0, 0, 0},
		{"an agent in the operators' group", agentuid.First + 65536*4095 + 1000, operators, []uint32{operators, readers, 0}, 0, 0, 0},
		{"the first sandbox id", agentuid.First, operators, nil, 0, 0, 0},
		{"the last id", 0xfffffffe, operators, nil, 0, 0, 0},
	} {
		for line, want := range map[string]int{"GET /v1/sandboxes": c.get, "POST /v1/sandboxes/r1/freeze": c.post, "PATCH /v1/sandboxes/r1/limits": c.limit} {
			body := map[string]string{"P": "{}", "G": ""}[line[:1]]
			if strings.HasPrefix(line, "PATCH") {
				body = `{"pids":5}`
			}
			status, text := s.rawAs(t, c.uid, c.gid, c.groups, line, body)
			if status != want {
				t.Errorf("%s: %s: got %d %q, want %d", c.name, line, status, text, want)
			}
			if want == 0 && text != "" {
				t.Errorf("%s: %s: got %q, want silence", c.name, line, text)
			}
			if want == 403 && !strings.HasSuffix(text, "\r\n\r\n{\"error\":{\"code\":\"forbidden\",\"message\":\"forbidden\"}}\n") {
				t.Errorf("%s: %s: got %q, want no detail", c.name, line, text)
			}
		}
	}
	for _, call := range s.said() {
		if strings.HasSuffix(call, "uid:0") || strings.HasSuffix(call, "uid:1000") || call == "list" {
			continue
		}
		t.Errorf("got %q", call)
	}
	// Routes that don't exist aren't told from those that do, to who may not use them.
	if status, text := s.rawAs(t, 1000, readers, nil, "POST /v1/nothing", ""); status != 403 {
		t.Errorf("got %s, want 403", text)
	}
}

// TestM23NoAccessByDefault: the mode alone keeps others out.
func TestM23NoAccessByDefault(t *testing.T) {
	s := startServer(t, Access{})
	if err := os.Chmod(s.dir, 0o711); err != nil {
		t.Fatal(err)
	}
	if status, text := s.rawAs(t, 1000, 1000, nil, "GET /v1/version", ""); status != 0 || !strings.Contains(text, "permission denied") {
		t.Errorf("got %d %q, want permission denied", status, text)
	}
	// And if the mode didn't, the credentials would.
	if err := os.Chmod(filepath.Join(s.dir, "control", "sup1.sock"), 0o666); err != nil {
		t.Fatal(err)
	}
	if status, _ := s.rawAs(t, 1000, 1000, nil, "GET /v1/version", ""); status != 403 {
		t.Errorf("got %d, want 403", status)
	}
}

// TestM23OtherUserNamespace: root of a user namespace of its own, which an agent of a rootless run is, has the supervisor's
// user id and is not answered.
func TestM23OtherUserNamespace(t *testing.T) {
	s := startServer(t, Access{})
	const ask = `exec curl -sS --max-time 5 --unix-socket "$0" http://a/v1/version`
	path := filepath.Join(s.dir, "control", "sup1.sock")
	run := func(flags uintptr) (string, error) {
		cmd := exec.Command("sh", "-c", ask, path)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
		if flags != 0 {
			cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{Size: 1}}
			cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{Size: 1}}
		}
		b, err := cmd.CombinedOutput()
		return string(b), err
	}
	if got, err := run(0); err != nil || !strings.Contains(got, "1.2.3") {
		t.Fatalf("got %q, %v, want the version", got, err)
	}
	if got, err := run(syscall.CLONE_NEWUSER); err == nil || strings.Contains(got, "{") {
		t.Errorf("got %q, %v, want silence", got, err)
	}
	if calls := s.said(); len(calls) > 0 {
		t.Errorf("the controller was told %v", calls)
	}
}

// TestM23PeerThatIsGone: whose namespace can't be looked at any more isn't answered, and what it left to be read isn't done.
func TestM23PeerThatIsGone(t *testing.T) {
	l, err := Listen(runDir(t), "sup1", Access{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir := l.(*listener).dir
	cmd := exec.Command("curl", "-sS", "--max-time", "0.1", "-X", "POST", "--unix-socket", "/proc/self/fd/3/sup1.sock", "http://a/v1/sandboxes/r1/freeze")
	cmd.ExtraFiles = []*os.File{dir.f}
	if err := cmd.Run(); err == nil {
		t.Fatal("nobody accepts, and curl has an answer")
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if p, err := peerOf(c); !errors.Is(err, errSilence) {
		t.Errorf("got %v, %v, want silence", p, err)
	}
}

// TestM23PanicIsOneRequests: a fault in a handler is answered, told, and over.
func TestM23PanicIsOneRequests(t *testing.T) {
	s := startServer(t, Access{})
	s.hook = func(verb string) {
		if strings.HasPrefix(verb, "freeze") {
			panic("secret of the supervisor")
		}
	}
	status, text := s.raw(t, "POST /v1/sandboxes/r1/freeze", "{}")
	if status != 500 || strings.Contains(text, "secret") {
		t.Errorf("got %d %q, want 500 without the panic's text", status, text)
	}
	if !strings.Contains(s.faults(), "secret of the supervisor") {
		t.Errorf("got %q, want the panic's text told", s.faults())
	}
	if err := s.client.Thaw(t.Context(), "r1", ""); err != nil {
		t.Error(err)
	}
}

// TestM23ManyConnections: 1000 silent connections of a group's member leave root its place; 1000 of root's own are bounded
// and over when their time is.
func TestM23ManyConnections(t *testing.T) {
	const operators = 54322
	s := startServer(t, Access{OperateGroup: operators})
	var held []net.Conn
	defer func() {
		for _, c := range held {
			c.Close()
		}
	}()
	as(t, 1000, operators, nil, func() {
		for range 1000 {
			c, err := dial(t.Context(), s.dir, "sup1")
			if err != nil {
				t.Error(err)
				return
			}
			held = append(held, c)
		}
	})
	if _, err := s.client.Sandboxes(t.Context()); err != nil {
		t.Errorf("root beside 1000 connections of another: %v", err)
	}
	if status, text := s.rawAs(t, 1000, operators, nil, "GET /v1/sandboxes", ""); status != 503 && status != 0 {
		t.Errorf("got %d %q, want 503 or silence", status, text)
	}
	if status, text := s.rawAs(t, 1001, operators, nil, "GET /v1/sandboxes", ""); status != 200 {
		t.Errorf("got %d %q: one user took the places of another", status, text)
	}
}

// TestM23WhoWaitsLeavesRoom: those who wait for runs, whoever they are, keep nobody from what is answered at once.
func TestM23WhoWaitsLeavesRoom(t *testing.T) {
	const operators = 54322
	s := startServer(t, Access{OperateGroup: operators})
	begun := make(chan struct{})
	s.hook = func(what string) {
		if what == "wait r1" {
			begun <- struct{}{}
		}
	}
	// waits has a user wait for the run until one is refused.
	waits := func(uid int) (n int) {
		for refused := make(chan string, waiting.all); ; n++ {
			var c net.Conn
			as(t, uid, operators, nil, func() { c = s.dial(t) })
			_, _ = io.WriteString(c, "GET /v1/sandboxes/r1/wait HTTP/1.1\r\nHost: a\r\n\r\n")
			go func() {
				if status, text := answer(c); status != 0 {
					refused <- text
				}
			}()
			select {
			case <-begun:
			case text := <-refused:
				if !strings.Contains(text, "503") || !strings.Contains(text, "answered at once") {
					t.Errorf("refused by %q", text)
				}
				return n
			}
		}
	}
	room := func(uid int) {
		if status, text := s.rawAs(t, uid, operators, nil, "POST /v1/sandboxes/r1/kill", `{}`); status != 200 {
			t.Errorf("kill by user %d: %d %q", uid, status, text)
		}
	}
	if n := waits(1000); n != waiting.user {
		t.Errorf("%d of one user wait", n)
	}
	room(1000)
	if n := waits(1001) + waits(1002) + waits(1003); n != waiting.others-waiting.user {
		t.Errorf("%d of others wait", n)
	}
	room(1003)
	if n := waits(0); n != waiting.all-waiting.others {
		t.Errorf("%d of root's wait", n)
	}
	room(1000)
	if _, err := s.client.Kill(t.Context(), Selector{All: true}, "", ""); err != nil {
		t.Errorf("kill by root: %v", err)
	}
	for line, body := range map[string]string{"GET /v1/sandboxes/r1/output?follow=true": "", "GET /v1/events?follow=true": "", "POST /v1/sandboxes/r1/pause?held=true": "{}"} {
		if status, text := s.raw(t, line, body); status != 503 {
			t.Errorf("%s: %d %q", line, status, text)
		}
	}
}

// pipe gives a server connections without a socket, so that time can be the test's.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }
func (p *pipes) dial() net.Conn {
	ours, theirs := net.Pipe()
	p.conns <- theirs
	return ours
}

func withPipes(t *testing.T, f *fake, test func(p *pipes, end func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f.bus, f.ended = NewBus(nil), make(chan struct{})
		p := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
		s := &Server{Controller: f, peerOf: func(net.Conn) (peer, error) { return peer{}, nil }}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Serve(ctx, p) }()
		end := sync.OnceFunc(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		defer end()
		test(p, end)
	})
}

// TestM23HalfARequest: half a request and then silence holds a place for ten seconds, dripped or not.
func TestM23HalfARequest(t *testing.T) {
	for _, half := range []string{"", "POST /v1/ki", "POST /v1/kill HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{\"sel"} {
		withPipes(t, newFake(), func(p *pipes, _ func()) {
			c, start := p.dial(), time.Now()
			_, _ = io.WriteString(c, half)
			dripped := make(chan struct{})
			defer func() { <-dripped }()
			go func() {
				defer close(dripped)
				for { // one byte a second moves no deadline
					time.Sleep(time.Second)
					if _, err := c.Write([]byte("x")); err != nil {
						return
					}
				}
			}()
			b, _ := io.ReadAll(c)
			if took := time.Since(start); len(b) > 0 || took != requestTime {
				t.Errorf("%q: got %q after %v, want nothing after %v", half, b, took, requestTime)
			}
		})
	}
}

// TestM23ReaderThatNeverReads: a stream that isn't taken ends, and the events go on without it.
func TestM23ReaderThatNeverReads(t *testing.T) {
	dir := runDir(t)
	l, err := Listen(dir, "sup1", Access{})
	if err != nil {
		t.Fatal(err)
	}
	f := newFake()
	over := make(chan struct{})
	f.hook = func(verb string) { close(over) }
	srv := &Server{Controller: f, stall: 50 * time.Millisecond}
	go func() { _ = srv.Serve(t.Context(), l) }()
	c, err := dial(t.Context(), dir, "sup1")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, "GET /v1/events?follow=true HTTP/1.1\r\nHost: a\r\n\r\n")
	for published := false; !published; {
		select {
		case <-over:
			published = true
		default:
			f.bus.Publish(Event{Kind: EventRefused, ID: "r1", Data: map[string]string{"syscall": strings.Repeat("x", 1000)}})
		}
	}
	if _, text := answer(c); strings.HasSuffix(text, "0\r\n\r\n") {
		t.Error("a stream that was broken off has a good end")
	}
}

// TestM23EventsStream: what a reader sees, with the sign of life of a quiet time, up to the supervisor's end.
func TestM23EventsStream(t *testing.T) {
	f := newFake()
	withPipes(t, f, func(p *pipes, end func()) {
		f.bus.Publish(Event{Kind: EventStarted, ID: "r1", At: time.Unix(1, 0).UTC()})
		c := p.dial()
		_, _ = io.WriteString(c, "GET /v1/events HTTP/1.1\r\nHost: a\r\nLast-Event-ID: 0\r\n\r\n")
		text, _ := io.ReadAll(c)
		want := "id: 1\nevent: started\ndata: {\"seq\":1,\"at\":\"1970-01-01T00:00:01Z\",\"kind\":\"started\",\"id\":\"r1\"}\n\n"
		if !strings.Contains(string(text), want) || !strings.HasSuffix(string(text), "0\r\n\r\n") {
			t.Errorf("got %q, want %q in it", text, want)
		}
		c = p.dial()
		_, _ = io.WriteString(c, "GET /v1/events?since=1&follow=true HTTP/1.1\r\nHost: a\r\n\r\n")
		got := make(chan string)
		go func() { b, _ := io.ReadAll(c); got <- string(b) }()
		time.Sleep(31 * time.Second)
		f.bus.Publish(Event{Kind: "x\ny", ID: "r1"})
		synctest.Wait()
		f.bus.Close()
		end()
		all := <-got
		if n := strings.Count(all, ": still here\n\n"); n != 3 {
			t.Errorf("got %d signs of life in 31 s, want 3: %q", n, all)
		}
		if !strings.Contains(all, "id: 2\nevent: other\n") || !strings.HasSuffix(all, "0\r\n\r\n") {
			t.Errorf("got %q", all)
		}
	})
}

// TestH21KillIsAnsweredAtTheEnd: a supervisor that ends because its run was killed tells so before; who only waits is let go.
func TestH21KillIsAnsweredAtTheEnd(t *testing.T) {
	f := newFake()
	withPipes(t, f, func(p *pipes, end func()) {
		begun := make(chan struct{})
		f.hook = func(verb string) {
			if strings.HasPrefix(verb, "kill") {
				close(begun)
				time.Sleep(time.Second)
			}
		}
		c, idle, waits := p.dial(), p.dial(), p.dial()
		_, _ = io.WriteString(waits, "GET /v1/sandboxes/r1/wait HTTP/1.1\r\nHost: a\r\n\r\n")
		_, _ = io.WriteString(c, "POST /v1/kill HTTP/1.1\r\nHost: a\r\nContent-Length: 25\r\n\r\n{\"selector\":{\"all\":true}}")
		answers := make(chan string, 3)
		for _, c := range []net.Conn{c, idle, waits} {
			go func() { b, _ := io.ReadAll(c); answers <- string(b) }()
		}
		<-begun
		start := time.Now()
		end()
		if took := time.Since(start); took > 2*graceTime {
			t.Errorf("got %v, want at most %v", took, 2*graceTime)
		}
		kills := 0
		for range 3 {
			if a := <-answers; strings.Contains(a, "processes_killed") {
				kills++
			}
		}
		if kills != 1 {
			t.Errorf("got %d answers of a kill, want 1", kills)
		}
	})
}

// TestM23LeavingEndsAWait: and doesn't end a kill.
func TestM23LeavingEndsAWait(t *testing.T) {
	f := newFake()
	withPipes(t, f, func(p *pipes, _ func()) {
		c := p.dial()
		_, _ = io.WriteString(c, "GET /v1/sandboxes/r1/wait HTTP/1.1\r\nHost: a\r\n\r\n")
		synctest.Wait()
		c.Close()
		synctest.Wait()
		if diff := cmp.Diff([]string{"wait r1", "wait left"}, f.said()); diff != "" {
			t.Error(diff)
		}
		begun := make(chan struct{})
		f.hook = func(verb string) {
			if strings.HasPrefix(verb, "kill") {
				close(begun)
				time.Sleep(time.Second)
			}
		}
		c = p.dial()
		_, _ = io.WriteString(c, "POST /v1/kill HTTP/1.1\r\nHost: a\r\nContent-Length: 25\r\n\r\n{\"selector\":{\"all\":true}}")
		<-begun
		c.Close()
		time.Sleep(2 * time.Second)
		if got := f.said(); got[len(got)-1] != "kill {   true} manual uid:0" {
			t.Errorf("got %q, want the kill to its end", got)
		}
	})
}

func TestM23Attach(t *testing.T) {
	s := startServer(t, Access{})
	if _, _, err := s.client.OpenAttach(t.Context(), "nobody"); err == nil || !strings.Contains(err.Error(), "no live run") {
		t.Errorf("got %v, want not_found", err)
	}
	a, conn, err := s.client.OpenAttach(t.Context(), "r1")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	big := strings.Repeat("0123456789", 10_000)
	go func() { _ = a.Send(Stdin, []byte(big)); _ = a.Send(Stdin, nil) }()
	var got strings.Builder
	for {
		stream, p, err := a.Next()
		if err != nil {
			t.Fatal(err)
		}
		if stream == Exit {
			if code, err := ExitCode(p); code != 7 || err != nil {
				t.Errorf("got %d, %v, want 7", code, err)
			}
			break
		}
		got.Write(p)
	}
	if got.String() != big {
		t.Errorf("got %d bytes, want %d", got.Len(), len(big))
	}
	// The first frames may come with the request.
	c := s.dial(t)
	_, _ = io.WriteString(c, "POST /v1/sandboxes/r1/attach HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: agentrun-attach\r\n\r\n\x00\x00\x00\x00\x02hi\x00\x00\x00\x00\x00")
	_, text := answer(c)
	if !strings.HasPrefix(text, "HTTP/1.1 101 ") || !strings.HasSuffix(text, "\r\n\r\n\x01\x00\x00\x00\x02hi\x04\x00\x00\x00\x04\x00\x00\x00\x07") {
		t.Errorf("got %q", text)
	}
}

// TestM23OtherClients: curl and net/http read every kind of answer.
func TestM23OtherClients(t *testing.T) {
	s := startServer(t, Access{})
	s.bus.Publish(Event{Kind: EventStarted, ID: "r1"})
	path := filepath.Join(s.dir, "control", "sup1.sock")
	web := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}
	for _, c := range []struct{ method, path, body, want string }{
		{"GET", "/v1/version", "", `"version":"1.2.3"`},
		{"GET", "/v1/openapi.json", "", `"openapi": "3.1.0"`},
		{"POST", "/v1/sandboxes/r1/elevate", `{"target_ring":2,"ttl_ns":60000000000,"reason":"deploy"}`, `"elevation_id":"e1"`},
		{"PATCH", "/v1/sandboxes/r1/limits?dry_run=true", `{"pids":4}`, `"dry_run":true`},
		{"GET", "/v1/sandboxes/r1/output?follow=true", "", "hello\n"},
		{"GET", "/v1/events?since=0", "", "event: started\n"},
		{"POST", "/v1/kill", `{"selector":{"id":"r1"}}`, `"processes_killed":3`},
		{"POST", "/v1/kill", `{"selector":{"id":"` + strings.Repeat("r", 70_000) + `"}}`, "longer than"},
	} {
		args := []string{"-sS", "--max-time", "10", "-X", c.method, "--unix-socket", path, "http://localhost" + c.path}
		if c.body != "" {
			args = append(args, "-d", "@-")
		}
		cmd := exec.Command("curl", args...)
		cmd.Stdin = strings.NewReader(c.body)
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), c.want) {
			t.Errorf("curl %s %s: got %q, %v, want %q", c.method, c.path, out, err, c.want)
		}
		r, err := http.NewRequestWithContext(t.Context(), c.method, "http://localhost"+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := web.Do(r)
		if err != nil {
			t.Errorf("net/http %s %s: %v", c.method, c.path, err)
			continue
		}
		text, err := io.ReadAll(resp.Body)
		if resp.Body.Close(); err != nil || !strings.Contains(string(text), c.want) {
			t.Errorf("net/http %s %s: got %q, %v, want %q", c.method, c.path, text, err, c.want)
		}
	}
}

func TestServerNeedsAController(t *testing.T) {
	l := &pipes{done: make(chan struct{})}
	if err := (&Server{}).Serve(t.Context(), l); err == nil {
		t.Error("got none, want an error")
	}
}

func BenchmarkDecodeBody(b *testing.B) {
	body := []byte(`{"selector":{"id":"a1b2c3"},"reason":"operator's wish"}`)
	b.ReportAllocs()
	for b.Loop() {
		var r KillRequest
		if err := decodeBody(body, &r); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzDecodeBody(f *testing.F) {
	f.Add([]byte(`{"selector":{"id":"a"},"reason":"x"}`))
	f.Add([]byte(`{"selector":{"id":"a","id":"b"}}`))
	f.Add([]byte(`{"target_ring":2}`))
	f.Fuzz(func(t *testing.T, unsafe []byte) {
		var r KillRequest
		err := decodeBody(unsafe, &r)
		if err != nil {
			if e, ok := errors.AsType[*Error](err); !ok || e.Status != 400 {
				t.Fatalf("%q: %v", unsafe, err)
			}
			return
		}
		// What is taken, encoding/json takes, and finds the same in it.
		var want KillRequest
		if len(unsafe) > 0 {
			if err := json.Unmarshal(unsafe, &want); err != nil {
				t.Fatalf("%q: %v", unsafe, err)
			}
		}
		if want != r {
			t.Fatalf("%q: got %v, want %v", unsafe, r, want)
		}
	})
}

func TestM23Exec(t *testing.T) {
	s := startServer(t, Access{})
	ask := ExecRequest{Command: []string{"ls", "-l"}, Env: []string{"A=1"}, Cwd: "/tmp", TTY: true, Rows: 2, Columns: 3, Timeout: time.Second}
	ours, theirs := net.Pipe()
	answer := make(chan error, 1)
	go func() { answer <- s.client.Exec(t.Context(), "r1", ask, "", theirs); theirs.Close() }()
	a := NewAttachClient(ours)
	go func() { _ = a.Send(Stdin, []byte("typed")); _ = a.Send(Stdin, nil) }()
	var got []string
	for {
		stream, p, err := a.Next()
		if err != nil {
			break
		}
		got = append(got, fmt.Sprintf("%d %q", stream, p))
	}
	if want := []string{`1 "typed"`, `4 "\x00\x00\x00\a"`}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if err := <-answer; err != nil {
		t.Error(err)
	}
	if got, want := s.said(), fmt.Sprintf("exec r1 %v uid:%d", ask, os.Geteuid()); !slices.Contains(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for bad, r := range map[string]ExecRequest{
		"command: ": {}, "timeout_ns: ": {Command: []string{"x"}, Timeout: -1}, "rows: ": {Command: []string{"x"}, Rows: 1 << 16}, "detach: ": {Command: []string{"x"}, TTY: true, Detach: true},
	} {
		if err := s.client.Exec(t.Context(), "r1", r, "", ours); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("%+v: got %v, want what is wrong with %s", r, err, bad)
		}
	}
	if err := s.client.Exec(t.Context(), "nobody", ask, "", ours); err == nil || !strings.Contains(err.Error(), "no live run") {
		t.Errorf("got %v, want not_found", err)
	}
}

// A command that looks at no input, and a peer that has sent some and gone: the end is seen all the same.
func TestM23ExecSeesItsPeerLeave(t *testing.T) {
	s := startServer(t, Access{})
	ours, theirs := net.Pipe()
	ctx, leave := context.WithCancel(t.Context())
	go func() { _ = s.client.Exec(ctx, "r1", ExecRequest{Command: []string{"waits"}}, "", theirs) }()
	a := NewAttachClient(ours)
	if _, p, err := a.Next(); err != nil || string(p) != "begun" {
		t.Fatalf("got %q, %v", p, err)
	}
	if err := a.Send(Stdin, []byte("unread")); err != nil {
		t.Fatal(err)
	}
	leave()
	ours.Close()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if got := s.said(); strings.HasPrefix(got[len(got)-1], "exec left: whoever ran it") {
			return
		} else if time.Now().After(end) {
			t.Fatalf("got %q, want the command told", got)
		}
	}
}
