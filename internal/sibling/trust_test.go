// SPDX-License-Identifier: Apache-2.0

package sibling

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func link(t *testing.T, to, at string) string {
	t.Helper()
	if err := os.Symlink(to, at); err != nil {
		t.Fatal(err)
	}
	return at
}

func TestTrust(t *testing.T) {
	dir := program(t, 0o755)
	file := filepath.Join(dir, "p")
	folder := link(t, dir, filepath.Join(t.TempDir(), "folder"))
	for _, path := range []string{file, folder + "/p", folder + "/.//../" + filepath.Base(dir) + "/p", link(t, "../"+filepath.Base(filepath.Dir(folder))+"/folder/p", filepath.Join(t.TempDir(), "x"))} {
		got, err := Trust(path)
		if want, e := filepath.EvalSymlinks(path); e != nil {
			if err == nil {
				t.Errorf("%s: got %q, the kernel finds %v", path, got, e)
			}
		} else if err != nil || got != want {
			t.Errorf("%s: got %q, %v, want %q", path, got, err, want)
		}
	}
	for path, want := range map[string]error{
		file + "x": fs.ErrNotExist, file + "/x": unix.ENOTDIR, dir: fs.ErrPermission, program(t, 0o644) + "/p": fs.ErrPermission,
		program(t, 0o757) + "/p": fs.ErrPermission, link(t, "loop", filepath.Join(dir, "loop")): unix.ELOOP,
	} {
		if got, err := Trust(path); !errors.Is(err, want) {
			t.Errorf("%s: got %q, %v, want %v", path, got, err, want)
		}
	}
	if got, err := Trust("bin/sh"); err == nil {
		t.Errorf("a relative path: got %q", got)
	}
}

// A link that somebody else can put another in the place of leads to a good program today.
func TestThreatTakeoverLinkOfOthers(t *testing.T) {
	dir := t.TempDir()
	path := link(t, "/bin/sh", filepath.Join(dir, "sh"))
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if got, err := Trust(path); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("in a folder that everybody writes: got %q, %v", got, err)
	}
	if os.Geteuid() != 0 {
		return // nobody else can give a link away
	}
	if err := errors.Join(os.Chmod(dir, 0o777|fs.ModeSticky), os.Lchown(path, 12345, 12345)); err != nil {
		t.Fatal(err)
	}
	if got, err := Trust(path); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("another user's, in a sticky folder: got %q, %v", got, err)
	}
}

func TestTrustFile(t *testing.T) {
	for mode, want := range map[fs.FileMode]error{0o644: nil, 0o600: nil, 0o664: fs.ErrPermission, 0o646: fs.ErrPermission, 0o646 | fs.ModeSticky: fs.ErrPermission} {
		if err := TrustFile(program(t, mode) + "/p"); !errors.Is(err, want) {
			t.Errorf("mode %v: got %v, want %v", mode, err, want)
		}
	}
}

// Every place that decides what a path means, also those that aren't on its end.
func TestThrough(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"a", "b"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	link(t, "../b", filepath.Join(dir, "a", "l"))
	link(t, "/usr/bin/env", filepath.Join(dir, "b", "x"))
	got := Through(dir + "/a/l/x")
	for _, want := range []string{dir + "/a", dir + "/a/l", dir + "/b", dir + "/b/x", "/usr/bin/env"} {
		if !slices.Contains(got, want) {
			t.Errorf("got %v, want %s among them", got, want)
		}
	}
	if got := Through(dir + "/none/y"); !slices.Contains(got, dir+"/none") {
		t.Errorf("got %v, want what isn't there too: somebody may make it", got)
	}
}
