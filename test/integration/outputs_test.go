// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentrun/internal/hostcaps"
)

// THREATS "paths the host follows" and "records and disk" (A-M4, A-M5).

// The agent puts a link where the folder of an output was. Root creates or replaces nothing where it leads.
func TestOutputsDontFollowTheAgent(t *testing.T) {
	needSandbox(t)
	need(t, hostcaps.IDMappedMounts(base))
	needProgram(t, "sh", "mv", "ln")
	for _, c := range []struct {
		name, profile, flag, file string
		flags                     []string
	}{
		{"status in the workspace", "ring2", "--status-file", "ws/out/result", []string{"--workspace", "ws"}},
		{"status in a bind", "ring2", "--status-file", "ws/out/result", []string{"--bind", "ws:/workspace"}},
		{"status by the caller's folder", "ring2", "--status-file", "out/result", []string{"--workspace", "."}},
		{"layer in the workspace", "ring1", "--keep", "ws/out/result", []string{"--workspace", "ws"}},
		{"status of a detached run", "ring2", "--status-file", "ws/out/result", []string{"--workspace", "ws", "--detach", "--name", "outputs"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			trap := filepath.Join(dir, "trap")
			ws := workspace(t)
			if err := errors.Join(os.Symlink(ws, filepath.Join(dir, "ws")), os.Mkdir(trap, 0o755), os.Mkdir(filepath.Join(ws, "out"), 0o755), os.Chown(filepath.Join(ws, "out"), owner, owner)); err != nil {
				t.Fatal(err)
			}
			at := dir
			if c.file == "out/result" {
				at = ws
			}
			victim := write(t, filepath.Join(trap, "result"), "the host's", 0o600)
			args := append(append([]string{"exec"}, profileFlags(c.profile)...), append(c.flags, c.flag, c.file, "--", "/bin/sh", "-c", "cd /workspace && mv out moved && ln -s "+trap+" out")...)
			cmd := command(t.Context(), args...)
			cmd.Dir = at
			if text, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			if slices.Contains(c.flags, "--detach") {
				tool(t, "wait", "outputs")
			}
			eventually(t, waitFile, "the output", func() bool {
				_, err := os.Stat(filepath.Join(ws, "moved", "result"))
				b, _ := os.ReadFile(victim)
				return err == nil || string(b) != "the host's"
			})
			if b, err := os.ReadFile(victim); string(b) != "the host's" {
				t.Errorf("the file that the agent's link leads to is now %.60q, %v", b, err)
			}
			if names, _ := os.ReadDir(trap); len(names) != 1 {
				t.Errorf("root made files where the agent's link leads: %v", names)
			}
			if info, err := os.Stat(filepath.Join(ws, "moved", "result")); err != nil || info.Size() == 0 {
				t.Errorf("the output isn't in the folder that was meant: %v", err)
			}
			// What the last run left: the next one is refused, whatever it is to do, and follows it no more than that.
			r := tool(t, "exec", "--ring", "2", "--workspace", ws, "--status-file", filepath.Join(ws, "out", "result"), "--", "/bin/sh", "-c", ":")
			if r.exit != 125 || !strings.Contains(r.stderr, "a run may write") {
				t.Errorf("through a link in the workspace: got exit %d, want 125\n%s", r.exit, r.stderr)
			}
			r = tool(t, "exec", "--ring", "2", "--workspace", ws, "--memory", "nonsense", "--status-file", filepath.Join(ws, "out", "result"), "--", "/bin/sh", "-c", ":")
			if b, err := os.ReadFile(victim); string(b) != "the host's" || r.exit != 125 {
				t.Errorf("a refused run: exit %d, the file is now %.60q, %v", r.exit, b, err)
			}
		})
	}
}

const waitFile = 10e9

