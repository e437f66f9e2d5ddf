// SPDX-License-Identifier: Apache-2.0

// What runs before the Go runtime does: one thread, and nothing that starting Go costs (figures in docs/daemon.md).
//
// First the step into a user namespace, if this process is to take it. Then the client of the daemon, which whatever stands in its way
// returns, and the program goes on alone as if it had not been here. Once the request is sent whole it never returns, unless declined: the
// run may have begun.
//
// There is no libc: system calls are made directly, nothing is allocated, no thread-local storage is used, and what is written lies on the
// stack or in said, which is Go's. build.sh makes this one piece of code, which runs wherever it lies. The client has one thread, so that
// blocking a signal blocks it.

#define _GNU_SOURCE
#include <asm/ioctls.h>
#include <asm/termbits.h>
#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "../../../runtime/internal/stub/c/sys.h"

// As in wire.go.
#define MAGIC 0x31787261u // "arx1"
#define MAX_BODY (2u << 20)
#define FDS 4
enum { DECLINE = 'D', RAW = 'R', EXIT = 'E', SIGNAL = 'S' };
struct frame {
	uint32_t kind;
	uint32_t value;
};

enum { E_INTR = 4, E_CONNRESET = 104, NT_GO_BUILD_ID = 4 };

// What Go is told, as in early.go.
struct said {
	char declined[1024]; // why the daemon did not take this command over
	unsigned char build_id[128];
	int32_t build_id_len;
	int32_t asked;  // to unshare(2)
	int32_t failed; // its errno
	int32_t cgroup; // whether it made a cgroup namespace too
};

// The compiler knows these loops and would call libc for them; the barrier keeps it from seeing through them.
#define OPAQUE __asm__ volatile("" ::: "memory")

static size_t length(const char *s)
{
	size_t n = 0;
	for (; s[n]; n++)
		OPAQUE;
	return n;
}

static char *copy(char *to, const void *from, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		to[i] = ((const char *)from)[i];
		OPAQUE;
	}
	return to + n;
}

static int same(const char *a, const char *b)
{
	for (; *a && *a == *b; a++, b++)
		OPAQUE;
	return *a == *b;
}

// after gives what stands in s behind prefix; NULL if it begins otherwise.
static const char *after(const char *s, const char *prefix)
{
	for (; *prefix; s++, prefix++) {
		if (*s != *prefix)
			return NULL;
		OPAQUE;
	}
	return s;
}

static const char *variable(char **envp, const char *name)
{
	const char *v;
	for (; *envp; envp++)
		if ((v = after(*envp, name)) && *v == '=')
			return v + 1;
	return NULL;
}

// The build id: what the go command names the program by, in a note of its own. Two programs of the same one are the same program.
static int build_id(const ElfW(Phdr) *ph, unsigned long n, unsigned char *to, int room)
{
	uintptr_t bias = 0;
	if (!ph)
		return 0;
	for (unsigned long i = 0; i < n; i++)
		if (ph[i].p_type == PT_PHDR)
			bias = (uintptr_t)ph - ph[i].p_vaddr;
	for (unsigned long i = 0; i < n; i++) {
		if (ph[i].p_type != PT_NOTE)
			continue;
		const char *p = (const char *)(bias + ph[i].p_vaddr), *end = p + ph[i].p_memsz;
		while (p + sizeof(ElfW(Nhdr)) <= end) {
			const ElfW(Nhdr) *h = (const void *)p;
			const char *name = p + sizeof *h;
			const char *desc = name + ((h->n_namesz + 3) & ~3u);
			if (h->n_type == NT_GO_BUILD_ID && h->n_namesz == 4 && same(name, "Go") && h->n_descsz <= (uint32_t)room) {
				copy((char *)to, desc, h->n_descsz);
				return (int)h->n_descsz;
			}
			p = desc + ((h->n_descsz + 3) & ~3u);
		}
	}
	return 0;
}

// auxiliary is getauxval(3) on what the kernel put behind the environment.
static unsigned long auxiliary(char **envp, unsigned long type)
{
	const ElfW(auxv_t) *a;
	while (*envp)
		envp++;
	for (a = (const void *)(envp + 1); a->a_type != AT_NULL; a++)
		if (a->a_type == type)
			return a->a_un.a_val;
	return 0;
}

// flag tells whether arg is the global flag name, and where its value is: behind '=', or NULL: the next argument.
static int flag(const char *arg, const char *name, const char **value)
{
	const char *rest;
	if (arg[0] != '-')
		return 0;
	rest = after(arg + (arg[1] == '-' ? 2 : 1), name);
	if (!rest || (*rest != 0 && *rest != '='))
		return 0;
	*value = *rest == '=' ? rest + 1 : NULL;
	return 1;
}

