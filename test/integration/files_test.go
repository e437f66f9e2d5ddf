// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"agentrun/control"
)

// detached starts a run whose shell does that and then waits, once the file "begun" is in its workspace.
func (p place) detached(name, ws string, o opts, script string) {
	p.t.Helper()
	o.flags = append(o.flags, "-d", "--name", name, "--workspace", ws, "--no-gateway")
	c := p.at(prepare(p.t, o, "/usr/bin/sh", "-c", "cd /workspace; umask 022; "+script+"\necho > /tmp/sandbox/begun; while :; do sleep 1; done"))
	if out, err := c.output(); err != nil {
		p.t.Fatalf("detach: %v: %q %s", err, out, c.errOut.String())
	}
	p.t.Cleanup(func() { p.do("kill", name) })
	eventually(p.t, 10*time.Second, "the script is done", func() bool { return p.do("stat", name+":/tmp/sandbox/begun").exit == 0 })
}

// hostTree lists what a folder of the host has, with content and permissions.
func hostTree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil || at == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := info.Mode().String()
		switch {
		case info.Mode().IsRegular():
			b, err := os.ReadFile(at)
			if err != nil {
				return err
			}
			text += " " + string(b)
		case info.Mode().Type() == fs.ModeSymlink:
			link, err := os.Readlink(at)
			if err != nil {
				return err
			}
			text = "-> " + link
		}
		all[strings.TrimPrefix(at, dir+"/")] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// M-23: files come out of a live run and go into it, whole, with the rights of its agent, and on record by name and digest.
// M-23, THREATS "takeover": a copy goes into a folder of another user's, who gives the name of what is unpacked there to a folder of ours.
func TestThreatTakeoverFolderOfACopy(t *testing.T) {
	p := newPlace(t)
	p.detached("dev", workspace(t), opts{profile: "ring2"}, "head -c 40000000 /dev/zero > big; printf x > small")
	into, ours := t.TempDir(), filepath.Join(t.TempDir(), "ours")
	kept := filepath.Join(ours, "data", "file")
	if err := errors.Join(os.MkdirAll(filepath.Dir(kept), 0o700), os.WriteFile(kept, []byte("kept"), 0o600)); err != nil {
		t.Fatal(err)
	}
	swaps := make(chan int)
	done := make(chan struct{})
	go func() {
		n := 0
		defer func() { swaps <- n }()
		for {
			select {
			case <-done:
				return
			default:
			}
			list, _ := filepath.Glob(filepath.Join(into, ".agentrun-cp-*"))
			for _, at := range list {
				if info, err := os.Lstat(at); err == nil && info.IsDir() && os.Rename(at, filepath.Join(into, fmt.Sprint("gone-", n))) == nil {
					_ = os.Symlink(ours, at)
					n++
				}
			}
		}
	}()
	for range 5 {
		p.do("cp", "dev:big", into)
		p.do("cp", "dev:small", into)
		_ = os.Remove(filepath.Join(into, "big"))
	}
	close(done)
	if n := <-swaps; n == 0 {
		t.Error("nothing was swapped")
	}
	if got := hostTree(t, ours); !cmp.Equal(got, map[string]string{"data": "drwx------", "data/file": "-rw------- kept"}) {
		t.Errorf("our folder has %v", got)
	}
}

