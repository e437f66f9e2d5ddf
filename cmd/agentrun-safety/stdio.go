// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// takeStdout keeps standard output for the protocol alone: from here on, what anything else of this process prints goes to
// standard error, where it breaks nobody's message.
func takeStdout() (*os.File, error) {
	fd, err := unix.FcntlInt(1, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("take standard output: %w", os.NewSyscallError("fcntl", err))
	}
	if err := unix.Dup3(2, 1, 0); err != nil {
		return nil, fmt.Errorf("take standard output: %w", os.NewSyscallError("dup3", err))
	}
	return os.NewFile(uintptr(fd), "stdout"), nil //nolint:gosec // a descriptor
}

// harden keeps what this process knows to itself. The client of stdio often runs as the same user, and may be who the codes are
// kept from: not dumpable (prctl(2)) means that it may neither read this process's memory nor trace it (ptrace(2), Yama or not), and
// that no core dump has a code in it. What remains: that user's own files and control socket, hence docs/safety-dongle.md.
func harden() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("harden: %w", os.NewSyscallError("prctl PR_SET_DUMPABLE", err))
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("harden: %w", os.NewSyscallError("prctl PR_SET_NO_NEW_PRIVS", err))
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("harden: %w", os.NewSyscallError("setrlimit RLIMIT_CORE", err))
	}
	unix.Umask(0o077)
	return nil
}
