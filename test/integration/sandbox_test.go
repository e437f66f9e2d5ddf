// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"agentrun/internal/agentuid"
	"agentrun/internal/fault"
)

// Sandboxes that outlive their runs (M-23): what is kept, what isn't, and whose it is meanwhile.

// kept makes a sandbox, which is removed with all it has at the end of the test.
func (p place) kept(name string, args ...string) {
	p.t.Helper()
	p.must(append([]string{"create", "--name", name, "--no-gateway"}, args...)...)
	p.t.Cleanup(func() {
		if p.do("rm", "-f", name); p.holds(name) {
			p.t.Errorf("sandbox %s is still there", name)
		}
	})
}

func (p place) folder(name string) string { return filepath.Join(p.state, "sandboxes", name) }

// layer is the folder with its own files.
func (p place) layer(name string) string { return keptLayer(p.t, p.state, name) }

func keptLayer(t *testing.T, state, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(state, "sandboxes", name, "sandbox.json"))
	var s struct{ Layer string }
	if err = errors.Join(err, json.Unmarshal(b, &s)); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(state, "layers", s.Layer)
}

func (p place) holds(name string) bool {
	_, err := os.Lstat(p.folder(name))
	return err == nil
}

// in runs a shell's words in a live run, which must end well.
func (p place) in(name, script string) string {
	p.t.Helper()
	r := p.inside(name, nil, "/bin/sh", "-c", script)
	if r.exit != 0 {
		p.t.Fatalf("in %s: %s: exit %d\n%s%s", name, script, r.exit, r.stdout, r.stderr)
	}
	return strings.TrimSpace(r.stdout)
}

// lives are the runs of a name.
func (p place) lives(name string) (ids []string) {
	p.t.Helper()
	var list []struct{ ID, Name, State string }
	if err := json.Unmarshal([]byte(p.do("ps", "--json").stdout), &list); err != nil {
		p.t.Fatal(err)
	}
	for _, s := range list {
		if s.Name == name && s.State == "running" {
			ids = append(ids, s.ID)
		}
	}
	return ids
}

func (p place) changes(name string) (all []string) {
	for _, e := range p.audit() {
		if e.Kind == "sandbox_life" && e.Data["name"] == name {
			all = append(all, fmt.Sprint(e.Data["change"]))
		}
	}
	return all
}

// wanted tells whether it is to run, now or again.
func (p place) wanted(name string) bool {
	p.t.Helper()
	b, err := os.ReadFile(filepath.Join(p.folder(name), "sandbox.json"))
	return err != nil || !strings.Contains(string(b), `"wanted":false`)
}

// M-23, M-2: HOME and the copies of the host's folders are kept from one start to the next; the host has nothing of them, and what was
// deleted stays deleted.
func TestM23KeptSandbox(t *testing.T) {
	p := newPlace(t)
	p.kept("dev", "--ring", "1")
	if got := p.do("ps", "--all").stdout; !strings.Contains(got, "stopped") {
		t.Errorf("ps --all: %s", got)
	}
	p.must("start", "dev")
	p.in("dev", `echo one > /usr/local/kept && chmod 755 /usr/local/kept && echo two > ~/kept && echo gone > /tmp/sandbox/scratch && rm -r /usr/share/common-licenses && mkdir /usr/lib/made`)
	if r := p.do("start", "dev"); r.exit == 0 || !strings.Contains(r.stderr, "it is running already") {
		t.Errorf("a second start: exit %d %s", r.exit, r.stderr)
	}
	p.must("stop", "dev")
	if live := p.lives("dev"); len(live) > 0 {
		t.Errorf("still live: %v", live)
	}
	for _, path := range []string{"/usr/local/kept", "/usr/lib/made"} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("the host has %s", path)
		}
	}
	p.must("start", "dev")
	got := p.in("dev", `cat /usr/local/kept ~/kept; stat -c '%a %u' /usr/local/kept; ls -d /usr/lib/made; ls /tmp/sandbox/scratch /usr/share/common-licenses 2>/dev/null; echo more >> /usr/local/kept && echo more >> ~/kept && echo writes`)
	if want := "one\ntwo\n755 1000\n/usr/lib/made\nwrites"; got != want {
		t.Errorf("after a second start %q, want %q", got, want)
	}
	p.must("stop", "dev")
	p.must("rename", "dev", "other")
	p.must("start", "other")
	if got := p.in("other", "cat /usr/local/kept"); got != "one\nmore" {
		t.Errorf("renamed: %q", got)
	}
	if r := p.do("rm", "other"); r.exit == 0 || !strings.Contains(r.stderr, "it is running") {
		t.Errorf("rm of one that runs: exit %d %s", r.exit, r.stderr)
	}
	p.must("rm", "-f", "other")
	if p.holds("other") {
		t.Error("still there")
	}
	if got, want := p.changes("dev"), []string{"created", "started", "stopped", "started", "stopped", "renamed"}; !slices.Equal(got, want) {
		t.Errorf("on record: %q, want %q", got, want)
	}
	if got, want := p.changes("other"), []string{"started", "removed"}; !slices.Equal(got, want) {
		t.Errorf("on record: %q, want %q", got, want)
	}
	noAgents(t)
}