// M-23, THREATS "paths the host follows": an agent puts links where somebody who sits in its workspace copies to and from.
func TestThreatTakeoverLinkOnTheWayOfACopy(t *testing.T) {
	p := newPlace(t)
	ws, ours := workspace(t), t.TempDir()
	if err := os.WriteFile(filepath.Join(ours, "file"), []byte("ours"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.detached("dev", ws, opts{profile: "ring2"}, "printf x > file; mkdir sub; ln -s "+ours+" led; ln -s ../led sub/led")
	mine := filepath.Join(t.TempDir(), "mine") // a link of the operator's
	if err := os.Symlink(ws, mine); err != nil {
		t.Fatal(err)
	}
	t.Chdir(ws)
	for _, args := range [][]string{
		{"dev:file", "led"}, {"dev:file", "./led/"}, {"dev:file", "sub/led/file"}, {"dev:file", ws + "/led/new"}, {"dev:file", mine + "/led"},
		{"led/file", "dev:taken"}, {"sub/led/file", "dev:taken"},
	} {
		if r := p.do("cp", args[0], args[1]); r.exit != 1 || !strings.Contains(r.stderr, "which a run may write") {
			t.Errorf("cp %v: exit %d\n%s", args, r.exit, r.stderr)
		}
	}
	if diff := cmp.Diff(map[string]string{"file": "-rw------- ours"}, hostTree(t, ours)); diff != "" {
		t.Errorf("where the links lead (-want +got):\n%s", diff)
	}
	for _, args := range [][]string{
		{"dev:file", "copy"}, {"dev:file", "sub"}, {"dev:file", mine + "/of-mine"}, {"dev:sub", "tree/"}, {"sub", "dev:back"}, {mine + "/copy", "dev:back"}, {".", "dev:whole"},
	} {
		p.must("cp", args[0], args[1])
	}
	for _, name := range []string{"copy", "sub/file", "of-mine", "tree", "back/copy", "whole/copy"} {
		if _, err := os.Lstat(filepath.Join(ws, name)); err != nil {
			t.Error(err)
		}
	}
}

// THREATS "paths the host follows": while a supervisor doesn't answer, what its run may write isn't known, and no link is followed.
func TestThreatTakeoverCopyBesideASilentSupervisor(t *testing.T) {
	p := newPlace(t)
	ws, ours := workspace(t), t.TempDir()
	p.detached("dev", workspace(t), opts{profile: "ring2"}, "printf x > file")
	p.detached("silent", ws, opts{profile: "ring2"}, "ln -s "+ours+" led")
	byName := func(name string) box {
		list := p.list()
		i := slices.IndexFunc(list, func(b box) bool { return b.Name == name })
		if i < 0 {
			t.Fatalf("no %s among %+v", name, list)
		}
		return list[i]
	}
	pid, id := byName("silent").Supervisor, byName("dev").ID
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Kill(pid, unix.SIGCONT) }()
	if r := p.do("cp", id+":/workspace/file", filepath.Join(ws, "led")); r.exit != 1 || !strings.Contains(r.stderr, "no link is followed") {
		t.Errorf("exit %d\n%s", r.exit, r.stderr)
	}
	p.must("cp", id+":/workspace/file", filepath.Join(ws, "copy"))
	if diff := cmp.Diff(map[string]string{}, hostTree(t, ours)); diff != "" {
		t.Errorf("where the link leads (-want +got):\n%s", diff)
	}
}

// M-23: a folder becomes a pipe and a folder again while it is listed and copied. Nothing waits for whoever writes the pipe.
func TestM23PipesForFoldersWhileListed(t *testing.T) {
	p := newPlace(t)
	ws := workspace(t)
	p.detached("dev", ws, opts{profile: "ring2"}, "mkdir -p top/d; : > top/d/file; mkfifo pipe")
	at := func(name string) string { return filepath.Join(ws, name) }
	swapping(t, func() {
		_ = unix.Renameat2(unix.AT_FDCWD, at("top/d"), unix.AT_FDCWD, at("pipe"), unix.RENAME_EXCHANGE)
	})
	for range 60 {
		for _, verb := range [][]string{{"ls", "dev:top/d"}, {"cp", "dev:top", "-"}} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(slow*float64(20*time.Second)))
			c := command(ctx, append([]string{"--run-dir", p.run, "--state-dir", p.state}, verb...)...)
			_ = c.Run()
			if ctx.Err() != nil {
				t.Errorf("%v waits", verb)
			}
			cancel()
			if t.Failed() {
				return
			}
		}
	}
}

// swapping does something again and again until the test is over.
func swapping(t *testing.T, swap func()) {
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				swap()
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-done })
}

