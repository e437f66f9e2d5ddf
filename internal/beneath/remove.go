// SPDX-License-Identifier: Apache-2.0

package beneath

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// mostOpen is how many folders in each other RemoveAll has open at once.
const mostOpen = 32

// RemoveAll removes what an agent has left under a name, as os.RemoveAll does, which has a descriptor for each of the folders that lie in each
// other: here what lies deeper is moved up before it goes. Errors name what is in the way by its last name alone.
func RemoveAll(name string) error {
	err := os.Remove(name)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	top, oerr := os.OpenFile(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if oerr != nil {
		return errors.Join(err, oerr)
	}
	err = (&remover{top}).empty(top, 1)
	top.Close()
	if err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return os.Remove(name)
}

type remover struct{ top *os.File }

// empty looks anew when it has come to the end: what was moved up has come since. Not before, as a file system that keeps the room of names
// that have gone reads all of it each time.
func (r *remover) empty(dir *os.File, depth int) error {
	for seen := false; ; {
		names, err := dir.Readdirnames(1024)
		for _, name := range names {
			if err := r.remove(dir, name, depth); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		switch {
		case len(names) > 0:
			seen = true
			continue
		case !errors.Is(err, io.EOF):
			return err
		case !seen:
			return nil
		}
		seen = false
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
}

func (r *remover) remove(dir *os.File, name string, depth int) error {
	at := int(dir.Fd())
	err := unix.Unlinkat(at, name, 0)
	if errors.Is(err, unix.EISDIR) {
		err = unix.Unlinkat(at, name, unix.AT_REMOVEDIR)
	}
	if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		return wrap("unlinkat", name, err)
	}
	if depth == mostOpen {
		return wrap("renameat2", name, unix.Renameat2(at, name, int(r.top.Fd()), rand.Text(), unix.RENAME_NOREPLACE))
	}
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return wrap("openat", name, err)
	}
	sub := os.NewFile(uintptr(fd), name)
	err = r.empty(sub, depth+1)
	sub.Close()
	if err != nil {
		return err
	}
	return wrap("unlinkat", name, unix.Unlinkat(at, name, unix.AT_REMOVEDIR))
}