// What is wrong with one name keeps stop and rm from none of the others.
func TestKeptVerbsOfSeveral(t *testing.T) {
	p := newPlace(t)
	for _, name := range []string{"one", "two"} {
		p.kept(name, "--ring", "3")
		p.must("start", name)
	}
	if got, want := p.must("stop", "one", "two", "one").stdout, "stopped one\nstopped two\none isn't running\n"; got != want {
		t.Errorf("stop said %q, want %q", got, want)
	}
	r := p.do("rm", "nosuch", "one", "../two", "two")
	if r.exit == 0 || r.stdout != "removed one\nremoved two\n" || !strings.Contains(r.stderr, `"nosuch"`) || !strings.Contains(r.stderr, `"../two"`) || strings.Count(r.stderr, "\n") > 2 {
		t.Errorf("rm: exit %d, %q, %q", r.exit, r.stdout, r.stderr)
	}
	if p.holds("one") || p.holds("two") {
		t.Error("one of them is still there")
	}
	if r := p.do("stop"); r.exit == 0 || !strings.Contains(r.stderr, "takes NAME…") {
		t.Errorf("without a name: exit %d, %q", r.exit, r.stderr)
	}
}

// M-1: another run may have the ids of a kept root's files when it is started again.
func TestM23KeptRootGetsOtherIDs(t *testing.T) {
	p := newPlace(t)
	p.overlaid("dev", "1", map[string]string{"w": "host"})
	p.must("start", "dev")
	p.in("dev", "echo w > /workspace/w && mkdir -p /usr/local/a/b && echo x > /usr/local/a/b/c && ln -s /etc/passwd /usr/local/a/link && ln /usr/local/a/b/c /usr/local/a/second")
	p.must("stop", "dev")
	top := filepath.Join(p.layer("dev"), "root", "changes", "usr")
	owner := func(path string) int {
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		return int(info.Sys().(*syscall.Stat_t).Uid)
	}
	before := owner(top)
	// The ranges are those of all run folders of the machine (runtime/ids.go).
	f, err := os.OpenFile("/run/agentrun/uid-ranges", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := (before - agentuid.First) / 65536
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: int64(2 + n), Len: 1}); err != nil {
		t.Fatal(err)
	}
	passwd := owner("/etc/passwd")
	p.must("start", "dev")
	if got := p.in("dev", "echo y >> /usr/local/a/b/c && cat /usr/local/a/second && stat -c %u /usr/local/a /usr/local/a/b/c /workspace/w && readlink /usr/local/a/link && cat /workspace/w"); got != "x\ny\n1000\n1000\n1000\n/etc/passwd\nw" {
		t.Errorf("with other ids: %q", got)
	}
	for _, path := range []string{top, filepath.Join(top, "local/a/b/c"), filepath.Join(top, "local/a/link"), filepath.Join(p.layer("dev"), "workspace/changes/workspace/w")} {
		if after := owner(path); after == before || (after-agentuid.First)%65536 != (before-agentuid.First)%65536 {
			t.Errorf("%s: owner %d before and %d after", path, before, after)
		}
	}
	if owner("/etc/passwd") != passwd {
		t.Error("the host's file changed hands")
	}
}

