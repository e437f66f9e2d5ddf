/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What makes a sandbox, and is pid 1 of it. The supervisor executes it on the host, with all of its
 * rights, in the mount namespace of the run; nothing of the agent's is there yet.
 *
 *  0. It goes into the run's v1 cgroups, is told what the sandbox is made of, and forks once: into the namespaces, and
 *     into the run's cgroup of the cgroup2 tree. What is forked has the supervisor as its parent, and is pid 1: it has the
 *     supervisor map its ids, mounts /proc, makes the root view its root, and drops every capability for good.
 *  1. pid 1 says hello on the control socket (fd 3), takes the confinement and four descriptors:
 *     the agent's stdin, stdout, stderr, and a socket for the child's own part.
 *  2. It forks. The child gives up what is left (new session, rlimits, Landlock, seccomp), lets
 *     the supervisor fetch the seccomp listener, waits for the command, which in a sandbox that was
 *     prepared ahead comes hours later or never, and executes it.
 *  3. pid 1 reaps, forwards signals, and ends when the agent's first process ends; the kernel then
 *     kills whatever else lives in the pid namespace (pid_namespaces(7)).
 *
 * A further command in a live sandbox is executed by the same program ("join"): it enters the namespaces of pid 1, drops
 * the same rights, and forks once, into the pid namespace. What is forked has the supervisor as its parent, and does what the
 * child of step 2 does. There the agent runs already: see join_sandbox.
 *
 * Why the agent is not pid 1: the kernel drops signals with default action sent to pid 1, and zombies
 * would collect. Why it ends when the control socket hangs up: a dead supervisor must not leave an
 * uncontrolled agent (M-5).
 *
 * It makes itself undumpable before there is a namespace, and the kernel keeps it so across fork and
 * change of ids: an agent of the same uid can neither trace pid 1 nor open /proc/1/mem, /proc/1/exe or
 * /proc/1/fd, nor what waits for its command. Such files in /proc belong to root of the user namespace in
 * which it was executed. Where that is the agent itself (an ordinary user's, with a writable workspace), it is
 * executed once more inside (FLAG_AGAIN): the file (mode 0111) isn't readable there, which makes it undumpable
 * in the sandbox's own namespace (would_dump() in fs/exec.c).
 */
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include "parse.h"
#include "sys.h"

/* Constants whose libc headers would pull in libc types. Values are kernel ABI. */
enum {
	O_WRONLY_ = 01, O_RDWR_ = 02, O_NOCTTY_ = 0400, O_CLOEXEC_ = 02000000, O_PATH_ = 010000000,
	AT_FDCWD_ = -100,
	SIGKILL_ = 9, SIGCHLD_ = 17, SIG_BLOCK_ = 0, SIG_SETMASK_ = 2,
	SIGFD_CLOEXEC = 02000000,
	PR_SET_PDEATHSIG_ = 1, PR_SET_DUMPABLE_ = 4, PR_SET_KEEPCAPS_ = 8, PR_SET_NAME_ = 15, PR_CAPBSET_DROP_ = 24, PR_SET_TIMERSLACK_ = 29,
	PR_SET_NO_NEW_PRIVS_ = 38, PR_GET_NO_NEW_PRIVS_ = 39, PR_CAP_AMBIENT_ = 47, PR_CAP_AMBIENT_CLEAR_ALL_ = 4,
	CAPS_VERSION_3 = 0x20080522, KEYCTL_JOIN_SESSION_KEYRING_ = 1,
	MOUNT_ATTR_RDONLY_ = 1, MOUNT_ATTR_NOSUID_ = 2, MOUNT_ATTR_NODEV_ = 4, MOUNT_ATTR_NOEXEC_ = 8,
	MOVE_MOUNT_EMPTY_ = 0x44, /* MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH */
	MS_BIND_ = 4096, MS_REC_ = 16384, MS_PRIVATE_ = 1 << 18,
	MNT_DETACH_ = 2, CLONE_PARENT_ = 0x8000, CLONE_NEWNET_ = 0x40000000, CLONE_NEWTIME_ = 0x80, CLONE_NEWCGROUP_ = 0x02000000,
	SOL_SOCKET_ = 1, SCM_RIGHTS_ = 1, MSG_CMSG_CLOEXEC_ = 0x40000000, MSG_NOSIGNAL_ = 0x4000,
	MSG_WAITALL_ = 0x100, MSG_CTRUNC_ = 8,
	POLLIN_ = 1, POLLERR_ = 8, POLLHUP_ = 16,
	WNOHANG_ = 1,
	TIOCSCTTY_ = 0x540E, TIOCSPTLCK_ = 0x40045431, TIOCGPTPEER_ = 0x5441,
	CLOSE_RANGE_CLOEXEC_ = 4,
	PROT_RW = 3, MAP_PRIVATE_ANON = 0x22,
	EINTR_ = 4, EINVAL_ = 22, EPERM_ = 1, ENOENT_ = 2, EPROTO_ = 71, ENOMEM_ = 12, ENOSYS_ = 38,
};

#if defined(__x86_64__)
enum { O_DIRECTORY_ = 0200000, O_NOFOLLOW_ = 0400000 };
#else
enum { O_DIRECTORY_ = 040000, O_NOFOLLOW_ = 0100000 };
#endif

#define CLONE_INTO_CGROUP_ 0x200000000ULL

#define CONTROL 3
#define NETWORK 4 /* the run's network namespace; stage 0 only */
#define TARGET 4  /* pid 1 of the sandbox that is joined, as a pidfd */
#define CGROUP 5  /* and on: ways into the run's, see enter_cgroup */

struct iovec_ { const void *base; size_t len; };
struct msghdr_ {
	void *name; uint32_t namelen; struct iovec_ *iov; size_t iovlen;
	void *control; size_t controllen; int flags;
};
struct cmsg_ { size_t len; int level; int type; int fds[8]; };
struct pollfd_ { int fd; short events; short revents; };
struct rlimit64_ { uint64_t cur, max; };

/* What goes wrong is told as {step, errno}; the names stand in message.go, in the same order. */
enum step {
	STEP_NONE, STEP_MESSAGE, STEP_FORK, STEP_PTY, STEP_SESSION, STEP_STDIO, STEP_RLIMIT,
	STEP_CWD, STEP_NNP, STEP_LANDLOCK, STEP_LANDLOCK_PATH, STEP_SECCOMP, STEP_LISTENER, STEP_EXEC,
	STEP_SELF, STEP_NETWORK, STEP_OWNER, STEP_UNSHARE, STEP_HOSTNAME, STEP_KEYRING, STEP_ROOT, STEP_PROC, STEP_PIVOT,
	STEP_CAPS, STEP_CLOCKS, STEP_BIRTH, STEP_JOIN,
};

/* One shape for everything the stub says: a kind, and two numbers. */
struct report { uint32_t kind, a; uint64_t b; };
enum { SAY_HELLO = 1, SAY_PTY, SAY_STARTED, SAY_LISTENER, SAY_READY, SAY_FAILED, SAY_EXITED, SAY_APART, SAY_FORKED };

/* In .bss: zero until parsed, and zero refuses. */
static struct confinement confinement;
static struct command command;
static struct sandbox sandbox;
static void *message; /* MSG_MAX bytes: the confinement, and in the child later the command */

void *memcpy(void *d, const void *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		((char *)d)[i] = ((const char *)s)[i];
	return d;
}

void *memset(void *d, int v, size_t n)
{
	for (size_t i = 0; i < n; i++)
		((char *)d)[i] = (char)v;
	return d;
}

static int same(const char *a, const char *b)
{
	for (; *a && *a == *b; a++, b++)
		;
	return *a == *b;
}

static void __attribute__((noreturn)) quit(int code)
{
	for (;;)
		sys1(__NR_exit_group, code);
}

/* say uses write(2) unless a descriptor goes along: the child's filter may know no sendmsg(2). */
static long say(int sock, uint32_t kind, uint32_t a, uint64_t b, int fd)
{
	struct report r = { kind, a, b };

	if (fd < 0)
		return sys3(__NR_write, sock, &r, sizeof(r));
	struct iovec_ iov = { &r, sizeof(r) };
	struct { size_t len; int level, type, fd, pad; } c = { 20, SOL_SOCKET_, SCM_RIGHTS_, fd, 0 };
	struct msghdr_ m = { 0, 0, &iov, 1, &c, sizeof(c), 0 };

	return sys3(__NR_sendmsg, sock, &m, MSG_NOSIGNAL_);
}

/* fail tells the supervisor and ends. The exit code only matters if the telling failed. */
static void __attribute__((noreturn)) fail(int sock, enum step step, long err)
{
	say(sock, SAY_FAILED, step, (uint64_t)-err, -1);
	quit(125);
}

/* read_all reads exactly that much. An end of file in between is an error, and one before it too. */
static long read_all(int fd, void *to, uint64_t len)
{
	long n;

	for (uint64_t got = 0; got < len; got += (uint64_t)n) {
		n = sys3(__NR_read, fd, (char *)to + got, len - got);
		if (n == -EINTR_)
			n = 0;
		else if (n <= 0)
			return n ? n : -EPROTO_;
	}
	return 0;
}

/* must ends the launch where a call failed that the sandbox rests on. */
static void must(enum step step, long r)
{
	if (r < 0)
		fail(CONTROL, step, r);
}

struct caps_head { uint32_t version; int pid; };
struct caps { uint32_t effective, permitted, inheritable; };

/*
 * become_owner takes the run's own id, with which the user namespace is then made: the kernel takes whoever
 * makes one for its owner, and what is counted by user and not by cgroup (inotify instances, pending
 * signals, processes, message queues, locked memory, namespaces) is charged to the user inside, and then to
 * the owner in the namespace around it (kernel/ucount.c; user_namespaces(7)). With root as owner 128 inotify
 * instances of one agent were all that root and every other run had.
 *
 * The owner is the host's id of uid 0 inside: no other run has it, and nobody inside can be it without a
 * capability. It is not the agent's, because a process outside with the owner's id has all capabilities over
 * the namespace; no process outside ever has this one, but for this one until its unshare(2). It keeps its
 * capabilities, so a host that keeps ordinary users from making user namespaces lets it.
 */
static void become_owner(void)
{
	struct caps_head h = { CAPS_VERSION_3, 0 };
	struct caps c[2];
	uint32_t owner = sandbox.owner;

	must(STEP_OWNER, sys5(__NR_prctl, PR_SET_KEEPCAPS_, 1, 0, 0, 0));
	must(STEP_OWNER, sys3(__NR_setresuid, owner, owner, owner));
	must(STEP_OWNER, sys2(__NR_capget, &h, c));
	c[0].effective = c[0].permitted;
	c[1].effective = c[1].permitted;
	must(STEP_OWNER, sys2(__NR_capset, &h, c));
	sys5(__NR_prctl, PR_SET_DUMPABLE_, 0, 0, 0, 0); /* whatever fs.suid_dumpable says */
}

/* mount_proc places it by descriptor: a link in a root that somebody else has made leads nowhere (CVE-2019-19921). */
static void mount_proc(void)
{
	long at = sys4(__NR_openat, AT_FDCWD_, "proc", O_PATH_ | O_DIRECTORY_ | O_NOFOLLOW_ | O_CLOEXEC_, 0);
	long fs = sys2(__NR_fsopen, "proc", 1 /* FSOPEN_CLOEXEC */);
	long m;

	must(STEP_PROC, at);
	must(STEP_PROC, fs);
	must(STEP_PROC, sys5(__NR_fsconfig, fs, 0 /* FSCONFIG_SET_FLAG */, "ro", 0, 0));
	must(STEP_PROC, sys5(__NR_fsconfig, fs, 1 /* FSCONFIG_SET_STRING */, "source", "proc", 0));
	must(STEP_PROC, sys5(__NR_fsconfig, fs, 6 /* FSCONFIG_CMD_CREATE */, 0, 0, 0));
	m = sys3(__NR_fsmount, fs, 1 /* FSMOUNT_CLOEXEC */, MOUNT_ATTR_RDONLY_ | MOUNT_ATTR_NOSUID_ | MOUNT_ATTR_NODEV_ | MOUNT_ATTR_NOEXEC_);
	must(STEP_PROC, m);
	must(STEP_PROC, sys5(__NR_move_mount, m, "", at, "", MOVE_MOUNT_EMPTY_));
	sys1(__NR_close, m);
	sys1(__NR_close, fs);
	sys1(__NR_close, at);
}

/* make_root makes the root view the root of a mount namespace in which nothing else is. */
static void make_root(void)
{
	must(STEP_ROOT, sys5(__NR_mount, 0, "/", 0, MS_REC_ | MS_PRIVATE_, 0));
	/* Mounts that come from a more privileged namespace are locked, and a locked one can't be a root. */
	must(STEP_ROOT, sys5(__NR_mount, sandbox.root, sandbox.root, 0, MS_BIND_ | MS_REC_, 0));
	must(STEP_ROOT, sys1(__NR_chdir, sandbox.root));
	/*
	 * Before the host's is gone from view: the kernel gives a user namespace no /proc that shows more than one
	 * which it sees. Whole for the moment, in which nothing runs in it but this: ProcOptions come with showFacts,
	 * and the probe looks whether they are there. subset=pid: no /proc/sys, kcore, kallsyms, sysrq-trigger, …
	 * to mask one by one (CVE-2025-31133 and CVE-2025-52881 were races on such masks). Linux 5.8. Read-only:
	 * loginuid and projid_map take one write from anybody and keep it, the first of them into every record that
	 * the host's audit makes of the process (proc(5)); an AppArmor profile is changed by attr/. What ordinary
	 * programs write there are hints (oom_score_adj, comm of another thread), and they go on without.
	 * /proc/self/fd/N leads out of this mount, so it opens what it did.
	 */
	mount_proc();
	/* The old root ends up on top of the new one, and goes with all that is below it (pivot_root(2)). */
	must(STEP_PIVOT, sys2(__NR_pivot_root, ".", "."));
	must(STEP_PIVOT, sys2(__NR_umount2, ".", MNT_DETACH_));
	must(STEP_PIVOT, sys1(__NR_chdir, "/"));
}

/* drop_rights leaves no capability in any set, the agent's ids, and no way to more (M-1). */
static void drop_rights(void)
{
	struct caps_head h = { CAPS_VERSION_3, 0 };
	struct caps none[2] = { { 0, 0, 0 }, { 0, 0, 0 } };
	uint32_t id = sandbox.agent;
	long r;

	for (int cap = 0; (r = sys5(__NR_prctl, PR_CAPBSET_DROP_, cap, 0, 0, 0)) == 0; cap++)
		;
	if (r != -EINVAL_) /* the number after the kernel's last */
		fail(CONTROL, STEP_CAPS, r);
	must(STEP_CAPS, sys5(__NR_prctl, PR_CAP_AMBIENT_, PR_CAP_AMBIENT_CLEAR_ALL_, 0, 0, 0));
	must(STEP_CAPS, sys5(__NR_prctl, PR_SET_KEEPCAPS_, 0, 0, 0, 0));
	must(STEP_CAPS, sys2(__NR_setgroups, 0, 0));
	must(STEP_CAPS, sys3(__NR_setresgid, id, id, id));
	must(STEP_CAPS, sys3(__NR_setresuid, id, id, id));
	must(STEP_CAPS, sys2(__NR_capset, &h, none));
	must(STEP_CAPS, sys5(__NR_prctl, PR_SET_NO_NEW_PRIVS_, 1, 0, 0, 0));
	sys1(__NR_umask, 022);
}

/*
 * set_clocks gives the new time namespace its offsets, before anybody is in it. It takes CAP_SYS_TIME over the namespace, which a
 * supervisor whose unit has it not can't lend; whoever has made the namespace has it there. The file is its own only while it is dumpable.
 */
static void set_clocks(void)
{
	long fd;

	if (sandbox.clockslen == 0)
		return;
	must(STEP_CLOCKS, sys5(__NR_prctl, PR_SET_DUMPABLE_, 1, 0, 0, 0));
	fd = sys4(__NR_openat, AT_FDCWD_, "/proc/self/timens_offsets", O_WRONLY_ | O_CLOEXEC_, 0);
	must(STEP_CLOCKS, fd);
	if (sys3(__NR_write, fd, sandbox.clocks, sandbox.clockslen) != sandbox.clockslen)
		fail(CONTROL, STEP_CLOCKS, -EPERM_);
	must(STEP_CLOCKS, sys5(__NR_prctl, PR_SET_DUMPABLE_, 0, 0, 0, 0));
	sys1(__NR_close, fd);
}

/* enter_time enters the namespace that unshare(2) has made for children only, as one thread may; from then on its offsets are fixed. */
static void enter_time(void)
{
	long fd;

	if (!(sandbox.namespaces & CLONE_NEWTIME_))
		return;
	fd = sys4(__NR_openat, AT_FDCWD_, "/proc/self/ns/time_for_children", O_CLOEXEC_, 0);
	must(STEP_CLOCKS, fd);
	must(STEP_CLOCKS, sys2(__NR_setns, fd, CLONE_NEWTIME_));
	sys1(__NR_close, fd);
}

/* allocate gives the place for messages. */
static void allocate(void)
{
	long buf = sys6(__NR_mmap, 0, MSG_MAX, PROT_RW, MAP_PRIVATE_ANON, -1, 0);

	if (buf < 0 && buf > -4096)
		fail(CONTROL, STEP_MESSAGE, buf);
	message = (void *)buf;
}

static void wait_for_go(int sock);

/* take_sandbox is told what the sandbox is made of. */
static void take_sandbox(void)
{
	uint64_t len = 0;

	allocate();
	if (read_all(CONTROL, &len, sizeof(len)))
		quit(125);
	if (len > MSG_MAX || read_all(CONTROL, message, len) || parse_sandbox(&sandbox, message, len))
		fail(CONTROL, STEP_MESSAGE, -EINVAL_);
}

/* join_keyring leaves the supervisor's keys behind (session-keyring(7)). */
static void join_keyring(void)
{
	long r = sys2(__NR_keyctl, KEYCTL_JOIN_SESSION_KEYRING_, 0);

	if (r < 0 && r != -ENOSYS_)
		fail(CONTROL, STEP_KEYRING, r);
}

/*
 * fork_into makes a child of the supervisor's, in new namespaces and in a folder of the cgroup2 tree (-1: where we are), and returns in it.
 * The supervisor doesn't execute us in the folder itself: what it forks shares its memory until the exec, and a group that is frozen,
 * throttled or out of memory would hold up all that it does.
 */
static void fork_into(enum step step, uint64_t namespaces, int folder)
{
	uint64_t args[11] = { CLONE_PARENT_ | namespaces }; /* struct clone_args; the signal at its end is that of this one */
	long pid;

	if (folder >= 0) {
		args[0] |= CLONE_INTO_CGROUP_;
		args[10] = (uint64_t)folder;
	}
	pid = sys2(__NR_clone3, args, sizeof(args));
	must(step, pid);
	if (pid > 0) {
		say(CONTROL, SAY_FORKED, (uint32_t)pid, 0, -1);
		quit(0);
	}
	/* A parent that died before this is seen by the end of its socket, before anything waits for long. */
	sys5(__NR_prctl, PR_SET_PDEATHSIG_, SIGKILL_, 0, 0, 0);
	if (folder >= 0)
		sys1(__NR_close, folder);
}

/*
 * enter_cgroup goes into the run's v1 cgroups, and returns the folder of the cgroup2 tree, in which a child has yet to be born, or -1.
 * Who is moved by another waits for a grace period of the kernel, some 10 ms, with a lock that all changes of cgroups take; who has one
 * thread and writes "0" to a v1 group's tasks, or is born in a cgroup2 folder, doesn't.
 * how is "m" or, with a folder behind them, "b", and the number of tasks files. Every other descriptor is closed.
 */
static int enter_cgroup(const char *how)
{
	int folder = CGROUP + (how[0] ? how[1] - '0' : 0);

	/* The supervisor has marked each close-on-exec: the wall behind that one. */
	sys3(__NR_close_range, how[0] == 'b' ? folder + 1 : folder, ~0U, 0);
	for (int fd = CGROUP; fd < folder; fd++) {
		must(STEP_BIRTH, sys3(__NR_write, fd, "0", 1));
		sys1(__NR_close, fd);
	}
	return how[0] == 'b' ? folder : -1;
}

/*
 * make_sandbox is stage 0. It returns in the process that is pid 1; the one that was executed ends.
 *
 * The network namespace is entered before the others are made: it belongs to the supervisor's user
 * namespace, so that nobody inside can administer it (M-7), and takes rights there. So does the birth in the
 * run's cgroup (CAP_DAC_OVERRIDE, as its folder isn't the owner's), which the cgroup namespace is rooted in and comes after: who makes one
 * while it forks has its own cgroup as the root.
 */
static void make_sandbox(const char *self, const char *how)
{
	const uint32_t later = CLONE_NEWTIME_ | CLONE_NEWCGROUP_;
	int folder = enter_cgroup(how);

	take_sandbox();
	must(STEP_NETWORK, sys2(__NR_setns, NETWORK, CLONE_NEWNET_));
	must(STEP_NETWORK, sys1(__NR_close, NETWORK));
	become_owner();
	sys5(__NR_prctl, PR_SET_PDEATHSIG_, SIGKILL_, 0, 0, 0); /* other ids have cleared it (commit_creds) */
	fork_into(STEP_UNSHARE, sandbox.namespaces & ~later, folder);
	if (say(CONTROL, SAY_APART, 0, 0, -1) < 0)
		quit(125);
	must(STEP_UNSHARE, sys1(__NR_unshare, sandbox.namespaces & later));
	set_clocks();
	enter_time();
	wait_for_go(CONTROL); /* the ids are mapped */
	must(STEP_HOSTNAME, sys2(__NR_sethostname, sandbox.hostname, sandbox.hostlen));
	join_keyring();
	make_root();
	drop_rights();
	if (sandbox.flags & FLAG_AGAIN) {
		const char *args[] = { self, "again", 0 }, *none[] = { 0 };
		must(STEP_EXEC, sys3(__NR_execve, self, args, none));
	}
}

/* receive takes the confinement: a u64 length with the descriptors, then that many bytes. */
static void receive(int fds[5])
{
	uint64_t len = 0;
	struct iovec_ iov = { &len, sizeof(len) };
	struct cmsg_ c;
	struct msghdr_ m = { 0, 0, &iov, 1, &c, sizeof(c), 0 };
	long n;

	do
		n = sys3(__NR_recvmsg, CONTROL, &m, MSG_CMSG_CLOEXEC_);
	while (n == -EINTR_);
	if (n == 0)
		quit(0); /* the supervisor gave this sandbox up before it was used */
	/* Four descriptors, or five: 16 bytes of header, four for each. */
	if (n != sizeof(len) || (m.flags & MSG_CTRUNC_) || m.controllen < 32 || (c.len != 32 && c.len != 36) ||
	    c.level != SOL_SOCKET_ || c.type != SCM_RIGHTS_ || len > MSG_MAX)
		fail(CONTROL, STEP_MESSAGE, -EPROTO_);
	fds[4] = -1;
	memcpy(fds, c.fds, c.len - 16);

	n = read_all(CONTROL, message, len);
	if (n < 0 || parse_confinement(&confinement, message, len))
		fail(CONTROL, STEP_MESSAGE, n < 0 ? n : -EINVAL_);
}

/*
 * open_pty makes the agent's terminal in the sandbox's own devpts instance and hands the master out.
 * The peer comes from the master by ioctl, never by a path: a /dev/pts link that was swapped cannot
 * redirect it (CVE-2025-52565).
 */
static int open_pty(void)
{
	int unlock = 0;
	long master = sys4(__NR_openat, AT_FDCWD_, "/dev/ptmx", O_RDWR_ | O_NOCTTY_ | O_CLOEXEC_, 0);
	long peer;

	if (master < 0)
		fail(CONTROL, STEP_PTY, master);
	if (sys3(__NR_ioctl, master, TIOCSPTLCK_, &unlock) < 0)
		fail(CONTROL, STEP_PTY, -EPERM_);
	peer = sys3(__NR_ioctl, master, TIOCGPTPEER_, O_RDWR_ | O_NOCTTY_ | O_CLOEXEC_);
	if (peer < 0)
		fail(CONTROL, STEP_PTY, peer);
	if (say(CONTROL, SAY_PTY, 0, 0, (int)master) < 0)
		fail(CONTROL, STEP_PTY, -EPROTO_);
	sys1(__NR_close, master);
	return (int)peer;
}

/*
 * landlock_rules begins the second wall: the mounts already say what is writable and executable; should a
 * mount ever be wrong, these rules still hold (landlock(7)). Every path must exist, so that a typo in
 * the plan is an error and not a silent hole or a silent loss. It returns the ruleset.
 */
static long landlock_rules(int sock)
{
	struct { uint64_t fs, net, scoped; } attr = { confinement.landlock_fs, 0, confinement.landlock_scoped };
	/* Kernels before ABI 6 refuse a longer struct only if the tail is not zero (E2BIG). */
	long rs = sys3(__NR_landlock_create_ruleset, &attr, sizeof(attr), 0);

	if (rs < 0)
		fail(sock, STEP_LANDLOCK, rs);
	for (uint32_t i = 0; i < confinement.nrules; i++) {
		struct landlock_path_beneath_attr a = { confinement.rules[i].access, 0 };
		long fd = sys4(__NR_openat, AT_FDCWD_, confinement.rules[i].path, O_PATH_ | O_CLOEXEC_, 0);
		long r = fd;

		if (fd >= 0) {
			a.parent_fd = (int32_t)fd;
			r = sys4(__NR_landlock_add_rule, rs, LANDLOCK_RULE_PATH_BENEATH, &a, 0);
			sys1(__NR_close, fd);
		}
		if (r < 0) {
			say(sock, SAY_FAILED, STEP_LANDLOCK_PATH, (uint64_t)-r | (uint64_t)i << 32, -1);
			quit(125);
		}
	}
	return rs;
}

/*
 * landlock_enter puts it up. Since Linux 6.15 the host's audit log has a record of each access that a domain refuses a program which has
 * entered it itself. An agent may enter domains of its own, and would write there as fast as it can: it has none recorded
 * (LANDLOCK_RESTRICT_SELF_LOG_SUBDOMAINS_OFF). Older kernels know no flag, and record nothing.
 */
static void landlock_enter(int sock, long rs)
{
	long r = sys2(__NR_landlock_restrict_self, rs, 1 << 2);

	if (r == -EINVAL_)
		r = sys2(__NR_landlock_restrict_self, rs, 0);
	if (r < 0)
		fail(sock, STEP_LANDLOCK, r);
	sys1(__NR_close, rs);
}

static void enter(int sock, const char *dir)
{
	long r = *dir ? sys1(__NR_chdir, dir) : 0;

	if (r < 0)
		fail(sock, STEP_CWD, r);
}

static void wait_for_go(int sock)
{
	char go = 0;
	long r;

	do
		r = sys3(__NR_read, sock, &go, 1);
	while (r == -EINTR_);
	if (r != 1 || go != 'G')
		quit(125);
}

/* wait_for_command reads it where the confinement was, which is not needed any more. */
static void wait_for_command(int sock)
{
	uint64_t len = 0;

	/* The supervisor is gone, or gave this sandbox up. */
	if (read_all(sock, &len, sizeof(len)))
		quit(125);
	if (len > MSG_MAX || read_all(sock, message, len) || parse_command(&command, message, len))
		fail(sock, STEP_MESSAGE, -EINVAL_);
}

/* child gives up everything that is left, in this order, and becomes the agent. It doesn't return. */
static void __attribute__((noreturn)) child(int fds[5], int tty)
{
	int sock = fds[3];
	uint64_t none = 0, dfl[4] = { 0, 0, 0, 0 }; /* sigset_t and struct sigaction of the kernel */
	long r, rules = -1;

	r = sys0(__NR_setsid);
	if (r < 0)
		fail(sock, STEP_SESSION, r);
	if (tty >= 0) {
		r = sys3(__NR_ioctl, tty, TIOCSCTTY_, 0);
		if (r < 0)
			fail(sock, STEP_PTY, r);
		fds[0] = fds[1] = fds[2] = tty;
	}
	/* The received descriptors are all above 3, so no dup3 can overwrite one still needed. */
	for (int i = 0; i < 3; i++) {
		r = sys3(__NR_dup3, fds[i], i, 0);
		if (r < 0)
			fail(sock, STEP_STDIO, r);
	}
	/* CVE-2024-21626: nothing but 0, 1, 2 may live through the exec, and 3 where the supervisor gave a
	 * connection to the tool gateway. Marking rather than closing keeps our own two sockets until the
	 * kernel closes them in execve itself. */
	r = sys3(__NR_close_range, 3, ~0U, CLOSE_RANGE_CLOEXEC_);
	if (r >= 0 && fds[4] >= 0)
		r = sys3(__NR_dup3, fds[4], CONTROL, 0); /* pid 1's control socket, of no use here */
	if (r < 0)
		fail(sock, STEP_STDIO, r);
	enter(sock, confinement.cwd);
	for (uint32_t i = 0; i < confinement.nrlimits; i++) {
		struct rlimit64_ lim = { confinement.rlimits[i].cur, confinement.rlimits[i].max };
		r = sys4(__NR_prlimit64, 0, confinement.rlimits[i].resource, &lim, 0);
		if (r < 0)
			fail(sock, STEP_RLIMIT, r);
	}
	/* Both walls need it, and without it a setuid program would climb over them. Fail closed. */
	if (sys5(__NR_prctl, PR_GET_NO_NEW_PRIVS_, 0, 0, 0, 0) != 1)
		fail(sock, STEP_NNP, -EPERM_);
	if (confinement.flags & FLAG_LANDLOCK)
		rules = landlock_rules(sock);
	if (rules >= 0 && !(confinement.flags & FLAG_LANDLOCK_LATE)) {
		landlock_enter(sock, rules);
		rules = -1;
	}
	/* What the supervisor was started to ignore, as by nohup(1), would stay ignored past execve(2): that is the caller's. */
	for (int n = 1; n <= 64; n++)
		sys4(__NR_rt_sigaction, n, dfl, 0, 8);
	sys4(__NR_rt_sigprocmask, SIG_SETMASK_, &none, 0, 8);

	/* Last: seccomp. From here on only write, read, close, exit_group and execve happen, and chdir and
	 * landlock_restrict_self where they are left for later; the supervisor refuses a filter that does not let them pass. */
	struct sock_fprog prog = { (unsigned short)confinement.nbpf, (struct sock_filter *)confinement.bpf };
	unsigned long flags = SECCOMP_FILTER_FLAG_NEW_LISTENER;
	if (confinement.flags & FLAG_WAIT_KILLABLE)
		flags |= 1UL << 5; /* SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV */
	long listener = sys3(__NR_seccomp, SECCOMP_SET_MODE_FILTER, flags, &prog);
	if (listener < 0)
		fail(sock, STEP_SECCOMP, listener);
	/* A ruleset's number goes along, plus one: 0 is none. */
	r = say(sock, SAY_LISTENER, (uint32_t)listener, (uint64_t)(rules + 1), -1);
	if (r < 0)
		fail(sock, STEP_LISTENER, r);
	wait_for_go(sock); /* the supervisor has taken its copy */
	sys1(__NR_close, listener); /* an agent that held it could answer its own calls */
	say(sock, SAY_READY, 0, 0, -1);

	/* The supervisor now looks at this very process in /proc before any code of the agent runs. */
	wait_for_command(sock);
	enter(sock, command.cwd);
	if (rules >= 0)
		landlock_enter(sock, rules);
	r = sys3(__NR_execve, command.exe, command.argv, command.envp);
	fail(sock, STEP_EXEC, r);
}

/*
 * join_sandbox is stage 0 of a further command. It returns in the process that becomes the command.
 *
 * Here an agent of the same user runs already, which may look at /proc, send signals, and keep what it finds. So:
 *
 *  - Every descriptor but the control socket is closed first, and the folder is the sandbox's (CVE-2024-21626, CVE-2016-9962).
 *  - All namespaces are entered by one call. The kernel installs them together (commit_nsset), the user namespace among
 *    them, and takes the rights for each from what we were before, which the network's needs: it is the supervisor's.
 *  - What is left of rights is dropped, and the process undumpable, before the fork. As long as it isn't in the pid namespace
 *    nobody inside can see it or name it; a change of ids makes it as dumpable as fs.suid_dumpable says, which what is forked
 *    then has no moment of.
 *  - The time namespace is entered as well, and not only by children (setns(2), timens_install): there is one thread.
 */
static void join_sandbox(const char *self, const char *how)
{
	const char *args[] = { self, "joined", 0 }, *none[] = { 0 };
	int folder = enter_cgroup(how);

	if (folder >= 0)
		fork_into(STEP_BIRTH, 0, folder);
	take_sandbox();
	must(STEP_JOIN, sys2(__NR_setns, TARGET, sandbox.namespaces));
	must(STEP_JOIN, sys1(__NR_close, TARGET));
	must(STEP_JOIN, sys1(__NR_chdir, "/"));
	drop_rights();
	must(STEP_JOIN, sys5(__NR_prctl, PR_SET_DUMPABLE_, 0, 0, 0, 0));
	join_keyring(); /* as the agent's user, who is charged for it */
	sys5(__NR_prctl, PR_SET_PDEATHSIG_, SIGKILL_, 0, 0, 0);

	fork_into(STEP_FORK, 0, -1);
	if (sandbox.flags & FLAG_AGAIN)
		must(STEP_EXEC, sys3(__NR_execve, self, args, none));
}

/* be_joined goes on as the child of pid 1 does, and doesn't return. */
static void __attribute__((noreturn)) be_joined(void)
{
	int fds[5], tty = -1;

	sys5(__NR_prctl, PR_SET_NAME_, "agentrun-init", 0, 0, 0);
	if (say(CONTROL, SAY_HELLO, MSG_VERSION, 0, -1) < 0)
		quit(125);
	receive(fds);
	if (confinement.flags & FLAG_TTY)
		tty = open_pty();
	say(CONTROL, SAY_STARTED, 0, 0, -1);
	child(fds, tty);
}

/*
 * confine_self leaves pid 1 the calls its loop needs. The agent can reach pid 1 only by signals; this
 * is for the mistake nobody has found yet. Any other call kills it, and with it the sandbox.
 *
 * It returns the number of a listener, which hears nothing: whoever has it keeps the filter when pid 1 ends.
 */
static long confine_self(void)
{
#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#else
#define ARCH AUDIT_ARCH_AARCH64
#endif
#define LET(nr) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (nr), 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
	struct sock_filter f[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 4),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
		LET(__NR_ppoll), LET(__NR_read), LET(__NR_wait4), LET(__NR_kill), LET(__NR_write),
		LET(__NR_exit_group), LET(__NR_statfs),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	struct sock_fprog prog = { sizeof(f) / sizeof(f[0]), f };
	long r = sys3(__NR_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &prog);

	if (r < 0)
		fail(CONTROL, STEP_SELF, r);
	return r;
}

/* scratch_full tells whether the scratch has no room for a page more, or for a file: which may be why the agent has failed. */
static int scratch_full(void)
{
	struct { long type, bsize, blocks, bfree, bavail, files, ffree, rest[9]; } s;

	return sys2(__NR_statfs, "/tmp", &s) == 0 && ((s.blocks && !s.bavail) || (s.files && !s.ffree));
}

/* reap collects every zombie; when the agent's first process is among them, the run is over. That it exited with 0 needs no report, for
 * which the supervisor would be woken before we are gone: from here on we exit with 0 for nothing else. */
static void reap(long agent)
{
	int status;
	long pid;

	while ((pid = sys4(__NR_wait4, -1, &status, WNOHANG_, 0)) > 0) {
		if (pid != agent)
			continue;
		if (status != 0)
			say(CONTROL, SAY_EXITED, (uint32_t)status, scratch_full(), -1);
		quit((status & 0x7f) ? 128 + (status & 0x7f) : (status >> 8) & 0xff);
	}
}

/* run gets what the kernel puts on the stack of a new program: argc, and the arguments. */
static void __attribute__((noreturn, used)) run(const long *stack)
{
	/* Every signal that can be caught comes through the signalfd; SIGKILL and SIGSTOP from inside the
	 * namespace never reach pid 1 (pid_namespaces(7)). */
	uint64_t all = ~0ULL;
	int fds[5], tty = -1;
	long sigfd, agent;

	sys5(__NR_prctl, PR_SET_DUMPABLE_, 0, 0, 0, 0);
	sys5(__NR_prctl, PR_SET_PDEATHSIG_, SIGKILL_, 0, 0, 0);
	/* The kernel's default. It is inherited, and not every thread of the supervisor's has it. */
	sys5(__NR_prctl, PR_SET_TIMERSLACK_, 50000, 0, 0, 0);
	const char *how = stack[0] > 1 ? (const char *)stack[2] : "";

	if (same(how, "join") || same(how, "joined")) {
		if (same(how, "join"))
			join_sandbox((const char *)stack[1], stack[0] > 2 ? (const char *)stack[3] : "");
		else
			allocate();
		be_joined();
	}
	if (how[0] == 'a') /* again */
		allocate();
	else
		make_sandbox((const char *)stack[1], how);
	sys5(__NR_prctl, PR_SET_DUMPABLE_, 0, 0, 0, 0);
	sys5(__NR_prctl, PR_SET_NAME_, "agentrun-init", 0, 0, 0);
	/* Dies with the supervisor's launching thread; the socket below says the same a second way. */
	sys5(__NR_prctl, PR_SET_PDEATHSIG_, SIGKILL_, 0, 0, 0);
	sys4(__NR_rt_sigprocmask, SIG_BLOCK_, &all, 0, 8);
	sigfd = sys4(__NR_signalfd4, -1, &all, 8, SIGFD_CLOEXEC);
	if (sigfd < 0)
		fail(CONTROL, STEP_SELF, sigfd);
	if (say(CONTROL, SAY_HELLO, MSG_VERSION, 0, -1) < 0)
		quit(125);
	/* No terminal of the supervisor's. Not before it knows us: without our number it finds us by the process group. */
	must(STEP_SESSION, sys0(__NR_setsid));
	receive(fds);
	if (confinement.flags & FLAG_TTY)
		tty = open_pty();

	agent = sys5(__NR_clone, SIGCHLD_, 0, 0, 0, 0);
	if (agent < 0)
		fail(CONTROL, STEP_FORK, agent);
	if (agent == 0)
		child(fds, tty);
	/* An end of a pipe kept here would hide its end of file from the other side. */
	for (int i = 0; i < 5; i++)
		if (fds[i] >= 0)
			sys1(__NR_close, fds[i]);
	for (int i = 0; i < 3; i++)
		sys1(__NR_close, i);
	if (tty >= 0)
		sys1(__NR_close, tty);
	say(CONTROL, SAY_STARTED, (uint32_t)agent, (uint64_t)(confine_self() + 1), -1);

	for (;;) {
		struct pollfd_ p[2] = { { CONTROL, POLLIN_, 0 }, { (int)sigfd, POLLIN_, 0 } };
		uint32_t info[32]; /* struct signalfd_siginfo: [0] is the signal, [3] the sender's pid */

		sys5(__NR_ppoll, p, 2, 0, 0, 8);
		if (p[0].revents) /* the supervisor says nothing more: data or hang-up both mean the end */
			quit(137);
		if (!(p[1].revents & POLLIN_))
			continue;
		if (sys3(__NR_read, sigfd, info, sizeof(info)) != sizeof(info))
			continue;
		/* From outside the namespace the sender's pid reads 0. Signals from inside are the agent's
		 * own and go no further. */
		if (info[0] == SIGCHLD_)
			reap(agent);
		else if (info[3] == 0)
			sys2(__NR_kill, agent, info[0]);
	}
}

#if defined(__x86_64__)
__asm__(".globl _start\n_start:\n xor %ebp,%ebp\n mov %rsp,%rdi\n and $-16,%rsp\n call run\n");
#else
__asm__(".globl _start\n_start:\n mov x29,#0\n mov x0,sp\n bl run\n");
#endif
