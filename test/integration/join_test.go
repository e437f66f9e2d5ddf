// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"agentrun/control"
	"agentrun/internal/hostcaps"
)

// THREATS "joining and keeping": a further command in a live run is what its first one is, and has nothing of who enters.

// inside is a command in a run of the place's, from start to end.
func (p place) inside(name string, flags []string, argv ...string) result {
	p.t.Helper()
	return p.do(slices.Concat([]string{"exec", "--in", name}, flags, []string{"--"}, argv)...)
}

// joined is a call of exec --in.
func (p place) joined(name string, flags []string, argv ...string) *call {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang())
	p.t.Cleanup(cancel)
	c := &call{cancel: cancel, statusFile: filepath.Join(base, "none"), started: time.Now()}
	c.Cmd = exec.CommandContext(ctx, agentrun, slices.Concat([]string{"--state-dir", p.state, "--run-dir", p.run, "exec", "--in", name}, flags, []string{"--"}, argv)...)
	c.Cmd.Stdout, c.Cmd.Stderr = &c.out, &c.errOut
	return c
}

// beside is a second process of the run that does what it is told.
func (a *told) beside(flags ...string) *told {
	a.t.Helper()
	j := a.talk(a.name, a.place.joined(a.name, flags, "/probe", "live"))
	if got := j.line(); got != "ready" {
		a.t.Fatalf("a command in %s says %q, want ready\n%s", a.name, got, j.errOut.String())
	}
	return j
}

// tryJoined is try from a command that joins: the run's first one waits meanwhile. strict executes nothing but its own command.
func tryJoined(t testing.TB, o opts, tries ...string) (map[string]string, result) {
	t.Helper()
	input := o.stdin
	stdin, hold := io.Pipe()
	o.stdin = stdin
	c := prepare(t, o, "/probe", "ready", ",", "wait")
	c.startUntil(t, "ready")
	id := ""
	ctx, cancel := context.WithTimeout(context.Background(), hang())
	defer cancel()
	found, err := control.All(ctx, runDir)
	for _, f := range found {
		if f.Sandbox.Supervisor == c.Process.Pid {
			id = f.Sandbox.ID
		}
	}
	if id == "" {
		t.Fatalf("no live run of supervisor %d: %v", c.Process.Pid, err)
	}
	cmd := command(ctx, append([]string{"exec", "--in", id, "--"}, probeArgs(tries...)...)...)
	if o.state != "" {
		cmd.Args[slices.Index(cmd.Args, "--state-dir")+1] = o.state
	}
	cmd.Stdin = input
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	hold.Close()
	r := c.finish(t)
	r.stdout, r.stderr = out.String(), errOut.String()
	return answers(r.stdout), r
}

// M-1, M-4: the same user, namespaces, cgroups, limits, filters and rights to files, in each ring and as an ordinary user.
func TestJoinIsConfinedAsTheFirst(t *testing.T) {
	p := newPlace(t)
	for _, profile := range allProfiles {
		t.Run(profile, func(t *testing.T) {
			p := place{t, p.run, p.state}
			a := p.agent(profile, opts{profile: profile, flags: []string{"--workspace", workspace(t)}})
			j := a.beside()
			sameConfinement(t, a, j)
			first := a.seen()
			others := slices.DeleteFunc(first.Processes, func(p struct {
				PID   int  `json:"pid"`
				First bool `json:"first"`
			}) bool {
				return p.First
			})
			if len(others) != 1 {
				t.Fatalf("beside the first there are %v, want the one that joined", others)
			}
			for _, file := range []string{"cgroup", "uid_map", "gid_map", "setgroups", "oom_score_adj", "limits", "timens_offsets", "loginuid"} {
				want, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", first.PID, file))
				got, gerr := os.ReadFile(fmt.Sprintf("/proc/%d/%s", others[0].PID, file))
				if !bytes.Equal(got, want) || (err == nil) != (gerr == nil) {
					t.Errorf("%s: got %q (%v), the first has %q (%v)", file, got, gerr, want, err)
				}
			}
			if b := stat(t, others[0].PID); b.session != others[0].PID || b.terminal != 0 {
				t.Errorf("it is in session %d with terminal %d, want its own and none", b.session, b.terminal)
			}
			if r := j.quit(); r.exit != 0 {
				t.Errorf("exit %d: %s", r.exit, r.stderr)
			}
			if r := a.quit(); r.exit != 0 {
				t.Errorf("the first: exit %d: %s", r.exit, r.stderr)
			}
		})
	}
	noAgents(t)
}

func sameConfinement(t *testing.T, a, j *told) {
	t.Helper()
	for _, words := range []string{"ns", "rlimits", "env", "cwd", "writable /", "devices", "outside"} {
		if got, want := j.try(words), a.try(words); got != want {
			t.Errorf("%s: got %s, the first has %s", words, got, want)
		}
	}
	got, want := fieldsOf(j.try("status")), fieldsOf(a.try("status"))
	for _, field := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters", "Uid", "Gid", "Groups"} {
		if got[field] != want[field] {
			t.Errorf("%s: got %q, the first has %q", field, got[field], want[field])
		}
	}
}

type processStat struct{ session, terminal int }

func stat(t *testing.T, pid int) (s processStat) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	s.session, _ = strconv.Atoi(f[3])
	s.terminal, _ = strconv.Atoi(f[4])
	return s
}

