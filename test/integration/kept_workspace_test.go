// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentrun/internal/hostcaps"
)

// What a kept sandbox changes in an overlaid workspace is kept with it, over all of its starts, until it is applied, discarded or removed (M-23).

// overlaid makes a sandbox whose workspace has these files.
func (p place) overlaid(name, ring string, files map[string]string, flags ...string) (ws string) {
	p.t.Helper()
	need(p.t, hostcaps.OverlayIDMapped)
	ws = workspace(p.t)
	for file, text := range files {
		write(p.t, filepath.Join(ws, file), text, 0o644)
	}
	owned(p.t, ws)
	p.kept(name, append([]string{"--ring", ring, "--workspace", ws, "--workspace-mode", "overlay"}, flags...)...)
	p.differs(name)
	return ws
}

// began starts a sandbox when what the host has changed counts as earlier: the kernel takes the times of files by its tick.
func (p place) began(name string) {
	p.t.Helper()
	time.Sleep(50 * time.Millisecond)
	p.must("start", name)
}

// once starts a sandbox, runs a shell's words in it and stops it.
func (p place) once(name, script string) (out string) {
	p.t.Helper()
	p.began(name)
	out = p.in(name, script)
	p.must("stop", name)
	return out
}

func (p place) differs(name string, want ...string) {
	p.t.Helper()
	var list []change
	if r := p.must("diff", "--json", name); json.Unmarshal([]byte(r.stdout), &list) != nil {
		p.t.Fatalf("diff %s: %s%s", name, r.stdout, r.stderr)
	}
	if got := changeLines(list); !slices.Equal(got, want) {
		p.t.Errorf("diff %s:\ngot  %q\nwant %q", name, got, want)
	}
}