// M-23: many files, deep in a kept root, change hands within the time that a step of a start has.
func TestM23DeepKeptRootGetsOtherIDs(t *testing.T) {
	p := newPlace(t)
	p.kept("dev", "--ring", "1")
	p.must("start", "dev")
	p.in("dev", "echo x > /usr/local/a")
	p.must("stop", "dev")
	top := filepath.Join(p.layer("dev"), "root", "changes", "usr")
	info, err := os.Lstat(top)
	if err != nil {
		t.Fatal(err)
	}
	before := info.Sys().(*syscall.Stat_t)
	at, err := unix.Open(filepath.Join(top, "local"), unix.O_DIRECTORY, 0)
	for i := 0; err == nil && i < 240; i++ {
		above := at
		if err = unix.Mkdirat(above, "d", 0o755); err == nil {
			at, err = unix.Openat(above, "d", unix.O_DIRECTORY, 0)
		}
		unix.Close(above)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(at)
	for i := range 150_000 {
		name := fmt.Sprint(i)
		err := errors.Join(unix.Mknodat(at, name, unix.S_IFREG|0o644, 0), unix.Fchownat(at, name, int(before.Uid), int(before.Gid), unix.AT_SYMLINK_NOFOLLOW))
		if err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.OpenFile("/run/agentrun/uid-ranges", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := (int(before.Uid) - agentuid.First) / 65536
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: int64(2 + n), Len: 1}); err != nil {
		t.Fatal(err)
	}
	p.must("start", "dev")
	var st unix.Stat_t
	if err := unix.Fstatat(at, "149999", &st, 0); err != nil || st.Uid == before.Uid {
		t.Errorf("owner %d as before, %v", st.Uid, err)
	}
}

// THREATS "joining and keeping": what an agent leaves in a kept root decides nothing about the next start, and never reaches the host.
func TestM23HostileKeptRoot(t *testing.T) {
	p := newPlace(t)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("host"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.kept("dev", "--ring", "1")
	p.must("start", "dev")
	p.in("dev", fmt.Sprintf(`cd /usr && cp /bin/sh local/sh && chmod 6755 local/sh; rm -rf share && ln -s / share; mv lib/python3 lib/py 2>/dev/null; rm -rf local/lib && ln -s %s local/lib
mkdir -p a/.wh.x && : > a/.wh..wh..opq && mkfifo a/pipe; ln -s ../../../../../../../../../.. a/up; mknod a/dev c 1 3 2>/dev/null; chmod 0 a; true`, filepath.Dir(secret)))
	p.must("stop", "dev")
	p.must("start", "dev")
	for script, want := range map[string]string{
		"cat /usr/local/lib/secret /usr/share" + secret: "",
		"/usr/local/sh -pc 'id -u'":                     "1000",
		"ls -ld /usr/a/dev":                             "",
	} {
		if r := p.inside("dev", nil, "/bin/sh", "-c", script); strings.TrimSpace(r.stdout) != want {
			t.Errorf("%s: %q, want %q", script, r.stdout, want)
		}
	}
	p.must("stop", "dev")
	p.must("rm", "dev")
	if b, err := os.ReadFile(secret); err != nil || string(b) != "host" {
		t.Errorf("the host's file: %q, %v", b, err)
	}
	noAgents(t)
}

// M-3: more than its quota is no start, and says the way out.
func TestM23KeptQuota(t *testing.T) {
	p := newPlace(t)
	p.kept("dev", "--ring", "2", "--quota", "1M")
	p.must("start", "dev")
	p.in("dev", "head -c 3000000 /dev/zero > ~/big")
	p.must("stop", "dev")
	if r := p.do("start", "dev"); r.exit != 125 || !strings.Contains(r.stderr, "its quota is 1MiB") {
		t.Errorf("over its quota: exit %d %s", r.exit, r.stderr)
	}
	if live := p.lives("dev"); len(live) > 0 {
		t.Errorf("live: %v", live)
	}
	if err := os.Remove(filepath.Join(p.layer("dev"), "homes/home/files/big")); err != nil {
		t.Fatal(err)
	}
	p.must("start", "dev")
}

// M-23: a run that has failed is followed by another, later each time, until somebody says stop; a kill is such a word.
func TestM23KeptRestarts(t *testing.T) {
	p := newPlace(t)
	p.kept("fails", "--ring", "2", "--restart", "on-failure", "--", "/bin/sh", "-c", "echo run >> ~/runs; exit 7")
	p.kept("ends", "--ring", "2", "--restart", "on-failure", "--", "/bin/sh", "-c", "echo run >> ~/runs")
	p.kept("killed", "--ring", "2", "--restart", "always")
	count := func(name string) int {
		b, _ := os.ReadFile(filepath.Join(p.layer(name), "homes/home/files/runs"))
		return strings.Count(string(b), "run")
	}
	for _, name := range []string{"fails", "ends", "killed"} {
		p.must("start", name)
	}
	p.must("kill", "killed")
	eventually(t, hang(), "a third run", func() bool { return count("fails") >= 3 })
	p.must("stop", "fails")
	runs := count("fails")
	if changes := p.changes("fails"); !slices.Contains(changes, "restarted") {
		t.Errorf("on record: %q", changes)
	}
	if n := count("ends"); n != 1 {
		t.Errorf("one that ended well ran %d times", n)
	}
	for _, name := range []string{"killed", "ends"} {
		if changes := p.changes(name); slices.Contains(changes, "restarted") {
			t.Errorf("%s on record: %q", name, changes)
		}
	}
	// Whoever waits for the back-off finds that it is stopped: started by hand its count begins anew, and nobody else starts it.
	p.must("start", "fails")
	p.must("stop", "fails")
	noAgents(t)
	if n := count("fails"); n != runs+1 {
		t.Errorf("%d runs, want %d", n, runs+1)
	}
}

// M-23, H-13: those that are to live always come back with the daemon, in their base ring, on record; those that were stopped, and others,
// don't.
func TestM23KeptComesBackWithTheDaemon(t *testing.T) {
	n := startDaemon(t)
	p := place{t, n.run, n.state}
	p.must("agent", "score", "planner-1", "0.7")
	p.kept("always", "--agent", "planner-1", "--ring", "3", "--restart", "always", "--timeout", "60s")
	p.kept("stopped", "--ring", "3", "--restart", "always")
	p.kept("once", "--ring", "3", "--restart", "on-failure")
	for _, name := range []string{"always", "stopped", "once"} {
		p.must("start", name)
	}
	p.must("elevate", "always", "--to", "2", "--ttl", "60s", "--reason", "test")
	p.must("stop", "stopped")
	for _, how := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		before := p.lives("always")
		if len(before) != 1 {
			t.Fatalf("live: %v", before)
		}
		if err := n.Process.Signal(how); err != nil {
			t.Fatal(err)
		}
		_ = n.Wait()
		noAgents(t)
		n.start(t)
		eventually(t, hang(), "it is back", func() bool { return len(p.lives("always")) == 1 })
		if after := p.lives("always"); after[0] == before[0] {
			t.Error("the same run")
		}
		var list []struct {
			Name string
			Ring int `json:"ring"`
		}
		if err := json.Unmarshal([]byte(p.must("ps", "--json").stdout), &list); err != nil || len(list) != 1 || list[0].Ring != 3 {
			t.Errorf("after %v: %+v, %v", how, list, err)
		}
	}
	if changes := p.changes("always"); strings.Count(strings.Join(changes, " "), "restarted") != 2 {
		t.Errorf("on record: %q", changes)
	}
	p.must("stop", "always")
	n.drain(t)
}

// What an operator has killed doesn't come back with a daemon either, also if the one before has died in the same moment.
func TestM23KilledStaysDeadAfterACrash(t *testing.T) {
	n := startDaemon(t, "--pool-max", "0")
	p := place{t, n.run, n.state}
	p.kept("killed", "--ring", "3", "--restart", "always")
	p.kept("other", "--ring", "3", "--restart", "always")
	p.must("start", "killed")
	p.must("start", "other")
	p.must("kill", "killed")
	if err := n.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = n.Wait()
	p.onlyTheOtherComesBack(n, "killed")
}

// M-23, THREATS "joining and keeping": an agent fills the disk that what is known of it lies on, and can't outlive its kill by that.
func TestM23KilledStaysDeadOnAFullDisk(t *testing.T) { endsOnAFullDisk(t, "kill") }

// M-23: nor its stop.
func TestM23StopOnAFullDisk(t *testing.T) { endsOnAFullDisk(t, "stop") }

// M-23: a sandbox that waits to be started again when all is killed has no other run.
func TestM23KillAllEndsTheWaitForAnother(t *testing.T) {
	p := newPlace(t)
	p.kept("again", "--ring", "3", "--restart", "always", "--", "false")
	p.must("start", "again")
	// Between the third run and the fourth there are four seconds.
	eventually(t, hang(), "it waits", func() bool { return len(p.changes("again")) >= 4 && len(p.lives("again")) == 0 })
	p.do("kill", "--all", "--yes") // it may meet the fourth's begin, which it then says, and which has no fifth
	before := len(p.changes("again"))
	b, err := os.ReadFile(filepath.Join(p.folder("again"), "sandbox.json"))
	if err != nil || !strings.Contains(string(b), `"wanted":false`) {
		t.Errorf("it is to run again: %s, %v", b, err)
	}
	eventually(t, hang(), "nothing of it lives", func() bool { return p.do("start", "again").exit == 0 })
	eventually(t, hang(), "it runs again when somebody says so", func() bool { return len(p.changes("again")) > before })
	p.must("stop", "again")
}

// M-23: and its rm gives the disk back, whether it runs or not, and is on record.
func TestM23RemovedOnAFullDisk(t *testing.T) {
	for _, live := range []bool{true, false} {
		t.Run(fmt.Sprintf("live %v", live), func(t *testing.T) {
			n, p := smallDisk(t)
			p.kept("fills", "--ring", "2")
			p.must("start", "fills")
			p.in("fills", "cat /dev/zero > ~/big 2>/dev/null; ls ~")
			if !live {
				p.do("kill", "fills")
				eventually(t, hang(), "it is dead", func() bool { return len(p.lives("fills")) == 0 })
			}
			p.must("rm", "-f", "fills")
			// A record for which there was no room may have left a torn line, which other readers than agentrun stumble over.
			if got := p.must("audit", "show", "--kind", "sandbox_life", "--json").stdout; !strings.Contains(got, `"change":"removed","name":"fills"`) {
				t.Errorf("on record: %s", got)
			}
			p.must("audit", "verify")
			if list := p.must("ps", "--all", "-q").stdout; strings.Contains(list, "fills") {
				t.Errorf("it is still there: %s", list)
			}
			n.drain(t)
		})
	}
}

// H-28: what gc removes is on record before it goes, also where gc is killed in the middle.
func TestM23GCPutsRemovalsOnRecord(t *testing.T) {
	p := newPlace(t)
	p.kept("over", "--ring", "3", "--keep-for", "1ms")
	t.Setenv(fault.Variable, "sandbox/remove=kill")
	if r := p.do("gc"); r.exit == 0 {
		t.Fatalf("gc was not killed: %s", r.stdout)
	}
	os.Unsetenv(fault.Variable)
	if got := p.changes("over"); !slices.Equal(got, []string{"created", "removed"}) {
		t.Errorf("on record: %v", got)
	}
	p.must("gc")
}

// smallDisk is a daemon with its state on a disk of 16 MiB.
func smallDisk(t *testing.T) (*daemonNode, place) {
	n := newDaemon(t)
	if err := unix.Mount("full", n.state, "tmpfs", 0, "size=16m,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(n.state, 0); err != nil {
			t.Errorf("the state folder is still held: %v", err)
		}
	})
	n.start(t, "--pool-max", "0")
	return n, place{t, n.run, n.state}
}

