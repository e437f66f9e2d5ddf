// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// agentrun as an OCI runtime (docs/engines.md), by the command line that engines use. make test-engines tries the engines themselves.

// ociHost is what an engine has: a folder for what the runtime knows, and one for bundles.
type ociHost struct {
	place
	root, handler string
}

func newEngine(t *testing.T, handler string) ociHost {
	t.Helper()
	needProgram(t, "busybox")
	e := ociHost{newPlace(t), t.TempDir(), filepath.Join(t.TempDir(), handler)}
	if err := os.Symlink(filepath.Join(filepath.Dir(agentrun), "agentrun-oci"), e.handler); err != nil {
		t.Fatal(err)
	}
	return e
}

// oci runs a command of the runtime. Its own streams become the container's, so they are files.
func (e ociHost) oci(args ...string) result {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang())
	defer cancel()
	cmd := exec.CommandContext(ctx, e.handler, append([]string{"--root", e.root}, args...)...)
	cmd.Env = append(os.Environ(), "AGENTRUN_STATE_DIR="+e.state, "AGENTRUN_RUN_DIR="+e.run)
	out, err := os.CreateTemp(e.t.TempDir(), "out")
	if err != nil {
		e.t.Fatal(err)
	}
	defer out.Close()
	errs, err := os.CreateTemp(e.t.TempDir(), "err")
	if err != nil {
		e.t.Fatal(err)
	}
	defer errs.Close()
	cmd.Stdout, cmd.Stderr = out, errs
	_ = cmd.Run()
	var r result
	r.exit = cmd.ProcessState.ExitCode()
	b, _ := os.ReadFile(out.Name())
	r.stdout = string(b)
	b, _ = os.ReadFile(errs.Name())
	r.stderr = string(b)
	return r
}

func (e ociHost) good(args ...string) string {
	e.t.Helper()
	r := e.oci(args...)
	if r.exit != 0 {
		e.t.Fatalf("agentrun-oci %v: exit %d\n%s%s", args, r.exit, r.stdout, r.stderr)
	}
	return r.stdout
}

func (e ociHost) status(id string) (s struct {
	Status string
	PID    int
},
) {
	e.t.Helper()
	if err := json.Unmarshal([]byte(e.good("state", id)), &s); err != nil {
		e.t.Fatal(err)
	}
	return s
}

// bundle writes one with a root of busybox; change alters its configuration.
func (e ociHost) bundle(change func(c map[string]any), command ...string) string {
	e.t.Helper()
	dir := e.t.TempDir()
	for _, d := range []string{"bin", "etc", "proc", "dev", "tmp", "run", "workspace"} {
		if err := os.MkdirAll(filepath.Join(dir, "rootfs", d), 0o755); err != nil {
			e.t.Fatal(err)
		}
	}
	program, err := os.ReadFile("/bin/busybox")
	if err != nil {
		e.t.Fatal(err)
	}
	write(e.t, filepath.Join(dir, "rootfs/bin/busybox"), string(program), 0o755)
	for _, name := range []string{"sh", "sleep", "id", "cat", "ls", "true"} {
		if err := os.Symlink("busybox", filepath.Join(dir, "rootfs/bin", name)); err != nil {
			e.t.Fatal(err)
		}
	}
	namespaces := []map[string]string{}
	for _, n := range []string{"pid", "network", "ipc", "uts", "mount", "cgroup"} {
		namespaces = append(namespaces, map[string]string{"type": n})
	}
	c := map[string]any{
		"ociVersion": "1.0.2", "process": map[string]any{"args": command, "cwd": "/", "env": []string{"FOO=bar", "PATH=/bin"}, "user": map[string]int{"uid": 0, "gid": 0}},
		"root": map[string]any{"path": "rootfs"}, "linux": map[string]any{"namespaces": namespaces, "maskedPaths": []string{"/proc/kcore"}},
	}
	if change != nil {
		change(c)
	}
	text, err := json.Marshal(c)
	if err != nil {
		e.t.Fatal(err)
	}
	write(e.t, filepath.Join(dir, "config.json"), string(text), 0o600)
	return dir
}

