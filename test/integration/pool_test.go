// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"errors"
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

	"golang.org/x/sys/unix"

	"agentrun/profiles"
	"agentrun/rings"
	"agentrun/runtime"
)

// A sandbox that was built before its run was known holds the run as any other does, and is used for one.

// plain is an exec of the probe from a workspace: a run that a prepared sandbox suits, unless its flags say otherwise.
func (n *daemonNode) plain(t *testing.T, o opts, tries ...string) *call {
	t.Helper()
	dir := workspace(t)
	copyProbe(t, dir)
	o.flags = append([]string{"--workspace", dir}, o.flags...)
	c := n.prepare(t, o, append([]string{"/workspace/probe"}, probeArgs(append(slices.Clone(tries), "exit 0")...)[1:]...)...)
	at := slices.Index(c.Args, probeBin+":/probe")
	c.Args = slices.Delete(c.Args, at-1, at+1)
	return c
}

func copyProbe(t *testing.T, dir string) {
	t.Helper()
	b, err := os.ReadFile(probeBin)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "probe"), string(b), 0o755)
}

func (c *call) do(t *testing.T) result {
	t.Helper()
	c.started = time.Now()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return c.finish(t)
}

var readyNow = regexp.MustCompile(`0 runs, 0 waiting, (\d+) sandboxes ready`)

// ready waits until no run is left and one sandbox waits, or more, and gives the ids of those.
func (n *daemonNode) ready(t *testing.T) (ids []string) {
	t.Helper()
	eventually(t, 15*time.Second, "a sandbox is ready", func() bool {
		before := n.statuses()
		n.Process.Signal(unix.SIGUSR1)
		time.Sleep(time.Duration(slow*5) * time.Millisecond)
		said := n.statuses()
		if len(said) <= len(before) { // what it said earlier is no answer
			return false
		}
		ids = nil
		left, _ := os.ReadDir(filepath.Join(n.run, "sandboxes"))
		for _, d := range left {
			ids = append(ids, d.Name())
		}
		m := readyNow.FindStringSubmatch(said[len(said)-1])
		return len(ids) > 0 && m != nil && m[1] == fmt.Sprint(len(ids))
	})
	return ids
}

// statuses is what it answered to SIGUSR1 so far.
func (n *daemonNode) statuses() []string {
	b, _ := os.ReadFile(n.log)
	return slices.DeleteFunc(strings.Split(string(b), "\n"), func(l string) bool { return !strings.Contains(l, "STATUS=") })
}

func (n *daemonNode) audited(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	files, _ := filepath.Glob(filepath.Join(n.state, "audit", "node", "*.jsonl"))
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(b)
	}
	return all.String()
}

func (n *daemonNode) twoAtOnce(t *testing.T) []result {
	t.Helper()
	stdin, hold, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	calls, errs := make([]*call, 2), make([]error, 2)
	var begun sync.WaitGroup
	for i := range calls {
		calls[i] = n.plain(t, opts{stdin: stdin}, "ns", "wait")
		begun.Go(func() { errs[i] = calls[i].until("ready") })
		t.Cleanup(calls[i].release)
	}
	begun.Wait()
	hold.Close()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return []result{calls[0].finish(t), calls[1].finish(t)}
}

