// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// controlFD is the sandbox's end of the control socket: in libcontainer's init, which gets it as its first
// extra file, and in the stub that the init executes.
const controlFD = 3

// DieWithSupervisor is called first thing in libcontainer's init, before any code of libcontainer's. From
// then on the process ends when its supervisor does, whatever it is doing.
//
// The attack: a root view in which the init waits for ever (a FIFO for a file that it opens). The supervisor
// was killed, and the init lived on with parent 1, its cgroup and namespaces with it (M-5).
//
// libcontainer's own parent-death signal is set on its first stage only: the kernel clears it at each fork
// (copy_process), and stage two, which becomes the init, never sets one. Asking for the parent's id, as
// libcontainer does before its exec, tells nothing in a pid namespace: the parent outside reads as 0 before
// and after its death (getppid(2)). So two things of ours:
//
//   - The parent-death signal, now. It also reaches a process that is stopped. libcontainer reads it and sets it again after its
//     setuid(2), which clears it (commit_creds, prctl(2)).
//   - A thread that waits for the hang-up of the control socket. It covers what the signal doesn't: a supervisor that died before the
//     prctl, and the instants between setuid and the second prctl, after which the init waits for the exec FIFO's other end, for ever.
//     poll(2) reports a hang-up whenever it came. exit_group(2) ends the other threads also in open(2) of a FIFO, which is killable.
//
// Before this point the three stages of nsexec.c wait for nobody but each other and the supervisor, by
// sockets whose end each takes for an error. What remains: a call that no signal ends (a dead NFS server), as
// for any process, and on cgroup v1 a process that was frozen when the supervisor died (Collect).
func DieWithSupervisor() {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		os.Exit(ExitFailed)
	}
	go func() {
		fds := []unix.PollFd{{Fd: controlFD}} // a hang-up is reported unasked
		for {
			if _, err := unix.Poll(fds, -1); !errors.Is(err, unix.EINTR) { // setuid(3) interrupts every thread to change it
				os.Exit(ExitFailed)
			}
		}
	}()
}
