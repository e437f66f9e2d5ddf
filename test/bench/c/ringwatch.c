// SPDX-License-Identifier: Apache-2.0
//
// ringwatch FILE idle|burn|children|storm N
//
// Waits until FILE can be opened for writing and then until it may fork, does both again and again until both are
// refused, and says when. Beside that N threads compute from the start (burn), or from "ready" on N threads fork as
// fast as they can (storm) or N children sleep (children).
//
//   write T, fork T       works from T on, in nanoseconds of CLOCK_REALTIME (a time namespace shifts the others)
//   ready                 the children or the storm are there
//   nofork T, nowrite T   refused; T is when the last one that worked had returned
//   closed                both are refused
//
// A thread whose fork is refused forks no more: some twenty refusals in a minute are a breach, which ends an elevation.

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

// Not a loop without end: the watcher's own use of the quota would be what is measured.
static void pause_briefly(void) { nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL); }

static void later(atomic_llong *last, long long t) {
	long long was = atomic_load(last);
	while (was < t && !atomic_compare_exchange_weak(last, &was, t)) {}
}

// SIGCHLD is ignored, so a child leaves no zombie and waitpid answers ECHILD once it is gone.
static long long try_fork(void) {
	pid_t pid = fork();
	if (pid == 0) _exit(0);
	if (pid < 0) return 0;
	long long t = now();
	later(&last_fork, t);
	waitpid(pid, NULL, 0);
	return t;
}

static long long try_write(const char *file) {
	int fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0) return 0;
	long long t = now();
	later(&last_write, t);
	close(fd);
	return t;
}

static void *burn(void *none) {
	for (volatile long i = 0;; i++) {}
	return none;
}

static atomic_int ready;

static void *storm(void *none) {
	while (!atomic_load(&ready)) pause_briefly();
	while (try_fork()) {}
	return none;
}

static void say(const char *what, long long t) {
	char line[64];
	int n = t ? snprintf(line, sizeof line, "%s %lld\n", what, t) : snprintf(line, sizeof line, "%s\n", what);
	if (write(1, line, n) != n) _exit(1);
}

int main(int argc, char **argv) {
	if (argc != 4) {
		fprintf(stderr, "usage: ringwatch FILE idle|burn|children|storm N\n");
		return 2;
	}
	signal(SIGCHLD, SIG_IGN);
	const char *file = argv[1], *mode = argv[2];
	int n = atoi(argv[3]);
	void *(*work)(void *) = !strcmp(mode, "burn") ? burn : !strcmp(mode, "storm") ? storm : NULL;
	for (int i = 0; work && i < n; i++) {
		pthread_t t;
		if (pthread_create(&t, NULL, work, NULL)) return 1;
	}
	say("up", 0);
	long long t;
	while (!(t = try_write(file))) pause_briefly();
	say("write", t);
	// Longer and longer, so that a machine that has no time for the supervisor makes no breach of it.
	for (long ns = 200000; !(t = try_fork()); ns = ns < 20000000 ? 2 * ns : ns) nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
	say("fork", t);
	for (int i = 0; !strcmp(mode, "children") && i < n; i++)
		if (fork() == 0) for (;;) pause();
	atomic_store(&ready, 1);
	say("ready", 0);
	int forks = 1, writes = 1;
	while (forks || writes) {
		if (forks && !try_fork()) {
			forks = 0;
			say("nofork", atomic_load(&last_fork));
		}
		if (writes && !try_write(file)) {
			writes = 0;
			say("nowrite", atomic_load(&last_write));
		}
		pause_briefly();
	}
	say("closed", 0);
	for (;;) pause();
}
