// SPDX-License-Identifier: Apache-2.0

package fsjail

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"agentrun/internal/mounts"
	"agentrun/internal/thread"
)

// Live holds mounts of a sandbox by descriptor, so that they can be closed and opened again while its processes live (M-22): made
// read-only, or noexec. Make it before any code of the agent runs: afterwards no path inside is followed any more.
//
// The kernel's rules it rests on: mount_setattr(2) changes mounts of the caller's own mount namespace only (check_mnt), so each
// change runs on a thread that joins the sandbox's; and a mount that was read-only when the sandbox's user namespace was made is
// locked that way (MNT_LOCK_READONLY, mount_namespaces(7)), so what is ever to be opened is built writable (Entry.Live) and
// closed from here before the agent starts.
type Live struct {
	ns     *os.File
	mounts []liveMount
	writes *Writes // of what is mounted later, too; nil: nobody listens
}

type liveMount struct {
	at     string
	fd     int
	closes Closes
}

// Closes is the attribute that closes a mount (mount_setattr(2)). The zero value is of one that no change concerns.
type Closes uint64

// What closes a mount. Only ReadOnly can meet resistance.
const (
	ReadOnly Closes = unix.MOUNT_ATTR_RDONLY
	NoExec   Closes = unix.MOUNT_ATTR_NOEXEC
)

// BusyError says that a mount can't be made read-only because a file on it is open for writing or mapped writable and shared. It
// unwraps to EBUSY.
type BusyError struct{ At string }

func (e *BusyError) Error() string {
	return "mount " + e.At + " is held by a file open for writing: device or resource busy"
}

func (e *BusyError) Unwrap() error { return unix.EBUSY }

// HoldLive takes hold of those writable mounts of pid's namespace for which want says what closes them, and makes them as Set would; at
// is the path inside. The caller closes it: as long as it is open the namespace and its mounts stay.
func HoldLive(pid int, want func(at string) Closes, open func(at string) bool) (_ *Live, err error) {
	l := &Live{}
	defer func() {
		if err != nil {
			_ = l.Close()
			err = fmt.Errorf("hold the mounts of process %d: %w", pid, err)
		}
	}()
	if l.ns, err = os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid)); err != nil {
		return nil, err
	}
	table, err := readMounts(pid, want)
	if err != nil {
		return nil, err
	}
	if len(table.wanted) == 0 {
		return l, nil
	}
	err = enter(l.ns, func() error {
		for _, m := range table.wanted {
			if err := l.hold(m, table); err != nil {
				return fmt.Errorf("%s: %w", m.at, err)
			}
		}
		// Parents first, the same order in each run.
		slices.SortFunc(l.mounts, func(a, b liveMount) int { return strings.Compare(a.at, b.at) })
		return l.set(open) // on the same thread: making one costs as much as all of this
	})
	return l, err
}

type mountTable struct {
	parent map[uint64]uint64
	wanted []mountPoint
}

type mountPoint struct {
	id     uint64
	at     string
	closes Closes
}

func readMounts(pid int, want func(string) Closes) (*mountTable, error) {
	table, err := mounts.ReadOf(strconv.Itoa(pid))
	if err != nil {
		return nil, err
	}
	t := &mountTable{parent: make(map[uint64]uint64, len(table.Mounts))}
	for _, m := range table.Mounts {
		t.parent[m.ID] = m.Parent
		if slices.Contains(m.Options, "rw") && want(m.At) != 0 {
			t.wanted = append(t.wanted, mountPoint{m.ID, m.At, want(m.At)})
		}
	}
	return t, nil
}

// below says whether a mount hangs, over however many others, on another. The bound is for a table that says nonsense.
func (t *mountTable) below(id, ancestor uint64) bool {
	for range len(t.parent) {
		parent, ok := t.parent[id]
		if !ok || parent == id {
			return false
		}
		if parent == ancestor {
			return true
		}
		id = parent
	}
	return true
}