func TestM23FilesOfALiveRun(t *testing.T) {
	p := newPlace(t)
	ws, host := workspace(t), t.TempDir()
	p.detached("dev", ws, opts{profile: "ring2"}, `mkdir -p src/deep; printf one > src/a; printf two > src/deep/b; chmod 755 src/deep/b; ln -s deep/b src/link; ln -s ../../../etc src/out; mkfifo src/pipe; printf x > "$(printf 'new\nline')"`)

	p.must("cp", "dev:src", filepath.Join(host, "copy"))
	want := map[string]string{"a": "-rw-r--r-- one", "deep": "drwxr-xr-x", "deep/b": "-rwxr-xr-x two", "link": "-> deep/b"}
	if diff := cmp.Diff(want, hostTree(t, filepath.Join(host, "copy"))); diff != "" {
		t.Errorf("src, copied out (-want +got):\n%s", diff)
	}
	if r := p.do("cp", "dev:src", filepath.Join(host, "copy", "a")); r.exit != 1 {
		t.Errorf("a folder over a file: exit %d", r.exit)
	}
	p.must("cp", "dev:src/a", host)
	p.must("cp", filepath.Join(host, "copy"), "dev:back")
	if r := p.must("cat", "dev:/workspace/back/deep/b"); r.stdout != "two" {
		t.Errorf("copied in and read: %q", r.stdout)
	}
	p.must("cp", filepath.Join(host, "a"), "dev:back/deep/b")
	if r := p.must("cat", "dev:back/deep/b"); r.stdout != "one" {
		t.Errorf("a file in the place of another: %q", r.stdout)
	}
	if r := p.must("ls", "dev:"); !strings.Contains(r.stdout, `new\nline`) {
		t.Errorf("a name with a line break in a list:\n%s", r.stdout)
	}
	for path, code := range map[string]string{
		"dev:/etc/shadow": "not_found", "dev:/workspace/none": "not_found", "dev:/proc/1/environ": "forbidden",
		"dev:../../../../root": "not_found", "nobody:x": "not_found",
	} {
		p.refused(code, "cat", path)
	}
	for path, code := range map[string]string{"dev:/usr/bin/x": "forbidden", "dev:/etc/x": "forbidden", "dev:/proc/x": "conflict"} {
		if code == "forbidden" {
			p.refused(code, "cp", filepath.Join(host, "a"), path)
		} else if r := p.do("cp", filepath.Join(host, "a"), path); r.exit != 1 {
			t.Errorf("cp to %s: exit %d", path, r.exit)
		}
	}
	p.refused("forbidden", "cp", filepath.Join(host, "a"), "dev:.claude/settings.json") // a guarded path
	for _, args := range [][]string{{"cp", "dev:a"}, {"cp", "a", "b"}, {"cp", "dev:a", "dev:b"}, {"cat", "a"}, {"ls"}, {"cp", "--max-size", "x", "dev:a", "."}, {"cp", "", "dev:"}, {"cp", "dev:a", ""}} {
		if r := p.do(args...); r.exit != 2 {
			t.Errorf("%v: exit %d, want 2", args, r.exit)
		}
	}

	// A frozen run's files can be looked at; what the record has is what came out.
	p.must("freeze", "dev")
	out := p.must("cp", "dev:src", "-").stdout
	sum := sha256.Sum256([]byte(out))
	log := p.must("audit", "tail", "-n", "1", "--json").stdout
	for _, part := range []string{`"kind":"file_copy"`, `"direction":"out"`, `"path":"/workspace/src"`, `"by":"uid:0"`, hex.EncodeToString(sum[:])} {
		if !strings.Contains(log, part) {
			t.Errorf("the record has no %s: %s", part, log)
		}
	}
	p.must("thaw", "dev")
	p.must("kill", "dev")
	if r := p.do("cp", "dev:src", host); r.exit != 1 || !strings.Contains(r.stderr, "hint: ") {
		t.Errorf("after the end: exit %d\n%s", r.exit, r.stderr)
	}
	for name := range hostTree(t, host) {
		if strings.Contains(name, ".agentrun-") {
			t.Errorf("left on the host: %s", name)
		}
	}
	noAgents(t)
}

// M-23, M-22: what a copy may do follows the ring: in ring 3 the workspace is read-only, lent ring 2 it isn't, and then it is again.
func TestM23CopyFollowsTheRing(t *testing.T) {
	p := newPlace(t)
	a := p.agent("ward", opts{profile: "ring3", flags: []string{"--workspace", workspace(t)}})
	file := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.refused("forbidden", "cp", file, "ward:/workspace/x")
	p.must("cp", file, "ward:/tmp/sandbox/x")
	a.elevate(time.Minute)
	a.holds(2)
	p.must("cp", file, "ward:/workspace/x")
	p.must("revoke", "ward")
	a.holds(3)
	p.refused("forbidden", "cp", file, "ward:/workspace/y")
}