func endsOnAFullDisk(t *testing.T, verb string) {
	n, p := smallDisk(t)
	p.kept("fills", "--ring", "2", "--restart", "always")
	p.kept("other", "--ring", "3", "--restart", "always")
	p.must("start", "fills")
	p.must("start", "other")
	p.in("fills", "cat /dev/zero > ~/big 2>/dev/null; ls ~")
	p.do(verb, "fills") // it can't be put on record
	eventually(t, hang(), "it is dead", func() bool { return len(p.lives("fills")) == 0 })
	if err := n.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = n.Wait()
	if err := os.Remove(filepath.Join(p.layer("fills"), "homes/home/files/big")); err != nil {
		t.Fatal(err)
	}
	p.onlyTheOtherComesBack(n, "fills")
}

// M-23: so does one that was ended for what it did, by whatever limit.
func TestM23EndedForWhatItDidStaysDeadAfterACrash(t *testing.T) {
	n := newDaemon(t)
	t.Setenv(fault.Variable, "undo/container=kill")
	n.start(t, "--pool-max", "0")
	os.Unsetenv(fault.Variable)
	p := place{t, n.run, n.state}
	p.kept("chats", "--ring", "2", "--restart", "always", "--max-output", "64K", "--", "/bin/sh", "-c", "while [ ! -e ~/go ]; do sleep 0.1; done; exec cat /dev/zero")
	p.kept("other", "--ring", "3", "--restart", "always")
	p.must("start", "other")
	p.must("start", "chats")
	p.in("chats", ": > ~/go")
	_ = n.Wait()
	p.onlyTheOtherComesBack(n, "chats")
}

