// SPDX-License-Identifier: Apache-2.0

package cgroups

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Birth is the way into a group that waits for no grace period, as Add does, and keeps nobody else from changing cgroups meanwhile: a
// process with one thread moves itself by a "0" to each of Tasks, and has a child born in Folder, which is then in all of them.
type Birth struct {
	Tasks  []*os.File // of the v1 hierarchies; whoever moves only itself is spared the lock (cgroup_procs_write_start, since Linux 5.3)
	Folder *os.File   // of the cgroup2 tree, for CLONE_INTO_CGROUP (clone(2)); nil: there is none
}

// Close closes them.
func (b Birth) Close() {
	for _, f := range append(b.Tasks, b.Folder) {
		f.Close() // a nil one says so
	}
}

// Birth opens it.
func (g *Group) Birth() (b Birth, err error) {
	for _, h := range g.hiers {
		if !h.used {
			continue
		}
		path, flags := filepath.Join(g.home(h), "tasks"), unix.O_WRONLY
		if h.v2 {
			path, flags = g.home(h), unix.O_PATH|unix.O_DIRECTORY
		}
		fd, err := unix.Open(path, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			b.Close()
			return Birth{}, &os.PathError{Op: "open", Path: path, Err: err}
		}
		if f := os.NewFile(uintptr(fd), path); h.v2 {
			b.Folder = f
		} else {
			b.Tasks = append(b.Tasks, f)
		}
	}
	return b, nil
}

// Add moves a process (all its threads) into every hierarchy, the cgroup2 tree first. After an error it may be in some of them: the
// caller kills it. Each move may wait for an RCU grace period; see docs/cgroups.md for the figures.
func (g *Group) Add(pid int) error {
	if pid <= 0 { // "0" written to cgroup.procs moves the writer itself
		return fmt.Errorf("add to cgroup %s: pid %d: %w", g.name, pid, unix.EINVAL)
	}
	for _, h := range g.hiers {
		if !h.used {
			continue
		}
		if err := writeFile(filepath.Join(g.home(h), "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("add pid %d to cgroup %s: controller %s: %w", pid, g.name, h.label(), err)
		}
	}
	return nil
}
