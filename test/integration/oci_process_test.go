// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

type bundleChange = func(c, process map[string]any)

func (e ociHost) changed(change bundleChange, command ...string) string {
	e.t.Helper()
	return e.bundle(func(c map[string]any) { change(c, c["process"].(map[string]any)) }, command...)
}

func rlimit(kind string, soft, hard uint64) object {
	return object{"type": "RLIMIT_" + kind, "soft": soft, "hard": hard}
}

// M-3: of a bundle's limits and the ring's the stricter hold, for further commands too; what engines ask for without being asked breaks nothing.
func TestOCIProcess(t *testing.T) {
	e := newEngine(t, "agentrun-ring2")
	const limits = "cat /proc/self/limits; echo oom $(cat /proc/self/oom_score_adj); echo name $(busybox hostname) $(busybox env | busybox grep ^HOSTNAME)"
	plain := e.oci("run", "--bundle", e.bundle(nil, "/bin/sh", "-c", limits), "box").stdout
	line := func(text, begin string) string {
		for l := range strings.Lines(text) {
			if rest, ok := strings.CutPrefix(l, begin); ok {
				return strings.Join(strings.Fields(rest), " ")
			}
		}
		return ""
	}
	if line(plain, "oom") != "600" || line(plain, "name") != "sandbox" || line(plain, "Max open files") == "" {
		t.Fatalf("without any: %s", plain)
	}
	files, cores := line(plain, "Max open files"), line(plain, "Max core file size")
	of := func(limits ...object) bundleChange {
		return func(_, p map[string]any) { p["rlimits"] = limits }
	}
	oom := func(n int) bundleChange { return func(_, p map[string]any) { p["oomScoreAdj"] = n } }
	for _, row := range []struct {
		name   string
		change bundleChange
		begin  string
		want   string
	}{
		{"less", of(rlimit("NOFILE", 100, 200)), "Max open files", "100 200 files"},
		{"as engines ask for", of(rlimit("NOFILE", 1<<20, 1<<20), rlimit("NPROC", 1<<22, 1<<22)), "Max open files", files},
		{"without an end", of(rlimit("NOFILE", 1<<64-1, 1<<64-1), rlimit("CORE", 1<<64-1, 1<<64-1)), "Max core file size", cores},
		{"a soft one of less", of(rlimit("NOFILE", 64, 1<<20)), "Max open files", "64 " + strings.Fields(files)[1] + " files"},
		{"one that no ring has", of(rlimit("CPU", 100, 200)), "Max cpu time", "100 200 seconds"},
		{"processes", of(rlimit("NPROC", 50, 60)), "Max processes", "50 60 processes"},
		{"first for the out-of-memory killer", oom(1000), "oom", "1000"},
		{"last for it", oom(-1000), "oom", "600"},
		{"a name", func(c, p map[string]any) {
			c["hostname"], p["env"] = "build-7", []string{"HOSTNAME=build-7", "PATH=/bin"}
		}, "name", "build-7 HOSTNAME=build-7"},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := e.oci("run", "--bundle", e.changed(row.change, "/bin/sh", "-c", limits), "box")
			if got := line(r.stdout, row.begin); r.exit != 0 || got != row.want {
				t.Errorf("exit %d: got %q, want %q\n%s", r.exit, got, row.want, r.stderr)
			}
		})
	}
	for _, row := range []struct {
		name   string
		change bundleChange
		want   string
	}{
		{"no limit", of(rlimit("NOTHING", 1, 1)), `process.rlimits: "RLIMIT_NOTHING" is no limit`},
		{"soft above hard", of(rlimit("NOFILE", 2, 1)), "process.rlimits: RLIMIT_NOFILE: the soft limit 2 is above the hard one, 1"},
		{"twice", of(rlimit("NOFILE", 9, 9), rlimit("NOFILE", 100, 100)), "process.rlimits: RLIMIT_NOFILE is there twice"},
		{"too few to begin", of(rlimit("NOFILE", 0, 0)), ""},
		{"a score out of range", oom(1001), "process.oomScoreAdj: 1001"},
		{"a name of two lines", func(c, _ map[string]any) { c["hostname"] = "x\n169.254.169.254 web" }, "hostname:"},
		{"a long name", func(c, _ map[string]any) { c["hostname"] = strings.Repeat("x", 65) }, "hostname:"},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := e.oci("run", "--bundle", e.changed(row.change, "/bin/sh", "-c", "echo ran"), "box")
			if r.exit == 0 || strings.Contains(r.stdout, "ran") || !strings.Contains(r.stderr, row.want) {
				t.Errorf("exit %d %q %q, want %q", r.exit, r.stdout, r.stderr, row.want)
			}
		})
	}
	e.good("create", "--bundle", e.changed(func(c, p map[string]any) {
		c["hostname"], p["oomScoreAdj"], p["rlimits"] = "build-7", 700, []object{rlimit("NOFILE", 100, 200)}
	}, "/bin/sleep", "1000"), "box")
	t.Cleanup(func() { e.oci("delete", "--force", "box") })
	e.good("start", "box")
	got := e.good("exec", "box", "/bin/sh", "-c", limits)
	if line(got, "oom") != "700" || line(got, "name") != "build-7" || line(got, "Max open files") != "100 200 files" {
		t.Errorf("a further command: %s", got)
	}
	e.good("delete", "--force", "box")
	noAgents(t)
}

