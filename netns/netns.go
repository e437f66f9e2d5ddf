// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"agentrun/internal/thread"
)

// NS is a network namespace, alive as long as it is open, a process is in it, or a socket of it is open.
type NS struct {
	file *os.File
	tid  int // the thread of New while it is in there, or 0
}

// New makes a namespace with loopback up, and has the rest of its making done on the thread that is in it already. Errors unwrap to
// the errno; after one there is no namespace.
func New(rest ...func(*NS) error) (*NS, error) {
	var ns *NS
	size := bufferSize()
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("unshare CLONE_NEWNET", err)
		}
		if err := loopbackUp(); err != nil {
			return err
		}
		if err := boundBuffers(size); err != nil {
			return err
		}
		// thread-self, not self: the main thread is still in the host's namespace.
		f, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		ns = &NS{file: f, tid: unix.Gettid()}
		for _, fn := range rest {
			if err = fn(ns); err != nil {
				break
			}
		}
		ns.tid = 0
		return err
	})
	if err != nil && ns != nil {
		err = errors.Join(err, ns.Close())
		ns = nil
	}
	return ns, err
}

// loopbackUp is netdevice(7)'s way, which takes a third of what netlink takes.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, lo); err != nil {
		return fmt.Errorf("flags of lo: %w", err)
	}
	lo.SetUint16(lo.Uint16() | unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}

// Do runs fn on a thread inside the namespace and returns its error. The thread is not used again, but for New's.
func (ns *NS) Do(fn func() error) error {
	if ns.tid == unix.Gettid() {
		return fn()
	}
	return onThread(func() error {
		if err := unix.Setns(int(ns.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("setns", err)
		}
		return fn()
	})
}

// Fd is the namespace's descriptor (setns(2)), as long as ns is open.
func (ns *NS) Fd() uintptr { return ns.file.Fd() }

// Inode identifies the namespace, as in readlink /proc/PID/ns/net.
func (ns *NS) Inode() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(ns.file.Fd()), &st); err != nil {
		return 0, os.NewSyscallError("fstat", err)
	}
	return st.Ino, nil
}

// Close lets the namespace go. Sockets that were made in it keep it until they are closed.
func (ns *NS) Close() error { return ns.file.Close() }

// onThread runs fn on a thread that ends with it.
func onThread(fn func() error) (err error) {
	thread.Throwaway(func() { err = fn() })
	return err
}