// M-23: what an operator or a breach has made to stand still has no other run, whatever ends that one: its time limit, or its supervisor's
// death. Let go on, it has one as ever.
func TestM23FrozenHasNoOtherRun(t *testing.T) {
	for _, how := range []string{"operator", "breach", "time", "thawed"} {
		t.Run(how, func(t *testing.T) {
			n := startDaemon(t, "--pool-max", "0")
			p := place{t, n.run, n.state}
			argv, timeout := []string{"sleep", "600"}, "60s"
			switch how {
			case "breach":
				argv = []string{"/bin/sh", "-c", "until [ -e ~/go ]; do sleep 0.1; done; rm ~/go; for i in 1 2 3 4; do unshare -U true; done; sleep 600"}
			case "time":
				timeout = "8s"
			}
			p.kept("held", append([]string{"--ring", "2", "--restart", "always", "--on-breach", "freeze", "--timeout", timeout, "--"}, argv...)...)
			p.kept("other", "--ring", "3", "--restart", "always")
			p.must("start", "other")
			p.must("start", "held")
			if how == "breach" {
				p.in("held", ": > ~/go")
			} else {
				p.must("freeze", "held")
			}
			eventually(t, hang(), "it is frozen", func() bool { return p.rest("held").State == "frozen" })
			switch how {
			case "time":
				p.do("wait", "held")
			case "thawed":
				p.must("thaw", "held")
			}
			if err := n.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = n.Wait()
			if how != "thawed" {
				p.onlyTheOtherComesBack(n, "held")
				n.start(t, "--pool-max", "0")
				p.must("start", "held")
			} else {
				n.start(t, "--pool-max", "0")
			}
			eventually(t, hang(), "it runs when somebody says so", func() bool { return len(p.lives("held")) == 1 })
			n.drain(t)
		})
	}
}

