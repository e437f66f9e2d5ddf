// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"agentrun/internal/hostcaps"
)

func itoa[T ~uint32 | ~int64 | ~int](n T) string { return strings.TrimSpace(jsonNumber(int64(n))) }

// What the agent writes belongs to the workspace's owner on the host, and the
// owner's files are the agent's inside (idmapped mount).
func TestWorkspaceOwnership(t *testing.T) {
	needSandbox(t)
	need(t, hostcaps.IDMappedMounts(base))
	for _, profile := range []string{"ring1", "ring2"} {
		t.Run(profile, func(t *testing.T) {
			ws := workspace(t)
			write(t, filepath.Join(ws, "given"), "x", 0o600)
			os.Chown(filepath.Join(ws, "given"), owner, owner)
			write(t, filepath.Join(ws, "roots"), "x", 0o600) // somebody else's in the same folder
			got, _ := try(t, opts{profile: profile, flags: []string{"--workspace", ws}},
				"create /workspace/new", "mkdir /workspace/dir", "stat /workspace/given", "read /workspace/given", "read /workspace/roots", "stat /workspace/new", "chown /workspace/new 0")
			for words, want := range map[string]string{
				"create /workspace/new": "ok", "mkdir /workspace/dir": "ok", "stat /workspace/given": "value=100600 1000:1000 1",
				"read /workspace/given": "ok", "read /workspace/roots": "EACCES", "stat /workspace/new": "value=100644 1000:1000 1",
			} {
				if got[words] != want {
					t.Errorf("%s: got %s, want %s", words, got[words], want)
				}
			}
			if got["chown /workspace/new 0"] == "ok" {
				t.Error("the agent could give its file to root")
			}
			for _, name := range []string{"new", "dir"} {
				info, err := os.Lstat(filepath.Join(ws, name))
				if err != nil {
					t.Error(err)
					continue
				}
				if st := info.Sys().(*unixStat); st.Uid != owner || st.Gid != owner {
					t.Errorf("%s belongs to %d:%d on the host, want %d:%d", name, st.Uid, st.Gid, owner, owner)
				}
			}
		})
	}
}

// --bind and --ro-bind: as asked, and no deeper.
func TestBinds(t *testing.T) {
	needSandbox(t)
	need(t, hostcaps.IDMappedMounts(base))
	ro, rw := workspace(t), workspace(t)
	write(t, filepath.Join(ro, "file"), "x", 0o666) // the mount must say no, not the mode
	write(t, filepath.Join(rw, "file"), "x", 0o644)
	os.Chown(filepath.Join(rw, "file"), owner, owner)
	o := opts{profile: "ring2", flags: []string{"--ro-bind", ro + ":/data/ro", "--bind", rw + ":/data/rw", "--ro-bind", ro}}
	got, r := try(t, o, "read /data/ro/file", "create /data/ro/x", "write /data/ro/file y", "read /data/rw/file", "create /data/rw/x", "read "+ro+"/file", "create "+ro+"/x", "mount-flags /data/ro", "mount-flags /data/rw", "suid chmod /data/rw")
	for words, want := range map[string]string{
		"read /data/ro/file": "ok", "create /data/ro/x": "EROFS", "write /data/ro/file y": "EROFS", "read /data/rw/file": "ok", "create /data/rw/x": "ok",
		"read " + ro + "/file": "ok", "create " + ro + "/x": "EROFS", "suid chmod /data/rw": "EPERM",
	} {
		if got[words] != want {
			t.Errorf("%s: got %s, want %s\n%s", words, got[words], want, r.stderr)
		}
	}
	for words, want := range map[string]string{"mount-flags /data/ro": "ro,nosuid,nodev", "mount-flags /data/rw": "rw,nosuid,nodev"} {
		if v := strings.TrimPrefix(got[words], "value="); !strings.HasPrefix(v, want) {
			t.Errorf("%s: got %s, want %s", words, v, want)
		}
	}
	if info, err := os.Stat(filepath.Join(rw, "x")); err != nil || info.Sys().(*unixStat).Uid != owner {
		t.Errorf("what was written under --bind: %v %v, want owner %d", info, err, owner)
	}
}

