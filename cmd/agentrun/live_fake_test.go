// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/control"
	"agentrun/rings"
)

var liveNow = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// fakeNode is a node of one or more fake supervisors; silent ones don't answer.
type fakeNode struct {
	mu     sync.Mutex
	supers []*fakeSuper
	silent error
}

func (n *fakeNode) All(context.Context) ([]liveRun, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []liveRun
	for _, s := range n.supers {
		for _, b := range s.boxes {
			all = append(all, liveRun{b, s})
		}
	}
	return all, n.silent
}

func (n *fakeNode) Find(ctx context.Context, ref string) (liveRun, error) {
	all, _ := n.All(ctx)
	for _, r := range all {
		if r.ID == ref || r.Name == ref || len(ref) >= 2 && strings.HasPrefix(r.ID, ref) {
			return r, nil
		}
	}
	return liveRun{}, &control.Error{Status: 404, Code: control.CodeNotFound, Message: fmt.Sprintf("no live run %q", ref)}
}

func (n *fakeNode) Supervisors(context.Context) ([]liveSupervisor, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var list []liveSupervisor
	for i, s := range n.supers {
		list = append(list, liveSupervisor{name: fmt.Sprintf("s%d", i), key: fmt.Sprintf("s%d", i), Controller: s})
	}
	return list, n.silent
}

// fakeSuper answers for its boxes and keeps what it was asked to do.
type fakeSuper struct {
	mu     sync.Mutex
	boxes  []control.Sandbox
	did    []string
	refuse map[string]error // by method or "method id"
	events []control.Event
	status map[string]string
	kills  map[string]string // id → result
	inside control.Inspection
	output string
	files  []control.FileInfo
	attach func(io.ReadWriter) error
	stream func(ctx context.Context, since uint64, send func(control.Event) error) error
}

func (f *fakeSuper) do(method, id string, more ...any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.did = append(f.did, strings.Join(strings.Fields(method+" "+id+" "+fmt.Sprintln(more...)), " "))
	if err := f.refuse[method+" "+id]; err != nil {
		return err
	}
	return f.refuse[method]
}

func (f *fakeSuper) asked() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.did)
}

func (f *fakeSuper) Sandboxes(context.Context) ([]control.Sandbox, error) { return f.boxes, nil }
func (f *fakeSuper) Inspect(_ context.Context, id string) (control.Inspection, error) {
	return f.inside, f.refuse["inspect"]
}
func (f *fakeSuper) Freeze(_ context.Context, id, _ string) error { return f.do("freeze", id) }
func (f *fakeSuper) Thaw(_ context.Context, id, _ string) error   { return f.do("thaw", id) }
func (f *fakeSuper) Resume(_ context.Context, id, _ string) error { return f.do("resume", id) }
func (f *fakeSuper) Pause(_ context.Context, id, by string) (control.Pause, error) {
	return control.Pause{By: by, Cause: "operator", GivenBack: 3 << 20}, f.do("pause", id)
}
func (f *fakeSuper) Extend(_ context.Context, id string, r control.ExtendRequest, _ string) (control.Lease, error) {
	return control.Lease{Timeout: r.Time, CPUTime: r.CPUTime}, f.do("extend", id, r.Time, r.CPUTime, r.Reason)
}

func (f *fakeSuper) Update(_ context.Context, id string, to control.Limits, dry bool, _ string) (control.LimitChange, error) {
	err := f.do("update", id, to, dry)
	return control.LimitChange{Before: control.Limits{CPU: 1, Memory: 256 << 20, PIDs: 64}, After: to, DryRun: dry}, err
}
func (f *fakeSuper) Elevate(_ context.Context, id string, r control.ElevateRequest, _ string) (control.Elevation, error) {
	err := f.do("elevate", id, r.Target, r.TTL, r.Reason, r.DryRun)
	ttl := r.TTL
	if ttl == 0 {
		ttl = rings.DefaultElevation
	}
	return control.Elevation{ID: "loan", From: rings.Sandbox, Target: r.Target, GrantedAt: liveNow, ExpiresAt: liveNow.Add(ttl), Reason: r.Reason}, err
}
func (f *fakeSuper) Revoke(_ context.Context, id, e, _ string) error { return f.do("revoke", id, e) }
func (f *fakeSuper) Signal(_ context.Context, id string, n int, _ string) error {
	return f.do("signal", id, n)
}

func (f *fakeSuper) Kill(_ context.Context, s control.Selector, reason, _ string) ([]control.KillResult, error) {
	if err := f.do("kill", s.ID, s.Agent, s.Session, s.All, reason); err != nil {
		return nil, err
	}
	var results []control.KillResult
	for _, b := range f.boxes {
		if b.ID == s.ID || s.All || s.Agent != "" && b.Agent == s.Agent || s.Session != "" && b.Session == s.Session {
			text := f.kills[b.ID]
			if text == "" {
				text = `{"agent_id":"a","reason":"manual","processes_killed":3,"processes_dead":true,"duration":0.0123,"errors":[]}`
			}
			results = append(results, control.KillResult{ID: b.ID, Result: json.RawMessage(text)})
		}
	}
	return results, nil
}

func (f *fakeSuper) Wait(_ context.Context, id string) (json.RawMessage, error) {
	if err := f.refuse["wait "+id]; err != nil {
		return nil, err
	}
	return json.RawMessage(f.status[id]), nil
}

