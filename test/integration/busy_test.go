// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"strings"
	"testing"
)

// busy makes calls that programs in daily use make to themselves (agents on Node, browsers, debuggers, git), again and again.
const busy = `
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
param, attr = ctypes.c_int(0), (ctypes.c_uint32 * 12)(48)
tid = os.getpid()
calls = {
    "sched_setscheduler": lambda: libc.syscall(144, tid, 0x40000000, ctypes.byref(param)), # SCHED_RESET_ON_FORK: gives up
    "sched_setparam": lambda: libc.syscall(142, tid, ctypes.byref(param)),
    "sched_setattr": lambda: libc.syscall(314, tid, attr, 0),
    "ioprio_set": lambda: libc.syscall(251, 1, tid, 0),
    "capset": lambda: libc.syscall(126, header, data),
    "ptrace": lambda: libc.syscall(101, 0, 0, 0, 0), # PTRACE_TRACEME
    "personality": lambda: libc.syscall(135, 0x40000), # ADDR_NO_RANDOMIZE
    "memfd_create": lambda: libc.syscall(319, b"x", 0x10), # MFD_EXEC
    "socket": lambda: libc.syscall(41, 16, 0x80003, 15), # NETLINK_KOBJECT_UEVENT
    "chmod": lambda: libc.syscall(90, b"/tmp/sandbox", 0o2755),
}
for n in range(30):
    for name, call in calls.items():
        if call() != -1: print("allowed", name)
print("worked")
`

// H-24: busy isn't hostile. What programs ask for and go on without is refused and on record, and amounts to nothing; an attempt after
// it still weighs what it always did.
func TestH24BusyIsNotHostile(t *testing.T) {
	needProgram(t, "python3")
	for _, ring := range []int{2, 3} {
		t.Run(fmt.Sprint("ring", ring), func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.must("agent", "score", "a", "0.8")
			o := n.opts("--agent", "a", "--ring", fmt.Sprint(ring))
			r := run(t, o, "python3", "-c", busy)
			r.want(t, 0, "exited")
			if r.stdout != "worked\n" {
				t.Errorf("got %q", r.stdout)
			}
			seen := map[string]bool{}
			for _, e := range n.audit("node") {
				if e.Kind == "breach" || e.Kind == "quarantine" {
					t.Errorf("%s: %v", e.Kind, e.Data)
				}
				if e.Kind == "refusal" {
					seen[toText(e.Data["syscall"])] = true
				}
			}
			for _, name := range []string{
				"sched_setscheduler", "sched_setparam", "sched_setattr", "ioprio_set", "capset", "ptrace", "personality", "memfd_create", "socket", "chmod",
			} {
				if !seen[name] {
					t.Errorf("%s is not on record", name)
				}
			}
			run(t, o, probeArgs("mount tmpfs", "mount tmpfs", "mount tmpfs", "mount tmpfs", "mount tmpfs")...)
			if k := kinds(n.audit("node")); !strings.Contains(k, "breach quarantine") {
				t.Errorf("five mounts: %s", k)
			}
		})
	}
}
