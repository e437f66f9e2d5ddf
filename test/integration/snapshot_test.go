// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentrun/internal/fault"
)

// Snapshots, forks and rollbacks of kept sandboxes (M-23): files only, and none of another's.

const tells = `cd; for f in a d/e new link; do printf '%s ' "$f"; if [ -L $f ]; then readlink $f; else cat $f 2>/dev/null || echo -; fi; done`

// M-23: what a snapshot has comes back, deletions and renamed folders too; forks of one have the same and go their own ways.
func TestM23SnapshotForkRollback(t *testing.T) {
	for _, ring := range []string{"1", "2"} {
		t.Run("ring"+ring, func(t *testing.T) {
			p := newPlace(t)
			p.kept("dev", "--ring", ring)
			p.must("start", "dev")
			p.in("dev", "cd; echo one > a; mkdir -p d/sub; echo deep > d/e; ln -s /etc/passwd link; mkdir gone; : > gone/x")
			if ring == "1" {
				p.in("dev", "echo made > /usr/local/made; rm -r /usr/share/common-licenses; mv /usr/share/base-files /usr/share/renamed")
			}
			p.must("snapshot", "dev", "live")
			p.must("stop", "dev")
			p.must("snapshot", "dev", "first")
			const first = "a one\nd/e deep\nnew -\nlink /etc/passwd"
			p.must("start", "dev")
			if got := p.in("dev", tells); got != first {
				t.Errorf("after a snapshot %q", got)
			}
			// A folder of a lower layer can be renamed and made anew; what was in it doesn't come back.
			p.in("dev", "cd; echo two > a; echo x > new; rm link; mv d moved; mkdir d; rm -r gone; mkdir gone; cat moved/e")
			p.must("stop", "dev")
			p.must("snapshot", "dev", "second")
			p.must("start", "dev")
			if got, want := p.in("dev", tells+"; cat moved/e; ls gone"), "a two\nd/e -\nnew x\nlink -\ndeep"; got != want {
				t.Errorf("third layer: %q, want %q", got, want)
			}
			if r := p.do("rollback", "dev", "first"); r.exit != 125 || !strings.Contains(r.stderr, "agentrun stop dev") {
				t.Errorf("rollback of one that runs: exit %d %s", r.exit, r.stderr)
			}
			p.must("stop", "dev")
			for i, of := range []string{"dev@live", "dev@first", "dev@second", "dev"} {
				name := fmt.Sprintf("fork%d", i)
				p.must("fork", of, name)
				p.t.Cleanup(func() { p.do("rm", "-f", name) })
				p.must("start", name)
			}
			p.must("rollback", "dev", "first")
			p.must("start", "dev")
			for name, want := range map[string]string{"fork0": first, "fork1": first, "dev": first, "fork2": "a two\nd/e -\nnew x\nlink -", "fork3": "a two\nd/e -\nnew x\nlink -"} {
				if got := p.in(name, tells); got != want {
					t.Errorf("%s: %q, want %q", name, got, want)
				}
				if ring == "1" {
					got := p.in(name, "cat /usr/local/made; ls -d /usr/share/common-licenses /usr/share/base-files 2>/dev/null; ls -d /usr/share/renamed/motd; stat -c %u /usr/local/made")
					if got != "made\n/usr/share/renamed/motd\n1000" {
						t.Errorf("%s: root %q", name, got)
					}
				}
			}
			p.in("fork1", "echo its own > ~/a")
			if got := p.in("fork0", "cat ~/a"); got != "one" {
				t.Errorf("another fork sees %q", got)
			}
			if mounts := p.in("fork2", "cat /proc/self/mounts"); strings.Contains(mounts, p.state) {
				t.Errorf("it sees where the host keeps its files:\n%s", mounts)
			}
			// A sandbox that is gone takes nothing of its forks along.
			p.must("rm", "-f", "dev")
			if got := p.in("fork0", tells); got != first {
				t.Errorf("after rm of what it is a fork of: %q", got)
			}
			for i := range 4 {
				p.must("rm", "-f", fmt.Sprintf("fork%d", i))
			}
			if left, _ := filepath.Glob(filepath.Join(p.state, "layers", "*")); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
			if got, want := p.changes("dev"), []string{
				"created", "started", "snapshot", "stopped", "snapshot", "started", "stopped", "snapshot", "started", "stopped",
				"forked", "forked", "forked", "forked", "rolled_back", "started", "removed",
			}; !slices.Equal(got, want) {
				t.Errorf("on record: %q\nwant %q", got, want)
			}
			noAgents(t)
		})
	}
}

