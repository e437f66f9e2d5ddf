// SPDX-License-Identifier: Apache-2.0

package beneath

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// THREATS "joining and keeping": an agent leaves folders in each other, more of them than anybody may have open, and a start away from the end
// as many beside each other.
func TestRemoveAllOfWhatIsDeep(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 128, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &was) }()
	top := filepath.Join(t.TempDir(), "top")
	outside := filepath.Join(t.TempDir(), "kept")
	if err := errors.Join(os.Mkdir(top, 0o700), os.WriteFile(outside, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	at, err := os.Open(top)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3000 {
		fd := int(at.Fd())
		err := errors.Join(unix.Mkdirat(fd, "d", 0o700), unix.Symlinkat(outside, fd, "l"), unix.Mknodat(fd, "p", unix.S_IFIFO|0o600, 0))
		if i%1000 == 5 {
			err = errors.Join(err, unix.Mkdirat(fd, "e", 0o700))
		}
		if err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(fd, "d", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		at.Close()
		at = os.NewFile(uintptr(next), "d")
	}
	at.Close()
	if err := RemoveAll(top); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(top); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is there still: %v", err)
	}
	if _, err := os.Lstat(outside); err != nil {
		t.Errorf("what a link in it leads to: %v", err)
	}
	if err := RemoveAll(top); err != nil {
		t.Errorf("what isn't there: %v", err)
	}
	if err := errors.Join(os.Symlink(filepath.Dir(outside), top), RemoveAll(top)); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(outside); err != nil {
		t.Errorf("what a link leads to: %v", err)
	}
}

func TestClimbs(t *testing.T) {
	for link, want := range map[string]bool{
		"": false, "a/b": false, "../../a": false, "./../a/./b": false, "..": false, "a/..b": false,
		"a/..": true, "a/../b": true, "../a/../b": true, "a//../b": true,
	} {
		if Climbs(link) != want {
			t.Errorf("%q: %v", link, !want)
		}
	}
}
