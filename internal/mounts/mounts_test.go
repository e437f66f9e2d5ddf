// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentrun/internal/thread"
)

func TestParse(t *testing.T) {
	text := strings.Join([]string{
		`22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw`,
		`23 22 0:30 /@var /var\040lib rw,relatime shared:2 master:7 propagate_from:1 - btrfs /dev/sdb rw,subvolid=256`,
		`24 22 0:31 / /merged rw - overlay overlay rw,lowerdir=/l1:/l\0402,upperdir=/up,workdir=/work,index=off`,
		`25 22 0:32 / /more rw - overlay - rw,lowerdir+=/l3,datadir+=/data`,
	}, "\n") + "\n"
	table, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if m := table.Mounts[1]; m.ID != 23 || m.Parent != 22 || m.At != "/var lib" || m.root != (Place{"0:30", "/@var"}) || m.layers != nil {
		t.Errorf("got %+v", m)
	}
	for i, want := range map[int]string{2: "/l1 /l 2 /up", 3: "/l3 /data"} {
		if got := strings.Join(table.Mounts[i].layers, " "); got != want {
			t.Errorf("layers of mount %d: got %q, want %q", i, got, want)
		}
	}
	for _, bad := range []string{"x 1 8:1 / / rw - ext4 d rw\n", "22 1 8:1 / / rw shared:1\n", "22 1 8:1 - / / rw ext4 d rw\n", "22 1 8:1 / / rw - ext4\n", "\n"} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestWithin(t *testing.T) {
	for _, c := range []struct {
		p, dir Place
		want   bool
	}{
		{Place{"8:1", "/a/b"}, Place{"8:1", "/a"}, true},
		{Place{"8:1", "/a"}, Place{"8:1", "/a"}, true},
		{Place{"8:1", "/a"}, Place{"8:1", "/"}, true},
		{Place{"8:1", "/a"}, Place{"8:1", "/a/b"}, false},
		{Place{"8:1", "/a-1"}, Place{"8:1", "/a"}, false},
		{Place{"8:2", "/a/b"}, Place{"8:1", "/a"}, false},
	} {
		if got := c.p.Within(c.dir); got != c.want {
			t.Errorf("%v within %v: got %v", c.p, c.dir, got)
		}
	}
}

// The same files, by every way to mount them that needs no other file system.
func TestSameFilesElsewhere(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("need: root, to mount")
	}
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"state/keys", "alias", "up/alias", "ws/sub/state", "other", "ws/overlay", "work", "upper", "beside"} {
		if err := os.MkdirAll(at(name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	thread.Throwaway(func() {
		for _, err := range []error{
			unix.Unshare(unix.CLONE_NEWNS),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount(at("state"), at("alias"), "", unix.MS_BIND, ""),
			unix.Mount(dir, at("up/alias"), "", unix.MS_BIND, ""),
			unix.Mount(at("state/keys"), at("ws/sub/state"), "", unix.MS_BIND, ""),
			unix.Mount("tmpfs", at("other"), "tmpfs", 0, ""),
			unix.Mount("overlay", at("ws/overlay"), "overlay", 0, "lowerdir="+at("state")+",upperdir="+at("upper")+",workdir="+at("work")),
		} {
			if err != nil {
				t.Error(err)
				return
			}
		}
		// /proc/self is the main thread's table.
		text, err := os.ReadFile("/proc/thread-self/mountinfo")
		if err != nil {
			t.Error(err)
			return
		}
		table, err := parse(string(text))
		if err != nil {
			t.Error(err)
			return
		}
		places := func(name string) []Place {
			spot, err := new(View).Nearest(at(name))
			if err != nil {
				t.Error(name, err)
			}
			own, under, err := table.Places(spot)
			if err != nil {
				t.Error(name, err)
			}
			return append(own, under...)
		}
		for name, want := range map[string]bool{
			"state": true, "state/keys": true, "state/not/yet": true, "alias": true, "alias/keys": true, "up/alias": true, "up/alias/state/keys": true, "up": true,
			"ws": true, "ws/sub": true, "ws/overlay": true, "ws/overlay/keys": true, "": true,
			"other": false, "beside": false, "state-2": false, "up/alias/beside": false, "upper": false,
		} {
			if got := Overlap(places(name), places("state")); got != want {
				t.Errorf("%q and the state folder: got %v, want %v", name, got, want)
			}
		}
	})
}

func TestUnescape(t *testing.T) {
	for in, want := range map[string]string{`/a\040b`: "/a b", `\134`: `\`, `/x`: "/x", `\04`: `\04`, `a\999`: `a\999`} {
		if got := Unescape(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

// A mount that comes or goes below what is shown is another shape at once, also where a folder above it was only renamed.
func TestAlong(t *testing.T) {
	dir := t.TempDir()
	shown, hidden := filepath.Join(dir, "shown"), filepath.Join(dir, "a place\\away")
	at := filepath.Join(hidden, "x", "mount")
	if err := errors.Join(os.Mkdir(shown, 0o700), os.MkdirAll(at, 0o700)); err != nil {
		t.Fatal(err)
	}
	below := func(path string) int {
		t.Helper()
		table, err := Read()
		if err != nil {
			t.Fatal(err)
		}
		return len(table.Along([]string{path}))
	}
	if err := unix.Mount("none", at, "tmpfs", 0, ""); errors.Is(err, unix.EPERM) {
		t.Skip("need: CAP_SYS_ADMIN, to mount")
	} else if err != nil {
		t.Fatal(err)
	}
	gone := false
	defer func() {
		if !gone {
			_ = unix.Unmount(at, unix.MNT_DETACH)
		}
	}()
	if below(shown) != 0 || below(hidden) != 1 || below(at) != 1 || below(dir+"/sho") != 0 {
		t.Errorf("mounts: %d in shown, %d in hidden, %d at the mount", below(shown), below(hidden), below(at))
	}
	if err := os.Rename(filepath.Join(hidden, "x"), filepath.Join(shown, "x")); err != nil {
		t.Fatal(err)
	}
	at = filepath.Join(shown, "x", "mount")
	if below(shown) != 1 || below(hidden) != 0 {
		t.Errorf("after the rename: %d mounts in shown, %d in hidden, want 1 and 0", below(shown), below(hidden))
	}
	if err := unix.Unmount(at, 0); err != nil {
		t.Fatal(err)
	}
	gone = true
	if below(shown) != 0 {
		t.Error("a mount that went is still listed")
	}
}

func FuzzParse(f *testing.F) {
	f.Add("22 1 8:1 / /a\\040b rw shared:1 - overlay d rw,lowerdir=/a:/b\n")
	f.Fuzz(func(t *testing.T, text string) {
		if table, err := parse(text); (table == nil) == (err == nil) {
			t.Errorf("exactly one of table and error: %v, %v", table, err)
		}
	})
}
