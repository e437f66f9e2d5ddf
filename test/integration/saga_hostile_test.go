// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/store"
)

// withProcess tells whether a process has these words in its command line.
func withProcess(words string) bool {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(bytes.ReplaceAll(b, []byte{0}, []byte{' '})), words) {
			return true
		}
	}
	return false
}

// H-19 (THREATS "supervisor", hostile undos): an undo that hangs and takes no signal, forks away, writes without end or
// fails for ever is tried once, is over at its time, leaves nothing behind, and the other steps are undone
// all the same, last first.
func TestH19HostileUndo(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	w := filepath.Join(dir, "w")
	if err := os.Mkdir(w, 0o755); err != nil {
		t.Fatal(err)
	}
	sleep := fmt.Sprintf("sleep 1000.%d", os.Getpid()) // found by its words
	undos := []struct{ id, undo string }{
		{"plain", "true"},
		{"fails", "exit 7"},
		{"hangs", "trap '' TERM INT HUP PIPE; " + sleep + "; " + sleep},
		{"forks", "setsid " + sleep + " & setsid " + sleep + " & exec " + sleep},
		{"writes", "yes"},
		{"paints", `printf '\033[2J\033]0;owned\007%s\n' '"}]' >&2; exit 9`},
		{"ghost", "kill -9 -1; kill -9 1; kill -9 $PPID; exit 8"},
	}
	file := "name: trip\nsteps:\n"
	for _, u := range undos {
		file += fmt.Sprintf("  - id: %s\n    step_timeout_seconds: %d\n    execute: {command: [/bin/sh, -c, \"echo %s >>log\"], ring: 2, workspace: w}\n"+
			"    undo: {command: [/bin/sh, -c, %q], ring: 2, workspace: w}\n", u.id, int(1+slow), u.id, "echo undo "+u.id+" >>log; "+u.undo)
	}
	file += "  - id: last\n    max_retries: 0\n    execute: {command: [/bin/sh, -c, \"exit 3\"], ring: 2, workspace: w}\n"
	r := n.do("saga", "run", "--id", "s", write(t, filepath.Join(dir, "saga.yaml"), file, 0o644))
	if r.exit != 2 || !strings.Contains(r.stdout, "s escalated: look at fails, hangs, forks, writes, paints, ghost") {
		t.Errorf("exit %d, %q, want all but the plain one unresolved", r.exit, r.stdout)
	}
	if withProcess(sleep) {
		t.Error("a process of an undo lives on")
	}
	want := "plain fails hangs forks writes paints ghost"
	for i := len(undos) - 1; i >= 0; i-- {
		want += " undo " + undos[i].id
	}
	if got := strings.Join(strings.Fields(strings.Join(lines(filepath.Join(w, "log")), " ")), " "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, args := range [][]string{{"saga", "show", "s"}, {"saga", "list"}} {
		if out := n.must(args...).stdout; strings.ContainsAny(out, "\x1b\x07") {
			t.Errorf("%v: control characters in %q", args, out)
		}
	}
	n.audit("node")
}

// H-19, H-20: an answer of a local API has its words cleaned before they reach a terminal, the journal and
// the audit.
func TestH19HostileAnswer(t *testing.T) {
	n := newNode(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 4096))
			_, _ = c.Write([]byte("HTTP/1.1 500 gone\x1b[2J\u202e\x07\u009b31m\r\nContent-Length: 0\r\n\r\n"))
			_ = c.Close()
		}
	}()
	file := fmt.Sprintf("name: trip\nsteps:\n  - {id: a, max_retries: 0, execute_api: \"http://%s/x\"}\n", l.Addr())
	r := n.do("saga", "run", "--id", "s", write(t, filepath.Join(t.TempDir(), "saga.yaml"), file, 0o644))
	show := n.do("saga", "show", "s")
	for _, out := range []string{r.stdout, r.stderr, show.stdout, n.do("audit", "tail").stdout} {
		if strings.ContainsAny(out, "\x1b\x07\u202e\u009b") {
			t.Errorf("control characters in %q", out)
		}
	}
	if r.exit == 0 {
		t.Error("an answer of 500 is success")
	}
}