// M-23: of a sandbox that runs, a snapshot is of one instant; it goes on afterwards, unless it was paused, and one that was woken meanwhile
// has none.
func TestM23SnapshotOfALiveSandbox(t *testing.T) {
	p := newPlace(t)
	p.kept("dev", "--ring", "2", "--", "/bin/sh", "-c", `cd; i=0; while :; do i=$((i+1)); echo $i > x; echo $i > y; done`)
	p.must("start", "dev")
	y := filepath.Join(p.layer("dev"), "homes/home/files/y")
	eventually(t, hang(), "it writes", func() bool { b, _ := os.ReadFile(y); return len(b) > 2 })
	p.must("snapshot", "dev", "now")
	was, _ := os.ReadFile(y)
	eventually(t, hang(), "it goes on", func() bool { b, _ := os.ReadFile(y); return len(b) > 0 && string(b) != string(was) })
	p.must("fork", "dev@now", "try")
	t.Cleanup(func() { p.do("rm", "-f", "try") })
	number := func(file string) (n int) {
		b, err := os.ReadFile(filepath.Join(p.state, "layers", p.below("try")[0], "homes/home/files", file))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Sscan(string(b), &n)
		return n
	}
	// Either file may have been emptied and not yet written.
	if x, y := number("x"), number("y"); x != 0 && y != 0 && x != y && x != y+1 {
		t.Errorf("x is %d and y %d: no instant", x, y)
	}
	p.must("pause", "dev")
	p.must("snapshot", "dev", "paused")
	if live := p.lives("dev"); len(live) > 0 {
		t.Error("a snapshot has woken it")
	}
	before, _ := filepath.Glob(filepath.Join(p.state, "layers", "*"))
	slow := exec.CommandContext(t.Context(), agentrun, "--state-dir", p.state, "--run-dir", p.run, "snapshot", "dev", "woken")
	slow.Env = append(os.Environ(), fault.Variable+"=sandbox/copy=delay:"+(3*time.Second).String())
	said := &lockedBuffer{}
	slow.Stderr = said
	if err := slow.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, hang(), "the copy has begun", func() bool {
		now, _ := filepath.Glob(filepath.Join(p.state, "layers", "*"))
		return len(now) > len(before)
	})
	p.in("dev", "true")
	if err := slow.Wait(); err == nil || !strings.Contains(said.String(), "had it go on meanwhile") {
		t.Errorf("one that was woken: %v %s", err, said)
	}
	if now, _ := filepath.Glob(filepath.Join(p.state, "layers", "*")); len(now) != len(before) {
		t.Errorf("%d layers before and %d after", len(before), len(now))
	}
	if list := p.must("snapshot", "dev").stdout; !strings.Contains(list, "paused") || strings.Contains(list, "woken") {
		t.Errorf("its snapshots:\n%s", list)
	}
	state := func() string { return asked[box](p, "inspect", "dev").State }
	killed := exec.CommandContext(t.Context(), agentrun, "--state-dir", p.state, "--run-dir", p.run, "snapshot", "dev", "killed")
	killed.Env = append(os.Environ(), fault.Variable+"=sandbox/copy=delay:"+hang().String())
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, hang(), "it is paused for the copy", func() bool { return state() == "paused" })
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = killed.Wait()
	eventually(t, hang(), "it goes on without who had it paused", func() bool { return state() == "running" })
}

