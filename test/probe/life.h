// SPDX-License-Identifier: Apache-2.0
//
// Behaviours: ways to live and to die, for the lifecycle tests. "ready" on a
// line of its own says that the state under test has been reached, so that no
// test has to sleep.

#include "probe.h"

static long t_exit(int argc, char **argv) { _exit((int)num(arg(argc, argv, 1, "0"))); return 0; }

static long t_raise(int argc, char **argv)
{
	int sig = (int)num(arg(argc, argv, 1, "15"));
	signal(sig, SIG_DFL);
	kill(getpid(), sig);
	pause();
	return -1;
}

static long t_ready(int argc, char **argv)
{
	(void)argc, (void)argv;
	dprintf(1, "ready\n");
	return say("ready");
}

// wait: until stdin ends.
static long t_wait(int argc, char **argv)
{
	char b[256];
	(void)argc, (void)argv;
	dprintf(1, "ready\n");
	while (read(0, b, sizeof b) > 0)
		;
	return say("eof");
}

static long t_sleep(int argc, char **argv)
{
	double s = strtod(arg(argc, argv, 1, "3600"), NULL);
	struct timespec t = {(time_t)s, (long)((s - (double)(time_t)s) * 1e9)};
	dprintf(1, "ready\n");
	while (nanosleep(&t, &t) < 0 && errno == EINTR)
		;
	return say("slept");
}

static long t_spin(int argc, char **argv)
{
	double limit = strtod(arg(argc, argv, 1, "3600"), NULL);
	struct timespec t;
	dprintf(1, "ready\n");
	do
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	while ((double)t.tv_sec + (double)t.tv_nsec / 1e9 < limit);
	return say("spun");
}

// stubborn: ignores every signal that can be ignored.
static long t_stubborn(int argc, char **argv)
{
	(void)argc, (void)argv;
	for (int i = 1; i < 65; i++)
		signal(i, SIG_IGN);
	dprintf(1, "ready\n");
	for (;;)
		pause();
	return 0;
}

static volatile sig_atomic_t caught;
static void catch (int sig) { caught = sig; }

// trap: waits for one signal and ends with 40 + its number.
static long t_trap(int argc, char **argv)
{
	(void)argc, (void)argv;
	sigset_t none, all;
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	for (int i = 1; i < 32; i++)
		signal(i, catch);
	sigemptyset(&none);
	dprintf(1, "ready\n");
	while (!caught || caught == SIGCHLD)
		sigsuspend(&none);
	_exit(40 + caught);
	return 0;
}

// winch: prints the window size at once and again after each SIGWINCH.
static long t_winch(int argc, char **argv)
{
	(void)argc, (void)argv;
	sigset_t set, none;
	struct winsize w;
	sigemptyset(&set), sigaddset(&set, SIGWINCH), sigemptyset(&none);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signal(SIGWINCH, catch);
	for (int i = 0; i < 2; i++) {
		ioctl(0, TIOCGWINSZ, &w);
		dprintf(1, "size %ux%u\n", w.ws_col, w.ws_row);
		if (i == 0)
			sigsuspend(&none);
	}
	return say("done");
}

// alloc MB: touch that much memory and keep it.
static long t_alloc(int argc, char **argv)
{
	size_t n = (size_t)num(arg(argc, argv, 1, "1")) << 20;
	char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return -1;
	for (size_t i = 0; i < n; i += 4096)
		p[i] = 1;
	return say("%zu", n >> 20);
}

// output BYTES [FD]
static long t_output(int argc, char **argv)
{
	static char line[4096];
	long left = num(arg(argc, argv, 1, "4096"));
	int fd = (int)num(arg(argc, argv, 2, "1"));
	memset(line, 'x', sizeof line);
	line[sizeof line - 1] = '\n';
	while (left > 0) {
		ssize_t n = write(fd, line, left < (long)sizeof line ? (size_t)left : sizeof line);
		if (n < 0)
			return -1;
		left -= n;
	}
	return say("written");
}

// flood N: N refused calls, as fast as they come.
static long t_flood(int argc, char **argv)
{
	long n = num(arg(argc, argv, 1, "10000")), refused = 0;
	for (long i = 0; i < n; i++)
		refused += syscall(SYS_mount, "none", SCRATCH, "tmpfs", 0, 0) < 0;
	return say("%ld", refused);
}

static void *flooder(void *n)
{
	for (long i = (long)(intptr_t)n; i > 0; i--)
		syscall(SYS_mount, "none", SCRATCH, "tmpfs", 0, 0);
	return NULL;
}

// flood-threads THREADS N: the same from many threads, with a signal storm
// that interrupts the waiting calls.
static long t_flood_threads(int argc, char **argv)
{
	long threads = num(arg(argc, argv, 1, "8")), n = num(arg(argc, argv, 2, "1000"));
	pthread_t th[64];
	struct sigaction sa = {.sa_handler = catch, .sa_flags = SA_RESTART};
	struct itimerval storm = {{0, 1000}, {0, 1000}};
	sigaction(SIGALRM, &sa, NULL);
	setitimer(ITIMER_REAL, &storm, NULL);
	for (long i = 0; i < threads && i < 64; i++)
		if (pthread_create(&th[i], NULL, flooder, (void *)(intptr_t)n))
			return say("no thread");
	for (long i = 0; i < threads && i < 64; i++)
		pthread_join(th[i], NULL);
	return say("done");
}

// echo: stdin to stdout until it ends.
static long t_echo(int argc, char **argv)
{
	char b[65536];
	ssize_t n;
	(void)argc, (void)argv;
	while ((n = read(0, b, sizeof b)) > 0)
		for (ssize_t w, at = 0; at < n; at += w)
			if ((w = write(1, b + at, (size_t)(n - at))) < 0)
				return -1;
	_exit(0);
}

static long t_stderr(int argc, char **argv)
{
	dprintf(2, "%s\n", arg(argc, argv, 1, "to stderr"));
	return say("written");
}
