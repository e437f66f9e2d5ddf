// SPDX-License-Identifier: Apache-2.0

package hostcaps

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentrun/internal/rootless"
	"agentrun/internal/thread"
)

// Root (cheap): effective uid 0 with CAP_SYS_ADMIN over the user namespace we
// are in. Uid 0 in a container without that capability can build no root view.
var Root = &Probe{
	Name:  "root",
	Loses: "cgroups at the top of the tree, uid ranges, idmapped workspaces",
	Get:   "run as root (sudo agentrun …)",
	try: func() error {
		if uid := os.Geteuid(); uid != 0 {
			return unsupported("effective uid is %d", uid)
		}
		return haveCap(unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN")
	},
}

// Account (cheap): an ordinary user has a name, without which newuidmap serves nobody.
var Account = &Probe{
	Name:  "account",
	Loses: "subordinate ids can't be used: no sandbox is started without root",
	Get:   "an account (useradd), or the name service that has it, so that getent passwd UID answers (docs/rootless.md)",
	try:   func() error { return entering("account") },
}

// SubordinateIDs (cheap): an ordinary user has ids to give to agents (subuid(5)).
var SubordinateIDs = &Probe{
	Name:  "subordinate-ids",
	Loses: "an agent's uid would be the user's own: no sandbox is started without root",
	Get:   "as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER, with a range that nobody else has",
	try:   func() error { return entering("subordinate-ids") },
}

// IDMapTools (cheap): the programs that may give them.
var IDMapTools = &Probe{
	Name:  "newuidmap",
	Loses: "subordinate ids can't be used: no sandbox is started without root",
	Get:   "install the package uidmap (Debian, Ubuntu) or shadow-utils (Fedora)",
	try:   func() error { return entering("newuidmap") },
}

// entering asks for one of the things that it takes to enter a user namespace. Inside, all of them were there.
func entering(name string) error {
	if os.Geteuid() == 0 {
		return nil
	}
	var why []string
	for _, m := range rootless.Missing() {
		if m.Name == name {
			why = append(why, m.Why)
		}
	}
	if len(why) > 0 {
		return unsupported("%s", strings.Join(why, "; "))
	}
	return nil
}

// CgroupDelegation (cheap): for an ordinary user, the cgroup that this process is in is the user's to divide.
var CgroupDelegation = &Probe{
	Name: "cgroup-delegation", Since: "4.5",
	Loses: "limits on cpu, memory and processes, freezing, and changes of ring: only the pid namespace holds the run together",
	Get:   "cgroup v2, and a cgroup of the user's with cpu, memory and pids: systemd-run --user --scope -p Delegate=yes agentrun exec … (docs/rootless.md)",
	try: func() error {
		if os.Geteuid() == 0 && !rootless.Is() {
			return nil
		}
		err := rootless.Delegated()
		if m, ok := errors.AsType[*rootless.MissingError](err); ok {
			return unsupported("%s", m.Why)
		}
		return err
	},
}

// InotifyInstances (cheap): rings 2 and 1 have enough for what watches files. As root each run has the host's number to itself; an
// ordinary user's runs, 16 each at most, share that user's.
var InotifyInstances = &Probe{
	Name: "inotify-instances", Weight: Degrades,
	Loses: "programs of agents that watch files find no inotify instance, or those of the user don't while agents run",
	Get:   "sysctl -w fs.inotify.max_user_instances=512",
	try: func() error {
		want := 16
		if os.Geteuid() != 0 || rootless.Is() {
			want = 128 // eight runs
		}
		n, err := readInt("/proc/sys/fs/inotify/max_user_instances")
		if err != nil {
			return inconclusive(err, "read the number of inotify instances")
		}
		if n < want {
			return unsupported("fs.inotify.max_user_instances is %d", n)
		}
		return nil
	},
}

// CapSysResource (cheap): raising hard rlimits, lowering oom_score_adj.
var CapSysResource = &Probe{
	Name: "cap-sys-resource", Weight: Degrades,
	Loses: "raising hard rlimits and lowering oom_score_adj of the supervisor",
	Get:   "start agentrun with CAP_SYS_RESOURCE in its permitted set",
	try:   func() error { return haveCap(unix.CAP_SYS_RESOURCE, "CAP_SYS_RESOURCE") },
}

func haveCap(bit int, name string) error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return inconclusive(err, "capget(2)")
	}
	if data[bit/32].Effective&(1<<(bit%32)) == 0 {
		return unsupported("%s is not in the effective set", name)
	}
	return nil
}

