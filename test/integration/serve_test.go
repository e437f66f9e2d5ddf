// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// One supervisor for many runs: exec through the daemon is exec alone, and nothing outlives either end.

// daemonNode is a daemon with folders of its own.
type daemonNode struct {
	*exec.Cmd
	run, state string
	log        string
	within     []string // a program, with its arguments, that executes the daemon; none: by itself
}

func startDaemon(t *testing.T, flags ...string) *daemonNode {
	t.Helper()
	n := newDaemon(t)
	n.start(t, flags...)
	return n
}

// newDaemon has its folders and is not started yet.
func newDaemon(t *testing.T) *daemonNode {
	t.Helper()
	needSandbox(t)
	at := filepath.Join(base, fmt.Sprintf("node-%d", counter.Add(1)))
	n := &daemonNode{run: filepath.Join(at, "run"), state: filepath.Join(at, "state"), log: filepath.Join(at, "log")}
	for _, d := range []string{n.run, n.state} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func (n *daemonNode) start(t *testing.T, flags ...string) {
	t.Helper()
	log, err := os.OpenFile(n.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	argv := slices.Concat(n.within, []string{agentrun, "--state-dir", n.state, "--run-dir", n.run, "--log-level", "info", "serve"}, flags)
	n.Cmd = exec.Command(argv[0], argv[1:]...)
	n.Stdout, n.Stderr = log, log
	before := n.said("msg=serving")
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	cmd := n.Cmd
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			b, _ := os.ReadFile(n.log)
			t.Logf("daemon: %.4000s", b)
		}
	})
	eventually(t, 20*time.Second, "the daemon serves", func() bool { return n.said("msg=serving") > before })
}

