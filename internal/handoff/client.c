// SPDX-License-Identifier: Apache-2.0

// The client of the daemon, as a constructor: it runs before the Go runtime exists, which saves what starting that costs
// (figures in docs/daemon.md), and it has one thread, so that blocking a signal blocks it. Whatever stands in its way, it returns, and
// the program goes on alone as if it had not been here. Once the request is sent whole it never returns, unless declined: the
// run may have begun.

#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <termios.h>
#include <unistd.h>

#include "client.h"

// As in wire.go.
#define MAGIC 0x31787261u // "arx1"
#define MAX_BODY (2u << 20)
#define FDS 4
enum { DECLINE = 'D', RAW = 'R', EXIT = 'E', SIGNAL = 'S' };
struct frame {
	uint32_t kind;
	uint32_t value;
};

static char declined[1024];

const char *agentrun_declined(void) { return declined; }

// The build id: the linker's digest of the program. Two programs of the same one are the same program.
int agentrun_build_id(unsigned char *to, int room)
{
	const ElfW(Phdr) *ph = (const void *)getauxval(AT_PHDR);
	unsigned long n = getauxval(AT_PHNUM);
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
			if (h->n_type == NT_GNU_BUILD_ID && h->n_namesz == 4 && !memcmp(name, "GNU", 4) && (int)h->n_descsz <= room) {
				memcpy(to, desc, h->n_descsz);
				return (int)h->n_descsz;
			}
			p = desc + ((h->n_descsz + 3) & ~3u);
		}
	}
	return 0;
}

#ifdef __GLIBC__ // other libraries give constructors no arguments; there is no short way then

// flag tells whether arg is the global flag name, and where its value is: behind '=', or NULL: the next argument.
static int flag(const char *arg, const char *name, const char **value)
{
	size_t n = strlen(name);
	if (arg[0] != '-')
		return 0;
	arg += arg[1] == '-' ? 2 : 1;
	if (strncmp(arg, name, n) != 0 || (arg[n] != 0 && arg[n] != '='))
		return 0;
	*value = arg[n] == '=' ? arg + n + 1 : NULL;
	return 1;
}

// find gives the index of "exec" behind the global flags, or 0 where the long way must look.
static int find(int argc, char **argv, const char **run_dir)
{
	static const char *const known[] = {"run-dir", "state-dir", "config", "log-level", "log-format"};
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
		if (k == 0)
			*run_dir = value;
		if (k == 2)
			config = value;
		i++;
	}
	if (i >= argc || strcmp(argv[i], "exec") != 0 || (config && !*run_dir))
		return 0;
	if (strcmp(argv[argc - 1], "--generate-bash-completion") == 0)
		return 0;
	for (int j = i + 1; j < argc && strcmp(argv[j], "--") != 0; j++)
		if (strcmp(argv[j], "--no-daemon") == 0)
			return 0;
	return i;
}

