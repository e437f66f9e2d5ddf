// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// How runs end and what is told about it: M-3, M-5, M-6, M-21.

func TestExitCodes(t *testing.T) {
	needSandbox(t)
	// The ends, the middle, and every code that has a meaning of agentrun's own:
	// the status file tells them apart.
	for _, code := range []int{0, 1, 2, 3, 42, 100, 123, 124, 125, 126, 127, 128, 137, 200, 254, 255} {
		r := run(t, opts{}, "/probe", "exit", fmt.Sprint(code))
		r.want(t, code, "exited")
	}
}

// Every signal that ends a process by default.
func TestSignals(t *testing.T) {
	needSandbox(t)
	for sig := unix.Signal(1); sig < 32; sig++ {
		switch sig {
		case unix.SIGCHLD, unix.SIGCONT, unix.SIGURG, unix.SIGWINCH: // ignored by default
			continue
		case unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU: // stop, see TestStoppedAgentEnds
			continue
		}
		t.Run(unix.SignalName(sig), func(t *testing.T) {
			r := run(t, opts{}, "/probe", "raise", fmt.Sprint(int(sig)))
			r.want(t, 128+int(sig), "signaled")
			if r.status.Signal != unix.SignalName(sig) {
				t.Errorf("signal: got %q, want %s", r.status.Signal, unix.SignalName(sig))
			}
		})
	}
}

// A stopped agent can't run away from its timeout.
func TestStoppedAgentEnds(t *testing.T) {
	needSandbox(t)
	r := run(t, opts{unsafe: true, flags: []string{"--timeout", "1s"}}, "/probe", "raise", "19")
	r.want(t, 124, "timeout")
	noAgents(t)
}

func TestTimeout(t *testing.T) {
	needSandbox(t)
	for _, words := range []string{"sleep 3600", "stubborn", "spin 3600"} {
		for _, profile := range []string{"ring2", "ring3"} {
			t.Run(profile+" "+words, func(t *testing.T) {
				r := run(t, opts{profile: profile, unsafe: true, flags: []string{"--timeout", "700ms", "--cpu-time", "60s"}}, append([]string{"/probe"}, strings.Fields(words)...)...)
				r.want(t, 124, "timeout")
				if r.status.WallTime < 700*time.Millisecond || r.status.WallTime > time.Duration(slow*float64(5*time.Second)) {
					t.Errorf("wall time: got %v, want a little over 700 ms", r.status.WallTime)
				}
				if !strings.Contains(r.status.Reason, "wall") {
					t.Errorf("reason: got %q, want the wall clock", r.status.Reason)
				}
				noAgents(t)
			})
		}
	}
}

// M-21: a loop ends by its CPU budget, however long the wall clock is; children
// count too.
func TestCPUTime(t *testing.T) {
	needSandbox(t)
	r := run(t, opts{unsafe: true, flags: []string{"--cpu-time", "500ms", "--cpus", "1"}}, "/probe", "spin", "3600")
	r.want(t, 124, "timeout")
	if !strings.Contains(r.status.Reason, "cpu") {
		t.Errorf("reason: got %q, want the cpu time", r.status.Reason)
	}
	if r.status.CPUTime < 450*time.Millisecond || r.status.CPUTime > time.Duration(slow*float64(2*time.Second)) {
		t.Errorf("cpu time: got %v, want about 500 ms", r.status.CPUTime)
	}
	r = run(t, opts{profile: "ring2", unsafe: true, flags: []string{"--cpu-time", "500ms", "--cpus", "1"}}, "/usr/bin/bash", "-c", "(while :; do :; done) & (while :; do :; done) & wait")
	r.want(t, 124, "timeout")
	noAgents(t)
}

// The quota is a rate: half a processor burns 0.5 s in a second.
func TestCPUQuota(t *testing.T) {
	needSandbox(t)
	r := run(t, opts{flags: []string{"--cpus", "0.2"}}, "/probe", "spin", "0.4")
	r.want(t, 0, "exited")
	if r.status.WallTime < 1200*time.Millisecond {
		t.Errorf("0.4 s of processor time took %v with a quota of 0.2, want about 2 s (M-3)", r.status.WallTime)
	}
}

