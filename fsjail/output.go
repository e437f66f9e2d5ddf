// SPDX-License-Identifier: Apache-2.0

package fsjail

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Output is a file that is written when a run is over, into a folder that was opened before its agent began.
//
// The attack: the folder lies in the workspace, the agent puts a link to /etc in its place, and a supervisor that is root creates
// or replaces a name there. A descriptor stays with the folder that was meant (openat(2), "Rationale"); an O_PATH one asks for no
// right but to walk there. A link in the file's own place was never followed: rename(2) replaces it. What remains: the file itself
// lies where the run, or another run of that folder, may change it.
type Output struct {
	dir  *os.File
	name string
}

// maxLinks is the kernel's own bound (path_resolution(7)).
const maxLinks = 40

// OpenOutput opens the folder that name is in. Links on the way are the operator's and are followed, but not below one of the
// folders in shown: there an earlier run, or one that lives, may have put them.
func OpenOutput(name string, shown []string) (*Output, error) {
	dir, base := filepath.Split(name)
	if base == "" || base == "." || base == ".." {
		return nil, fmt.Errorf("%q names no file", name)
	}
	folder, err := OpenFolder(dir, shown)
	if err != nil {
		return nil, err
	}
	o := &Output{folder, base}
	var st unix.Stat_t
	if err := unix.Fstatat(int(folder.Fd()), base, &st, 0); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		_ = o.Close()
		return nil, fmt.Errorf("%q is not a regular file", name)
	}
	return o, nil
}

// OpenFolder opens a folder, as a place only, with the links that OpenOutput follows.
func OpenFolder(dir string, shown []string) (*os.File, error) {
	dir, err := withoutLinks(dir, shown)
	if err != nil {
		return nil, err
	}
	fd, err := openNoLinks(dir, unix.O_DIRECTORY)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return os.NewFile(uintptr(fd), dir), nil
}

// withoutLinks resolves a folder's path component by component.
func withoutLinks(dir string, shown []string) (string, error) {
	at, err := os.Getwd()
	if err != nil && !filepath.IsAbs(dir) {
		return "", err
	}
	if filepath.IsAbs(dir) {
		at = "/"
	}
	var folders []string
	for _, s := range shown {
		if s, err := filepath.EvalSymlinks(s); err == nil {
			folders = append(folders, s)
		}
	}
	rest := strings.Split(dir, "/")
	for followed := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		if name == "" || name == "." {
			continue
		}
		next := filepath.Join(at, name) // at has no links: ".." is its parent
		info, err := os.Lstat(next)
		if err != nil {
			return "", err
		}
		if info.Mode().Type() != fs.ModeSymlink {
			at = next
			continue
		}
		for _, s := range folders {
			if at == s || strings.HasPrefix(at, strings.TrimSuffix(s, "/")+"/") {
				return "", fmt.Errorf("%q is a link in %q, which a run may write: what it leads to is not the operator's choice", next, s)
			}
		}
		link, err := os.Readlink(next)
		if followed++; err == nil && followed > maxLinks {
			err = &os.PathError{Op: "open", Path: next, Err: unix.ELOOP}
		}
		if err != nil {
			return "", err
		}
		if filepath.IsAbs(link) {
			at = "/"
		}
		rest = append(strings.Split(link, "/"), rest...)
	}
	return at, nil
}

// Write puts the file in its place whole: fill gets a new one beside it, which then takes its name. When it returns nil the file is on the
// disk: what it was written from is about to go.
func (o *Output) Write(fill func(*os.File) error) (err error) {
	dir := int(o.dir.Fd())
	var f *os.File
	for n := 0; f == nil; n++ {
		temp := fmt.Sprintf(".%.200s.%d-%d", o.name, os.Getpid(), n)
		fd, err := unix.Openat(dir, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		switch {
		case err == nil:
			f = os.NewFile(uintptr(fd), temp)
		case !errors.Is(err, unix.EEXIST) || n == 1000: // names that somebody has put there first
			return &os.PathError{Op: "create", Path: filepath.Join(o.dir.Name(), temp), Err: err}
		}
	}
	if err = fill(f); err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.NewSyscallError("renameat", unix.Renameat(dir, f.Name(), dir, o.name))
	}
	if err != nil {
		_ = unix.Unlinkat(dir, f.Name(), 0) // the error that brought us here is the one to report
		return err
	}
	return o.syncDir()
}

// syncDir has the file's name last, too: o.dir itself may only be walked through.
func (o *Output) syncDir() error {
	fd, err := unix.Openat(int(o.dir.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: o.dir.Name(), Err: err}
	}
	defer unix.Close(fd)
	return os.NewSyscallError("fsync", unix.Fsync(fd))
}

// Try finds out ahead whether Write could.
func (o *Output) Try() error {
	if err := o.Write(func(*os.File) error { return errOnlyTried }); !errors.Is(err, errOnlyTried) {
		return err
	}
	return nil
}

var errOnlyTried = errors.New("only tried")

// Close lets go of the folder. It may be called on nil.
func (o *Output) Close() error {
	if o == nil {
		return nil
	}
	return o.dir.Close()
}
