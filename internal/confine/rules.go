// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"slices"

	"golang.org/x/sys/unix"
)

// Of clone(2), only what makes a thread of this process: with CLONE_THREAD it can't be another process, and without the
// other flags it has no namespace of its own.
const (
	threadFlags = unix.CLONE_VM | unix.CLONE_SIGHAND | unix.CLONE_THREAD
	cloneFlags  = threadFlags | unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER |
		unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWTIME | unix.CLONE_PTRACE | unix.CLONE_UNTRACED | unix.CLONE_VFORK
)

const sockTypeMask = 0xf // linux/net.h: the rest are SOCK_NONBLOCK and SOCK_CLOEXEC

// allowed is what a server in Go with its net package needs after its start, on the architecture it was built for. Left out
// on purpose, though a server could want them: bind and listen (sockets are inherited), io_uring, memfd_create, ioctl, every
// way to start or look into a process, mount, keys, and executable memory, so that code can't be brought in.
func allowed(o Options, pid int) []rule {
	families := []uint32{unix.AF_INET, unix.AF_INET6}
	if o.Unix {
		families = append(families, unix.AF_UNIX)
	}
	self := is(0, uint32(pid)) //nolint:gosec // pids are below 2^22
	one := func(cs ...condition) [][]condition { return [][]condition{cs} }
	rules := []rule{
		{"socket", unix.SYS_SOCKET, "upstreams and name servers; no MPTCP, ICMP or raw", one(is(0, families...), bits2(1, sockTypeMask, unix.SOCK_STREAM, unix.SOCK_DGRAM), is(2, 0, unix.IPPROTO_TCP, unix.IPPROTO_UDP))},
		{"setsockopt", unix.SYS_SETSOCKOPT, "what net sets; not TCP_ULP (kernel TLS), no filters, no multicast", [][]condition{
			{is(1, unix.SOL_SOCKET), is(2, unix.SO_REUSEADDR, unix.SO_BROADCAST, unix.SO_KEEPALIVE, unix.SO_LINGER, unix.SO_SNDBUF, unix.SO_RCVBUF)},
			{is(1, unix.IPPROTO_TCP), is(2, unix.TCP_NODELAY, unix.TCP_KEEPIDLE, unix.TCP_KEEPINTVL, unix.TCP_KEEPCNT, unix.TCP_USER_TIMEOUT)},
			{is(1, unix.IPPROTO_IPV6), is(2, unix.IPV6_V6ONLY)},
		}},
		{"getsockopt", unix.SYS_GETSOCKOPT, "errors of connect, the kind of an inherited socket", one(is(1, unix.SOL_SOCKET, unix.IPPROTO_TCP))},
		{"clone", unix.SYS_CLONE, "threads of the Go runtime", one(bits(0, cloneFlags, threadFlags))},
		{"mmap", unix.SYS_MMAP, "memory, never executable", one(bits(2, unix.PROT_EXEC, 0))},
		{"mprotect", unix.SYS_MPROTECT, "memory, never executable", one(bits(2, unix.PROT_EXEC, 0))},
		{"tgkill", unix.SYS_TGKILL, "preemption between own threads", one(self)},
		{"kill", unix.SYS_KILL, "the runtime's way to end itself by a signal", one(self)},
		{"prctl", unix.SYS_PRCTL, "names of mappings; Verify's questions", one(is(0, unix.PR_SET_VMA, unix.PR_GET_NO_NEW_PRIVS, unix.PR_GET_SECCOMP, unix.PR_CAPBSET_READ, unix.PR_GET_DUMPABLE))},
		{"prlimit64", unix.SYS_PRLIMIT64, "reading own limits, not setting", one(is(0, 0), is(2, 0), condition{arg: 2, high: true, mask: ^uint32(0), in: []uint32{0}})},
		{"fcntl", unix.SYS_FCNTL, "flags and copies of descriptors, size of splice's pipe", one(is(1, unix.F_DUPFD_CLOEXEC, unix.F_GETFD, unix.F_SETFD, unix.F_GETFL, unix.F_SETFL, unix.F_SETPIPE_SZ, unix.F_GETPIPE_SZ))},
	}
	for _, group := range plain() {
		for name, number := range group.calls {
			rules = append(rules, rule{name: name, number: uint32(number), why: group.why}) //nolint:gosec // numbers are small
		}
	}
	rules = append(rules, ofArchitecture()...)
	if o.tree != "" {
		rules = append(rules, ofTrees()...)
	}
	if o.offline {
		rules = slices.DeleteFunc(rules, func(r rule) bool { return slices.Contains(offlineNever, r.name) })
	}
	return rules
}