// M-1, M-2, M-7, M-22: a container is a run: in its ring, with the verbs of live runs, in a network that the engine gave its supervisor.
func TestOCIContainer(t *testing.T) {
	e := newEngine(t, "agentrun-ring2")
	bundle := e.bundle(nil, "/bin/sh", "-c", "trap 'exit 9' TERM; echo $FOO; while :; do sleep 0.1; done")
	pidFile := filepath.Join(t.TempDir(), "pid")
	e.good("create", "--bundle", bundle, "--pid-file", pidFile, "box")
	t.Cleanup(func() { e.oci("delete", "--force", "box") })
	if r := e.oci("create", "--bundle", bundle, "box"); r.exit == 0 || !strings.Contains(r.stderr, "exists already") {
		t.Errorf("a second one: exit %d %s", r.exit, r.stderr)
	}
	text, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	pid, _ := strconv.Atoi(string(text))
	if s := e.status("box"); s.Status != "created" || s.PID != pid {
		t.Errorf("created: %+v, want pid %d", s, pid)
	}
	netns := func(pid int) string { at, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid)); return at }
	if own, _ := os.Readlink("/proc/self/ns/net"); netns(pid) == own || netns(pid) == "" {
		t.Error("the supervisor is in the host's network namespace")
	}
	e.good("start", "box")
	if r := e.oci("start", "box"); r.exit == 0 {
		t.Error("a second start")
	}
	eventually(t, hang(), "it runs", func() bool { return e.status("box").Status == "running" && len(asked[[]box](e.place, "ps")) == 1 })
	list := asked[[]box](e.place, "ps")
	if list[0].Ring != 2 || netns(list[0].PID) == netns(pid) {
		t.Errorf("the run: %+v; the agent is in its supervisor's network namespace: %t", list[0], netns(list[0].PID) == netns(pid))
	}
	if got := e.good("exec", "box", "/bin/sh", "-c", "id -u; ls /run/agentrun; cat /proc/1/comm"); !strings.HasPrefix(got, "1000\ntools.sock\n") {
		t.Errorf("exec: %q", got)
	}
	for cwd, want := range map[string]string{"/tmp": "/tmp\n", "/bin": "/bin\n", "/run/none": "/\n"} {
		if got := e.good("exec", "--cwd", cwd, "box", "/bin/busybox", "pwd"); got != want {
			t.Errorf("exec --cwd %s: %q, want %q", cwd, got, want)
		}
	}
	if r := e.oci("exec", "--preserve-fds", "2", "box", "/bin/true"); r.exit == 0 || !strings.Contains(r.stderr, "--preserve-fds") {
		t.Errorf("exec --preserve-fds: exit %d %s", r.exit, r.stderr)
	}
	if r := e.oci("exec", "box", "/bin/sh", "-c", "exit 5"); r.exit != 5 {
		t.Errorf("exec's exit code: %d %s", r.exit, r.stderr)
	}
	if got := e.good("ps", "--format", "json", "box"); !strings.Contains(got, strconv.Itoa(list[0].PID)) {
		t.Errorf("ps: %s, want %d in it", got, list[0].PID)
	}
	e.good("pause", "box")
	if s := e.status("box"); s.Status != "paused" {
		t.Errorf("paused: %+v", s)
	}
	e.good("resume", "box")
	if got := e.good("events", "--stats", "box"); !strings.Contains(got, `"memory"`) {
		t.Errorf("events: %s", got)
	}
	if r := e.oci("delete", "box"); r.exit == 0 || !strings.Contains(r.stderr, "is running") {
		t.Errorf("delete of one that runs: exit %d %s", r.exit, r.stderr)
	}
	e.good("kill", "box", "TERM")
	eventually(t, hang(), "it has stopped", func() bool { return e.status("box").Status == "stopped" })
	e.good("delete", "box")
	if r := e.oci("state", "box"); r.exit == 0 || !strings.Contains(r.stderr, "does not exist") {
		t.Errorf("state of none: exit %d %s", r.exit, r.stderr)
	}
	if left, _ := os.ReadDir(e.root); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	noAgents(t)
}