// drain has the daemon end, which leaves nothing.
func (n *daemonNode) drain(t *testing.T) {
	t.Helper()
	if err := n.Process.Signal(unix.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := n.Wait(); err != nil {
		t.Errorf("the daemon: %v", err)
	}
	noAgents(t)
}

func (n *daemonNode) said(what string) int {
	b, _ := os.ReadFile(n.log)
	return bytes.Count(b, []byte(what))
}

// prepare is an exec with the daemon's folders.
func (n *daemonNode) prepare(t *testing.T, o opts, argv ...string) *call {
	t.Helper()
	c := prepare(t, o, argv...)
	c.Args[slices.Index(c.Args, "--state-dir")+1] = n.state
	c.Args[slices.Index(c.Args, "--run-dir")+1] = n.run
	at := slices.Index(c.Args, "exec") + 1
	c.Args = slices.Insert(c.Args, at, "--no-gateway")
	return c
}

func (n *daemonNode) exec(t *testing.T, o opts, argv ...string) result {
	t.Helper()
	c := n.prepare(t, o, argv...)
	c.started = time.Now()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return c.finish(t)
}

var ownWords = regexp.MustCompile(`"id":"[a-z2-7]+"|"(started_at|at|last)":"[^"]*"|"[a-z_]+_(ns|bytes)":[0-9]+`)

// Exit codes, signals, bytes, paths, environment: what a caller can tell is the same.
func TestServeEqualsAlone(t *testing.T) {
	n := startDaemon(t)
	big := strings.Repeat("0123456789abcdef", 20<<10) // more than a pipe holds
	cases := map[string]struct {
		o    opts
		argv []string
	}{
		"exit 0":       {opts{}, []string{"/probe", "exit", "0"}},
		"exit 255":     {opts{}, []string{"/probe", "exit", "255"}},
		"signal":       {opts{}, []string{"/probe", "raise", "11"}},
		"not found":    {opts{}, []string{"/nosuch"}},
		"not a flag":   {opts{flags: []string{"--nosuch"}}, []string{"x"}},
		"ring 0":       {opts{flags: []string{"--ring", "0"}}, []string{"x"}},
		"timeout":      {opts{unsafe: true, flags: []string{"--timeout", "300ms"}}, []string{"/probe", "sleep", "60"}},
		"stdin":        {opts{stdin: strings.NewReader(big)}, []string{"/usr/bin/sh", "-c", "exec cat"}},
		"both outputs": {opts{profile: "ring2"}, []string{"/usr/bin/sh", "-c", "echo out; echo err >&2"}},
		"own folder":   {opts{profile: "ring2", flags: []string{"--workspace", "."}}, []string{"/usr/bin/sh", "-c", "pwd; echo s*; cat file"}},
		"file here":    {opts{}, []string{"script.sh", "arg"}},
		"environment":  {opts{env: []string{"MINE=a b"}, flags: []string{"--env-pass", "MINE", "--env", "X=1"}}, []string{"/usr/bin/env"}},
		"json":         {opts{flags: []string{"--json"}}, []string{"/probe", "exit", "3"}},
		"keep":         {opts{profile: "ring1", flags: []string{"--keep", "sub/kept.tar"}}, []string{"/usr/bin/true"}},
		"status here":  {opts{flags: []string{"--status-file", "sub/status.json"}}, []string{"/usr/bin/true"}},
		"bind":         {opts{flags: []string{"--ro-bind", "sub:/sub"}}, []string{"/usr/bin/sh", "-c", "cd /sub; pwd"}},
	}
	dirs := map[bool]string{}
	for _, alone := range []bool{true, false} {
		dirs[alone] = t.TempDir()
		os.Chmod(dirs[alone], 0o755)
		write(t, filepath.Join(dirs[alone], "file"), "content", 0o644)
		write(t, filepath.Join(dirs[alone], "script.sh"), "#!/bin/sh\necho script $1\n", 0o755)
		os.Mkdir(filepath.Join(dirs[alone], "sub"), 0o755)
	}
	var wg sync.WaitGroup
	for name, c := range cases {
		wg.Go(func() {
			told := map[bool]map[string]any{}
			for _, alone := range []bool{true, false} {
				o := c.o
				o.dir = dirs[alone]
				if r, ok := c.o.stdin.(*strings.Reader); ok {
					r.Seek(0, 0)
				}
				if alone {
					o.env = append(slices.Clone(o.env), "AGENTRUN_NO_DAEMON=1")
				}
				r := n.exec(t, o, c.argv...)
				if strings.Contains(name, "status here") {
					b, err := os.ReadFile(filepath.Join(o.dir, "sub/status.json"))
					r.hasStatus = err == nil && json.Unmarshal(b, &r.status) == nil
				}
				if info, err := os.Stat(filepath.Join(o.dir, "sub/kept.tar")); strings.Contains(name, "keep") && (err != nil || info.Mode().Perm() != 0o600) {
					t.Errorf("%s: %v, %v", name, info, err)
				}
				told[alone] = map[string]any{
					"code": r.exit, "out": r.stdout, "err": ownWords.ReplaceAllString(r.stderr, "…"),
					"status": fmt.Sprint(r.hasStatus, r.status.State, r.status.ExitCode, r.status.Signal, r.status.Profile, r.status.PlanDigest == "", r.status.Output),
				}
			}
			if diff := cmp.Diff(told[true], told[false]); diff != "" {
				t.Errorf("%s (-alone +daemon):\n%.3000s", name, diff)
			}
		})
	}
	wg.Wait()
	if got := n.said("carried out"); got != len(cases) {
		t.Errorf("the daemon carried out %d of %d", got, len(cases))
	}
	noAgents(t)
}

// M-2: what the words of a caller ask for is kept; where they lead, and what the environment and the files say, is looked up for each.
func TestServeSaidAgain(t *testing.T) {
	n := startDaemon(t)
	var dirs [2]string
	for i := range dirs {
		dirs[i] = t.TempDir()
		os.Chmod(dirs[i], 0o755)
	}
	config := filepath.Join(dirs[0], "config.yaml")
	write(t, config, "", 0o600)
	call := func(i, from int) (string, error) {
		write(t, filepath.Join(dirs[from], "file"), fmt.Sprint("file ", i), 0o644)
		cmd := exec.Command(agentrun, "--config", config, "exec", "--no-gateway", "--ring", "2", "--workspace", ".", "--", "/usr/bin/sh", "-c", fmt.Sprintf("cat file; echo , call %d", i))
		cmd.Dir, cmd.Env = dirs[from], append(os.Environ(), "AGENTRUN_STATE_DIR="+n.state, "AGENTRUN_RUN_DIR="+n.run)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for i, from := range []int{0, 1, 0, 1} {
		if out, err := call(i, from); err != nil || out != fmt.Sprintf("file %d, call %d\n", i, i) {
			t.Errorf("call %d: %v, %s", i, err, out)
		}
	}
	eventually(t, 10*time.Second, "the daemon has carried out all", func() bool { return n.said("carried out") == 4 })
	write(t, config, "keys: required\n", 0o600)
	if out, err := call(4, 0); err == nil || !strings.Contains(out, "key") {
		t.Errorf("the configuration wants a key now: %v, %s", err, out)
	}
	n.drain(t)
}

// M-2, the attack: root of a container that has the daemon's socket, or anybody with another view of the host, has the daemon show what it
// can't see itself. Such a caller's run is alone, and sees what the caller sees.
func TestServeDeclinesAnotherView(t *testing.T) {
	n := startDaemon(t)
	dir := t.TempDir()
	os.Chmod(dir, 0o755)
	write(t, filepath.Join(dir, "file"), "the host's", 0o644)
	for _, ns := range []struct{ flag, name string }{{"--mount", "mnt"}, {"--net", "net"}} {
		script := `if test "$1" = --mount; then mount -t tmpfs none "$2" && echo "the caller's" > "$2/file"; fi
			"$3" --state-dir "$4" --run-dir "$5" --log-level info exec --no-gateway --ro-bind "$2:/shown" -- /usr/bin/cat /shown/file`
		out, err := exec.Command("unshare", ns.flag, "sh", "-c", script, "sh", ns.flag, dir, agentrun, n.state, n.run).CombinedOutput()
		want := "the host's"
		if ns.name == "mnt" {
			want = "the caller's\n"
		}
		for _, want := range []string{want, fmt.Sprintf("the caller is in another %s namespace", ns.name)} {
			if err != nil || !strings.Contains(string(out), want) {
				t.Errorf("%s: %v, %q, want %q", ns.name, err, out, want)
			}
		}
	}
	n.drain(t)
	if n.said("carried out") > 0 {
		t.Error("the daemon carried out what it should have declined")
	}
}

// Whoever goes, the agent goes with it; what a killed daemon leaves, the next removes.
func TestServeNobodyOutlivesTheOther(t *testing.T) {
	n := startDaemon(t)
	begin := func(words ...string) *call {
		c := n.prepare(t, opts{}, append([]string{"/probe"}, words...)...)
		c.startUntil(t, "ready")
		return c
	}
	// A signal to the client is one to the agent, and so is its death.
	c := begin("ready", ",", "sleep", "60")
	c.Process.Signal(unix.SIGTERM)
	c.finish(t).want(t, 128+15, "signaled")
	c = begin("ready", ",", "sleep", "60")
	c.Process.Signal(unix.SIGUSR1)
	c.finish(t).want(t, 128+10, "signaled")
	c = begin("stubborn")
	c.Process.Kill()
	c.Wait()
	noAgents(t)

	held := []*call{begin("stubborn"), begin("ready", ",", "sleep", "60"), begin("stubborn")}
	n.Process.Kill()
	n.Wait()
	for _, c := range held {
		if r := c.finish(t); r.exit != 125 || !strings.Contains(r.stderr, "the daemon is gone") {
			t.Errorf("got %d, %q, want 125 and why", r.exit, r.stderr)
		}
	}
	noAgents(t)
	n.start(t)
	if n.said("cleaned up after crashed runs") == 0 {
		t.Error("the next daemon doesn't say that it cleaned up")
	}
	if left, _ := os.ReadDir(filepath.Join(n.run, "sandboxes")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if r := n.exec(t, opts{}, "/probe", "exit", "9"); r.exit != 9 {
		t.Errorf("after the restart: got %d, want 9", r.exit)
	}
	// One daemon for a run folder.
	if out, err := exec.Command(agentrun, "--state-dir", n.state, "--run-dir", n.run, "serve").CombinedOutput(); err == nil || !strings.Contains(string(out), "already") {
		t.Errorf("a second daemon: %v, %s", err, out)
	}
}

// SIGTERM asks the runs to end, a second one ends them; nobody is let in meanwhile.
func TestServeDrains(t *testing.T) {
	n := startDaemon(t)
	polite := n.prepare(t, opts{}, "/probe", "ready", ",", "sleep", "60")
	stubborn := n.prepare(t, opts{}, "/probe", "stubborn")
	polite.startUntil(t, "ready")
	stubborn.startUntil(t, "ready")
	n.Process.Signal(unix.SIGTERM)
	polite.finish(t).want(t, 128+15, "signaled")
	if !agentsAlive() {
		t.Error("the stubborn agent got no grace")
	}
	n.Process.Signal(unix.SIGTERM)
	stubborn.finish(t).want(t, 137, "killed")
	if err := n.Wait(); err != nil {
		t.Errorf("the daemon: %v", err)
	}
	noAgents(t)
	if r := n.exec(t, opts{}, "/probe", "exit", "4"); r.exit != 4 {
		t.Errorf("alone, after the daemon: got %d, want 4", r.exit)
	}
}

// A caller who doesn't read what its run writes keeps no daemon from ending, and isn't told that it has all.
func TestServeEndsThoughNobodyReads(t *testing.T) {
	n := startDaemon(t, "--grace", "100ms")
	unread := func(script string) *call {
		c := n.prepare(t, opts{profile: "ring2"}, "/usr/bin/sh", "-c", script)
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		c.Stdout = w
		err = c.Start()
		w.Close()
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, 20*time.Second, "the pipe is full", func() bool {
			has, err := unix.IoctlGetInt(int(r.Fd()), unix.TIOCINQ)
			return err == nil && has == 64<<10
		})
		return c
	}
	p := place{t, n.run, n.state}
	writes, over := unread("trap '' TERM; exec yes"), unread("exec head -c 100000 /dev/zero") // what two pipes hold
	eventually(t, 20*time.Second, "the second has ended", func() bool { return strings.Contains(p.must("ps").stdout, "ending") })
	if err := n.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- n.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the daemon: %v", err)
		}
	case <-time.After(hang() / 4):
		t.Fatal("the daemon waits for who doesn't read")
	}
	writes.finish(t).want(t, 137, "killed")
	r := over.finish(t)
	r.want(t, 125, "failed")
	if !strings.Contains(r.status.Error, "could not all be passed on") {
		t.Errorf("it says %q", r.status.Error)
	}
	noAgents(t)
}