// H-20 (THREATS "supervisor", journal edits): what an agent writes over the saga's file between the steps changes nothing,
// it reaches no journal, and after a crash what has begun is undone in reverse.
func TestH20StepRewritesItsSaga(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	body := func(second string) string {
		return `name: trip
steps:
  - id: a
    execute: {command: [/bin/sh, -c, "echo a >>log; ls ` + n.dir + ` >>seen 2>&1; cp evil.yaml saga.yaml; mv log log2; mv log2 log"], ring: 2, workspace: .}
    undo: {command: [/bin/sh, -c, "echo undo a >>log"], ring: 2, workspace: .}
  - id: b
    idempotent: true
    execute: {command: [/bin/sh, -c, "echo ` + second + ` >>log; [ -e go ] || sleep 100"], ring: 2, workspace: .}
    undo: {command: [/bin/sh, -c, "echo undo ` + second + ` >>log"], ring: 2, workspace: .}
`
	}
	file := write(t, filepath.Join(dir, "saga.yaml"), body("b"), 0o644)
	write(t, filepath.Join(dir, "evil.yaml"), strings.ReplaceAll(body("EVIL"), "ring: 2", "ring: 1"), 0o644)
	log := filepath.Join(dir, "log")
	n.killSaga(file, log, "b")
	before := strings.Join(lines(file), "\n")
	if !strings.Contains(before, "EVIL") {
		t.Fatal("the step didn't rewrite the file: the test shows nothing")
	}
	if seen, _ := os.ReadFile(filepath.Join(dir, "seen")); !strings.Contains(string(seen), "No such file") {
		t.Errorf("the state folder from inside: %q", seen)
	}
	write(t, filepath.Join(dir, "go"), "", 0o644)
	if r := n.do("saga", "resume", "s", "--undo"); r.exit > 2 {
		t.Errorf("resume: exit %d\n%s%s", r.exit, r.stdout, r.stderr)
	}
	if got := strings.Join(lines(log), "; "); got != "a; b; undo b; undo a" {
		t.Errorf("log: %s", got)
	}
	n.audit("node")
}

// killSaga runs the file as saga s until its log has the word, then kills the orchestrator.
func (n node) killSaga(file, log, word string) {
	n.t.Helper()
	cmd := exec.Command(agentrun, "--state-dir", n.dir, "--run-dir", runDir, "saga", "run", "--id", "s", file)
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	eventually(n.t, hang(), "the step begins", func() bool {
		b, _ := os.ReadFile(log)
		return strings.Contains(string(b), word+"\n")
	})
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	// The step's agentrun dies by its parent-death signal, and has the saga's lock until then.
	eventually(n.t, hang(), "the step ends with its orchestrator", func() bool {
		return strings.Contains(n.do("saga", "list").stdout, "interrupted")
	})
}

