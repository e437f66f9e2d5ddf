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

//go:linkname exitsyscall runtime.exitsyscall
func exitsyscall()

// waiting is a system call of which we know that it waits: it gives the thread's place among the GOMAXPROCS that run goroutines to others
// first, as the waits of the runtime's own do. With others a thread keeps it until the runtime's monitor has seen it there, which on an idle
// machine is half a millisecond and more; two such are all places of two processors, and what was begun before then waits for the monitor,
// such as whoever answers the agent's first call.
//
// first is made before the wait and then after it, both without a place: nothing of the runtime's, which may ask the thread to let others run or
// be held up by an ordinary thread, is between the two. A signal doesn't end the wait, as the runtime's are no reason to come back.
//
// At a hang-up the thread gives its priority back, if it has one, and sleeps for a moment: who has hung up still has to end, most likely on the
// same processor.
//
//go:norace
//go:nocheckptr
//go:noinline
func waiting(fds *unix.PollFd, n int, timeout *unix.Timespec, first, then *Ioctl) (uintptr, syscall.Errno) {
	entersyscallblock() // until the other nothing may grow the stack
	if first != nil {
		first.make()
	}
	r, errno := uintptr(0), unix.EINTR
	for errno == unix.EINTR { // the kernel leaves in timeout what is left of it
		r, _, errno = syscall.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(fds)), uintptr(n), uintptr(unsafe.Pointer(timeout)), 0, 0, 0)
	}
	if errno == 0 {
		for i := range n {
			fd := (*unix.PollFd)(unsafe.Add(unsafe.Pointer(fds), uintptr(i)*unsafe.Sizeof(*fds)))
			if then != nil && fd.Fd == then.FD && fd.Revents&unix.POLLIN != 0 {
				then.make()
			}
			if fd.Revents&unix.POLLHUP != 0 {
				_, _, _ = syscall.RawSyscall(unix.SYS_SCHED_SETSCHEDULER, 0, unix.SCHED_NORMAL, uintptr(unsafe.Pointer(&ordinary)))
				_, _, _ = syscall.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&moment)), 0, 0)
			}
		}
	}
	exitsyscall()
	return r, errno
}

var (
	ordinary int32 // the priority of every ordinary program
	moment   = unix.Timespec{Nsec: 50_000}
)

// Yield lets run first whom the thread has just woken and the kernel has put on the same processor.
func Yield() { _, _, _ = syscall.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// Poll is ppoll(2) with the signals as they are; nil: without an end. What there is already costs no place.
func Poll(fds []unix.PollFd, timeout *unix.Timespec) (int, error) {
	return PollSoon(fds, 0, timeout, nil, nil)
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

// PollSoon is Poll for what is most likely there within a time, for which it keeps its place: who has given it away may find none when he
// comes back, and then waits for a thread to hand him one. first is made before the wait, where it isn't nil, and there is no such time then.
// then is made as soon as there is something to read at its descriptor, but not where something was there within the time.
func PollSoon(fds []unix.PollFd, within time.Duration, timeout *unix.Timespec, first, then *Ioctl) (int, error) {
	soon := unix.NsecToTimespec(int64(within))
	if first == nil {
		if n, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(unsafe.SliceData(fds))), uintptr(len(fds)), uintptr(unsafe.Pointer(&soon)), 0, 0, 0); errno == 0 && n > 0 {
			return int(n), nil //nolint:gosec // as many as there are descriptors
		}
	}
	n, errno := waiting(unsafe.SliceData(fds), len(fds), timeout, first, then)
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil //nolint:gosec // as many as there are descriptors
}