// M-2, M-23: the workspace stays as it is, each start goes on where the last one was, whatever ended it; and when all is applied the sandbox
// sees the workspace again.
func TestM23WorkspaceOutlivesItsRun(t *testing.T) {
	for _, ring := range []string{"1", "2"} {
		t.Run("ring"+ring, func(t *testing.T) {
			p := newPlace(t)
			ws := p.overlaid("dev", ring, map[string]string{"a": "a\n", "b": "b\n", "d/x": "x\n", "gone": "g\n"})
			before := folder(t, ws)
			p.began("dev")
			p.in("dev", "cd /workspace; echo 1 >> a; rm gone; echo n > new; mv d e; rm e/x; echo y > e/y")
			all := []string{"added e", "added e/y", "added new", "deleted d", "deleted gone", "modified a"}
			p.differs("dev", all...) // of one that runs: it is paused meanwhile, and goes on
			if got := p.in("dev", "cat /workspace/a"); got != "a\n1" {
				t.Errorf("after diff: %q", got)
			}
			for _, verb := range []string{"apply", "discard"} {
				if r := p.do(verb, "dev"); r.exit != 125 || !strings.Contains(r.stderr, "hint: agentrun stop dev") {
					t.Errorf("%s of one that runs: exit %d %s", verb, r.exit, r.stderr)
				}
			}
			supervisor := asked[[]box](p, "ps")[0].Supervisor
			if err := syscall.Kill(supervisor, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			eventually(t, hang(), "it is gone", func() bool { return syscall.Kill(supervisor, 0) != nil || len(p.lives("dev")) == 0 })
			p.differs("dev", all...)
			if got := p.once("dev", "cd /workspace; cat a new e/y; ls; echo 2 >> a; echo l > later"); got != "a\n1\nn\ny\na\nb\ne\nnew" {
				t.Errorf("after its supervisor was killed: %q", got)
			}
			p.must("rename", "dev", "dev2")
			p.must("rename", "dev2", "dev")
			if after := folder(t, ws); !slices.Equal(before, after) {
				t.Errorf("the workspace has changed before anybody applied:\n%q\n%q", before, after)
			}
			p.must("apply", "dev", "a", "e")
			if got := readFile(t, filepath.Join(ws, "a")); got != "a\n1\n2\n" {
				t.Errorf("applied: %q", got)
			}
			p.differs("dev", "added later", "added new", "deleted d", "deleted gone")
			if got := p.once("dev", "cd /workspace; echo 3 >> a; cat a; ls"); got != "a\n1\n2\n3\na\nb\ne\nlater\nnew" {
				t.Errorf("after a part was applied: %q", got)
			}
			p.must("apply", "dev")
			p.differs("dev")
			if left := names(t, ws); len(left) != 7 || readFile(t, filepath.Join(ws, "a")) != "a\n1\n2\n3\n" {
				t.Errorf("applied: %q", left)
			}
			for _, file := range []string{"a", "e/y", "new"} {
				if info, err := os.Lstat(filepath.Join(ws, file)); err != nil || info.Sys().(*unixStat).Uid != owner {
					t.Errorf("%s belongs to %v, %v", file, info, err)
				}
			}
			write(t, filepath.Join(ws, "a"), "the host's\n", 0o644)
			if got := p.once("dev", "cat /workspace/a; ls /workspace/later; echo x > /workspace/a"); got != "the host's\n/workspace/later" {
				t.Errorf("when all was applied it sees %q", got)
			}
			p.must("discard", "dev")
			p.differs("dev")
			if got := p.once("dev", "cat /workspace/a"); got != "the host's" {
				t.Errorf("when all was discarded it sees %q", got)
			}
			p.must("rm", "dev")
			if left, _ := filepath.Glob(filepath.Join(p.state, "[slc][ah]a*n*", "*")); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
			if left, _ := filepath.Glob(filepath.Join(p.state, "layers", "*")); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
			noAgents(t)
		})
	}
}

// M-2: what the host has changed since the sandbox first changed it is refused, however the agent hides when that was; what it changed before
// isn't.
func TestM23ConflictsOverSeveralStarts(t *testing.T) {
	p := newPlace(t)
	ws := p.overlaid("dev", "2", map[string]string{
		"touched": "0", "replaced": "0", "again": "0", "later": "0", "d/in": "0", "d/out": "0", "tree/f": "0", "was/f": "0", "m/a": "0", "m/b": "0", "file/f": "0",
	})
	p.once("dev", "cd /workspace; echo 1 > touched; echo 1 > replaced; rm again; echo 1 > d/in; rm -r was; echo 1 > m/a; rm -r file; echo 1 > file")
	for _, f := range []string{"touched", "replaced", "again", "later", "d/in", "d/out", "tree/f", "m/b"} {
		write(t, filepath.Join(ws, f), "the host's", 0o644)
	}
	write(t, filepath.Join(ws, "was/f"), "the host's", 0o644)
	write(t, filepath.Join(ws, "file/f"), "the host's", 0o644)
	// In a later start: new inodes in the places of the old ones, folders away and there again, and changes of what the host had changed before.
	p.once("dev", `cd /workspace; echo 2 > t; mv t replaced; echo 2 > again; cat later; echo 2 > later; rm -r d; mkdir d; echo 2 > d/in; rm -r tree
mkdir was; echo 2 > was/f; cat m/b; echo 2 > m/b; rm file; mkdir file`)
	// d/out is refused too: d is in the layer since the first start, and nobody knows since when it hides what the host has in it.
	want := []string{
		"deleted d/out conflict", "deleted file/f conflict", "deleted tree", "modified again conflict", "modified d/in conflict", "modified later", "modified m/a", "modified m/b",
		"modified replaced conflict", "modified touched conflict", "modified was/f conflict",
	}
	p.differs("dev", want...)
	p.once("dev", "true")
	p.differs("dev", want...) // a start that changes nothing makes nothing later
	if r := p.do("apply", "dev"); r.exit != 125 || !strings.Contains(r.stderr, "changed on the host since the sandbox first changed it") {
		t.Errorf("apply: exit %d %s", r.exit, r.stderr)
	}
	if got := readFile(t, filepath.Join(ws, "touched")); got != "the host's" {
		t.Errorf("touched: %q", got)
	}
	p.must("apply", "dev", "later", "m", "tree")
	p.differs("dev", "deleted d/out conflict", "deleted file/f conflict", "modified again conflict", "modified d/in conflict", "modified replaced conflict",
		"modified touched conflict", "modified was/f conflict")
	// What was applied is the host's from then on.
	p.once("dev", "echo 3 > /workspace/later; echo 3 > /workspace/m/b")
	write(t, filepath.Join(ws, "m/b"), "the host's", 0o644)
	var list []change
	if err := json.Unmarshal([]byte(p.must("diff", "--json", "dev").stdout), &list); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"modified later", "modified m/b conflict"} {
		if !slices.Contains(changeLines(list), want) {
			t.Errorf("%q isn't among %q", want, changeLines(list))
		}
	}
	// Changes of another folder are never put into this one.
	link := filepath.Join(t.TempDir(), "link")
	other := workspace(t)
	if err := os.Symlink(ws, link); err != nil {
		t.Fatal(err)
	}
	p.kept("linked", "--ring", "2", "--workspace", link, "--workspace-mode", "overlay")
	p.once("linked", "echo x > /workspace/new")
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, link); err != nil {
		t.Fatal(err)
	}
	if r := p.do("start", "linked"); r.exit != 125 || !strings.Contains(r.stderr, "they were made in") || !strings.Contains(r.stderr, "agentrun discard linked") {
		t.Errorf("over another folder: exit %d %s", r.exit, r.stderr)
	}
	p.must("apply", "linked")
	if readFile(t, filepath.Join(ws, "new")) != "x\n" || len(names(t, other)) != 1 {
		t.Error("applied somewhere else")
	}
	p.once("linked", "true")
}