// CVE-2024-21626 and its like when joining: descriptors, folder, environment and terminal of who enters.
func TestJoinBringsNothing(t *testing.T) {
	p := newPlace(t)
	for _, profile := range allProfiles {
		t.Run(profile, func(t *testing.T) {
			p := place{t, p.run, p.state}
			a := p.agent(profile, opts{profile: profile})
			root, err := os.Open("/")
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			secret, err := os.Open(write(t, filepath.Join(t.TempDir(), "secret"), "secret", 0o600))
			if err != nil {
				t.Fatal(err)
			}
			defer secret.Close()
			c := p.joined(profile, []string{"--env", "GIVEN=yes"}, probeArgs("fds", "outside", "cwd", "env", "read /dev/tty", "cat /proc/self/environ", "readlink /proc/self/exe")...)
			c.ExtraFiles = []*os.File{root, secret, root, secret}
			c.Dir, c.Env = filepath.Dir(secret.Name()), append(os.Environ(), "SECRET=1", "LD_PRELOAD=/nosuch")
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			r := c.finish(t)
			fds := strings.Split(value(t, r, "fds"), "|")
			if len(fds) != 3 {
				t.Errorf("got %d descriptors, want 3: %v", len(fds), fds)
			}
			for _, fd := range fds {
				if n, target, _ := strings.Cut(fd, "->"); n > "2" || !strings.HasPrefix(target, "pipe:[") {
					t.Errorf("descriptor %s is %s", n, target)
				}
			}
			if got := value(t, r, "outside"); got != "" {
				t.Errorf("the host's root can be reached through %s", got)
			}
			if got := value(t, r, "cwd"); got != "/tmp/sandbox" {
				t.Errorf("working directory: got %s", got)
			}
			if got := r.stdout; strings.Contains(got, "SECRET") || strings.Contains(got, "LD_PRELOAD") || !strings.Contains(got, "GIVEN=yes") {
				t.Errorf("environment: %s", got)
			}
			if got := answers(r.stdout)["read /dev/tty"]; got != "ENXIO" {
				t.Errorf("the terminal of who enters: got %q, want ENXIO", got)
			}
			for _, cwd := range []string{"/proc/self/fd/3", "/proc/self/fd/4/../..", "/proc/self/fd/5", "/proc/1/cwd", "/proc/1/root", "/../../.."} {
				r := p.inside(profile, []string{"--cwd", cwd}, probeArgs("outside")...)
				if r.exit == 0 && value(t, r, "outside") != "" {
					t.Errorf("--cwd %s: the host's root can be reached", cwd)
				}
			}
			a.quit()
		})
	}
}

// The agent can look into a command that joins no more than into others: not while it comes, and not afterwards. It runs all the time
// and tries whatever number appears.
func TestJoinIsClosedToTheAgent(t *testing.T) {
	need(t, hostcaps.Landlock(1))
	p := newPlace(t)
	for _, profile := range []string{"ring2", "ring3"} {
		t.Run(profile, func(t *testing.T) {
			p := place{t, p.run, p.state}
			a := p.agent(profile, opts{profile: profile})
			j := a.beside()
			_, own, ok := strings.Cut(j.try("id"), " pid=")
			if !ok {
				t.Fatalf("id: %s", j.try("id"))
			}
			pid, _, _ := strings.Cut(own, " ")
			for _, of := range []struct {
				who  *told
				whom string
			}{{a, pid}, {j, "2"}} {
				for _, file := range []string{"mem", "environ", "maps", "auxv"} {
					of.who.expect("errno=EACCES", "read /proc/"+of.whom+"/"+file)
				}
				for _, link := range []string{"exe", "root", "cwd", "fd/0", "ns/mnt"} {
					of.who.expect("errno=EACCES", "readlink /proc/"+of.whom+"/"+link)
				}
				of.who.expect("errno=EPERM", "ptrace "+of.whom, "process_vm_readv "+of.whom, "pidfd_getfd "+of.whom+" 0")
			}
			if hostcaps.Landlock(6).Check() == nil {
				a.expect("errno=EPERM", "kill "+pid+" 9")
				j.expect("errno=EPERM", "kill 2 9")
			}
			j.quit()
			a.quit()
		})
	}
}

// M-4: in ring 3 a command that joins has its own chain of programs at the start and no processes, and neither has the other's chain.
func TestJoinRing3NeverForks(t *testing.T) {
	p := newPlace(t)
	a := p.agent("a", opts{profile: "ring3"})
	chain := func(who string) {
		t.Helper()
		r := p.inside("a", nil, "/probe", "exec-chain", "0", "40")
		var n int
		var errno string
		fmt.Sscan(strings.TrimPrefix(lastLine(r.stdout), "exec-chain: "), &n, &errno)
		if n < 3 || n > 16 || errno != "EPERM" {
			t.Errorf("%s: %d more programs ran, then %q, want 3 to 16 and EPERM\n%s", who, n, errno, r.stderr)
		}
	}
	chain("before the agent has used its own")
	j := a.beside()
	for _, of := range []*told{a, j} {
		of.expect("errno=EPERM", "fork", "vfork", "clone-process", "posix_spawn")
		if got := of.try("threads 4"); got != "value=4 0" {
			t.Errorf("threads: %s", got)
		}
	}
	a.expect("errno=ENOENT", "exec /nonexistent") // let through, though others have used theirs up
	for range 20 {
		a.try("exec /nonexistent")
	}
	a.expect("errno=EPERM", "exec /nonexistent")
	j.expect("errno=ENOENT", "exec /nonexistent")
	chain("after the agent has used up its own")
	j.quit()
	a.quit()
}