// halfCopy is a copy into a run that waits for the rest of its one file, of which it has a part.
type halfCopy struct {
	cmd  *exec.Cmd
	in   io.Closer
	tar  *tar.Writer
	rest []byte
	said bytes.Buffer
}

func (p place) halfCopy(to string) *halfCopy {
	p.t.Helper()
	c := &halfCopy{cmd: exec.Command(agentrun, "--state-dir", p.state, "--run-dir", p.run, "cp", "-", to), rest: make([]byte, 1<<20)}
	c.cmd.Stderr = &c.said
	in, err := c.cmd.StdinPipe()
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	c.in, c.tar = in, tar.NewWriter(in)
	p.t.Cleanup(func() { in.Close(); _ = c.cmd.Wait() })
	part := 1 << 16
	err = c.tar.WriteHeader(&tar.Header{Name: "half", Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(c.rest))})
	if err == nil {
		_, err = c.tar.Write(c.rest[:part])
	}
	if err != nil {
		p.t.Fatal(err)
	}
	c.rest = c.rest[part:]
	return c
}

// finish sends the rest.
func (c *halfCopy) finish() error {
	_, err := c.tar.Write(c.rest)
	return errors.Join(err, c.tar.Close(), c.in.Close(), c.cmd.Wait())
}

// M-23, M-22: a copy that waits for its operator, with a file of the workspace open for writing, ends when the run loses the ring that it
// wrote in, and the run goes on.
func TestM22CopyEndsWithTheRing(t *testing.T) {
	p := newPlace(t)
	ws := workspace(t)
	a := p.agent("ward", opts{profile: "ring3", flags: []string{"--workspace", ws}})
	a.elevate(time.Minute)
	a.holds(2)
	c := p.halfCopy("ward:/workspace")
	half := func() bool {
		list, err := filepath.Glob(filepath.Join(ws, ".agentrun-*"))
		return err == nil && len(list) > 0
	}
	eventually(t, 10*time.Second, "half a file is there", half)
	p.must("revoke", "ward")
	a.holds(3)
	if err := c.cmd.Wait(); c.cmd.ProcessState.ExitCode() != 1 || !strings.Contains(c.said.String(), "less privileged ring") {
		t.Errorf("the copy: %v\n%s", err, c.said.String())
	}
	if got := p.must("ps", "--state", "running", "-q").stdout; strings.Count(got, "\n") != 1 {
		t.Errorf("live runs: %q", got)
	}
	a.elevate(time.Minute) // and the next one goes on until it is over
	a.holds(2)
	file := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.must("cp", file, "ward:/workspace/x")
}

