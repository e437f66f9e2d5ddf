// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// holder makes the bundle of the container that holds a pod's place, as containerd's CRI does.
func (e ociHost) holder(change func(map[string]any)) string {
	return e.bundle(func(c map[string]any) {
		c["annotations"] = map[string]string{"io.kubernetes.cri.container-type": "sandbox"}
		if change != nil {
			change(c)
		}
	}, "/bin/sh", "-c", "exit 1")
}

// M-1: what holds a pod's place runs nothing of its bundle, is no run, and ends by signals as engines want it. make test-kubernetes has pods.
func TestOCIHoldsAPod(t *testing.T) {
	e := newEngine(t, "agentrun-ring3")
	for _, end := range []string{"TERM", "KILL", "delete"} {
		e.good("create", "--bundle", e.holder(nil), "pod")
		created := e.status("pod")
		e.good("start", "pod")
		running := e.status("pod")
		if created.Status != "created" || running.Status != "running" || running.PID != created.PID {
			t.Errorf("created as %v, started as %v", created, running)
		}
		program, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", running.PID))
		own, _ := os.Readlink("/proc/self/ns/net")
		its, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", running.PID))
		if !strings.HasSuffix(program, "/agentrun-oci") || its == "" || its == own {
			t.Errorf("%s waits, in network %s, the host's is %s", program, its, own)
		}
		if runs := asked[[]box](e.place, "ps"); len(runs) > 0 {
			t.Errorf("it is the run %v", runs)
		}
		for _, args := range [][]string{{"exec", "pod", "/bin/true"}, {"pause", "pod"}, {"events", "--stats", "pod"}} {
			if r := e.oci(args...); r.exit == 0 || !strings.Contains(r.stderr, "holds a pod's place") {
				t.Errorf("%v: exit %d %s", args, r.exit, r.stderr)
			}
		}
		if pids := e.good("ps", "--format", "json", "pod"); strings.TrimSpace(pids) != fmt.Sprintf("[%d]", running.PID) {
			t.Errorf("its processes are %s, want %d", pids, running.PID)
		}
		if end == "delete" {
			e.good("delete", "--force", "pod")
			continue
		}
		e.good("kill", "pod", end)
		eventually(t, hang(), "it has ended", func() bool { return e.status("pod").Status == "stopped" })
		if r := e.oci("kill", "pod", "KILL"); r.exit == 0 || !strings.Contains(r.stderr, "container not running") { // the words that containerd knows
			t.Errorf("a kill that comes late: exit %d %s", r.exit, r.stderr)
		}
		e.good("delete", "pod")
	}
	noAgents(t)
}

// THREATS "engines and images": what a pod demands beyond a ring is refused before it has a container, and a runtime that is killed leaves nobody who waits.
func TestOCIPodRefused(t *testing.T) {
	e := newEngine(t, "agentrun-ring3")
	for name, tc := range map[string]struct {
		change func(map[string]any)
		want   string
	}{
		"hostNetwork": {func(c map[string]any) {
			c["linux"].(map[string]any)["namespaces"].([]map[string]string)[1]["path"] = "/proc/self/ns/net"
		}, "the host's network namespace"},
		"hostPID": {func(c map[string]any) {
			linux := c["linux"].(map[string]any)
			linux["namespaces"] = linux["namespaces"].([]map[string]string)[1:]
		}, "the host's pid namespace"},
		"a volume where the sandbox has its own": {func(c map[string]any) {
			c["mounts"] = []map[string]any{{"destination": "/tmp/x", "source": e.root, "type": "bind"}}
		}, `on "/tmp/x", where the sandbox has its own`},
	} {
		if r := e.oci("create", "--bundle", e.holder(tc.change), "pod"); r.exit == 0 || !strings.Contains(r.stderr, tc.want) {
			t.Errorf("%s: exit %d %s", name, r.exit, r.stderr)
		}
	}
	pid := e.root + "/pid"
	killed := e.holder(func(c map[string]any) {
		hook := map[string]any{"path": "/bin/sh", "args": []string{"sh", "-c", `sed 's/.*"pid":\([0-9]*\).*/\1/' >` + pid + `; kill -9 $PPID`}, "env": []string{"PATH=/usr/bin:/bin"}}
		c["hooks"] = map[string]any{"createRuntime": []map[string]any{hook}}
	})
	if r := e.oci("create", "--bundle", killed, "gone"); r.exit == 0 {
		t.Error("it wasn't killed")
	}
	text, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, hang(), "nobody waits", func() bool {
		state, err := os.ReadFile("/proc/" + strings.TrimSpace(string(text)) + "/stat")
		return err != nil || strings.Contains(string(state), ") Z ")
	})
	if err := os.Remove(pid); err != nil {
		t.Error(err)
	}
	e.good("delete", "--force", "gone")
	eventually(t, 30*time.Second, "nothing is left", func() bool { left, _ := os.ReadDir(e.root); return len(left) == 0 })
	noAgents(t)
}