// M-22: both follow the ring that holds: elevated, its end, and quarantine.
func TestJoinFollowsTheRing(t *testing.T) {
	p := newPlace(t)
	p.must("agent", "score", "planner", "0.7")
	a := p.agent("a", opts{profile: "ring3", flags: []string{"--agent", "planner", "--workspace", workspace(t)}})
	j := a.beside()
	both := func(want string, tries ...string) {
		t.Helper()
		a.expect(want, tries...)
		j.expect(want, tries...)
	}
	both("errno=EPERM", "fork")
	both("errno=EROFS", "create /workspace/new")
	a.elevate(time.Minute)
	a.holds(2)
	both("ok", "fork", "posix_spawn", "create /workspace/at", "child")
	late := a.beside() // it comes into the ring that holds, and stays when that ends
	late.expect("ok", "fork", "child")
	if n := len(a.seen().Processes); n != 6 {
		t.Errorf("%d processes, want three and their children", n)
	}
	p.must("revoke", "a")
	a.holds(3)
	both("errno=EPERM", "fork")
	both("errno=EROFS", "create /workspace/more")
	late.expect("errno=EPERM", "fork")
	if n := len(a.seen().Processes); n != 3 {
		t.Errorf("%d processes after the demotion, want the three first ones", n)
	}
	a.ringChanges("3>2", "2>3")
	for _, j := range []*told{j, late} {
		j.quit()
	}
	a.quit()

	b := p.agent("b", opts{profile: "ring2", flags: []string{"--agent", "planner"}})
	j = b.beside()
	j.expect("ok", "fork")
	p.must("quarantine", "b", "--reason", "a test")
	b.holds(3)
	j.expect("errno=EPERM", "fork")
	late = b.beside()
	late.expect("errno=EPERM", "fork")
	if got := p.audit(); got[len(got)-1].Kind != "sandbox_join" || got[len(got)-1].Data["ring"] != 3.0 {
		t.Errorf("on record last: %v, want a join in ring 3", got[len(got)-1])
	}
	for _, j := range []*told{j, late, b} {
		j.quit()
	}
}

// How it ends, and that the run and other commands in it don't.
func TestJoinEnds(t *testing.T) {
	p := newPlace(t)
	a := p.agent("a", opts{profile: "ring2"})
	for _, tt := range []struct {
		name  string
		flags []string
		argv  []string
		exit  int
		says  string
	}{
		{"zero", nil, []string{"/probe", "exit", "0"}, 0, ""},
		{"its own code", nil, []string{"/probe", "exit", "42"}, 42, ""},
		{"a signal", nil, []string{"/probe", "raise", "11"}, 139, ""},
		{"its time", []string{"--timeout", "300ms"}, []string{"/probe", "sleep", "60"}, 124, "300ms"},
		{"too much output", nil, []string{"/probe", "output", strconv.Itoa(64 << 20)}, 137, "output over the limit"},
		{"not there", nil, []string{"nosuch"}, 127, "command nosuch: not found in the sandbox's PATH or in the workspace"},
		{"no program", nil, []string{"/etc/passwd"}, 126, "is not executable"},
		{"an orphan keeps the output open", nil, []string{"sh", "-c", "sleep 1000 & exit 3"}, 3, ""},
		{"no such folder", []string{"--cwd", "/nosuch"}, []string{"/probe", "ok"}, 125, "--cwd /nosuch"},
		{"its folder", []string{"--cwd", "/usr"}, []string{"sh", "-c", "test $PWD = /usr && exit 9"}, 9, ""},
	} {
		if r := p.inside("a", tt.flags, tt.argv...); r.exit != tt.exit || !strings.Contains(r.stderr, tt.says) {
			t.Errorf("%s: got exit %d, %q, want %d and %q", tt.name, r.exit, r.stderr, tt.exit, tt.says)
		}
	}
	a.expect("ok", "fork")
	if r := p.inside("a", nil, "/probe", "output", "4000000"); r.exit != 0 || len(r.stdout) < 4_000_000 {
		t.Errorf("output: exit %d, %d bytes", r.exit, len(r.stdout))
	}
	c := p.joined("a", nil, "cat")
	big := strings.Repeat("0123456789abcdef", 64<<10)
	c.Cmd.Stdin = strings.NewReader(big)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if r := c.finish(t); r.exit != 0 || r.stdout != big {
		t.Errorf("cat: exit %d, %d bytes, want %d", r.exit, len(r.stdout), len(big))
	}
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			if r := p.inside("a", nil, "/probe", "exit", strconv.Itoa(i)); r.exit != i {
				t.Errorf("one of twelve: exit %d, want %d\n%s", r.exit, i, r.stderr)
			}
		})
	}
	wg.Wait()
	j, k := a.beside(), a.beside()
	j.quit()
	k.expect("ok", "fork")
	r := a.quit() // the run ends, and they with it
	r.want(t, 0, "exited")
	if r := k.finish(t); r.exit != 137 {
		t.Errorf("a command in a run that ended: exit %d, want 137: %s", r.exit, r.stderr)
	}
	p.refused("not_found", "exec", "--in", "a", "--", "/probe", "ok")
	noAgents(t)
}

// The parent of a command that joins is the supervisor, which waits for that command alone. One that makes its parent another child, dead
// before anybody looks, would keep pid 1, and so the run, from ending.
func TestJoinLeavesTheSupervisorNoChild(t *testing.T) {
	p := newPlace(t)
	for _, profile := range []string{"ring2", "ring1"} {
		t.Run(profile, func(t *testing.T) {
			p := place{t, p.run, p.state}
			a := p.agent(profile, opts{profile: profile})
			j := a.beside()
			j.expect("errno=EPERM", "sibling")
			j.expect("ok", "fork")
			if r := j.quit(); r.exit != 0 {
				t.Errorf("a command in %s: exit %d: %s", profile, r.exit, r.stderr)
			}
			for _, d := range descendants(a.Process.Pid) {
				if d.state == "Z" {
					t.Errorf("nobody waits for process %d, a child of %d", d.pid, d.ppid)
				}
			}
			a.quit().want(t, 0, "exited")
		})
	}
	noAgents(t)
}