// H-20 (THREATS "supervisor", journal edits): a journal that was cut, exchanged or edited between crash and resume is
// refused, or followed without calling anything twice that may not be; it never makes agentrun crash.
func TestH20EditedJournal(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "w"), 0o755); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(dir, "w", "log")
	file := write(t, filepath.Join(dir, "saga.yaml"), `name: trip
steps:
  - id: a
    execute: {command: [/bin/sh, -c, "echo a >>log"], ring: 2, workspace: w}
    undo: {command: [/bin/sh, -c, "echo undo a >>log"], ring: 2, workspace: w}
  - id: b
    execute: {command: [/bin/sh, -c, "echo b >>log; [ -e go ] || sleep 100"], ring: 2, workspace: w}
`, 0o644)
	n.killSaga(file, log, "b")
	write(t, filepath.Join(dir, "w", "go"), "", 0o644)
	whole, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	edit := func(bucket, from, to string) func(t *testing.T, m node) {
		return func(t *testing.T, m node) {
			db, err := store.Open(m.dir, store.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			err = db.Update(context.Background(), func(tx *store.Tx) error {
				b := tx.Bucket(bucket)
				raw, _, err := b.Get("s")
				if err != nil {
					return err
				}
				next := bytes.ReplaceAll(raw, []byte(from), []byte(to))
				if bytes.Equal(next, raw) {
					t.Fatalf("%s has no %q: %s", bucket, from, raw)
				}
				return b.Put("s", next)
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	db := func(change func([]byte) []byte) func(t *testing.T, m node) {
		return func(t *testing.T, m node) {
			name := filepath.Join(m.dir, "state.db")
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			write(t, name, string(change(b)), 0o600)
		}
	}
	const refused, undone = 125, 2
	for _, c := range []struct {
		name string
		edit func(*testing.T, node)
		exit int
		more string // that the log has afterwards
	}{
		{"left alone", func(*testing.T, node) {}, undone, "undo a\n"},
		{"a step renamed in the record", edit("sagas", `"id":"b"`, `"id":"c"`), refused, ""},
		{"a step renamed in the definition", edit("saga_definitions", `"b"`, `"c"`), refused, ""},
		{"steps doubled", edit("sagas", `"steps":[`, `"steps":[{"id":"a","state":"committed","attempt_count":1},`), refused, ""},
		{"a state that is none", edit("sagas", `"state":"executing"`, `"state":"finished"`), refused, ""},
		{"a field that is none", edit("sagas", `"name":`, `"extra":1,"name":`), refused, ""},
		{"made idempotent in the record alone", edit("sagas", `"running":true`, `"running":true,"idempotent":true`), refused, ""},
		{"the definition cut", edit("saga_definitions", `}`, ``), refused, ""},
		{"control characters in the definition", edit("saga_definitions", `"trip"`, `"tr\u001b[2Jip"`), refused, ""},
		{"ring 0 in the definition", edit("saga_definitions", `"ring":2`, `"ring":0`), refused, ""},
		{"the journal cut", db(func(b []byte) []byte { return b[:2*os.Getpagesize()+100] }), refused, ""},
		{"the journal zeros", db(func(b []byte) []byte { return make([]byte, len(b)) }), refused, ""},
		{"the journal empty", db(func([]byte) []byte { return nil }), refused, ""},
		{"the journal doubled", db(func(b []byte) []byte { return append(b, b...) }), undone, "undo a\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := n.copied()
			m.t = t
			c.edit(t, m)
			write(t, log, string(whole), 0o644)
			r := m.do("saga", "resume", "s")
			if r.exit != c.exit || strings.Contains(r.stderr, "goroutine ") || strings.ContainsAny(r.stderr, "\x1b") {
				t.Errorf("exit %d, want %d\n%s%s", r.exit, c.exit, r.stdout, r.stderr)
			}
			after, err := os.ReadFile(log)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.TrimPrefix(string(after), string(whole)); got != c.more {
				t.Errorf("the log has %q more, want %q", got, c.more)
			}
			again := time.Now()
			if r := m.do("saga", "list"); strings.Contains(r.stderr, "goroutine ") || time.Since(again) > hang()/2 {
				t.Errorf("list: exit %d\n%s%s", r.exit, r.stdout, r.stderr)
			}
		})
	}
}

// H-19, H-31: an agent that gets itself into quarantine keeps nothing that way: the undo that it would be refused by waits
// for its release, and isn't used up.
func TestH19QuarantineKeepsNoUndoAway(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	w := filepath.Join(dir, "w")
	if err := os.Mkdir(w, 0o755); err != nil {
		t.Fatal(err)
	}
	n.must("agent", "score", "a", "0.7")
	file := write(t, filepath.Join(dir, "saga.yaml"), `name: trip
agent: a
steps:
  - id: a
    execute: {command: [/bin/sh, -c, "echo a >> log"], ring: 2, workspace: w}
    undo: {command: [/bin/sh, -c, "echo undo a >> log"], ring: 2, workspace: w}
  - id: b
    max_retries: 0
    execute: {command: [/bin/sh, -c, "echo b >> log; until [ -e go ]; do sleep 0.1; done; exit 3"], ring: 2, workspace: w}
`, 0o644)
	log := filepath.Join(w, "log")
	ended := make(chan result, 1)
	go func() { ended <- n.do("saga", "run", "--id", "s", file) }()
	eventually(t, hang(), "the second step", func() bool { return len(lines(log)) == 2 })
	n.must("agent", "quarantine", "a", "--reason", "odd calls")
	write(t, filepath.Join(w, "go"), "", 0o644)
	if r := <-ended; r.exit != 125 || !strings.Contains(r.stderr, "quarantine") {
		t.Errorf("exit %d, want the saga not at its end\n%s%s", r.exit, r.stdout, r.stderr)
	}
	if r := n.do("saga", "resume", "s"); r.exit != 125 {
		t.Errorf("resumed in quarantine: exit %d\n%s%s", r.exit, r.stdout, r.stderr)
	}
	p := place{t, runDir, n.dir}
	n.must(append([]string{"agent", "release", "a"}, p.operator()("a")...)...)
	if r := n.do("saga", "resume", "s"); r.exit != 1 || !strings.Contains(r.stdout, "aborted") {
		t.Errorf("resumed after the release: exit %d\n%s%s", r.exit, r.stdout, r.stderr)
	}
	if got := strings.Join(lines(log), "; "); got != "a; b; undo a" {
		t.Errorf("log: %s", got)
	}
	n.audit("node")
}

// H-19: an undo that its agent would be refused for now, for its ring or for another run of it, isn't used up either.
func TestH19RefusedUndoIsNotUsedUp(t *testing.T) {
	for _, tt := range []struct {
		name       string
		now, later func(node)
	}{
		{"insufficient_ring", func(n node) { n.must("agent", "score", "a", "0.5") }, func(n node) { n.must("agent", "score", "a", "0.7") }},
		{"concurrency_limit", func(n node) {
			n.must("agent", "set", "a", "--plan", "freemium")
			n.must("exec", "-d", "--name", "other", "--agent", "a", "--", "sleep", "60")
		}, func(n node) { n.must("kill", "other") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			dir := t.TempDir()
			w := filepath.Join(dir, "w")
			if err := os.Mkdir(w, 0o755); err != nil {
				t.Fatal(err)
			}
			n.must("agent", "score", "a", "0.7")
			file := write(t, filepath.Join(dir, "saga.yaml"), `name: trip
agent: a
steps:
  - id: a
    step_timeout_seconds: 60
    execute: {command: [/bin/sh, -c, "echo a >> log"], ring: 2, workspace: w}
    undo: {command: [/bin/sh, -c, "echo undo a >> log"], ring: 2, workspace: w}
  - id: b
    max_retries: 0
    step_timeout_seconds: 60
    execute: {command: [/bin/sh, -c, "echo b >> log; until [ -e go ]; do sleep 0.1; done; exit 3"], ring: 2, workspace: w}
`, 0o644)
			log := filepath.Join(w, "log")
			ended := make(chan result, 1)
			go func() { ended <- n.do("saga", "run", "--id", "s", file) }()
			eventually(t, hang(), "the second step", func() bool { return len(lines(log)) == 2 })
			tt.now(n)
			write(t, filepath.Join(w, "go"), "", 0o644)
			if r := <-ended; r.exit != 125 || !strings.Contains(r.stderr, tt.name) {
				t.Errorf("exit %d, want the saga not at its end\n%s%s", r.exit, r.stdout, r.stderr)
			}
			tt.later(n)
			if r := n.do("saga", "resume", "s"); r.exit != 1 || !strings.Contains(r.stdout, "aborted") {
				t.Errorf("resumed: exit %d\n%s%s", r.exit, r.stdout, r.stderr)
			}
			if got := strings.Join(lines(log), "; "); got != "a; b; undo a" {
				t.Errorf("log: %s", got)
			}
		})
	}
}

// H-20: a saga's step dies with the saga's process also where a daemon serves, which may be slow to hear of it: nothing is
// undone while the step goes on.
func TestH20StepDiesBesideADaemon(t *testing.T) {
	needProgram(t, "python3")
	d := startDaemon(t)
	dir := t.TempDir()
	w := filepath.Join(dir, "w")
	if err := os.Mkdir(w, 0o755); err != nil {
		t.Fatal(err)
	}
	file := write(t, filepath.Join(dir, "saga.yaml"), `name: trip
steps:
  - id: a
    execute: {command: ["true"], ring: 2, workspace: w}
    undo: {command: [/bin/sh, -c, "echo undo a >> log"], ring: 2, workspace: w}
  - id: b
    execute: {command: [python3, -c, "import time\nwhile True: print('b', file=open('log', 'a')); time.sleep(0.01)"], ring: 2, workspace: w}
`, 0o644)
	log := filepath.Join(w, "log")
	saga := func(args ...string) *exec.Cmd {
		return exec.Command(agentrun, append([]string{"--state-dir", d.state, "--run-dir", d.run, "saga"}, args...)...)
	}
	cmd := saga("run", "--id", "s", file)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, hang(), "the second step", func() bool { _, err := os.Stat(log); return err == nil })
	if err := d.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Process.Signal(unix.SIGCONT) }()
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	eventually(t, 30*time.Second, "resume", func() bool {
		r := saga("resume", "s")
		r.Env = append(os.Environ(), "AGENTRUN_NO_DAEMON=1")
		_ = r.Run()
		return r.ProcessState.ExitCode() == 2 // 125 while somebody runs it
	})
	time.Sleep(100 * time.Millisecond)
	if got := lines(log); got[len(got)-1] != "undo a" {
		t.Errorf("the step went on behind the undo: %d lines, %q at the end", len(got), got[len(got)-1])
	}
}