// onlyTheOtherComesBack starts a daemon after one that was killed.
func (p place) onlyTheOtherComesBack(n *daemonNode, dead string) {
	p.t.Helper()
	last := func() string {
		b, err := os.ReadFile(filepath.Join(p.folder(dead), "sandbox.json"))
		var s struct{ Run string }
		if err = errors.Join(err, json.Unmarshal(b, &s)); err != nil {
			p.t.Fatal(err)
		}
		return s.Run
	}
	run := last()
	n.start(p.t, "--pool-max", "0")
	eventually(p.t, hang(), "the other is back", func() bool { return len(p.lives("other")) == 1 })
	if live := p.lives(dead); len(live) > 0 || last() != run {
		p.t.Errorf("it was ended as %s, and ran again as %s: %v", run, last(), live)
	}
	n.drain(p.t)
}

// A supervisor that is killed leaves a sandbox that can be started again, with all that was written.
func TestM23KeptSurvivesItsSupervisor(t *testing.T) {
	n := newLaunchNode(t)
	n.kept("dev", "--ring", "1")
	for i := range 3 {
		// A supervisor that is killed answers nobody before it has let go of what it had open.
		eventually(t, hang(), "it starts", func() bool { return n.do("start", "dev").exit == 0 })
		if got := n.in("dev", "cat /usr/local/n 2>/dev/null | wc -l; echo x >> /usr/local/n"); got != fmt.Sprint(i) {
			t.Errorf("start %d finds %s lines", i, got)
		}
		var list []struct{ Supervisor int }
		if err := json.Unmarshal([]byte(n.must("ps", "--json").stdout), &list); err != nil || len(list) != 1 {
			t.Fatalf("%+v, %v", list, err)
		}
		if err := syscall.Kill(list[0].Supervisor, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, hang(), "it is gone", func() bool { return syscall.Kill(list[0].Supervisor, 0) != nil || len(n.lives("dev")) == 0 })
	}
	n.must("gc")
	n.nothingIsLeft(n.recorded())
}

func TestM23KeptWrongInput(t *testing.T) {
	p := newPlace(t)
	p.kept("there", "--ring", "3")
	for _, tc := range []struct {
		want string
		args []string
	}{
		{"--name: how", []string{"create"}},
		{"there is a kept sandbox of that name already", []string{"create", "--name", "there"}},
		{"no name of a sandbox", []string{"create", "--name", "../up"}},
		{"is none of no, on-failure, always", []string{"create", "--name", "new", "--restart", "often"}},
		{"is no time", []string{"create", "--name", "new", "--keep-for", "soon"}},
		{"is no size", []string{"create", "--name", "new", "--quota", "big"}},
		{"has a home of its own", []string{"create", "--name", "new", "--ring", "2", "--home", "h"}},
		{"has no terminal", []string{"create", "--name", "new", "-t"}},
		{"--ring 9", []string{"create", "--name", "new", "--ring", "9"}},
		{"not found", []string{"create", "--name", "new", "--", "nonesuch-command"}},
		{"of which folder", []string{"create", "--name", "new", "--ring", "1", "--workspace-mode", "overlay"}},
		{"no changes of such a run", []string{"diff", "there"}},
		{"no changes of such a run", []string{"discard", "../there"}},
		{"there is no kept sandbox", []string{"start", "new"}},
		{"there is no kept sandbox", []string{"stop", "new"}},
		{"there is no kept sandbox", []string{"rm", "new"}},
		{"there is no kept sandbox", []string{"keep", "new", "1h"}},
		{"takes NAME NEW", []string{"rename", "there"}},
		{"names no snapshot", []string{"fork", "there@", "new"}},
		{"names no snapshot", []string{"commit", "there@", "new:1"}},
		{"no name of a sandbox", []string{"rename", "there", "a/b"}},
		{"is no time", []string{"keep", "there", "later"}},
	} {
		if r := p.do(tc.args...); r.exit == 0 || !strings.Contains(r.stderr, tc.want) {
			t.Errorf("%v: exit %d %q, want %q", tc.args, r.exit, r.stderr, tc.want)
		}
	}
	if p.holds("new") {
		t.Error("something of a refused one is left")
	}
	p.must("keep", "there", "1s")
	eventually(t, hang(), "its time is over", func() bool { return strings.Contains(p.must("gc").stdout, "removed sandbox there") })
}