// Whoever ran it goes away: it is killed, also when it neither reads nor writes; of a run that is killed, or whose supervisor is.
func TestJoinEndsWithWhoEntered(t *testing.T) {
	p := newPlace(t)
	a := p.agent("a", opts{profile: "ring3"})
	alone := func(what string) {
		t.Helper()
		eventually(t, 10*time.Second, what, func() bool { return len(a.seen().Processes) == 1 })
	}
	j := a.beside()
	_ = j.Process.Kill()
	alone("the command is gone with who ran it")
	zero, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer zero.Close()
	c := p.joined("a", nil, "/probe", "sleep", "600")
	c.Cmd.Stdin = zero
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "it runs", func() bool { return len(a.seen().Processes) == 2 })
	_ = c.Process.Kill()
	alone("a command that reads nothing is gone with who ran it")
	_ = c.Wait()

	if r := p.inside("a", []string{"-d"}, "/probe", "sleep", "600"); r.exit != 0 {
		t.Errorf("-d: exit %d: %s", r.exit, r.stderr)
	}
	if n := len(a.seen().Processes); n != 2 {
		t.Errorf("%d processes, want the detached one too", n)
	}
	j = a.beside()
	p.must("kill", "a")
	if r := j.finish(t); r.exit != 137 || !strings.Contains(r.stderr, "the run has ended") {
		t.Errorf("a killed run: exit %d: %s", r.exit, r.stderr)
	}
	a.finish(t).want(t, 137, "killed")
	noAgents(t)

	b := p.agent("b", opts{profile: "ring2"})
	j = b.beside()
	_ = b.Process.Kill()
	if r := j.finish(t); r.exit != 125 {
		t.Errorf("a killed supervisor: exit %d: %s", r.exit, r.stderr)
	}
	_ = b.Wait()
	noAgents(t)
	p.must("gc")
}

// H-27: who entered, with which program and in which ring, before its first instruction; and how it ended. No arguments (M-18).
func TestJoinIsOnRecord(t *testing.T) {
	p := newPlace(t)
	p.must("agent", "score", "planner", "0.7")
	a := p.agent("a", opts{profile: "ring2", flags: []string{"--agent", "planner"}})
	id := a.seen().ID
	p.inside("a", nil, "sh", "-c", "exit 5 # secret")
	p.inside("a", []string{"--timeout", "200ms"}, "/probe", "sleep", "60")
	p.inside("a", nil, "nosuch")
	a.quit()
	var got []string
	ids := map[any]int{}
	for _, e := range p.audit() {
		switch e.Kind {
		case "sandbox_join":
			got = append(got, fmt.Sprint(e.Data["by"], " ", e.Data["program"], " ", e.Data["ring"], " ", e.Data["agent_id"] == "planner" && e.Data["run_id"] == id))
			ids[e.Data["join_id"]]++
		case "sandbox_join_end":
			got = append(got, fmt.Sprint(e.Data["state"], " ", e.Data["exit_code"], " ", e.Data["run_id"] == id))
			ids[e.Data["join_id"]]++
		}
	}
	want := []string{"uid:0 [/bin/sh] 2 true", "exited 5 true", "uid:0 [/probe] 2 true", "timeout 124 true"}
	if !slices.Equal(got, want) && !slices.Equal(got, slices.Concat([]string{"uid:0 [/usr/bin/sh] 2 true"}, want[1:])) {
		t.Errorf("on record:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for id, n := range ids {
		if n != 2 {
			t.Errorf("join %v is on record %d times, want its begin and its end", id, n)
		}
	}
	files, _ := filepath.Glob(filepath.Join(p.state, "audit", "*", "*.jsonl"))
	for _, f := range files {
		if b, _ := os.ReadFile(f); bytes.Contains(b, []byte("secret")) {
			t.Errorf("%s has an argument of a command", f)
		}
	}
}

// What can't be entered says why, and what helps.
func TestJoinRefuses(t *testing.T) {
	p := newPlace(t)
	a := p.agent("a", opts{profile: "ring3"})
	p.must("freeze", "a")
	p.refused("conflict", "exec", "--in", "a", "--", "/probe", "ok")
	p.refused("conflict", "shell", "a")
	p.must("thaw", "a")
	p.refused("not_found", "exec", "--in", "nobody", "--", "/probe", "ok")
	p.refused("bad_request", "exec", "--in", "a", "--env", "=x", "--", "/probe", "ok")
	for _, flags := range [][]string{{"--ring", "2"}, {"--workspace", "/tmp"}, {"-t", "-d"}, {"--timeout", "-1s"}, {"--timeout", "x"}, {"--no-gateway"}, {"--status-file", "/tmp/x"},
		{"--memory", "x"}, {"--memory", "1M"}, {"--memory", "1T"}, {"--cpus", "0"}, {"--cpus", "-1"}, {"--cpus", "1000"}, {"--pids", "1"}, {"--pids", "100000"}} {
		if r := p.inside("a", flags, "/probe", "ok"); r.exit != 125 || !strings.Contains(r.stderr, "hint: ") {
			t.Errorf("%v: exit %d: %s", flags, r.exit, r.stderr)
		}
	}
	if r := p.do("exec", "--in", "a"); r.exit != 125 {
		t.Errorf("no command: exit %d", r.exit)
	}
	a.expect("errno=EPERM", "fork")
	a.quit()
}

// A difference that the probe finds, and a failure on the way, end what joins and nothing else.
func TestJoinFailsAlone(t *testing.T) {
	for _, row := range []string{"join/begun", "join/probe", "record/sandbox_join", "record/sandbox_join with limits of its own"} {
		t.Run(row, func(t *testing.T) {
			point, limits, _ := strings.Cut(row, " with ")
			var flags []string
			if limits != "" {
				flags = []string{"--memory", "32M"}
			}
			p := newPlace(t)
			a := p.agent("a", opts{profile: "ring2", env: []string{"AGENTRUN_TESTONLY_FAULT=" + point + "=EIO@1"}})
			id := a.seen().ID
			if r := p.inside("a", flags, "/probe", "ok"); r.exit != 125 || strings.Contains(r.stdout, "ok") || !strings.Contains(r.stderr, "input/output error") {
				t.Errorf("exit %d, %s%s, want 125 and the error", r.exit, r.stdout, r.stderr)
			}
			eventually(t, hang(), "its group is gone", func() bool { return len(joinGroups(id)) == 0 }) // it is told before
			if n := len(a.seen().Processes); n != 1 {
				t.Errorf("%d processes, want the agent alone", n)
			}
			a.expect("ok", "fork")
			if r := p.inside("a", nil, "/probe", "exit", "0"); r.exit != 0 {
				t.Errorf("another: exit %d: %s", r.exit, r.stderr)
			}
			a.quit().want(t, 0, "exited")
			noAgents(t)
		})
	}
}

// joinGroups are the cgroups of a run's joined commands that have limits of their own.
func joinGroups(run string) (dirs []string) {
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, _ error) error {
		if d != nil && d.IsDir() && strings.Contains(path, run+"/join-") {
			dirs = append(dirs, path)
		}
		return nil
	})
	return dirs
}