// M-5: a container that is run, that ends by itself, and that is killed in each of its states leaves nothing.
func TestOCIEnds(t *testing.T) {
	e := newEngine(t, "agentrun-oci")
	if r := e.oci("run", "--bundle", e.bundle(nil, "/bin/busybox", "sh", "-c", "exit 7"), "ends"); r.exit != 7 {
		t.Errorf("run: exit %d %s%s", r.exit, r.stdout, r.stderr)
	}
	for _, started := range []bool{false, true} {
		for how, end := range map[string]func(pid int){
			"delete --force": func(int) { e.good("delete", "--force", "box") },
			"kill KILL":      func(int) { e.good("kill", "box", "KILL") },
			"its supervisor": func(pid int) { _ = syscall.Kill(pid, syscall.SIGKILL) },
		} {
			e.good("create", "--bundle", e.bundle(nil, "/bin/sleep", "1000"), "box")
			if started {
				e.good("start", "box")
				eventually(t, hang(), "it runs", func() bool { return len(asked[[]box](e.place, "ps")) == 1 })
			}
			end(e.status("box").PID)
			if how != "delete --force" {
				eventually(t, hang(), "it has stopped", func() bool { return e.status("box").Status == "stopped" })
				e.good("delete", "box")
			}
			noAgents(t)
			e.must("gc")
			if left, _ := os.ReadDir(e.root); len(left) > 0 {
				t.Errorf("%s, started %t: left %v", how, started, left)
			}
		}
	}
}

// THREATS "engines and images": containers whose ids begin or end alike are not taken for each other.
func TestOCINamesAreOwn(t *testing.T) {
	e := newEngine(t, "agentrun-ring2")
	long := strings.Repeat("tenant-", 10)
	for _, pair := range [][2]string{{long + "a", long + "b"}, {"box", "_box"}} {
		for _, id := range pair {
			e.good("create", "--bundle", e.bundle(nil, "/bin/sleep", "1000"), id)
			t.Cleanup(func() { e.oci("delete", "--force", id) })
			e.good("start", id)
		}
		eventually(t, hang(), "both run", func() bool { return len(asked[[]box](e.place, "ps")) == 2 })
		e.good("exec", pair[0], "/bin/true")
		began := time.Now()
		e.good("kill", pair[0], "KILL")
		if took := time.Since(began); e.status(pair[0]).Status != "stopped" || e.status(pair[1]).Status != "running" || took > 4*time.Second {
			t.Errorf("after %v: %s is %s, %s is %s", took, pair[0], e.status(pair[0]).Status, pair[1], e.status(pair[1]).Status)
		}
		e.good("delete", "--force", pair[1])
	}
	t.Run("of another engine", func(t *testing.T) {
		other := e
		other.root = t.TempDir()
		for _, of := range []ociHost{e, other} {
			of.good("create", "--bundle", of.bundle(nil, "/bin/sleep", "1000"), "web")
			t.Cleanup(func() { of.oci("delete", "--force", "web") })
			of.good("start", "web")
		}
		eventually(t, hang(), "both run", func() bool { return len(asked[[]box](e.place, "ps")) == 2 })
		e.good("exec", "web", "/bin/true")
		e.good("pause", "web")
		if one, two := e.status("web").Status, other.status("web").Status; one != "paused" || two != "running" {
			t.Errorf("one was paused: it is %s, the other %s", one, two)
		}
		began := time.Now()
		e.good("kill", "web", "KILL")
		if took := time.Since(began); e.status("web").Status != "stopped" || other.status("web").Status != "running" || took > 4*time.Second {
			t.Errorf("one was killed: after %v it is %s, the other %s", took, e.status("web").Status, other.status("web").Status)
		}
		for _, words := range [][]string{{"pause", "web"}, {"resume", "web"}, {"ps", "web"}, {"update", "web"}} {
			if words[0] == "update" {
				at := filepath.Join(t.TempDir(), "resources")
				write(t, at, `{"pids":{"limit":2}}`, 0o600)
				words = append([]string{"update", "--resources", at}, words[1:]...)
			}
			if r := e.oci(words...); r.exit == 0 && words[0] != "ps" || r.stdout != "" || other.status("web").Status != "running" {
				t.Errorf("%v of one that has ended: exit %d %s, the other is %s", words, r.exit, r.stdout, other.status("web").Status)
			}
		}
		other.good("delete", "--force", "web")
	})
}

