// SPDX-License-Identifier: Apache-2.0
//
// The hostile mix (test/hostile): agents that do one harm as fast as they can until they are ended, and one that
// works quietly and measures how long its work takes.

#include "probe.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/inotify.h>

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int dial(const char *host, int port)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	struct timeval limit = {.tv_sec = 5};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	inet_pton(AF_INET, host, &to.sin_addr);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	if (fd >= 0 && connect(fd, (void *)&to, sizeof to) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

// post sends one request on a connection of its own and returns the status, below 0 when there was none.
static int post(int keep_open, int *conn, const char *path, const char *body)
{
	char b[65536];
	int status = -1;
	if (*conn < 0 && (*conn = dial("127.0.0.1", 7600)) < 0)
		return -1;
	int n = snprintf(b, sizeof b, "POST %s HTTP/1.1\r\nHost: 127.0.0.1:7600\r\nContent-Type: application/json\r\n"
		"Content-Length: %zu\r\n%s\r\n%s", path, strlen(body), keep_open ? "" : "Connection: close\r\n", body);
	ssize_t got;
	if (write(*conn, b, (size_t)n) == n && (got = read(*conn, b, sizeof b - 1)) > 0) {
		b[got] = 0;
		sscanf(b, "HTTP/1.1 %d", &status);
	}
	if (!keep_open || status < 0)
		close(*conn), *conn = -1;
	return status;
}

// unit is about two milliseconds of ordinary work: some arithmetic, a file written, read and removed.
static unsigned unit(const char *dir)
{
	static unsigned char page[4096];
	char name[PATH_MAX];
	unsigned h = 2166136261u;
	for (int i = 0; i < 1000000; i++)
		h = (h ^ page[(unsigned)i % sizeof page]) * 16777619u;
	snprintf(name, sizeof name, "%s/unit-%d", dir, getpid());
	int fd = open(name, O_CREAT | O_RDWR | O_TRUNC | O_CLOEXEC, 0600);
	if (fd >= 0) {
		page[h % sizeof page] = (unsigned char)h;
		if (write(fd, page, sizeof page) < 0 || pread(fd, page, sizeof page, 0) < 0)
			h++;
		close(fd), unlink(name);
	}
	return h;
}

// pulse SECONDS DIR [calls]: ten units a second and, with calls, a tool call each four seconds. It tells the time from
// when each was due to its end, in microseconds: "u 1250" and "c 3400".
static long t_pulse(int argc, char **argv)
{
	double end = now() + strtod(arg(argc, argv, 1, "10"), NULL), due = now();
	const char *dir = arg(argc, argv, 2, SCRATCH);
	int calls = argc > 3;
	unsigned h = 0;
	for (long i = 0; due < end; i++, due += 0.1) {
		double wait = due - now();
		if (wait > 0)
			usleep((useconds_t)(wait * 1e6));
		h += unit(dir);
		dprintf(1, "u %.0f\n", (now() - due) * 1e6);
		if (calls && i % 40 == 20) {
			int conn = -1;
			double from = now();
			int status = post(0, &conn, "/internal/tools/math", "{\"args\":{\"expression\":\"6*7\"}}");
			dprintf(1, "%s %.0f\n", status == 200 ? "c" : "f", (now() - from) * 1e6);
			due = now() > due + 0.1 ? now() : due;
		}
	}
	return say("%u", h & 1);
}

static void h_forks(void)
{
	if (fork() == 0 || syscall(SYS_vfork) == 0 || syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) == 0)
		_exit(0);
}

static void h_calls(void)
{
	static const long nr[] = {SYS_mount, SYS_ptrace, SYS_bpf, SYS_unshare, SYS_setns, SYS_keyctl, SYS_io_uring_setup, SYS_userfaultfd,
		SYS_perf_event_open, SYS_chroot, SYS_pivot_root, SYS_kexec_load, SYS_init_module, SYS_swapon, SYS_reboot};
	syscall(nr[(unsigned)rand() % (sizeof nr / sizeof *nr)], rand(), rand(), rand(), rand(), rand());
}

static const char *kind_of; // what hostile was asked for

static void h_execs(void)
{
	char name[64], *again[] = {"probe", "hostile", (char *)kind_of, NULL}, *none[] = {NULL};
	snprintf(name, sizeof name, "/usr/bin/x%d", rand());
	execve(rand() % 2 ? name : "/proc/self/exe", again, none);
}

static int conn_of = -1;

static void h_names(void)
{
	char path[128];
	snprintf(path, sizeof path, "/internal/tools/t%d%d", rand(), rand());
	post(1, &conn_of, path, "{\"args\":{}}");
}

