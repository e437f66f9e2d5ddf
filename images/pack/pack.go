// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Limits bound a layer.
type Limits struct {
	Bytes int64 // of files' content
	Files int64 // entries of every kind
}

// ErrLimit is a layer that is larger than Limits.
var ErrLimit = errors.New("larger than it may be")

const (
	maxDepth = 128     // what an image may have (images/unpack)
	maxNames = 1 << 17 // of one folder: they are sorted in memory
	maxPaths = 256 << 20
)

// Counts are what was written.
type Counts struct {
	Bytes   int64 `json:"bytes"`
	Files   int64 `json:"files"`
	Deleted int64 `json:"deleted"`
	LeftOut int64 `json:"left_out"` // pipes, sockets, devices, names of deletions
}

// Writer writes one layer. It is one goroutine's.
type Writer struct {
	Counts
	tar    *tar.Writer
	limits Limits
	whole  bool
	names  map[inode]string // of files that may come again
	paths  int64            // bytes of all there are: a few folders of long names make any number of them
}

// inode tells a file that comes under another name. Size and time are in it because overlayfs may show two files by one number.
type inode struct {
	dev, ino uint64
	size     int64
	ctime    unix.Timespec
}

// New begins a layer.
func New(to io.Writer, l Limits) *Writer {
	return &Writer{tar: tar.NewWriter(to), limits: l, names: map[inode]string{}}
}

// Close ends the layer.
func (w *Writer) Close() error { return w.tar.Close() }

// Whole writes all that is in a folder, with its owners.
func (w *Writer) Whole(dir *os.File) error {
	w.whole = true
	return w.folder(nil, dir, "", 0)
}

// Changes writes what became of what is in the folder name of an image: as it was before, and as it is now. What is new belongs to root: in a run, what
// root has in the image is the agent's.
func (w *Writer) Changes(name string, before, now *os.File) error {
	return w.folder(before, now, name+"/", 1)
}

// folder writes what is in now and isn't the same in before; without before, all of it.
func (w *Writer) folder(before, now *os.File, prefix string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%.64q lies in more than %d folders: %w", prefix, maxDepth, ErrLimit)
	}
	names, err := list(now, prefix)
	if err != nil {
		return err
	}
	for _, name := range names {
		w.paths += int64(len(prefix) + len(name))
	}
	if w.paths > maxPaths {
		return fmt.Errorf("%.64q: the paths up to there have more than %d bytes: %w", prefix, maxPaths, ErrLimit)
	}
	if before != nil {
		old, err := list(before, prefix)
		if err != nil {
			return err
		}
		for _, name := range old {
			if _, there := slices.BinarySearch(names, name); !there {
				if err := w.delete(prefix, name); err != nil {
					return err
				}
			}
		}
	}
	for _, name := range names {
		if err := w.entry(before, now, prefix, name, depth); err != nil {
			return err
		}
	}
	return nil
}

func list(dir *os.File, prefix string) ([]string, error) {
	names, err := dir.Readdirnames(maxNames + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(names) > maxNames {
		return nil, fmt.Errorf("%.64q has more than %d names: %w", prefix, maxNames, ErrLimit)
	}
	slices.Sort(names)
	return names, nil
}

const whiteout = ".wh."

func (w *Writer) delete(prefix, name string) error {
	w.Deleted++
	return w.write(&tar.Header{Name: prefix + whiteout + name, Typeflag: tar.TypeReg, Mode: 0o600, ModTime: time.Unix(0, 0)})
}

func (w *Writer) write(h *tar.Header) error {
	if w.Files++; w.Files > w.limits.Files {
		return fmt.Errorf("more than %d files: %w", w.limits.Files, ErrLimit)
	}
	return w.tar.WriteHeader(h)
}

func (w *Writer) entry(before, now *os.File, prefix, name string, depth int) error {
	is, err := stat(now, name)
	if err != nil {
		return err
	}
	var was *unix.Stat_t
	if before != nil {
		if was, err = stat(before, name); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	kind := is.Mode & unix.S_IFMT
	switch {
	case strings.HasPrefix(name, whiteout):
		w.LeftOut++
		return nil
	case kind != unix.S_IFDIR && was != nil && same(was, is):
		return nil
	case kind != unix.S_IFREG && kind != unix.S_IFDIR && kind != unix.S_IFLNK:
		w.LeftOut++
		if was != nil {
			return w.delete(prefix, name)
		}
		return nil
	case kind != unix.S_IFDIR:
		return w.header(now, prefix+name, name, is, was)
	}
	if was != nil && was.Mode&unix.S_IFMT != unix.S_IFDIR {
		was, before = nil, nil
	}
	if was == nil || was.Mode != is.Mode {
		if err := w.header(now, prefix+name, name, is, was); err != nil {
			return err
		}
	}
	sub, err := open(now, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer sub.Close()
	var old *os.File
	if was != nil {
		if old, err = open(before, name, unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
			return err
		}
		defer old.Close()
	}
	return w.folder(old, sub, prefix+name+"/", depth+1)
}

// same: overlayfs shows a file of a lower layer with its own time of change, which a copy of it can't have.
func same(a, b *unix.Stat_t) bool {
	return a.Mode == b.Mode && a.Size == b.Size && a.Ctim == b.Ctim && a.Mtim == b.Mtim
}

// header writes an entry with its content. base is its name in dir.
func (w *Writer) header(dir *os.File, name, base string, is, was *unix.Stat_t) error {
	h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: int64(is.Mode & 0o777), ModTime: time.Unix(is.Mtim.Unix()), Size: is.Size}
	switch {
	case w.whole:
		h.Uid, h.Gid = int(is.Uid), int(is.Gid)
	case was != nil: // an agent gives nothing away
		h.Uid, h.Gid = int(was.Uid), int(was.Gid)
	}
	switch is.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		h.Name, h.Typeflag, h.Mode, h.Size = name+"/", tar.TypeDir, int64(is.Mode&0o1777), 0
	case unix.S_IFLNK:
		text := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(int(dir.Fd()), base, text)
		if err != nil {
			return &os.PathError{Op: "readlinkat", Path: name, Err: err}
		}
		h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, string(text[:n]), 0
	case unix.S_IFREG:
		id := inode{is.Dev, is.Ino, is.Size, is.Ctim}
		if first, again := w.names[id]; again && is.Nlink > 1 {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
		} else if is.Nlink > 1 {
			w.names[id] = name
		}
	}
	if h.Size > w.limits.Bytes-w.Bytes { // before hours are spent on reading holes
		return fmt.Errorf("%.200q has %d bytes, and of %d are %d left: %w", name, h.Size, w.limits.Bytes, w.limits.Bytes-w.Bytes, ErrLimit)
	}
	w.Bytes += h.Size
	if err := w.write(h); err != nil || h.Typeflag != tar.TypeReg {
		return err
	}
	f, err := open(dir, base, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.CopyN(w.tar, f, h.Size)
	return err
}

func stat(dir *os.File, name string) (*unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, &os.PathError{Op: "fstatat", Path: name, Err: err}
	}
	return &st, nil
}

// open opens one name of an open folder.
func open(dir *os.File, name string, flags uint64) (*os.File, error) {
	how := unix.OpenHow{
		Flags: flags | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	}
	for {
		fd, err := unix.Openat2(int(dir.Fd()), name, &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), name), nil
		case !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN):
			return nil, &os.PathError{Op: "openat2", Path: name, Err: err}
		}
	}
}
