// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
		// Its own root, and another's where it has joined: with Landlock that isn't to be looked into.
		attack{try: "read /proc/2/root/etc/shadow", want: "ENOENT", in: map[string]string{"joined": "EACCES|ENOENT"}},
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

// Programs that look for facts of the machine find those of the run: its limits, which may change, its age, its memory. Nothing of the host is
// among them, nobody inside can write them, and of the kernel's own /proc no name has come to light (TestProcAndSys).
func TestFactsAreTheRuns(t *testing.T) {
	t.Parallel()
	need(t, hostcaps.ProcSubset)
	p := newPlace(t)
	a := p.agent("a", opts{profile: "ring2", flags: []string{"--memory", "300M", "--cpus", "0.5"}})
	cat := func(file string) string { return a.try("cat " + file) }
	if got := cat("/proc/meminfo"); !strings.Contains(got, "MemTotal:         307200 kB") || !strings.Contains(got, "SwapTotal:             0 kB") {
		t.Errorf("meminfo: %s", got)
	}
	for file, want := range map[string]string{
		"/proc/sys/kernel/overflowuid": "value=65534|", "/proc/sys/kernel/ostype": "value=Linux|", "/proc/loadavg": "value=0.00 0.00 0.00 1/1 1|",
		"/sys/devices/system/cpu/online": "value=0|", "/sys/devices/system/cpu/possible": "value=0|",
	} {
		if got := cat(file); got != want {
			t.Errorf("%s: got %s, want %s", file, got, want)
		}
	}
	if got := cat("/proc/version"); got != "value="+kernelVersion(t)+"|" {
		t.Errorf("version: %s", got)
	}
	cpu := cat("/proc/cpuinfo")
	for _, hidden := range []string{"microcode", "bugs", "MHz", "bogomips", "processor\t: 1"} {
		if strings.Contains(cpu, hidden) {
			t.Errorf("cpuinfo tells %s: %s", hidden, cpu)
		}
	}
	if !strings.Contains(cpu, "processor\t: 0|") {
		t.Errorf("cpuinfo: %s", cpu)
	}
	eventually(t, 20*time.Second, "the run grows older", func() bool { return !strings.HasPrefix(cat("/proc/uptime"), "value=0.") })
	if got := a.try("uptime"); len(got) > len("value=99") {
		t.Errorf("the boot time clock says %s", got)
	}
	a.expect("errno=EACCES", "write /proc/meminfo x", "write /proc/sys/kernel/overflowuid 1")
	a.expect("errno=EROFS", "create /sys/x", "create /proc/sys/x")
	a.expect("errno=EPERM", "umount /proc/meminfo")
	p.must("update", "a", "--memory", "400M")
	eventually(t, 20*time.Second, "the new limit is told", func() bool { return strings.Contains(cat("/proc/meminfo"), "MemTotal:         409600 kB") })
	for _, ring := range []string{"ring1", "ring3", "strict"} {
		if got := observe(t, opts{profile: ring, flags: []string{"--memory", "256M"}}, "cat /proc/meminfo"); !strings.Contains(got, "MemTotal:         262144 kB") {
			t.Errorf("%s: %s", ring, got)
		}
	}
}

// The programs that people and agents ask.
func TestProgramsThatAskForFacts(t *testing.T) {
	t.Parallel()
	needSandbox(t)
	need(t, hostcaps.ProcSubset)
	for _, c := range []struct {
		argv []string
		want string
	}{
		{[]string{"free", "-m"}, "Mem:             300 "}, {[]string{"uptime"}, "load average: 0.00, 0.00, 0.00"}, {[]string{"ps", "-o", "comm="}, "ps\n"},
		{[]string{"lscpu"}, "CPU(s):"}, {[]string{"node", "-p", "os.totalmem() / 2**20 + ' ' + os.cpus().length"}, "300 1\n"},
	} {
		t.Run(c.argv[0], func(t *testing.T) {
			needProgram(t, c.argv[0])
			r := run(t, opts{profile: "ring2", flags: []string{"--memory", "300M"}}, c.argv...)
			if r.want(t, 0, "exited"); !strings.Contains(r.stdout, c.want) {
				t.Errorf("got %q %q, want %q", r.stdout, r.stderr, c.want)
			}
		})
	}
}

// kernelVersion is what uname(2) says, as /proc/version begins.
func kernelVersion(t *testing.T) string {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	return "Linux version " + unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Version[:])
}
