// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// pod is a cgroup as an engine makes it for several containers: 48 MiB, a fifth of a processor. On v1 it is in two hierarchies only.
type pod struct {
	path string   // cgroupsPath of a container in it
	dirs []string // where it is
}

func newPod(t *testing.T) pod {
	t.Helper()
	name := fmt.Sprintf("ocitest%d", os.Getpid())
	p := pod{path: "/" + name + "/pod/box"}
	make := func(mount string, files map[string]string) {
		top := filepath.Join(mount, name)
		dir := filepath.Join(top, "pod")
		t.Cleanup(func() { _, _ = syscall.Rmdir(dir), syscall.Rmdir(top) })
		for _, d := range []string{top, dir} {
			if err := os.Mkdir(d, 0o755); err != nil {
				t.Fatal(err)
			}
			if mount == "/sys/fs/cgroup" {
				write(t, filepath.Join(filepath.Dir(d), "cgroup.subtree_control"), "+cpu +memory +pids", 0o644)
			}
		}
		for file, text := range files {
			write(t, filepath.Join(dir, file), text, 0o644)
		}
		p.dirs = append(p.dirs, dir)
	}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); errors.Is(err, os.ErrNotExist) {
		make("/sys/fs/cgroup/memory", map[string]string{"memory.limit_in_bytes": "48M"})
		make("/sys/fs/cgroup/cpu", map[string]string{"cpu.cfs_period_us": "50000", "cpu.cfs_quota_us": "10000"})
		return p
	}
	make("/sys/fs/cgroup", map[string]string{"memory.max": "48M", "cpu.max": "10000 50000"})
	return p
}

func (p pod) bundle(e ociHost, command ...string) string {
	e.t.Helper()
	dir := e.bundle(func(c map[string]any) { c["linux"].(map[string]any)["cgroupsPath"] = p.path }, command...)
	text, err := os.ReadFile(probeBin)
	if err != nil {
		e.t.Fatal(err)
	}
	write(e.t, filepath.Join(dir, "rootfs/bin/probe"), string(text), 0o755)
	return dir
}

// empty: nothing of ours is in it, and nothing of the pod's own is gone.
func (p pod) empty(t *testing.T, when string) {
	t.Helper()
	for _, dir := range p.dirs {
		if ours, _ := filepath.Glob(dir + "/*/"); len(ours) > 0 {
			t.Errorf("%s: left %v", when, ours)
		}
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
}

// M-3: the limits of an engine's group above its containers hold for a run, which is in it wherever there is one, leaves nothing in it, and
// nothing but its own group is made or removed.
func TestOCIWithinThePod(t *testing.T) {
	needSandbox(t)
	e, p := newEngine(t, "agentrun-ring2"), newPod(t)
	e.good("create", "--bundle", p.bundle(e, "/bin/sleep", "1000"), "box")
	t.Cleanup(func() { e.oci("delete", "--force", "box") })
	e.good("start", "box")
	eventually(t, hang(), "it runs", func() bool { return len(asked[[]box](e.place, "ps")) == 1 })
	run := asked[[]box](e.place, "ps")[0]
	for _, dir := range p.dirs {
		if _, err := os.Stat(filepath.Join(dir, "agentrun", run.ID)); err != nil {
			t.Error(err)
		}
	}
	inside, elsewhere := 0, 0
	for _, line := range lines(fmt.Sprintf("/proc/%d/cgroup", run.PID)) {
		_, at, _ := strings.Cut(strings.TrimSpace(line), ":/")
		switch {
		case strings.HasPrefix(at, strings.TrimPrefix(filepath.Dir(p.path), "/")+"/agentrun/"+run.ID):
			inside++
		case strings.HasPrefix(at, "agentrun/"+run.ID):
			elsewhere++
		}
	}
	if inside != len(p.dirs) || (elsewhere > 0) != (len(p.dirs) > 1) {
		t.Errorf("in %d of the pod's %d hierarchies, and in %d others:\n%s", inside, len(p.dirs), elsewhere, strings.Join(lines(fmt.Sprintf("/proc/%d/cgroup", run.PID)), "\n"))
	}
	if r := e.oci("exec", "box", "/bin/probe", "alloc", "100"); r.exit == 0 {
		t.Errorf("100 MiB in a pod of 48: exit %d %s%s", r.exit, r.stdout, r.stderr)
	}
	if r := e.oci("delete", "--force", "box"); r.exit != 0 {
		t.Errorf("delete: %s", r.stderr)
	}
	p.empty(t, "after its end")
	if r := e.oci("run", "--bundle", p.bundle(e, "/bin/probe", "alloc", "100"), "big"); r.exit != 137 {
		t.Errorf("100 MiB in a pod of 48: exit %d %s%s", r.exit, r.stdout, r.stderr)
	}
	if r := e.oci("run", "--bundle", p.bundle(e, "/bin/probe", "alloc", "10"), "small"); r.exit != 0 {
		t.Errorf("10 MiB in a pod of 48: exit %d %s%s", r.exit, r.stdout, r.stderr)
	}
	p.empty(t, "after others")
}

// M-5: a supervisor that is killed while its container is paused leaves frozen processes in the pod on v1, which the next collection ends.
func TestOCIPodAfterAKill(t *testing.T) {
	needSandbox(t)
	e, p := newEngine(t, "agentrun-ring2"), newPod(t)
	e.good("create", "--bundle", p.bundle(e, "/bin/sleep", "1000"), "box")
	e.good("start", "box")
	eventually(t, hang(), "it runs", func() bool { return len(asked[[]box](e.place, "ps")) == 1 })
	e.good("pause", "box")
	_ = syscall.Kill(e.status("box").PID, syscall.SIGKILL)
	eventually(t, hang(), "it has stopped", func() bool { return e.status("box").Status == "stopped" })
	e.good("delete", "box")
	e.must("gc")
	noAgents(t)
	p.empty(t, "after a kill")
}

// A path that leads into another run's group, or out of the hierarchy, is refused; one that isn't there holds nothing.
func TestOCICgroupsPaths(t *testing.T) {
	e := newEngine(t, "agentrun-ring2")
	for at, want := range map[string]string{
		"/agentrun/other/box": "cgroup \"/agentrun/other\" is agentrun's own", "/x/agentrun-tests/box": "is agentrun's own",
		"../../box": "", "/no/such/pod/box": "", "box": "", "/../../etc/box": "",
	} {
		bundle := e.bundle(func(c map[string]any) { c["linux"].(map[string]any)["cgroupsPath"] = at }, "/bin/true")
		if r := e.oci("run", "--bundle", bundle, "box"); (r.exit == 0) != (want == "") || !strings.Contains(r.stderr, want) {
			t.Errorf("%s: exit %d %s, want %q", at, r.exit, r.stderr, want)
		}
	}
	if _, err := os.Stat("/sys/fs/cgroup/memory/no"); err == nil {
		t.Error("a pod was made")
	}
	noAgents(t)
}
