// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// rangeOf is the number of the id range that the files of a kept root belong to: its last run's. Below 0: there are none, or of no range
// of ours.
func rangeOf(dir string) int {
	from, err := idPool()
	if err != nil {
		return -1
	}
	folders, _ := filepath.Glob(filepath.Join(dir, "changes", "*"))
	for _, f := range folders {
		if info, err := os.Lstat(f); err == nil {
			if n := from.rangeOf(int(info.Sys().(*syscall.Stat_t).Uid)); n >= 0 {
				return n
			}
		}
	}
	return -1
}

func (p pool) rangeOf(id int) int {
	if id < p.first || id >= p.first+p.size*p.count {
		return -1
	}
	return (id - p.first) / p.size
}

// own makes the files of a kept root those of this range, where another one had them: its usual one may be a live run's. Ranges are as
// large as each other, so whose a file was in its range says whose it is in this one, also after a start that was killed halfway. No link
// is followed, and nobody of the sandbox is alive.
func (r *idRange) own(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	move := func(path string, d fs.DirEntry) error {
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		uid, gid := r.here(int(st.Uid)), r.here(int(st.Gid))
		if uid == int(st.Uid) && gid == int(st.Gid) {
			return nil
		}
		return root.Lchown(path, uid, gid)
	}
	tops, err := fs.ReadDir(root.FS(), "changes")
	if err != nil {
		return nil //nolint:nilerr // nothing was kept yet
	}
	for _, top := range tops {
		path := filepath.Join("changes", top.Name())
		if info, err := top.Info(); err != nil || r.here(int(info.Sys().(*syscall.Stat_t).Uid)) == int(info.Sys().(*syscall.Stat_t).Uid) {
			continue // is the last of its tree to change hands
		}
		err := fs.WalkDir(root.FS(), path, func(at string, d fs.DirEntry, err error) error {
			if err != nil || at == path {
				return err
			}
			return move(at, d)
		})
		if err == nil {
			err = move(path, top)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// here is an id of any range as it is in this one.
func (r *idRange) here(id int) int {
	if r.from.rangeOf(id) < 0 {
		return id
	}
	return r.base + (id-r.from.first)%r.size
}