// A run whose account can't be read says so: a processor time of 0 would be taken for its own.
func TestServeSaysThatTheAccountIsMissing(t *testing.T) {
	n := startDaemon(t)
	in, hold, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer hold.Close()
	c := n.prepare(t, opts{profile: "ring2", flags: []string{"--json"}, stdin: in}, "/usr/bin/sh", "-c", "echo ready; read x")
	c.startUntil(t, "ready")
	var was unix.Rlimit
	if err := unix.Prlimit(n.Process.Pid, unix.RLIMIT_NOFILE, nil, &was); err != nil {
		t.Fatal(err)
	}
	few := unix.Rlimit{Cur: 8, Max: was.Max}
	if err := unix.Prlimit(n.Process.Pid, unix.RLIMIT_NOFILE, &few, nil); err != nil {
		t.Fatal(err)
	}
	hold.Close()
	_ = c.Wait()
	if err := unix.Prlimit(n.Process.Pid, unix.RLIMIT_NOFILE, &was, nil); err != nil {
		t.Fatal(err)
	}
	if got := c.errOut.String(); !strings.Contains(got, "what the run has used can't be read") {
		t.Errorf("got %s", got)
	}
	n.drain(t)
	if err := exec.Command(agentrun, "--state-dir", n.state, "--run-dir", n.run, "gc").Run(); err != nil { // what it had no descriptors to remove
		t.Error(err)
	}
}