// THREATS "paths the host follows": a folder that others may write says nothing of containers: whom to signal, and what to run at their end.
func TestOCIFolderOfOthers(t *testing.T) {
	e := newEngine(t, "agentrun-ring2")
	for what, change := range map[string]func() error{
		"another's":     func() error { return os.Chown(e.root, 65534, 65534) },
		"all may write": func() error { return errors.Join(os.Chown(e.root, 0, 0), os.Chmod(e.root, 0o777)) },
	} {
		victim := exec.Command("sleep", "1000")
		if err := victim.Start(); err != nil {
			t.Fatal(err)
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", victim.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		planted := fmt.Sprintf(`{"id":"x","pid":%d,"start":%q,"pod":true,"begun":true}`, victim.Process.Pid, strings.Fields(string(stat))[21])
		if err := os.MkdirAll(filepath.Join(e.root, "x"), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(e.root, "x", "state.json"), planted, 0o600)
		if err := change(); err != nil {
			t.Fatal(err)
		}
		for _, words := range [][]string{{"kill", "x", "KILL"}, {"delete", "--force", "x"}, {"create", "--bundle", e.bundle(nil, "/bin/true"), "y"}} {
			if r := e.oci(words...); r.exit == 0 || !strings.Contains(r.stderr, "others may write") {
				t.Errorf("%s: %v: exit %d %s", what, words, r.exit, r.stderr)
			}
		}
		if err := victim.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if _ = victim.Wait(); victim.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM { //nolint:forcetypeassert // Linux
			t.Errorf("%s: a process that is no container's was ended: %v", what, victim.ProcessState)
		}
	}
}

// THREATS "engines and images": what a bundle demands beyond its ring is refused by name, and nothing is started.
func TestOCIRefusesWhatNoRingGives(t *testing.T) {
	e := newEngine(t, "agentrun-ring2")
	linux := func(c map[string]any) map[string]any { return c["linux"].(map[string]any) }
	process := func(c map[string]any) map[string]any { return c["process"].(map[string]any) }
	for name, tc := range map[string]struct {
		change func(map[string]any)
		want   string
	}{
		"capability": {func(c map[string]any) {
			process(c)["capabilities"] = map[string][]string{"effective": {"CAP_SYS_ADMIN"}}
		}, "CAP_SYS_ADMIN"},
		"host namespaces": {func(c map[string]any) { linux(c)["namespaces"] = []any{} }, "the host's network namespace"},
		"host network by path": {func(c map[string]any) {
			linux(c)["namespaces"].([]map[string]string)[1]["path"] = "/proc/self/ns/net"
		}, "the host's network namespace"},
		"devices":  {func(c map[string]any) { linux(c)["devices"] = []map[string]string{{"path": "/dev/mem", "type": "c"}} }, "/dev/mem"},
		"unmasked": {func(c map[string]any) { delete(linux(c), "maskedPaths") }, "unmasked"},
		"host folder": {func(c map[string]any) {
			c["mounts"] = []map[string]any{{"destination": "/x", "source": "/etc", "type": "bind"}}
		}, `the host's "/etc"`},
		"ring":         {func(c map[string]any) { c["annotations"] = map[string]string{"agentrun.ring": "1"} }, "above the handler's ring"},
		"no command":   {func(c map[string]any) { process(c)["args"] = []string{} }, "process.args"},
		"not there":    {func(c map[string]any) { process(c)["args"] = []string{"/bin/none"} }, "no such file or directory"},
		"no such name": {func(c map[string]any) { process(c)["args"] = []string{"none"} }, "executable file not found in $PATH"},
		"host folder in /tmp": {func(c map[string]any) {
			c["mounts"] = []map[string]any{{"destination": "/tmp/x", "source": "/etc", "type": "bind"}}
		}, `the host's "/etc" on "/tmp/x", where the sandbox has its own`},
		"the host's /": {func(c map[string]any) { c["root"] = map[string]any{"path": "/"} }, "--rootfs"},
		"a terminal":   {func(c map[string]any) { process(c)["terminal"] = true }, "--console-socket"},
		"more memory": {func(c map[string]any) {
			linux(c)["resources"] = map[string]any{"memory": map[string]any{"limit": int64(1) << 50}}
		}, "outside the range"},
	} {
		r := e.oci("create", "--bundle", e.bundle(tc.change, "/bin/true"), "box")
		if r.exit == 0 || !strings.Contains(r.stderr, tc.want) {
			t.Errorf("%s: exit %d %s, want %q", name, r.exit, r.stderr, tc.want)
		}
	}
	for _, args := range [][]string{{"create", "--bundle", e.bundle(nil, "/bin/true"), "../up"}, {"state", ".."}, {"delete", "a/b"}, {"--systemd-cgroup", "state", "x"}, {"start", "none"}} {
		if r := e.oci(args...); r.exit == 0 {
			t.Errorf("%v is taken", args)
		}
	}
	if left, _ := os.ReadDir(e.root); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	noAgents(t)
}

// THREATS "takeover": a folder that was looked at, and is a link by the time it is mounted, is refused.
func TestOCIFoldersAreNoLinks(t *testing.T) {
	e := newEngine(t, "agentrun-ring2")
	dir := t.TempDir()
	if err := os.Symlink("/usr/share", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, hold := range []bool{false, true} {
		args := []string{"exec", "--no-daemon", "--no-gateway", "--ring", "2", "--ro-bind", dir + "/link:/mnt", "--", "/bin/true"}
		if hold { // as agentrun-oci asks for it
			args = append([]string{"exec", "--hold", filepath.Join(dir, "begin.sock")}, args[1:]...)
		}
		if r := e.do(args...); (r.exit == 0) == hold || hold && !strings.Contains(r.stderr, "leads to /usr/share") {
			t.Errorf("held %t: exit %d %s", hold, r.exit, r.stderr)
		}
	}
}

// Hooks of the host's are run in its namespaces, told of the container, and a failing one ends it.
func TestOCIHooks(t *testing.T) {
	e := newEngine(t, "agentrun-ring2")
	at := filepath.Join(t.TempDir(), "said")
	hook := func(kind, script string) map[string]any {
		return map[string]any{kind: []map[string]any{{"path": "/bin/sh", "args": []string{"sh", "-c", script}, "env": []string{"PATH=/usr/bin:/bin"}}}}
	}
	bundle := e.bundle(func(c map[string]any) {
		c["hooks"] = hook("createRuntime", "cat > "+at+"; readlink /proc/self/ns/net >> "+at)
	}, "/bin/true")
	e.good("create", "--bundle", bundle, "box")
	own, _ := os.Readlink("/proc/self/ns/net")
	if b, _ := os.ReadFile(at); !bytes.Contains(b, []byte(`"id":"box"`)) || !bytes.Contains(b, []byte(own)) {
		t.Errorf("the hook heard %s, and runs in another network namespace than %s", b, own)
	}
	e.good("delete", "--force", "box")
	if r := e.oci("create", "--bundle", e.bundle(func(c map[string]any) { c["hooks"] = hook("prestart", "echo no >&2; exit 1") }, "/bin/true"), "box"); r.exit == 0 || !strings.Contains(r.stderr, "prestart hook") {
		t.Errorf("a hook that fails: exit %d %s", r.exit, r.stderr)
	}
	// What is written into the bundle after its creation is nobody's word.
	changed := e.bundle(func(c map[string]any) { c["hooks"] = hook("poststart", "echo created >> "+at) }, "/bin/true")
	e.good("create", "--bundle", changed, "late")
	text := `{"ociVersion": "1.0.2", "process": {"args": ["x"]}, "root": {"path": "/"}, "linux": {}, "hooks": {"poststop": [{"path": "/bin/sh", "args": ["sh", "-c", "echo changed >> ` + at + `"]}]}}`
	write(t, filepath.Join(changed, "config.json"), text, 0o600)
	e.good("start", "late")
	e.good("delete", "--force", "late")
	if b, _ := os.ReadFile(at); !bytes.Contains(b, []byte("created\n")) || bytes.Contains(b, []byte("changed")) {
		t.Errorf("hooks of a bundle that was changed: %s", b)
	}
	// A runtime that is killed before it has said that there is a container leaves none that waits.
	killed := e.bundle(func(c map[string]any) { c["hooks"] = hook("createRuntime", "kill -9 $PPID") }, "/bin/true")
	if r := e.oci("create", "--bundle", killed, "gone"); r.exit == 0 {
		t.Error("it wasn't killed")
	}
	eventually(t, hang(), "no run waits", func() bool { return len(asked[[]box](e.place, "ps")) == 0 })
	e.good("delete", "--force", "gone")
	eventually(t, 30*time.Second, "nothing is left", func() bool { left, _ := os.ReadDir(e.root); return len(left) == 0 })
	noAgents(t)
}

// console is an engine's socket that terminals are given to. What is written to them is dropped.
func (e ociHost) console() string {
	e.t.Helper()
	at := filepath.Join(e.t.TempDir(), "console")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: at, Net: "unix"})
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				rights := make([]byte, 64)
				_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 64), rights)
				if err != nil {
					return
				}
				messages, _ := syscall.ParseSocketControlMessage(rights[:n])
				for _, m := range messages {
					fds, _ := syscall.ParseUnixRights(&m)
					for _, fd := range fds {
						master := os.NewFile(uintptr(fd), "master")
						_, _ = io.Copy(io.Discard, master)
						master.Close()
					}
				}
			}()
		}
	}()
	return at
}

