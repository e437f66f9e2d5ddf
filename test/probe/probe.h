// SPDX-License-Identifier: Apache-2.0
//
// What every section of the probe shares: how a try reports its outcome.

#ifndef AGENTRUN_PROBE_H
#define AGENTRUN_PROBE_H

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

// A try returns what the system call did: below 0 with errno set for a
// refusal, 0 or more for success, or OBSERVED after say() for a value.
#define OBSERVED 0x0b5e57ed
// A refusal without a system call behind it, e.g. "no such file was found".
#define USAGE 0x05a6e000

typedef long (*try_fn)(int argc, char **argv);

struct try {
	const char *name;
	try_fn fn;
	const char *args; // for usage
};

static char value[1 << 16];

__attribute__((format(printf, 1, 2))) static long say(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(value, sizeof value, fmt, ap);
	va_end(ap);
	return OBSERVED;
}

// add appends to the value, items apart by '|'.
__attribute__((format(printf, 1, 2))) static void add(const char *fmt, ...)
{
	size_t n = strlen(value);
	va_list ap;
	if (n && n < sizeof value - 1)
		value[n++] = '|';
	va_start(ap, fmt);
	vsnprintf(value + n, sizeof value - n, fmt, ap);
	va_end(ap);
}

static long num(const char *s) { return strtol(s, NULL, 0); }

static const char *arg(int argc, char **argv, int i, const char *otherwise)
{
	return i < argc ? argv[i] : otherwise;
}

// keep closes what a successful try opened, so that tries run in one process
// do not feel each other.
static long keep(long fd)
{
	if (fd >= 0)
		close((int)fd);
	return fd;
}

static long slurp(const char *path, char *buf, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t n = 0;
	ssize_t r;
	if (fd < 0)
		return -1;
	while (n < size - 1 && (r = read(fd, buf + n, size - 1 - n)) > 0)
		n += (size_t)r;
	buf[n] = 0;
	close(fd);
	return (long)n;
}

// SCRATCH is the one writable place that every ring has (M-2).
#define SCRATCH "/tmp/sandbox"

#endif
