// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// busy makes calls that programs in daily use make to themselves (agents on Node, browsers, debuggers, git), again and again.
const busy = `
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
param, attr = ctypes.c_int(0), (ctypes.c_uint32 * 12)(48)
tid = os.getpid()
calls = {
    "sched_setscheduler": lambda: libc.syscall(144, tid, 0x40000000, ctypes.byref(param)), # SCHED_RESET_ON_FORK: gives up
    "sched_setparam": lambda: libc.syscall(142, tid, ctypes.byref(param)),
    "sched_setattr": lambda: libc.syscall(314, tid, attr, 0),
    "ioprio_set": lambda: libc.syscall(251, 1, tid, 0),
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
				"sched_setscheduler", "sched_setparam", "sched_setattr", "ioprio_set", "ptrace", "personality", "memfd_create", "socket", "chmod",
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

// everyday are programs that people and agents use all day, as a shell runs them. What they are refused, they go on without.
var everyday = map[string]string{
	"strace":     "strace -o /dev/null true; strace -f -o /dev/null ls",
	"gdb":        "gdb -nx -batch -ex run /bin/true",
	"tmux":       "tmux -L x new-session -d 'sleep 0.1'; tmux -L x kill-server",
	"go":         "test -f /workspace/m/m && break; PATH=$PATH:/usr/local/go/bin; mkdir -p /workspace/m && cd /workspace/m && echo 'package main\nfunc main() {}' >main.go && { test -f go.mod || go mod init m; } && go build -o m . && ./m",
	"pytest":     "cd /workspace && echo 'def test_x(): pass' >test_x.py && pytest -q test_x.py",
	"python3":    "python3 -m unittest -h; python3 -c 'import multiprocessing as m; p = m.Process(target=print); p.start(); p.join()'",
	"node":       "cd /workspace && echo 'require(\"node:test\")(\"x\", () => {})' >x.test.js && node --test x.test.js",
	"git":        "cd /workspace && git init -q --shared g; cd g && git status",
	"ping":       "ping -c1 -W1 127.0.0.1",
	"dmesg":      "dmesg",
	"ip":         "ip address; ip route",
	"ss":         "ss -tn",
	"mount":      "mount; df; hostname; uptime; free; ps; id; nproc",
	"sudo":       "sudo -n true",
	"passwd":     "passwd -S",
	"tar":        "tar cf /tmp/x.tar /etc/hostname; cp -a /etc/hostname /tmp/y; install -m 755 /bin/true /tmp/z; mkdir -m 2775 /tmp/d; install -d -m 2775 /tmp/e",
	"setpriv":    "setpriv --no-new-privs true; nice true; taskset 1 true; chrt -p $$; ionice true",
	"perl":       "perl -e 'print 1'",
	"ssh-keygen": "ssh-keygen -q -t ed25519 -N '' -f /tmp/key; ssh -o BatchMode=yes nowhere.invalid true",
}

// H-24 (F2): no program of daily use gets an agent held, used five times within a minute.
func TestH24EverydayProgramsAreFree(t *testing.T) {
	for name, script := range everyday {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := lookPath(name); err != nil && (name != "go" || !hasGo()) {
				t.Logf("%s isn't on this machine", name)
				return
			}
			n := newNode(t)
			n.must("agent", "score", "a", "0.8")
			o := n.opts("--agent", "a", "--memory", "1G", "--timeout", "300s", "--workspace", workspace(t))
			r := run(t, o, "sh", "-c", "for i in 1 2 3 4 5; do { "+script+"; } >/dev/null 2>&1; done; echo worked")
			r.want(t, 0, "exited")
			for _, e := range n.audit("node") {
				if e.Kind == "breach" || e.Kind == "quarantine" {
					t.Errorf("%s: %v; refused: %v", e.Kind, e.Data, r.status.Refused)
				}
			}
		})
	}
}

// hasGo looks where PATH doesn't lead.
func hasGo() bool {
	_, err := os.Stat("/usr/local/go/bin/go")
	return err == nil
}

// attacks are tries that no ring allows anybody, of THREATS.
var attacks = []string{
	"mount tmpfs", "pivot_root", "chroot", "umount /proc", "unshare user", "unshare mnt", "clone user", "clone3 user", "setns net", "open_tree /",
	"move_mount", "open_by_handle_at /", "ptrace 1", "ptrace-seize 1", "process_vm_readv 1", "process_vm_writev 1", "bpf", "perf_event_open",
	"userfaultfd", "keyctl", "add_key", "request_key", "init_module", "kexec_load", "reboot", "settimeofday", "modify_ldt", "iopl", "fanotify_init",
	"tiocsti", "tiocsetd", "socket packet raw", "socket vsock stream", "mknod char", "swapon", "quotactl",
}

// H-24: an attack is held within its third attempt, in each ring; and before anything is held, operators are told what comes close.
func TestH24AttacksAreHeld(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for _, ring := range []int{2, 3} {
		for i, attack := range attacks {
			agent := fmt.Sprintf("a%d-%d", ring, i)
			n.must("agent", "score", agent, "0.8")
			run(t, n.opts("--agent", agent, "--ring", fmt.Sprint(ring)), probeArgs(attack, attack, attack)...)
		}
	}
	held := map[string]bool{}
	for _, e := range n.audit("node") {
		if e.Kind == "breach" {
			held[toText(e.Data["agent_id"])] = true
		}
	}
	for _, ring := range []int{2, 3} {
		for i, attack := range attacks {
			if !held[fmt.Sprintf("a%d-%d", ring, i)] {
				t.Errorf("ring %d: three times %s, and nobody is held", ring, attack)
			}
		}
	}
}

// H-24: medium is an event, with program and call, before anything is held.
func TestH24MediumIsTold(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.must("agent", "score", "a", "0.8")
	a := p.agent("a", opts{profile: "ring2", flags: []string{"--agent", "a"}})
	a.expect("errno=EPERM", "mount tmpfs")
	a.expect("errno=EPERM", "chroot")
	var told []happened
	eventually(t, 20*time.Second, "the event", func() bool { told = a.events("near_breach"); return len(told) > 0 })
	if e := told[0]; e.Data["severity"] != "medium" || e.Data["call"] != "chroot" || e.Data["program"] != "probe" {
		t.Errorf("got %v", e)
	}
	// And what is refused at all, as far as it is on record (M-23).
	for i, e := range a.events("refused") {
		if want := [...]string{"mount", "chroot"}; i >= len(want) || e.Data["syscall"] != want[i] || e.Data["count"] != "1" {
			t.Errorf("refused: %v, want %v, once each", e.Data, want)
		}
	}
	if n := len(a.events("refused")); n != 2 {
		t.Errorf("%d events of refused calls, want 2", n)
	}
	for _, e := range p.audit() {
		if e.Kind == "breach" {
			t.Errorf("held by two attempts: %v", e.Data)
		}
	}
}