// M-23: a snapshot of a sandbox that runs has no half of a file that is just copied into it, nor does a copy begin beside one, also where
// somebody has frozen the sandbox.
func TestM23SnapshotBesideACopy(t *testing.T) {
	p := newPlace(t)
	p.kept("dev", "--ring", "2", "--", "/bin/sleep", "1d")
	p.must("start", "dev")
	file := filepath.Join(t.TempDir(), "x")
	write(t, file, "x", 0o600)
	into := "dev:/tmp/sandbox/home"
	c := p.halfCopy(into)
	eventually(t, hang(), "half a file is there", func() bool {
		list, _ := filepath.Glob(filepath.Join(p.layer("dev"), "homes/home/files/.agentrun-*"))
		return len(list) > 0
	})
	if r := p.do("snapshot", "dev", "torn"); r.exit == 0 || !strings.Contains(r.stderr, "files are copied into it") {
		t.Errorf("a snapshot beside a copy: exit %d %s", r.exit, r.stderr)
	}
	if err := c.finish(); err != nil {
		t.Fatal(err)
	}
	p.must("snapshot", "dev", "whole")
	p.must("freeze", "dev")
	p.must("cp", file, into)
	p.must("pause", "dev")
	p.refused("conflict", "cp", file, into)
	p.must("snapshot", "dev", "frozen")
	p.do("resume", "dev")
	p.must("thaw", "dev")
	p.must("cp", file, into)
}

