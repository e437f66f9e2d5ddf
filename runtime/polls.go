// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"agentrun/seccomp"
)

// Who waits in poll(2) or select(2) is an entry in the list of each file, once for each time that the call names it. A timer's interrupt goes
// through all of them with interrupts off, in time that is nobody's, also through those that wait for something else of it (POLLPRI): these
// sleep on, so the next expiry costs the same. The entries are memory of the kernel's that no cgroup is charged for. Open files bound what
// one call names, and nothing how many threads do. So the supervisor looks, as for watches, where each thread is.
//
// mostPolled is what all threads of a run wait for at once. A server has its connections there, once; a program of many threads has some for
// each.
const mostPolled = 16384

// polled counts it.
func polled(pids []int) (n int) {
	for _, pid := range pids {
		tasks := fmt.Sprintf("/proc/%d/task/", pid)
		list, err := os.ReadDir(tasks)
		if err != nil {
			continue // it has ended
		}
		for _, e := range list {
			if n += polledBy(tasks + e.Name()); n > mostPolled {
				return n
			}
		}
	}
	return n
}

// polledBy reads the number and the arguments of the call that a thread sleeps in (proc_pid_syscall(5)). What the call was given counts and
// not what is in the agent's memory, which it may have changed since.
func polledBy(task string) int {
	b, err := os.ReadFile(task + "/syscall")
	f := strings.Fields(string(b))
	if err != nil || len(f) < 7 {
		return 0 // it runs, or has ended
	}
	arg := func(i int) uint32 { // integers of these calls are of 32 bits
		v, _ := strconv.ParseUint(f[1+i], 0, 64)
		return uint32(v) //nolint:gosec // the kernel looks at no more
	}
	nr, err := strconv.Atoi(f[0])
	if err != nil {
		return 0
	}
	switch seccomp.Name(nr) { // by name: not every architecture has all of them
	case "poll", "ppoll":
		return int(arg(1))
	case "select", "pselect6":
		if f[2] == "0x0" && f[3] == "0x0" && f[4] == "0x0" {
			return 0 // a sleep
		}
		return int(min(arg(0), tableSize(task))) // as the kernel does (core_sys_select)
	case "restart_syscall": // after a stop; the registers are as they were, of whatever call it was
		if where, err := os.ReadFile(task + "/wchan"); err == nil && strings.Contains(string(where), "poll") {
			return int(arg(1))
		}
	}
	return 0
}

// tableSize is how many numbers of descriptors a thread's table has room for.
func tableSize(task string) uint32 {
	b, _ := os.ReadFile(task + "/status")
	_, rest, _ := strings.Cut(string(b), "\nFDSize:")
	line, _, _ := strings.Cut(rest, "\n")
	n, _ := strconv.ParseUint(strings.TrimSpace(line), 10, 32)
	return uint32(n)
}
