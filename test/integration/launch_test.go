// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/fault"
)

// M-5: a launch that hangs, is asked to end, or loses its supervisor, in each of its steps. The steps are the program's own list: one
// that is added is tried here without anybody thinking of it.

// launchNode is a place whose supervisors, and the inits that they start, are known by the name that the program was called by.
type launchNode struct {
	place
	program string
}

func newLaunchNode(t *testing.T) launchNode {
	t.Helper()
	n := launchNode{place: newPlace(t)}
	n.program = filepath.Join(filepath.Dir(n.run), "agentrun")
	if err := os.Symlink(agentrun, n.program); err != nil {
		t.Fatal(err)
	}
	return n
}

// command is a call of the program with faults in it.
func (n launchNode) command(faults string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(n.t.Context(), n.program, append([]string{"--state-dir", n.state, "--run-dir", n.run}, args...)...)
	cmd.Dir = n.t.TempDir()
	cmd.Env = append(os.Environ(), "AGENTRUN_NO_DAEMON=1")
	if faults != "" {
		cmd.Env = append(cmd.Env, fault.Variable+"="+faults)
	}
	return cmd
}

// exec is a run of the probe; words are its tries.
func (n launchNode) exec(faults string, flags []string, words ...string) *exec.Cmd {
	args := append([]string{"exec", "--status-file", filepath.Join(filepath.Dir(n.run), "status.json"), "--ro-bind", probeBin + ":/probe"}, flags...)
	return n.command(faults, append(append(args, "--"), probeArgs(words...)...)...)
}

func (n launchNode) status() (s status) {
	n.t.Helper()
	b, err := os.ReadFile(filepath.Join(filepath.Dir(n.run), "status.json"))
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		n.t.Errorf("status file: %v", err)
	}
	return s
}

