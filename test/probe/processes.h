// SPDX-License-Identifier: Apache-2.0
//
// Threat classes "processes" and "runtime takeover".

#include "probe.h"

#ifndef PTRACE_SEIZE
#define PTRACE_SEIZE 0x4206
#endif

static long t_ptrace(int argc, char **argv) { return syscall(SYS_ptrace, PTRACE_ATTACH, num(arg(argc, argv, 1, "1")), 0, 0); }
static long t_ptrace_seize(int argc, char **argv) { return syscall(SYS_ptrace, PTRACE_SEIZE, num(arg(argc, argv, 1, "1")), 0, 0); }
static long t_ptrace_traceme(int argc, char **argv) { (void)argc, (void)argv; return syscall(SYS_ptrace, PTRACE_TRACEME, 0, 0, 0); }

static long t_vm_readv(int argc, char **argv)
{
	char b[8];
	struct iovec l = {b, sizeof b}, r = {(void *)0x400000, sizeof b};
	return syscall(SYS_process_vm_readv, num(arg(argc, argv, 1, "1")), &l, 1, &r, 1, 0);
}

static long t_vm_writev(int argc, char **argv)
{
	char b[8] = {0};
	struct iovec l = {b, sizeof b}, r = {(void *)0x400000, sizeof b};
	return syscall(SYS_process_vm_writev, num(arg(argc, argv, 1, "1")), &l, 1, &r, 1, 0);
}

static long t_pidfd_getfd(int argc, char **argv)
{
	int fd = (int)syscall(SYS_pidfd_open, num(arg(argc, argv, 1, "1")), 0);
	if (fd < 0)
		return -1;
	long r = keep(syscall(SYS_pidfd_getfd, fd, num(arg(argc, argv, 2, "0")), 0));
	int e = errno;
	close(fd);
	errno = e;
	return r;
}

static long t_process_madvise(int argc, char **argv)
{
	struct iovec r = {(void *)0x400000, 4096};
	int fd = (int)syscall(SYS_pidfd_open, num(arg(argc, argv, 1, "1")), 0);
	return fd < 0 ? -1 : syscall(SYS_process_madvise, fd, &r, 1, 20 /* MADV_COLD */, 0);
}

static long t_kcmp(int argc, char **argv) { return syscall(SYS_kcmp, num(arg(argc, argv, 1, "1")), getpid(), 0, 0, 0); }

// Pid 1 shares our uid, so prlimit(2) would let us set its limits unless the
// filter knows the pid argument: a CPU limit of 0 makes the kernel kill it.
static long t_prlimit(int argc, char **argv)
{
	struct rlimit64 { uint64_t cur, max; } none = {0, 0};
	return syscall(SYS_prlimit64, num(arg(argc, argv, 1, "1")), RLIMIT_CPU, &none, NULL);
}

static long t_kill(int argc, char **argv) { return kill((pid_t)num(arg(argc, argv, 1, "1")), (int)num(arg(argc, argv, 2, "9"))); }

// Signals that pid 1 must shrug off. The kernel drops SIGKILL and SIGSTOP that
// come from inside silently (pid_namespaces(7)), so success of kill(2) says
// nothing: look whether it still lives and is not stopped.
static long t_kill_init(int argc, char **argv)
{
	(void)argc, (void)argv;
	static const int signals[] = {SIGKILL, SIGSTOP, SIGSEGV, SIGABRT};
	for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
		kill(1, signals[i]);
	char stat[512] = "";
	if (kill(1, 0) < 0 && errno == ESRCH) // EPERM: Landlock keeps signals from it
		return say("dead");
	if (slurp("/proc/1/stat", stat, sizeof stat) > 0) {
		char *end = strrchr(stat, ')');
		return say(end && strchr("TtZX", end[2]) ? "stopped or dead" : "alive");
	}
	return say("alive");
}

static long t_setsid(int argc, char **argv) { (void)argc, (void)argv; return setsid(); }

static long t_fork(int argc, char **argv) { (void)argc, (void)argv; return reap_or_exit(syscall(SYS_fork)); }