// M-22: what engines and people read of a container, in runc's words and order.
func TestOCIWords(t *testing.T) {
	e := newEngine(t, "agentrun-ring2")
	bundle := e.bundle(nil, "/bin/sleep", "100")
	e.good("run", "--detach", "--bundle", bundle, "box")
	t.Cleanup(func() { e.oci("delete", "--force", "box") })
	pid := e.status("box").PID
	want := fmt.Sprintf(`{"ociVersion":"1.0.2","id":"box","pid":%d,"status":"running","bundle":%q,"rootfs":%q,"created":`, pid, bundle, bundle+"/rootfs")
	if got := e.good("state", "box"); !strings.HasPrefix(got, want) {
		t.Errorf("state: %s, want %s…", got, want)
	}
	if got := e.good("list", "--format", "json"); !strings.HasPrefix(got, "["+want) {
		t.Errorf("list: %s, want [%s…", got, want)
	}
	if got := e.good("list"); !slices.Equal(strings.Fields(got)[:7], strings.Fields("ID PID STATUS BUNDLE CREATED OWNER RING")) {
		t.Errorf("list: %s", got)
	}
	if got := e.good("events", "--stats", "box"); !strings.HasPrefix(got, `{"type":"stats","id":"box","data":{`) {
		t.Errorf("events: %s", got)
	}
	events := make(chan result)
	go func() { events <- e.oci("events", "--interval", "1h", "box") }()
	e.good("kill", "box", "0")
	if e.status("box").Status != "running" {
		t.Error("signal 0 isn't sent")
	}
	e.good("kill", "box", "KILL")
	if r := <-events; r.exit != 0 {
		t.Errorf("events of one that ends: exit %d %s", r.exit, r.stderr)
	}
	eventually(t, hang(), "it has stopped", func() bool { return e.status("box").Status == "stopped" })
	e.good("kill", "--all", "box", "0")
	for _, sig := range []string{"0", "KILL"} {
		if r := e.oci("kill", "box", sig); r.exit == 0 || !strings.Contains(r.stderr, "not running") {
			t.Errorf("kill %s of one that has stopped: exit %d %s", sig, r.exit, r.stderr)
		}
	}
	if r := e.oci("kill", "box", "FOO"); r.exit == 0 || !strings.Contains(r.stderr, "is no signal") {
		t.Errorf("kill FOO: exit %d %s", r.exit, r.stderr)
	}
	if r := e.oci("events", "box"); r.exit == 0 || !strings.Contains(r.stderr, "is stopped") {
		t.Errorf("events of one that has stopped: exit %d %s", r.exit, r.stderr)
	}
}