// Of a workspace under a layer of its own the caller is told what waits, and finds it.
func TestServeTellsChanges(t *testing.T) {
	n := startDaemon(t)
	p := place{t, n.run, n.state}
	r := p.must("exec", "--no-gateway", "--ring", "2", "--workspace", workspace(t), "--workspace-mode", "overlay", "--", "sh", "-c", "echo x > new")
	_, rest, told := strings.Cut(r.stderr, "1 changes of the workspace wait\nhint: agentrun diff ")
	id, _, _ := strings.Cut(rest, ";")
	if !told {
		t.Fatalf("the caller isn't told: %s", r.stderr)
	}
	if d := p.must("diff", id); !strings.Contains(d.stdout, "new") {
		t.Errorf("there is %s%s", d.stdout, d.stderr)
	}
	n.drain(t)
}

// When its run is over, a caller's workspace is as it was but for what the agent did: nothing stands for what was missing any more.
func TestServeLeavesNoPlaceholders(t *testing.T) {
	n := startDaemon(t)
	p, ws := place{t, n.run, n.state}, workspace(t)
	for range 10 {
		p.must("exec", "--no-gateway", "--ring", "2", "--workspace", ws, "--", "true")
		if left := names(t, ws); len(left) > 1 { // itself
			t.Fatalf("left: %v", left)
		}
	}
	n.drain(t)
}