// UserNS (cheap): user namespaces may be created. For root the kernel's own
// limit is what counts; distributions add switches that bind others only.
var UserNS = &Probe{
	Name: "userns", Since: "3.8",
	Loses: "the agent's uid would be a host uid: no sandbox is started",
	Get:   "sysctl -w user.max_user_namespaces=15000; without root also kernel.unprivileged_userns_clone=1 (Debian) or kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu)",
	try: func() error {
		if err := exists("/proc/self/ns/user"); err != nil {
			return err
		}
		if v, err := readInt("/proc/sys/user/max_user_namespaces"); err == nil && v == 0 {
			return unsupported("user.max_user_namespaces is 0")
		}
		return entering("userns")
	},
}

// TimeNS (cheap).
var TimeNS = &Probe{
	Name: "timens", Since: "5.6", Weight: Degrades,
	Loses: "the agent sees the host's boot time and uptime",
	Get:   "a kernel with CONFIG_TIME_NS",
	try:   func() error { return exists("/proc/self/ns/time") },
}

// CgroupNS (cheap).
var CgroupNS = &Probe{
	Name: "cgroupns", Since: "4.6",
	Loses: "the agent sees the host's cgroup paths",
	Get:   "a kernel with CONFIG_CGROUPS",
	try:   func() error { return exists("/proc/self/ns/cgroup") },
}

// Seccomp (cheap): filters with kill-process, the action foreign
// architectures get.
var Seccomp = &Probe{
	Name: "seccomp-filter", Since: "4.14",
	Loses: "no system call filter: no sandbox is started",
	Get:   "a kernel with CONFIG_SECCOMP_FILTER",
	try:   func() error { return seccompAction(unix.SECCOMP_RET_KILL_PROCESS) },
}

// SeccompNotify (cheap): the supervisor can answer calls.
var SeccompNotify = &Probe{
	Name: "seccomp-notify", Since: "5.5",
	Loses: "refused calls are not seen, live ring changes are impossible: no sandbox is started",
	Get:   "a kernel from 5.5 with CONFIG_SECCOMP_FILTER",
	try: func() error {
		// 5.0 has the action, 5.5 has FLAG_CONTINUE (commit fb3c5386b382
		// "seccomp: add SECCOMP_USER_NOTIF_FLAG_CONTINUE"). The flag cannot be
		// tried without a live notification; clone3 (5.3) and pidfd_getfd
		// (5.6) bracket it too loosely, so here the version must do.
		if err := seccompAction(unix.SECCOMP_RET_USER_NOTIF); err != nil {
			return err
		}
		return atLeast(5, 5)
	},
}

// SeccompWaitKillable (cheap): WAIT_KILLABLE_RECV, without which a signal
// storm makes the agent's call restart for ever while it is being answered.
var SeccompWaitKillable = &Probe{
	Name: "seccomp-wait-killable", Since: "5.19", Weight: Degrades,
	Loses: "answers to calls of an agent that is showered with signals may need several rounds",
	Get:   "a kernel from 5.19",
	try: func() error {
		return seccompFlags(unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
	},
}

// SeccompSyncWakeUp (not cheap, one thread): the notification answer runs the
// agent on the same CPU at once. Launch code need not ask: it has a listener
// and can try the ioctl, whose EINVAL is harmless.
var SeccompSyncWakeUp = &Probe{
	Name: "seccomp-sync-wake-up", Since: "6.6", Weight: Degrades,
	Loses: "about twice the time per notified system call",
	Get:   "a kernel from 6.6",
	try:   trySyncWakeUp,
}

func seccompAction(action uint32) error {
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action)))
	if errno == 0 {
		return nil
	}
	return classify("seccomp(SECCOMP_GET_ACTION_AVAIL)", errno)
}

// seccompFlags passes flags with a null program: the kernel checks the flags
// first (EINVAL) and reads the program afterwards (EFAULT), seccomp(2).
func seccompFlags(flags uintptr) error {
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, 0)
	if errno == 0 {
		return inconclusive(nil, "seccomp(2) accepted a null program")
	}
	return classify("seccomp(SECCOMP_SET_MODE_FILTER)", errno, unix.EFAULT)
}

// trySyncWakeUp installs an allow-everything filter with a listener on a
// thread that is thrown away, for only a listener knows the ioctl and a filter
// can't be taken off again.
func trySyncWakeUp() error {
	if err := seccompFlags(unix.SECCOMP_FILTER_FLAG_NEW_LISTENER); err != nil {
		return err
	}
	var err error
	thread.Throwaway(func() { err = tryListener() })
	return err
}