static void h_arguments(void)
{
	char body[256];
	snprintf(body, sizeof body, "{\"args\":{\"x%d\":\"%d\"}}", rand(), rand());
	post(1, &conn_of, "/internal/tools/math", body);
}

static void h_routes(void)
{
	char path[128], body[256];
	snprintf(path, sizeof path, rand() % 2 ? "/v1/chat/completions" : "/internal/r%d", rand());
	snprintf(body, sizeof body, "{\"model\":\"m%d\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", rand());
	post(1, &conn_of, path, body);
}

static void h_asks(void)
{
	char body[256];
	snprintf(body, sizeof body, "{\"ring\":%d,\"ttl\":\"60s\",\"reason\":\"r%d\"}", rand() % 4, rand());
	post(1, &conn_of, "/internal/elevation", body);
}

static void h_connections(void)
{
	char host[64];
	snprintf(host, sizeof host, "%d.%d.%d.%d", rand() % 223 + 1, rand() % 256, rand() % 256, rand() % 255);
	int fd = dial(host, rand() % 2 ? 80 : 443);
	if (fd >= 0) {
		char b[256];
		int n = snprintf(b, sizeof b, "GET / HTTP/1.1\r\nHost: h%d.example\r\n\r\n", rand());
		if (write(fd, b, (size_t)n) < 0 || read(fd, b, sizeof b) < 0)
			n = 0;
		close(fd);
	}
}

static void h_lookups(void)
{
	static int fd = -1;
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(53), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	unsigned char q[64] = {(unsigned char)rand(), (unsigned char)rand(), 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 12};
	if (fd < 0)
		fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	for (int i = 13; i < 25; i++)
		q[i] = (unsigned char)('a' + rand() % 26);
	memcpy(q + 25, "\7example\0\0\1\0\1", 13);
	sendto(fd, q, 38, 0, (void *)&to, sizeof to);
	while (recv(fd, q, sizeof q, MSG_DONTWAIT) > 0)
		;
}

static void h_inotify(void)
{
	int fd = inotify_init1(IN_CLOEXEC);
	if (fd < 0 || inotify_add_watch(fd, SCRATCH, IN_ALL_EVENTS) < 0)
		usleep(1000);
}

// Full TCP pairs and full UDP sockets, held until the descriptors are used up; then some are let go.
static void h_sockets(void)
{
	static char page[1 << 16];
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof at;
	int big = 8 << 20, l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), c = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (l < 0 || c < 0 || bind(l, (void *)&at, sizeof at) < 0 || listen(l, 1) < 0 || getsockname(l, (void *)&at, &len) < 0) {
		for (int fd = 100; fd < 600; fd++)
			close(fd);
		return;
	}
	setsockopt(c, SOL_SOCKET, SO_SNDBUF, &big, sizeof big);
	connect(c, (void *)&at, sizeof at);
	int a = accept4(l, NULL, NULL, SOCK_CLOEXEC);
	setsockopt(a, SOL_SOCKET, SO_RCVBUF, &big, sizeof big);
	close(l);
	while (write(c, page, sizeof page) > 0)
		;
	int u = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	at.sin_port = 0;
	if (u >= 0 && bind(u, (void *)&at, sizeof at) == 0 && getsockname(u, (void *)&at, &len) == 0)
		for (int i = 0; i < 256 && sendto(u, page, 60000, 0, (void *)&at, sizeof at) > 0; i++)
			;
}

static void h_huge(void)
{
	char *p = mmap(NULL, 32 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	if (p != MAP_FAILED)
		for (size_t i = 0; i < 32 << 20; i += 2 << 20)
			p[i] = 1;
}

static void h_locks(void)
{
	static int fd = -1;
	static off_t at;
	if (fd < 0)
		fd = open(SCRATCH "/locks", O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at += 2, .l_len = 1};
	if (fcntl(fd, F_SETLK, &l) < 0)
		usleep(1000);
}

static void h_output(void)
{
	static char page[1 << 14];
	memset(page, '\a', sizeof page);
	if (write(1, page, sizeof page) < 0)
		_exit(1);
}

static void *spin_for_ever(void *unused)
{
	for (;;)
		__asm__ volatile("");
	return unused;
}

static void h_burn(void)
{
	pthread_t t;
	if (pthread_create(&t, NULL, spin_for_ever, NULL))
		spin_for_ever(NULL);
}

static void h_memory(void)
{
	static char page[1 << 20];
	int fd = open(SCRATCH "/big", O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	for (int i = 0; i < 60 && write(fd, page, sizeof page) > 0; i++)
		;
	close(fd), unlink(SCRATCH "/big");
	char *p = mmap(NULL, 120 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p != MAP_FAILED) {
		for (size_t i = 0; i < 120 << 20; i += 4096)
			p[i] = 1;
		munmap(p, 120 << 20);
	}
}

static void h_signals(void)
{
	timer_t t;
	struct sigevent e = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN};
	union sigval v = {0};
	sigset_t all;
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, NULL);
	if (timer_create(CLOCK_MONOTONIC, &e, &t) < 0 && sigqueue(getpid(), SIGRTMIN + 1, v) < 0)
		usleep(1000);
}