// callers tells of a path that each process sees its own of: the daemon would look at what it has itself.
static int callers(const char *arg)
{
	static const char own[][18] = {"/proc/self", "/proc/thread-self", "/dev/fd", "/dev/std"};
	for (; *arg; arg++)
		for (size_t k = 0; *arg == '/' && k < sizeof own / sizeof *own; k++)
			if (after(arg, own[k]))
				return 1;
	return 0;
}

// find gives the index of "exec" behind the global flags, or 0 where the long way must look.
static int find(int argc, char **argv, const char **run_dir)
{
	static const char known[][12] = {"run-dir", "state-dir", "config", "log-level", "log-format"};
	const char *config = NULL;
	int i = 1;
	while (i < argc && argv[i][0] == '-') {
		const char *value = NULL;
		size_t k = 0;
		while (k < sizeof known / sizeof *known && !flag(argv[i], known[k], &value))
			k++;
		if (k == sizeof known / sizeof *known)
			return 0;
		if (!value) {
			if (++i >= argc)
				return 0;
			value = argv[i];
		}
		if (callers(value))
			return 0;
		if (k == 0)
			*run_dir = value;
		if (k == 2)
			config = value;
		i++;
	}
	if (i >= argc || !same(argv[i], "exec") || (config && !*run_dir))
		return 0;
	if (same(argv[argc - 1], "--generate-bash-completion"))
		return 0;
	for (int j = i + 1; j < argc && !same(argv[j], "--"); j++) {
		const char *ref;
		// in is a command in another run, whose supervisor is asked; pull is done first, as its caller.
		if (same(argv[j], "--no-daemon") || flag(argv[j], "in", &ref) || flag(argv[j], "pull", &ref) || callers(argv[j]))
			return 0;
	}
	return i;
}

