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
func New(rest ...func(*NS) error) (*NS, error) { return Begin().Make(rest...) }

// Begun is a namespace of which nobody knows yet what will be in it. It is to be made or dropped; whichever comes first counts.
type Begun struct {
	rest chan *[]func(*NS) error // nil: dropped
	over chan struct{}
	ns   *NS
	err  error
}

// Begin has a thread make a namespace with loopback up, and returns at once.
func Begin() *Begun {
	b := &Begun{rest: make(chan *[]func(*NS) error, 1), over: make(chan struct{})}
	go func() {
		defer close(b.over)
		b.err = onThread(func() error {
			ns, err := enterNew()
			rest := <-b.rest
			switch {
			case err != nil:
			case rest == nil:
				err = errDropped
			default:
				for _, fn := range *rest {
					if err = fn(ns); err != nil {
						break
					}
				}
			}
			if err != nil && ns != nil {
				return errors.Join(err, ns.Close())
			}
			if ns != nil {
				ns.tid, b.ns = 0, ns
			}
			return err
		})
	}()
	return b
}

var errDropped = errors.New("nobody wanted the namespace")

// Make is New, of what has been begun.
func (b *Begun) Make(rest ...func(*NS) error) (*NS, error) {
	b.ask(&rest)
	<-b.over
	return b.ns, b.err
}

// Drop lets it go. Of one that was made it does nothing.
func (b *Begun) Drop() { b.ask(nil) }

func (b *Begun) ask(rest *[]func(*NS) error) {
	select {
	case b.rest <- rest:
	default: // somebody was first
	}
}

// enterNew takes this thread to a namespace of its own.
func enterNew() (*NS, error) {
	size := bufferSize()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, os.NewSyscallError("unshare CLONE_NEWNET", err)
	}
	if err := loopbackUp(); err != nil {
		return nil, err
	}
	if err := boundBuffers(size); err != nil {
		return nil, err
	}
	// thread-self, not self: the main thread is still in the host's namespace.
	f, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	return &NS{file: f, tid: unix.Gettid()}, nil
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