// M-23: what the agent does to its files while they are copied harms nobody: nothing waits, nothing of the host comes out, nothing that comes
// out acts, and the host's disk is bounded.
func TestM23HostileFiles(t *testing.T) {
	p := newPlace(t)
	ws, host := workspace(t), t.TempDir()
	secret := filepath.Join(host, "secret")
	if err := os.WriteFile(secret, []byte("of the host"), 0o644); err != nil {
		t.Fatal(err)
	}
	const script = `mkdir d d/1 d/2 d/3; for i in 1 2 3; do ln -s SECRET d/$i/s; ln -s ../../../root d/$i/r; : > d/$i/f; done
mkdir -p d/4/a/b; ln -s ../../.. d/4/a/b/top; ln -s 4/a/b/top/../secret d/twice
mkfifo pipe; printf x > sticky; truncate -s 60M hole; printf x > first; ln first second
mkdir -p DEEP
mkdir swap real; printf in > real/secret
(while :; do mv swap was 2>/dev/null; ln -s HOST swap 2>/dev/null; rm -f swap; mv was swap 2>/dev/null; done) &
(while :; do printf 1234567890 > grow; : > grow; done) &`
	p.detached("bad", ws, opts{profile: "ring2", flags: []string{"--pids", "64"}}, strings.NewReplacer("SECRET", secret, "HOST", host, "DEEP", "deep"+strings.Repeat("/e", 300)).Replace(script))

	p.must("cp", "bad:d", filepath.Join(host, "d"))
	for name, what := range hostTree(t, filepath.Join(host, "d")) {
		if strings.HasPrefix(what, "->") && name != "4/a/b/top" || strings.Contains(what, "of the host") {
			t.Fatalf("%s came out as %s", name, what)
		}
	}
	for range 30 {
		for _, path := range []string{"bad:swap/secret", "bad:swap", "bad:grow"} {
			r := p.do("cp", path, "-")
			if strings.Contains(r.stdout, "of the host") {
				t.Fatalf("%s: the host's file came out", path)
			}
			if n, err := sound([]byte(r.stdout)); r.exit == 0 && (err != nil || n == 0) {
				t.Errorf("%s: %d entries, %v", path, n, err)
			}
		}
	}
	if err := os.Chmod(filepath.Join(ws, "sticky"), 0o755|fs.ModeSetuid|fs.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	p.must("cp", "bad:sticky", host)
	if info, err := os.Stat(filepath.Join(host, "sticky")); err != nil || info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
		t.Errorf("a set-user-ID file came out as %v, %v", info.Mode(), err)
	}
	for _, args := range [][]string{
		{"cp", "--max-size", "10M", "bad:hole", filepath.Join(host, "hole")}, // a hole is as large as it says
		{"cp", "bad:deep", filepath.Join(host, "deep")},                      // more folders than anybody has
		{"cp", "bad:pipe", filepath.Join(host, "pipe")}, {"cat", "bad:pipe"}, {"cat", "bad:swap"},
	} {
		if r := p.do(args...); r.exit != 1 || r.wall > time.Minute {
			t.Errorf("%v: exit %d after %v\n%s", args, r.exit, r.wall, r.stderr)
		}
	}
	left, err := os.ReadDir(host)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range left {
		if !slices.Contains([]string{"secret", "d", "sticky"}, f.Name()) {
			t.Errorf("left on the host: %s", f.Name())
		}
	}
}

// M-23, THREATS "joining and keeping": a folder of links as long as they get, which JSON writes six times as long, costs whoever is asked for a
// list of it no memory to speak of: it is refused, as one of too many names is.
func TestM23LongLinksInAList(t *testing.T) {
	needProgram(t, "python3")
	p := newPlace(t)
	p.detached("bad", workspace(t), opts{profile: "ring2"}, `/usr/bin/python3 -c '
import os
os.chdir("/tmp/sandbox")
for folder, n in ("some", 400), ("many", 3000):
    os.mkdir(folder)
    for i in range(n): os.symlink(chr(1) * 4000, folder + "/" + str(i))'`)
	supervisor := asked[box](p, "inspect", "bad").Supervisor
	before := peak(t, supervisor)
	p.refused("conflict", "ls", "bad:/tmp/sandbox/many")
	if grown := peak(t, supervisor) - before; grown > 32<<20 {
		t.Errorf("the supervisor grew by %d MiB", grown>>20)
	}
	if got := asked[[]control.FileInfo](p, "ls", "bad:/tmp/sandbox/some"); len(got) != 400 || len(got[0].Link) != 4000 {
		t.Errorf("of a few: %d", len(got))
	}
	p.must("kill", "bad")
}

// M-5, M-23: a copy that its operator lets wait keeps nothing of a run alive, also in a daemon, which lives on: its thread in the run's mount
// namespace, with the ids of the agent, ends with the run.
func TestM5StalledCopyHoldsNoRun(t *testing.T) {
	d := startDaemon(t, "--pool-max", "0")
	p := place{t, d.run, d.state}
	p.detached("dev", workspace(t), opts{profile: "ring2", flags: []string{"--scratch-size", "64M"}}, "head -c 20000000 /dev/zero > /tmp/sandbox/big")
	for _, args := range [][]string{{"cp", "dev:/tmp/sandbox/big", "-"}, {"cp", "-", "dev:/tmp/sandbox"}} {
		cmd := exec.Command(agentrun, append([]string{"--state-dir", p.state, "--run-dir", p.run}, args...)...)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { in.Close(); out.Close(); _ = cmd.Wait() }()
	}
	daemon := (&told{place: p, name: "dev"}).seen().Supervisor
	eventually(t, 10*time.Second, "both copies wait", func() bool { return lentThreads(daemon) == 2 })
	p.must("kill", "dev")
	noAgents(t)
	eventually(t, 10*time.Second, "no thread is in the sandbox", func() bool { return lentThreads(daemon) == 0 })
}

