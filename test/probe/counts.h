// SPDX-License-Identifier: Apache-2.0
//
// Threat class "the host's shared counters": what the kernel counts by user or for all, taken until it is refused, and kept to the
// process's end, so that the test can look at the host meanwhile.

#include "probe.h"
#include <sys/inotify.h>

// hold-inotify: instances until refused.
static long t_hold_inotify(int argc, char **argv)
{
	long n = 0;
	(void)argc, (void)argv;
	while (inotify_init1(IN_CLOEXEC) >= 0)
		n++;
	return say("%ld %s", n, strerrorname_np(errno));
}

// hold-signals N: pending ones to itself, until refused.
static long t_hold_signals(int argc, char **argv)
{
	sigset_t set;
	union sigval v = {0};
	long n = 0, max = num(arg(argc, argv, 1, "100000"));
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN);
	sigprocmask(SIG_BLOCK, &set, NULL);
	while (n < max && sigqueue(getpid(), SIGRTMIN, v) == 0)
		n++;
	return say("%ld %s", n, n < max ? strerrorname_np(errno) : "-");
}

// hold-timers N: each holds a place among the pending signals, without any signal.
static long t_hold_timers(int argc, char **argv)
{
	struct sigevent ev = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 1};
	timer_t id;
	long n = 0, max = num(arg(argc, argv, 1, "100000"));
	while (n < max && timer_create(CLOCK_MONOTONIC, &ev, &id) == 0)
		n++;
	return say("%ld %s", n, n < max ? strerrorname_np(errno) : "-");
}
