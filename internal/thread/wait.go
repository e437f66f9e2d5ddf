// SPDX-License-Identifier: Apache-2.0

package thread

import (
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

//go:linkname entersyscallblock runtime.entersyscallblock
func entersyscallblock()

//go:linkname entersyscall runtime.entersyscall
func entersyscall()

//go:linkname exitsyscall runtime.exitsyscall
func exitsyscall()

// waiting is a system call of which we know that it waits: it gives the thread's place among the GOMAXPROCS that run goroutines to others
// first, as the waits of the runtime's own do. With others a thread keeps it until the runtime's monitor has seen it there, which on an idle
// machine is half a millisecond and more; two such are all places of two processors, and what was begun before then waits for the monitor,
// such as whoever answers the agent's first call.
//
// First is made before the wait and Then after it, both without a place: nothing of the runtime's, which may ask the thread to let others run or
// be held up by an ordinary thread, is between the two. A signal doesn't end the wait, as the runtime's are no reason to come back.
//
// At a hang-up a hasty thread gives its priority back, and lets all others run first: who has hung up still has to end, most likely on the same
// processor.
//
//go:norace
//go:nocheckptr
//go:noinline
func waiting(fds *unix.PollFd, n int, w *Waits) (uintptr, syscall.Errno) {
	if w.Keep {
		entersyscall()
	} else {
		entersyscallblock() // until exitsyscall nothing may grow the stack
	}
	if w.First != nil {
		w.First.make()
	}
	r, errno := uintptr(0), unix.EINTR
	for errno == unix.EINTR { // the kernel leaves in the time what is left of it
		r, _, errno = syscall.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(fds)), uintptr(n), uintptr(unsafe.Pointer(w.Timeout)), 0, 0, 0)
	}
	if errno == 0 {
		for i := range n {
			fd := (*unix.PollFd)(unsafe.Add(unsafe.Pointer(fds), uintptr(i)*unsafe.Sizeof(*fds)))
			if w.Then != nil && fd.Fd == w.Then.FD && fd.Revents&unix.POLLIN != 0 {
				w.Then.make()
			}
			if fd.Revents&unix.POLLHUP != 0 {
				if w.Hung != nil && fd.Revents&unix.POLLIN == 0 {
					*w.Hung = 1 // no function of sync/atomic: the race detector's want a place
				}
				if w.Hasty {
					_, _, _ = syscall.RawSyscall(unix.SYS_SCHED_SETSCHEDULER, 0, unix.SCHED_NORMAL, uintptr(unsafe.Pointer(&ordinary)))
					_, _, _ = syscall.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
				}
			}
		}
	}
	exitsyscall()
	return r, errno
}

var ordinary int32 // the priority of every ordinary program

// Yield lets run first whom the thread has just woken and the kernel has put on the same processor.
func Yield() { _, _, _ = syscall.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// Poll is ppoll(2) with the signals as they are; nil: without an end. What there is already costs no place.
func Poll(fds []unix.PollFd, timeout *unix.Timespec) (int, error) {
	return (&Waits{Timeout: timeout}).Poll(fds)
}

// Ioctl is made beside a wait, where the thread has no place: on a machine that has much to do it may take long to have one again. Interrupted
// by a signal, it is made again.
type Ioctl struct {
	FD      int32
	Request uintptr
	Arg     unsafe.Pointer

	Done  bool // it was made
	Errno syscall.Errno
}

//go:norace
//go:nocheckptr
//go:nosplit
func (i *Ioctl) make() {
	i.Done, i.Errno = true, unix.EINTR
	for i.Errno == unix.EINTR {
		_, _, i.Errno = syscall.RawSyscall(unix.SYS_IOCTL, uintptr(i.FD), i.Request, uintptr(i.Arg))
	}
}

// Waits is how a thread waits. What is nil isn't made, or said.
type Waits struct {
	Timeout *unix.Timespec // nil: without an end
	First   *Ioctl         // made before the wait
	Then    *Ioctl         // made as soon as there is something to read at its descriptor, but not where something was there at once
	// Keep leaves it to the monitor to take the place away: for a wait in which others need the processor, and nobody the place, since giving
	// it away wakes a thread.
	Keep bool
	// Hasty says that the thread has a real-time priority. It is an ordinary one's after a hang-up.
	Hasty bool
	Hung  *uint32 // made 1 at a hang-up after which there is nothing to read, before others run
}

// Poll is Poll so. What is there already, where there is nothing to make first, costs no place.
func (w *Waits) Poll(fds []unix.PollFd) (int, error) {
	if w.First == nil {
		var now unix.Timespec
		if n, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(unsafe.SliceData(fds))), uintptr(len(fds)), uintptr(unsafe.Pointer(&now)), 0, 0, 0); errno == 0 && n > 0 {
			return int(n), nil //nolint:gosec // as many as there are descriptors
		}
	}
	n, errno := waiting(unsafe.SliceData(fds), len(fds), w)
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil //nolint:gosec // as many as there are descriptors
}

// Stay has the thread sleep and keep its place: a goroutine that another thread begins meanwhile is not a reason to wake a third, and this one
// takes it when it wakes by itself.
func Stay(d time.Duration) {
	length := unix.NsecToTimespec(d.Nanoseconds())
	_, _ = unix.Ppoll(nil, &length, nil)
}