// M-1, M-23: an ordinary user's are kept too, with the ids of its files; and nothing of one is left. Ring 1 is root's alone.
func TestM23KeptRootless(t *testing.T) {
	u := someone(t)
	must := func(args ...string) string {
		t.Helper()
		code, out, text := u.run(t, args...)
		if code != 0 {
			t.Fatalf("%v: exit %d %s%s", args, code, out, text)
		}
		return strings.TrimSpace(out)
	}
	group := u.cgroup
	u.cgroup = ""
	// The supervisor of the run before may still be on its way out of the user's cgroup, which takes no process meanwhile.
	start := func() {
		t.Helper()
		u.cgroup = group
		eventually(t, hang(), "the user's cgroup is free", func() bool {
			code, _, text := u.run(t, "start", "dev")
			if code != 0 && !strings.Contains(text, "echo: I/O error") {
				t.Fatalf("start: exit %d %s", code, text)
			}
			return code == 0
		})
		u.cgroup = "" // the commands come from the user's shell
	}
	must("create", "--name", "dev", "--ring", "2", "--no-gateway", "--best-effort")
	t.Cleanup(func() {
		if t.Failed() {
			u.run(t, "rm", "-f", "dev")
		}
	})
	for i := range 2 {
		start()
		if got, want := must("exec", "--in", "dev", "--", "/bin/sh", "-c", "echo x >> ~/n; wc -l < ~/n"), fmt.Sprint(i+1); got != want {
			t.Errorf("start %d: %q, want %q", i, got, want)
		}
		must("stop", "dev")
	}
	must("rm", "dev")
	// What starts it again is in the user's namespace, and begins another.
	must("create", "--name", "dev", "--ring", "2", "--no-gateway", "--best-effort", "--restart", "on-failure", "--", "/bin/sh", "-c", "echo x >> ~/n; exit 7")
	start()
	eventually(t, hang(), "a second run", func() bool {
		b, _ := os.ReadFile(filepath.Join(keptLayer(t, filepath.Join(u.home, ".local/state/agentrun"), "dev"), "homes/home/files/n"))
		return len(b) >= 4
	})
	must("stop", "dev")
	if code, _, text := u.run(t, "snapshot", "dev", "s"); code != 125 || !strings.Contains(text, "idmapped") {
		t.Errorf("a snapshot that couldn't be started: exit %d %s", code, text)
	}
	must("rm", "-f", "dev")
	if left, _ := filepath.Glob(filepath.Join(u.home, ".local/state/agentrun/[sl]a[ny]*/*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// M-3, M-23: on a node whose memory is promised once, kept sandboxes that are idle are paused and make room for others; one that is used goes
// on. make crowd has 500 of them, a tenth busy, with the defaults.
func TestM23ManyKeptSandboxes(t *testing.T) {
	available := 0
	for _, line := range lines("/proc/meminfo") {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			fmt.Sscan(rest, &available)
		}
	}
	many, flags, memory := 5, []string{"--memory-share", "1", "--memory-reserve", fmt.Sprintf("%dKiB", available*2/3)}, available/4
	if os.Getenv("AGENTRUN_TEST_SERVE_CROWD") != "" {
		many, flags, memory = count(t, "AGENTRUN_TEST_SERVE_CROWD", 0), nil, 512<<10
	}
	config := write(t, filepath.Join(t.TempDir(), "config.yaml"), "ranges:\n- {ring: 2, memory: 1000GiB}\n", 0o600)
	n := startDaemon(t, flags...)
	p := place{t, n.run, n.state}
	p.must("--config", config, "create", "--name", "idle", "--no-gateway", "--ring", "2", "--idle-pause", "1s", "--memory", fmt.Sprintf("%dKiB", memory))
	p.kept("busy", "--ring", "2", "--cpus", "0.1", "--memory", "16M", "--", "/bin/sh", "-c", "while :; do :; done")
	var idle, busy []string
	for i := range many {
		of, name := "idle", fmt.Sprintf("idle%d", i)
		if i%10 == 9 {
			of, name = "busy", fmt.Sprintf("busy%d", i)
			busy = append(busy, name)
		} else {
			idle = append(idle, name)
		}
		p.must("fork", of, name)
		t.Cleanup(func() { p.do("rm", "-f", name) })
		p.must("--config", config, "start", name)
	}
	states := func() map[string]int {
		of := map[string]int{}
		for _, b := range asked[[]box](p, "ps") {
			of[b.State]++
		}
		return of
	}
	eventually(t, hang(), "the idle ones are paused", func() bool { return states()["paused"] == len(idle) })
	if of := states(); of["running"] != len(busy) {
		t.Errorf("they are %v, want %d that run", of, len(busy))
	}
	t.Logf("%d kept sandboxes, %d of them busy: the daemon uses %d KiB, of the host's memory is left: %s", many, len(busy), inKiB(n.Process.Pid, "status", "VmRSS:"), lines("/proc/meminfo")[2])
	if got := p.in(idle[0], "echo woken"); got != "woken" {
		t.Errorf("one that is used: %q", got)
	}
	for _, name := range append(idle, busy...) {
		p.must("rm", "-f", name)
	}
	if left, _ := filepath.Glob(filepath.Join(p.state, "layers", "*")); len(left) != 2 { // of the two that were forked
		t.Errorf("left: %v", left)
	}
}

// H-24: a kept sandbox that is started again by itself is one, whatever run it is in: two refused mounts in each of two runs are a breach
// as four in one. An operator's start forgives.
func TestH24RunsThatFollowShareAWindow(t *testing.T) {
	needProgram(t, "python3")
	p := newPlace(t)
	p.kept("tries", "--ring", "2", "--restart", "on-failure", "--", "python3", "-c", `
import ctypes, os, sys
with open(os.path.expanduser("~/runs"), "a") as f: f.write("run\n")
for _ in range(2): ctypes.CDLL(None).mount(b"x", b"/tmp", b"tmpfs", 0, None)
sys.exit(1)`)
	t.Cleanup(func() { p.do("rm", "-f", "tries") })
	for want := 2; want <= 4; want += 2 {
		eventually(t, hang(), "it starts by an operator's word", func() bool { return p.do("start", "tries").exit == 0 })
		runs := func() int {
			b, _ := os.ReadFile(filepath.Join(p.layer("tries"), "homes/home/files/runs"))
			return strings.Count(string(b), "run")
		}
		eventually(t, hang(), "a breach ends it", func() bool { return !p.wanted("tries") || runs() > want })
		if n := runs(); n != want {
			t.Errorf("%d runs, want %d", n, want)
		}
	}
	p.must("rm", "-f", "tries")
	noAgents(t)
}

// M-23: the variables that a sandbox was created with are in each of its runs, also in those that it starts itself, and in no command line on the
// host, where every user reads them.
func TestM23VariablesStayHidden(t *testing.T) {
	const secret = "hidden-5e1f20c7"
	stayHidden := func(t *testing.T, p place) {
		t.Helper()
		p.kept("has", "--ring", "2", "--env", "TOKEN="+secret, "--env", "SPACE= a,b ", "--restart", "on-failure", "--",
			"/bin/sh", "-c", `echo "$TOKEN$SPACE|$0" >>~/said; until [ -e ~/end ]; do sleep 0.05; done; rm ~/end; exit 7`, "--env=TOKEN=argument")
		p.must("start", "has")
		for runs := 1; runs <= 2; runs++ {
			want := strings.Repeat(secret+" a,b |--env=TOKEN=argument\n", runs)
			eventually(t, hang(), "it says what it has", func() bool {
				said, _ := os.ReadFile(filepath.Join(p.layer("has"), "homes/home/files/said"))
				return string(said) == want
			})
			lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
			if err != nil {
				t.Fatal(err)
			}
			for _, at := range lines {
				if text, _ := os.ReadFile(at); strings.Contains(string(text), secret) {
					t.Errorf("any user reads in %s: %q", at, text)
				}
			}
			if runs == 1 {
				p.in("has", ": > ~/end")
			}
		}
		p.must("rm", "-f", "has")
	}
	t.Run("alone", func(t *testing.T) { stayHidden(t, newPlace(t)) })
	t.Run("daemon", func(t *testing.T) {
		d := startDaemon(t)
		stayHidden(t, place{t, d.run, d.state})
		d.drain(t)
	})
}

// M-23, H-13: an agent, a sandbox and a program that are called as a word of the command line's is held, stopped and run as any other.
func TestM23NamesThatAreWords(t *testing.T) {
	p := newPlace(t)
	for _, name := range []string{"h", "help"} {
		p.must("agent", "quarantine", name, "--reason", "a test")
		if r := p.do("exec", "--agent", name, "--", "/bin/true"); r.exit != 125 || !strings.Contains(r.stderr, "quarantine") {
			t.Errorf("a run of agent %s: exit %d %s", name, r.exit, r.stderr)
		}
		p.kept(name, "--ring", "3")
		p.must("start", name)
		p.must("stop", name)
		if live := p.lives(name); len(live) > 0 {
			t.Errorf("sandbox %s was stopped, and lives: %q", name, live)
		}
		p.must("rm", name)
		if p.holds(name) {
			t.Errorf("sandbox %s was removed, and is there", name)
		}
		if r := p.do("exec", "--", name); r.exit != 127 {
			t.Errorf("program %s: exit %d %s", name, r.exit, r.stdout)
		}
		if r := p.do("policy", "check", name); r.exit == 0 {
			t.Errorf("policy file %s, which isn't there: exit 0 %s", name, r.stdout)
		}
		if r := p.do("safety", "check", name); !strings.Contains(r.stdout, "score") {
			t.Errorf("the hint %s: exit %d %s", name, r.exit, r.stdout)
		}
		if r := p.do("--help"); r.exit != 0 || !strings.Contains(r.stdout, "agentrun exec") {
			t.Errorf("--help: exit %d", r.exit)
		}
	}
}