// THREATS "engines and images": the stricter of bundle and ring holds for the root, too, which ring 1 may write.
func TestOCIReadOnlyRoot(t *testing.T) {
	e := newEngine(t, "agentrun-ring1")
	for readonly, want := range map[bool]string{false: "written\n", true: "refused\n"} {
		root := func(c, _ map[string]any) { c["root"] = object{"path": "rootfs", "readonly": readonly} }
		r := e.oci("run", "--bundle", e.changed(root, "/bin/sh", "-c", "(: >/bin/x) 2>/dev/null && echo written || echo refused"), "box")
		if r.exit != 0 || r.stdout != want {
			t.Errorf("readonly %v: exit %d %q %s, want %q", readonly, r.exit, r.stdout, r.stderr, want)
		}
	}
	noAgents(t)
}

// THREATS "engines and images": a container's variables, secrets among them, and those of a further command stand in no command line, which
// each user of the host may read.
func TestOCIVariablesStayHidden(t *testing.T) {
	e := newEngine(t, "agentrun-ring2")
	const first, second = "first-4b0c8f7a", "second-4b0c8f7a"
	e.good("create", "--bundle", e.changed(func(_, p map[string]any) {
		p["env"] = []string{"PATH=/bin", "TOKEN=" + first, "LINES=1\n2", "BIG=" + strings.Repeat("x", 100<<10), "HOME=/root"}
	}, "/bin/sh", "-c", `echo "$TOKEN $LINES ${#BIG} $HOME" >/tmp/sandbox/said; exec sleep 1000`), "box")
	t.Cleanup(func() { e.oci("delete", "--force", "box") })
	e.good("start", "box")
	eventually(t, hang(), "it has all of them, and a home of its own", func() bool {
		return e.oci("exec", "box", "/bin/cat", "/tmp/sandbox/said").stdout == first+" 1\n2 102400 /tmp/sandbox/home\n"
	})
	process := func(command ...string) string {
		text, err := json.Marshal(object{"args": command, "cwd": "/", "env": []string{"PATH=/bin", "TOKEN=" + second}})
		if err != nil {
			t.Fatal(err)
		}
		at := filepath.Join(t.TempDir(), "process.json")
		write(t, at, string(text), 0o600)
		return at
	}
	e.good("exec", "--detach", "--process", process("/bin/sleep", "1000"), "box")
	if got := e.good("exec", "--process", process("/bin/sh", "-c", "echo $TOKEN"), "box"); got != second+"\n" {
		t.Errorf("a further command has %q", got)
	}
	if got := e.good("exec", "--env", "TOKEN=third", "box", "/bin/sh", "-c", "echo $TOKEN"); got != "third\n" {
		t.Errorf("a further command of flags has %q", got)
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range lines {
		text, _ := os.ReadFile(at) // of one that has ended, nothing
		if line := string(text); strings.Contains(line, first) || strings.Contains(line, second) {
			t.Errorf("any user reads in %s: %q", at, line)
		}
	}
	for name, env := range map[string]string{"zero byte": "A=1\x00B=2"} {
		if r := e.oci("create", "--bundle", e.changed(func(_, p map[string]any) { p["env"] = []string{env} }, "/bin/true"), "bad"); r.exit == 0 || !strings.Contains(r.stderr, name) {
			t.Errorf("%s: exit %d %s", name, r.exit, r.stderr)
		}
	}
	e.good("delete", "--force", "box")
	noAgents(t)
}

// M-23: SIGSTOP stops all of a container, on record, and SIGCONT lets it go on, but nothing that was paused by another word.
func TestOCIStopAndContinue(t *testing.T) {
	e := newEngine(t, "agentrun-ring2")
	e.good("create", "--bundle", e.bundle(nil, "/bin/sh", "-c", "(while :; do echo child; sleep 0.05; done) & while :; do sleep 0.05; done"), "box")
	t.Cleanup(func() { e.oci("delete", "--force", "box") })
	e.good("start", "box")
	for _, row := range []struct{ verb, signal, want string }{
		{"kill", "CONT", "running"}, {"kill", "STOP", "paused"}, {"kill", "19", "paused"}, {"kill", "SIGCONT", "running"}, {"kill", "CONT", "running"},
		{"pause", "", "paused"}, {"kill", "CONT", "paused"}, {"resume", "", "running"},
		{"kill", "STOP", "paused"}, {"resume", "", "running"}, {"kill", "CONT", "running"},
		{"kill", "STOP", "paused"}, {"pause", "", "paused"}, {"kill", "CONT", "paused"}, {"resume", "", "running"},
	} {
		args := []string{row.verb, "box"}
		if row.signal != "" {
			args = append(args, row.signal)
		}
		if r := e.oci(args...); r.exit != 0 {
			t.Errorf("%v: exit %d %s", args, r.exit, r.stderr)
		}
		if s := e.status("box"); s.Status != row.want {
			t.Errorf("%v: %s, want %s", args, s.Status, row.want)
		}
	}
	e.good("kill", "box", "STOP")
	var got []string
	for _, entry := range e.audit() {
		if entry.Kind == "sandbox_pause" {
			got = append(got, fmt.Sprint(entry.Data["cause"], " ", entry.Data["by"], " ", entry.Data["paused"]))
		}
	}
	want := append(slices.Repeat([]string{"freeze uid:0 true", "thaw uid:0 false"}, 4), "freeze uid:0 true")
	if !slices.Equal(got, want) {
		t.Errorf("on record: %q, want %q", got, want)
	}
	e.good("kill", "box", "KILL")
	eventually(t, hang(), "it has stopped", func() bool { return e.status("box").Status == "stopped" })
	e.good("delete", "box")
	noAgents(t)
}

// A container may be called as a word of the command line's.
func TestOCINamesThatAreWords(t *testing.T) {
	e := newEngine(t, "agentrun-ring2")
	for _, name := range []string{"h", "help"} {
		if r := e.oci("kill", name, "KILL"); r.exit == 0 {
			t.Errorf("kill of a container %s that there isn't: %s", name, r.stdout)
		}
	}
}
