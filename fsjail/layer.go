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
	"syscall"

	"golang.org/x/sys/unix"
)

// SaveLayer writes what changed in a writable root to a tar file in the form of an OCI image layer
// (image-spec, layer.md): deletions are .wh. files, and what the agent owned belongs to root. Files
// that came into being beside the overlays, at the top of the root, are in it too.
//
// Call it when no process of the sandbox is left, on the thread that built the root. The content is
// hostile: nothing in it is followed, and set-id bits and device nodes are left out. The file appears
// whole or not at all.
func (r *Root) SaveLayer(name string) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return fmt.Errorf("keep changes: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
			err = fmt.Errorf("keep changes: %w", err)
		}
	}()
	w := &layerWriter{tar: tar.NewWriter(f), agent: r.agent}
	if err := w.tree(filepath.Join(r.Upper, "changes"), nil); err != nil {
		return err
	}
	if err := w.tree(r.Path, r.known); err != nil {
		return err
	}
	if err := w.tar.Close(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

type layerWriter struct {
	tar   *tar.Writer
	agent IDs
}

// tree adds what is below dir, except top-level names in skip and anything on another file system.
func (w *layerWriter) tree(dir string, skip map[string]bool) error {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	var top syscall.Stat_t
	if err := syscall.Stat(dir, &top); err != nil {
		return err
	}
	return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		info, err := root.Lstat(name)
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		if skip[name] || st.Dev != top.Dev {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		return w.entry(root, name, info, st)
	})
}

func (w *layerWriter) entry(root *os.Root, name string, info fs.FileInfo, st *syscall.Stat_t) error {
	mode := info.Mode()
	switch {
	case mode&fs.ModeCharDevice != 0 && st.Rdev == 0: // overlayfs whiteout
		dir, base := filepath.Split(name)
		return w.tar.WriteHeader(&tar.Header{Name: dir + ".wh." + base, Typeflag: tar.TypeReg, Mode: 0o600})
	case !mode.IsRegular() && !mode.IsDir() && mode.Type() != fs.ModeSymlink:
		return nil // sockets, pipes: nothing to keep; device nodes can't come from the agent
	}
	link := ""
	if mode.Type() == fs.ModeSymlink {
		var err error
		if link, err = root.Readlink(name); err != nil {
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
	if err := w.tar.WriteHeader(h); err != nil {
		return err
	}
	if mode.IsDir() && opaque(root, name) {
		return w.tar.WriteHeader(&tar.Header{Name: name + "/.wh..wh..opq", Typeflag: tar.TypeReg, Mode: 0o600})
	}
	if !mode.IsRegular() {
		return nil
	}
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.CopyN(w.tar, f, h.Size)
	return err
}

// opaque: overlayfs hides what the lower layer has in this directory.
func opaque(root *os.Root, name string) bool {
	f, err := root.Open(name)
	if err != nil {
		return false
	}
	defer f.Close()
	var v [1]byte
	n, err := unix.Fgetxattr(int(f.Fd()), "trusted.overlay.opaque", v[:])
	return err == nil && n == 1 && v[0] == 'y'
}