static long t_vfork(int argc, char **argv)
{
	(void)argc, (void)argv;
	// vfork by its clone equivalent: the bare call may not return twice
	// through a C frame. The number 58 itself is tried by the sys probe.
	return reap_or_exit(syscall(SYS_clone, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0));
}

static long t_clone_process(int argc, char **argv) { (void)argc, (void)argv; return reap_or_exit(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)); }

// sibling: a process with our parent, which needn't be one of the sandbox.
static long t_sibling(int argc, char **argv)
{
	(void)argc, (void)argv;
	long r = syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0);
	if (r == 0)
		_exit(0);
	return r;
}

static long t_posix_spawn(int argc, char **argv)
{
	pid_t pid;
	char *self[] = {(char *)"/proc/self/exe", (char *)"ok", NULL}, *env[] = {NULL};
	(void)argc, (void)argv;
	int e = posix_spawn(&pid, "/proc/self/exe", NULL, NULL, self, env);
	if (e) {
		errno = e;
		return -1;
	}
	waitpid(pid, NULL, 0);
	return 0;
}

// exec PATH replaces us: the line is the new program's if it works.
static long t_exec(int argc, char **argv)
{
	char *env[] = {NULL};
	execve(arg(argc, argv, 1, "/proc/self/exe"), argv + 1, env);
	return -1;
}

// exec-chain AT TO: executes itself with AT+1 until TO or refused.
static long t_exec_chain(int argc, char **argv)
{
	long at = num(arg(argc, argv, 1, "0")), to = num(arg(argc, argv, 2, "40"));
	char next[32], last[32], *self[] = {(char *)"probe", (char *)"exec-chain", next, last, NULL}, *env[] = {NULL};
	snprintf(next, sizeof next, "%ld", at + 1), snprintf(last, sizeof last, "%ld", to);
	if (at < to)
		execve("/probe", self, env);
	dprintf(1, "exec-chain: %ld %s\n", at, at < to ? strerrorname_np(errno) : "0");
	_exit(0);
	return 0;
}

static int copy_self(const char *to)
{
	char buf[65536];
	ssize_t n;
	int in = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
	if (in < 0 || out < 0)
		return -1;
	while ((n = read(in, buf, sizeof buf)) > 0)
		if (write(out, buf, (size_t)n) != n)
			return -1;
	close(in);
	return fchmod(out, 0755) || close(out) ? -1 : 0;
}

// exec-copy DIR: write a program to DIR and start it.
static long t_exec_copy(int argc, char **argv)
{
	char path[PATH_MAX];
	char *self[] = {path, (char *)"ok", NULL}, *env[] = {NULL};
	snprintf(path, sizeof path, "%s/prog", arg(argc, argv, 1, SCRATCH));
	if (copy_self(path) < 0)
		return say("not written: %s", strerrorname_np(errno));
	execve(path, self, env);
	return -1;
}

// A noexec mount also refuses to map a file executable (mmap(2), EPERM), which
// is what stops `ld.so /tmp/sandbox/prog`.
static long t_mmap_exec(int argc, char **argv)
{
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s/lib", arg(argc, argv, 1, SCRATCH));
	if (copy_self(path) < 0)
		return say("not written: %s", strerrorname_np(errno));
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	void *p = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
	return p == MAP_FAILED ? -1 : 0;
}

static int memfd_copy(unsigned flags)
{
	char buf[65536];
	ssize_t n;
	int in = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), fd = (int)syscall(SYS_memfd_create, "x", flags);
	if (in < 0 || fd < 0)
		return -1;
	while ((n = read(in, buf, sizeof buf)) > 0)
		if (write(fd, buf, (size_t)n) != n)
			return -1;
	close(in);
	return fd;
}

