// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// THREATS "kernel surface"; M-4.

func TestKernelSurface(t *testing.T) {
	attacks := []attack{
		{try: "personality 0x0040000", want: "EPERM@personality"},
		{try: "personality 0x0400000", want: "EPERM@personality"}, // READ_IMPLIES_EXEC
		{try: "personality 0x0000008", want: "EPERM@personality"}, // PER_LINUX32
		{try: "keyctl 0", want: "EPERM@keyctl"},
		{try: "keyctl 1", want: "EPERM@keyctl"},
		{try: "seccomp-listener", want: "ENOSYS@seccomp"},
		{try: "prctl 22 2 0", want: "EINVAL"},               // PR_SET_SECCOMP
		{try: "prctl 35 1 0", want: "EPERM@prctl"},          // PR_SET_MM
		{try: "prctl 28 1", want: "EPERM@prctl"},            // PR_SET_SECUREBITS
		{try: "prctl 24 0", want: "EPERM@prctl"},            // PR_CAPBSET_DROP
		{try: "prctl 47 2 21 0", want: "EPERM@prctl"},       // PR_CAP_AMBIENT_RAISE
		{try: "prctl 59 1 0 0", want: "EPERM@prctl"},        // PR_SET_SYSCALL_USER_DISPATCH
		{try: "prctl 38 0", want: "EINVAL"},                 // PR_SET_NO_NEW_PRIVS off: the kernel knows no way back
		{try: "prctl 0x59616d61 1", want: "EINVAL"},         // PR_SET_PTRACER
		{try: "prctl 0x100000023 1 0", want: "EPERM@prctl"}, // PR_SET_MM under a 33rd bit
		{try: "capset", want: "EPERM"},                      // the kernel's own answer
		{try: "capset none", want: "ok"},                    // what browsers ask for
		{try: "capset every", want: "value=0 of 576"},
		{try: "setgroups", want: "EPERM@setgroups"},
		{try: "setuid 0", want: "EPERM@setuid", in: same("EPERM", "ring1", "ring2")},
		{try: "setgid 0", want: "EPERM@setgid", in: same("EPERM", "ring1", "ring2")},
		{try: "setresuid 0", want: "EPERM@setresuid", in: same("EPERM", "ring1", "ring2")},
		// Numbers that no build knows, and the edges of the number space.
		{try: "sys 9999", want: "ENOSYS@unknown"},
		{try: "sys 600", want: "ENOSYS@unknown"},
		{try: "sys 1000000", want: "ENOSYS@unknown"},
		// The terminal. Stdin is a pipe here; the filter doesn't know and must
		// answer before the kernel says ENOTTY.
		{try: "tiocsti", want: "EPERM@ioctl"},
		{try: "tiocsti 1", want: "EPERM@ioctl"},
		{try: "tiocsti 0x7fffffff", want: "EPERM@ioctl"},
		{try: "tioclinux", want: "EPERM@ioctl"},
		{try: "tioclinux 1", want: "EPERM@ioctl"},
		{try: "tiocsetd", want: "EPERM@ioctl"},
		{try: "tiocsetd 1", want: "EPERM@ioctl"},
		{try: "tioccons", want: "EPERM@ioctl"},
		// What is written into a pseudo-terminal a kernel thread works on, in nobody's limit.
		{try: "pty", want: "EPERM@ioctl", in: same("ok", "ring1", "ring2")},
		// SIOCGIFBR and its like have the kernel load a module.
		{try: "ioctl 0x8940", want: "EPERM@ioctl"},
		{try: "ioctl 0x8941", want: "EPERM@ioctl"},
		{try: "ioctl 0x89a0", want: "EPERM@ioctl"},
		{try: "ioctl 0x89a1", want: "EPERM@ioctl"},
		{try: "ioctl 0x8982", want: "EPERM@ioctl"},
		{try: "ioctl 0x8983", want: "EPERM@ioctl"},
		// Subvolumes and snapshots of btrfs.
		{try: "ioctl 0x50009401", want: "EPERM@ioctl"},
		{try: "ioctl 0x50009417", want: "EPERM@ioctl"},
		{try: "ioctl 0x5000940e", want: "EPERM@ioctl"},
		{try: "ioctl 0x5000940f", want: "EPERM@ioctl"},
		{try: "ioctl 0x50009418", want: "EPERM@ioctl"},
		{try: "ioctl 0x5000943f", want: "EPERM@ioctl"},
		{try: "ioctl 0x4008941a", want: "EPERM@ioctl"},
		{try: "ioctl 0xc0c89425", want: "EPERM@ioctl"},
		{try: "core-limit", want: "EINVAL@prlimit64"},
		// SO_MAX_PACING_RATE, of a pipe, where the kernel says ENOTSOCK.
		{try: "sys 54 0 1 47 0 0", want: "EPERM"},
		// POSIX_FADV_DONTNEED, of a pipe, where the kernel says ESPIPE.
		{try: "sys 221 0 0 0 4", want: "EINVAL"},
		{try: "sys 221 0 0 0 3", want: "ESPIPE"},
		{try: "open_by_handle_at /", want: "EPERM@open_by_handle_at"},
	}
	for _, call := range []string{
		"io_uring_setup", "io_uring_enter", "io_uring_register", "bpf", "perf_event_open", "userfaultfd", "memfd_secret",
		"add_key", "request_key", "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module",
		"quotactl", "quotactl_fd", "acct", "swapon", "swapoff", "reboot", "sethostname", "setdomainname", "iopl", "ioperm", "modify_ldt",
		"lookup_dcookie", "syslog", "vhangup", "settimeofday", "clock_settime", "clock_adjtime", "fanotify_init",
	} {
		attacks = append(attacks, attack{try: call, want: "EPERM@" + call})
	}
	for _, call := range []string{"uselib", "ustat", "sysfs", "_sysctl", "nfsservctl", "migrate_pages", "move_pages"} {
		attacks = append(attacks, attack{try: call, want: "ENOSYS@" + call})
	}
	attempt(t, opts{}, attacks)
}