func TestOutOfMemory(t *testing.T) {
	needSandbox(t)
	for _, profile := range []string{"ring1", "ring2", "ring3"} {
		t.Run(profile, func(t *testing.T) {
			r := run(t, opts{profile: profile, flags: []string{"--memory", "256M"}}, "/probe", "alloc", "600")
			r.want(t, 137, "oom")
			if r.status.OOMKills < 1 || r.status.PeakMemory < 200<<20 || r.status.PeakMemory > 260<<20 {
				t.Errorf("got %d oom kills, peak %d MiB, want at least 1 and about 256 (M-6)", r.status.OOMKills, r.status.PeakMemory>>20)
			}
			noAgents(t)
		})
	}
	// Well within: no kill, and the peak is told.
	r := run(t, opts{}, "/probe", "alloc", "100")
	r.want(t, 0, "exited")
	if r.status.PeakMemory < 95<<20 || r.status.OOMKills != 0 {
		t.Errorf("got peak %d MiB and %d kills for 100 MiB", r.status.PeakMemory>>20, r.status.OOMKills)
	}
}

// A child killed for memory ends the whole run, also where the agent would go on without it: cgroup v2 does so by
// itself (memory.oom.group), on v1 the supervisor does (M-3, M-6).
func TestOutOfMemoryOfAChild(t *testing.T) {
	needSandbox(t)
	n := newNode(t)
	n.must("agent", "score", "greedy", "0.8")
	r := run(t, n.opts("--agent", "greedy", "--memory", "256M"), "/usr/bin/bash", "-c", "/probe alloc 600; sleep 100")
	r.want(t, 137, "oom")
	if r.status.OOMKills < 1 {
		t.Errorf("got %d oom kills, want at least 1", r.status.OOMKills)
	}
	// H-22, H-23: the kernel was quicker than any order, and the kill is on record all the same.
	kills := 0
	for _, e := range n.audit("node") {
		if e.Kind == "kill" && e.Data["reason"] == "resource_exhaustion" {
			kills++
		}
	}
	if kills != 1 {
		t.Errorf("got %d records of a kill for resource_exhaustion, want 1", kills)
	}
	noAgents(t)
}

// The scratch is memory of the run: filling it counts.
func TestScratchCountsAsMemory(t *testing.T) {
	needSandbox(t)
	r := run(t, opts{profile: "ring2", flags: []string{"--memory", "256M", "--scratch-size", "128M"}}, "/probe", "fill", "/tmp/sandbox", "100")
	r.want(t, 0, "exited")
	if r.status.PeakMemory < 90<<20 {
		t.Errorf("peak memory: got %d MiB after writing 100 MiB to the scratch", r.status.PeakMemory>>20)
	}
}

func TestOutputLimit(t *testing.T) {
	needSandbox(t)
	for _, fd := range []string{"1", "2"} {
		r := run(t, opts{flags: []string{"--max-output", "64k"}}, "/probe", "output", "10000000", fd)
		r.want(t, 137, "policy")
		if !strings.Contains(r.status.Reason, "output") {
			t.Errorf("reason: got %q, want the output limit", r.status.Reason)
		}
		if n := len(r.stdout) + len(r.stderr); n > 80<<10 {
			t.Errorf("%d bytes got through a limit of 64 KiB", n)
		}
	}
	r := run(t, opts{flags: []string{"--max-output", "64k"}}, "/probe", "output", "60000")
	r.want(t, 0, "exited")
	if r.status.Output < 60000 || len(r.stdout) < 60000 {
		t.Errorf("got %d bytes, status says %d, want 60000 and a line", len(r.stdout), r.status.Output)
	}
}

// Signals to agentrun reach the agent.
func TestSignalsAreForwarded(t *testing.T) {
	needSandbox(t)
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2} {
		for _, profile := range []string{"ring2", "ring3"} {
			t.Run(profile+" "+unix.SignalName(sig), func(t *testing.T) {
				t.Parallel()
				c := prepare(t, opts{profile: profile}, "/probe", "trap")
				c.startUntil(t, "ready")
				c.Process.Signal(sig)
				c.finish(t).want(t, 40+int(sig), "exited")
			})
		}
	}
}

// An agent that ignores SIGTERM is killed after the grace, or at once by the
// second signal.
func TestStubbornAgentDies(t *testing.T) {
	needSandbox(t)
	for _, twice := range []bool{false, true} {
		t.Run(fmt.Sprintf("twice=%v", twice), func(t *testing.T) {
			c := prepare(t, opts{profile: "ring2"}, "/probe", "stubborn")
			c.startUntil(t, "ready")
			start := time.Now()
			c.Process.Signal(unix.SIGTERM)
			if twice {
				// Two signals in one instant may be delivered as one; the
				// second is repeated until it is the end.
				go func() {
					for c.Process.Signal(unix.SIGTERM) == nil && time.Since(start) < 3*time.Second {
						time.Sleep(20 * time.Millisecond)
					}
				}()
			}
			r := c.finish(t)
			r.want(t, 137, "killed")
			took, limit := time.Since(start), 8*time.Second
			if twice {
				limit = 2 * time.Second
			}
			if took > time.Duration(slow*float64(limit)) {
				t.Errorf("it took %v to die, want under %v", took, limit)
			}
			noAgents(t)
		})
	}
}