// The host's index of a repository is good inside, though the files have other owners there, and stays good on the host: git reads no file
// anew and writes nothing. Somebody's own settings of git stay as they are.
func TestGitIndexOfTheHostIsGood(t *testing.T) {
	t.Parallel()
	needSandbox(t)
	needProgram(t, "git")
	need(t, hostcaps.IDMappedMounts(base))
	ws := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("git", append([]string{"-C", ws, "-c", "user.name=t", "-c", "user.email=t@t.test"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	git("init", "-q")
	for i := range 20 { // older than the index: what was written in the same second is read anew by anybody
		name := write(t, filepath.Join(ws, fmt.Sprint(i)), fmt.Sprint(i), 0o644)
		os.Chtimes(name, time.Now(), time.Now().Add(-time.Hour))
	}
	git("add", ".")
	git("commit", "-q", "-m", "all")
	index := func() string {
		b, err := os.ReadFile(filepath.Join(ws, ".git", "index"))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	before := index()
	status := func(flags ...string) {
		t.Helper()
		r := run(t, opts{profile: "ring2", flags: append(flags, "--workspace", ws)}, "git", "status", "--porcelain")
		if r.want(t, 0, "exited"); r.stdout != "" {
			t.Errorf("%v: got %q, want nothing changed", flags, r.stdout)
		}
	}
	status()
	if git("status", "--porcelain"); index() != before {
		t.Error("the index was written anew: each file was read")
	}
	write(t, filepath.Join(ws, "0"), "other", 0o644)
	r := run(t, opts{profile: "ring2", flags: []string{"--workspace", ws}}, "git", "status", "--porcelain")
	if r.stdout != " M 0\n" {
		t.Errorf("a changed file: got %q", r.stdout)
	}
	git("checkout", "-q", "0")
	os.Chtimes(filepath.Join(ws, "0"), time.Now(), time.Now().Add(-time.Hour))
	git("status", "--porcelain")
	before = index()
	if status("--env", "GIT_CONFIG_COUNT=0"); index() == before {
		t.Error("the caller's own settings of git don't count")
	}
}

// Git reads repositories that aren't the agent's: one that is shown read-only, one of another user's in the workspace, and that of a linked
// worktree.
func TestGitReadsWhatOthersOwn(t *testing.T) {
	t.Parallel()
	needSandbox(t)
	needProgram(t, "git")
	need(t, hostcaps.IDMappedMounts(base))
	dir := t.TempDir()
	repo, tree, ws := filepath.Join(dir, "repo"), filepath.Join(dir, "tree"), workspace(t)
	git := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("git", append([]string{"-c", "user.name=t", "-c", "user.email=t@t.test", "-c", "safe.directory=*"}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	git("init", "-q", repo)
	git("-C", repo, "commit", "-q", "--allow-empty", "-m", "the first")
	git("-C", repo, "worktree", "add", "-q", tree)
	git("clone", "-q", repo, filepath.Join(ws, "roots"))
	for name, c := range map[string]struct{ flags, argv []string }{
		"read-only":         {[]string{"--ro-bind", repo + ":/data"}, []string{"git", "-C", "/data", "log", "--format=%s"}},
		"of another user":   {[]string{"--workspace", ws}, []string{"git", "-C", "roots", "log", "--format=%s"}},
		"a linked worktree": {[]string{"--workspace", tree, "--ro-bind", repo + "/.git"}, []string{"git", "log", "--format=%s"}},
	} {
		if r := run(t, opts{profile: "ring2", flags: c.flags}, c.argv...); r.exit != 0 || r.stdout != "the first\n" {
			t.Errorf("%s: exit %d, %q\n%s", name, r.exit, r.stdout, r.stderr)
		}
	}
}

// What is shown within another folder is there, whatever the order of the flags, and doesn't open with it: a bind below the workspace had no
// effect, without a word. What has to be made for one in the scratch is the agent's, who writes beside it (M-2).
func TestBindsWithinOtherFolders(t *testing.T) {
	t.Parallel()
	needSandbox(t)
	need(t, hostcaps.IDMappedMounts(base))
	ws, ro, outer := workspace(t), workspace(t), workspace(t)
	for name, text := range map[string]string{ws + "/modules/theirs": "x", ws + "/run.sh": "echo of the bind", ro + "/mine": "x", outer + "/inner/hidden": "x", outer + "/file": "x"} {
		os.MkdirAll(filepath.Dir(name), 0o777)
		os.Chmod(filepath.Dir(name), 0o777)
		write(t, name, text, 0o666)
		os.Chown(name, owner, owner)
	}
	settings := filepath.Join(outer, "file") + ":/tmp/sandbox/home/.tool/deep/settings"
	for _, profile := range []string{"ring3", "ring2", "ring1"} {
		words := map[string]string{
			"read /workspace/modules/mine": "ok", "read /workspace/modules/theirs": "ENOENT", "create /workspace/modules/x": "EROFS",
			"read /data/file": "ok", "read /data/inner/mine": "ok", "read /data/inner/hidden": "ENOENT",
			"read /tmp/sandbox/home/.tool/deep/settings": "ok", "create /tmp/sandbox/home/.tool/deep/beside": "ok", "create /tmp/sandbox/home/.tool/beside": "ok",
			"stat /tmp/sandbox/home/.tool": "value=40755 1000:1000 ",
		}
		if profile != "ring3" {
			words["create /workspace/"+profile] = "ok"
		}
		got, r := try(t, opts{profile: profile, flags: []string{"--ro-bind", ro + ":/workspace/modules", "--ro-bind", ro + ":/data/inner", "--ro-bind", outer + ":/data",
			"--ro-bind", settings, "--workspace", ws}}, slices.Sorted(maps.Keys(words))...)
		for w, want := range words {
			if !strings.HasPrefix(got[w], want) {
				t.Errorf("%s: %s: got %s, want %s\n%s", profile, w, got[w], want, r.stderr)
			}
		}
	}
	// Where the workspace would be is the operator's folder, and the command is looked for there.
	if r := run(t, opts{profile: "ring2", dir: ro, flags: []string{"--bind", ws + ":/workspace"}}, "./run.sh"); r.stdout != "of the bind\n" {
		t.Errorf("a bind at /workspace and a command of a name: got %q %s", r.stdout, r.stderr)
	}
	for _, c := range []struct{ flags, want []string }{
		{[]string{"--workspace", ws, "--ro-bind", ro + ":/workspace/none/deeper"}, []string{"--ro-bind", ws + "/none", "mkdir"}},
		{[]string{"--bind", ro + ":/workspace/none", "--workspace", ws}, []string{"--bind", "mkdir"}},
		{[]string{"--workspace", ws, "--bind", ro + ":/workspace"}, []string{"--bind", "--workspace"}},
		{[]string{"--ro-bind", ro + ":/data", "--ro-bind", ws + ":/data"}, []string{"--ro-bind", "/data"}},
		{[]string{"--ro-bind", ro + ":/usr/share/none"}, []string{"--ro-bind", "/usr/share/none"}},
	} {
		r := tool(t, slices.Concat([]string{"plan", "--ring", "2"}, c.flags, []string{"--", "/bin/true"})...)
		for _, want := range c.want {
			if r.exit != 125 || !strings.Contains(r.stderr, want) {
				t.Errorf("%v: got exit %d, want 125 and %q\n%s", c.flags, r.exit, want, r.stderr)
			}
		}
	}
}

// A workspace that an earlier agent filled with links: they lead nowhere.
func TestLinksInWorkspaceStayInside(t *testing.T) {
	needSandbox(t)
	ws := workspace(t)
	secret := write(t, filepath.Join(t.TempDir(), "secret"), "#!/bin/secret\n", 0o755)
	for name, target := range map[string]string{"shadow": "/etc/shadow", "up": "../../../../etc/shadow", "secret": secret, "root": "/"} {
		if err := os.Symlink(target, filepath.Join(ws, name)); err != nil {
			t.Fatal(err)
		}
	}
	attempt(t, opts{flags: []string{"--workspace", ws}}, []attack{
		{try: "read /workspace/shadow", want: "ENOENT"}, {try: "read /workspace/up", want: "ENOENT"},
		{try: "read /workspace/secret", want: "ENOENT"}, {try: "ls /workspace/root/home", want: "ENOENT"},
	})
	// The same links as the command: nothing of the host is read on the way.
	for _, name := range []string{"shadow", "secret"} {
		r := run(t, opts{flags: []string{"--workspace", ws}}, "./"+name)
		if r.exit != 126 && r.exit != 127 {
			t.Errorf("./%s: got exit %d, want 126 or 127", name, r.exit)
		}
		if strings.Contains(r.stderr, "/bin/secret") {
			t.Errorf("./%s: the message shows what is in the host's file: %s", name, r.stderr)
		}
	}
}

// Ring 1 has a root of its own to write to. It is gone afterwards, unless it
// is asked for; the host's root is the same in both cases.
func TestPrivateRoot(t *testing.T) {
	needSandbox(t)
	need(t, hostcaps.Overlay)
	r := run(t, opts{profile: "ring1"}, "/probe", "create", "/usr/agentrun-mark", "hello", ",", "cat", "/usr/agentrun-mark", ",", "unlink", "/usr/bin/whoami")
	if got := answers(r.stdout); got["create /usr/agentrun-mark hello"] != "ok" || got["cat /usr/agentrun-mark"] != "value=hello" {
		t.Errorf("writing to the private root: %v\n%s", got, r.stderr)
	}
	if _, err := os.Stat("/usr/agentrun-mark"); err == nil {
		t.Error("the host's /usr was written to")
	}
	if v := observe(t, opts{profile: "ring1"}, "ls /usr"); strings.Contains(v, "agentrun-mark") {
		t.Error("the next run sees what this one wrote (M-14)")
	}

	keep := filepath.Join(t.TempDir(), "layer.tar")
	r = run(t, opts{profile: "ring1", flags: []string{"--keep", keep}}, "/probe", "create", "/usr/agentrun-mark", "kept", ",", "unlink", "/usr/bin/whoami")
	r.want(t, 3, "exited")
	layer := readLayer(t, keep)
	if got := layer["usr/agentrun-mark"]; got != "kept" {
		t.Errorf("--keep: the written file holds %q, want kept; the layer: %v", got, layer)
	}
	if _, ok := layer["usr/bin/.wh.whoami"]; !ok {
		t.Errorf("--keep: the removed file is not marked as such (OCI whiteout); the layer: %v", layer)
	}
	for _, profile := range []string{"ring2", "ring3"} {
		r := run(t, opts{profile: profile, flags: []string{"--keep", keep + "2"}}, "/probe", "ok")
		if r.exit != 125 || !strings.Contains(r.stderr, "--keep") {
			t.Errorf("%s: --keep without a root to keep: got exit %d, want 125 and the flag's name\n%s", profile, r.exit, r.stderr)
		}
	}
}

// readLayer gives the files of an OCI layer, and fails on what an agent must
// not be able to put into one.
func readLayer(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	files := map[string]string{}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(filepath.Clean(h.Name), "/")] = string(b)
		if h.Mode&0o6000 != 0 || h.Typeflag == tar.TypeChar || h.Typeflag == tar.TypeBlock || strings.Contains(h.Name, "..") {
			t.Errorf("the layer has %s with mode %o, type %c", h.Name, h.Mode, h.Typeflag)
		}
	}
}

// Scratch: bounded in bytes and files, charged to the run, empty for the next.
func TestScratch(t *testing.T) {
	needSandbox(t)
	o := opts{profile: "ring3", flags: []string{"--scratch-size", "8M"}}
	for _, words := range []string{"fill /tmp/sandbox 64", "fill /dev/shm 64", "fill /tmp/sandbox/home 64"} {
		v := observe(t, o, words)
		if !strings.HasSuffix(v, " ENOSPC") || len(strings.Fields(v)[0]) > 1 {
			t.Errorf("%s: got %s, want at most 8 (MiB) and ENOSPC (M-3)", words, v)
		}
	}
	if v := observe(t, o, "inodes /tmp/sandbox 2000000"); !strings.HasSuffix(v, " ENOSPC") {
		t.Errorf("empty files: got %s, want ENOSPC: inodes are kernel memory", v)
	}
	run(t, o, "/probe", "create", "/tmp/sandbox/left")
	if v := observe(t, o, "ls /tmp/sandbox"); strings.Contains(v, "left") {
		t.Errorf("the scratch is not fresh: %s (M-14)", v)
	}
}

// M-2: --tmpfs is more scratch: bounded, empty, the agent's, of programs where the scratch has some, until a fall to ring 3.
func TestM2Tmpfs(t *testing.T) {
	t.Parallel()
	needSandbox(t)
	const words = `cd /data && dd if=/dev/zero of=x bs=64K 2>/dev/null; stat -c %s x; rm x; cp /bin/true ./t && ./t && echo executed; ls -A /var/cache /run/own; stat -c %u:%a /run/own`
	flags := []string{"--tmpfs", "/data:1M", "--tmpfs", "/var/cache", "--tmpfs", "/run/own:64k"}
	for profile, want := range map[string]string{
		"ring2": "1048576\nexecuted\n/run/own:\n\n/var/cache:\n1000:700\n",
		"ring1": "1048576\nexecuted\n/run/own:\n\n/var/cache:\n1000:700\n",
	} {
		r := run(t, opts{profile: profile, flags: flags}, "/bin/sh", "-c", words)
		if r.want(t, 0, "exited"); r.stdout != want {
			t.Errorf("%s: got %q, want %q\n%s", profile, r.stdout, want, r.stderr)
		}
	}
	if v := observe(t, opts{profile: "ring3", flags: flags}, "fill /data 64"); !strings.HasSuffix(v, " ENOSPC") || len(strings.Fields(v)[0]) > 1 {
		t.Errorf("ring 3: got %s, want at most 1 (MiB) and ENOSPC", v)
	}
	for _, tt := range []struct{ flag, want string }{
		{"/proc/x", `mount point "/proc/x" belongs to agentrun`},
		{"/tmp/sandbox", `mount point "/tmp/sandbox" belongs to agentrun`},
		{"/run/agentrun", "mount point /run/agentrun is taken already"},
		{"/run/agentrun/tools.sock", "mount point /run/agentrun/tools.sock is taken already"},
		{"/usr/nope", "/usr/nope isn't there"},
		{"/usr/bin/env", "is no folder"},
		{"data", "is not a clean absolute path"},
		{"/data:0", "a folder without room"},
		{"/data:1", "1B is outside the range"},
		{"/data:2G", "2GiB is outside the range"},
		{"/data:1G", "1GiB is more than --memory"},
	} {
		r := run(t, opts{profile: "ring2", flags: []string{"--tmpfs", tt.flag}}, "true")
		if r.exit != 2 && r.exit != 125 || !strings.Contains(r.stderr, "--tmpfs") || !strings.Contains(r.stderr, tt.want) {
			t.Errorf("%s: exit %d, %s; want %q", tt.flag, r.exit, r.stderr, tt.want)
		}
	}
}

// M-2, M-3: who fails in a full scratch is told that it is full and which flag gives more; who succeeds, or has made room again, isn't.
func TestM2FullScratchIsTold(t *testing.T) {
	needSandbox(t)
	o := opts{profile: "ring2", flags: []string{"--scratch-size", "8M"}}
	const fill = "dd if=/dev/zero of=/tmp/x bs=64K 2>/dev/null"
	r := run(t, o, "/bin/sh", "-c", fill)
	r.want(t, 1, "exited")
	if !r.status.ScratchFull || !strings.Contains(r.stderr, "agentrun: its scratch was full when it ended\nhint: --scratch-size 16MiB") {
		t.Errorf("full: %v, told:\n%s", r.status.ScratchFull, r.stderr)
	}
	for _, script := range []string{fill + "; true", fill + "; rm /tmp/x; false"} {
		if r := run(t, o, "/bin/sh", "-c", script); r.status.ScratchFull || strings.Contains(r.stderr, "scratch") {
			t.Errorf("%s: %v, told:\n%s", script, r.status.ScratchFull, r.stderr)
		}
	}
}