// M-23: an ordinary user's supervisor has the agent's ids in a user namespace of its own, and lends them as root's does; afterwards it is as it was.
func TestM23FilesOfAnOrdinaryUser(t *testing.T) {
	u := someone(t)
	ws := u.workspace(t)
	code, id, text := u.run(t, "exec", "-d", "--best-effort", "--no-gateway", "--ring", "2", "--workspace", ws, "--name", "mine", "--", "/bin/sh", "-c",
		"cd /workspace; echo inside > a; while :; do sleep 1; done")
	if code != 0 {
		t.Fatalf("detach: exit %d %s%s", code, id, text)
	}
	u.cgroup = "" // the commands come from the user's shell
	defer func() {
		u.run(t, "kill", "mine")
		u.over(t)
	}()
	for range 2 {
		eventually(t, 10*time.Second, "the file comes out", func() bool { _, out, _ := u.run(t, "cat", "mine:a"); return out == "inside\n" })
		if code, _, text := u.run(t, "cp", "work/a", "mine:b"); code != 0 {
			t.Errorf("into the run: exit %d %s", code, text)
		}
		if b, err := os.ReadFile(filepath.Join(ws, "b")); string(b) != "inside\n" {
			t.Errorf("copied in: %q, %v", b, err)
		}
		if code, _, text := u.run(t, "cp", "work/a", "mine:/usr/b"); code != 1 || !strings.Contains(text, "(forbidden)") {
			t.Errorf("into /usr: exit %d %s", code, text)
		}
	}
}

// lentThreads counts the threads of a process that have another user's ids.
func lentThreads(pid int) (n int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	for _, at := range tasks {
		text, err := os.ReadFile(at)
		if err == nil && !strings.Contains(string(text), "\nUid:\t0\t") {
			n++
		}
	}
	return n
}

// sound reads a tar to its end.
func sound(b []byte) (entries int, err error) {
	t := tar.NewReader(bytes.NewReader(b))
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return entries, nil
		}
		if err != nil {
			return entries, err
		}
		if n, err := io.Copy(io.Discard, t); err != nil || n != h.Size {
			return entries, errors.Join(err, io.ErrUnexpectedEOF)
		}
		entries++
	}
}

// M-23: what is copied in may be anybody's tar: nothing of it leads out of the folder, and what is no file is refused.
func TestM23HostileTarIntoARun(t *testing.T) {
	p := newPlace(t)
	ws := workspace(t)
	p.detached("dev", ws, opts{profile: "ring2"}, "mkdir in; ln -s ../../tmp/sandbox in/way")
	for name, h := range map[string]tar.Header{
		"up":     {Typeflag: tar.TypeReg, Name: "../up"},
		"root":   {Typeflag: tar.TypeReg, Name: "/workspace/up"},
		"way":    {Typeflag: tar.TypeReg, Name: "way/up"},
		"device": {Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3},
		"pipe":   {Typeflag: tar.TypeFifo, Name: "pipe"},
		"hard":   {Typeflag: tar.TypeLink, Name: "hard", Linkname: "/etc/passwd"},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		h.Mode = 0o4755
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if r := p.doWith(&b, "cp", "-", "dev:in"); r.exit != 1 {
			t.Errorf("%s: exit %d\n%s", name, r.exit, r.stderr)
		}
	}
	if diff := cmp.Diff(map[string]string{"way": "-> ../../tmp/sandbox"}, hostTree(t, filepath.Join(ws, "in"))); diff != "" {
		t.Errorf("the folder afterwards (-want +got):\n%s", diff)
	}
	if r := p.do("stat", "dev:/tmp/sandbox/up"); r.exit == 0 {
		t.Errorf("a file went through a link out of the folder:\n%s", r.stdout)
	}
	if r := p.doWith(strings.NewReader(strings.Repeat("x", 100)), "cp", "-", "dev:in"); r.exit != 1 {
		t.Errorf("what is no tar: exit %d", r.exit)
	}
}

// watched is what a watch of a run's folder has told until now.
type watched struct {
	t    *testing.T
	mu   sync.Mutex
	all  []string
	lost int
	end  chan error
}