// M-23: a snapshot has the changes of the workspace as they were, each fork goes its own way with them, and a rollback brings them back.
func TestM23WorkspaceInSnapshots(t *testing.T) {
	p := newPlace(t)
	ws := p.overlaid("dev", "2", map[string]string{"a": "0\n", "d/x": "x"})
	p.began("dev")
	p.in("dev", "echo 1 > /workspace/a; rm -r /workspace/d; mkdir /workspace/d; echo y > /workspace/d/y")
	p.must("snapshot", "dev", "live")
	p.must("stop", "dev")
	first := []string{"added d/y", "deleted d/x", "modified a"}
	p.must("snapshot", "dev", "still")
	p.differs("dev", first...)
	p.once("dev", "echo 2 > /workspace/a; echo n > /workspace/new")
	p.must("snapshot", "dev", "second")
	for name, of := range map[string]string{"f1": "dev@live", "f2": "dev@still", "f3": "dev"} {
		p.must("fork", of, name)
		t.Cleanup(func() { p.do("rm", "-f", name) })
	}
	p.differs("f1", first...)
	p.differs("f2", first...)
	p.differs("f3", "added d/y", "added new", "deleted d/x", "modified a")
	if got := p.once("f1", "cat /workspace/a; ls /workspace /workspace/d; echo f1 > /workspace/f1"); got != "1\n/workspace:\na\nd\n\n/workspace/d:\ny" {
		t.Errorf("a fork sees %q", got)
	}
	p.differs("f2", first...)
	p.must("rollback", "dev", "live")
	p.differs("dev", first...)
	if got := p.once("dev", "cat /workspace/a; ls /workspace/new 2>/dev/null; echo r > /workspace/r"); got != "1" {
		t.Errorf("after a rollback %q", got)
	}
	// A fork's changes come first; the others' are in conflict from then on, as a host's are.
	p.must("apply", "f1")
	p.differs("f1")
	p.differs("f3", "added new", "modified a conflict")
	p.differs("dev", "added r")
	// What was put away isn't in the next snapshot.
	p.must("discard", "dev")
	p.must("snapshot", "dev", "nothing")
	p.must("rollback", "dev", "second")
	p.differs("dev", "added new", "modified a conflict")
	p.must("rollback", "dev", "nothing")
	p.differs("dev")
	p.must("rm", "dev")
	if got := p.once("f3", "cat /workspace/a /workspace/new"); got != "2\nn" {
		t.Errorf("after rm of what it is a fork of: %q", got)
	}
	for _, name := range []string{"f1", "f2", "f3"} {
		p.must("rm", name)
	}
	if left, _ := filepath.Glob(filepath.Join(p.state, "layers", "*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if got := readFile(t, filepath.Join(ws, "a")); got != "1\n" {
		t.Errorf("the workspace has %q", got)
	}
}

// THREATS "joining and keeping": a few folders of long names make each name in the last of them a path of 60 KiB. Whoever starts the sandbox
// or looks at its changes, a daemon among them, keeps no such paths in memory.
func TestM23LongPathsInAWorkspaceLayer(t *testing.T) {
	p := newPlace(t)
	p.overlaid("dev", "2", nil)
	p.once("dev", `cd /workspace; python3 -c '
import os
for i in range(240): os.mkdir("d" * 255); os.chdir("d" * 255)
for i in range(2000): open(str(i), "w").close()'`)
	for _, words := range [][]string{{"start", "dev"}, {"diff", "dev"}, {"apply", "dev"}} {
		r := p.do(words...)
		if r.exit != 125 || !strings.Contains(r.stderr, "its paths are more than") || !strings.Contains(r.stderr, "agentrun discard dev") {
			t.Errorf("%q: exit %d %.300s", words, r.exit, r.stderr)
		}
		p.do("stop", "dev")
	}
	p.must("discard", "dev")
	if got := p.once("dev", "ls /workspace"); got != "" {
		t.Errorf("after discard: %.100q", got)
	}
}

// M-2: what a folder that was made anew hides is hidden in the folders in it, too, which overlayfs doesn't mark, and what was in the place of a
// pipe is gone: nothing that the agent took away is missing from what is shown, or left behind by what is applied. A pipe of the host's stays.
func TestM23FoldersMadeAnewInEachOther(t *testing.T) {
	p := newPlace(t)
	ws := p.overlaid("dev", "2", map[string]string{"d/e/f": "f", "d/e/g/k": "k", "d/h/x": "x", "k/e/f": "f", "p": "p", "q/f": "f"})
	if err := syscall.Mkfifo(filepath.Join(ws, "own"), 0o666); err != nil {
		t.Fatal(err)
	}
	owned(t, ws)
	p.once("dev", "cd /workspace; rm -r d p q; mkdir -p d/e/g; echo n > d/e/n; mv k l; mkfifo p q r; chmod 644 own")
	p.differs("dev", "added d/e/n", "added l", "added l/e", "added l/e/f", "deleted d/e/f", "deleted d/e/g/k", "deleted d/h", "deleted k", "deleted p", "deleted q")
	p.must("apply", "dev")
	if got := strings.Join(folderNames(t, ws), " "); got != "d d/e d/e/g d/e/n l l/e l/e/f own" {
		t.Errorf("applied: %q", got)
	}
}

func folderNames(t *testing.T, dir string) (names []string) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, _ fs.DirEntry, err error) error {
		if name != "." {
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// M-1, M-2: what an agent leaves in the layer is data, to the next start and to whoever applies it.
func TestM23HostileWorkspaceLayer(t *testing.T) {
	p := newPlace(t)
	host := t.TempDir()
	secret := write(t, filepath.Join(host, "secret"), "host", 0o600)
	ws := p.overlaid("dev", "2", map[string]string{"d/f": "f", "keep": "k", "moved/f": "f", ".git/config": "[core]\n"}, "--on-breach", "record")
	p.began("dev")
	p.in("dev", fmt.Sprintf(`cd /workspace; ln -s %[1]s out; ln -s ../../../../../.. up; mkfifo pipe; cp /bin/sh sh; chmod 6755 sh 2>/dev/null; echo x > one; ln one two
mknod white c 0 0 2>/dev/null; mknod keep c 0 0 2>/dev/null; mknod null c 1 3 2>/dev/null; : > .wh.keep; : > .wh..wh..opq; : > d/.wh..wh..opq; : > d/.wh.f
mv moved m2; rm keep; mkdir keep; ln -s /etc/passwd keep/in; mkdir -p .vscode; echo '{}' > .vscode/tasks.json; echo 'fsmonitor = evil' >> .git/config; mkdir work; echo about > about.json
python3 - <<'EOF' 2>/dev/null
import os
for name in ("trusted.overlay.opaque", "trusted.overlay.redirect", "user.overlay.redirect", "user.overlay.opaque", "trusted.overlay.whiteout"):
    for at in ("d", "work", "one"):
        try: os.setxattr(at, name, b"/../../..")
        except OSError: pass
open(b"\xff\n\x1b[2J", "w").write("x")
EOF
true`, host))
	const look = `cd /workspace; LC_ALL=C ls -A . d keep m2 work; cat d/f one; cat out/secret up/secret 2>/dev/null; ./sh -pc 'id -u'`
	was := p.in("dev", look)
	p.must("stop", "dev")
	if got := p.once("dev", look); got != was || !strings.HasSuffix(got, "fx\n1000") {
		t.Errorf("the next start sees\n%q, the first saw\n%q", got, was)
	}
	var list []change
	r := p.must("diff", "--json", "dev")
	if err := json.Unmarshal([]byte(r.stdout), &list); err != nil {
		t.Fatal(err)
	}
	lines := changeLines(list)
	for _, want := range []string{
		"added out risky", "added up risky", "added .vscode risky", "added .vscode/tasks.json risky", "modified .git/config risky", "added keep/in risky", "added m2/f", "deleted moved", "added one", "added two",
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("%q isn't among %q", want, lines)
		}
	}
	if slices.ContainsFunc(lines, func(l string) bool {
		return strings.Contains(l, ".wh.") || strings.Contains(l, "null") || strings.Contains(l, "pipe") || l == "deleted d/f"
	}) {
		t.Errorf("among the changes: %q", lines)
	}
	if text := p.must("diff", "--stat", "dev").stdout; strings.Contains(text, "\x1b[") {
		t.Errorf("a terminal would obey %q", text)
	}
	if r := p.do("apply", "dev"); r.exit != 125 || !strings.Contains(r.stderr, "run by the host") {
		t.Errorf("risky: exit %d %s", r.exit, r.stderr)
	}
	// The folder has become a link on the host meanwhile: nothing is written beyond it.
	if err := os.Rename(filepath.Join(ws, "d"), filepath.Join(ws, "was-d")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(host, filepath.Join(ws, "d")); err != nil {
		t.Fatal(err)
	}
	p.once("dev", "ls /workspace/d; echo in > /workspace/d/new || true")
	p.do("apply", "--risky", "dev", "d")
	if left := names(t, host); len(left) != 2 || readFile(t, secret) != "host" {
		t.Errorf("beyond a link: %q", left)
	}
	if err := os.Remove(filepath.Join(ws, "d")); err != nil {
		t.Fatal(err)
	}
	p.must("apply", "--risky", "dev", "sh", "one", "two", "out", "keep", ".git/config", ".vscode/tasks.json")
	if info, err := os.Lstat(filepath.Join(ws, "sh")); err != nil || info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 || info.Sys().(*unixStat).Uid != owner {
		t.Errorf("sh: %v, %v", info, err)
	}
	p.must("discard", "dev")

	// More than anybody wants to walk is refused by name, and can be thrown away.
	p.once("dev", `cd /workspace; i=0; while [ $i -lt 300 ]; do mkdir d && cd d || exit 1; i=$((i+1)); done`)
	if r := p.do("start", "dev"); r.exit != 125 || !strings.Contains(r.stderr, "deep") {
		t.Errorf("a deep tree: exit %d %s", r.exit, r.stderr)
	}
	if r := p.do("diff", "dev"); r.exit != 125 || !strings.Contains(r.stderr, "deep") {
		t.Errorf("a deep tree: exit %d %s", r.exit, r.stderr)
	}
	p.must("discard", "dev")
	p.once("dev", "true")
	if files, _ := filepath.Glob(filepath.Join(p.layer("dev"), "workspace", "*")); len(files) != 2 {
		t.Errorf("beside the changes: %q", files)
	}
}

// M-3: what was changed in the workspace counts for the quota.
func TestM23WorkspaceCountsForTheQuota(t *testing.T) {
	p := newPlace(t)
	p.overlaid("dev", "2", nil, "--quota", "1M")
	p.once("dev", "head -c 3000000 /dev/urandom > /workspace/big")
	if r := p.do("start", "dev"); r.exit != 125 || !strings.Contains(r.stderr, "its quota is 1MiB") || !strings.Contains(r.stderr, "agentrun discard dev") {
		t.Errorf("over its quota: exit %d %s", r.exit, r.stderr)
	}
	p.must("discard", "dev")
	p.once("dev", "! ls /workspace/big 2>/dev/null; truncate -s 64M /workspace/sparse")
	if r := p.do("diff", "dev"); r.exit != 125 || !strings.Contains(r.stderr, "sparse files") || !strings.Contains(r.stderr, "hint: agentrun discard dev") {
		t.Errorf("a sparse file: exit %d %s", r.exit, r.stderr)
	}
	p.must("discard", "dev")
	p.differs("dev")
}

// Nobody starts a sandbox whose changes are being applied, and an apply that is killed at its last step can be done again.
func TestM23ApplyHasTheSandbox(t *testing.T) {
	n := newLaunchNode(t)
	ws := n.overlaid("dev", "2", map[string]string{"a": "0\n"})
	n.once("dev", "echo 1 > /workspace/a; rm -rf /workspace/d; mkdir /workspace/d; echo x > /workspace/d/x")
	for i, at := range []string{"sandbox/empty", "sandbox/emptied"} {
		log := &lockedBuffer{}
		c := n.command(at+"=hang", "apply", "dev")
		c.Stderr = log
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		log.wait(t)
		if r := n.do("start", "dev"); r.exit != 125 || !strings.Contains(r.stderr, "it is running") {
			t.Errorf("%s: a start meanwhile: exit %d %s", at, r.exit, r.stderr)
		}
		_ = c.Process.Kill()
		_ = c.Wait()
		n.differs("dev")
		// What the apply has put there is no change of the host's.
		if got := n.once("dev", fmt.Sprintf("cat /workspace/a /workspace/d/x; echo %d > /workspace/a", i+2)); got != fmt.Sprintf("%d\nx", i+1) {
			t.Errorf("%s: afterwards %q", at, got)
		}
		n.differs("dev", "modified a")
	}
	// Whoever looks waits for others who do.
	var looks []*exec.Cmd
	for range 4 {
		c := n.command("", "diff", "dev")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		looks = append(looks, c)
	}
	for _, c := range looks {
		if err := c.Wait(); err != nil {
			t.Errorf("four diffs at once: %v", err)
		}
	}
	n.must("apply", "dev")
	if got := readFile(t, filepath.Join(ws, "a")); got != "3\n" {
		t.Errorf("at last %q", got)
	}
}