// control opens the folder of the sockets; the address of one in it then always fits sun_path.
static int control(const char *run_dir)
{
	char path[PATH_MAX];
	const char *xdg;
	int n;
	if (!run_dir || !*run_dir)
		run_dir = getenv("AGENTRUN_RUN_DIR");
	if (run_dir && *run_dir)
		n = snprintf(path, sizeof path, "%s/control", run_dir);
	else if (geteuid() == 0)
		n = snprintf(path, sizeof path, "/run/agentrun/control");
	else if ((xdg = getenv("XDG_RUNTIME_DIR")) && xdg[0] == '/')
		n = snprintf(path, sizeof path, "%s/agentrun/control", xdg);
	else
		return -1;
	if (n < 0 || (size_t)n >= sizeof path)
		return -1;
	return open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

static int reach(int dir)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	struct ucred peer;
	socklen_t len = sizeof peer;
	int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (s < 0)
		return -1;
	snprintf(to.sun_path, sizeof to.sun_path, "/proc/self/fd/%d/exec.handoff", dir);
	// Whoever answers gets our input, output and environment: only root, or who we are, may.
	if (connect(s, (struct sockaddr *)&to, sizeof to) < 0 ||
	    getsockopt(s, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0 || (peer.uid != 0 && peer.uid != geteuid())) {
		close(s);
		return -1;
	}
	return s;
}

static char *put32(char *p, uint32_t v)
{
	memcpy(p, &v, 4);
	return p + 4;
}

static char *put(char *p, const void *text, size_t n)
{
	memcpy(put32(p, (uint32_t)n), text, n);
	return p + 4 + n;
}

// request is: magic, length of the rest, counts of arguments and variables, then each string behind its length: build id, working directory,
// arguments, variables.
static char *request(int argc, char **argv, char **envp, size_t *size)
{
	char cwd[PATH_MAX];
	unsigned char id[64];
	int id_len = agentrun_build_id(id, sizeof id);
	size_t n = 16, envc = 0;
	char *b, *p;
	if (id_len == 0 || !getcwd(cwd, sizeof cwd) || cwd[0] != '/')
		return NULL;
	n += 8 + (size_t)id_len + strlen(cwd);
	for (int i = 0; i < argc; i++)
		n += 4 + strlen(argv[i]);
	for (; envp[envc]; envc++)
		n += 4 + strlen(envp[envc]);
	if (n - 8 > MAX_BODY || !(b = malloc(n)))
		return NULL;
	p = put32(b, MAGIC);
	p = put32(p, (uint32_t)(n - 8));
	p = put32(p, (uint32_t)argc);
	p = put32(p, (uint32_t)envc);
	p = put(p, id, (size_t)id_len);
	p = put(p, cwd, strlen(cwd));
	for (int i = 0; i < argc; i++)
		p = put(p, argv[i], strlen(argv[i]));
	for (size_t i = 0; i < envc; i++)
		p = put(p, envp[i], strlen(envp[i]));
	*size = n;
	return b;
}

// submit sends it with our input, output and working directory.
static int submit(int s, const char *b, size_t n, int cwd)
{
	int fds[FDS] = {0, 1, 2, cwd};
	union {
		char space[CMSG_SPACE(sizeof fds)];
		struct cmsghdr align;
	} u = {{0}};
	struct iovec v = {(void *)b, n};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = u.space, .msg_controllen = sizeof u.space};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	ssize_t sent;
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof fds);
	memcpy(CMSG_DATA(c), fds, sizeof fds);
	for (;;) {
		do
			sent = sendmsg(s, &m, MSG_NOSIGNAL);
		while (sent < 0 && errno == EINTR);
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

// receive gives 0 at the end of the connection.
static int receive(int s, void *to, size_t n)
{
	char *p = to;
	while (n > 0) {
		ssize_t got = recv(s, p, n, 0);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return 0;
		p += got;
		n -= (size_t)got;
	}
	return 1;
}

static struct termios before;
static int is_raw;

// Raw mode, but the terminal goes on translating line ends: as alone.
static void raw(void)
{
	struct termios t;
	if (is_raw || tcgetattr(0, &before) < 0)
		return;
	t = before;
	cfmakeraw(&t);
	t.c_oflag |= OPOST;
	is_raw = tcsetattr(0, TCSANOW, &t) == 0;
}

static void leave(int code)
{
	if (is_raw)
		tcsetattr(0, TCSANOW, &before);
	_exit(code);
}

// forward returns only if the daemon declined.
static void forward(int s, int signals)
{
	struct pollfd p[2] = {{s, POLLIN, 0}, {signals, POLLIN, 0}};
	for (;;) {
		struct frame f;
		if (poll(p, 2, -1) < 0 && errno != EINTR)
			break;
		if (p[1].revents & POLLIN) {
			struct signalfd_siginfo i;
			if (read(signals, &i, sizeof i) == sizeof i) {
				f.kind = SIGNAL;
				f.value = i.ssi_signo;
				(void)!send(s, &f, sizeof f, MSG_NOSIGNAL);
			}
		}
		if (!(p[0].revents & (POLLIN | POLLHUP | POLLERR)))
			continue;
		if (!receive(s, &f, sizeof f))
			break;
		if (f.kind == EXIT)
			leave((int)(f.value & 0xff));
		if (f.kind == RAW)
			raw();
		if (f.kind == DECLINE && f.value < sizeof declined && receive(s, declined, f.value)) {
			declined[f.value] = 0;
			return;
		}
	}
	static const char gone[] = "agentrun: the daemon is gone, and with it the run it had taken over\n"
				   "hint: its log says why (journalctl -u agentrun); AGENTRUN_NO_DAEMON=1 runs alone\n";
	(void)!write(2, gone, sizeof gone - 1);
	leave(125);
}

static void hand_over(int dir, int argc, char **argv, char **envp)
{
	sigset_t set, old;
	size_t size;
	int signals = -1, cwd = -1, s = reach(dir);
	char *b = NULL;
	if (s < 0)
		return;
	sigemptyset(&set);
	static const int passed[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH};
	for (size_t i = 0; i < sizeof passed / sizeof *passed; i++)
		sigaddset(&set, passed[i]);
	sigprocmask(SIG_BLOCK, &set, &old);
	if ((signals = signalfd(-1, &set, SFD_CLOEXEC)) >= 0 && (cwd = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC)) >= 0 &&
	    (b = request(argc, argv, envp, &size)) && submit(s, b, size, cwd) == 0)
		forward(s, signals);
	// Not a whole request, or one declined: nothing has begun there.
	free(b);
	if (cwd >= 0)
		close(cwd);
	if (signals >= 0)
		close(signals);
	close(s);
	sigprocmask(SIG_SETMASK, &old, NULL);
}

__attribute__((constructor)) static void agentrun_handoff(int argc, char **argv, char **envp)
{
	const char *run_dir = NULL, *no = getenv("AGENTRUN_NO_DAEMON");
	int dir;
	if (!find(argc, argv, &run_dir) || (no && strcmp(no, "1") == 0) || (dir = control(run_dir)) < 0)
		return;
	hand_over(dir, argc, argv, envp);
	close(dir);
}

#endif