// M-5, M-23: on cgroup v1 what is frozen doesn't die with its supervisor. Nobody of it lives any more when its files are sealed.
func TestM23SnapshotAfterACrash(t *testing.T) {
	for _, verb := range [][]string{{"snapshot", "dev", "s"}, {"fork", "dev", "try"}, {"rollback", "dev", "first"}} {
		t.Run(verb[0], func(t *testing.T) {
			n := newLaunchNode(t)
			n.kept("dev", "--ring", "2")
			n.must("snapshot", "dev", "first")
			n.must("start", "dev")
			var list []struct{ Supervisor int }
			if err := json.Unmarshal([]byte(n.must("ps", "--json").stdout), &list); err != nil || len(list) != 1 {
				t.Fatalf("%+v, %v", list, err)
			}
			n.must("pause", "dev")
			if err := syscall.Kill(list[0].Supervisor, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			eventually(t, hang(), "its supervisor is gone", func() bool { return syscall.Kill(list[0].Supervisor, 0) != nil })
			n.must(verb...)
			if alive := n.alive(); len(alive) > 0 {
				t.Errorf("beside what is sealed live %v", alive)
			}
			n.do("rm", "-f", "try")
		})
	}
}

// M-23: folders of a kept sandbox lie in each other, more of them than whoever removes it may have open.
func TestM23DeepTreesGo(t *testing.T) {
	p := newPlace(t)
	p.kept("deep", "--ring", "2")
	p.kept("other", "--ring", "2")
	p.must("start", "deep")
	p.in("deep", `cd; python3 -c '
import os
for i in range(1000): os.mkdir("d"); os.chdir("d")'`)
	p.must("stop", "deep")
	few := func(words ...string) {
		t.Helper()
		c := exec.Command("/bin/sh", slices.Concat([]string{"-c", `ulimit -n 256; exec "$0" "$@"`, agentrun, "--state-dir", p.state, "--run-dir", p.run}, words)...)
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%q: %v %.300s", words, err, out)
		}
	}
	few("rm", "-f", "deep")
	few("gc")
	few("rm", "-f", "other")
	if left, _ := filepath.Glob(filepath.Join(p.state, "layers", "*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// M-23: whoever removes what an agent left, which may take minutes, holds up nobody who makes another sandbox; what was left in the middle goes
// with the next.
func TestM23RemovalHoldsUpNobody(t *testing.T) {
	p := newPlace(t)
	p.kept("many", "--ring", "2")
	p.kept("dev", "--ring", "2")
	c := exec.Command(agentrun, "--state-dir", p.state, "--run-dir", p.run, "rm", "many")
	c.Env = append(os.Environ(), fault.Variable+"=sandbox/prune=hang")
	reached, err := c.StderrPipe()
	if err = errors.Join(err, c.Start()); err != nil {
		t.Fatal(err)
	}
	end := func() { _ = c.Process.Kill(); _ = c.Wait() }
	defer end()
	if _, err := reached.Read(make([]byte, 256)); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.kept("other", "--ring", "2")
		p.must("snapshot", "dev", "one")
		p.must("fork", "dev@one", "try")
		p.must("rm", "try")
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Error("others wait for a removal")
		end()
		<-done
	}
	end()
	if gone, _ := filepath.Glob(filepath.Join(p.state, "layers", "gone-*")); len(gone) != 1 {
		t.Errorf("half removed: %q", gone)
	}
	p.must("gc")
	if gone, _ := filepath.Glob(filepath.Join(p.state, "layers", "gone-*")); len(gone) > 0 {
		t.Errorf("left: %q", gone)
	}
}

func (p place) below(name string) []string {
	p.t.Helper()
	b, err := os.ReadFile(filepath.Join(p.folder(name), "sandbox.json"))
	var s struct{ Below []string }
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil || len(s.Below) == 0 {
		p.t.Fatalf("%s: %v, below it: %v", name, err, s.Below)
	}
	return s.Below
}

// THREATS "joining and keeping": what an agent leaves in a layer is data to whoever copies it, and to the kernel that puts layers together.
func TestM23HostileLayers(t *testing.T) {
	p := newPlace(t)
	host := t.TempDir()
	secret := filepath.Join(host, "secret")
	if err := os.WriteFile(secret, []byte("host"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.kept("dev", "--ring", "2", "--on-breach", "record")
	p.must("start", "dev")
	p.in("dev", fmt.Sprintf(`cd; cp /bin/sh sh; chmod 6755 sh 2>/dev/null; mkfifo pipe; ln -s %[1]s out; ln -s ../../../../../.. up; mkdir -p changes/usr work .wh.a
: > .wh..wh..opq; mknod white c 0 0 2>/dev/null; mknod null c 1 3 2>/dev/null; truncate -s 1T sparse; echo x > one; ln one two; ln -s /proc/self/fd fds
python3 - <<'EOF' 2>/dev/null
import os, socket
for name in ("trusted.overlay.opaque", "trusted.overlay.redirect", "user.overlay.redirect", "user.overlay.opaque"):
    for at in (".", "changes"):
        try: os.setxattr(at, name, b"/../../..")
        except OSError: pass
socket.socket(socket.AF_UNIX).bind("socket")
open(b"\xff\n\x1b[2J", "w").write("x")
EOF
true`, host))
	const look = `cd; ls -A | LC_ALL=C sort | tr '\n' ' '; stat -c '%h %s %u' one sparse; cat out/secret up/secret 2>/dev/null; ./sh -pc 'id -u'`
	want := p.in("dev", look)
	p.must("snapshot", "dev", "live")
	p.must("stop", "dev")
	p.must("snapshot", "dev", "still")
	for _, of := range []string{"live", "still"} {
		p.must("fork", "dev@"+of, of)
		t.Cleanup(func() { p.do("rm", "-f", of) })
		p.must("start", of)
		// A node that is overlayfs' sign for a deletion is one, in the layer where the agent could make it.
		if got := p.in(of, look); got != want && got != strings.Replace(want, "white ", "", 1) {
			t.Errorf("%s has\n%q, want\n%q", of, got, want)
		}
		p.in(of, "cd; echo y >> one; mv changes chang; rm -rf up out; ! ls chang/usr/bin 2>/dev/null")
		p.must("stop", of)
		p.must("snapshot", of, "again")
		p.must("start", of)
		if got := p.in(of, "cd; cat one; ls -d chang/usr up 2>/dev/null; true"); got != "x\ny\nchang/usr" {
			t.Errorf("%s, a layer later: %q", of, got)
		}
	}
	if b, err := os.ReadFile(secret); err != nil || string(b) != "host" {
		t.Errorf("the host's file: %q, %v", b, err)
	}
	if out, err := exec.CommandContext(t.Context(), "du", "-sk", filepath.Join(p.state, "layers")).Output(); err != nil {
		t.Error(err)
	} else if n := 0; true {
		if _, _ = fmt.Sscan(string(out), &n); n > 64<<10 {
			t.Errorf("a file of holes takes %d KiB", n)
		}
	}
	// More than anybody wants to walk is refused, by name.
	p.must("start", "dev")
	p.in("dev", `cd; i=0; while [ $i -lt 300 ]; do mkdir d && cd d || exit 1; i=$((i+1)); done`)
	if r := p.do("snapshot", "dev", "deep"); r.exit != 125 || !strings.Contains(r.stderr, "deep") {
		t.Errorf("a deep tree: exit %d %s", r.exit, r.stderr)
	}
	if live := p.lives("dev"); len(live) != 1 {
		t.Errorf("it doesn't go on: %v", live)
	}
	p.must("rm", "-f", "dev")
}

// M-3: layers count for the quota of whoever has them, and there is a most of them.
func TestM23LayersAreBounded(t *testing.T) {
	p := newPlace(t)
	p.kept("dev", "--ring", "2", "--quota", "2M")
	for i := range 2 {
		p.must("start", "dev")
		p.in("dev", fmt.Sprintf("head -c 700000 /dev/urandom > ~/big%d", i))
		p.must("stop", "dev")
		p.must("snapshot", "dev", fmt.Sprintf("s%d", i))
	}
	p.must("start", "dev")
	p.in("dev", "head -c 1000000 /dev/urandom > ~/more")
	if r := p.do("snapshot", "dev", "live"); r.exit != 125 || !strings.Contains(r.stderr, "quota") {
		t.Errorf("a copy over the quota: exit %d %s", r.exit, r.stderr)
	}
	p.must("stop", "dev")
	if r := p.do("start", "dev"); r.exit != 125 || !strings.Contains(r.stderr, "quota") {
		t.Errorf("a start over the quota: exit %d %s", r.exit, r.stderr)
	}
	p.must("rollback", "dev", "s0")
	p.must("start", "dev")
	p.must("stop", "dev")

	p.kept("many", "--ring", "2")
	path := filepath.Join(p.folder("many"), "sandbox.json")
	for i := range 49 {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var s map[string]any
		if err := json.Unmarshal(b, &s); err != nil {
			t.Fatal(err)
		}
		s["changed"] = true // as a start leaves it
		if b, err = json.Marshal(s); err == nil {
			err = os.WriteFile(path, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		if r := p.do("snapshot", "many", fmt.Sprintf("s%d", i)); i < 48 && r.exit != 0 || i == 48 && (r.exit != 125 || !strings.Contains(r.stderr, "48 layers")) {
			t.Fatalf("snapshot %d: exit %d %s", i, r.exit, r.stderr)
		}
	}
	p.must("start", "many")
	if got := p.in("many", "cd; echo x > y; cat y"); got != "x" {
		t.Errorf("over 48 layers: %q", got)
	}
	p.must("stop", "many")
}

func TestM23SnapshotWrongInput(t *testing.T) {
	p := newPlace(t)
	p.kept("dev", "--ring", "3")
	p.must("snapshot", "dev", "s")
	for _, try := range []struct {
		args []string
		want string
	}{
		{[]string{"snapshot"}, "NAME"},
		{[]string{"snapshot", "none"}, "agentrun ps --all"},
		{[]string{"snapshot", "none", "s"}, "agentrun ps --all"},
		{[]string{"snapshot", "dev", "s"}, "already"},
		{[]string{"snapshot", "dev", "../x"}, "is no name"},
		{[]string{"snapshot", "--rm", "dev", "t"}, "agentrun snapshot dev"},
		{[]string{"snapshot", "--rm", "dev"}, "SNAPSHOT"},
		{[]string{"fork", "dev", "dev"}, "already"},
		{[]string{"fork", "dev@t", "new"}, "agentrun snapshot dev"},
		{[]string{"fork", "none", "new"}, "agentrun ps --all"},
		{[]string{"fork", "dev", "../new"}, "is no name"},
		{[]string{"fork", "dev", "new", "--keep-for", "soon"}, "keep-for"},
		{[]string{"rollback", "dev", "t"}, "agentrun snapshot dev"},
		{[]string{"rollback", "dev"}, "SNAPSHOT"},
		{[]string{"rollback", "none", "s"}, "agentrun ps --all"},
	} {
		r := p.do(try.args...)
		if r.exit == 0 || !strings.Contains(r.stderr+r.stdout, try.want) {
			t.Errorf("%q: exit %d %s%s, want %q", try.args, r.exit, r.stdout, r.stderr, try.want)
		}
	}
	if p.holds("new") {
		t.Error("a fork that was refused is there")
	}
	p.must("snapshot", "--rm", "dev", "s")
	if list := p.must("snapshot", "dev", "--json").stdout; strings.TrimSpace(list) != "[]" {
		t.Errorf("snapshots: %s", list)
	}
}
