// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"agentrun/internal/hostcaps"
	"agentrun/profiles"
	"agentrun/runtime"
)

// In a sandbox that is ready the agent's process waits too, behind its walls.

// confined tells by a shell's own means, of which ring 3 leaves nothing else, what holds the process that runs it.
const confined = `pwd; ulimit -a; echo /proc/self/fd/*
kill -0 1 || echo "signal to pid 1: $?"
while read -r line; do case $line in Name*|Seccomp*|NoNewPrivs*|Cap*|Uid*|Gid*|Groups*|Sig*|Shd*|Threads*) echo "$line";; esac; done </proc/self/status
read -r word || echo "stdin: end after '$word'"
for f in /etc/x /workspace/x /usr/x /tmp/sandbox/x; do true >$f || echo "no $f"; done
echo "$0 $*"; export -p`

// shell is an exec of the host's shell, which needs no workspace.
func (n *daemonNode) shell(t *testing.T, o opts, script string) *call {
	t.Helper()
	c := n.prepare(t, o, "/bin/sh", "-c", script, "name", "one two")
	at := slices.Index(c.Args, probeBin+":/probe")
	c.Args = slices.Delete(c.Args, at-1, at+1)
	return c
}

// M-1, M-4: what was confined before its run was known is confined as any other, and is given what the run brings: stdin, folder,
// arguments, environment, workspace with its Landlock rules.
func TestPoolConfinesAhead(t *testing.T) {
	needSandbox(t)
	need(t, hostcaps.Landlock(6))
	n := startDaemon(t)
	dir := workspace(t)
	write(t, filepath.Join(dir, "seen"), "x", 0o644)
	for name, flags := range map[string][]string{
		"no workspace": {"--env", "A=b"},
		"workspace":    {"--workspace", dir, "--cwd", "/workspace"},
		"ring 2":       {"--ring", "2", "--workspace", dir},
	} {
		run := func(more ...string) result {
			r := n.shell(t, opts{flags: append(slices.Clone(flags), more...), stdin: strings.NewReader("of the caller")}, confined).do(t)
			r.want(t, 0, "exited")
			_ = os.Remove(filepath.Join(dir, "x"))
			return r
		}
		alone := run("--no-daemon")
		if !strings.Contains(alone.stdout, "signal to pid 1: 1") || !strings.Contains(alone.stdout, "Seccomp:\t2") || !strings.Contains(alone.stdout, "end after 'of the caller'") {
			t.Fatalf("%s: alone the agent tells\n%s\n%s", name, alone.stdout, alone.stderr)
		}
		run() // for the demand
		ids := n.ready(t)
		pooled := run()
		if !slices.Contains(ids, pooled.status.ID) {
			t.Errorf("%s: run %s, and %v was ready", name, pooled.status.ID, ids)
		}
		if d := cmp.Diff(alone.stdout, pooled.stdout); d != "" {
			t.Errorf("%s: from the pool (+) another than alone (-):\n%s", name, d)
		}
		if d := cmp.Diff(alone.status.Refused, pooled.status.Refused); d != "" {
			t.Errorf("%s: refused calls: from the pool (+) others than alone (-):\n%s", name, d)
		}
	}
	n.drain(t)
}

// A folder that isn't there: the process that waited says it as any other, and nothing is left.
func TestPoolRefusesLate(t *testing.T) {
	n := startDaemon(t)
	n.shell(t, opts{}, "exit 0").do(t).want(t, 0, "exited")
	ids := n.ready(t)
	r := n.shell(t, opts{flags: []string{"--cwd", "/nowhere"}}, "exit 0").do(t)
	if r.exit != 125 || !strings.Contains(r.stderr, "--cwd /nowhere") || !slices.Contains(ids, r.status.ID) {
		t.Errorf("exit %d of run %s (ready: %v), %q, want 125 and the folder", r.exit, r.status.ID, ids, r.stderr)
	}
	// The process that waits is killed, and pid 1 with it: nobody is given that sandbox.
	ids = n.ready(t)
	own := ownAgents()
	for _, p := range own {
		if slices.ContainsFunc(own, func(parent process) bool { return parent.pid == p.ppid }) {
			unix.Kill(p.pid, unix.SIGKILL)
		}
	}
	eventually(t, 15*time.Second, "the sandbox is dead", func() bool { // a busy host takes its time, and who comes before that is given it
		return !slices.ContainsFunc(ownAgents(), func(p process) bool {
			return slices.ContainsFunc(own, func(q process) bool { return p.pid == q.pid })
		})
	})
	r = n.shell(t, opts{}, "exit 0").do(t)
	r.want(t, 0, "exited")
	if slices.Contains(ids, r.status.ID) {
		t.Errorf("run %s was given a sandbox without a process", r.status.ID)
	}
	n.drain(t)
}

// held is an account whose start is on record at once and on disk when the test says so.
type held struct {
	written chan struct{}
	disk    chan error
}

func (h *held) Start(runtime.Status) error    { close(h.written); return nil }
func (h *held) Settled() error                { return <-h.disk }
func (h *held) Refused(runtime.Refusal) error { return nil }
func (h *held) End(runtime.Status) error      { return nil }

// H-28: a run that may write files of the host is not executed before its start is on disk, and never if it doesn't get there.
func TestH28StartIsOnDisk(t *testing.T) {
	needSandbox(t)
	gone := errors.New("the disk is gone")
	for name, c := range map[string]struct {
		profile   string
		workspace bool
		disk      error
		waits     bool // for the disk
		state     runtime.State
	}{
		"nothing to write":          {"ring3", false, nil, false, runtime.Exited},
		"nothing to write, no disk": {"ring3", false, gone, false, runtime.Exited},
		"writable":                  {"ring2", true, nil, true, runtime.Exited},
		"writable, no disk":         {"ring2", true, gone, true, runtime.Failed},
		"writable later, no disk":   {"ring3", true, gone, true, runtime.Failed},
	} {
		p, _ := profiles.Builtin(c.profile)
		spec := runtime.Spec{Profile: p, Limits: p.Limits, Command: []string{"/bin/sh", "-c", "echo ran"}, WorkDir: "/"}
		if c.workspace {
			spec.Workspace = workspace(t)
		}
		plan, err := runtime.NewPlan(spec)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		h := &held{written: make(chan struct{}), disk: make(chan error, 1)}
		started := make(chan struct{})
		ended := make(chan runtime.Status, 1)
		go func() {
			ended <- runtime.Run(t.Context(), plan, runtime.Options{
				RunDir: runDir, Stdout: &out, Stderr: os.Stderr, Observer: h, OnStart: func(runtime.Status) { close(started) },
			})
		}()
		<-h.written
		if c.waits {
			select {
			case <-started:
				t.Errorf("%s: executed before its start is on disk", name)
			case <-time.After(time.Duration(slow * float64(100*time.Millisecond))):
			}
			h.disk <- c.disk
		}
		s := <-ended
		if s.State != c.state || (c.state == runtime.Failed) != strings.Contains(s.Error, gone.Error()) || len(s.Leftovers) > 0 {
			t.Errorf("%s: got %+v, want %s", name, s, c.state)
		}
		if (out.String() == "ran\n") != (c.state == runtime.Exited) {
			t.Errorf("%s: the agent says %q", name, &out)
		}
	}
}
