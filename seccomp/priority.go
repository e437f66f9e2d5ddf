// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// hurry gives the calling thread the lowest real-time priority, which is above every ordinary program's. The thread must be locked.
//
// A call that waits for its answer can be interrupted by a signal until the supervisor has received it: only from then on is
// the wait killable (WAIT_KILLABLE_RECV). fork(2) never fails with EINTR on a plain kernel, so programs don't try it again: dash
// says "Cannot fork" when the first child of a pipeline ends while it asks for the second. With the others' processes in the way
// the loop took long enough for that to happen in 28 to 94 of 120 pipelines (two processors, load 12 to 19); above them in 0 of 360.
//
// It has a price, which hostile agents can raise: deciding and recording are done at that priority too, bounded for refusals by DenyRate. Twenty
// runs that flooded with them made the host's own work slower by half (docs/seccomp.md). The reset flag keeps the policy from threads that this one makes.
// Where it isn't permitted (an ordinary user, a kernel with CONFIG_RT_GROUP_SCHED) the loop works as before, with that window.
func hurry() (got bool, back func() bool) {
	if setPolicy(unix.SCHED_FIFO|unix.SCHED_RESET_ON_FORK, 1) != nil {
		return false, func() bool { return true }
	}
	return true, func() bool { return setPolicy(unix.SCHED_NORMAL, 0) == nil }
}

func setPolicy(policy int, priority int32) error {
	_, _, e := unix.RawSyscall(unix.SYS_SCHED_SETSCHEDULER, 0, uintptr(policy), uintptr(unsafe.Pointer(&priority)))
	if e != 0 {
		return e
	}
	return nil
}
