// SPDX-License-Identifier: Apache-2.0

// Package beneath reads and changes the files of one folder in which a hostile agent writes at the same time.
//
// What it guarantees. The kernel resolves each path, and refuses to leave the folder, to follow a link of any kind and to
// enter another mount while it does (openat2(2): RESOLVE_BENEATH, NO_SYMLINKS, NO_MAGICLINKS, NO_XDEV). What is done is
// done to the descriptor that came of that, or to one name in a folder that is open, so a rename or a link that is put in
// place meanwhile leads nowhere else. Only plain files are read and written. A file is replaced whole or not at all.
// Nothing waits: neither for the other end of a pipe nor for the holder of a lease.
//
//	f, err := beneath.Open("/var/lib/agentrun/workspaces/build-7")
//	defer f.Close()
//	err = f.Write("notes/plan.md", text)
//
// Errors: ErrPath is a path that is none here; fs.ErrNotExist; ErrKind is something else than what was asked for, links
// among them; ErrFull is a folder with something in it. All others are the system's.
//
// What it does not protect against: hard links and bind mounts that somebody else has made in the folder (agents can make
// neither to what is outside of it); a folder that is filled by others.
//
// It fails closed: a kernel without openat2(2) refuses everything. A process that is killed while it writes leaves the old
// file as it was, and may leave a file that begins with temporary.
package beneath

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// The errors that callers tell from others.
var (
	ErrPath = errors.New("want a path beneath the folder: names between single slashes, none of them . or ..")
	ErrKind = errors.New("it is a link, or another kind of file")
	ErrFull = errors.New("the folder is not empty")
)

const (
	maxPath  = 1024 // bytes
	maxDepth = 32   // names; each that is missing costs a write to make it

	temporary = ".agentrun-" // what is written before it takes a file's place
)

// Folder is open until Close. It is safe for concurrent use.
type Folder struct{ dir *os.File }

// Open opens a folder that no agent may rename.
func Open(dir string) (*Folder, error) {
	d, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	return &Folder{d}, nil
}

// Close lets go of the folder.
func (f *Folder) Close() error { return f.dir.Close() }

// Entry is what a folder has under a name. Bytes are a plain file's.
type Entry struct {
	Name  string      `json:"name"`
	Kind  fs.FileMode `json:"kind"` // the type bits; 0: a plain file
	Bytes int64       `json:"bytes"`
}

// Check tells whether unsafePath may be a file's: ErrPath, or nil.
func Check(unsafePath string) error {
	_, err := names(unsafePath)
	return err
}

// names are the path's. What can't be seen is no name: people read it in a terminal, and models in a list.
func names(unsafePath string) ([]string, error) {
	parts := strings.Split(unsafePath, "/")
	bad := func(p string) bool { return p == "" || p == "." || p == ".." || len(p) > 255 }
	hidden := func(r rune) bool { return !unicode.IsGraphic(r) }
	if len(unsafePath) > maxPath || len(parts) > maxDepth || slices.ContainsFunc(parts, bad) ||
		!utf8.ValidString(unsafePath) || strings.ContainsFunc(unsafePath, hidden) {
		return nil, ErrPath
	}
	return parts, nil
}

// Read returns up to most bytes of a file from offset on, and how many it has.
func (f *Folder) Read(unsafePath string, offset int64, most int) (b []byte, size int64, err error) {
	if _, err := names(unsafePath); err != nil {
		return nil, 0, err
	}
	// Without waiting: a pipe has no writer, and an agent may hold a lease on its file (fcntl(2), F_SETLEASE).
	file, err := open(f.dir, unsafePath, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, 0, err
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return nil, 0, err
	}
	if !st.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("read %s: %w", unsafePath, ErrKind)
	}
	b = make([]byte, max(0, min(int64(most), st.Size()-offset)))
	n, err := file.ReadAt(b, offset)
	if errors.Is(err, io.EOF) { // cut short meanwhile
		err = nil
	}
	return b[:n], st.Size(), err
}

// List returns up to most of what a folder has, by name, and whether there is more. The empty path is the folder itself.
// Names that Check would refuse are left out, and so are files that are being written.
func (f *Folder) List(unsafePath string, most int) (list []Entry, more bool, err error) {
	if unsafePath != "" {
		if _, err := names(unsafePath); err != nil {
			return nil, false, err
		}
	}
	dir, err := open(f.dir, cmp.Or(unsafePath, "."), unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, false, err
	}
	defer dir.Close()
	found, err := dir.Readdirnames(most + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, false, err
	}
	if more = len(found) > most; more {
		found = found[:most]
	}
	slices.Sort(found)
	for _, name := range found {
		st, err := stat(dir, name)
		if err != nil || Check(name) != nil || strings.HasPrefix(name, temporary) {
			continue // gone meanwhile, or no name
		}
		e := Entry{Name: name, Kind: st.kind()}
		if e.Kind == 0 {
			e.Bytes = st.Size
		}
		list = append(list, e)
	}
	return list, more, nil
}

