// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"agentrun/telemetry/runlog"
)

// plenty is a host with more memory than anybody asks for.
var plenty = hostMemory{available: func() (int64, error) { return 1 << 50, nil }, used: func(string) int64 { return 0 }}

func limitsFor(t *testing.T, c serveConfig) serveLimits {
	t.Helper()
	l, err := c.limits()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// In the order they came; each one that leaves lets one in.
func TestGateQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(limitsFor(t, serveConfig{MaxSandboxes: 2, Queue: 3, QueueTimeout: time.Minute}), plenty)
		a, errA := g.enter(t.Context(), 1)
		b, errB := g.enter(t.Context(), 1)
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		order := make(chan int, 3)
		for i := range 3 {
			go func() {
				_, err := g.enter(t.Context(), 1)
				if last := i == 2; last != errors.Is(err, errEnding) {
					t.Errorf("waiter %d: got %v", i, err)
				}
				order <- i
			}()
			synctest.Wait() // the next comes when this one waits
		}
		if _, err := g.enter(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "the node is full: 3 runs wait") {
			t.Errorf("a full queue: got %v", err)
		}
		g.leave(a)
		g.leave(b)
		if x, y := <-order, <-order; x+y != 1 {
			t.Errorf("let in: %d and %d, want the first two", x, y)
		}
		g.close()
		synctest.Wait()
	})
}

func TestGateTimesOutCancelsAndCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(limitsFor(t, serveConfig{MaxSandboxes: 1, QueueTimeout: 5 * time.Second}), plenty)
		first, _ := g.enter(t.Context(), 1)
		began := time.Now()
		if _, err := g.enter(t.Context(), 1); err == nil || hint(err) == "" || time.Since(began) != 5*time.Second {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := make(chan error, 1)
		go func() { _, err := g.enter(ctx, 1); gone <- err }()
		synctest.Wait()
		cancel(errGone)
		if err := <-gone; !errors.Is(err, errGone) {
			t.Errorf("gone: got %v", err)
		}
		go func() { _, err := g.enter(t.Context(), 1); gone <- err }()
		synctest.Wait()
		g.close()
		if err := <-gone; !errors.Is(err, errEnding) {
			t.Errorf("closed: got %v", err)
		}
		if _, err := g.enter(t.Context(), 1); !errors.Is(err, errEnding) {
			t.Errorf("after close: got %v", err)
		}
		g.leave(first)
		if live, waiting := g.counts(); live != 0 || waiting != 0 {
			t.Errorf("left: %d live, %d waiting", live, waiting)
		}
	})
}

// What live runs may still take is not given twice; what they use is gone from the host already.
func TestGateMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var available atomic.Int64
		available.Store(1000 << 20)
		host := hostMemory{available: func() (int64, error) { return available.Load(), nil }, used: func(string) int64 { return 0 }}
		half := 0.5
		for _, tt := range []struct {
			share *float64
			want  int
		}{{nil, 3}, {&half, 6}} {
			g := newGate(limitsFor(t, serveConfig{MemoryReserve: "100M", MemoryShare: tt.share, QueueTimeout: time.Millisecond}), host)
			n := 0
			for ; n < 10; n++ {
				if _, err := g.enter(t.Context(), 256<<20); err != nil {
					break
				}
			}
			if n != tt.want {
				t.Errorf("share %v: %d runs of 256 MiB fit into 900, want %d", tt.share, n, tt.want)
			}
			g.close()
		}
		// It comes back without anybody leaving.
		g := newGate(limitsFor(t, serveConfig{MemoryReserve: "100M"}), host)
		available.Store(200 << 20)
		in := make(chan error, 1)
		go func() { _, err := g.enter(t.Context(), 256<<20); in <- err }()
		synctest.Wait()
		available.Store(400 << 20)
		if err := <-in; err != nil {
			t.Error(err)
		}
		// A host that doesn't tell has no room.
		g = newGate(limitsFor(t, serveConfig{QueueTimeout: time.Millisecond}), hostMemory{available: func() (int64, error) { return 0, io.ErrUnexpectedEOF }, used: func(string) int64 { return 0 }})
		if _, err := g.enter(t.Context(), 1); err == nil {
			t.Error("let in without knowing the memory")
		}
		g.close()
	})
}

