// SPDX-License-Identifier: Apache-2.0
//
// ringwatch FILE idle|burn|children|storm N
//
// Forks and opens FILE for writing, again and again, and says when that begins and when it ceases to work. Beside
// that N threads compute (burn) or fork as fast as they can (storm), or N children sleep while there may be any.
//
//   fork T, write T       works from T on, in nanoseconds of CLOCK_REALTIME (a time namespace shifts the others)
//   ready                 both work, and the children are there
//   nofork T, nowrite T   refused; T is when the last one that worked had returned
//   closed                both are refused

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static atomic_llong last_fork, last_write;

static long long now(void) {
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void later(atomic_llong *last, long long t) {
	long long was = atomic_load(last);
	while (was < t && !atomic_compare_exchange_weak(last, &was, t)) {}
}

// SIGCHLD is ignored, so a child leaves no zombie and waitpid answers ECHILD once it is gone.
static int try_fork(void) {
	pid_t pid = fork();
	if (pid == 0) _exit(0);
	if (pid < 0) return 0;
	later(&last_fork, now());
	waitpid(pid, NULL, 0);
	return 1;
}

static int try_write(const char *file) {
	int fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0) return 0;
	later(&last_write, now());
	close(fd);
	return 1;
}

static void *burn(void *none) {
	for (volatile long i = 0;; i++) {}
	return none;
}

static void *storm(void *none) {
	for (;;) try_fork();
	return none;
}

static void say(const char *what, long long t) {
	char line[64];
	int n = t ? snprintf(line, sizeof line, "%s %lld\n", what, t) : snprintf(line, sizeof line, "%s\n", what);
	if (write(1, line, n) != n) _exit(1);
}

static void note(int *was, int is, atomic_llong *last, const char *yes, const char *no) {
	if (is != *was) say(is ? yes : no, atomic_load(last));
	*was = is;
}

int main(int argc, char **argv) {
	if (argc != 4) {
		fprintf(stderr, "usage: ringwatch FILE idle|burn|children|storm N\n");
		return 2;
	}
	signal(SIGCHLD, SIG_IGN);
	const char *mode = argv[2];
	int n = atoi(argv[3]);
	void *(*work)(void *) = !strcmp(mode, "burn") ? burn : !strcmp(mode, "storm") ? storm : NULL;
	for (int i = 0; work && i < n; i++) {
		pthread_t t;
		if (pthread_create(&t, NULL, work, NULL)) return 1;
	}
	say("up", 0);
	int forks = 0, writes = 0, ready = 0;
	for (;;) {
		note(&forks, try_fork(), &last_fork, "fork", "nofork");
		note(&writes, try_write(argv[1]), &last_write, "write", "nowrite");
		if (forks && writes && !ready) {
			for (int i = 0; !strcmp(mode, "children") && i < n; i++)
				if (fork() == 0) for (;;) pause();
			say("ready", 0);
			ready = 1;
		}
		if (!forks && !writes && ready) {
			say("closed", 0);
			ready = 0;
		}
		// Not a loop without end: the watcher's own use of the quota would be what is measured.
		nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
	}
}
