// SPDX-License-Identifier: Apache-2.0

package fsjail

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Stages are folders of views that are the same in many of them (/etc, /dev): each is built once, as mounts that are attached nowhere, and
// copied into a view by one call instead of some sixty. The zero value is ready. What is asked for once only isn't kept, nor is anything
// on a kernel that copies no detached mounts (before Linux 6.15): then views are built whole, and show the same.
//
// All that is shared is what no view can change: links, files of ours, single files and devices of the host, each read-only by its mount.
// Whatever else stands in such a folder is placed on the copy, anew for each view: what can be written, what has owners, and folders of the
// host, which may have mounts below them. A file that was replaced on the host isn't shown any longer: its stage is made anew. One that
// nobody asked for in a minute is dropped, and holds no file system of the host's any more.
type Stages struct {
	mu    sync.Mutex
	asked map[string]bool // once; true: it is being made
	kept  map[string]*stage
	tends bool // tidy will come
	off   bool
}

type stage struct {
	mnt    int
	places []hostFile
	used   bool // since the last tidy
}

// hostFile is a file of the host that is shown, which can't get another inode while it is.
type hostFile struct {
	path     string
	dev, ino uint64
}

const (
	maxStages = 16
	maxAsked  = 256
	stageSize = 1 << 20 // bytes, as the skeleton has
	tidyTime  = 30 * time.Second
)

// staged are the folders that a view may have from a stage.
var staged = []string{"/dev", "/etc"}

// copy gives a folder with these entries, of which the first is the folder, as a detached mount; -1: none, make it otherwise. No lock is
// held over what asks a file system of the host's, which may never answer. Nil has none.
func (s *Stages) copy(entries []Entry) int {
	if s == nil {
		return -1
	}
	key := stageKey(entries)
	s.mu.Lock()
	st, off := s.kept[key], s.off
	s.mu.Unlock()
	switch {
	case off:
		return -1
	case st == nil:
		if st = s.make(key, entries); st == nil {
			return -1
		}
	case !st.fresh():
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.kept[key] == st {
			s.drop(key)
		}
		return -1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kept[key] != st {
		return -1
	}
	st.used = true
	mnt, err := copyDetached(st.mnt)
	if err != nil {
		s.drop(key)
		return -1
	}
	return mnt
}

func copyDetached(mnt int) (int, error) {
	fd, err := unix.OpenTree(mnt, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)
	return fd, os.NewSyscallError("open_tree", err)
}

// make makes one that is asked for once more, and that nobody is making.
func (s *Stages) make(key string, entries []Entry) *stage {
	s.mu.Lock()
	making, asked := s.asked[key]
	if !asked {
		s.ask(key)
	}
	if !asked || making {
		s.mu.Unlock()
		return nil
	}
	s.asked[key] = true
	s.mu.Unlock()
	st, err := makeStage(entries)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		delete(s.asked, key)
		s.off = s.off || errors.Is(err, errNoCopies)
		return nil
	}
	s.asked[key] = false
	s.keep(key, st)
	return st
}

func (s *Stages) ask(key string) {
	if s.asked == nil || len(s.asked) >= maxAsked {
		s.asked = map[string]bool{}
	}
	s.asked[key] = false
}

func (s *Stages) keep(key string, st *stage) {
	if s.kept == nil {
		s.kept = map[string]*stage{}
	}
	if s.kept[key] != nil { // asked was cleared meanwhile, and somebody else has made it too
		s.drop(key)
	}
	if len(s.kept) >= maxStages {
		for k := range s.kept {
			s.drop(k)
			break
		}
	}
	s.kept[key] = st
	if !s.tends {
		s.tends = true
		time.AfterFunc(tidyTime, s.tidy)
	}
}

// tidy drops what was not used since the last time, and comes again while there is something.
func (s *Stages) tidy() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, st := range s.kept {
		if !st.used {
			s.drop(key)
		}
		st.used = false
	}
	if s.tends = len(s.kept) > 0; s.tends {
		time.AfterFunc(tidyTime, s.tidy)
	}
}

func (s *Stages) drop(key string) {
	unix.Close(s.kept[key].mnt)
	delete(s.kept, key)
}

// fresh says whether every file is still the one that the host has there.
func (st *stage) fresh() bool {
	for _, f := range st.places {
		var now unix.Stat_t
		if unix.Lstat(f.path, &now) != nil || now.Dev != f.dev || now.Ino != f.ino {
			return false
		}
	}
	return true
}

