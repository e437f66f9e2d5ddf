// SPDX-License-Identifier: Apache-2.0

package fsjail

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// idmapNamespace makes a user namespace in which the on-disk owner stands for the agent, for
// MOUNT_ATTR_IDMAP (mount_setattr(2)). Only that one user and group are mapped: files of others
// appear as nobody's and can't be created, whatever their mode bits say.
//
// In such a namespace the "inside" ids are what is on disk and the "outside" ids are what the mount
// shows, so the map line reads: owner, agent's host id, 1.
func idmapNamespace(owner Owner, agent IDs) (int, error) {
	pid, errno := waitingChild()
	if errno != 0 {
		return -1, fmt.Errorf("clone CLONE_NEWUSER for an idmapped mount: %w", errno)
	}
	defer func() {
		_ = unix.Kill(pid, unix.SIGKILL)
		for {
			if _, err := unix.Wait4(pid, nil, 0, nil); err != unix.EINTR {
				return
			}
		}
	}()
	write := func(file string, inside uint32, outside int) error {
		return os.WriteFile(fmt.Sprintf("/proc/%d/%s", pid, file), fmt.Appendf(nil, "%d %d 1\n", inside, outside), 0)
	}
	if err := write("uid_map", owner.UID, agent.UID); err != nil {
		return -1, err
	}
	if err := write("gid_map", owner.GID, agent.GID); err != nil {
		return -1, err
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/user", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("open user namespace", err)
	}
	return fd, nil
}

// waitingChild is a process in a new user namespace that only waits: the namespace lives while it does or while a descriptor of it is open.
// Between clone and the end it does nothing but system calls, because the other threads of this Go process (and their locks) don't exist in
// it; so nothing here may look at its stack's end, where Go asks a goroutine to make room for others.
//
//go:nosplit
//go:norace
func waitingChild() (pid int, errno unix.Errno) {
	// CLONE_FILES: a copy of our descriptors would keep the files of other runs open for writing while these are made read-only.
	child, _, errno := unix.RawSyscall6(unix.SYS_CLONE, unix.CLONE_NEWUSER|unix.CLONE_FILES|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || child != 0 {
		return int(child), errno
	}
	unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0, 0)
	for {
		unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}