// M-3: limits of its own, within the run's. The one that is over its memory ends alone and says so; what it has left ends with it, and of
// its group nothing is left.
func TestM3JoinHasLimitsOfItsOwn(t *testing.T) {
	p := newPlace(t)
	a := p.agent("a", opts{profile: "ring2", flags: []string{"--memory", "256M", "--pids", "64", "--cpus", "1"}})
	id := a.seen().ID
	const memory = "over its memory limit of 32MiB"
	small := []string{"--memory", "32M"}
	for _, tt := range []struct {
		name  string
		flags []string
		argv  []string
		exit  int
		says  string
		least int // processes of it at once, where it counts them
	}{
		{"enough", small, []string{"/probe", "alloc", "8"}, 0, "", 0},
		{"without", nil, []string{"/probe", "alloc", "64"}, 0, "", 0},
		{"over its memory", small, []string{"/probe", "alloc", "64"}, 137, memory, 0},
		{"a child over its memory", small, []string{"sh", "-c", "/probe alloc 64; sleep 1000"}, 137, memory, 0},
		{"a child whose parent is quick", small, []string{"sh", "-c", "/probe alloc 64; exit 3"}, 137, memory, 0},
		{"a child of another session", small, []string{"sh", "-c", "setsid /probe alloc 64 & wait; sleep 1000"}, 137, memory, 0},
		{"processes", []string{"--pids", "16"}, []string{"/probe", "forks", "30"}, 0, "", 15},
		{"its code", small, []string{"/probe", "exit", "42"}, 42, "", 0},
		{"its time", append([]string{"--timeout", "300ms"}, small...), []string{"/probe", "sleep", "60"}, 124, "300ms", 0},
		{"not there", small, []string{"nosuch"}, 127, "not found", 0},
		{"an orphan", small, []string{"sh", "-c", "setsid sleep 1000 & exit 3"}, 3, "", 0},
		{"a bomb", []string{"--timeout", "1s", "--pids", "20", "--memory", "64M"}, []string{"/probe", "bomb"}, 124, "1s", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := p.inside("a", tt.flags, tt.argv...)
			if r.exit != tt.exit || !strings.Contains(r.stderr, tt.says) {
				t.Errorf("exit %d, %q, want %d and %q", r.exit, r.stderr, tt.exit, tt.says)
			}
			if want := fmt.Sprint("=", tt.least, " EAGAIN"); tt.least > 0 && !strings.Contains(r.stdout, want) {
				t.Errorf("%q, want %q", r.stdout, want)
			}
			if left := joinGroups(id); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
			if n := len(a.seen().Processes); n != 1 {
				t.Errorf("%d processes, want the agent alone", n)
			}
			a.expect("ok", "fork")
		})
	}
	ended := 0
	for _, e := range p.audit() {
		if e.Kind == "sandbox_join_end" && e.Data["state"] == "oom" {
			ended++
		}
	}
	if ended != 4 {
		t.Errorf("%d commands are on record as ended for memory, want 4", ended)
	}

	j := a.beside("--cpus", "0.5", "--memory", "64M", "--pids", "20")
	its := func(want liveLimits) {
		t.Helper()
		for _, pr := range a.seen().Processes {
			if got := hostLimits(t, pr.PID); !pr.First && got != want {
				t.Errorf("the kernel has %v for it, want %v", got, want)
			}
		}
	}
	its(liveLimits{0.5, 64 << 20, 20})
	p.must("update", "a", "--cpus", "0.2")
	j.expect("ok", "fork")
	p.must("update", "a", "--cpus", "0.9", "--pids", "50")
	its(liveLimits{0.5, 64 << 20, 20})
	if got := hostLimits(t, a.seen().PID); got != (liveLimits{0.9, 256 << 20, 50}) {
		t.Errorf("the kernel has %v for the run", got)
	}
	k := a.beside("--memory", "64M")
	a.quit() // the run's end is theirs
	for _, j := range []*told{j, k} {
		if r := j.finish(t); r.exit != 137 {
			t.Errorf("exit %d, want 137: %s", r.exit, r.stderr)
		}
	}
	if left := joinGroups(id); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	noAgents(t)
}

