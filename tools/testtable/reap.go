// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// exited is the exit code of a command that ran.
type exited int

func (e exited) Error() string { return fmt.Sprintf("exit %d", int(e)) }

// reap runs a command and takes leave of every process that its descendants leave behind
// (PR_SET_CHILD_SUBREAPER, prctl(2)) as soon as it is dead. The pid 1 of some machines looks for its dead every other
// second only, and the tests that kill supervisors would wait for it. Processes that are alive when the command has
// ended are its pid 1's again.
func reap(command []string) error {
	if len(command) == 0 {
		return errors.New("reap wants a command")
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("PR_SET_CHILD_SUBREAPER: %w", err)
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait4: %w", err)
		case pid == cmd.Process.Pid && status.Signaled():
			return exited(128 + int(status.Signal()))
		case pid == cmd.Process.Pid:
			if status.ExitStatus() == 0 {
				return nil
			}
			return exited(status.ExitStatus())
		}
	}
}
