// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/hostcaps"
)

// busyClient keeps the gateway at work as cheaply as it can: many refused requests in one write, and connections whose first bytes are
// nothing. It says "ready" after the first answer, and goes on until its stdin ends.
const busyClient = `
import socket, sys, threading, time
ask = b"GET http://refused.example/ HTTP/1.1\r\nHost: refused.example\r\n\r\n" * 200
tools = b"GET /internal/none HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 200
first = threading.Event()
over = threading.Event()
def drain(s):
    while s.recv(1 << 16):
        first.set()
def pipeline(port, what):
    while not over.is_set():
        try:
            s = socket.create_connection(("127.0.0.1", port))
            threading.Thread(target=drain, args=(s,), daemon=True).start()
            while not over.is_set():
                s.sendall(what)
        except OSError:
            time.sleep(0.01)
def garbage(port):
    while not over.is_set():
        try:
            s = socket.create_connection(("127.0.0.1", port))
            s.sendall(b"\x16\x03\x01\x00\x05hello")
            s.settimeout(1)
            s.recv(100)
            s.close()
        except OSError:
            time.sleep(0.01)
for port, f, args in ((7601, pipeline, (ask,)), (7601, pipeline, (ask,)), (7600, pipeline, (tools,)), (443, garbage, ()), (7601, garbage, ())):
    threading.Thread(target=f, args=(port, *args), daemon=True).start()
first.wait()
print("ready", flush=True)
sys.stdin.read()
over.set()
`

// A-M3: what the gateway does for a run counts as the run's: its processor time ends at the run's quota, its memory has a limit, its
// group is named after the run, its account is the run's, and it goes with it.
func TestM7GatewayHasACgroup(t *testing.T) {
	needSandbox(t)
	needProgram(t, "python3")
	dir := workspace(t)
	write(t, filepath.Join(dir, "busy.py"), busyClient, 0o644)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c := prepare(t, opts{profile: "ring3", flags: []string{"--workspace", dir, "--cpus", "0.2", "--cpu-time", "50s"}, stdin: r}, "python3", "/workspace/busy.py")
	c.startUntil(t, "ready")
	r.Close()
	g := gatewayOf(t)
	t.Run("group", func(t *testing.T) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", g.pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, controller := range []string{"cpu", "memory", "pids"} {
			dir := cgroupDir(t, string(text), controller)
			if !strings.HasSuffix(dir, "-gateway") || filepath.Base(filepath.Dir(dir)) != "agentrun" {
				t.Errorf("%s: the gateway is in %q, want a group of its own beside the run's", controller, dir)
			}
		}
	})
	t.Run("quota", func(t *testing.T) {
		// The first period after its begin may still be one without quota.
		used := func() time.Duration { return processTime(t, g.pid) }
		was, began := used(), time.Now()
		time.Sleep(3 * time.Second)
		share := float64(used()-was) / float64(time.Since(began))
		if share > 0.3 {
			t.Errorf("the gateway of a run with 0.2 processors keeps %.2f busy", share)
		}
		t.Logf("%.2f", share)
	})
	t.Run("a new quota is its own too", func(t *testing.T) {
		id := idOf(t, g.pid)
		if out := tool(t, "update", "--cpus", "0.4", id); out.exit != 0 {
			t.Fatalf("update: %s", out.stderr)
		}
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", g.pid))
		dir := cgroupDir(t, string(text), "cpu")
		got := readAny(t, dir, "cpu.cfs_quota_us", "cpu.max")
		if !strings.HasPrefix(got, "40000") {
			t.Errorf("quota %q, want 40000", got)
		}
	})
	t.Run("not frozen with the run", func(t *testing.T) { // it must answer, and put records
		id := idOf(t, g.pid)
		if out := tool(t, "freeze", id); out.exit != 0 {
			t.Fatalf("freeze: %s", out.stderr)
		}
		defer tool(t, "thaw", id)
		out := tool(t, "inspect", id, "--json")
		var seen struct {
			Usage struct {
				GatewayCPUTime    time.Duration `json:"gateway_cpu_time_ns"`
				GatewayMemoryPeak int64         `json:"gateway_memory_peak_bytes"`
			} `json:"usage"`
		}
		if err := json.Unmarshal([]byte(out.stdout), &seen); err != nil || seen.Usage.GatewayCPUTime == 0 {
			t.Errorf("inspect doesn't tell what the gateway uses: %v\n%.500s%s", err, out.stdout, out.stderr)
		}
	})
	w.Close()
	res := c.finish(t)
	if res.status.GatewayCPU == 0 {
		t.Errorf("the status doesn't tell what the gateway used: exit %d, %s %s", res.exit, res.status.State, res.status.Reason)
	}
	if left := gatewayGroups(t, res.status.ID); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// gc finds the group of a gateway whose supervisor was killed.