// A layer has no more in it than there is in the scratch.
func TestKeepIsBoundedByTheScratch(t *testing.T) {
	needSandbox(t)
	need(t, hostcaps.OverlayIDMapped)
	needProgram(t, "sh", "truncate", "ln", "seq", "mkdir", "head")
	for _, c := range []struct {
		name, script string
		most         int64 // bytes
		says         string
		holds        []string
	}{
		{"hard links", "head -c 16000000 /dev/zero > /usr/one && for i in $(seq 20); do ln /usr/one /usr/many-$i; done", 40 << 20, "", []string{"usr/many-1", "usr/many-20", "usr/one"}},
		{"one sparse file", "truncate -s 300M /usr/sparse", 0, "sparse", nil},
		{"many sparse files", "for i in $(seq 10); do truncate -s 50M /usr/sparse-$i; done", 0, "sparse", nil},
		{"a small sparse file", "truncate -s 1M /usr/sparse", 8 << 20, "", []string{"usr/sparse"}},
		{"deep folders", "cd /usr; for i in $(seq 300); do mkdir d && cd d; done", 0, "deeper", nil},
		{"at the top of the root", "head -c 1000 /dev/zero > /one && ln /one /two && truncate -s 300M /sparse", 0, "sparse", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			keep := filepath.Join(dir, "layer.tar")
			r := tool(t, "exec", "--ring", "1", "--keep", keep, "--scratch-size", "64M", "--", "/bin/sh", "-c", c.script+" && echo done")
			if !strings.Contains(r.stdout, "done") {
				t.Fatalf("the attack itself failed: exit %d\n%s%s", r.exit, r.stdout, r.stderr)
			}
			info, err := os.Stat(keep)
			if c.says != "" {
				if err == nil {
					t.Errorf("a layer of %d bytes was written", info.Size())
				}
				if !strings.Contains(r.stderr, c.says) {
					t.Errorf("got %q, want %q in it", r.stderr, c.says)
				}
			} else if err != nil || info.Size() > c.most {
				t.Errorf("layer: %v, %v, want at most %d bytes", info, err, c.most)
			}
			if names, _ := os.ReadDir(dir); len(names) > 1 || c.says != "" && len(names) > 0 {
				t.Errorf("left behind: %v", names)
			}
			for _, name := range c.holds {
				if _, ok := readLayer(t, keep)[name]; !ok {
					t.Errorf("the layer lacks %s", name)
				}
			}
		})
	}
}

