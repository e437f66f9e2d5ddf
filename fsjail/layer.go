// SPDX-License-Identifier: Apache-2.0

package fsjail

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// SaveLayer writes what changed in a writable root to a tar file in the form of an OCI image layer
// (image-spec, layer.md): deletions are .wh. files, and what the agent owned belongs to root. Files
// that came into being beside the overlays, at the top of the root, are in it too.
//
// Call it when no process of the sandbox is left, on the thread that built the root. The content is
// hostile: nothing in it is followed, and these are left out: set-id bits, extended attributes, device nodes, sockets, pipes, and
// names that a reader of layers would take for deletions.
//
// The attack on the host's disk: a sparse file, or one file under many names, is next to nothing in the scratch and everything in
// a tar. A second name is a link in the layer too. Go's archive/tar can't write holes, so they are bounded instead: all that is
// really there lies on two tmpfs of UpperSize each, and a layer that would be larger than both is refused.
func (r *Root) SaveLayer(to *Output) error {
	err := to.Write(func(f *os.File) error {
		w := &layerWriter{tar: tar.NewWriter(&bounded{f, r.layerSize()}), left: r.layerSize(), names: map[inode]string{}}
		if err := w.tree(filepath.Join(r.Upper, "changes"), map[string]bool{"workspace": true}); err != nil {
			return err
		}
		w.own = true
		if err := w.tree(r.Path, r.known); err != nil {
			return err
		}
		return w.tar.Close()
	})
	if err != nil {
		return fmt.Errorf("keep changes: %w", err)
	}
	return nil
}

// SaveTree writes what changed in one overlay of the view, in the same form and with the same bounds; names are relative to its target.
func (r *Root) SaveTree(to *Output, target string) error {
	err := to.Write(func(f *os.File) error { return WriteTree(f, ChangesIn(r.Upper, target), r.layerSize()) })
	if err != nil {
		return fmt.Errorf("keep changes of %s: %w", target, err)
	}
	return nil
}

// WriteTree writes what an overlay has in its upper folder, in that form, of at most so many bytes. Nobody may change the folder meanwhile.
// What was in the place of a socket or pipe is deleted: the entry that says so is of a pipe (tar.TypeFifo), as it may have been one before.
func WriteTree(to io.Writer, dir string, most int64) error {
	w := &layerWriter{tar: tar.NewWriter(&bounded{to, most}), left: most, names: map[inode]string{}, pipes: true}
	if err := w.tree(dir, nil); err != nil {
		return err
	}
	return w.tar.Close()
}

// TreeNames are the names that WriteTree would write, and those of what it leaves out.
func TreeNames(dir string) (names []string, err error) {
	err = tree(dir, nil, func(_ *os.Root, name string, _ fs.FileInfo, _ *syscall.Stat_t) error {
		names = append(names, name)
		return nil
	})
	return names, err
}

// layerSize has room for the headers of a small scratch beside what the two tmpfs can hold.
func (r *Root) layerSize() int64 { return 2*r.upperSize + 1<<20 }

// ErrTooManyNames is a tree whose paths nobody wants in memory: an agent's few folders of long names make any number of bytes of each name in
// the last of them, and second names of one empty file take no room of a quota.
var ErrTooManyNames = fmt.Errorf("its paths are more than %d, or more than %d bytes together", maxEntries, MaxPaths)

// ErrLayerSize: see SaveLayer.
var ErrLayerSize = errors.New("the layer would be larger than twice the scratch: it has sparse files, or very many names")

// bounded is a file that takes so many bytes.
type bounded struct {
	w    io.Writer
	left int64
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.left -= int64(len(p)); b.left < 0 {
		return 0, ErrLayerSize
	}
	return b.w.Write(p)
}

const (
	// maxDepth of folders, each of which costs a descriptor here. Real trees have tens.
	maxDepth = 256
	// maxNames of one folder, which are sorted in memory: 64 MiB of tar headers.
	maxNames = 1 << 17
	// MaxPaths are the bytes of all paths of a tree: of maxEntries real ones.
	MaxPaths = 64 << 20
	// maxEntries are the paths of a tree: what is kept of each in memory, as a tar's header, is far more than a short path.
	maxEntries = 1 << 19
)

type inode struct{ dev, ino uint64 }

type layerWriter struct {
	tar   *tar.Writer
	left  int64            // bytes of content that may still come
	names map[inode]string // of files that may come again
	own   bool             // the tree isn't an overlay's: nothing in it is a deletion
	pipes bool             // are told, as deletions
}