// M-5: the supervisor is killed, the agents are dead within a second, and the
// next start or `agentrun gc` removes what is left.
func TestSupervisorKilled(t *testing.T) {
	needSandbox(t)
	for _, tt := range []struct{ profile, words string }{
		{"ring2", "stubborn"}, {"ring3", "stubborn"}, {"ring2", "bomb"}, {"ring3", "spin 3600"}, {"ring2", "trap"},
	} {
		t.Run(tt.profile+" "+tt.words, func(t *testing.T) {
			before := takeStock()
			word := "ready"
			words := strings.Fields(tt.words)
			if tt.words == "bomb" {
				// At full size when the kill comes.
				words = strings.Fields("forks 90 , ready , bomb")
			}
			c := prepare(t, opts{profile: tt.profile}, append([]string{"/probe"}, words...)...)
			c.startUntil(t, word)
			below := descendants(c.Process.Pid)
			if len(below) < 2 {
				t.Fatalf("agentrun has %d descendants, want pid 1 and the agent", len(below))
			}
			c.Process.Kill()
			killed := time.Now()
			took := eventually(t, time.Second, "death of every agent", func() bool {
				for _, p := range below {
					if p.alive() {
						return false
					}
				}
				return true
			})
			t.Logf("%d processes dead %v after the kill", len(below), took)
			c.Wait()
			gone(t, time.Second)
			if since := time.Since(killed); since > time.Duration(slow*float64(time.Second)) {
				t.Errorf("agents were alive %v after their supervisor", since)
			}
			if r := tool(t, "gc"); r.exit != 0 {
				t.Errorf("gc: exit %d\n%s%s", r.exit, r.stdout, r.stderr)
			}
			if left := before.leftAfter(3 * time.Second); len(left) > 0 {
				t.Errorf("after gc there is left:\n%s", strings.Join(left, "\n"))
			}
		})
	}
}

// The next start cleans up too, without being asked.
func TestNextStartCleansUp(t *testing.T) {
	needSandbox(t)
	before := takeStock()
	c := prepare(t, opts{profile: "ring2"}, "/probe", "stubborn")
	c.startUntil(t, "ready")
	c.Process.Kill()
	c.Wait()
	noAgents(t)
	run(t, opts{}, "/probe", "ok")
	if left := before.leftAfter(3 * time.Second); len(left) > 0 {
		t.Errorf("after the next start there is left:\n%s", strings.Join(left, "\n"))
	}
}

// gc must not touch what is alive.
func TestGCSparesTheLiving(t *testing.T) {
	needSandbox(t)
	stdin, hold, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	c := prepare(t, opts{profile: "ring2", stdin: stdin, flags: []string{"-i"}}, "/probe", "wait")
	c.startUntil(t, "ready")
	for range 3 {
		if r := tool(t, "gc"); r.exit != 0 {
			t.Errorf("gc: exit %d\n%s", r.exit, r.stderr)
		}
	}
	hold.Close()
	r := c.finish(t)
	r.want(t, 0, "exited")
}

// Pid 1 dies (a bug of ours, or an operator): the run ends as killed.
func TestInitKilledFromOutside(t *testing.T) {
	needSandbox(t)
	c := prepare(t, opts{profile: "ring2"}, "/probe", "stubborn")
	c.startUntil(t, "ready")
	for _, p := range descendants(c.Process.Pid) {
		if p.ppid == c.Process.Pid {
			unix.Kill(p.pid, unix.SIGKILL)
		}
	}
	r := c.finish(t)
	r.want(t, 137, "killed")
	noAgents(t)
}