// runs are those that have something in the run folder.
func (n launchNode) runs() (ids []string) {
	for _, dir := range []string{"sandboxes", "locks"} {
		list, _ := os.ReadDir(filepath.Join(n.run, dir))
		for _, d := range list {
			ids = append(ids, d.Name())
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// alive are the processes of the place: by the name that they were started with, or by the cgroup of a run.
func (n launchNode) alive() (list []string) {
	ids := n.runs()
	for _, p := range processes() {
		if p.state == "Z" {
			continue
		}
		ours := strings.HasPrefix(p.cmdline(), n.program)
		for _, line := range lines(fmt.Sprintf("/proc/%d/cgroup", p.pid)) {
			ours = ours || slices.Contains(ids, filepath.Base(groupOf(line)))
		}
		if ours {
			list = append(list, fmt.Sprintf("process %d of %d, uid %d, state %s, exiting %t, %s", p.pid, p.ppid, p.uid, p.state, p.exiting, p.comm))
		}
	}
	return list
}

// nobodyIsLeft is M-5's second after the supervisor's death.
func (n launchNode) nobodyIsLeft() {
	n.t.Helper()
	var left []string
	began := time.Now()
	for {
		if left = n.alive(); len(left) == 0 {
			return
		}
		// A namespace whose pid 1 is dead stays until the host's pid 1 has taken leave of a command that had joined it, and some look
		// for their dead every other second only.
		unreaped := !slices.ContainsFunc(left, func(s string) bool { return !strings.Contains(s, "exiting true") })
		if time.Since(began) > time.Duration(slow*float64(time.Second)) && (!unreaped || time.Since(began) > 20*time.Second) {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	n.t.Errorf("alive a second after the supervisor:\n%s", strings.Join(left, "\n"))
}

// nothingIsLeft looks for everything else that a run has on the host, of those named and those in the run folder.
func (n launchNode) nothingIsLeft(ids []string) {
	n.t.Helper()
	ids = append(ids, n.runs()...)
	left := n.alive()
	for _, dir := range cgroupDirs() {
		if slices.Contains(ids, filepath.Base(dir)) {
			left = append(left, "cgroup "+dir)
		}
	}
	for _, line := range lines("/proc/self/mountinfo") {
		if strings.Contains(line, n.run) || slices.ContainsFunc(ids, func(id string) bool { return strings.Contains(line, id) }) {
			left = append(left, "mount "+line)
		}
	}
	for _, id := range n.runs() {
		left = append(left, "run folder of "+id)
	}
	if len(left) > 0 {
		n.t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

// sound is what a record is after a failure and one run more: whole, or mended with a word on it.
func (n launchNode) sound() {
	n.t.Helper()
	if r := n.do("audit", "verify", "--all"); r.exit != 0 {
		n.t.Errorf("audit verify --all: exit %d\n%s%s", r.exit, r.stdout, r.stderr)
	}
	if list := n.list(); len(list) > 0 {
		n.t.Errorf("ps shows runs that are over: %+v", list)
	}
}

// stepNames are the launch's steps, as the program says them.
func stepNames(t *testing.T) []string {
	t.Helper()
	r := tool(t, "plan", "--json", "--ro-bind", probeBin+":/probe", "--", "/probe", "ok")
	var plan struct{ Steps []struct{ Name string } }
	if err := json.Unmarshal([]byte(r.stdout), &plan); err != nil || len(plan.Steps) < 8 {
		t.Fatalf("plan --json: %v, %d steps\n%s%s", err, len(plan.Steps), r.stdout, r.stderr)
	}
	var names []string
	for _, s := range plan.Steps {
		names = append(names, s.Name)
	}
	return names
}

// notUndone are the steps that have nothing to undo.
var notUndone = []string{"mount namespace", "hand-out", "cpu quota", "probe", "exec"}

func bySIGKILL(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == unix.SIGKILL
}

// The supervisor dies in each step, and in each undoing of one. Within a second nobody is left, and after gc nothing.
func TestM5SupervisorKilledInEachStep(t *testing.T) {
	needSandbox(t)
	for _, step := range stepNames(t) {
		for _, point := range []string{"launch/" + step, "undo/" + step} {
			if strings.HasPrefix(point, "undo/") && slices.Contains(notUndone, step) {
				continue
			}
			t.Run(point, func(t *testing.T) {
				n := newLaunchNode(t)
				if err := n.exec(point+"=kill", []string{"--ring", "2"}, "ok").Run(); !bySIGKILL(err) {
					t.Fatalf("the supervisor: %v, want it killed", err)
				}
				n.nobodyIsLeft()
				ids := n.runs()
				n.must("gc")
				n.nothingIsLeft(ids)
				if out, err := n.exec("", nil, "exit 0").CombinedOutput(); err != nil {
					t.Errorf("the next run: %v\n%s", err, out)
				}
				n.sound()
			})
		}
	}
}

// The same in the daemon, at the second time that the step is done: a prepared sandbox's, or that of a run which gets one.
func TestM5DaemonKilledInEachStep(t *testing.T) {
	needSandbox(t)
	for _, step := range stepNames(t) {
		for _, point := range []string{"launch/" + step, "undo/" + step} {
			if strings.HasPrefix(point, "undo/") && slices.Contains(notUndone, step) {
				continue
			}
			t.Run(point, func(t *testing.T) {
				n := newLaunchNode(t)
				d := n.command(point+"=kill@2", "--log-level", "info", "serve")
				log := &lockedBuffer{}
				d.Stdout, d.Stderr = log, log
				if err := d.Start(); err != nil {
					t.Fatal(err)
				}
				dead := make(chan error, 1)
				go func() { dead <- d.Wait() }()
				eventually(t, 20*time.Second, "the daemon serves", func() bool { return strings.Contains(log.String(), "msg=serving") })
				workspace := n.t.TempDir()
				copyProbe(t, workspace)
				var err error
				for try := 0; ; try++ {
					c := n.command("", "exec", "--no-gateway", "--workspace", workspace, "--", "/workspace/probe", "exit", "0")
					c.Env = os.Environ()
					_ = c.Run()
					select {
					case err = <-dead:
					case <-time.After(time.Duration(slow * float64(500*time.Millisecond))): // time to prepare one
						if try < 5 {
							continue
						}
						d.Process.Kill()
						t.Fatalf("the daemon isn't killed at %s\n%s", point, log.String())
					}
					break
				}
				if !bySIGKILL(err) {
					t.Fatalf("the daemon: %v, want it killed\n%s", err, log.String())
				}
				n.nobodyIsLeft()
				ids := n.runs()
				n.must("gc")
				n.nothingIsLeft(ids)
				n.sound()
			})
		}
	}
}

// lockedBuffer is read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}
func (l *lockedBuffer) String() string { l.mu.Lock(); defer l.mu.Unlock(); return l.b.String() }

// reached says whether a program has come to the point of its fault.
func (l *lockedBuffer) reached() bool { return strings.Contains(l.String(), fault.Variable+": ") }

func (l *lockedBuffer) wait(t *testing.T) {
	t.Helper()
	eventually(t, 20*time.Second, "the point is reached", l.reached)
}

func scaled(d time.Duration) string { return time.Duration(slow * float64(d)).String() }

// SIGTERM during any step ends the launch: the step is named, everything is undone. During an undoing it changes nothing.
func TestM5LaunchObeysSignals(t *testing.T) {
	needSandbox(t)
	for _, step := range stepNames(t) {
		for _, point := range []string{"launch/" + step, "undo/" + step} {
			undo := strings.HasPrefix(point, "undo/")
			if undo && slices.Contains(notUndone, step) {
				continue
			}
			t.Run(point, func(t *testing.T) {
				n := newLaunchNode(t)
				c := n.exec(point+"=delay:"+scaled(200*time.Millisecond), []string{"--ring", "2"}, "exit 0")
				log := &lockedBuffer{}
				c.Stderr = log
				if err := c.Start(); err != nil {
					t.Fatal(err)
				}
				log.wait(t)
				for range 3 { // at the undoing the second one isn't more than the first
					c.Process.Signal(unix.SIGTERM)
					time.Sleep(time.Millisecond)
				}
				_ = c.Wait()
				s := n.status()
				switch {
				case undo || step == "exec": // the command is on its way: the signal is the run's
					if s.State == "failed" || c.ProcessState.ExitCode() < 0 {
						t.Errorf("got %v, status %+v, want the run's own end", c.ProcessState, s)
					}
				case c.ProcessState.ExitCode() != 125 || s.State != "failed" || s.FailedStep != step || !strings.Contains(s.Error, "SIGTERM"):
					t.Errorf("got %v, status %+v, want %s failed by SIGTERM", c.ProcessState, s, step)
				}
				if len(s.Leftovers) > 0 {
					t.Errorf("leftovers: %v", s.Leftovers)
				}
				n.nothingIsLeft([]string{s.ID})
				n.sound()
			})
		}
	}
}

// A step that doesn't come back fails by name, and agentrun ends. What it couldn't undo it says, and gc does it.
func TestM5StepHasADeadline(t *testing.T) {
	needSandbox(t)
	for _, step := range stepNames(t) {
		t.Run(step, func(t *testing.T) {
			t.Parallel() // mostly waiting
			n := newLaunchNode(t)
			point := "launch/" + step
			if step == "exec" {
				point = "record/sandbox_start" // which it waits for; behind it comes the command, and with that the run's own limits
			}
			c := n.exec(point+"=hang", []string{"--ring", "3"}, "exit 0")
			c.Env = append(c.Env, "AGENTRUN_TESTONLY_STEP_PATIENCE="+scaled(time.Second)) // no step takes so long, also where all is busy
			out, _ := c.CombinedOutput()
			s := n.status()
			if c.ProcessState.ExitCode() != 125 || s.FailedStep != step || !strings.Contains(s.Error, "not done after") || len(s.Leftovers) != 1 {
				t.Errorf("got %v, status %+v, want %s failed by its deadline, and a word on what it leaves\n%s", c.ProcessState, s, step, out)
			}
			n.nobodyIsLeft()
			n.must("gc")
			n.nothingIsLeft([]string{s.ID})
			n.sound()
		})
	}
}

// What hangs is the stub on its way to pid 1, which is frozen where it waits for its ids. A deadline and a signal end it.
func TestM5ContainerStepIsUnstuck(t *testing.T) {
	needSandbox(t)
	for _, by := range []string{"deadline", "SIGTERM", "SIGINT"} {
		t.Run(by, func(t *testing.T) { newLaunchNode(t).frozenLaunch(by) })
	}
}

func (n launchNode) frozenLaunch(by string) {
	t := n.t
	t.Helper()
	c := n.exec("container/apart=delay:"+scaled(200*time.Millisecond), []string{"--ring", "3"}, "exit 0")
	if by == "deadline" {
		// Less than the ten seconds that the stub has for an answer.
		c.Env = append(c.Env, "AGENTRUN_TESTONLY_STEP_PATIENCE="+min(time.Duration(slow*float64(2*time.Second)), 8*time.Second).String())
	}
	log := &lockedBuffer{}
	c.Stderr = log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	log.wait(t)
	freezer, word := "", ""
	for _, dir := range cgroupDirs() {
		if !slices.Contains(n.runs(), filepath.Base(dir)) {
			continue
		}
		if unix.Access(filepath.Join(dir, "freezer.state"), unix.F_OK) == nil {
			freezer, word = filepath.Join(dir, "freezer.state"), "FROZEN"
		} else if freezer == "" && unix.Access(filepath.Join(dir, "cgroup.freeze"), unix.F_OK) == nil {
			freezer, word = filepath.Join(dir, "cgroup.freeze"), "1"
		}
	}
	if err := os.WriteFile(freezer, []byte(word), 0o644); err != nil {
		t.Error(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = c.Wait() }()
	select {
	case <-done:
		t.Error("it was through before it was frozen")
	case <-time.After(time.Duration(slow * float64(500*time.Millisecond))):
	}
	switch by {
	case "SIGTERM":
		c.Process.Signal(unix.SIGTERM)
	case "SIGINT":
		c.Process.Signal(unix.SIGINT)
	}
	select {
	case <-done:
	case <-time.After(time.Duration(slow * float64(5*time.Second))):
		t.Errorf("it hangs: %v", n.alive())
		c.Process.Kill()
		<-done
		n.do("gc")
	}
	s := n.status()
	if s.FailedStep != "container" && s.FailedStep != "agent process" || c.ProcessState.ExitCode() != 125 || len(s.Leftovers) > 0 {
		t.Errorf("got %v, status %+v, want the step failed and undone\n%s", c.ProcessState, s, log.String())
	}
	if want := map[string]string{"deadline": "not done after"}[by] + strings.TrimPrefix(by, "deadline"); !strings.Contains(s.Error, want) {
		t.Errorf("error %q doesn't say %q", s.Error, want)
	}
	t.Log(s.Error)
	n.nothingIsLeft([]string{s.ID})
	n.sound()
}

// A-M14: what the launch opens in a root that somebody else made may be no file at all.
func TestM5HostileRootDoesNotHang(t *testing.T) {
	needSandbox(t)
	for _, profile := range []string{"ring3", "ring1", "strict"} {
		for _, name := range []string{"etc/passwd", "etc/group", "etc/nsswitch.conf", "etc/hosts", "etc/localtime"} {
			t.Run(profile+" "+name, func(t *testing.T) {
				n := newLaunchNode(t)
				root := tinyRoot(t)
				fifo := filepath.Join(root, name)
				os.Remove(fifo)
				if err := unix.Mkfifo(fifo, 0o644); err != nil {
					t.Fatal(err)
				}
				args := append([]string{"exec", "--no-gateway", "--rootfs", root}, profileFlags(profile)...)
				c := n.command("", append(args, "--", "/bin/probe", "exit", "0")...)
				log := &lockedBuffer{}
				c.Stderr = log
				if err := c.Start(); err != nil {
					t.Fatal(err)
				}
				done := make(chan error, 1)
				go func() { done <- c.Wait() }()
				select {
				case err := <-done:
					if err != nil {
						t.Errorf("%v\n%s", err, log.String())
					}
				case <-time.After(time.Duration(slow * float64(5*time.Second))):
					t.Errorf("it hangs: %v", n.alive())
					c.Process.Signal(unix.SIGTERM)
					select {
					case <-done:
					case <-time.After(time.Duration(slow * float64(5*time.Second))):
						t.Error("SIGTERM doesn't end it")
						c.Process.Kill()
						<-done
						n.nobodyIsLeft()
						n.do("gc")
					}
				}
				n.nothingIsLeft(nil)
			})
		}
	}
}

// rootlessLaunch is an ordinary user's launch without a cgroup; alive are the processes that it has by then.
func rootlessLaunch(t *testing.T, env ...string) (c *exec.Cmd, log *lockedBuffer, alive func() []process) {
	t.Helper()
	u := newUser(t)
	program := filepath.Join(u.home, "agentrun")
	if err := os.Symlink(agentrun, program); err != nil {
		t.Fatal(err)
	}
	before := map[int]bool{}
	for _, p := range processes() {
		before[p.pid] = true
	}
	c = u.command(t, "exec", "--no-gateway", "--best-effort", "--ring", "3", "--", "true")
	c.Args[slices.Index(c.Args, agentrun)] = program
	c.Env = append(c.Env, env...)
	log = &lockedBuffer{}
	c.Stderr = log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return c, log, func() (list []process) {
		for _, p := range processes() {
			inside := p.uid >= 1000000 && p.uid < 1065536 && !before[p.pid]
			if p.state != "Z" && (inside || strings.HasPrefix(p.cmdline(), program)) {
				list = append(list, p)
			}
		}
		return list
	}
}

// The same without root and without a cgroup, where the pid namespace is all that holds a run.
func TestM5RootlessSupervisorKilledInEachStep(t *testing.T) {
	needSandbox(t)
	for _, step := range stepNames(t) {
		t.Run(step, func(t *testing.T) {
			c, log, alive := rootlessLaunch(t, fault.Variable+"=launch/"+step+"=kill")
			if err := c.Wait(); !bySIGKILL(err) {
				t.Fatalf("the supervisor: %v, want it killed\n%s", err, log)
			}
			eventually(t, time.Second, "nobody is left", func() bool { return len(alive()) == 0 })
		})
	}
}

// What hangs is stopped here: a launch without a cgroup knows its processes as the launching thread's children.
func TestM5RootlessContainerStepIsUnstuck(t *testing.T) {
	needSandbox(t)
	c, log, alive := rootlessLaunch(t, fault.Variable+"=container/apart=delay:"+scaled(200*time.Millisecond))
	log.wait(t)
	stopped := 0
	for _, p := range alive() {
		if p.ppid == c.Process.Pid && strings.HasPrefix(p.comm, ".agentrun-init") && unix.Kill(p.pid, unix.SIGSTOP) == nil {
			stopped++
		}
	}
	if stopped != 1 {
		t.Errorf("%d processes were stopped of %+v", stopped, alive())
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = c.Wait() }()
	select {
	case <-done:
		t.Error("it was through before it was stopped")
	case <-time.After(time.Duration(slow * float64(500*time.Millisecond))):
	}
	c.Process.Signal(unix.SIGTERM)
	select {
	case <-done:
	case <-time.After(time.Duration(slow * float64(4*time.Second))): // less than the grace that an agent would have
		t.Errorf("it hangs: %+v", alive())
		c.Process.Kill()
		<-done
	}
	if c.ProcessState.ExitCode() != 125 || !strings.Contains(log.String(), ": asked to end by SIGTERM") {
		t.Errorf("got %v\n%s", c.ProcessState, log)
	}
	eventually(t, time.Second, "nobody is left", func() bool { return len(alive()) == 0 })
}

// SIGSTOP from outside, which no process can refuse, keeps neither pid 1 nor the agent's process from dying with the supervisor.
func TestM5StoppedLaunchDiesWithItsSupervisor(t *testing.T) {
	needSandbox(t)
	for _, point := range []string{"container/apart", "launch/container", "launch/agent process", "launch/probe"} {
		t.Run(point, func(t *testing.T) {
			n := newLaunchNode(t)
			c := n.exec(point+"=hang", []string{"--ring", "2"}, "ok")
			log := &lockedBuffer{}
			c.Stderr = log
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			log.wait(t)
			stopped := 0
			for _, p := range processes() {
				for _, line := range lines(fmt.Sprintf("/proc/%d/cgroup", p.pid)) {
					if slices.Contains(n.runs(), filepath.Base(groupOf(line))) && unix.Kill(p.pid, unix.SIGSTOP) == nil {
						stopped++
						break
					}
				}
			}
			if stopped == 0 {
				t.Error("nobody to stop")
			}
			c.Process.Kill()
			_ = c.Wait()
			n.nobodyIsLeft()
			n.must("gc")
			n.nothingIsLeft(nil)
		})
	}
}

// A supervisor that runs out of descriptors, wherever that is, undoes what it has done.
func TestM5FewDescriptors(t *testing.T) {
	needSandbox(t)
	needProgram(t, "prlimit")
	failed := 0
	for _, most := range []int{10, 12, 14, 16, 18, 21, 25, 30, 36, 42, 46, 50, 70} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			n := newLaunchNode(t)
			c := n.exec("", []string{"--ring", "2", "--no-gateway"}, "exit 0")
			c.Args = append([]string{"prlimit", fmt.Sprintf("--nofile=%d:%d", most, most)}, c.Args...)
			c.Path = sandboxProgram("prlimit")
			out, err := c.CombinedOutput()
			if err != nil {
				failed++
				if code := c.ProcessState.ExitCode(); code != 125 && code != 126 || !strings.Contains(string(out), "too many open files") { // 126: of the command
					t.Errorf("got %v, want 125 or 126 and the reason\n%s", c.ProcessState, out)
				}
			}
			n.nothingIsLeft(n.runs())
			if out, err := n.exec("", nil, "exit 0").CombinedOutput(); err != nil {
				t.Errorf("the next run: %v\n%s", err, out)
			}
			n.sound()
		})
	}
	if failed < 3 {
		t.Errorf("%d failed: the numbers are too high to show anything", failed)
	}
}