// M-22: real-time signals arrive: systemd in a container is stopped by SIGRTMIN+3.
func TestOCIRealTimeSignal(t *testing.T) {
	e := newEngine(t, "agentrun-ring2")
	bundle := e.bundle(nil, "/bin/sh", "-c", "trap 'exit 9' 37; : >/tmp/ready; while :; do sleep 0.05; done")
	ended := make(chan result)
	go func() { ended <- e.oci("run", "--bundle", bundle, "box") }()
	eventually(t, hang(), "it is ready", func() bool { return e.oci("exec", "box", "/bin/ls", "/tmp/ready").exit == 0 })
	e.good("kill", "box", "37")
	if r := <-ended; r.exit != 9 {
		t.Errorf("exit %d %s", r.exit, r.stderr)
	}
}

// M-22: before the start no program has asked for a signal: those that it would not hear leave the container as it is, the others end it.
func TestOCISignalsBeforeTheStart(t *testing.T) {
	e := newEngine(t, "agentrun-ring2")
	bundle := e.bundle(nil, "/bin/true")
	e.good("create", "--bundle", bundle, "box")
	for _, sig := range []string{"WINCH", "CHLD", "CONT", "URG", "0"} {
		e.good("kill", "box", sig)
	}
	e.good("start", "box")
	eventually(t, hang(), "it has ended by itself", func() bool { return e.status("box").Status == "stopped" })
	e.good("delete", "box")
	e.good("create", "--bundle", bundle, "box")
	e.good("kill", "box", "USR1")
	eventually(t, hang(), "it has ended", func() bool { return e.status("box").Status == "stopped" })
	if r := e.oci("start", "box"); r.exit == 0 {
		t.Error("it was started")
	}
	e.good("delete", "box")
	noAgents(t)
}