// H-32, M-19: who waited for the end of a run finds its turn and its place free.
func TestH32ServeRunsOneAfterAnother(t *testing.T) {
	n := startDaemon(t)
	p := place{t, n.run, n.state}
	p.must("agent", "score", "a", "0.75")
	p.must("agent", "set", "a", "--plan", "freemium") // one run at once
	p.must("session", "create", "s", "--mode", "strong")
	p.must("session", "join", "s", "--agent", "a")
	for range 10 {
		p.must("exec", "--no-gateway", "--agent", "a", "--session", "s", "--", "true")
	}
	n.drain(t)
}

func agentsAlive() bool { return len(ownAgents()) > 0 }

// A full node answers each caller once: wait, or no.
func TestServeQueue(t *testing.T) {
	n := startDaemon(t, "--max-sandboxes", "1", "--queue", "1", "--queue-timeout", fmt.Sprint(time.Duration(slow*float64(400*time.Millisecond))))
	first := n.prepare(t, opts{}, "/probe", "ready", ",", "sleep", "60")
	first.startUntil(t, "ready")
	second := n.prepare(t, opts{}, "/probe", "exit", "0")
	if err := second.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "the second waits", func() bool {
		n.Process.Signal(unix.SIGUSR1)
		return n.said("1 runs, 1 waiting") > 0
	})
	third := n.exec(t, opts{}, "/probe", "exit", "0")
	for what, r := range map[string]result{"one too many": third, "too late": second.finish(t)} {
		if r.exit != 125 || !strings.Contains(r.stderr, "the node is full") {
			t.Errorf("%s: got %d, %q, want 125: the node is full", what, r.exit, r.stderr)
		}
	}
	fourth := n.prepare(t, opts{}, "/probe", "exit", "5")
	if err := fourth.Start(); err != nil {
		t.Fatal(err)
	}
	first.Process.Signal(unix.SIGTERM)
	first.finish(t).want(t, 143, "signaled")
	fourth.finish(t).want(t, 5, "exited")
}