// stageKey differs for folders that differ in anything.
func stageKey(entries []Entry) string {
	var b strings.Builder
	for _, e := range entries {
		for _, s := range []string{string(e.Kind), e.Target, e.Source, e.Content} {
			b.WriteString(strconv.Itoa(len(s)))
			b.WriteByte(':')
			b.WriteString(s)
		}
		fmt.Fprintf(&b, "%o", e.Mode)
		for _, is := range []bool{e.Exec, e.Device} {
			b.WriteString(strconv.FormatBool(is))
		}
	}
	return b.String()
}

// fixed says whether an entry is the same in each view, and nothing that a view could change.
func (e Entry) fixed() bool {
	switch e.Kind {
	case Dir:
		return !e.Agent
	case Link, File:
		return true
	case Bind:
		return e.IsFile && !e.Writable && !e.Live && !e.Guard && e.Owner == nil
	}
	return false
}

// splitStage divides a view in a folder of fixed entries, with the mount points of others in it, and the rest. Without the first, this
// view has the folder otherwise.
func splitStage(entries []Entry, dir string) (of, rest []Entry) {
	var over []string // what is placed on the copy
	for _, e := range entries {
		switch {
		case e.Target == dir && len(of) == 0 && e.Kind == Dir && e.fixed():
			of = append(of, e)
		case !isIn(e.Target, dir):
			rest = append(rest, e)
		case e.Target == dir || len(of) == 0:
			return nil, entries
		case slices.ContainsFunc(over, func(dir string) bool { return isIn(e.Target, dir) }):
			rest = append(rest, e)
		case e.fixed():
			of = append(of, e)
		case e.Kind == Tmpfs, e.Kind == Devpts, e.Kind == Bind && !e.IsFile && !e.Guard:
			of, rest, over = append(of, Entry{Kind: Dir, Target: e.Target, Mode: 0o755}), append(rest, e), append(over, e.Target)
		default:
			return nil, entries
		}
	}
	return of, rest
}

// isIn says whether a path is a folder or lies below it.
func isIn(target, dir string) bool { return strings.HasPrefix(target+"/", dir+"/") }

// errNoCopies says that this kernel doesn't copy detached mounts, or not for this user: no stage will ever be made.
var errNoCopies = errors.New("detached mounts can't be copied")

// makeStage builds a folder of which the first entry says the place and the mode.
func makeStage(entries []Entry) (_ *stage, err error) {
	dir := entries[0].Target
	mnt, err := newFS("tmpfs", tmpfsOptions(stageSize, entries[0].Mode.Perm(), IDs{}), unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, err
	}
	r, st := &Root{fd: mnt, ours: map[uint64]bool{}, placed: map[string]int{}, folders: map[string]folder{}}, &stage{mnt: mnt}
	defer r.release()
	defer func() {
		if err != nil {
			unix.Close(mnt)
		}
	}()
	// Tried while it is empty: what a caller's entries make fail says nothing about the kernel.
	switch trial, err := copyDetached(mnt); {
	case err == nil:
		unix.Close(trial)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EPERM):
		return nil, fmt.Errorf("%w: %w", errNoCopies, err)
	default:
		return nil, err
	}
	if err := r.own(mnt); err != nil {
		return nil, err
	}
	if r.top, err = r.folderOf(mnt); err != nil {
		return nil, err
	}
	r.top.kept = true
	for _, e := range entries[1:] {
		e.Target = strings.TrimPrefix(e.Target, dir)
		if err := r.add(e); err != nil {
			return nil, err
		}
		if e.Kind != Bind {
			continue
		}
		var is unix.Stat_t
		if err := unix.Fstat(r.placed[e.Target], &is); err != nil {
			return nil, os.NewSyscallError("fstat", err)
		}
		if is.Mode&unix.S_IFMT == unix.S_IFDIR {
			return nil, unix.EISDIR
		}
		st.places = append(st.places, hostFile{e.Source, is.Dev, is.Ino})
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	return st, os.NewSyscallError("mount_setattr", setattrOnce(mnt, &attr))
}

// stage places a folder of a view, if there is a stage for it, and gives the entries that are left.
func (r *Root) stage(s *Stages, dir string, entries []Entry) ([]Entry, error) {
	of, rest := splitStage(entries, dir)
	if len(of) == 0 {
		return entries, nil
	}
	mnt := s.copy(of)
	if mnt < 0 {
		return entries, nil
	}
	r.Staged = append(r.Staged, dir)
	return rest, r.place(mnt, dir, true)
}
