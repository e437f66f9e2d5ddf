// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"

	"agentrun/toolproxy/link"
)

// What a gateway says before it dies is read in terminals.
func TestLastWordsArePrintable(t *testing.T) {
	for said, want := range map[string]string{
		"":                                     "",
		"one\ntwo\n":                           "two",
		"a\x1b[2Jb\u202e":                      "a[2Jb",
		"x\npanic: no\n\ngoroutine 1:\n\tmain": "panic: no",
		strings.Repeat("y", 2*tailSize):        strings.Repeat("y", maxComplaint),
	} {
		var last tail
		for chunk := range slices.Chunk([]byte(said), 7) {
			_, _ = last.Write(chunk)
		}
		if got := last.last(); got != want {
			t.Errorf("%.40q: got %.80q, want %.80q", said, got, want)
		}
	}
}

// M-7, M-8: the gateway inherits one socket for each way out, by names that say which is which.
func TestM7SocketsOfTheWayout(t *testing.T) {
	p := &Plan{Ring: 3}
	p.planWayout(&Spec{Wayout: true, CapturePorts: []uint16{8443, 443}, Dialects: []string{"messages"}})
	sockets, names := p.Wayout.wanted()
	if len(sockets) != len(names) || !slices.Equal(p.Wayout.Capture, []uint16{80, 443, 8443}) {
		t.Errorf("sockets %v, names %v, capture %v", sockets, names, p.Wayout.Capture)
	}
	for _, want := range []string{link.SocketTools, link.SocketProxy, link.SocketDNS, link.SocketDNSUDP, link.SocketCapture} {
		if !slices.Contains(names, want) {
			t.Errorf("no socket %s among %v", want, names)
		}
	}
	if p.Wayout.Socket != "" {
		t.Errorf("ring 3 may make no unix socket and is promised %s", p.Wayout.Socket)
	}
	env := map[string]string{}
	p.wayoutEnv(env)
	for name, want := range map[string]string{
		"http_proxy": "http://127.0.0.1:7601", "HTTPS_PROXY": "http://127.0.0.1:7601", "ALL_PROXY": "http://127.0.0.1:7601",
		"no_proxy": "127.0.0.1,::1,localhost", "AGENTRUN_TOOLS_URL": "http://127.0.0.1:7600/internal/tools",
		"AGENTRUN_MCP_URL": "http://127.0.0.1:7600/mcp", "OPENAI_BASE_URL": "http://127.0.0.1:7600/v1",
		"ANTHROPIC_BASE_URL": "http://127.0.0.1:7600", "ANTHROPIC_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": "",
	} {
		if env[name] != want {
			t.Errorf("%s: got %q, want %q", name, env[name], want)
		}
	}
	none := &Plan{Ring: 3}
	none.planWayout(&Spec{})
	none.wayoutEnv(env)
	if none.Wayout != nil {
		t.Errorf("a run without a way out has %+v", none.Wayout)
	}
}

// A run that calls nobody has no thread that waits for it to.
func TestWayoutWaitsWithoutThreads(t *testing.T) {
	const n = 50
	threads := func() int {
		list, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	before, done := threads(), make(chan error, 2*n)
	begin := func(calls bool) *wayout {
		x, err := newWayout(&Wayout{}, &PlanWayout{FD: 3})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(x.drop)
		go func() {
			called, err := x.called()
			if err == nil && called != calls {
				err = fmt.Errorf("called %v, want %v", called, calls)
			}
			done <- err
		}()
		return x
	}
	var callers, quiet []*wayout
	for range n {
		callers, quiet = append(callers, begin(true)), append(quiet, begin(false))
	}
	stacks := make([]byte, 1<<20)
	for waiting := 0; waiting < 2*n; { // the test's time limit is the bound
		goruntime.Gosched()
		text := stacks[:goruntime.Stack(stacks, true)]
		waiting = bytes.Count(text, []byte("(*wayout).called("))
		for _, state := range []string{"[running]", "[runnable]"} {
			if bytes.Contains(text[bytes.IndexByte(text, '\n'):], []byte(state)) { // but for this one
				waiting = 0
			}
		}
	}
	if got := threads() - before; got > n/2 {
		t.Errorf("%d threads more for %d that wait", got, 2*n)
	}
	for i := range n {
		if _, err := callers[i].agentFD.Write([]byte("x")); err != nil {
			t.Error(err)
		}
		quiet[i].stop.Close()
	}
	for range 2 * n {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// H-28, M-7: who connects reaches nobody before the start of the run is on the disk. A run that nobody connects from waits for nothing.
func TestH28WayoutOpensLate(t *testing.T) {
	disk := errors.New("the disk is gone")
	for _, c := range []struct {
		calls bool
		disk  error
		want  error // that nobody answers; nil: nobody asks
	}{{true, nil, fs.ErrNotExist}, {true, disk, disk}, {false, disk, nil}} {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		inside, err := l.File()
		if err != nil {
			t.Fatal(err)
		}
		x, err := newWayout(&Wayout{Program: "/nonexistent/gateway"}, &PlanWayout{})
		if err != nil {
			t.Fatal(err)
		}
		x.inside, x.serving = []*os.File{inside}, true
		lost := make(chan error, 1)
		go x.serve(os.Getuid(), func() error { return c.disk }, func() (Lease, <-chan struct{}) { return Lease{}, nil }, func(err error) { lost <- err })
		if c.calls {
			agent, err := net.Dial("unix", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			if err := <-lost; !errors.Is(err, c.want) {
				t.Errorf("disk %v: got %v, want %v", c.disk, err, c.want)
			}
			agent.Close()
		}
		x.finish(true) // returns without a gateway
		x.drop()
		if len(lost) > 0 {
			t.Errorf("nobody connected: %v", <-lost)
		}
		l.Close()
	}
}
