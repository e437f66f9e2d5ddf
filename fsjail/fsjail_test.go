// SPDX-License-Identifier: Apache-2.0

package fsjail

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// inside runs fn on a thread with a mount namespace of its own that dies with it.
func inside(t *testing.T, fn func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		goruntime.LockOSThread()
		err := Isolate()
		if err == nil {
			fn()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

var agent = IDs{UID: 0x70000000 + 1000, GID: 0x70000000 + 1000}

// build makes a view and gives it to check on the building thread; paths are below root.Path there.
func build(t *testing.T, entries []Entry, opt Options, check func(*Root)) (err error) {
	t.Helper()
	dir := t.TempDir()
	inside(t, func() {
		var r *Root
		if r, err = Build(dir, entries, agent, opt); err == nil && check != nil {
			check(r)
		}
	})
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("M-5: visible outside of the builder's namespace: %v", left)
	}
	return err
}

func hostDir(t *testing.T) string {
	t.Helper()
	// Not t.TempDir: its path must hold no link, as Build refuses them.
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("host"), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// M-2: the skeleton and the binds are read-only, the scratch is bounded, both names lead to it.
func TestReadOnlyViewAndScratch(t *testing.T) {
	src := hostDir(t)
	err := build(t, []Entry{
		{Kind: Bind, Target: "/usr", Source: src},
		{Kind: File, Target: "/etc/passwd", Content: "x", Mode: 0o444},
		{Kind: Dir, Target: "/tmp", Mode: 0o755},
		{Kind: Tmpfs, Target: "/tmp", Size: 64 << 10, Mode: 0o700},
		{Kind: Dir, Target: "/tmp/sandbox", Mode: 0o700, Agent: true},
		{Kind: Again, Target: "/tmp/sandbox", Source: "/tmp"},
	}, Options{}, func(r *Root) {
		for _, p := range []string{"/new", "/usr/new", "/etc/new"} {
			if err := os.WriteFile(r.Path+p, nil, 0o644); !errors.Is(err, unix.EROFS) {
				t.Errorf("write %s: got %v, want %v", p, err, unix.EROFS)
			}
		}
		if err := os.WriteFile(r.Path+"/tmp/sandbox/f", []byte("y"), 0o644); err != nil {
			t.Error(err)
		}
		if b, err := os.ReadFile(r.Path + "/tmp/f"); string(b) != "y" {
			t.Errorf("the scratch under its other name: %q, %v", b, err)
		}
		if err := os.WriteFile(r.Path+"/tmp/big", make([]byte, 1<<20), 0o644); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("over the scratch size: got %v, want %v", err, unix.ENOSPC)
		}
		if err := unix.Access(r.Path+"/tmp", unix.X_OK); err != nil {
			t.Error(err)
		}
		var st unix.Statfs_t
		if err := unix.Statfs(r.Path+"/tmp", &st); err != nil || st.Flags&(unix.ST_NOEXEC|unix.ST_NOSUID|unix.ST_NODEV) != unix.ST_NOEXEC|unix.ST_NOSUID|unix.ST_NODEV {
			t.Errorf("scratch flags %#x, %v: want nosuid, nodev, noexec", st.Flags, err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// CVE-2021-30465: a source that became a link after it was looked at is refused, not followed.
func TestSourceLinkIsRefused(t *testing.T) {
	src := hostDir(t)
	if err := os.Symlink("/etc", filepath.Join(src, "swapped")); err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{"/swapped", "/swapped/ssl"} {
		err := build(t, []Entry{{Kind: Bind, Target: "/x", Source: src + source}}, Options{}, nil)
		if !errors.Is(err, unix.ELOOP) {
			t.Errorf("%s: got %v, want %v", source, err, unix.ELOOP)
		}
	}
}

// CVE-2019-19921: a mount point that leads through a link of the root is refused.
func TestTargetLinkIsRefused(t *testing.T) {
	src := hostDir(t)
	root := hostDir(t)
	if err := os.Symlink("/", filepath.Join(root, "out")); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"/link/x", "/root/out/x", "/root/out"} {
		err := build(t, []Entry{
			{Kind: Link, Target: "/link", Source: "/etc"},
			{Kind: Bind, Target: "/root", Source: root},
			{Kind: Bind, Target: target, Source: src},
		}, Options{}, nil)
		if !errors.Is(err, unix.ENOTDIR) {
			t.Errorf("%s: got %v, want %v", target, err, unix.ENOTDIR)
		}
	}
}

// Nothing is created in a directory of the host, not even a mount point.
func TestNoMountPointInHostDirectory(t *testing.T) {
	src := hostDir(t)
	for _, e := range []Entry{
		{Kind: Bind, Target: "/ws/new", Source: src}, {Kind: Dir, Target: "/ws/new"}, {Kind: Link, Target: "/ws/new"},
		{Kind: File, Target: "/ws/new"}, {Kind: Bind, Target: "/ws/a/b", Source: src + "/file", IsFile: true},
	} {
		err := build(t, []Entry{{Kind: Bind, Target: "/ws", Source: src, Writable: true}, e}, Options{}, nil)
		if !errors.Is(err, ErrNoMountPoint) {
			t.Errorf("%s %s: got %v, want %v", e.Kind, e.Target, err, ErrNoMountPoint)
		}
		names, _ := os.ReadDir(src)
		if len(names) != 1 {
			t.Fatalf("the host's directory now holds %v", names)
		}
	}
}

// What the agent creates in an idmapped workspace belongs to its owner on the host.
func TestWorkspaceOwnership(t *testing.T) {
	src := hostDir(t)
	if err := os.Chown(src, 4242, 4343); err != nil {
		t.Fatal(err)
	}
	err := build(t, []Entry{{Kind: Bind, Target: "/workspace", Source: src, Writable: true, Owner: &Owner{4242, 4343}}}, Options{}, func(r *Root) {
		var st unix.Stat_t
		if err := unix.Stat(r.Path+"/workspace", &st); err != nil || int(st.Uid) != agent.UID || int(st.Gid) != agent.GID {
			t.Errorf("inside it belongs to %d:%d, %v, want the agent", st.Uid, st.Gid, err)
		}
		if err := unix.Stat(r.Path+"/workspace/file", &st); err != nil || st.Uid != 65534 {
			t.Errorf("a stranger's file belongs to %d, %v, want nobody", st.Uid, err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Ring 1: the root is writable and the host unchanged; what changed can be saved as a layer.
func TestOverlayAndLayer(t *testing.T) {
	src := hostDir(t)
	if err := os.Mkdir(filepath.Join(src, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "layer.tar")
	err := build(t, []Entry{{Kind: Overlay, Target: "/usr", Source: src}}, Options{Writable: true, UpperSize: 1 << 20}, func(r *Root) {
		for _, err := range []error{
			os.WriteFile(r.Path+"/usr/new", []byte("n"), 0o4755),
			os.Chmod(r.Path+"/usr/new", 0o4755|os.ModeSetuid),
			unix.Setxattr(r.Path+"/usr/new", "security.capability", []byte("\x01\x00\x00\x02\x00\x00\x20\x00"+strings.Repeat("\x00", 12)), 0),
			os.WriteFile(r.Path+"/usr/.wh.forged", nil, 0o600),
			os.Link(r.Path+"/usr/new", r.Path+"/usr/new again"),
			os.Remove(r.Path + "/usr/file"),
			os.Symlink("/etc/shadow", r.Path+"/usr/link"),
			os.Mkdir(r.Path+"/opt", 0o755),
			os.WriteFile(r.Path+"/opt/x", []byte("xx"), 0o600),
			unix.Mkfifo(r.Path+"/opt/fifo", 0o600),
			unix.Mknod(r.Path+"/opt/white", unix.S_IFCHR, 0),
			r.SaveLayer(output(t, out)),
		} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(src, "file")); string(b) != "host" {
		t.Errorf("the host's file is %q, %v", b, err)
	}
	got := tarNames(t, out)
	want := []string{"opt/", "opt/x", "usr/", "usr/.wh.file", "usr/link", "usr/new", "usr/new again"}
	if !slices.Equal(got, want) {
		t.Errorf("layer holds %v, want %v", got, want)
	}
}

func tarNames(t *testing.T, name string) (names []string) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := tar.NewReader(f)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Mode&0o6000 != 0 || h.Uid != 0 || len(h.PAXRecords) > 0 {
			t.Errorf("%s: mode %o, uid %d, records %v: set-id bits, ids and attributes must not be kept", h.Name, h.Mode, h.Uid, h.PAXRecords)
		}
		if linked := h.Name == "usr/new again"; linked != (h.Typeflag == tar.TypeLink) {
			t.Errorf("%s is of type %c: a second name of a file is a link, and only that", h.Name, h.Typeflag)
		}
		names = append(names, h.Name)
	}
	slices.Sort(names)
	return names
}

// CVE-2019-19921, CVE-2025-52881, CVE-2026-41579: links in the place of what agentrun mounts.
func TestHostileSuppliedRoot(t *testing.T) {
	for _, name := range []string{"proc", "sys", "dev", "tmp", "workspace", ".agentrun-init"} {
		dir := hostDir(t)
		if err := os.Symlink("/etc", filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if _, err := SuppliedRoot(dir); !errors.Is(err, ErrHostileRoot) {
			t.Errorf("%s as a link: got %v, want %v", name, err, ErrHostileRoot)
		}
	}
	dir := hostDir(t)
	if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := SuppliedRoot(dir); !errors.Is(err, ErrHostileRoot) {
		t.Errorf("a pipe at the top: got %v, want %v", err, ErrHostileRoot)
	}
}

func TestCheckTarget(t *testing.T) {
	for target, good := range map[string]bool{
		"/data": true, "/usr/local/x": true, "/tmp/sandbox/in": true, "/tmp/x": true,
		"": false, "/": false, "data": false, "/a/../b": false, "/proc": false, "/proc/1": false, "/dev/null": false,
		"/sys/fs": false, "/tmp": false, "/tmp/sandbox": false, "/.agentrun-init": false, "/a\x00": false, "/a/": false,
	} {
		if err := CheckTarget(target); (err == nil) != good {
			t.Errorf("%q: %v, want good=%v", target, err, good)
		}
	}
}

// The zero entry and half entries build nothing.
func TestZeroValuesRefuse(t *testing.T) {
	for _, e := range []Entry{{}, {Target: "/x"}, {Kind: "what", Target: "/x"}, {Kind: Tmpfs, Target: "/x"}, {Kind: Overlay, Target: "/x", Source: "/usr"}, {Kind: Again, Target: "/x", Source: "/y"}, {Kind: Dir, Target: "x"}, {Kind: Dir, Target: "/a/../b"}} {
		if err := build(t, []Entry{e}, Options{}, nil); err == nil {
			t.Errorf("%+v was built", e)
		}
	}
}

// The domain gives no right that the ABI at hand doesn't know, no execution in the scratch, and no
// write outside of scratch, /dev, what is writable and a workspace that an elevation may open.
func TestLandlockDomain(t *testing.T) {
	entries := []Entry{
		{Kind: Bind, Target: "/usr", Source: "/usr", Exec: true},
		{Kind: Bind, Target: "/etc/passwd", Source: "/etc/passwd", IsFile: true},
		{Kind: Bind, Target: "/opt/tool", Source: "/x", IsFile: true, Exec: true},
		{Kind: Tmpfs, Target: "/tmp", Size: 1},
		{Kind: Bind, Target: "/workspace", Source: "/w", Exec: true, Owner: &Owner{}, Live: true},
		{Kind: Bind, Target: "/data", Source: "/d", Owner: &Owner{}, Writable: true},
		{Kind: Bind, Target: "/only-read", Source: "/w", Exec: true, Owner: &Owner{}}, // a FIFO in it must not be written either
	}
	for abi := 1; abi <= 7; abi++ {
		d := Landlock(abi, entries, false)
		if d.FS&(unix.LANDLOCK_ACCESS_FS_READ_FILE|unix.LANDLOCK_ACCESS_FS_READ_DIR|unix.LANDLOCK_ACCESS_FS_TRUNCATE) != 0 {
			t.Errorf("ABI %d: reading or truncating is walled, which every open pays for", abi)
		}
		for _, r := range d.Rules {
			if r.Access&^d.FS != 0 {
				t.Errorf("ABI %d: %s gets %#x beyond what is handled", abi, r.Path, r.Access&^d.FS)
			}
			writes := r.Access&(unix.LANDLOCK_ACCESS_FS_WRITE_FILE|unix.LANDLOCK_ACCESS_FS_MAKE_REG) != 0
			if may := slices.Contains([]string{"/tmp", "/workspace", "/data", "/dev"}, r.Path); writes != may {
				t.Errorf("ABI %d: %s may be written", abi, r.Path)
			}
			if r.Access&unix.LANDLOCK_ACCESS_FS_EXECUTE != 0 && strings.HasPrefix(r.Path, "/tmp") {
				t.Errorf("ABI %d: %s may be executed", abi, r.Path)
			}
			if r.Access&(unix.LANDLOCK_ACCESS_FS_MAKE_CHAR|unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK) != 0 {
				t.Errorf("ABI %d: device nodes may be made in %s", abi, r.Path)
			}
			if r.Path == "/opt/tool" && r.Access&^fileRights != 0 {
				t.Errorf("ABI %d: a file gets rights of directories: %#x", abi, r.Access)
			}
		}
	}
}
