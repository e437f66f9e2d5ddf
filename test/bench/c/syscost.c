// SPDX-License-Identifier: Apache-2.0
//
// syscost calls N     prints what one system call costs here, one "name nanoseconds" a line
// syscost spawn N     the same for fork + exec + wait of itself
// syscost await …     the same, begun as soon as it may fork
// syscost hold        says "up" and lives until its standard input ends, for whoever weighs its keeper
//
// Static, so that it runs in any root view, and without a loop around the clock: each figure is one span
// over N calls. The wall clock counts, not processor time: waiting for a supervisor's answer is a cost.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *self;
static int zero;

static void die(const char *what) {
	perror(what);
	exit(1);
}

static void do_getpid(void) { syscall(SYS_getpid); } // past any cache of libc's

static void do_openat(void) {
	int fd = openat(AT_FDCWD, "/usr/bin/true", O_RDONLY | O_CLOEXEC);
	if (fd < 0) die("openat /usr/bin/true");
	close(fd);
}

static void do_read(void) {
	char c;
	if (read(zero, &c, 1) != 1) die("read /dev/zero");
}

// Through the vDSO, without entering the kernel; a time namespace takes another path there.
static void do_clock(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
}

static void do_spawn(void) {
	int status;
	pid_t pid = fork();
	if (pid < 0) die("fork");
	if (pid == 0) {
		execve(self, (char *[]){(char *)self, "nothing", NULL}, (char *[]){NULL});
		_exit(127);
	}
	if (waitpid(pid, &status, 0) != pid || status != 0) die("spawned program");
}

static void measure(const char *name, void (*call)(void), long n) {
	struct timespec a, b;
	for (long i = 0; i < n / 100 + 1; i++) call();
	clock_gettime(CLOCK_MONOTONIC, &a);
	for (long i = 0; i < n; i++) call();
	clock_gettime(CLOCK_MONOTONIC, &b);
	double ns = (b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec);
	printf("%s %.2f\n", name, ns / n);
}

static int hold(void) {
	char buf[64];
	if (write(1, "up\n", 3) != 3) return 1;
	while (read(0, buf, sizeof buf) > 0) {}
	return 0;
}

static void await_fork(void) {
	for (;;) {
		pid_t pid = fork();
		if (pid == 0) _exit(0);
		if (pid > 0) {
			waitpid(pid, NULL, 0);
			return;
		}
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
}

int main(int argc, char **argv) {
	self = argv[0];
	if (argc > 1 && !strcmp(argv[1], "await")) {
		await_fork();
		argc--;
		argv++;
	}
	const char *what = argc > 1 ? argv[1] : "";
	long n = argc > 2 ? atol(argv[2]) : 0;
	if (!strcmp(what, "nothing")) return 0;
	if (!strcmp(what, "hold")) return hold();
	if (n <= 0) {
		fprintf(stderr, "usage: syscost calls N | spawn N | hold\n");
		return 2;
	}
	if (!strcmp(what, "spawn")) {
		measure("fork+exec+wait", do_spawn, n);
		return 0;
	}
	zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	if (zero < 0) die("/dev/zero");
	measure("getpid", do_getpid, n);
	measure("openat+close", do_openat, n);
	measure("read", do_read, n);
	measure("clock_gettime", do_clock, n);
	return 0;
}
