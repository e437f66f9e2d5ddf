// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// asOwner runs fn, which forks the container's first process, with the run's own id as the calling thread's
// user. That process then makes the run's user namespace, and the kernel takes whoever makes one for its
// owner: what is counted by user and not by cgroup (inotify instances, pending signals, processes, message
// queues, locked memory, namespaces) is charged to the user inside, and then to the owner in the namespace
// around it (kernel/ucount.c; user_namespaces(7)). With root as owner 128 inotify instances of one agent were
// all that root and every other run had.
//
// The owner is the host's id of uid 0 inside: no other run has it, and nobody inside can be it without a
// capability. It is not the agent's, because a process outside with the owner's id has all capabilities over
// the namespace; no process outside ever has this one, but for the instants between here and libcontainer's
// unshare(2).
//
// The thread keeps its capabilities, and hands them on by the ambient set, since an exec by another user than
// root drops the others (capabilities(7)). So a host that keeps ordinary users from making user namespaces
// lets us. The calls are raw: those of package unix change every thread. A thread that can't be brought back
// is left to its end with the run, and the launch has failed.
func asOwner(uid int, fn func() error) (err error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var was [2]unix.CapUserData
	if err := unix.Capget(&header, &was[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil {
		return os.NewSyscallError("prctl PR_GET_DUMPABLE", err)
	}
	become := func(ruid, euid int) error {
		// The saved id stays ours: it is what lets the capabilities stay permitted, and us come back.
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(ruid), uintptr(euid), 0); e != 0 {
			return os.NewSyscallError("setresuid", e)
		}
		if dumpable != 1 {
			return nil
		}
		// Another id takes it from the whole process, whose descriptors libcontainer's child opens by /proc.
		return os.NewSyscallError("prctl PR_SET_DUMPABLE", unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0))
	}
	defer func() {
		back := errors.Join(become(0, 0), os.NewSyscallError("capset", unix.Capset(&header, &was[0]))) // this clears the ambient set too
		if back != nil {
			err = errors.Join(err, fmt.Errorf("become root again after the container was started: %w", back))
		}
	}()
	if err := become(uid, uid); err != nil {
		return err
	}
	all := was
	for i := range all {
		all[i].Effective, all[i].Inheritable = all[i].Permitted, all[i].Permitted
	}
	if err := unix.Capset(&header, &all[0]); err != nil {
		return os.NewSyscallError("capset", err)
	}
	for c := range unix.CAP_LAST_CAP + 1 {
		if all[c/32].Permitted&(1<<(c%32)) == 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c), 0, 0); err != nil {
			return fmt.Errorf("raise ambient capability %d: %w", c, err)
		}
	}
	return fn()
}

// ownerOf is the user that a process's user namespace belongs to, in ours (ioctl_ns(2)).
func ownerOf(pid int) (int, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", pid))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	uid, err := unix.IoctlGetUint32(int(f.Fd()), unix.NS_GET_OWNER_UID)
	return int(uid), os.NewSyscallError("ioctl NS_GET_OWNER_UID", err)
}
