// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"os/exec"
	"strings"
	"testing"

	"agentrun/internal/hostcaps"
)

// THREATS "proc and sys"; M-2.

func TestProcAndSys(t *testing.T) {
	need(t, hostcaps.ProcSubset)
	var attacks []attack
	// With subset=pid these don't exist, on any kernel that has the option.
	for _, file := range []string{
		"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hotplug", "/proc/sys/vm/panic_on_oom",
		"/proc/sys/fs/binfmt_misc/register", "/proc/sys/net/ipv4/ip_forward", "/proc/sysrq-trigger", "/proc/irq/default_smp_affinity",
		"/proc/acpi/wakeup", "/proc/mtrr", "/proc/sys/kernel/randomize_va_space", "/proc/sys/kernel/ns_last_pid",
	} {
		attacks = append(attacks, attack{try: "write " + file + " 1", want: "ENOENT"})
	}
	for _, file := range []string{
		"/proc/kcore", "/proc/kallsyms", "/proc/kmsg", "/proc/keys", "/proc/key-users", "/proc/timer_list", "/proc/sched_debug", "/proc/config.gz",
		"/proc/modules", "/proc/cmdline", "/proc/iomem", "/proc/vmallocinfo", "/proc/kpagecount", "/proc/slabinfo", "/proc/partitions",
		"/proc/scsi/scsi", "/proc/latency_stats", "/proc/asound/cards", "/proc/bus/pci/devices", "/proc/driver",
	} {
		want := "ENOENT"
		attacks = append(attacks, attack{try: "read " + file, want: want})
	}
	for _, file := range []string{
		"/sys/kernel/uevent_helper", "/sys/kernel/vmcoreinfo", "/sys/fs/cgroup/cgroup.procs", "/sys/kernel/debug", "/sys/firmware/efi/efivars",
		"/sys/class/net", "/sys/block", "/sys/module", "/sys/kernel/security", "/sys/power/state",
	} {
		attacks = append(attacks, attack{try: "read " + file, want: "ENOENT"})
	}
	for _, file := range []string{"/dev/mem", "/dev/kmem", "/dev/kmsg", "/dev/port", "/dev/sda", "/dev/vda", "/dev/kvm", "/dev/fuse", "/dev/vsock", "/dev/userfaultfd", "/dev/loop-control", "/dev/console"} {
		attacks = append(attacks, attack{try: "read " + file, want: "ENOENT"})
	}
	attacks = append(attacks,
		attack{try: "syslog", want: "EPERM@syslog"},
		// Own entries with effect beyond oneself.
		attack{try: "write /proc/self/uid_map 0 0 1", want: "EROFS"},
		attack{try: "write /proc/self/gid_map 0 0 1", want: "EROFS"},
		attack{try: "write /proc/self/projid_map 0 0 1", want: "EROFS"},
		attack{try: "write /proc/self/setgroups allow", want: "EROFS|EACCES"}, // EACCES: by mode, which the kernel looks at before
		attack{try: "write /proc/self/oom_score_adj -1000", want: "EROFS"},
		// Written once by anybody, and in every record of the host's audit from then on. Not there in a kernel without audit.
		attack{try: "write /proc/self/loginuid 0", want: "EROFS|ENOENT"},
		attack{try: "write /proc/self/attr/current unconfined", want: "EROFS|ENOENT|EACCES"},
		attack{try: "write /proc/self/comm other", want: "EROFS"},
		attack{try: "write /proc/self/mem", want: "EROFS"},
		attack{try: "write /proc/thread-self/timerslack_ns 1", want: "EROFS|ENOENT"}, // ENOENT: thread-self isn't in subset=pid before 6.x
		// What leads out of /proc opens as before.
		attack{try: "write /proc/self/fd/2 x", want: "ok"},
		attack{try: "write /dev/stderr x", want: "ok"},
		// Secrets of other processes.
		attack{try: "read /proc/1/environ", want: "EACCES"},
		attack{try: "read /proc/2/root/etc/shadow", want: "ENOENT"},
		attack{try: "read /proc/self/root/etc/shadow", want: "ENOENT"},
		attack{try: "read /proc/self/cwd/../../../../etc/shadow", want: "ENOENT"},
	)
	attempt(t, opts{}, attacks)
}

// /proc shows processes and links into them, and nothing of the machine.
func TestProcHoldsOnlyProcesses(t *testing.T) {
	needSandbox(t)
	need(t, hostcaps.ProcSubset)
	for _, profile := range allProfiles {
		for _, name := range strings.Split(observe(t, opts{profile: profile}, "ls /proc"), "|") {
			switch {
			case strings.Trim(name, "0123456789") == "", name == "self", name == "thread-self", name == "mounts", name == "net":
			default:
				t.Errorf("%s: /proc/%s is there", profile, name)
			}
		}
	}
}

// The time namespace hides how long the host is up, where there is one. The
// rule is the launch's: it must be in effect whenever the kernel has it.
func TestUptimeIsTheSandboxs(t *testing.T) {
	needSandbox(t)
	need(t, hostcaps.TimeNS)
	v := observe(t, opts{}, "uptime")
	if len(v) > 2 { // 100 seconds and more
		t.Errorf("boot time clock: got %s s, want the age of the sandbox", v)
	}
}

// An agentrun that is in a time namespace itself, as in a container, reads other clocks than the ones that offsets count from. The sandbox's
// begin with it all the same: no start fails, and the container's age isn't told.
func TestUptimeInsideATimeNamespace(t *testing.T) {
	needSandbox(t)
	need(t, hostcaps.TimeNS)
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		unmet(t, "program unshare: "+err.Error())
	}
	for _, offset := range []string{"100000", "-30"} {
		t.Run(offset, func(t *testing.T) {
			under := []string{unshare, "--fork", "--time", "--monotonic", offset, "--boottime", offset}
			if v := observe(t, opts{under: under}, "uptime"); len(v) > 1 { // 10 seconds and more
				t.Errorf("boot time clock: got %s s, want the age of the sandbox", v)
			}
			r := run(t, opts{under: under, unsafe: true, flags: []string{"--timeout", "1s"}}, "/probe", "sleep", "20")
			r.want(t, 124, "timeout")
		})
	}
}