// tree adds what is below dir, except top-level names in skip and anything on another file system.
func (w *layerWriter) tree(dir string, skip map[string]bool) error { return tree(dir, skip, w.entry) }

type treeEntry func(in *os.Root, name string, info fs.FileInfo, st *syscall.Stat_t) error

func tree(dir string, skip map[string]bool, do treeEntry) error {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	info, err := root.Lstat(".")
	if err != nil {
		return err
	}
	w := &treeWalk{dev: info.Sys().(*syscall.Stat_t).Dev, left: MaxPaths, more: maxEntries, do: do}
	return w.folder(root, "", skip, 0)
}

type treeWalk struct {
	dev  uint64
	left int // bytes of paths
	more int // paths
	do   treeEntry
}

// folder goes down by descriptor: a path of a hostile tree may be of any length.
func (w *treeWalk) folder(dir *os.Root, prefix string, skip map[string]bool, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%.64q… is deeper than %d folders", prefix, maxDepth)
	}
	f, err := dir.Open(".")
	if err != nil {
		return err
	}
	names, err := f.Readdirnames(maxNames + 1)
	f.Close()
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if len(names) > maxNames {
		return fmt.Errorf("%.64q has more than %d names", prefix, maxNames)
	}
	for _, name := range names {
		w.left -= len(prefix) + len(name)
	}
	if w.more -= len(names); w.left < 0 || w.more < 0 {
		return ErrTooManyNames
	}
	slices.Sort(names)
	for _, name := range names {
		// Readers of layers take these for deletions of what lies below (layer.md, "Whiteouts"): whoever unpacks this one over other
		// folders than the agent saw would lose files that the agent couldn't touch.
		if skip[name] || strings.HasPrefix(name, ".wh.") {
			continue
		}
		info, err := dir.Lstat(name)
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		if st.Dev != w.dev {
			continue
		}
		if err := w.do(dir, prefix+name, info, st); err != nil {
			return err
		}
		if !info.IsDir() {
			continue
		}
		sub, err := dir.OpenRoot(name + inIt)
		if err != nil {
			return err
		}
		err = w.folder(sub, prefix+name+"/", nil, depth+1)
		sub.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *layerWriter) entry(dir *os.Root, name string, info fs.FileInfo, st *syscall.Stat_t) error {
	mode, base := info.Mode(), info.Name()
	white := &tar.Header{Name: strings.TrimSuffix(name, base) + ".wh." + base, Typeflag: tar.TypeReg, Mode: 0o600}
	switch {
	case mode&fs.ModeCharDevice != 0 && st.Rdev == 0 && !w.own: // overlayfs whiteout
		return w.tar.WriteHeader(white)
	case !mode.IsRegular() && !mode.IsDir() && mode.Type() != fs.ModeSymlink: // sockets, pipes; device nodes can't come from the agent
		if white.Typeflag = tar.TypeFifo; w.pipes {
			return w.tar.WriteHeader(white)
		}
		return nil
	}
	link := ""
	if mode.Type() == fs.ModeSymlink {
		var err error
		if link, err = dir.Readlink(base); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	h.Name, h.Mode, h.Uname, h.Gname = name, int64(mode.Perm()), "", ""
	h.Uid, h.Gid = 0, 0
	if mode.IsDir() {
		h.Name += "/"
	}
	if mode.IsRegular() && st.Nlink > 1 {
		id := inode{st.Dev, st.Ino}
		if first, again := w.names[id]; again {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
		} else {
			w.names[id] = name
		}
	}
	if h.Size > w.left { // before hours are spent on reading holes
		return fmt.Errorf("%.256q is of %d bytes: %w", name, h.Size, ErrLayerSize)
	}
	w.left -= h.Size
	if err := w.tar.WriteHeader(h); err != nil {
		return err
	}
	if mode.IsDir() && opaque(dir, base) {
		return w.tar.WriteHeader(&tar.Header{Name: name + "/.wh..wh..opq", Typeflag: tar.TypeReg, Mode: 0o600})
	}
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	f, err := dir.Open(base)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.CopyN(w.tar, f, h.Size)
	return err
}

// opaque: overlayfs hides what the lower layer has in this directory.
func opaque(dir *os.Root, name string) bool {
	f, err := dir.Open(name)
	if err != nil {
		return false
	}
	defer f.Close()
	var v [1]byte
	n, err := unix.Fgetxattr(int(f.Fd()), "trusted.overlay.opaque", v[:])
	return err == nil && n == 1 && v[0] == 'y'
}