func (p place) watch(name, folder string) (w *watched, leave func()) {
	p.t.Helper()
	found, err := control.Find(p.t.Context(), p.run, name)
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, leave := context.WithCancel(p.t.Context())
	w = &watched{t: p.t, end: make(chan error, 1)}
	go func() {
		w.end <- found.Client.Watch(ctx, found.ID, control.FilesRequest{Path: folder}, func(c control.FileChange) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.lost += c.Lost
			at := c.Path
			if c.Folder {
				at += "/"
			}
			w.all = append(w.all, c.Kind+" "+at)
			return nil
		})
	}()
	w.until("watching " + path.Clean(path.Join("/workspace", folder)) + "/")
	return w, leave
}

// until waits for a change, and gives those before it, which are forgotten.
func (w *watched) until(change string) (before []string) {
	w.t.Helper()
	eventually(w.t, hang(), change, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		i := slices.Index(w.all, change)
		if i >= 0 {
			before, w.all = w.all[:i], w.all[i+1:]
		}
		return i >= 0
	})
	return before
}

// M-23: an operator hears what changes in a folder of a live run, whoever changes it, in order, with the rights of its agent; in ring 3 too,
// where the agent may not watch. The watch ends with the run.
func TestM23WatchOfALiveRun(t *testing.T) {
	for _, profile := range []string{"ring2", "ring3"} {
		t.Run(profile, func(t *testing.T) {
			p := newPlace(t)
			ws := workspace(t)
			a := p.agent("a", opts{profile: profile, flags: []string{"--workspace", ws}})
			w, leave := p.watch("a", ".")
			defer leave()
			for _, step := range []struct {
				do   func() error
				want []string
			}{
				{func() error { return os.WriteFile(filepath.Join(ws, "a"), []byte("x"), 0o644) }, []string{"created /workspace/a", "written /workspace/a"}},
				{func() error { return os.MkdirAll(filepath.Join(ws, "d/e"), 0o755) }, []string{"created /workspace/d/", "created /workspace/d/e/"}},
				{func() error { return os.WriteFile(filepath.Join(ws, "d/e/f"), nil, 0o644) }, []string{"created /workspace/d/e/f"}},
				{func() error { return os.Chmod(filepath.Join(ws, "d/e/f"), 0o600) }, []string{"attributes /workspace/d/e/f"}},
				{func() error { return os.Rename(filepath.Join(ws, "d"), filepath.Join(ws, "g")) }, []string{"removed /workspace/d/", "created /workspace/g/", "created /workspace/g/e/", "created /workspace/g/e/f"}},
				{func() error { return os.Remove(filepath.Join(ws, "g/e/f")) }, []string{"removed /workspace/g/e/f"}},
				{func() error { return os.Symlink("/etc", filepath.Join(ws, "link")) }, []string{"created /workspace/link"}},
				{func() error { return os.Mkdir(filepath.Join(ws, "closed"), 0o700) }, []string{"created /workspace/closed/", "unwatched /workspace/closed/"}},
				{func() error { return os.Remove(filepath.Join(ws, "a")) }, []string{"removed /workspace/a"}},
			} {
				if err := step.do(); err != nil {
					t.Fatal(err)
				}
				last := len(step.want) - 1
				if got := w.until(step.want[last]); !slices.Equal(got, step.want[:last]) {
					t.Errorf("before %q: %q, want %q", step.want[last], got, step.want[:last])
				}
			}
			p.must("kill", "a")
			if err := <-w.end; err != nil {
				t.Errorf("at the end of the run: %v", err)
			}
			a.finish(t)
			noAgents(t)
		})
	}
}