static void h_pipes(void)
{
	static char page[1 << 16];
	int p[2], e;
	if (pipe2(p, O_NONBLOCK | O_CLOEXEC) < 0) {
		for (int fd = 10; fd < 1000; fd++)
			close(fd);
		return;
	}
	fcntl(p[1], F_SETPIPE_SZ, 1 << 20);
	while (write(p[1], page, sizeof page) > 0)
		;
	if ((e = epoll_create1(EPOLL_CLOEXEC)) >= 0) {
		struct epoll_event ev = {.events = EPOLLIN};
		epoll_ctl(e, EPOLL_CTL_ADD, p[0], &ev);
	}
}

static void h_files(void)
{
	char a[128], b[128];
	struct stat st;
	snprintf(a, sizeof a, SCRATCH "/f%d", rand() % 3000);
	snprintf(b, sizeof b, "/usr/lib/none-%d", rand());
	keep(open(a, O_CREAT | O_RDWR | O_CLOEXEC, 0600));
	stat(b, &st); // a negative entry each
	if (rand() % 8 == 0)
		unlink(a);
}

static const struct { const char *name; void (*once)(void); } harms[] = {
	{"forks", h_forks}, {"calls", h_calls}, {"execs", h_execs}, {"names", h_names}, {"arguments", h_arguments}, {"routes", h_routes},
	{"asks", h_asks}, {"connections", h_connections}, {"lookups", h_lookups}, {"inotify", h_inotify}, {"sockets", h_sockets}, {"huge", h_huge},
	{"locks", h_locks}, {"output", h_output}, {"burn", h_burn}, {"memory", h_memory}, {"signals", h_signals}, {"pipes", h_pipes}, {"files", h_files},
};

// hostile KIND|all: does it until it is ended; all takes another each second.
static long t_hostile(int argc, char **argv)
{
	const char *kind = kind_of = arg(argc, argv, 1, "all");
	size_t n = sizeof harms / sizeof *harms, i = 0;
	int all = !strcmp(kind, "all");
	signal(SIGPIPE, SIG_IGN);
	srand((unsigned)getpid() ^ (unsigned)(now() * 1e6));
	while (!all && i < n && strcmp(harms[i].name, kind))
		i++;
	if (i == n)
		return USAGE;
	for (;;) {
		if (all)
			do
				i = (size_t)rand() % n;
			while (!strcmp(harms[i].name, "burn") || !strcmp(harms[i].name, "output"));
		for (double until = now() + 1; now() < until;)
			harms[i].once();
	}
}

static struct pollfd polled[65536];
static long polls;

static void *poll_for_ever(void *timer)
{
	(void)timer;
	poll(polled, (nfds_t)polls, -1);
	return NULL;
}

// polls PROCESSES THREADS N SECONDS: all threads poll a timer N times for what it never has, so they sleep on when it expires, which it
// does all the time, while nothing of ours runs. Answers how often.
static long t_polls(int argc, char **argv)
{
	long processes = num(arg(argc, argv, 1, "1")), threads = num(arg(argc, argv, 2, "1")), n = 0;
	int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
	struct itimerspec soon = {.it_value = {.tv_nsec = 100000}};
	double end = now() + (double)num(arg(argc, argv, 4, "3"));
	struct rlimit all;
	if (getrlimit(RLIMIT_NOFILE, &all) == 0)
		all.rlim_cur = all.rlim_max, setrlimit(RLIMIT_NOFILE, &all);
	polls = num(arg(argc, argv, 3, "1"));
	for (long i = 0; i < polls && i < 65536; i++)
		polled[i] = (struct pollfd){.fd = timer, .events = POLLPRI};
	for (long p = 1; p < processes; p++)
		if (fork() == 0) {
			processes = 0;
			break;
		}
	pthread_attr_t small;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 65536);
	for (long i = 0; i < threads; i++) {
		pthread_t t;
		if ((errno = pthread_create(&t, &small, poll_for_ever, NULL)))
			return -1;
	}
	if (!processes)
		for (;;)
			pause();
	for (; now() < end; n++) {
		timerfd_settime(timer, 0, &soon, NULL);
		usleep(150);
	}
	return say("%ld", n);
}
