// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
