// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// UnsafeError is a folder or file that isn't ours alone.
type UnsafeError struct {
	Path   string
	Reason string // what is wrong with it
	Fix    string // a command that mends it; empty if there is none to advise
}

func (e *UnsafeError) Error() string {
	s := fmt.Sprintf("state %s: %s", e.Path, e.Reason)
	if e.Fix != "" {
		s += " (if its content is to be trusted: " + e.Fix + ")"
	}
	return s
}

// CorruptError is a state file that can't be read. Err is what was found.
type CorruptError struct {
	Path string
	Err  error
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("state %s: damaged: %v. Stop all agentrun processes and put a backup in its place, or move it away: "+
		"agents, quarantines, sessions and sagas are then forgotten, the audit is not", e.Path, e.Err)
}

func (e *CorruptError) Unwrap() error { return e.Err }

// openDir makes the state folder if it isn't there and holds on to it. What we check is what we use: every file is
// opened beneath this descriptor, so a parent that belongs to somebody else can't swap the folder afterwards.
func openDir(path string) (*os.File, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("state folder: %w", err)
	}
	dir, err := os.OpenFile(path, unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("state folder: %w", err)
	}
	if err := ours(dir, path, unix.S_IFDIR, "chmod 700 "); err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// openFile opens a file of the state folder. A link there was put by somebody who must not be able to, and a second name
// of the file is a way in past the folder's mode.
func openFile(dir *os.File, name string, flag int) (*os.File, error) {
	path := filepath.Join(dir.Name(), name)
	// Opening a FIFO would wait for its other end.
	fd, err := unix.Openat(int(dir.Fd()), name, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.ELOOP) {
		return nil, &UnsafeError{Path: path, Reason: "is a symbolic link"}
	}
	if err != nil {
		return nil, fmt.Errorf("state %s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	if err := ours(f, path, unix.S_IFREG, "chmod 600 "); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// OpenBeside opens a file of the state folder that another package keeps beside the state, for reading and writing; both are made
// with modes 0700 and 0600 where they aren't there. The error is an *UnsafeError if anybody else could reach them.
func OpenBeside(folder, name string) (*os.File, error) {
	dir, err := openDir(folder)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return openFile(dir, name, unix.O_RDWR|unix.O_CREAT)
}

// exists tells whether the state folder has something called name, of whatever kind.
func exists(dir *os.File, name string) (bool, error) {
	var st unix.Stat_t
	err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return false, fmt.Errorf("state %s: %w", filepath.Join(dir.Name(), name), err)
	}
	return err == nil, nil
}

func ours(f *os.File, path string, kind uint32, chmod string) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("state %s: %w", path, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != kind:
		return &UnsafeError{Path: path, Reason: fmt.Sprintf("is of the wrong kind (mode %06o)", st.Mode)}
	case int(st.Uid) != os.Geteuid():
		return &UnsafeError{Path: path, Reason: fmt.Sprintf("belongs to user %d, want %d", st.Uid, os.Geteuid())}
	case st.Mode&0o077 != 0:
		return &UnsafeError{Path: path, Reason: fmt.Sprintf("mode %04o lets others in", st.Mode&0o7777), Fix: chmod + path}
	case kind == unix.S_IFREG && st.Nlink != 1:
		return &UnsafeError{Path: path, Reason: fmt.Sprintf("has %d names", st.Nlink)}
	}
	return nil
}