// M-23: what waits for room when an operator kills all, or its agent's, begins no more; what is asked for afterwards does.
func TestM23KillEndsWhatWaitsForRoom(t *testing.T) {
	n := startDaemon(t, "--max-sandboxes", "1", "--queue", "3", "--queue-timeout", "300s")
	verb := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(agentrun, append([]string{"--state-dir", n.state, "--run-dir", n.run}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	for _, who := range []string{"a", "b"} {
		verb("agent", "score", who, "0.7")
	}
	waits := func(how string, flags ...string) *call {
		t.Helper()
		c := n.prepare(t, opts{flags: flags}, "/probe", "exit", "7")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, 20*time.Second, "it waits", func() bool {
			n.Process.Signal(unix.SIGUSR1)
			return n.said(how) > 0
		})
		return c
	}
	first := n.prepare(t, opts{}, "/probe", "ready", ",", "sleep", "300")
	first.startUntil(t, "ready")
	ofA := waits("1 runs, 1 waiting", "--agent", "a")
	ofB := waits("1 runs, 2 waiting", "--agent", "b")
	refused := func(c *call, what string) {
		t.Helper()
		if r := c.finish(t); r.exit != 125 || !strings.Contains(r.stderr, "before it began") {
			t.Errorf("%s: exit %d, %q, want 125: it was killed before it began", what, r.exit, r.stderr)
		}
	}
	verb("kill", "--agent", "a", "--reason", "a test")
	refused(ofA, "of the agent")
	verb("kill", "--all", "--yes", "--reason", "a test")
	refused(ofB, "of another agent, by kill --all")
	if r := first.finish(t); r.exit != 137 {
		t.Errorf("the live one: exit %d %s", r.exit, r.stderr)
	}
	n.exec(t, opts{}, "/probe", "exit", "5").want(t, 5, "exited")
}

// Twenty (in the VM ten) at once in one process, then the same again: nothing of them stays in it. They have 256 MiB each and take
// none: by default a node has room for many such. `make crowd` has five hundred.
func TestServeCrowd(t *testing.T) {
	n := startDaemon(t)
	many := count(t, "AGENTRUN_TEST_SERVE_CROWD", min(20, count(t, "AGENTRUN_TEST_CROWD", 100)/2))
	crowd := func() {
		stdin, hold, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer stdin.Close()
		calls := make([]*call, many)
		errs := make([]error, len(calls))
		var wg sync.WaitGroup
		for i := range calls {
			calls[i] = n.prepare(t, opts{stdin: stdin, flags: []string{"--timeout", "300s"}}, "/probe", "id", ",", "wait")
			wg.Go(func() { errs[i] = calls[i].until("ready") })
			t.Cleanup(calls[i].release)
		}
		wg.Wait()
		uids := map[uint32]bool{}
		for _, p := range descendants(n.Process.Pid) {
			uids[p.uid] = true
		}
		free := lines("/proc/meminfo")[2]
		t.Logf("%d runs live, the daemon uses %d KiB, of the host's memory is left: %s", len(calls), inKiB(n.Process.Pid, "status", "VmRSS:"), free)
		if len(uids) < len(calls) {
			t.Errorf("%d runs have %d uids (M-1)", len(calls), len(uids))
		}
		hold.Close()
		for i, c := range calls {
			if errs[i] != nil {
				t.Fatal(errs[i])
			}
			c.finish(t).want(t, 0, "exited")
		}
	}
	held := func() (fds, threads int) {
		names, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", n.Process.Pid))
		tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", n.Process.Pid))
		return len(names), len(tasks)
	}
	crowd()
	var fds, threads int
	settled := func() bool { fds, threads = held(); return len(descendants(n.Process.Pid)) == 0 && fds < 25 }
	eventually(t, 5*time.Second, "the first crowd is gone", settled)
	before, most := fds, threads
	crowd()
	eventually(t, 5*time.Second, "descriptors are given back", func() bool { settled(); return fds <= before })
	if threads > most+10 {
		t.Errorf("threads: %d after the first crowd, %d after the second", most, threads)
	}
}

// A detached run belongs to nobody who waits: a daemon's, or a supervisor of its own.
func TestDetach(t *testing.T) {
	n := startDaemon(t)
	for _, alone := range []bool{false, true} {
		var env []string
		if alone {
			env = []string{"AGENTRUN_NO_DAEMON=1"}
		}
		c := n.prepare(t, opts{env: env, profile: "ring2", flags: []string{"-d", "--json"}}, "/usr/bin/sh", "-c", "read x; echo begun; sleep 0.3; echo done >&2; exit 3")
		statusFile := c.statusFile
		// Read to its end: nothing of the run may hold the caller's output.
		out, err := c.output()
		var said struct{ ID, Output string }
		if err != nil || json.Unmarshal(out, &said) != nil {
			t.Fatalf("alone %v: %v: %s %s", alone, err, out, c.errOut.String())
		}
		var s status
		eventually(t, 10*time.Second, "the detached run ends", func() bool {
			b, err := os.ReadFile(statusFile)
			return err == nil && json.Unmarshal(b, &s) == nil
		})
		if s.ID != said.ID || s.ExitCode != 3 || s.State != "exited" {
			t.Errorf("alone %v: status %+v of %s", alone, s, said.ID)
		}
		b, err := os.ReadFile(said.Output)
		if err != nil || string(b) != "begun\ndone\n" || said.Output != filepath.Join(n.state, "output", said.ID+".log") {
			t.Errorf("alone %v: output %s: %q, %v", alone, said.Output, b, err)
		}
		if info, err := os.Stat(said.Output); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("alone %v: mode %v, %v", alone, info.Mode(), err)
		}
		// What can't begin is told as always.
		r := n.exec(t, opts{env: env, flags: []string{"-d"}}, "/nosuch")
		if r.exit != 127 || !strings.Contains(r.stderr, "nosuch") || r.stdout != "" {
			t.Errorf("alone %v: got %d %q %q, want 127", alone, r.exit, r.stdout, r.stderr)
		}
	}
	noAgents(t)
}