// Two runs from the pool have nothing in common, and each is what was asked for: identity, limits, environment, record.
func TestPoolSharesNothing(t *testing.T) {
	n := startDaemon(t)
	look := []string{"id", "env", "argv X", "read /tmp/sandbox/marker", "read /tmp/sandbox/.shm/marker", "create /tmp/sandbox/marker", "create /tmp/sandbox/.shm/marker", "read /workspace/probe", "create /workspace/new"}
	n.plain(t, opts{}, look...).do(t).want(t, 0, "exited") // a first one, for the demand
	seen := map[string]bool{}
	for i, flags := range [][]string{{"--env", "ONLY=first", "--name", "a", "--memory", "300M"}, {"--cpus", "0.3", "--pids", "32"}, {"--ring", "3", "--timeout", "61s"}} {
		ids := n.ready(t)
		r := n.plain(t, opts{flags: flags}, look...).do(t)
		r.want(t, 0, "exited")
		if !slices.Contains(ids, r.status.ID) {
			t.Errorf("run %d is %s, and %v was ready", i, r.status.ID, ids)
		}
		got := answers(r.stdout)
		if got["read /tmp/sandbox/marker"] != "ENOENT" || got["read /tmp/sandbox/.shm/marker"] != "ENOENT" || got["create /tmp/sandbox/marker"] != "ok" {
			t.Errorf("run %d finds what another left: %v", i, got)
		}
		if got["create /workspace/new"] != "EROFS" || got["read /workspace/probe"] != "ok" {
			t.Errorf("run %d: the workspace: %v", i, got)
		}
		if has := strings.Contains(value(t, r, "env"), "ONLY=first"); has != (i == 0) {
			t.Errorf("run %d has the variable: %v", i, has)
		}
		if seen[r.status.ID] || r.status.Name != map[int]string{0: "a"}[i] {
			t.Errorf("run %d: status %+v", i, r.status)
		}
		seen[r.status.ID] = true
		eventually(t, 5*time.Second, "admission, start and end are on record", func() bool {
			return strings.Count(n.audited(t), `"run_id":"`+r.status.ID+`"`) == 3
		})
	}
	// Of those that live at the same time; the number of a namespace that is gone is given out again.
	waiting, fromPool := n.ready(t), 0
	for _, r := range n.twoAtOnce(t) {
		if slices.Contains(waiting, r.status.ID) {
			fromPool++
		}
		for ns := range strings.SplitSeq(value(t, r, "ns"), "|") {
			if seen[ns] {
				t.Errorf("two have the namespace %s", ns)
			}
			seen[ns] = true
		}
	}
	if fromPool == 0 {
		t.Errorf("neither of two is of %v, which were ready", waiting)
	}
	// What waits is nobody's yet, in the record and as a process.
	ids := n.ready(t)
	if len(ids) > 0 && strings.Contains(n.audited(t), ids[0]) {
		t.Errorf("sandbox %s has no run and is on record", ids[0])
	}
	n.Process.Signal(unix.SIGTERM)
	if err := n.Wait(); err != nil {
		t.Error(err)
	}
	noAgents(t)
	if left, _ := os.ReadDir(filepath.Join(n.run, "sandboxes")); len(left) > 0 {
		t.Errorf("left by a daemon that ended: %v", left)
	}
}

// The exit, rings above 3 and writable workspaces come from the pool as well; what only a sandbox of the run's own can show doesn't.
func TestPoolSuits(t *testing.T) {
	n := startDaemon(t, "--pool-max", "8") // of each kind two, where two runs of it began within a burst
	outside := t.TempDir()
	os.Chmod(outside, 0o755)
	write(t, filepath.Join(outside, "file"), "x", 0o644)
	for name, c := range map[string]struct {
		o     opts
		tries []string
		pool  bool
	}{
		"ring 2":  {opts{profile: "ring2"}, []string{"create /workspace/new", "fork", "read /workspace/new"}, true},
		"ring 1":  {opts{profile: "ring1"}, []string{"create /new", "create /usr/new", "create /workspace/new"}, true},
		"scratch": {opts{flags: []string{"--scratch-size", "8M"}}, []string{"create /tmp/sandbox/x"}, true},
		"bind":    {opts{flags: []string{"--ro-bind", outside + ":/outside"}}, []string{"read /outside/file"}, false},
		"keep":    {opts{profile: "ring1", flags: []string{"--keep", filepath.Join(outside, "kept.tar")}}, []string{"create /new"}, false},
	} {
		var ids []string
		for i := range 2 {
			r := n.plain(t, c.o, c.tries...).do(t)
			r.want(t, 0, "exited")
			for _, try := range c.tries {
				if got := answers(r.stdout)[try]; got != "ok" {
					t.Errorf("%s, run %d: %s: %s", name, i, try, got)
				}
			}
			if i == 1 && slices.Contains(ids, r.status.ID) != c.pool {
				t.Errorf("%s: run %s of the ready %v, want from the pool: %v", name, r.status.ID, ids, c.pool)
			}
			if !c.pool {
				continue
			}
			ids = n.ready(t)
		}
	}
	n.drain(t)
}