// A run that is full of processes says so to who enters it, and takes them when it has room again.
func TestM3JoinOfAFullRun(t *testing.T) {
	p := newPlace(t)
	c := p.at(prepare(t, opts{profile: "ring2", flags: []string{"-d", "--name", "a", "--pids", "17", "--no-gateway"}},
		"/usr/bin/sh", "-c", "for i in $(seq 15); do sleep 1000 & done; wait"))
	if out, err := c.output(); err != nil {
		t.Fatalf("%v: %q %s", err, out, c.errOut.String())
	}
	t.Cleanup(func() { p.do("kill", "a") })
	eventually(t, 10*time.Second, "the run is full", func() bool { return len(asked[box](p, "inspect", "a").Processes) == 16 })
	r := p.inside("a", nil, "true")
	for _, want := range []string{"as many processes as its limit", "(conflict)", "agentrun update REF --pids"} {
		if r.exit != 125 || !strings.Contains(r.stderr, want) {
			t.Errorf("exit %d, %q, want 125 and %q", r.exit, r.stderr, want)
		}
	}
	p.must("update", "a", "--pids", "32")
	if r := p.inside("a", nil, "true"); r.exit != 0 {
		t.Errorf("with room: exit %d, %s", r.exit, r.stderr)
	}
}

// M-22: a lower ring, a freeze and a kill reach what is in a group of its own, as soon as else, and though it has used up its processor time.
func TestM22JoinWithLimitsFollowsTheRing(t *testing.T) {
	p := newPlace(t)
	p.must("agent", "score", "planner", "0.7")
	a := p.agent("a", opts{profile: "ring2", flags: []string{"--agent", "planner"}})
	id, limits := a.seen().ID, []string{"--cpus", "0.02", "--memory", "64M"}
	j := a.beside(limits...)
	j.expect("ok", "child", "child")
	busy := p.joined("a", limits, "/probe", "spin", "600")
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, hang(), "all are there", func() bool { return len(a.seen().Processes) == 5 })
	for range 3 {
		p.must("freeze", "a")
		p.must("thaw", "a")
	}
	j.expect("ok", "fork")
	p.must("quarantine", "a", "--reason", "a test")
	a.holds(3)
	if n := len(a.seen().Processes); n != 3 {
		t.Errorf("%d processes after the demotion, want the three first ones", n)
	}
	j.expect("errno=EPERM", "fork")
	a.ringChanges("2>3")
	p.must("kill", "a")
	for _, c := range []*call{j.call, busy, a.call} {
		if r := c.finish(t); r.exit != 137 {
			t.Errorf("exit %d, want 137: %s", r.exit, r.stderr)
		}
	}
	if left := joinGroups(id); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	noAgents(t)
}

// M-3: an ordinary user's too, where a cgroup was delegated; else they are refused.
func TestM3JoinLimitsOfAnOrdinaryUser(t *testing.T) {
	u := someone(t)
	group := u.cgroup
	stdin, hold := io.Pipe()
	o := opts{profile: "ring2", user: u, stdin: stdin, flags: []string{"--no-gateway", "--name", "mine", "--best-effort"}}
	c := prepare(t, o, "/probe", "ready", ",", "wait")
	c.startUntil(t, "ready")
	u.cgroup = "" // the command comes from the user's shell
	code, out, errOut := u.run(t, "exec", "--in", "mine", "--memory", "32M", "--", "/probe", "alloc", "64")
	want, says := 137, "over its memory limit of 32MiB"
	if group == "" {
		want, says = 125, "no cgroup"
	}
	if code != want || !strings.Contains(errOut, says) {
		t.Errorf("exit %d, %s%s, want %d and %q", code, out, errOut, want, says)
	}
	for _, dir := range groupsBelow(group + "/agentrun") {
		if strings.HasPrefix(filepath.Base(dir), "join-") {
			t.Errorf("left: %s", dir)
		}
	}
	hold.Close()
	c.finish(t).want(t, 0, "exited")
}

// A terminal of its own, of the size that is asked for, and a shell in it.
func TestJoinTerminal(t *testing.T) {
	needProgram(t, "stty", "sh")
	p := newPlace(t)
	a := p.agent("a", opts{profile: "ring2"})
	found, err := control.Find(t.Context(), p.run, "a")
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := io.Pipe()
	var out lockedBuffer
	var wg sync.WaitGroup
	wg.Go(func() {
		err := found.Client.Exec(t.Context(), found.Sandbox.ID, control.ExecRequest{Command: []string{"sh", "-c", "tty; stty size; read x; stty size; exit 6"}, TTY: true, Rows: 40, Columns: 100}, "", both{ours, &out})
		if err != nil {
			t.Errorf("exec: %v", err)
		}
	})
	client := control.NewAttachClient(both{strings.NewReader(""), theirs})
	eventually(t, 10*time.Second, "the size at first", func() bool { return strings.Contains(out.String(), "40 100") })
	_ = client.SendResize(50, 120)
	_ = client.Send(control.Stdin, []byte("\n"))
	wg.Wait()
	if got := out.String(); !strings.Contains(got, "/dev/pts/") || !strings.Contains(got, "50 120") || !strings.HasSuffix(got, "\x04\x00\x00\x00\x04\x00\x00\x00\x06") {
		t.Errorf("got %q, want a terminal, its new size and exit code 6", got)
	}
	c := p.joined("a", nil)
	c.Args = []string{c.Args[0], "--state-dir", p.state, "--run-dir", p.run, "shell", "a"}
	c.Cmd.Stdin = strings.NewReader("echo $((6*7)); tty; exit 4\n")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if r := c.finish(t); r.exit != 4 || !strings.Contains(r.stdout, "42") || !strings.Contains(r.stdout, "/dev/pts/") {
		t.Errorf("shell: exit %d: %s%s", r.exit, r.stdout, r.stderr)
	}
	if r := p.inside("a", []string{"-t"}, "sh", "-c", "sleep 1000 & exit 8"); r.exit != 8 {
		t.Errorf("a job on the terminal: exit %d: %s", r.exit, r.stderr)
	}
	a.quit()
}