// THREATS "joining and keeping": an agent that makes more changes, folders and names than anybody can hear costs its operator no more than a
// watch that says so.
func TestM23WatchIsBounded(t *testing.T) {
	p := newPlace(t)
	ws := workspace(t)
	p.detached("dev", ws, opts{profile: "ring2"}, "mkdir many big; cd many; seq 2100 | xargs mkdir")
	p.refused("conflict", "watch", "dev:many")
	p.refused("conflict", "watch", "dev:")
	for where, code := range map[string]string{"dev:none": "not_found", "dev:/tmp/sandbox/begun": "conflict", "dev:/root": "not_found", "nobody:": "not_found"} {
		p.refused(code, "watch", where)
	}
	for _, args := range [][]string{{"watch"}, {"watch", "/workspace"}, {"watch", "dev:a", "dev:b"}} {
		if r := p.do(args...); r.exit != 2 {
			t.Errorf("%v: exit %d, want 2", args, r.exit)
		}
	}
	w, leave := p.watch("dev", "big")
	p.in("dev", `cd big; seq 3000 | xargs touch; seq -f d%g 3000 | xargs mkdir; seq -f d%g 3000 | xargs rmdir; : > "$(printf 'e\033[2J\nnd')"`)
	eventually(t, hang(), "it says that it has lost some", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.lost > 0 })
	eventually(t, hang(), "all has settled", func() bool { // a mark of ours comes through again
		name := fmt.Sprint("mark", time.Now().UnixNano())
		p.in("dev", "mkdir big/"+name)
		time.Sleep(300 * time.Millisecond)
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.Contains(w.all, "created /workspace/big/"+name+"/")
	})
	leave()
	if err := <-w.end; !errors.Is(err, context.Canceled) {
		t.Errorf("left: %v", err)
	}

	var all []func()
	for range 8 {
		_, leave := p.watch("dev", "big")
		all = append(all, leave)
	}
	p.refused("busy", "watch", "dev:big")
	for _, leave := range all {
		leave()
	}
	eventually(t, hang(), "there is room again", func() bool { return strings.Contains(p.beginsWatch("dev:big"), "watching") })
}

// THREATS "joining and keeping": the paths that an agent makes below a watched folder, 64 KiB each and as many as are watched, are kept by
// nobody, and what changes there breaks no watch off.
func TestM23WatchOfLongPaths(t *testing.T) {
	needProgram(t, "python3")
	p := newPlace(t)
	p.detached("bad", workspace(t), opts{profile: "ring2"}, `/usr/bin/python3 -c '
import os
def down(n):
    for i in range(n): os.mkdir(chr(1) * 255); os.chdir(chr(1) * 255)
os.mkdir("long"); os.chdir("long"); down(240)
for i in range(1500): os.mkdir("%04d" % i + chr(1) * 200)'`)
	supervisor := asked[box](p, "inspect", "bad").Supervisor
	before := peak(t, supervisor)
	w, leave := p.watch("bad", "long")
	defer leave()
	if grown := peak(t, supervisor) - before; grown > 32<<20 {
		t.Errorf("the supervisor grew by %d MiB", grown>>20)
	}
	if r := p.inside("bad", nil, "/usr/bin/python3", "-c", `import os
os.chdir("long")
for i in range(240): os.chdir(chr(1) * 255)
open("x", "w")`); r.exit != 0 {
		t.Fatalf("a change down there: %s", r.stderr)
	}
	p.in("bad", "mkdir long/mark")
	w.until("created /workspace/long/mark/")
	p.must("kill", "bad")
}

// THREATS "joining and keeping": a rename of one folder with many names in it makes the supervisor look at each; an agent that does nothing else
// gets no processor of the host's by it.
func TestM23WatchRests(t *testing.T) {
	p := newPlace(t)
	p.detached("dev", workspace(t), opts{profile: "ring2"}, "mkdir -p w x/d; (cd x/d; seq 10000 | xargs touch; cd ../..; while :; do mv x/d w/d; mv w/d x/d; done) &")
	w, leave := p.watch("dev", "w")
	defer leave()
	w.until("created /workspace/w/d/")
	found, err := control.Find(t.Context(), p.run, "dev")
	if err != nil {
		t.Fatal(err)
	}
	used := func() time.Duration { return processTime(t, found.Sandbox.Supervisor) }
	before, began := used(), time.Now()
	time.Sleep(5 * time.Second)
	if took, share := time.Since(began), used()-before; share > took/3 {
		t.Errorf("the supervisor used %v of %v", share, took)
	}
	p.must("kill", "dev")
}

// beginsWatch is what the command says in its first second.
func (p place) beginsWatch(where string) string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Second)
	defer cancel()
	out, _ := exec.CommandContext(ctx, agentrun, "--state-dir", p.state, "--run-dir", p.run, "watch", where).Output()
	return string(out)
}
