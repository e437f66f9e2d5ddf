// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Verify proves from inside that Drop(o) holds, and tells everything that doesn't. Whatever it tries is harmless should it
// work: arguments are chosen so that a kernel that let the call pass would answer with another error.
func Verify(o Options) error {
	o, err := o.filled()
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	errs := []error{verifyIdentity(o), verifyCapabilities(), verifyFlags(), verifyLimits(o)}
	for _, a := range attempts(o) {
		errs = append(errs, a.verify())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	return nil
}

func verifyIdentity(o Options) error {
	r, e, s := unix.Getresuid()
	if r != o.UID || e != o.UID || s != o.UID {
		return fmt.Errorf("user is %d, %d, %d, want %d", r, e, s, o.UID)
	}
	r, e, s = unix.Getresgid()
	if r != o.GID || e != o.GID || s != o.GID {
		return fmt.Errorf("group is %d, %d, %d, want %d", r, e, s, o.GID)
	}
	groups, err := unix.Getgroups()
	if len(groups) != 0 {
		return fmt.Errorf("groups are %v, want none", groups)
	}
	return wrap("getgroups(2)", err)
}

func verifyCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		return fmt.Errorf("capget(2): %w", err)
	}
	if have != [2]unix.CapUserData{} {
		return fmt.Errorf("capabilities are %+v, want none", have)
	}
	// The ambient set is within the inheritable one, which is empty.
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		in, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_READ, c, 0)
		if errno == syscall.EINVAL {
			return nil // an older kernel has fewer
		}
		if errno != 0 {
			return fmt.Errorf("prctl(PR_CAPBSET_READ) %d: %w", c, errno)
		}
		if in != 0 {
			return fmt.Errorf("capability %d is in the bounding set", c)
		}
	}
	return nil
}

// verifyFlags asks all threads. Were their answers to differ, the Go runtime would end the process.
func verifyFlags() error {
	var errs []error
	for _, f := range []struct {
		name     string
		question uintptr
		want     uintptr
	}{
		{"no_new_privs", unix.PR_GET_NO_NEW_PRIVS, 1}, {"seccomp mode", unix.PR_GET_SECCOMP, 2}, {"dumpable", unix.PR_GET_DUMPABLE, 0},
	} {
		got, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, f.question, 0, 0)
		if errno != 0 {
			errs = append(errs, fmt.Errorf("%s: prctl(2): %w", f.name, errno))
		} else if got != f.want {
			errs = append(errs, fmt.Errorf("%s is %d, want %d", f.name, got, f.want))
		}
	}
	return errors.Join(errs...)
}

func verifyLimits(o Options) error {
	for what, most := range map[int]uint64{unix.RLIMIT_CORE: 0, unix.RLIMIT_NOFILE: o.Files, unix.RLIMIT_NPROC: o.Threads} {
		var l unix.Rlimit
		if err := unix.Prlimit(0, what, nil, &l); err != nil {
			return fmt.Errorf("prlimit(2) resource %d: %w", what, err)
		}
		if l.Max != most {
			return fmt.Errorf("limit %d is %d, want %d", what, l.Max, most)
		}
	}
	return nil
}

// attempt is a call that must be refused with a certain error.
type attempt struct {
	name string
	do   func() error
	want syscall.Errno
}

func (a attempt) verify() error {
	if err := a.do(); !errors.Is(err, a.want) {
		return fmt.Errorf("%s: got %w, want %w", a.name, orSuccess(err), a.want)
	}
	return nil
}

var errSuccess = errors.New("success")

func orSuccess(err error) error {
	if err == nil {
		return errSuccess
	}
	return err
}

// attempts: one for each way out that the package comment names. Numbers without pointers, or with descriptor -1, get EFAULT,
// EBADF or EINVAL from a kernel that lets them through.
func attempts(o Options) []attempt {
	raw := func(number uintptr, args ...uintptr) func() error {
		return func() error {
			var a [6]uintptr
			copy(a[:], args)
			if _, _, errno := unix.RawSyscall6(number, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
				return errno
			}
			return nil
		}
	}
	bad := ^uintptr(0)
	as := []attempt{
		{"become root", raw(unix.SYS_SETRESUID, 0, 0, 0), unix.EPERM},
		{"start a program", raw(unix.SYS_EXECVE), unix.EPERM},
		{"start a program by descriptor", raw(unix.SYS_EXECVEAT, bad), unix.EPERM},
		{"make a process", raw(unix.SYS_CLONE, unix.CLONE_NEWUSER|unix.CLONE_THREAD), unix.EPERM},
		{"make a process by clone3", raw(unix.SYS_CLONE3), unix.EPERM},
		{"make a namespace", raw(unix.SYS_UNSHARE, bad), unix.EPERM},
		{"join a namespace", raw(unix.SYS_SETNS, bad), unix.EPERM},
		{"mount", raw(unix.SYS_MOUNT), unix.EPERM},
		{"trace", raw(unix.SYS_PTRACE, bad), unix.EPERM},
		{"read another's memory", raw(unix.SYS_PROCESS_VM_READV, 1, 0, bad), unix.EPERM},
		{"take another's descriptor", raw(unix.SYS_PIDFD_GETFD, bad), unix.EPERM},
		{"load a BPF program", raw(unix.SYS_BPF, bad), unix.EPERM},
		{"set up io_uring", raw(unix.SYS_IO_URING_SETUP, 1), unix.EPERM},
		{"kill another", raw(unix.SYS_KILL, 1, 0), unix.EPERM},
		{"bind a port", raw(unix.SYS_BIND, bad), unix.EPERM},
		{"make a netlink socket", socketOf(unix.AF_NETLINK, unix.SOCK_RAW), unix.EPERM},
		{"make a raw socket", socketOf(unix.AF_INET, unix.SOCK_RAW), unix.EPERM},
		{"map executable memory", mapExecutable, unix.EPERM},
	}
	if !o.Unix {
		as = append(as, attempt{"make a unix socket", socketOf(unix.AF_UNIX, unix.SOCK_STREAM), unix.EPERM})
	}
	if !o.BestEffort {
		as = append(as, attempt{"open what no rule names", openOther, unix.EACCES})
	}
	return as
}

func socketOf(family, kind int) func() error {
	return func() error {
		fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			_ = unix.Close(fd)
		}
		return err
	}
}

func mapExecutable() error {
	const size = 4096
	at, _, errno := unix.Syscall6(unix.SYS_MMAP, 0, size, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, ^uintptr(0), 0)
	if errno != 0 {
		return errno
	}
	_, _, _ = unix.Syscall(unix.SYS_MUNMAP, at, size, 0)
	return nil
}

// openOther opens a file that every user may read.
func openOther() error {
	name, err := unix.BytePtrFromString("/proc/version")
	if err != nil {
		return err
	}
	cwd := unix.AT_FDCWD
	fd, _, errno := unix.Syscall6(unix.SYS_OPENAT, uintptr(cwd), uintptr(unsafe.Pointer(name)), unix.O_RDONLY|unix.O_CLOEXEC, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	_ = unix.Close(int(fd))
	return nil
}
