// SPDX-License-Identifier: Apache-2.0

// Package sibling finds the other programs of this installation. agentrun is started for every run and must stay small, so
// what is heavy (policies, the gateway) is a binary of its own, kept beside it or in a folder for such.
//
//	path, err := sibling.Find("agentrun-gateway")
//
// Trust holds programs that an operator's configuration names to the same.
//
// Guarantees. PATH and the working directory don't count. What is found is a regular, executable file; neither it nor a
// folder above it can be written by anybody but its owner, nor by a group, and owner of each is root or the user this
// process runs as: whoever could put a program there could run it as root. Symbolic links are followed, and what they lead
// to is held to the same.
//
// Errors. NotFoundError names every place that was looked at and why it wasn't taken.
//
// What it does not protect against. A change between Find and exec by the owners named. It fails closed: a place that can't
// be looked at isn't taken, and a binary that is refused hides those further down the list.
package sibling

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// NotFoundError tells where a program was looked for. It is fs.ErrNotExist if it was nowhere, and fs.ErrPermission if
// something was there that can't be trusted.
type NotFoundError struct {
	Name   string
	Looked []string
	Refuse error // nil: it was nowhere
}

func (e *NotFoundError) Error() string {
	if e.Refuse != nil {
		return fmt.Sprintf("find %s: %v", e.Name, e.Refuse)
	}
	return fmt.Sprintf("find %s: in none of %s", e.Name, strings.Join(e.Looked, ", "))
}

// Unwrap gives what errors.Is looks at.
func (e *NotFoundError) Unwrap() error {
	if e.Refuse != nil {
		return e.Refuse
	}
	return fs.ErrNotExist
}

// Find gives the absolute path, without links, of the program name: beside this program, in ../libexec/agentrun from there,
// in /usr/libexec/agentrun or in /usr/lib/agentrun.
func Find(name string) (string, error) {
	self, err := os.Readlink("/proc/self/exe") // not os.Executable: that is argv[0] where the link can't be read
	if err != nil {
		return "", fmt.Errorf("find %s: %w", name, err)
	}
	return find(name, []string{filepath.Dir(self), filepath.Join(filepath.Dir(self), "../libexec/agentrun"), "/usr/libexec/agentrun", "/usr/lib/agentrun"}, os.Geteuid())
}

func find(name string, dirs []string, uid int) (string, error) {
	if name == "" || filepath.Base(name) != name || name == "." || name == ".." {
		return "", fmt.Errorf("find %q: not the name of a program", name)
	}
	notFound := &NotFoundError{Name: name}
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		notFound.Looked = append(notFound.Looked, path)
		looked := map[string]unix.Stat_t{}
		real, err := follow(path, nil, func(at string, st *unix.Stat_t) error {
			looked[at] = *st
			return nil
		})
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = trusted(real, uid, looked)
		}
		if err != nil {
			notFound.Refuse = err
			return "", notFound
		}
		return real, nil
	}
	return "", notFound
}

// trusted judges the file and each folder above it: whoever may write a folder may replace what is in it. It looks at
// what wasn't looked at on the way there.
func trusted(path string, uid int, looked map[string]unix.Stat_t) error {
	for at, isFile := path, true; ; at, isFile = filepath.Dir(at), false {
		st, ok := looked[at]
		if !ok {
			if err := unix.Lstat(at, &st); err != nil {
				return fmt.Errorf("stat %s: %w", at, err)
			}
		}
		if err := judge(at, &st, isFile, uid); err != nil {
			return err
		}
		if at == filepath.Dir(at) {
			return nil
		}
	}
}

// judge lets a folder that everybody may write pass if it is sticky, as /tmp is: others can't replace what is root's or ours in it.
func judge(path string, st *unix.Stat_t, isFile bool, uid int) error {
	const others, sticky = 0o022, unix.S_ISVTX
	switch {
	case isFile && (st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o111 == 0):
		return fmt.Errorf("%s is no program: %w", path, fs.ErrPermission)
	case st.Uid != 0 && int(st.Uid) != uid:
		return fmt.Errorf("%s belongs to user %d, want root or %d: %w", path, st.Uid, uid, fs.ErrPermission)
	case st.Mode&others != 0 && (isFile || st.Mode&sticky == 0):
		return fmt.Errorf("%s can be written by others (mode %04o): %w", path, st.Mode&0o7777, fs.ErrPermission)
	}
	return nil
}