// Where the host changes under what waits (a package is installed, something mounted below /usr), that is taken down, and others are
// built of the host as it is now, without any run that asks.
func TestPoolFollowsTheHost(t *testing.T) {
	needProgram(t, "unshare", "nsenter", "mount")
	n := newDaemon(t)
	n.within = []string{"unshare", "--mount", "--propagation", "private"}
	n.start(t)
	inside := func(c *exec.Cmd) *exec.Cmd {
		c.Args = append([]string{"nsenter", "--mount", fmt.Sprintf("--target=%d", n.Process.Pid), "--wdns=/", "--", c.Path}, c.Args[1:]...)
		c.Path = sandboxProgram("nsenter")
		return c
	}
	do := func() result {
		c := n.plain(t, opts{}, "ns")
		inside(c.Cmd)
		return c.do(t)
	}
	do().want(t, 0, "exited")
	old := n.ready(t)
	if out, err := inside(exec.Command("mount", "-t", "tmpfs", "another", "/usr/share/misc")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	eventually(t, 20*time.Second, "what was ready is taken down", func() bool {
		left, _ := os.ReadDir(filepath.Join(n.run, "sandboxes"))
		return !slices.ContainsFunc(left, func(d os.DirEntry) bool { return slices.Contains(old, d.Name()) })
	})
	now := n.ready(t)
	if r := do(); r.exit != 0 || !slices.Contains(now, r.status.ID) {
		t.Errorf("got exit %d, run %s, want 0 and one of %q", r.exit, r.status.ID, now)
	}
	n.drain(t) // killed, it would leave the groups of what is ready to the next start
}

// A daemon that is killed takes what waits with it; the next one removes the rest.
func TestPoolDiesWithItsDaemon(t *testing.T) {
	n := startDaemon(t)
	n.plain(t, opts{}, "ok").do(t).want(t, 0, "exited")
	ids := n.ready(t)
	n.Process.Kill()
	n.Wait()
	noAgents(t)
	n.start(t)
	if left, _ := os.ReadDir(filepath.Join(n.run, "sandboxes")); len(left) > 0 {
		t.Errorf("left after the restart: %v of %v", left, ids)
	}
	// A prepared sandbox whose pid 1 was killed is nobody's.
	n.plain(t, opts{}, "ok").do(t).want(t, 0, "exited")
	ids = n.ready(t)
	for _, p := range ownAgents() {
		unix.Kill(p.pid, unix.SIGKILL)
	}
	noAgents(t)
	r := n.plain(t, opts{}, "ok").do(t)
	r.want(t, 0, "exited")
	if slices.Contains(ids, r.status.ID) {
		t.Errorf("run %s was given a dead sandbox", r.status.ID)
	}
	n.drain(t)
}

// An elevation opens the workspace of a run from the pool and closes it again, as of any other.
func TestPoolWorkspaceFollowsTheRing(t *testing.T) {
	needSandbox(t)
	var used *runtime.Prepared
	a := startAlive(t, aliveOpts{profile: "ring3", change: func(s *runtime.Spec) {
		copyProbe(t, s.Workspace)
		s.Binds, s.Command = nil, []string{"/workspace/probe", "live"}
	}, plan: func(p *runtime.Plan) {
		shape, err := p.Shape()
		if err != nil {
			t.Fatal(err)
		}
		if used, err = runtime.Prepare(shape, runtime.PrepareOptions{RunDir: runDir}); err != nil {
			t.Fatal(err)
		}
		if err := shape.Use(used); err != nil {
			t.Fatal(err)
		}
		if shape.Use(used) == nil && !used.Alive() {
			t.Error("a sandbox is ready and not alive")
		}
	}})
	if used.Alive() {
		t.Error("a sandbox that a run has can be handed out again")
	}
	if a.Plan().ID != used.ID() {
		t.Errorf("run %s, sandbox %s", a.Plan().ID, used.ID())
	}
	for range 2 {
		a.expect("errno=EROFS", "create /workspace/new")
		a.expect("errno=EPERM", "fork")
		a.applied(rings.Standard)
		a.expect("ok", "fork", "create /workspace/at")
		if err := os.Remove(a.file("at")); err != nil {
			t.Error(err)
		}
		a.applied(rings.Sandbox)
	}
	if s := a.quit(); s.State != runtime.Exited || len(s.Leftovers) > 0 {
		t.Errorf("got %+v, want exited", s)
	}
	if err := used.Close(); err != nil {
		t.Errorf("close after the run: %v, want nothing done", err)
	}
	// Of two runs that were planned for one sandbox, the second has none.
	p, _ := profiles.Builtin("ring3")
	spec := runtime.Spec{Profile: p, Limits: p.Limits, Command: []string{"/usr/bin/true"}, WorkDir: "/"}
	plan, err := runtime.NewPlan(spec)
	if err != nil {
		t.Fatal(err)
	}
	shape, _ := plan.Shape()
	if s := shape.Kept(); s.Use(used) == nil {
		t.Error("a shape without a plan was used")
	}
	if shape.Use(used) == nil {
		t.Error("a sandbox of another shape was taken")
	}
	once, err := runtime.Prepare(shape, runtime.PrepareOptions{RunDir: runDir})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(shape.Use(once), once.Close(), once.Close()); err != nil {
		t.Fatal(err)
	}
	if s := runtime.Run(t.Context(), plan, runtime.Options{RunDir: runDir, Stdout: os.Stderr, Stderr: os.Stderr}); s.State != runtime.Failed {
		t.Errorf("in a sandbox that is gone: got %+v, want failed", s)
	}
}

// The launch of a run from the pool undoes everything wherever it fails.
func TestPoolLaunchFailsClean(t *testing.T) {
	n := startDaemon(t)
	n.plain(t, opts{}, "ok").do(t).want(t, 0, "exited")
	n.ready(t)
	// The workspace is a file system that can't show its files under another owner: proc.
	r := n.plain(t, opts{flags: []string{"--workspace", "/proc/sys"}}, "ok").do(t)
	if r.exit != 125 && r.exit != 127 {
		t.Errorf("got %d, %q, want a refusal", r.exit, r.stderr)
	}
	n.drain(t)
}