// An agent that opens the command's terminal, as it may, keeps neither its end nor its time limit from who entered.
func TestJoinTerminalHeldByTheAgent(t *testing.T) {
	needProgram(t, "sh")
	p := newPlace(t)
	p.must("exec", "-d", "--no-gateway", "--name", "a", "--ring", "2", "--", "/bin/sh", "-c",
		"cd /tmp; for n in 0 1; do until [ -e go$n ]; do sleep 0.01; done; exec sleep 600 <>/dev/pts/$n & sleep 0.2; : >held$n; done; wait")
	held := func(n, then string) string {
		return ": >/tmp/go" + n + "; until [ -e /tmp/held" + n + " ]; do sleep 0.01; done; " + then
	}
	began := time.Now()
	if r := p.inside("a", []string{"-t"}, "sh", "-c", held("0", "echo done; exit 5")); r.exit != 5 || r.stdout != "done\n" {
		t.Errorf("exit %d, want 5: %s%s", r.exit, r.stdout, r.stderr)
	}
	if r := p.inside("a", []string{"-t", "--timeout", "2s"}, "sh", "-c", held("1", "exec sleep 600")); r.exit != 124 {
		t.Errorf("exit %d, want 124: %s%s", r.exit, r.stdout, r.stderr)
	}
	if took := time.Since(began); took > 60*time.Second {
		t.Errorf("took %v", took)
	}
	p.must("kill", "a")

	// It can have them all, and who enters is told so.
	needProgram(t, "python3")
	p.must("exec", "-d", "--no-gateway", "--name", "b", "--ring", "2", "--", "python3", "-c", `import os, time
held = []
try:
    while True: held.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
except OSError:
    open("/tmp/all", "w")
time.sleep(600)`)
	if r := p.inside("b", nil, "sh", "-c", "until [ -e /tmp/all ]; do sleep 0.01; done"); r.exit != 0 {
		t.Fatalf("exit %d: %s", r.exit, r.stderr)
	}
	if r := p.inside("b", []string{"-t"}, "true"); r.exit != 125 || !strings.Contains(r.stderr, "own processes have its terminals") || !strings.Contains(r.stderr, "(conflict)") {
		t.Errorf("without a terminal left: exit %d %s", r.exit, r.stderr)
	}
	p.must("kill", "b")
}

type both struct {
	io.Reader
	io.Writer
}

// Runs of the daemon, those from a prepared sandbox too; the daemon isn't asked to take the command over.
func TestJoinOfTheDaemon(t *testing.T) {
	n := startDaemon(t)
	p := place{t, n.run, n.state}
	for _, profile := range []string{"ring2", "ring3", "strict"} {
		for i := range 2 {
			name := fmt.Sprint(profile, "-", i)
			c := n.prepare(t, opts{profile: profile, flags: []string{"--workspace", workspace(t)}}, "/probe", "live")
			a := p.begin(name, c)
			if got := a.seen().Supervisor; got != n.Process.Pid {
				t.Errorf("%s: supervisor %d, want the daemon %d", name, got, n.Process.Pid)
			}
			j := a.beside()
			sameConfinement(t, a, j)
			if r := p.inside(name, nil, "/probe", "exit", "7"); r.exit != 7 {
				t.Errorf("%s: exit %d: %s", name, r.exit, r.stderr)
			}
			a.quit()
			if r := j.finish(t); r.exit != 137 {
				t.Errorf("%s: exit %d: %s", name, r.exit, r.stderr)
			}
		}
	}
	n.drain(t)
}

// As an ordinary user: with a user of its own, and with the user's own where the workspace is writable.
func TestJoinRootless(t *testing.T) {
	for _, tt := range []struct {
		profile   string
		workspace bool
	}{{"ring3", false}, {"ring2", true}} {
		t.Run(tt.profile, func(t *testing.T) {
			u := someone(t)
			stdin, hold := io.Pipe()
			o := opts{profile: tt.profile, user: u, stdin: stdin}
			if tt.workspace {
				o.flags = []string{"--workspace", u.workspace(t)}
			}
			o.flags = append(o.flags, "--no-gateway", "--name", "mine")
			c := prepare(t, o, "/probe", "ready", ",", "wait")
			c.startUntil(t, "ready")
			u.cgroup = "" // the command comes from the user's shell
			code, out, errOut := u.run(t, append([]string{"exec", "--in", "mine", "--"}, probeArgs("status", "fds", "fork", "mount tmpfs", "read /proc/1/mem", "id")...)...)
			r := result{exit: code, stdout: out, stderr: errOut}
			hold.Close()
			got := fieldsOf(value(t, r, "status"))
			for field, want := range map[string]string{"CapEff": "0000000000000000", "CapBnd": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2", "Uid": "1000 1000 1000 1000", "Groups": ""} {
				if got[field] != want {
					t.Errorf("%s: got %q, want %q", field, got[field], want)
				}
			}
			if fds := strings.Split(value(t, r, "fds"), "|"); len(fds) != 3 {
				t.Errorf("descriptors: %v", fds)
			}
			tries := answers(out)
			if tries["mount tmpfs"] != "EPERM" || tries["read /proc/1/mem"] != "EACCES" || (tries["fork"] == "ok") != (tt.profile == "ring2") {
				t.Errorf("got %v", tries)
			}
			c.finish(t).want(t, 0, "exited")
		})
	}
}

// proc is what ps REF says of a process.
type proc struct {
	PID     int       `json:"pid"`
	Inside  int       `json:"inside_pid"`
	Parent  int       `json:"parent"`
	User    int       `json:"user"`
	State   string    `json:"state"`
	Started time.Time `json:"started_at"`
	Name    string    `json:"name"`
	Command []string  `json:"command"`
	First   bool      `json:"first"`
	From    string    `json:"from"`
}

