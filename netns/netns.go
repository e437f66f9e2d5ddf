// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"agentrun/internal/thread"
)

// NS is a network namespace, alive as long as it is open, a process is in it, or a socket of it is open.
type NS struct{ file *os.File }

// New makes a namespace with loopback up. Errors unwrap to the errno.
func New() (*NS, error) {
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
		ns = &NS{file: f}
		return nil
	})
	return ns, err
}

func loopbackUp() error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("netlink in the new namespace: %w", err)
	}
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := h.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}

// Do runs fn on a thread inside the namespace and returns its error. The thread is not used again.
func (ns *NS) Do(fn func() error) error {
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
