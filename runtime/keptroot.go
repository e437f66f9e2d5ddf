// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// rangeOf is the number of the id range that files which are kept belong to, in these folders: the last run's. Below 0: there are none, or
// of no range of ours.
func rangeOf(folders []string) int {
	if len(folders) == 0 {
		return -1
	}
	from, err := idPool()
	if err != nil {
		return -1
	}
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

// own makes the files in a folder that is kept those of this range, where another one had them: its usual one may be a live run's. Ranges
// are as large as each other, so whose a file was in its range says whose it is in this one, also after a start that was killed halfway:
// the folder itself is the last to change hands. No link is followed, and nobody of the sandbox is alive.
func (r *idRange) own(dir string) error {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing was kept yet
	}
	if err != nil {
		return err
	}
	defer root.Close()
	top, err := root.Lstat(".")
	if err != nil {
		return err
	}
	if st := top.Sys().(*syscall.Stat_t); r.here(int(st.Uid)) == int(st.Uid) {
		return nil
	}
	if err := r.ownIn(root, 0); err != nil {
		return err
	}
	return r.move(root, ".", top)
}

// ownDepth is what a kept sandbox may have (homes.Size), and some.
const ownDepth = 300

// ownIn goes down folder by folder: a path from the top would be looked up again for each of an agent's files.
func (r *idRange) ownIn(dir *os.Root, depth int) error {
	if depth > ownDepth {
		return fmt.Errorf("folders lie in each other that are more than %d deep", ownDepth)
	}
	list, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer list.Close()
	for {
		names, err := list.Readdirnames(1024)
		for _, name := range names {
			if err := r.ownOne(dir, name, depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *idRange) ownOne(dir *os.Root, name string, depth int) error {
	info, err := dir.Lstat(name)
	if err == nil {
		err = r.move(dir, name, info)
	}
	if err != nil || !info.IsDir() {
		return err
	}
	sub, err := dir.OpenRoot(name)
	if err != nil {
		return err
	}
	defer sub.Close()
	return r.ownIn(sub, depth+1)
}

func (r *idRange) move(dir *os.Root, name string, info fs.FileInfo) error {
	st := info.Sys().(*syscall.Stat_t)
	uid, gid := r.here(int(st.Uid)), r.here(int(st.Gid))
	if uid == int(st.Uid) && gid == int(st.Gid) {
		return nil
	}
	return dir.Lchown(name, uid, gid)
}

// here is an id of any range as it is in this one.
func (r *idRange) here(id int) int {
	if r.from.rangeOf(id) < 0 {
		return id
	}
	return r.base + (id-r.from.first)%r.size
}