// M-23: the numbers are those that the sandbox itself sees, of the first command, of one that entered and of what they started, as root and
// as an ordinary user, with limits of its own or without; and what is said of a process is what its own /proc says.
func TestM23ProcessesOfARun(t *testing.T) {
	// The shell tells its number and the one of what it has started; orphans have lost theirs.
	const shell = `sleep 1000 & n=$!; (sleep 2000 &); echo $$ $n; read x`
	check := func(t *testing.T, list []proc, first, entered []string) {
		t.Helper()
		orphans := 0
		from := map[string]string{}
		for _, p := range list {
			if p.User != 1000 || p.PID == p.Inside || len(p.Command) == 0 || p.State != "sleeping" || time.Since(p.Started) > hang() || time.Until(p.Started) > time.Second {
				t.Errorf("got %+v", p)
			}
			if p.First != (fmt.Sprint(p.Inside) == first[0]) {
				t.Errorf("the first is %s: %+v", first[0], p)
			}
			if p.Command[len(p.Command)-1] == "2000" {
				if orphans++; p.From != "" {
					t.Errorf("an orphan: %+v", p)
				}
				continue
			}
			from[fmt.Sprint(p.Inside)] = p.From
		}
		want := map[string]string{first[0]: "command", first[1]: "command", entered[0]: "entered", entered[1]: "entered"}
		if !maps.Equal(from, want) || orphans != 2 {
			t.Errorf("got %v and %d orphans, want %v and 2", from, orphans, want)
		}
	}
	begun := func(list []proc) bool {
		return len(list) == 6 && !slices.ContainsFunc(list, func(p proc) bool { return p.State != "sleeping" || p.Name != filepath.Base(p.Command[0]) })
	}
	for name, flags := range map[string][]string{"root": nil, "root, with limits": {"--memory", "64MiB"}} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			c := p.at(prepare(t, opts{profile: "ring2", flags: []string{"--no-gateway"}}, "/bin/sh", "-c", shell))
			a := p.beginOnly("dev", c)
			first := strings.Fields(a.line())
			entered := strings.Fields(p.talk("dev", p.joined("dev", flags, "/bin/sh", "-c", shell)).line())
			var list []proc
			eventually(t, hang(), "all have begun", func() bool { list = asked[[]proc](p, "ps", "dev"); return begun(list) })
			check(t, list, first, entered)
			check(t, asked[struct{ Processes []proc }](p, "inspect", "dev").Processes, first, entered)
			text := p.must("ps", "dev").stdout
			if strings.Count(text, "\n") != 7 || !strings.Contains(text, "first") || !strings.Contains(text, "  entered  sleep 1000\n") || !strings.Contains(text, "  -        sleep 2000\n") {
				t.Errorf("ps dev:\n%s", text)
			}
			id := a.seen().ID
			p.must("kill", "dev")
			eventually(t, hang(), "ps says that it is over", func() bool {
				r := p.do("ps", id)
				return r.exit == 1 && r.stdout == "" && strings.Contains(r.stderr, "run "+id+" is over") && strings.Contains(r.stderr, "hint: agentrun inspect "+id)
			})
		})
	}
	t.Run("hostile", func(t *testing.T) {
		p := newPlace(t)
		a := p.begin("dev", p.at(prepare(t, opts{profile: "ring2", flags: []string{"--no-gateway", "--workspace", workspace(t)}}, "/bin/sh", "-c",
			`cp /bin/sleep "$(printf '/tmp/sandbox/a\033[2J\nb')" && cd /tmp/sandbox && echo ready && exec "$(printf './a\033[2J\nb')" 1000`)))
		eventually(t, hang(), "it has its name", func() bool {
			list := asked[[]proc](p, "ps", "dev")
			return len(list) == 1 && list[0].Command[0] == "./a\x1b[2J\nb" && list[0].Name == "a\x1b[2J\nb"
		})
		if text := p.must("ps", "dev").stdout; strings.Contains(text, "\x1b") || strings.Count(text, "\n") != 2 || !strings.Contains(text, `"./a\x1b[2J\nb" 1000`) {
			t.Errorf("got %q", text)
		}
		p.must("kill", "dev")
		_ = a.Wait()
	})
	t.Run("stopped", func(t *testing.T) {
		p := newPlace(t)
		p.kept("dev", "--ring", "2")
		if r := p.do("ps", "dev"); r.exit != 1 || !strings.Contains(r.stderr, "sandbox dev is stopped: it has no processes\nhint: agentrun start dev") {
			t.Errorf("exit %d %s%s", r.exit, r.stdout, r.stderr)
		}
	})
	t.Run("an ordinary user", func(t *testing.T) {
		u := someone(t)
		p := newPlace(t)
		a := p.beginOnly("dev", prepare(t, opts{profile: "ring2", user: u, flags: []string{"--no-gateway"}}, "/bin/sh", "-c", shell))
		first := strings.Fields(a.line())
		u.cgroup = "" // the commands come from the user's shell
		j := &call{Cmd: u.command(t, "exec", "--in", "dev", "--", "/bin/sh", "-c", shell), cancel: func() {}}
		entered := strings.Fields(p.talk("dev", j).line())
		var list []proc
		eventually(t, hang(), "all have begun", func() bool {
			code, out, text := u.run(t, "ps", "dev", "--json")
			if err := json.Unmarshal([]byte(out), &list); code != 0 || err != nil {
				t.Fatalf("exit %d %v %s", code, err, text)
			}
			return begun(list)
		})
		check(t, list, first, entered)
		if code, _, text := u.run(t, "kill", "dev"); code != 0 {
			t.Errorf("kill: exit %d %s", code, text)
		}
		_ = a.Wait()
	})
}
