// SPDX-License-Identifier: Apache-2.0

package fsjail

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Detached are bind mounts that are attached nowhere yet, with the flags and owners they will have: nobody ever sees them with
// more rights. They are for a sandbox that was built before it was known what it is to show.
type Detached struct {
	mounts []detached
	guards []Entry // made in their place, of what is seen there
}

type detached struct {
	fd    int
	at    string
	isDir bool
}

// Detach clones the sources of bind entries. The caller's thread must be in the mount namespace whose files are meant, which is
// the host's: that of a builder is a copy and misses what was mounted since. Close gives them up again.
func Detach(entries []Entry, agent IDs) (_ *Detached, err error) {
	d := &Detached{}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	r := &Root{fd: -1, agent: agent}
	for _, e := range entries {
		if e.Kind != Bind {
			return nil, fmt.Errorf("%s %s: only bind mounts can be made ahead of their place: %w", e.Kind, e.Target, unix.EINVAL)
		}
		if e.Guard {
			d.guards = append(d.guards, e)
			continue
		}
		mnt, isDir, err := openSource(e.Source)
		if err == nil {
			d.mounts = append(d.mounts, detached{mnt, e.Target, isDir})
			err = r.dress(mnt, e)
		}
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", e.Kind, e.Target, err)
		}
	}
	return d, nil
}

// FD is the mount that is for a path inside, until Attach or Close.
func (d *Detached) FD(at string) (fd int, ok bool) {
	for _, m := range d.mounts {
		if m.at == at {
			return m.fd, true
		}
	}
	return -1, false
}

// Attach moves them, in order, into the mount namespace of a process. Their mount points must be there: none is created, and no link is
// followed on the way. Call it before any code of the agent runs in that namespace.
//
// Moving them in later than the namespace was made changes one thing: the kernel locks the flags of mounts that are copied into the
// namespace of another user (MNT_LOCK_READONLY, mount_namespaces(7)), and not of these. It makes no difference to an agent, which has
// no CAP_SYS_ADMIN there to change flags with; should it ever make a namespace below, the copies in that one are locked.
func (d *Detached) Attach(pid int) error {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return err
	}
	defer ns.Close()
	return enter(ns, d.attach)
}

// attach works in the namespace of the calling thread, whose root setns(2) has made the caller's.
func (d *Detached) attach() error {
	r, err := seenRoot()
	if err != nil {
		return err
	}
	defer unix.Close(r.fd)
	for len(d.mounts) > 0 {
		m := d.mounts[0]
		err := r.place(m.fd, m.at, m.isDir)
		if errors.Is(err, ErrNoMountPoint) {
			err = fmt.Errorf("no mount point was prepared: %w", err)
		}
		if err != nil {
			return fmt.Errorf("attach %s: %w", m.at, err)
		}
		unix.Close(m.fd)
		d.mounts = d.mounts[1:]
	}
	return r.guard(d.guards, func(_ Entry, mnt int) { unix.Close(mnt) })
}

// guard mounts guarded paths in order; done has the mount, to close or to keep.
func (r *Root) guard(entries []Entry, done func(e Entry, mnt int)) error {
	for _, e := range entries {
		mnt, err := r.addGuard(e)
		if err != nil {
			return fmt.Errorf("attach %s: %w", e.Target, err)
		}
		done(e, mnt)
	}
	return nil
}

// seenRoot is the root of the calling thread, in which nothing may be created: no file system is ours.
func seenRoot() (*Root, error) {
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("open root", err)
	}
	return &Root{fd: root, top: folder{fd: root, kept: true}, placed: map[string]int{}}, nil
}

// Close drops what was not attached. It may be called on nil.
func (d *Detached) Close() {
	if d == nil {
		return
	}
	for _, m := range d.mounts {
		unix.Close(m.fd)
	}
	d.mounts = nil
}
