// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Spot is what a path without links was when it was looked at: one statx(2) says all of it.
type Spot struct {
	Path     string
	Dev, Ino uint64
	UID, GID uint32
	mode     uint16
	mount    uint64 // by its id in the mount table
}

// IsDir tells whether it is a folder.
func (s Spot) IsDir() bool { return s.mode&unix.S_IFMT == unix.S_IFDIR }

// Look looks at a path, and follows no link at its end. The error is a *fs.PathError.
func Look(path string) (Spot, error) {
	const flags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	for {
		var st unix.Statx_t
		err := unix.Statx(unix.AT_FDCWD, path, flags, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &st)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return Spot{}, &fs.PathError{Op: "statx", Path: path, Err: err}
		}
		return Spot{
			Path: path, Dev: unix.Mkdev(st.Dev_major, st.Dev_minor), Ino: st.Ino, UID: st.Uid, GID: st.Gid,
			mode: st.Mode, mount: st.Mnt_id,
		}, nil
	}
}

// View is what one decision has seen of the host: a folder that several paths are in is looked at once, and so are the
// paths and the mount table. What it has seen it doesn't look at again, so the next decision needs another one. The zero
// value is ready; it is for one goroutine.
type View struct {
	folders map[string]resolved // by the name as it was asked for
	spots   map[string]Spot     // by the canonical one
	table   *Table
}

type resolved struct {
	canonical string
	err       error
}

// maxFollowed bounds the links followed here; filepath.EvalSymlinks, which takes over, has the last word on chains
// and circles.
const maxFollowed = 8

// Canonical gives a path as it is without links, and what is there now.
func (v *View) Canonical(name string) (Spot, error) {
	abs, err := filepath.Abs(name)
	if err != nil {
		return Spot{}, err
	}
	return v.resolve(abs, 0)
}

// At is what was seen at a path without links, or is there now.
func (v *View) At(canonical string) (Spot, error) {
	if spot, ok := v.spots[canonical]; ok {
		return spot, nil
	}
	return v.look(canonical)
}

// Nearest is Canonical also of a path whose end isn't there yet: the spot of the folder that it would be made in, by
// the path that it would have.
func (v *View) Nearest(name string) (Spot, error) { return nearest(name, v.Canonical) }

// NearestAt is At, likewise.
func (v *View) NearestAt(canonical string) (Spot, error) { return nearest(canonical, v.At) }

func nearest(name string, look func(string) (Spot, error)) (Spot, error) {
	spot, err := look(name)
	if dir := filepath.Dir(name); errors.Is(err, fs.ErrNotExist) && dir != name {
		spot, err = nearest(dir, look)
		spot.Path = filepath.Join(spot.Path, filepath.Base(name))
	}
	return spot, err
}

// Table reads the mount table, at the first call.
func (v *View) Table() (*Table, error) {
	if v.table != nil {
		return v.table, nil
	}
	var err error
	v.table, err = Read()
	return v.table, err
}

// With has the view take the mount table that another one has read. If that was before this one's looks, what was mounted since is missed,
// or came with a folder above it that was renamed, as it is when it comes after them; what went is refused.
func (v *View) With(other *View) { v.table = other.table }

// Places is that of the table.
func (v *View) Places(s Spot) (own, under []Place, err error) {
	t, err := v.Table()
	if err != nil {
		return nil, nil, err
	}
	return t.Places(s)
}

// resolve takes a clean absolute path.
func (v *View) resolve(name string, followed int) (Spot, error) {
	if name == "/" || followed > maxFollowed {
		return v.evalSymlinks(name)
	}
	dir, err := v.folder(filepath.Dir(name), followed)
	if err != nil {
		return Spot{}, err
	}
	name = filepath.Join(dir, filepath.Base(name))
	spot, err := v.look(name)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return v.evalSymlinks(name) // says it in its own words
	case err != nil:
		return Spot{}, err
	case spot.mode&unix.S_IFMT != unix.S_IFLNK:
		return spot, nil
	}
	link, err := os.Readlink(name)
	// In a clean link text, whatever ".." there is comes first and is counted from a folder without links: Join is
	// exact. In another one it may stand behind a name that is a link itself.
	if err != nil || filepath.Clean(link) != link {
		return v.evalSymlinks(name)
	}
	if !filepath.IsAbs(link) {
		link = filepath.Join(dir, link)
	}
	return v.resolve(link, followed+1)
}

func (v *View) folder(name string, followed int) (string, error) {
	if name == "/" {
		return name, nil
	}
	if f, ok := v.folders[name]; ok {
		return f.canonical, f.err
	}
	spot, err := v.resolve(name, followed)
	if v.folders == nil {
		v.folders = map[string]resolved{}
	}
	v.folders[name] = resolved{spot.Path, err}
	return spot.Path, err
}

func (v *View) evalSymlinks(name string) (Spot, error) {
	name, err := filepath.EvalSymlinks(name)
	if err != nil {
		return Spot{}, err
	}
	return v.look(name)
}

func (v *View) look(path string) (Spot, error) {
	spot, err := Look(path)
	if err != nil {
		return spot, err
	}
	if v.spots == nil {
		v.spots = map[string]Spot{}
	}
	v.spots[path] = spot
	return spot, nil
}