// output is exec.Cmd.Output with the call's own buffers.
func (c *call) output() ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), hang())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- c.Run() }()
	select {
	case err := <-done:
		return c.out.Bytes(), err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// M-6: each run that did not exit with 0 is told as failed, with the true cause, to whoever follows the events.
func TestM6FailedEvent(t *testing.T) {
	n := startDaemon(t)
	n.exec(t, opts{}, "/bin/true")
	n.exec(t, opts{}, "/probe", "exit", "9")
	n.exec(t, opts{}, "/bin/sh", "-c", "kill -SEGV $$")
	n.exec(t, opts{unsafe: true, flags: []string{"--timeout", "1s"}}, "/probe", "stubborn")
	n.exec(t, opts{flags: []string{"--max-output", "4k"}}, "/probe", "output", "1000000")
	var got []string
	out, err := exec.Command(agentrun, "--state-dir", n.state, "--run-dir", n.run, "events", "--json").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		var e struct {
			Kind string
			Data struct{ State, Signal, Reason, ExitCode string }
		}
		if err := json.Unmarshal([]byte(strings.Replace(line, `"exit_code"`, `"ExitCode"`, 1)), &e); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if e.Kind == "agent.run.failed" || e.Kind == "ended" {
			d := e.Data
			if d.State != "signaled" {
				d.Signal = "" // whichever of ours came first
			}
			got = append(got, strings.Join([]string{e.Kind, d.State, d.ExitCode, d.Signal, d.Reason}, " "))
		}
	}
	want := []string{
		"ended exited 0  ",
		"agent.run.failed exited 9  ", "ended exited 9  ",
		"agent.run.failed signaled 139 SIGSEGV ", "ended signaled 139  ",
		"agent.run.failed timeout 124  wall clock: 1s", "ended timeout 124  ",
		"agent.run.failed policy 137  output over the limit of 4096 bytes", "ended policy 137  ",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// The daemon has the Go runtime's monitor wake later than it asks for, and whatever slack its threads have is not an agent's.
func TestDaemonsTimerSlackIsItsOwn(t *testing.T) {
	n := startDaemon(t)
	slack := func(tid string) string { return filepath.Join("/proc", tid, "timerslack_ns") }
	f, err := os.Open(fmt.Sprintf("/proc/%d/task", n.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tids, err := f.Readdirnames(-1) // the monitor is the second
	if err != nil || len(tids) < 3 {
		t.Fatal(tids, err)
	}
	for i, want := range []string{"50000\n", "500000\n"} {
		if got, err := os.ReadFile(slack(tids[i])); string(got) != want {
			t.Errorf("thread %d: %q %v, want %q", i, got, err, want)
		}
	}
	for _, tid := range tids {
		if err := os.WriteFile(slack(tid), []byte("7000000"), 0); err != nil {
			t.Fatal(err)
		}
	}
	r := n.exec(t, opts{}, "/probe", "cat", "/proc/self/timerslack_ns")
	if r.exit != 0 || !strings.Contains(r.stdout, "value=50000|") {
		t.Errorf("an agent's: exit %d, %q\n%s", r.exit, r.stdout, r.stderr)
	}
}

// A caller without standard input or output hands over what it hasn't got, and not what is opened in that place: its connection.
func TestServeClosedDescriptors(t *testing.T) {
	p := newPlace(t)
	n := &daemonNode{run: p.run, state: p.state, log: filepath.Join(filepath.Dir(p.run), "log")}
	n.start(t)
	defer n.drain(t)
	for _, closed := range []string{"<&- >&- 2>&-", "2>&-", ">&-", "<&-"} {
		c := exec.Command("/bin/sh", "-c", `exec "$0" "$@" `+closed, agentrun, "--state-dir", p.state, "--run-dir", p.run,
			"exec", "--ring", "2", "--workspace", workspace(t), "--", "/bin/sh", "-c", "echo out; echo hello hello hello >&2; exit 7")
		if err := c.Run(); c.ProcessState.ExitCode() != 7 {
			t.Errorf("%s: %v", closed, err)
		}
	}
}

// What each process sees its own of is the caller's: /proc/self/cwd is not the daemon's folder.
func TestServePathsOfTheCaller(t *testing.T) {
	n := startDaemon(t)
	ws := workspace(t)
	write(t, filepath.Join(ws, "mine"), "x", 0o644)
	for _, flag := range [][]string{{"--workspace", "/proc/self/cwd"}, {"--workspace=/proc/thread-self/cwd"}, {"--workspace", "/dev/fd/0/."}} {
		cmd := exec.Command(agentrun, slices.Concat([]string{"exec", "--ring", "2"}, flag, []string{"--", "ls"})...)
		cmd.Dir, cmd.Env = ws, append(os.Environ(), "AGENTRUN_STATE_DIR="+n.state, "AGENTRUN_RUN_DIR="+n.run)
		dir, err := os.Open(ws)
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdin = dir
		if out, err := cmd.Output(); err != nil || string(out) != "mine\n" {
			t.Errorf("%s: %q, %v", flag, out, err)
		}
		dir.Close()
	}
}