func TestServeConfig(t *testing.T) {
	nan := 0.0
	nan /= nan
	for _, c := range []serveConfig{
		{MaxSandboxes: -1}, {Queue: -1}, {QueueTimeout: -1}, {Grace: -1}, {Grace: 6 * time.Second}, {MemoryReserve: "lots"}, {MemoryShare: &nan},
	} {
		if _, err := c.limits(); err == nil || !strings.Contains(err.Error(), "serve.") {
			t.Errorf("%+v: got %v", c, err)
		}
	}
	file := filepath.Join(t.TempDir(), "config.yaml")
	for text, ok := range map[string]bool{
		"serve: {max_sandboxes: 10, queue: 5, queue_timeout: 30s, grace: 2s, memory_reserve: 1G, memory_share: 0}": true,
		"serve: {max_sandboxs: 10}": false,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := readConfig(ownCaller(), file)
		if (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
		if l, err := cfg.Serve.limits(); ok && (err != nil || l != serveLimits{10, 5, 30 * time.Second, 2 * time.Second, 1 << 30, 0}) {
			t.Errorf("%s: %+v, %v", text, l, err)
		}
	}
}

// The flag library keeps state in variables; callers at the same time get each their own answer, paths and environment.
func TestManyCallersAtOnce(t *testing.T) {
	d := &daemon{g: &global{stateDir: "/s", runDir: "/r"}, gate: newGate(limitsFor(t, serveConfig{}), plenty), clients: map[*client]struct{}{}}
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			var out, errOut bytes.Buffer
			by := &caller{home: d, stdin: strings.NewReader(""), stdout: &out, stderr: &errOut, dir: fmt.Sprintf("/nosuch%d", i), environ: []string{"AGENTRUN_STATE_DIR=/s", "AGENTRUN_RUN_DIR=/r"}}
			words, code, want := []string{"exec", "--help"}, 0, "--ring"
			switch i % 4 {
			case 1:
				words, code, want = []string{"exec", fmt.Sprintf("--nosuch%d", i), "x"}, 125, fmt.Sprintf("-nosuch%d", i)
			case 2:
				words, code, want = []string{"exec", "--gateway", "g.yaml", "--", "x"}, 125, fmt.Sprintf("/nosuch%d/g.yaml", i)
			case 3:
				words, code, want = []string{"gc"}, 125, `"gc" is no command`
			}
			got, err := d.carryOut(t.Context(), by, append([]string{"agentrun"}, words...))
			if err != nil || got != code || !strings.Contains(out.String()+errOut.String(), want) {
				t.Errorf("%v: got %d, %v: %s%s", words, got, err, out.String(), errOut.String())
			}
		})
	}
	wg.Wait()
	// Somebody else's node is somebody else's.
	by := &caller{home: d, stdout: io.Discard, stderr: io.Discard, environ: []string{"AGENTRUN_STATE_DIR=/other", "AGENTRUN_RUN_DIR=/r"}}
	_, err := d.carryOut(t.Context(), by, []string{"agentrun", "exec", "x"})
	if _, ok := errors.AsType[*declined](err); !ok {
		t.Errorf("another state folder: got %v, want it declined", err)
	}
}

func TestNotify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "3000000")
	t.Setenv("WATCHDOG_PID", fmt.Sprint(os.Getpid()))
	t.Setenv("LISTEN_FDS", "1")
	t.Setenv("LISTEN_PID", "1") // somebody else's
	s := startedBySystemd()
	if s.watchdog != 1500*time.Millisecond || len(s.sockets) != 0 {
		t.Errorf("got %+v", s)
	}
	if v, ok := os.LookupEnv("NOTIFY_SOCKET"); ok {
		t.Errorf("our children would speak to systemd: %s", v)
	}
	s.tell("READY=1", "STATUS=x")
	s.reloading()
	for _, want := range []string{"READY=1\nSTATUS=x", "RELOADING=1\nMONOTONIC_USEC="} {
		b := make([]byte, 256)
		n, err := l.Read(b)
		if err != nil || !strings.HasPrefix(string(b[:n]), want) {
			t.Errorf("got %q, %v, want %q", b[:n], err, want)
		}
	}
	s.conn.Close()
	systemd{}.tell("READY=1") // nobody: nothing
}

func TestM18OutputIsSwept(t *testing.T) {
	g := &global{stateDir: t.TempDir()}
	for name, age := range map[string]time.Duration{"old": 48 * time.Hour, "young": time.Hour} {
		f, err := g.createOutput(name)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		at := time.Now().Add(-age)
		if err := os.Chtimes(f.Name(), at, at); err != nil {
			t.Fatal(err)
		}
		if _, err := g.createOutput(name); err == nil {
			t.Error("two runs write one file")
		}
	}
	other := filepath.Join(g.outputDir(), "not-ours")
	if err := os.Symlink("/etc/passwd", other); err != nil {
		t.Fatal(err)
	}
	if err := g.sweepOutput(runlog.Policy{Keep: 24 * time.Hour}, time.Now()); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(g.outputDir())
	if err != nil || len(left) != 2 {
		t.Errorf("left: %v, %v, want not-ours and young.log", left, err)
	}
}