// M-22: without an engine, the signals of run and exec are those of what they wait for, and nothing is left to nobody.
func TestOCISignalsOfTheCommand(t *testing.T) {
	e := newEngine(t, "agentrun-ring2")
	begin := func(args ...string) *exec.Cmd {
		cmd := exec.Command(e.handler, append([]string{"--root", e.root}, args...)...)
		cmd.Env = append(os.Environ(), "AGENTRUN_STATE_DIR="+e.state, "AGENTRUN_RUN_DIR="+e.run)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	ended := func(cmd *exec.Cmd) int {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		return cmd.ProcessState.ExitCode()
	}
	bundle := e.bundle(nil, "/bin/sh", "-c", "trap 'exit 9' TERM; : >/tmp/ready; while :; do sleep 0.05; done")
	run := begin("run", "--bundle", bundle, "box")
	t.Cleanup(func() { e.oci("delete", "--force", "box") })
	eventually(t, hang(), "it is ready", func() bool { return e.oci("exec", "box", "/bin/ls", "/tmp/ready").exit == 0 })
	entered := begin("exec", "box", "/bin/sh", "-c", ": >/tmp/entered; exec sleep 1000")
	eventually(t, hang(), "it has entered", func() bool { return e.oci("exec", "box", "/bin/ls", "/tmp/entered").exit == 0 })
	if code := ended(entered); code != 143 {
		t.Errorf("exec: exit %d, want 143", code)
	}
	eventually(t, hang(), "what has entered is gone", func() bool { return !strings.Contains(e.good("exec", "box", "/bin/busybox", "ps"), "sleep 1000") })
	if code := ended(run); code != 9 {
		t.Errorf("run: exit %d, want 9", code)
	}
	if r := e.oci("state", "box"); !strings.Contains(r.stderr, "does not exist") {
		t.Errorf("left: %s%s", r.stdout, r.stderr)
	}
	noAgents(t)
}

// M-22: without an engine, run and exec have the caller's terminal, or a new one that is passed on.
func TestOCITerminal(t *testing.T) {
	e := newEngine(t, "agentrun-ring2")
	bundle := e.bundle(func(c map[string]any) {
		process := c["process"].(map[string]any)
		process["terminal"], process["consoleSize"] = true, map[string]int{"height": 33, "width": 99}
	}, "/bin/busybox", "sh", "-c", "busybox tty; busybox stty size; exit 3")
	if r := e.oci("run", "--bundle", bundle, "box"); r.exit != 3 || r.stdout != "/dev/pts/0\n33 99\n" {
		t.Errorf("run: exit %d %q %s", r.exit, r.stdout, r.stderr)
	}
	bundle = e.bundle(nil, "/bin/sleep", "100")
	e.good("run", "--detach", "--bundle", bundle, "box")
	t.Cleanup(func() { e.oci("delete", "--force", "box") })
	if r := e.oci("exec", "--tty", "box", "/bin/sh", "-c", "test -t 1 && echo yes; exit 4"); r.exit != 4 || r.stdout != "yes\n" {
		t.Errorf("exec: exit %d %q %s", r.exit, r.stdout, r.stderr)
	}
	if r := e.oci("exec", "--tty", "--detach", "box", "/bin/true"); r.exit == 0 || !strings.Contains(r.stderr, "--console-socket") {
		t.Errorf("exec --tty --detach: exit %d %s", r.exit, r.stderr)
	}
}

// M-22: also with a terminal the engine is told why a container didn't start.
func TestOCITerminalRefused(t *testing.T) {
	e := newEngine(t, "agentrun-ring2")
	bundle := e.bundle(func(c map[string]any) {
		process := c["process"].(map[string]any)
		process["terminal"], process["cwd"] = true, "/shut"
	}, "/bin/true")
	if err := os.Mkdir(filepath.Join(bundle, "rootfs/shut"), 0o700); err != nil {
		t.Fatal(err)
	}
	r := e.oci("run", "--detach", "--bundle", bundle, "--console-socket", e.console(), "box")
	if r.exit == 0 || !strings.Contains(r.stderr, "enter the working directory: permission denied") {
		t.Errorf("exit %d %s", r.exit, r.stderr)
	}
	noAgents(t)
}
