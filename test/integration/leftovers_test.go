// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"agentrun/internal/fault"
)

// THREATS "leftovers"; M-5: nothing is left after any end. The lifecycle tests
// check it for crashes of the supervisor; TestMain checks it once more for all.

func TestNothingIsLeft(t *testing.T) {
	needSandbox(t)
	for _, tt := range []struct {
		name  string
		o     opts
		words string
	}{
		{"exit", opts{profile: "ring2"}, "exit 0"},
		{"crash", opts{profile: "ring3"}, "raise 11"},
		{"timeout", opts{profile: "ring2", unsafe: true, flags: []string{"--timeout", "300ms"}}, "stubborn"},
		{"out of memory", opts{profile: "ring2", flags: []string{"--memory", "256M"}}, "alloc 600"},
		{"fork bomb", opts{profile: "ring2", unsafe: true, flags: []string{"--timeout", "500ms"}}, "bomb"},
		{"children that stay", opts{profile: "ring2"}, "forks 20"},
		{"killed by policy", opts{profile: "ring3", flags: []string{"--max-output", "4k"}}, "output 1000000"},
		{"bad system call", opts{profile: "ring3"}, "x32 39"},
		{"private root", opts{profile: "ring1"}, "create /usr/x"},
		{"command not found", opts{profile: "ring3"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := takeStock()
			argv := append([]string{"/probe"}, strings.Fields(tt.words)...)
			if tt.words == "" {
				argv = []string{"/nonexistent"}
			}
			run(t, tt.o, argv...)
			if left := before.leftAfter(3 * time.Second); len(left) > 0 {
				t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
			}
		})
	}
}

// A launch that fails at any of its steps leaves the host as it was, names the
// step, and exits with 125. The steps are read from the plan, so a new one is
// tested without anybody thinking of it.
func TestFailedLaunchLeavesNothing(t *testing.T) {
	needSandbox(t)
	r := tool(t, "plan", "--json", "--ro-bind", probeBin+":/probe", "--", "/probe", "ok")
	var plan struct {
		Steps []struct{ Name string }
	}
	if err := json.Unmarshal([]byte(r.stdout), &plan); err != nil || len(plan.Steps) < 8 {
		t.Fatalf("plan --json: %v, %d steps\n%s%s", err, len(plan.Steps), r.stdout, r.stderr)
	}
	tried := []string{"ring1", "ring3"}
	if slow > 1 { // where each takes ten times as long, the default ring only
		tried = tried[1:]
	}
	for _, profile := range tried {
		for _, step := range plan.Steps {
			t.Run(profile+" "+step.Name, func(t *testing.T) {
				before := takeStock()
				got, r := try(t, opts{profile: profile, env: []string{fault.Variable + "=launch/" + step.Name + "=EIO"}}, "ok")
				// After the exec the agent may have come a few steps; before it, not one.
				if len(got) != 0 && step.Name != plan.Steps[len(plan.Steps)-1].Name {
					t.Errorf("the agent ran: %v", got)
				}
				r.want(t, 125, "failed")
				if r.status.FailedStep != step.Name || !strings.Contains(r.stderr, step.Name) {
					t.Errorf("failed step: got %q, want %q; stderr: %s", r.status.FailedStep, step.Name, r.stderr)
				}
				if left := before.leftAfter(3 * time.Second); len(left) > 0 {
					t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
				}
			})
		}
	}
}

// The supervisor is killed in the middle of its launch, at different moments.
func TestSupervisorKilledDuringLaunch(t *testing.T) {
	needSandbox(t)
	before := takeStock()
	for i := range 25 {
		c := prepare(t, opts{profile: "ring2"}, "/probe", "stubborn")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		// Not to be right, only to hit another place each time.
		time.Sleep(time.Duration(slow*float64(i)) * time.Millisecond)
		c.Process.Kill()
		c.Wait()
		c.cancel()
	}
	gone(t, time.Second) // also what was not pid 1 yet
	if r := tool(t, "gc"); r.exit != 0 {
		t.Errorf("gc: exit %d\n%s%s", r.exit, r.stdout, r.stderr)
	}
	if left := before.leftAfter(5 * time.Second); len(left) > 0 {
		t.Errorf("after gc there is left:\n%s", strings.Join(left, "\n"))
	}
}

// M-5: also when the crashed run's folder is gone, or was on a run folder nobody uses any more.
func TestGCWithoutRunFolder(t *testing.T) {
	needSandbox(t)
	before := takeStock()
	dir := t.TempDir()
	c := prepare(t, opts{profile: "ring2"}, "/probe", "stubborn")
	c.Args[slices.Index(c.Args, "--run-dir")+1] = dir
	c.startUntil(t, "ready")
	c.Process.Kill()
	c.Wait()
	noAgents(t)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if r := tool(t, "gc"); r.exit != 0 {
		t.Errorf("gc: exit %d\n%s%s", r.exit, r.stdout, r.stderr)
	}
	if left := before.leftAfter(5 * time.Second); len(left) > 0 {
		t.Errorf("after gc there is left:\n%s", strings.Join(left, "\n"))
	}
}

// M-5: an agentrun in a container that shares the cgroups, with a /run and pids of its own, sees neither locks nor processes of the host's
// runs. The end of its last run killed them all.
func TestSweepInAContainerSparesTheHost(t *testing.T) {
	needSandbox(t)
	in, hold, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Close()
	live := prepare(t, opts{flags: []string{"-i"}, stdin: in}, "/probe", "wait")
	live.startUntil(t, "ready")
	in.Close()
	inside := exec.Command("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "sh", "-ec",
		`mount -t tmpfs none /run; mount -t proc proc /proc; mkdir -m 700 /run/state; exec "$0" --state-dir /run/state exec --no-gateway -- true`, agentrun)
	if out, err := inside.CombinedOutput(); err != nil {
		t.Fatalf("the container: %v\n%s", err, out)
	}
	hold.Close()
	live.finish(t).want(t, 0, "exited")
}

// A run folder full of nonsense must neither stop the next run nor lead gc to
// remove what is not its own.
func TestGCOnHostileRunFolder(t *testing.T) {
	needSandbox(t)
	dir := t.TempDir()
	victim := write(t, t.TempDir()+"/victim/file", "x", 0o644)
	os.MkdirAll(dir+"/sandboxes", 0o700)
	os.Symlink(victim[:len(victim)-5], dir+"/sandboxes/abcdefgh")
	os.Mkdir(dir+"/sandboxes/..evil", 0o700)
	write(t, dir+"/sandboxes/file", "x", 0o600)
	os.MkdirAll(dir+"/locks", 0o700)
	os.Symlink(victim, dir+"/locks/abcdefgh")
	r := tool(t, "--run-dir", dir, "gc")
	if _, err := os.Stat(victim); err != nil {
		t.Errorf("gc removed what a link in the run folder led to: %v\n%s%s", err, r.stdout, r.stderr)
	}
	if b, _ := os.ReadFile(victim); string(b) != "x" {
		t.Errorf("gc wrote through a link: %q", b)
	}
}
