// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"agentrun/internal/handoff"
	"agentrun/supervisor"
	"agentrun/supervisor/daemon/pool"
	"agentrun/supervisor/daemon/queue"
)

func testNode(t *testing.T) *supervisor.Node {
	t.Helper()
	dir := t.TempDir()
	return &supervisor.Node{StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run"), Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
}

// A caller's words are carried out here only if they are about a run of this node; else nothing of it has
// happened.
func TestCarryOut(t *testing.T) {
	ring0 := 0
	other := func(change func(*supervisor.Node)) func(*supervisor.Node) *supervisor.Node {
		return func(n *supervisor.Node) *supervisor.Node {
			c := *n
			change(&c)
			return &c
		}
	}
	same := func(n *supervisor.Node) *supervisor.Node { return n }
	for _, tt := range []struct {
		name     string
		on       func(*supervisor.Node) *supervisor.Node
		asked    Asked
		code     int
		declined string
		said     string
	}{
		{"nothing to run", same, Asked{Code: 7}, 7, "", ""},
		{"a run that is refused", same, Asked{Request: &supervisor.Request{Ring: &ring0}}, 125, "", "agentrun: --ring 0"},
		{"another state folder", other(func(n *supervisor.Node) { n.StateDir = "/other" }), Asked{Request: &supervisor.Request{}}, 0, "not /other", ""},
		{"another run folder", other(func(n *supervisor.Node) { n.RunDir = "/other" }), Asked{Request: &supervisor.Request{}}, 0, "not /other", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := testNode(t)
			var heard []string
			d := newDaemon(Options{Node: n, Read: func(_ context.Context, _ *supervisor.Caller, args []string) Asked {
				heard = args
				asked := tt.asked
				asked.Node = tt.on(n)
				return asked
			}})
			var said bytes.Buffer
			by := &supervisor.Caller{Stdin: strings.NewReader(""), Stdout: &said, Stderr: &said, Dir: "/"}
			code, declined := d.carryOut(t.Context(), by, &served{d: d}, []string{"agentrun", "exec"})
			if code != tt.code || !strings.Contains(declined, tt.declined) || (declined == "") != (tt.declined == "") {
				t.Errorf("got %d, declined %q; want %d, %q", code, declined, tt.code, tt.declined)
			}
			if !strings.HasPrefix(said.String(), tt.said) || (tt.said == "") != (said.Len() == 0) {
				t.Errorf("said %q, want %q", said.String(), tt.said)
			}
			if !slices.Equal(heard, []string{"agentrun", "exec"}) {
				t.Errorf("the words came as %q", heard)
			}
		})
	}
}

// One daemon serves a run folder; when it has ended another may, and nothing of the first is left.
func TestOneDaemonARunFolder(t *testing.T) {
	n := testNode(t)
	first, err := lockFolder(n)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockFolder(n); err == nil || !strings.Contains(err.Error(), "serves "+n.RunDir+" already") {
		t.Errorf("a second one: got %v", err)
	}
	if err := os.WriteFile(filepath.Join(n.ControlDir(), handoff.SocketName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	newDaemon(Options{Node: n}).tidy(first, true)
	if left, err := os.ReadDir(n.ControlDir()); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	second, err := lockFolder(n)
	if err != nil {
		t.Fatalf("after the first: %v", err)
	}
	second.Close()
}

// Settings that can't be used change nothing.
func TestReload(t *testing.T) {
	now := Settings{Grace: time.Second}
	var broken error
	d := newDaemon(Options{Node: testNode(t), Settings: now, Reload: func() (Settings, error) { return now, broken }})
	d.pool = pool.New(pool.Options{})
	now.Grace, broken = 2*time.Second, errors.New("no configuration")
	if d.reload(); d.grace != time.Second {
		t.Errorf("after an error: got %v", d.grace)
	}
	broken, now.Limits = nil, queue.Limits{Runs: 1}
	if d.reload(); d.grace != 2*time.Second {
		t.Errorf("got %v", d.grace)
	}
}