// hold opens a mount and proves by its id that it is the one that was meant. A mount that another one hides is left alone: nobody
// inside can get at it either. If instead something it hangs on is seen in its place, its mount point was moved meanwhile, by
// whoever else writes to a shared folder.
func (l *Live) hold(m mountPoint, t *mountTable) error {
	fd, err := openSeen(m.at)
	if err != nil {
		return err
	}
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err != nil {
		unix.Close(fd)
		return os.NewSyscallError("statx", err)
	}
	if st.Mnt_id == m.id {
		l.mounts = append(l.mounts, liveMount{m.at, fd, m.closes})
		return nil
	}
	unix.Close(fd)
	if t.below(m.id, st.Mnt_id) {
		return fmt.Errorf("its mount point is not where it was: %w", unix.ESTALE)
	}
	return nil
}

// openSeen opens a path, or what there is of it.
func openSeen(at string) (int, error) {
	for {
		fd, err := openNoLinks(at, 0)
		if err == nil || at == "/" || !errors.Is(err, unix.ENOENT) {
			return fd, os.NewSyscallError("openat2", err)
		}
		at = filepath.Dir(at)
	}
}

// enter runs fn on a thread in a mount namespace.
func enter(ns *os.File, fn func() error) (err error) {
	thread.Throwaway(func() {
		// A thread that shares its fs_struct can't change its mount namespace (setns(2)).
		if err = os.NewSyscallError("unshare CLONE_FS", unix.Unshare(unix.CLONE_FS)); err != nil {
			return
		}
		if err = os.NewSyscallError("setns mount namespace", unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS)); err == nil {
			err = fn()
		}
	})
	return err
}

// Set opens every held mount for which open says yes, and closes every other. It first closes, then opens, and goes on past what can't
// be closed: the error holds each mount that is not as it should be, *BusyError where somebody writes.
func (l *Live) Set(open func(at string) bool) error {
	if l == nil || len(l.mounts) == 0 {
		return nil
	}
	return enter(l.ns, func() error { return l.set(open) })
}

// Guard mounts guarded paths over themselves in a workspace that is still closed, and holds those that will be open with it. No
// process inside can have put a link on the way, as all of it is read-only to them; who writes there from elsewhere makes it fail.
func (l *Live) Guard(entries []Entry) error {
	return enter(l.ns, func() error {
		r, err := seenRoot()
		if err != nil {
			return err
		}
		defer unix.Close(r.fd)
		var errs []error
		err = r.guard(entries, func(e Entry, mnt int) {
			if e.Live {
				l.mounts = append(l.mounts, liveMount{e.Target, mnt, ReadOnly})
				if l.writes != nil {
					errs = append(errs, l.writes.mark(mnt))
				}
			} else {
				unix.Close(mnt)
			}
		})
		return errors.Join(append(errs, err)...)
	})
}

func (l *Live) set(open func(at string) bool) error {
	var errs []error
	for _, opening := range []bool{false, true} {
		for _, m := range l.mounts {
			if open(m.at) == opening {
				errs = append(errs, m.set(opening))
			}
		}
	}
	return errors.Join(errs...)
}

func (m liveMount) set(open bool) error {
	attr := unix.MountAttr{Attr_set: uint64(m.closes)}
	if open {
		attr = unix.MountAttr{Attr_clr: uint64(m.closes)}
	}
	syscall.ForkLock.RLock() // see Build
	err := unix.MountSetattr(m.fd, "", unix.AT_EMPTY_PATH, &attr)
	syscall.ForkLock.RUnlock()
	if errors.Is(err, unix.EBUSY) {
		return &BusyError{m.at}
	}
	if err != nil {
		return fmt.Errorf("mount_setattr %s: %w", m.at, err)
	}
	return nil
}

// Mounts are the paths of what is held, in order.
func (l *Live) Mounts() []string {
	var at []string
	for _, m := range l.mounts {
		at = append(at, m.at)
	}
	return at
}

// Close lets go of the mounts as they are. It may be called on nil.
func (l *Live) Close() error {
	if l == nil {
		return nil
	}
	for _, m := range l.mounts {
		unix.Close(m.fd)
	}
	l.mounts = nil
	if l.ns == nil {
		return nil
	}
	return l.ns.Close()
}
