// SPDX-License-Identifier: Apache-2.0

package thread

import (
	"syscall"
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
//go:uintptrescapes
//go:norace
//go:noinline
func waiting(call, a, b, c, d, e uintptr) (uintptr, syscall.Errno) {
	entersyscallblock() // until the other nothing may grow the stack
	r, _, errno := syscall.RawSyscall6(call, a, b, c, d, e, 0)
	exitsyscall()
	return r, errno
}

// Poll is ppoll(2) with the signals as they are; nil: without an end. What there is already costs no place.
func Poll(fds []unix.PollFd, timeout *unix.Timespec) (int, error) {
	var now unix.Timespec
	if n, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(unsafe.SliceData(fds))), uintptr(len(fds)), uintptr(unsafe.Pointer(&now)), 0, 0, 0); errno == 0 && n > 0 {
		return int(n), nil //nolint:gosec // as many as there are descriptors
	}
	n, errno := waiting(unix.SYS_PPOLL, uintptr(unsafe.Pointer(unsafe.SliceData(fds))), uintptr(len(fds)), uintptr(unsafe.Pointer(timeout)), 0, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil //nolint:gosec // as many as there are descriptors
}
