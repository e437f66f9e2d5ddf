// SPDX-License-Identifier: Apache-2.0

package control

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// setThreadGroups sets them for this thread alone, as the bare system call does; syscall.Setgroups is for all threads.
func setThreadGroups(n int, list *uint32) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(n), uintptr(unsafe.Pointer(list)), 0); errno != 0 {
		return errno
	}
	return nil
}