func tryListener() error {
	// no_new_privs is per thread (prctl(2)); without it an unprivileged
	// filter is refused.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return inconclusive(err, "prctl(PR_SET_NO_NEW_PRIVS)")
	}
	allow := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}
	prog := unix.SockFprog{Len: 1, Filter: &allow}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return inconclusive(errno, "seccomp(SECCOMP_SET_MODE_FILTER)")
	}
	defer unix.Close(int(fd))
	_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, seccompIoctlNotifSetFlags, unix.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP)
	if errno == 0 {
		return nil
	}
	return classify("ioctl(SECCOMP_IOCTL_NOTIF_SET_FLAGS)", errno)
}

// _IOW('!', 4, __u64), linux/seccomp.h.
const seccompIoctlNotifSetFlags = 0x40082104

// Landlock (cheap): at least this ABI. 1 is 5.13, 3 (truncate) 6.2, 4 (TCP)
// 6.7, 5 (device ioctl) 6.10, 6 (abstract sockets, signals) 6.12.
func Landlock(abi int) *Probe {
	return &Probe{
		Name: fmt.Sprintf("landlock-%d", abi), Since: landlockSince(abi), Weight: Degrades,
		Loses: "the second wall behind the mounts (files" + landlockAdds(abi) + ")",
		Get:   "a kernel with CONFIG_SECURITY_LANDLOCK and landlock in its lsm= list",
		try: func() error {
			got, err := LandlockABI()
			if err != nil {
				return err
			}
			if got < abi {
				return unsupported("the kernel has ABI %d", got)
			}
			return nil
		},
	}
}

func landlockSince(abi int) string {
	since := []string{"5.13", "5.19", "6.2", "6.7", "6.10", "6.12", "6.15"}
	if abi < 1 || abi > len(since) {
		return ""
	}
	return since[abi-1]
}

func landlockAdds(abi int) string {
	return []string{"", "", "", ", truncate", ", TCP", ", device ioctl", ", abstract sockets and signals"}[min(max(abi, 0), 6)]
}

// LandlockABI (cheap) is the newest ABI the kernel speaks.
func LandlockABI() (int, error) {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno == unix.EOPNOTSUPP {
		return 0, unsupported("built in but not enabled at boot (lsm=)")
	}
	if errno != 0 {
		return 0, classify("landlock_create_ruleset(2)", errno)
	}
	return int(abi), nil
}

// Pidfd (cheap).
var Pidfd = &Probe{
	Name: "pidfd", Since: "5.3",
	Loses: "a signal could hit a stranger that got a recycled pid: no sandbox is started",
	Get:   "a kernel from 5.3",
	try: func() error {
		fd, err := unix.PidfdOpen(unix.Getpid(), 0)
		if err == nil {
			unix.Close(fd)
		}
		return classify("pidfd_open(2)", err)
	},
}

// Openat2 (cheap).
var Openat2 = &Probe{
	Name: "openat2", Since: "5.6",
	Loses: "paths in supplied roots can't be opened without following links: --rootfs is refused",
	Get:   "a kernel from 5.6",
	try: func() error {
		fd, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
		if err == nil {
			unix.Close(fd)
		}
		return classify("openat2(2)", err)
	},
}

// CloneIntoCgroup (cheap): clone3 with CLONE_INTO_CGROUP. Joining a group later
// waits for an RCU grace period, which costs milliseconds.
var CloneIntoCgroup = &Probe{
	Name: "clone-into-cgroup", Since: "5.7", Weight: Degrades,
	Loses: "starting a process directly in its cgroup (slower start on cgroup v2)",
	Get:   "a kernel from 5.7",
	try: func() error {
		// Size 0 is below CLONE_ARGS_SIZE_VER0: EINVAL, and nothing is cloned.
		_, _, errno := unix.RawSyscall(unix.SYS_CLONE3, 0, 0, 0)
		if errno == unix.EINVAL {
			return atLeast(5, 7)
		}
		return classify("clone3(2)", errno)
	},
}

// MemfdNoexec (cheap).
var MemfdNoexec = &Probe{
	Name: "memfd-noexec", Since: "6.3", Weight: Degrades,
	Loses: "memory files can't be made non-executable by the kernel; the filter has to hold alone",
	Get:   "a kernel from 6.3",
	try: func() error {
		fd, err := unix.MemfdCreate("agentrun-probe", unix.MFD_NOEXEC_SEAL|unix.MFD_CLOEXEC)
		if err == nil {
			unix.Close(fd)
		}
		return classify("memfd_create(MFD_NOEXEC_SEAL)", err)
	},
}