// What an agent can put into a layer for a host that unpacks it without a thought, as root, into an empty folder: by GNU tar, and
// by a reader that does what the entries say.
func TestKeepUnpackedByACarelessHost(t *testing.T) {
	needSandbox(t)
	need(t, hostcaps.OverlayIDMapped)
	needProgram(t, "sh", "ln", "mkdir", "touch", "chmod", "mkfifo", "mknod", "rm", "tar", "truncate", "cp")
	dir := t.TempDir()
	keep, out := filepath.Join(dir, "layer.tar"), filepath.Join(dir, "out")
	victim := write(t, filepath.Join(dir, "victim"), "the host's", 0o600)
	const script = `cd /usr
ln -s / rootlink; ln -s ../../../../../../etc/shadow shadow; ln -s $VICTIM out-link; ln -s $VICTIM/.. out-folder
ln out-link out-hard; ln -s loop loop
rm -rf /usr/share/doc 2>/dev/null; ln -s $VICTIM/.. /usr/share/doc
mkdir -p .wh..wh..opq .wh.dir/sub 2>&1; touch .wh.passwd .wh..wh.aufs .wh..wh..plnk lib/.wh.x86_64-linux-gnu /.wh.etc /.wh..wh..opq /top
touch "$(printf 'a\n18 path=x\n')" "$(printf 'x\033[31mred')" "$(printf '\377\376')" "$(printf 'r\342\200\256l')" ./-rf './--checkpoint-action=exec=sh' 'a=b' ' '
touch "$(printf 'n%.0s' $(seq 255))"; ln -s "$(printf '\n18 path=/tmp/x\n')" "$(printf 'l\nink')"; ln -s "$(printf 's%.0s' $(seq 4000))" long-link
touch -d @-99999999999 old; touch -d @99999999999 new; touch -d @0.123456789 nano
cp /bin/true suid; chmod 4755 suid; chmod 2755 suid; setcap cap_sys_admin+ep suid; setfattr -n user.x -v y suid; setfattr -n trusted.overlay.opaque -v y .
setfattr -n security.capability -v 0sAQAAAgAgAAAAAAAAAAAAAAAAAAA= suid
mkfifo pipe; mknod white c 0 0; mknod null c 1 3; mknod disk b 8 0; mknod /white c 0 0; mknod /disk b 8 0
chmod 7777 /usr/games; chmod 777 .; chmod 000 nano; truncate -s 700 tail; mkdir -m 000 closed
echo done`
	r := tool(t, "exec", "--ring", "1", "--on-breach", "record", "--keep", keep, "--env", "VICTIM="+victim, "--", "/bin/sh", "-c", script)
	if !strings.Contains(r.stdout, "done") {
		t.Fatalf("exit %d\n%s%s", r.exit, r.stdout, r.stderr)
	}
	if err := os.Mkdir(out, 0o755); err != nil {
		t.Fatal(err)
	}
	before := tree(t, dir)
	if text, err := exec.Command("tar", "-C", out, "-xf", keep).CombinedOutput(); err != nil {
		t.Errorf("tar: %v\n%s", err, text)
	}
	seen := map[string]bool{}
	for name, h := range headers(t, keep) {
		clean := filepath.Clean(name)
		if filepath.IsAbs(name) || strings.HasPrefix(clean, "..") || !filepath.IsLocal(clean) {
			t.Errorf("entry %q leads out of the folder", name)
		}
		if seen[clean] {
			t.Errorf("entry %q comes twice", name)
		}
		seen[clean] = true
		if !slices.Contains([]byte{tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink}, h.Typeflag) || h.Mode&^0o777 != 0 || h.Uid != 0 || h.Gid != 0 {
			t.Errorf("entry %q is of type %c, mode %o, ids %d:%d", name, h.Typeflag, h.Mode, h.Uid, h.Gid)
		}
		if h.Typeflag == tar.TypeLink && !seen[filepath.Clean(h.Linkname)] {
			t.Errorf("entry %q is a hard link to %q, which no entry before it is", name, h.Linkname)
		}
		for key := range h.PAXRecords {
			if !slices.Contains([]string{"path", "linkpath", "mtime"}, key) {
				t.Errorf("entry %q has the record %q", name, key)
			}
		}
		if base := filepath.Base(clean); strings.HasPrefix(base, ".wh.") && !strings.HasPrefix(clean, "usr/share/") {
			t.Errorf("entry %q would be taken for a deletion that the agent didn't make", name)
		}
	}
	for _, want := range []string{"usr/a\n18 path=x", "usr/x\x1b[31mred", "usr/-rf", "top", "usr/rootlink"} {
		if !seen[want] {
			t.Errorf("the layer lacks %q: what the host unpacks isn't what the agent made", want)
		}
	}
	filepath.Walk(out, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			t.Error(err)
			return nil
		}
		if info.Mode()&(os.ModeSetuid|os.ModeSetgid|os.ModeDevice|os.ModeNamedPipe|os.ModeSocket) != 0 {
			t.Errorf("unpacked: %q is %v", path, info.Mode())
		}
		var names [1024]byte
		if n, err := unix.Llistxattr(path, names[:]); err == nil && bytes.Contains(names[:n], []byte("security.capability")) {
			t.Errorf("unpacked: %q has capabilities", path)
		}
		return nil
	})
	if b, err := os.ReadFile(victim); string(b) != "the host's" {
		t.Errorf("the host's file is now %q, %v", b, err)
	}
	if err := os.RemoveAll(out); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(out, 0o755); err != nil {
		t.Fatal(err)
	}
	if after := tree(t, dir); after != before {
		t.Errorf("unpacking changed what is beside the folder\nbefore:\n%s\nafter:\n%s", before, after)
	}
}

// headers gives the entries of a tar file in their order.
func headers(t *testing.T, name string) iter.Seq2[string, *tar.Header] {
	return func(yield func(string, *tar.Header) bool) {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for r := tar.NewReader(f); ; {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !yield(h.Name, h) {
				return
			}
		}
	}
}
