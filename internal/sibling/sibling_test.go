// SPDX-License-Identifier: Apache-2.0

package sibling

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func program(t *testing.T, mode fs.FileMode) string {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "p")
	if err := errors.Join(os.WriteFile(file, []byte("x"), 0o755), os.Chmod(dir, 0o755), os.Chmod(file, mode)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestFind(t *testing.T) {
	empty, good, uid := t.TempDir(), program(t, 0o755), os.Geteuid()
	if got, err := find("p", []string{empty, good, program(t, 0o777)}, uid); err != nil || got != filepath.Join(good, "p") {
		t.Errorf("got %q, %v", got, err)
	}
	linked := t.TempDir()
	if err := os.Symlink(filepath.Join(good, "p"), filepath.Join(linked, "p")); err != nil {
		t.Fatal(err)
	}
	if got, err := find("p", []string{linked}, uid); err != nil || got != filepath.Join(good, "p") {
		t.Errorf("through a link: got %q, %v", got, err)
	}
	_, err := find("p", []string{empty, "/nonexistent"}, uid)
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), empty+"/p, /nonexistent/p") {
		t.Errorf("got %v, want where it looked", err)
	}
	for _, name := range []string{"", ".", "..", "a/b", "../p", "/bin/sh"} {
		if got, err := find(name, []string{good}, uid); err == nil {
			t.Errorf("%q: found %q", name, got)
		}
	}
	if _, err := Find("agentrun-no-such-program"); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "/usr/lib/agentrun/") {
		t.Errorf("got %v", err)
	}
}

func TestThreatTakeoverForeignSiblingIsRefused(t *testing.T) {
	uid := os.Geteuid()
	open := program(t, 0o755)
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	for name, dir := range map[string]string{"writable by others": program(t, 0o757), "by the group": program(t, 0o775), "not executable": program(t, 0o644), "folder writable": open} {
		if got, err := find("p", []string{dir, program(t, 0o755)}, uid); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s: got %q, %v, want a refusal", name, got, err)
		}
	}
	st := unix.Stat_t{Mode: unix.S_IFREG | 0o755, Uid: 1234}
	if err := judge("p", &st, true, 1000); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("another user's: %v", err)
	}
	for _, owner := range []uint32{0, 1000} {
		st.Uid = owner
		if err := judge("p", &st, true, 1000); err != nil {
			t.Errorf("owner %d: %v", owner, err)
		}
	}
	st = unix.Stat_t{Mode: unix.S_IFDIR | unix.S_ISVTX | 0o777}
	if err := judge("/tmp", &st, false, 1000); err != nil {
		t.Errorf("sticky folder: %v", err)
	}
}
