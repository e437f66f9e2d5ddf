// SPDX-License-Identifier: Apache-2.0

package sibling

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Trust holds a program that an operator named by its absolute path to what Find asks of ours, and every link on the way to it as
// well: whoever owns a link chooses the program. It returns the program without links. Errors are fs.ErrPermission, fs.ErrNotExist,
// or what looking gave.
func Trust(path string) (real string, err error) {
	if real, err = follow(path, nil, func(at string, st *unix.Stat_t) error { return judge(at, st, false, os.Geteuid()) }); err != nil {
		return "", err
	}
	return real, trusted(real, os.Geteuid(), nil)
}

// TrustFile is Trust of a file that is read rather than executed.
func TrustFile(path string) error {
	_, err := follow(path, nil, func(at string, st *unix.Stat_t) error {
		if st.Mode&unix.S_IFMT == unix.S_IFREG {
			st.Mode &^= unix.S_ISVTX // excuses folders only
		}
		return judge(at, st, false, os.Geteuid())
	})
	return err
}

// Through names every folder, link and file that an absolute path leads through, each without links in its parents, as far as
// there is any: whoever may write one of them decides what the path means.
func Through(path string) []string {
	var through []string
	_, _ = follow(path, &through, func(string, *unix.Stat_t) error { return nil })
	return through
}

// maxLinks is the kernel's MAXSYMLINKS (path_resolution(7)).
const maxLinks = 40

// follow walks path as the kernel would, one name at a time, and shows each place to look.
func follow(path string, through *[]string, look func(at string, st *unix.Stat_t) error) (string, error) {
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("%q is no absolute path", path)
	}
	at, links := "/", 0
	for rest := strings.Split(path, "/"); len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			at = filepath.Dir(at)
			continue
		}
		next := filepath.Join(at, name)
		if through != nil {
			*through = append(*through, next)
		}
		var st unix.Stat_t
		if err := unix.Lstat(next, &st); err != nil {
			return "", &fs.PathError{Op: "stat", Path: next, Err: err}
		}
		link := st.Mode&unix.S_IFMT == unix.S_IFLNK
		if link {
			st.Mode = unix.S_IFLNK // 0777 always; its owner and its folder are what counts
		}
		if err := look(next, &st); err != nil {
			return "", err
		}
		if !link {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return "", &fs.PathError{Op: "follow", Path: path, Err: unix.ELOOP}
		}
		to, err := os.Readlink(next)
		if err != nil {
			return "", err
		}
		if filepath.IsAbs(to) {
			at = "/"
		}
		rest = append(strings.Split(to, "/"), rest...)
	}
	return at, nil
}