// control opens the folder of the sockets; the address of one in it then always fits sun_path.
static int control(const char *run_dir, char **envp)
{
	static const char below[] = "/control", user[] = "/agentrun/control";
	char path[PATH_MAX];
	const char *base = run_dir, *rest = below;
	if (!base || !*base)
		base = variable(envp, "AGENTRUN_RUN_DIR");
	if (!base || !*base) {
		rest = user;
		if (sys0(__NR_geteuid) == 0)
			base = "/run";
		else if (!(base = variable(envp, "XDG_RUNTIME_DIR")) || base[0] != '/')
			return -1;
	}
	if (length(base) + sizeof user >= sizeof path)
		return -1;
	copy(copy(path, base, length(base)), rest, length(rest) + 1);
	return (int)sys4(__NR_openat, AT_FDCWD, path, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
}

static void shut(int fd)
{
	if (fd >= 0)
		sys1(__NR_close, fd);
}

static int reach(int dir)
{
	struct sockaddr_un to;
	struct ucred peer;
	uint32_t len = sizeof peer;
	char number[12], *p = number + sizeof number;
	int s = (int)sys3(__NR_socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (s < 0)
		return -1;
	*--p = 0;
	for (int n = dir; n > 0 || !*p; n /= 10)
		*--p = (char)('0' + n % 10);
	to.sun_family = AF_UNIX;
	copy(copy(copy(to.sun_path, "/proc/self/fd/", 14), p, length(p)), "/exec.handoff", 14);
	// Whoever answers gets our input, output and environment: only root, or who we are, may.
	if (sys3(__NR_connect, s, &to, sizeof to) < 0 || sys5(__NR_getsockopt, s, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0 ||
	    (peer.uid != 0 && peer.uid != (uid_t)sys0(__NR_geteuid))) {
		shut(s);
		return -1;
	}
	return s;
}

static char *put32(char *p, uint32_t v) { return copy(p, &v, 4); }

static char *put(char *p, const void *text, size_t n) { return copy(put32(p, (uint32_t)n), text, n); }

// request is: magic, length of the rest, counts of arguments and variables, then each string behind its length: build id, working directory,
// arguments, variables.
static char *request(const struct said *said, int argc, char **argv, char **envp, size_t *size)
{
	char cwd[PATH_MAX];
	size_t id_len = (size_t)said->build_id_len, n = 16, envc = 0;
	long b;
	char *p;
	if (id_len == 0 || sys2(__NR_getcwd, cwd, sizeof cwd) < 0 || cwd[0] != '/')
		return NULL;
	n += 8 + id_len + length(cwd);
	for (int i = 0; i < argc; i++)
		n += 4 + length(argv[i]);
	for (; envp[envc]; envc++)
		n += 4 + length(envp[envc]);
	if (n - 8 > MAX_BODY)
		return NULL;
	b = sys6(__NR_mmap, 0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (b < 0 && b > -4096)
		return NULL;
	p = put32((char *)b, MAGIC);
	p = put32(p, (uint32_t)(n - 8));
	p = put32(p, (uint32_t)argc);
	p = put32(p, (uint32_t)envc);
	p = put(p, said->build_id, id_len);
	p = put(p, cwd, length(cwd));
	for (int i = 0; i < argc; i++)
		p = put(p, argv[i], length(argv[i]));
	for (size_t i = 0; i < envc; i++)
		p = put(p, envp[i], length(envp[i]));
	*size = n;
	return (char *)b;
}

// submit sends it with our input, output and working directory.
static int submit(int s, const char *b, size_t n, int cwd)
{
	struct {
		struct cmsghdr head;
		int fds[FDS];
	} c;
	struct iovec v = {(void *)b, n};
	struct msghdr m;
	long sent;
	c.head.cmsg_level = SOL_SOCKET;
	c.head.cmsg_type = SCM_RIGHTS;
	c.head.cmsg_len = CMSG_LEN(sizeof c.fds);
	for (int i = 0; i < FDS - 1; i++)
		c.fds[i] = i;
	c.fds[FDS - 1] = cwd;
	m.msg_name = NULL;
	m.msg_namelen = 0;
	m.msg_iov = &v;
	m.msg_iovlen = 1;
	m.msg_control = &c;
	m.msg_controllen = CMSG_SPACE(sizeof c.fds);
	m.msg_flags = 0;
	for (;;) {
		do
			sent = sys3(__NR_sendmsg, s, &m, MSG_NOSIGNAL);
		while (sent == -E_INTR);
		if (sent < 0)
			return -1;
		if ((size_t)sent == v.iov_len)
			return 0;
		v.iov_base = (char *)v.iov_base + sent;
		v.iov_len -= (size_t)sent;
		m.msg_control = NULL;
		m.msg_controllen = 0;
	}
}

// receive gives 0 at the end of the connection, and below that an error.
static long receive(int s, void *to, size_t n)
{
	char *p = to;
	while (n > 0) {
		long got = sys6(__NR_recvfrom, s, (long)p, (long)n, 0, 0, 0);
		if (got == -E_INTR)
			continue;
		if (got <= 0)
			return got;
		p += got;
		n -= (size_t)got;
	}
	return 1;
}

struct terminal {
	struct termios before; // the kernel's
	int is_raw;
};

// Raw mode, but the terminal goes on translating line ends: as alone. The bits are those of cfmakeraw(3).
static void raw(struct terminal *in)
{
	struct termios t;
	if (in->is_raw || sys3(__NR_ioctl, 0, TCGETS, &in->before) < 0)
		return;
	copy((char *)&t, &in->before, sizeof t);
	t.c_iflag &= ~(tcflag_t)(IGNBRK | BRKINT | PARMRK | ISTRIP | INLCR | IGNCR | ICRNL | IXON);
	t.c_oflag |= OPOST;
	t.c_lflag &= ~(tcflag_t)(ECHO | ECHONL | ICANON | ISIG | IEXTEN);
	t.c_cflag &= ~(tcflag_t)(CSIZE | PARENB);
	t.c_cflag |= CS8;
	t.c_cc[VMIN] = 1;
	t.c_cc[VTIME] = 0;
	in->is_raw = sys3(__NR_ioctl, 0, TCSETS, &t) == 0;
}

static void leave(const struct terminal *in, int code)
{
	if (in->is_raw)
		sys3(__NR_ioctl, 0, TCSETS, &in->before);
	for (;;)
		sys1(__NR_exit_group, code);
}

// forward returns only if the daemon declined, or closed the connection with something in it that it had not read (ECONNRESET): where it was
// told of no signal that is of the request, and nothing has begun. taken are the signals that it was told of.
static void forward(struct said *said, int s, int signals, uint64_t *taken)
{
	struct pollfd p[2] = {{s, POLLIN, 0}, {signals, POLLIN, 0}};
	struct terminal in;
	long got;
	in.is_raw = 0;
	for (;;) {
		struct frame f;
		long n = sys5(__NR_ppoll, p, 2, 0, 0, 8);
		if (n < 0 && n != -E_INTR)
			break;
		if (p[1].revents & POLLIN) {
			struct signalfd_siginfo i;
			if (sys3(__NR_read, signals, &i, sizeof i) == sizeof i) {
				f.kind = SIGNAL;
				f.value = i.ssi_signo;
				*taken |= 1ull << (i.ssi_signo - 1);
				(void)sys6(__NR_sendto, s, (long)&f, sizeof f, MSG_NOSIGNAL, 0, 0);
			}
		}
		if (!(p[0].revents & (POLLIN | POLLHUP | POLLERR)))
			continue;
		if ((got = receive(s, &f, sizeof f)) <= 0) {
			static const char unread[] = "it has not read the request";
			if (got != -E_CONNRESET || *taken)
				break;
			copy(said->declined, unread, sizeof unread);
			return;
		}
		if (f.kind == EXIT)
			leave(&in, (int)(f.value & 0xff));
		if (f.kind == RAW)
			raw(&in);
		if (f.kind == DECLINE && f.value < sizeof said->declined && receive(s, said->declined, f.value) > 0) {
			said->declined[f.value] = 0;
			return;
		}
	}
	static const char gone[] = "agentrun: the daemon is gone, and with it the run it had taken over\n"
				   "hint: its log says why (journalctl -u agentrun); AGENTRUN_NO_DAEMON=1 runs alone\n";
	(void)sys3(__NR_write, 2, gone, sizeof gone - 1);
	leave(&in, 125);
}

// ignored tells of a signal that the caller was started to ignore, as nohup(1) starts it, and a shell the jobs of a script in the background.
static int ignored(int signal)
{
	unsigned long action[4]; // the kernel's struct sigaction, its handler first
	return sys4(__NR_rt_sigaction, signal, 0, action, 8) == 0 && action[0] == (unsigned long)SIG_IGN;
}

static void hand_over(struct said *said, int dir, int argc, char **argv, char **envp)
{
	static const int passed[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH};
	uint64_t set = 0, old, taken = 0; // sigset_t of the kernel
	size_t size = 0;
	// The daemon wakes up at connect(2), which takes it longer than what is left to do here.
	int signals = -1, s = reach(dir), cwd = (int)sys4(__NR_openat, AT_FDCWD, ".", O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
	char *b = s < 0 || cwd < 0 ? NULL : request(said, argc, argv, envp, &size);
	for (size_t i = 0; i < sizeof passed / sizeof *passed; i++)
		if (passed[i] > SIGINT || !ignored(passed[i])) // of SIGHUP and SIGINT, as Go knows it alone
			set |= 1ull << (passed[i] - 1);
	if (!b)
		goto alone;
	sys4(__NR_rt_sigprocmask, SIG_BLOCK, &set, &old, 8);
	if ((signals = (int)sys4(__NR_signalfd4, -1, &set, 8, SFD_CLOEXEC)) >= 0 && submit(s, b, size, cwd) == 0)
		forward(said, s, signals, &taken);
	// A daemon that declines has done nothing about those that it was told of.
	for (int n = 1; taken; n++, taken >>= 1)
		if (taken & 1)
			sys2(__NR_kill, sys0(__NR_getpid), n);
	sys4(__NR_rt_sigprocmask, SIG_SETMASK, &old, 0, 8);
alone:
	// Not a whole request, or one declined: nothing has begun there.
	if (b)
		sys2(__NR_munmap, b, size);
	shut(cwd);
	shut(signals);
	shut(s);
}

static void attempt(struct said *said, int argc, char **argv, char **envp)
{
	const char *run_dir = NULL, *no = variable(envp, "AGENTRUN_NO_DAEMON");
	int dir;
	if (!find(argc, argv, &run_dir) || (no && same(no, "1")))
		return;
	for (int i = 0; i < FDS - 1; i++)
		if (sys2(__NR_fcntl, i, F_GETFD) < 0)
			return; // what is opened next would be taken for the caller's
	if ((dir = control(run_dir, envp)) < 0)
		return;
	hand_over(said, dir, argc, argv, envp);
	shut(dir);
}

// A process with several threads can't change its user namespace (unshare(2)), and Go has several as soon as it runs. The variable gives no
// right: whoever can set it can call unshare(2). Go takes it out of the environment (package rootless).
static void enter(struct said *said, const char *wish)
{
	long flags = CLONE_NEWUSER | CLONE_NEWNS;

	if (sys0(__NR_geteuid) == 0)
		return;
	said->asked = 1;
	if ((said->cgroup = *wish == 'c'))
		flags |= CLONE_NEWCGROUP;
	said->failed = (int32_t)-sys1(__NR_unshare, flags);
}

// The stack as the kernel leaves it: argc, arguments, NULL, environment, NULL, auxiliary vector.
__attribute__((section(".text.begin"), used)) void agentrun_early(long *stack, struct said *said)
{
	int argc = (int)stack[0];
	char **argv = (char **)(stack + 1), **envp = argv + argc + 1;
	const char *wish = variable(envp, "_AGENTRUN_UNSHARE");

	said->build_id_len = build_id((const void *)auxiliary(envp, AT_PHDR), auxiliary(envp, AT_PHNUM), said->build_id, sizeof said->build_id);
	if (wish)
		enter(said, wish); // for a run that is alone
	else
		attempt(said, argc, argv, envp);
}