// Write replaces a file, or makes it, with the folders on its way that are missing. Its permissions are kept. What has the
// name and is no plain file is left alone.
func (f *Folder) Write(unsafePath string, data []byte) (err error) {
	dir, name, err := f.parent(unsafePath, true)
	if err != nil {
		return err
	}
	defer dir.Close()
	mode := uint32(0o644)
	switch st, err := stat(dir, name); {
	case err == nil && st.kind() != 0:
		return fmt.Errorf("write %s: %w", unsafePath, ErrKind)
	case err == nil:
		mode = st.Mode & 0o777 // no set-user-ID bits: they'd be those of whoever writes here
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	// Under a name that nobody can guess and nothing has: an agent can't have put a link there.
	made := temporary + rand.Text()
	file, err := open(dir, made, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, file.Close()); err != nil {
			_ = unix.Unlinkat(int(dir.Fd()), made, 0) // it is nobody's
		}
	}()
	if _, err := file.Write(data); err != nil {
		return err
	}
	if err := file.Chmod(fs.FileMode(mode)); err != nil {
		return err
	}
	// It takes the place of the name itself, whatever that has become: a link isn't followed, a folder refuses (rename(2)).
	return wrap("renameat", unsafePath, unix.Renameat(int(dir.Fd()), made, int(dir.Fd()), name))
}

// Remove removes a plain file, a link (not what it leads to), or an empty folder.
func (f *Folder) Remove(unsafePath string) error {
	dir, name, err := f.parent(unsafePath, false)
	if err != nil {
		return err
	}
	defer dir.Close()
	st, err := stat(dir, name)
	if err != nil {
		return err
	}
	flags := 0
	if st.kind().IsDir() {
		flags = unix.AT_REMOVEDIR
	}
	err = unix.Unlinkat(int(dir.Fd()), name, flags)
	if errors.Is(err, unix.ENOTEMPTY) {
		err = ErrFull
	}
	return wrap("unlinkat", unsafePath, err)
}

// parent opens the folder that a path's last name is in. With create, folders that are missing are made, one by one: a path
// that mkdirat(2) walked by itself could lead through a link.
func (f *Folder) parent(unsafePath string, create bool) (dir *os.File, name string, err error) {
	parts, err := names(unsafePath)
	if err != nil {
		return nil, "", err
	}
	last := len(parts) - 1
	if !create {
		dir, err = open(f.dir, path.Join(append([]string{"."}, parts[:last]...)...), unix.O_PATH|unix.O_DIRECTORY)
		return dir, parts[last], err
	}
	dir, err = open(f.dir, ".", unix.O_PATH|unix.O_DIRECTORY)
	for _, part := range parts[:last] {
		if err != nil {
			return nil, "", err
		}
		above := dir
		err = unix.Mkdirat(int(above.Fd()), part, 0o755)
		if err == nil || errors.Is(err, unix.EEXIST) {
			dir, err = open(above, part, unix.O_PATH|unix.O_DIRECTORY)
		}
		_ = above.Close() // it was only looked at
	}
	return dir, parts[last], err
}

// tries is how often a resolution is begun anew that a rename got in the way of; somebody who keeps renaming gets an error.
const tries = 16

// open is the one way to a descriptor.
func open(dir *os.File, name string, flags uint64) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   flags | unix.O_CLOEXEC | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	if flags&unix.O_CREAT != 0 {
		how.Mode = 0o600
	}
	for try := 1; ; try++ {
		fd, err := unix.Openat2(int(dir.Fd()), name, &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), name), nil
		case try < tries && (errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR)):
		case slices.Contains([]error{unix.ELOOP, unix.ENOTDIR, unix.EXDEV, unix.ENXIO, unix.EISDIR}, err):
			return nil, fmt.Errorf("openat2 %s: %w", name, ErrKind) // a link, a file on the way, a mount, a pipe or socket
		default:
			return nil, wrap("openat2", name, err)
		}
	}
}

type status struct{ unix.Stat_t }

func stat(dir *os.File, name string) (st status, err error) {
	err = unix.Fstatat(int(dir.Fd()), name, &st.Stat_t, unix.AT_SYMLINK_NOFOLLOW)
	return st, wrap("fstatat", name, err)
}

// kind is 0 for a plain file.
func (s status) kind() fs.FileMode {
	switch s.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return 0
	case unix.S_IFDIR:
		return fs.ModeDir
	case unix.S_IFLNK:
		return fs.ModeSymlink
	}
	return fs.ModeIrregular
}

func wrap(call, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: call, Path: name, Err: err}
}