func bits2(arg, mask uint32, want ...uint32) condition {
	return condition{arg: arg, mask: mask, in: want}
}

type group struct {
	why   string
	calls map[string]int
}

// plain are allowed whatever their arguments.
func plain() []group {
	return []group{
		{"connections", map[string]int{
			"connect": unix.SYS_CONNECT, "accept4": unix.SYS_ACCEPT4, "shutdown": unix.SYS_SHUTDOWN, "getsockname": unix.SYS_GETSOCKNAME, "getpeername": unix.SYS_GETPEERNAME,
			"sendto": unix.SYS_SENDTO, "recvfrom": unix.SYS_RECVFROM, "sendmsg": unix.SYS_SENDMSG, "recvmsg": unix.SYS_RECVMSG, "sendfile": unix.SYS_SENDFILE, "splice": unix.SYS_SPLICE,
		}},
		{"descriptors", map[string]int{
			"read": unix.SYS_READ, "write": unix.SYS_WRITE, "readv": unix.SYS_READV, "writev": unix.SYS_WRITEV, "pread64": unix.SYS_PREAD64, "pwrite64": unix.SYS_PWRITE64,
			"close": unix.SYS_CLOSE, "lseek": unix.SYS_LSEEK, "pipe2": unix.SYS_PIPE2, "epoll_create1": unix.SYS_EPOLL_CREATE1, "epoll_ctl": unix.SYS_EPOLL_CTL, "epoll_pwait": unix.SYS_EPOLL_PWAIT, "eventfd2": unix.SYS_EVENTFD2,
		}},
		{"files, which Landlock and permissions hold to their paths", map[string]int{
			"openat": unix.SYS_OPENAT, "fstat": unix.SYS_FSTAT, "newfstatat": newfstatat, "getdents64": unix.SYS_GETDENTS64, "readlinkat": unix.SYS_READLINKAT, "faccessat": unix.SYS_FACCESSAT,
			"unlinkat": unix.SYS_UNLINKAT, "ftruncate": unix.SYS_FTRUNCATE, "fsync": unix.SYS_FSYNC, "flock": unix.SYS_FLOCK, "getcwd": unix.SYS_GETCWD, "copy_file_range": unix.SYS_COPY_FILE_RANGE,
		}},
		{"memory", map[string]int{"munmap": unix.SYS_MUNMAP, "madvise": unix.SYS_MADVISE, "mincore": unix.SYS_MINCORE, "brk": unix.SYS_BRK}},
		{"threads, time and signals of the runtime", map[string]int{
			"futex": unix.SYS_FUTEX, "sched_yield": unix.SYS_SCHED_YIELD, "sched_getaffinity": unix.SYS_SCHED_GETAFFINITY, "exit": unix.SYS_EXIT, "exit_group": unix.SYS_EXIT_GROUP, "gettid": unix.SYS_GETTID,
			"nanosleep": unix.SYS_NANOSLEEP, "clock_nanosleep": unix.SYS_CLOCK_NANOSLEEP, "clock_gettime": unix.SYS_CLOCK_GETTIME, "gettimeofday": unix.SYS_GETTIMEOFDAY, "restart_syscall": unix.SYS_RESTART_SYSCALL,
			"rt_sigaction": unix.SYS_RT_SIGACTION, "rt_sigprocmask": unix.SYS_RT_SIGPROCMASK, "rt_sigreturn": unix.SYS_RT_SIGRETURN, "sigaltstack": unix.SYS_SIGALTSTACK,
			"timer_create": unix.SYS_TIMER_CREATE, "timer_settime": unix.SYS_TIMER_SETTIME, "timer_delete": unix.SYS_TIMER_DELETE, "setitimer": unix.SYS_SETITIMER,
		}},
		{"who and where this is", map[string]int{
			"getpid": unix.SYS_GETPID, "getuid": unix.SYS_GETUID, "geteuid": unix.SYS_GETEUID, "getgid": unix.SYS_GETGID, "getegid": unix.SYS_GETEGID, "getresuid": unix.SYS_GETRESUID, "getresgid": unix.SYS_GETRESGID,
			"getgroups": unix.SYS_GETGROUPS, "capget": unix.SYS_CAPGET, "uname": unix.SYS_UNAME, "getrandom": unix.SYS_GETRANDOM,
		}},
	}
}
