// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/control"
)

// THREATS "takeover": the current folder is the one that somebody is in, and not what an agent that may write above it puts in its place.

// swappable is a folder in a workspace, beside a link to a folder of the host's that no agent was shown; swap has them change places, as an
// agent can that has the workspace.
func swappable(t *testing.T) (sub, secret string, swap func()) {
	t.Helper()
	needSandbox(t)
	ws, host := workspace(t), workspace(t)
	sub, link := filepath.Join(ws, "sub"), filepath.Join(ws, "link")
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(sub, "mine"), "x", 0o644)
	write(t, filepath.Join(host, "secret"), "x", 0o644)
	if err := os.Symlink(host, link); err != nil {
		t.Fatal(err)
	}
	return sub, filepath.Join(host, "secret"), func() {
		_ = unix.Renameat2(unix.AT_FDCWD, sub, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
	}
}

// startIn starts a call there, whatever the folder is called by then.
func startIn(t *testing.T, dir *os.File, c *call) {
	t.Helper()
	c.Dir = fmt.Sprintf("/proc/self/fd/%d", dir.Fd())
	c.started = time.Now()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
}

func TestCurrentFolderSwapped(t *testing.T) {
	sub, secret, swap := swappable(t)
	dir, err := os.Open(sub)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	over := make(chan struct{})
	var agent sync.WaitGroup
	agent.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
				swap()
				time.Sleep(50 * time.Microsecond)
			}
		}
	})
	defer agent.Wait()
	defer close(over)
	mine := 0
	for range 60 {
		c := prepare(t, opts{profile: "ring2", flags: []string{"--no-daemon", "--workspace", "."}, env: []string{"PWD=" + sub}}, "/bin/sh", "-c", "ls /workspace; : > /workspace/made")
		startIn(t, dir, c)
		r := c.finish(t)
		if _, err := os.Stat(filepath.Join(filepath.Dir(secret), "made")); err == nil || strings.Contains(r.stdout, "secret") {
			t.Fatalf("the agent has another folder: %s%s", r.stdout, r.stderr)
		}
		if strings.Contains(r.stdout, "mine") {
			mine++
		}
	}
	if mine == 0 {
		t.Error("no run had its folder")
	}
}

// A kept sandbox's relative paths start from the folder in which it was created, and from no other one later.
func TestM23FolderOfAKeptSandboxSwapped(t *testing.T) {
	sub, secret, swap := swappable(t)
	alias := filepath.Join(t.TempDir(), "alias") // an operator's own link
	if err := os.Symlink(sub, alias); err != nil {
		t.Fatal(err)
	}
	d := startDaemon(t, "--pool-max", "0")
	p, c := place{t, d.run, d.state}, d.client(t)
	options := map[string]json.RawMessage{"ring": json.RawMessage("2"), "no-gateway": json.RawMessage("true"), "workspace": json.RawMessage(`"."`)}
	if k, err := c.CreateKept(t.Context(), control.KeptRequest{Name: "box", Options: options, Dir: alias}); err != nil || k.Dir != sub {
		t.Errorf("created in %q: %v", k.Dir, err)
	}
	t.Cleanup(func() { p.do("rm", "-f", "box") })
	p.must("start", "box")
	if got := p.in("box", "ls /workspace"); got != "mine" {
		t.Errorf("its workspace has %q", got)
	}
	p.must("stop", "box")
	swap()
	if r, want := p.do("start", "box"), "leads to "+filepath.Dir(secret); r.exit != 125 || !strings.Contains(r.stderr, want) {
		t.Errorf("start: exit %d %s, want %s", r.exit, r.stderr, want)
	}
	if _, err := c.StartKept(t.Context(), "box", control.KeptStart{}); err == nil || !strings.Contains(err.Error(), "leads to") {
		t.Errorf("start by the API: %v", err)
	}
	swap()
	p.must("start", "box")
}

// A kept sandbox's named folders are those that it was created with: nobody types their names at its next start.
func TestM23NamedFoldersOfAKeptSandboxSwapped(t *testing.T) {
	for _, flags := range [][]string{{"--workspace", "SUB"}, {"--bind", "SUB:/data"}, {"--ro-bind", "SUB:/data"}} {
		t.Run(flags[0], func(t *testing.T) {
			sub, secret, swap := swappable(t)
			p := newPlace(t)
			p.must(append([]string{"create", "--name", "box", "--ring", "2", "--no-gateway", "--workspace", t.TempDir(), flags[0]}, strings.ReplaceAll(flags[1], "SUB", sub))...)
			t.Cleanup(func() { p.do("rm", "-f", "box") })
			p.must("start", "box")
			p.must("stop", "box")
			swap()
			if r, want := p.do("start", "box"), "leads to "+filepath.Dir(secret); r.exit != 125 || !strings.Contains(r.stderr, want) {
				t.Errorf("start: exit %d %s, want %s", r.exit, r.stderr, want)
			}
			swap()
			p.must("start", "box")
		})
	}
}

// host asks about the folder that it shows.
func TestHostFolderSwappedWhileAsked(t *testing.T) {
	h := newHosted(t)
	sub, secret, swap := swappable(t)
	dir, err := os.Open(sub)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	term := openTerminal(t, 100, 40)
	c := h.call(nil, nil, "fake", "no-model")
	c.Dir = sub
	term.begin(c)
	term.until("Type yes: ")
	swap()
	term.type_("yes\r")
	term.until(`"said"`)
	c.finish(t).want(t, 0, "exited")
	if _, err := os.Stat(filepath.Join(filepath.Dir(secret), "made-by-agent")); err == nil {
		t.Error("the agent has written in another folder than the one that was shown")
	}
	if err := unix.Faccessat(int(dir.Fd()), "made-by-agent", unix.F_OK, 0); err != nil {
		t.Errorf("the agent has not written in the current folder: %v", err)
	}
}