// Pid 1 says what no pid 1 of ours does, so nobody can tell from it how the agent ends: the run ends as killed (M-5).
func TestM5InitSaysNonsense(t *testing.T) {
	needSandbox(t)
	c := prepare(t, opts{profile: "ring2"}, "/probe", "stubborn")
	c.startUntil(t, "ready")
	said := 0
	for _, p := range descendants(c.Process.Pid) {
		if p.ppid != c.Process.Pid {
			continue
		}
		fd, err := unix.PidfdOpen(p.pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		control, err := unix.PidfdGetfd(fd, 3, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(control)
		if _, err := unix.Write(control, []byte("sixteen bytes!!!")); err != nil {
			t.Fatal(err)
		}
		said++
	}
	r := c.finish(t)
	r.want(t, 137, "killed")
	if said != 1 || !strings.Contains(r.status.Reason, "pid 1 of the sandbox: report of kind ") {
		t.Errorf("said %d times, %q", said, r.status.Reason)
	}
	noAgents(t)
}

// The account of an ordinary run.
func TestStatusFile(t *testing.T) {
	needSandbox(t)
	for _, args := range [][]string{{"agent", "score", "a.b:c", "0.7"}, {"session", "create", "s_1"}, {"session", "join", "s_1", "--agent", "a.b:c"}} {
		if r := tool(t, args...); r.exit != 0 {
			t.Fatalf("%v: exit %d\n%s", args, r.exit, r.stderr)
		}
	}
	_, r := try(t, opts{profile: "ring2", flags: []string{"--name", "n1", "--agent", "a.b:c", "--session", "s_1", "--json"}}, "mount tmpfs", "mount tmpfs", "bpf", "id")
	r.want(t, 0, "exited")
	s := r.status
	if s.ID == "" || s.Name != "n1" || s.Agent != "a.b:c" || s.Session != "s_1" || s.Ring != 2 || s.Profile != "ring2" || len(s.PlanDigest) != 64 {
		t.Errorf("identity: %+v", s)
	}
	if s.Refused["mount"] != 2 || s.Refused["bpf"] != 1 || len(s.Refused) != 2 {
		t.Errorf("refused: got %v, want mount 2, bpf 1", s.Refused)
	}
	if s.WallTime <= 0 || s.CPUTime <= 0 || s.PeakMemory <= 0 || s.Output != int64(len(r.stdout)) {
		t.Errorf("figures: wall %v, cpu %v, peak %d, output %d of %d", s.WallTime, s.CPUTime, s.PeakMemory, s.Output, len(r.stdout))
	}
	// --json: the same on the last line of stderr; stdout stays the agent's.
	if last := lastLine(r.stderr); !strings.HasPrefix(last, "{") || !strings.Contains(last, s.ID) {
		t.Errorf("--json: last line of stderr: %s", last)
	}
	if strings.Contains(r.stdout, s.ID) {
		t.Error("--json wrote to stdout")
	}
}

// A full disk under the status file: the run and its exit code are not harmed,
// the failure is told, and nothing half-written is left.
func TestStatusFileOnFullDisk(t *testing.T) {
	needSandbox(t)
	dir := fullDisk(t)
	r := run(t, opts{flags: []string{"--status-file", dir + "/status"}}, "/probe", "exit", "7")
	if r.exit != 7 && r.exit != 125 {
		t.Errorf("got exit %d, want the agent's 7 (or 125 if refused before the start)", r.exit)
	}
	if !strings.Contains(r.stderr, "status") {
		t.Errorf("nothing is said about the lost status file: %q", r.stderr)
	}
	if entries, _ := os.ReadDir(dir); len(entries) > 1 {
		t.Errorf("left on the full disk: %v", entries)
	}
}

// The same for folders that can't be written at all.
func TestStatusFileUnwritable(t *testing.T) {
	needSandbox(t)
	r := run(t, opts{flags: []string{"--status-file", "/proc/nonexistent/status"}}, "/probe", "exit", "7")
	if !strings.Contains(r.stderr, "status") || r.exit == 0 {
		t.Errorf("got exit %d and %q, want a word about the status file", r.exit, r.stderr)
	}
}

// A full disk under the run folder: a clear refusal, nothing left.
func TestRunFolderOnFullDisk(t *testing.T) {
	needSandbox(t)
	before := takeStock()
	dir := fullDisk(t)
	os.Chmod(dir, 0o700) // others could put sockets there; that is refused before anything is written
	c := prepare(t, opts{}, "/probe", "ok")
	c.Args[slices.Index(c.Args, "--run-dir")+1] = dir
	c.started = time.Now()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	r := c.finish(t)
	if r.exit != 125 && r.exit != 3 {
		t.Errorf("got exit %d, want 125 (refused) or 3 (it needed no space)\n%s", r.exit, r.stderr)
	}
	if r.exit == 125 && !strings.Contains(r.stderr, "no space") {
		t.Errorf("the message does not say why: %s", r.stderr)
	}
	delete(before, "mount "+dir)
	left := before.leftAfter(3 * time.Second)
	for _, item := range left {
		if !strings.Contains(item, dir) {
			t.Errorf("left: %s", item)
		}
	}
}

// fullDisk is a file system without a free byte, in a mount of its own.
func fullDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	f, err := os.Create(dir + "/filler")
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			break
		}
	}
	f.Close()
	return dir
}
