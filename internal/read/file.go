// SPDX-License-Identifier: Apache-2.0

package read

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// OthersMayWrite are bits of a mode. A file whose text decides something has neither.
const OthersMayWrite = 0o022

// File returns the text of a file that only root or this process's user can have written, read through the
// descriptor that was looked at. deny are the bits of its mode that must not be set, most is its size in
// bytes. The error is fs.ErrPermission where somebody else could have written it, and where it is no regular
// file.
func File(path string, deny uint32, most int) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("stat %s: %w", path, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("%s is no regular file: %w", path, fs.ErrPermission)
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return nil, fmt.Errorf("%s belongs to user %d, want root or %d: %w", path, st.Uid, os.Geteuid(), fs.ErrPermission)
	case st.Mode&deny != 0:
		return nil, fmt.Errorf("%s has mode %04o, want at most %04o: %w", path, st.Mode&0o7777, 0o777&^deny, fs.ErrPermission)
	}
	text, err := io.ReadAll(io.LimitReader(f, int64(most)+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if len(text) > most {
		return nil, fmt.Errorf("%s is longer than %d bytes", path, most)
	}
	return text, nil
}

// Trusted refuses a file, as Regular has found it, that somebody else than root or this process's user could have written: fs.ErrPermission.
// In a user namespace root's files look like anybody's (user_namespaces(7)), and of those the mode alone counts.
func Trusted(name string, info os.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return fmt.Errorf("%s: nobody knows whose it is: %w", name, fs.ErrPermission)
	case st.Uid != 0 && int(st.Uid) != os.Geteuid() && (st.Uid != unmapped || wholeHost()):
		return fmt.Errorf("%s belongs to user %d, want root or %d: %w", name, st.Uid, os.Geteuid(), fs.ErrPermission)
	case st.Mode&OthersMayWrite != 0:
		return fmt.Errorf("%s has mode %04o, want at most %04o: %w", name, st.Mode&0o7777, 0o777&^OthersMayWrite, fs.ErrPermission)
	}
	return nil
}

// unmapped is /proc/sys/kernel/overflowuid where nobody has changed it.
const unmapped = 65534

// wholeHost says that every id of the host's is known by its number here.
func wholeHost() bool {
	text, err := Kernel("/proc/self/uid_map")
	return err != nil || slices.Equal(strings.Fields(text), []string{"0", "0", "4294967295"})
}

// Regular returns a regular file's text, and what it is. Of one that is longer than most bytes it is one
// byte more, for YAML to tell. A FIFO in its place can't hang us, and a device not feed us without end.
func Regular(name string, most int) ([]byte, os.FileInfo, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) //nolint:gosec // the operator names it
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, &os.PathError{Op: "read", Path: name, Err: errors.New("not a regular file")}
	}
	text, err := io.ReadAll(io.LimitReader(f, int64(most)+1))
	return text, info, err
}