// AppArmor (cheap).
var AppArmor = &Probe{
	Name: "apparmor", Weight: Info,
	Loses: "nothing: agentrun brings no AppArmor profile",
	Get:   "security=apparmor on the kernel command line",
	try: func() error {
		b, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
		if errors.Is(err, os.ErrNotExist) {
			return unsupported("no /sys/module/apparmor")
		}
		if err != nil {
			return err
		}
		if v := strings.TrimSpace(string(b)); v != "Y" {
			return unsupported("enabled is %s", v)
		}
		return nil
	},
}

// IOUring (cheap): attack surface that goes around seccomp.
var IOUring = &Probe{
	Name: "io_uring", Since: "5.1", Weight: Info,
	Loses: "nothing: the filter denies it in every ring",
	Get:   "leave it off: sysctl -w kernel.io_uring_disabled=2",
	try: func() error {
		_, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, 0, 0)
		if errno == unix.EPERM {
			return unsupported("switched off by kernel.io_uring_disabled")
		}
		return classify("io_uring_setup(2)", errno, unix.EFAULT)
	},
}

// IA32 (cheap): attack surface, 32-bit system calls on amd64.
var IA32 = &Probe{
	Name: "ia32-emulation", Weight: Info,
	Loses: "nothing: the filter kills foreign architectures",
	Get:   "leave it off: ia32_emulation=0 on the kernel command line",
	try: func() error {
		// The vDSO switch exists exactly where the emulation is compiled in
		// and on; the config file is rarely readable.
		if goruntime.GOARCH != "amd64" {
			return unsupported("the machine is %s", goruntime.GOARCH)
		}
		return exists("/proc/sys/abi/vsyscall32")
	},
}

// LegacyTIOCSTI (cheap): attack surface, pushing input into the user's shell.
var LegacyTIOCSTI = &Probe{
	Name: "legacy-tiocsti", Weight: Info,
	Loses: "nothing: the filter denies it, and -t gives the agent a terminal of its own",
	Get:   "leave it off: sysctl -w dev.tty.legacy_tiocsti=0",
	try: func() error {
		v, err := readInt("/proc/sys/dev/tty/legacy_tiocsti")
		if errors.Is(err, os.ErrNotExist) {
			return nil // before 6.2 there is no switch, and TIOCSTI works
		}
		if err != nil {
			return err
		}
		if v == 0 {
			return unsupported("dev.tty.legacy_tiocsti is 0")
		}
		return nil
	},
}

// EpollWatches (cheap): attack surface, interrupts that wake millions of watches in nobody's time. What the supervisor
// sees of them it bounds; this is the bound of what it can't.
var EpollWatches = &Probe{
	Name: "epoll-watches", Weight: Info,
	Loses: "nothing: each run has few",
	Get:   "lower it where no program of the host needs more: sysctl -w fs.epoll.max_user_watches=65536",
	try: func() error {
		n, err := readInt("/proc/sys/fs/epoll/max_user_watches")
		if err != nil {
			return err
		}
		if n <= 1<<17 {
			return unsupported("fs.epoll.max_user_watches is %d", n)
		}
		return nil
	},
}

// Release is the running kernel as "major.minor.patch-anything".
var Release = sync.OnceValue(func() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return string(u.Release[:max(bytes.IndexByte(u.Release[:], 0), 0)])
})

// atLeast is the last resort for what can't be tried. Distribution kernels
// carry features back, so it may say no where the truth is yes; never the
// other way round.
func atLeast(major, minor int) error {
	gotMajor, gotMinor, ok := parseRelease(Release())
	if !ok {
		return inconclusive(nil, "kernel release %q", Release())
	}
	if gotMajor > major || gotMajor == major && gotMinor >= minor {
		return nil
	}
	return unsupported("kernel %s is older than %d.%d", Release(), major, minor)
}

func parseRelease(s string) (major, minor int, ok bool) {
	n, _ := fmt.Sscanf(s, "%d.%d", &major, &minor)
	return major, minor, n == 2
}

func exists(path string) error {
	err := unix.Access(path, unix.F_OK)
	if err == unix.ENOENT {
		return unsupported("no %s", path)
	}
	if err != nil {
		return inconclusive(err, "%s", path)
	}
	return nil
}

func readInt(path string) (int, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}