// Foreign architectures: other numbers mean that the filter would be looking
// at the wrong table. The process is killed; the cause is told, and the call by the name it has there.
func TestForeignArchitectures(t *testing.T) {
	needSandbox(t)
	for _, profile := range allProfiles {
		for words, call := range map[string]string{
			"int80 20": "getpid", "int80 1": "exit", "int80 11": "execve", "int80 9999": "unknown", "x32 39": "getpid", "x32 520": "execve", "x32 0": "read",
		} {
			t.Run(profile+" "+words, func(t *testing.T) {
				t.Parallel()
				if strings.HasPrefix(words, "int80") && !takesInt80() {
					unmet(t, noInt80)
				}
				got, r := try(t, opts{profile: profile}, words, "ok")
				if len(got) != 0 {
					t.Errorf("the agent lived on: %v", got)
				}
				if r.exit != 128+31 || r.status.Signal != "SIGSYS" {
					t.Errorf("got exit %d, signal %s, state %s, want %d by SIGSYS (M-4, M-6)", r.exit, r.status.Signal, r.status.State, 128+31)
				}
				if len(r.status.Refused) != 1 || r.status.Refused[call] != 1 || !strings.Contains(r.status.Reason, call) {
					t.Errorf("refused %v, reason %q, want one %s", r.status.Refused, r.status.Reason, call)
				}
			})
		}
	}
}

// takesInt80 says whether the kernel takes calls by int 0x80. Where not (ia32_emulation=off, some virtual machines) it is a fault of the
// processor's for everybody, and there is nothing to wall off.
var takesInt80 = sync.OnceValue(func() bool {
	cmd := exec.Command(probeBin, "int80", "20")
	_ = cmd.Run()
	return cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != unix.SIGSEGV
})

const noInt80 = "int 0x80: this kernel doesn't take calls by it"

// A flood of calls that are let run costs the supervisor more than the agent: they come at 4000 a second after 16 000.
func TestAskedCallsArePaced(t *testing.T) {
	t.Parallel() // it mostly waits
	needSandbox(t)
	got, r := try(t, opts{profile: "ring3"}, "asks 24000")
	if got["asks 24000"] != "value=24000" || r.wall < 1900*time.Millisecond {
		t.Errorf("got %v in %v, want 24000 in 1.9 s or more\nexit %d %s", got, r.wall, r.exit, r.status.Reason)
	}
}

// A flood of refused calls (the supervisor lets 250 a second through after a
// burst of 2000) must neither hang the agent for good, nor the
// supervisor, nor fill its memory with events; every one is counted.
func TestNotificationFlood(t *testing.T) {
	t.Parallel() // it mostly waits
	needSandbox(t)
	got, r := try(t, opts{profile: "ring3"}, "flood 4000")
	if got["flood 4000"] != "value=4000" {
		t.Errorf("got %v, want 4000 refusals\nexit %d %s", got, r.exit, r.status.Reason)
	}
	if n := r.status.Refused["mount"]; n != 4000 {
		t.Errorf("%d refused mounts are counted, want 4000", n)
	}
	if n := len(r.status.Events); n > 100 {
		t.Errorf("%d events for one kind of attempt: they must be folded", n)
	}
	// From eight threads, with a signal every millisecond interrupting them.
	got, r = try(t, opts{profile: "ring2"}, "flood-threads 8 400")
	if got["flood-threads 8 400"] != "value=done" || r.exit != 0 {
		t.Errorf("got %v, exit %d %s", got, r.exit, r.status.Reason)
	}
	if n := r.status.Refused["mount"]; n < 3200 {
		t.Errorf("%d refused mounts are counted, want at least 3200", n)
	}
	for _, e := range r.status.Events {
		if strings.Contains(e.Syscall, "\n") {
			t.Errorf("event with a line break: %q", e.Syscall)
		}
	}
}

// THREATS "the host's shared counters": huge pages come from a pool that the host has set aside, and no memory limit counts them. The
// second of each pair asks for a page size that doesn't exist, so that the filter's answer isn't that of a host without a pool.
func TestHugePages(t *testing.T) {
	attempt(t, opts{}, []attack{
		{try: "huge mmap", want: "ENOMEM"}, {try: "huge mmap 40", want: "ENOMEM"},
		{try: "huge memfd", want: "ENOMEM"}, {try: "huge memfd 40", want: "ENOMEM"},
		{try: "huge shm", want: "ENOMEM"}, {try: "huge shm 40", want: "ENOMEM"},
	})
}