func TestM5GatewayGroupAfterAKill(t *testing.T) {
	needSandbox(t)
	needProgram(t, "python3")
	dir := workspace(t)
	write(t, filepath.Join(dir, "busy.py"), busyClient, 0o644)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	c := prepare(t, opts{profile: "ring3", flags: []string{"--workspace", dir}, stdin: r}, "python3", "/workspace/busy.py")
	c.startUntil(t, "ready")
	r.Close()
	g := gatewayOf(t)
	id := idOf(t, g.pid)
	if len(gatewayGroups(t, id)) == 0 {
		t.Error("the gateway has no group")
	}
	if err := unix.Kill(c.Process.Pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	c.Wait()
	eventually(t, 5*time.Second, "end of the gateway", func() bool { return len(gateways()) == 0 })
	if out := tool(t, "gc"); out.exit != 0 {
		t.Errorf("gc: %s", out.stderr)
	}
	if left := gatewayGroups(t, id); len(left) > 0 {
		t.Errorf("gc left: %v", left)
	}
}

// cgroupDir is the folder of a controller's group by the text of /proc/PID/cgroup.
func cgroupDir(t *testing.T, text, controller string) string {
	t.Helper()
	v2 := hostcaps.Cgroups() == hostcaps.CgroupV2
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		if v2 && f[0] == "0" {
			return "/sys/fs/cgroup" + groupOf(f[2])
		}
		for _, c := range strings.Split(f[1], ",") {
			if !v2 && c == controller {
				return "/sys/fs/cgroup/" + controller + f[2]
			}
		}
	}
	return ""
}

// groupOf is the run's or gateway's group, by that of its processes: on v2 they are in a leaf of it.
func groupOf(path string) string { return strings.TrimSuffix(path, "/agent") }

func readAny(t *testing.T, dir string, names ...string) string {
	t.Helper()
	for _, n := range names {
		if b, err := os.ReadFile(filepath.Join(dir, n)); err == nil {
			return string(bytes.TrimSpace(b))
		}
	}
	t.Fatalf("none of %v is in %s", names, dir)
	return ""
}

// idOf is the run's id by its gateway's supervisor.
func idOf(t *testing.T, gateway int) string {
	t.Helper()
	names, err := os.ReadDir(filepath.Join(runDir, "sandboxes"))
	if err != nil || len(names) != 1 {
		t.Fatalf("runs: %v, %v; want the one of gateway %d", names, err, gateway)
	}
	return names[0].Name()
}

func gatewayGroups(t *testing.T, id string) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"/sys/fs/cgroup/agentrun/", "/sys/fs/cgroup/*/agentrun/"} {
		m, err := filepath.Glob(pattern + id + "-gateway")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m...)
	}
	return all
}

// processTime is user and system time of a process, by /proc/PID/stat.
func processTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	var user, system int64
	if _, err := fmt.Sscan(f[11]+" "+f[12], &user, &system); err != nil {
		t.Fatal(err)
	}
	return time.Duration(user+system) * (time.Second / 100)
}
