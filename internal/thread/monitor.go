// SPDX-License-Identifier: Apache-2.0

package thread

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// monitorSlack is how much later than it asked for the Go runtime's monitor may wake. While anything runs it wants to every 20 µs, of
// which the kernel's own 50 µs of slack make 70 (PR_SET_TIMERSLACK(2const)): fifty times in a launch, each of them two switches of what
// runs there. With much more, threads that wait in the kernel keep goroutines from running (docs/benchmarks.md).
const monitorSlack = 500 * time.Microsecond

// EaseMonitor gives it to the thread that the runtime starts before any other, which is the second in the list that the kernel keeps in
// their order (proc(5), task). It takes CAP_SYS_NICE, and whoever hasn't got it is as fast as before. Threads that the monitor starts
// inherit the slack, and so would agents: the stub gives them the kernel's default.
func EaseMonitor() error {
	f, err := os.Open("/proc/self/task")
	if err != nil {
		return err
	}
	defer f.Close()
	names, err := f.Readdirnames(2)
	if err != nil {
		return err
	}
	if len(names) < 2 || names[0] != strconv.Itoa(os.Getpid()) {
		return errors.New("the runtime has no monitor of its own")
	}
	return os.WriteFile(filepath.Join("/proc", names[1], "timerslack_ns"), strconv.AppendInt(nil, monitorSlack.Nanoseconds(), 10), 0)
}

// QuietChildren has nobody interrupted when a child ends: Go catches SIGCHLD, which whoever ends has then to wake a thread for, on the way to
// whoever waits for him. By default the kernel drops the signal, and keeps the child until it is waited for (signal(7)).
func QuietChildren() error {
	var byDefault [4]uint64 // struct sigaction, as the kernel has it
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGCHLD), uintptr(unsafe.Pointer(&byDefault)), 0, 8, 0, 0)
	if errno != 0 {
		return os.NewSyscallError("rt_sigaction", errno)
	}
	return nil
}