// A program that never touches a file system. MFD_EXEC (0x10) asks for it by
// name where the kernel's default is not to.
static long t_memfd_execveat(int argc, char **argv)
{
	char *self[] = {(char *)"x", (char *)"ok", NULL}, *env[] = {NULL};
	int fd = memfd_copy(argc > 1 ? (unsigned)num(argv[1]) : 1 /* MFD_CLOEXEC */);
	if (fd < 0)
		return -1;
	return syscall(SYS_execveat, fd, "", self, env, AT_EMPTY_PATH);
}

static long t_memfd_fexecve(int argc, char **argv)
{
	char path[64], *self[] = {(char *)"x", (char *)"ok", NULL}, *env[] = {NULL};
	int fd = memfd_copy(argc > 1 ? (unsigned)num(argv[1]) : 1);
	if (fd < 0)
		return -1;
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	execve(path, self, env);
	return -1;
}

static long t_memfd_mmap_exec(int argc, char **argv)
{
	(void)argc, (void)argv;
	int fd = memfd_copy(1);
	if (fd < 0)
		return -1;
	return mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED ? -1 : 0;
}

static void *sleeper(void *unused)
{
	(void)unused;
	for (;;)
		pause();
	return NULL;
}

// threads N: start up to N threads that stay.
static long t_threads(int argc, char **argv)
{
	long want = num(arg(argc, argv, 1, "8")), i;
	pthread_attr_t attr;
	int e = 0;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 16384);
	for (i = 0; i < want; i++) {
		pthread_t th;
		if ((e = pthread_create(&th, &attr, sleeper, NULL)))
			break;
	}
	return say("%ld %s", i, e ? strerrorname_np(e) : "0");
}

// forks N: start up to N children that stay; they die with the sandbox.
static long t_forks(int argc, char **argv)
{
	long want = num(arg(argc, argv, 1, "100000")), i;
	for (i = 0; i < want; i++) {
		pid_t pid = fork();
		if (pid == 0)
			sleeper(NULL);
		if (pid < 0)
			return say("%ld %s", i, strerrorname_np(errno));
	}
	return say("%ld 0", i);
}

// bomb: every process forks without end, until something from outside stops it.
static long t_bomb(int argc, char **argv)
{
	(void)argc, (void)argv;
	for (;;)
		if (fork() < 0)
			continue;
	return 0;
}

// orphans N: N grandchildren whose parent is gone die; pid 1 has to reap
// them. Reports how many processes in the namespace are zombies afterwards.
static long t_orphans(int argc, char **argv)
{
	long n = num(arg(argc, argv, 1, "50"));
	int gone[2];
	if (pipe(gone) < 0)
		return -1;
	for (long i = 0; i < n; i++) {
		pid_t child = fork();
		if (child < 0)
			return -1;
		if (child == 0) {
			close(gone[0]);
			fork(); // both end; the grandchild keeps gone[1] until it has
			_exit(0);
		}
		waitpid(child, NULL, 0);
	}
	// End of file: every grandchild has ended.
	char c;
	close(gone[1]);
	while (read(gone[0], &c, 1) > 0)
		;
	// Reaping follows the end; give pid 1 its turn, but not for ever.
	long zombies = 0;
	for (int tries = 0; tries < 200; tries++) {
		DIR *d = opendir("/proc");
		struct dirent *e;
		zombies = 0;
		while (d && (e = readdir(d))) {
			char path[300], stat[512];
			snprintf(path, sizeof path, "/proc/%s/stat", e->d_name);
			if (e->d_name[0] < '1' || e->d_name[0] > '9' || slurp(path, stat, sizeof stat) <= 0)
				continue;
			char *end = strrchr(stat, ')');
			zombies += end && end[2] == 'Z';
		}
		if (d)
			closedir(d);
		if (!zombies)
			break;
		usleep(10000);
	}
	return say("%ld", zombies);
}

// nofile: open until refused. The number is the limit in force.
static long t_nofile(int argc, char **argv)
{
	(void)argc, (void)argv;
	long n = 0;
	int fds[65536];
	while (n < 65536 && (fds[n] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
		n++;
	int e = errno;
	for (long i = 0; i < n; i++)
		close(fds[i]);
	return say("%ld %s", n, strerrorname_np(e));
}