func (f *fakeSuper) Events(ctx context.Context, since uint64, follow bool, send func(control.Event) error) error {
	if err := f.refuse["events"]; err != nil {
		return err
	}
	if follow && f.stream != nil {
		return f.stream(ctx, since, send)
	}
	for _, e := range f.events {
		if e.Seq > since {
			if err := send(e); err != nil {
				return err
			}
		}
	}
	if follow {
		<-ctx.Done()
	}
	return nil
}

func (f *fakeSuper) Output(_ context.Context, id string, follow bool, w io.Writer) error {
	for _, b := range []byte(f.output) { // byte by byte: a character comes in parts
		if _, err := w.Write([]byte{b}); err != nil {
			return err
		}
	}
	return f.refuse["output"]
}

func (f *fakeSuper) Files(context.Context, string, control.FilesRequest) ([]control.FileInfo, error) {
	return f.files, f.refuse["files"]
}

func (f *fakeSuper) Watch(_ context.Context, _ string, r control.FilesRequest, send func(control.FileChange) error) error {
	if err := f.refuse["watch"]; err != nil {
		return err
	}
	return errors.Join(send(control.FileChange{Kind: "watching", Path: r.Path}), send(control.FileChange{Kind: "created", Path: r.Path + "/a\x1b[2J\nb"}),
		send(control.FileChange{Kind: "lost", Lost: 7}))
}

func (f *fakeSuper) ReadFiles(context.Context, string, control.FilesRequest, string, io.ReadWriter) error {
	return f.refuse["read"]
}

func (f *fakeSuper) WriteFiles(context.Context, string, control.FilesRequest, string, io.ReadWriter) error {
	return f.refuse["write"]
}

func (f *fakeSuper) Attach(_ context.Context, id string, conn io.ReadWriter) error {
	if err := f.refuse["attach"]; err != nil {
		return err
	}
	return f.attach(conn)
}

func (f *fakeSuper) Exec(_ context.Context, id string, r control.ExecRequest, _ string, conn io.ReadWriter) error {
	if err := f.do("exec", id, r.Command, r.Env, r.Cwd, r.TTY, r.Timeout, r.Detach); err != nil {
		return err
	}
	return f.attach(conn)
}

func (f *fakeSuper) Publish(_ context.Context, id string, r control.PortRequest, _ string) (control.Published, error) {
	err := f.do("publish", id, r)
	return control.Published{PortInfo: control.PortInfo{Port: r.Port, Address: "127.0.0.1:4", Raw: r.Raw}, URL: "http://127.0.0.1:4/?agentrun_token=0"}, err
}

func (f *fakeSuper) Ports(context.Context, string) ([]control.PortInfo, error) {
	return []control.PortInfo{{Port: 8000, Address: "127.0.0.1:4", Open: 2}}, f.refuse["ports"]
}

func (f *fakeSuper) Unpublish(_ context.Context, id string, port int, _ string) error {
	return f.do("unpublish", id, port)
}

var errHung = errors.New("supervisor zzz: no answer in 2s")

func box(id string, change ...func(*control.Sandbox)) control.Sandbox {
	s := control.Sandbox{
		ID: id, Profile: "ring3", State: control.Running, BaseRing: 3, Ring: 3, Command: []string{"agent.py"}, PID: 100, Supervisor: 99,
		StartedAt: liveNow.Add(-90 * time.Second), Limits: control.Limits{CPU: 1, Memory: 256 << 20, PIDs: 64},
		Usage: control.Usage{CPUTime: 1500 * time.Millisecond, Memory: 12 << 20, MemoryPeak: 20 << 20, PIDs: 2, Output: 4096},
	}
	for _, c := range change {
		c(&s)
	}
	return s
}

func liveOn(t *testing.T, supers ...*fakeSuper) (*liveVerbs, *fakeNode) {
	t.Helper()
	n := &fakeNode{supers: supers}
	g := liveGlobal()
	g.StateDir, g.RunDir = filepath.Join(t.TempDir(), "state"), t.TempDir()
	return &liveVerbs{
		g: g, runs: func() liveRuns { return n }, now: func() time.Time { return liveNow },
		tick: func(time.Duration) (<-chan time.Time, func()) {
			c := make(chan time.Time)
			close(c) // always
			return c, func() {}
		},
	}, n
}

// liveDo runs a command line on l, and gives its stdout, stderr and exit code.
func liveDo(t *testing.T, l *liveVerbs, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	dir := t.TempDir()
	file := func(name, text string) *os.File {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	in, out, errs := file("in", stdin), file("out", ""), file("err", "")
	defer func(i, o, e *os.File) { os.Stdin, os.Stdout, os.Stderr = i, o, e }(os.Stdin, os.Stdout, os.Stderr)
	os.Stdin, os.Stdout, os.Stderr = in, out, errs
	app := &cli.App{Name: "agentrun", Commands: l.commands(), HideHelpCommand: true, UseShortOptionHandling: true, ExitErrHandler: func(*cli.Context, error) {}}
	app.Writer, app.ErrWriter = out, errs
	code = report(errs, app.RunContext(t.Context(), flagsFirst(app, append([]string{"agentrun"}, args...))))
	text := func(f *os.File) string {
		f.Close()
		b, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	return text(out), text(errs), code
}
