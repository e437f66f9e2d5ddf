// SPDX-License-Identifier: Apache-2.0
//
// A life on command: tries one after the other as stdin names them, in one process that keeps what it has got
// (open files, mappings, children) while its ring changes.

#include "probe.h"

static int held_fd = -1;
static char *held_map;

// hold: a file open for writing until release.
static long t_hold(int argc, char **argv)
{
	return held_fd = open(arg(argc, argv, 1, "/workspace/held"), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
}

static long t_write_held(int argc, char **argv)
{
	(void)argc, (void)argv;
	return write(held_fd, "x", 1);
}

static long t_release(int argc, char **argv)
{
	(void)argc, (void)argv;
	if (held_map)
		munmap(held_map, 4096);
	held_map = NULL;
	return held_fd < 0 ? 0 : close(held_fd);
}

// keep: a file or folder open for reading, for good.
static long t_keep(int argc, char **argv)
{
	int fd = open(arg(argc, argv, 1, "/workspace"), O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	snprintf(value, sizeof value, "%d", fd);
	return OBSERVED;
}

// send: what keep has opened waits in a socket.
static long t_send(int argc, char **argv)
{
	int pair[2], fd = (int)num(arg(argc, argv, 1, "0"));
	char control[CMSG_SPACE(sizeof fd)] = {0};
	struct iovec one = {"x", 1};
	struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	*c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0 || sendmsg(pair[0], &m, 0) < 0)
		return -1;
	return close(fd);
}

static long t_chdir(int argc, char **argv)
{
	return chdir(arg(argc, argv, 1, "/"));
}

// map: a shared writable mapping and no descriptor.
static long t_map(int argc, char **argv)
{
	int fd = open(arg(argc, argv, 1, "/workspace/mapped"), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0 || ftruncate(fd, 4096) < 0)
		return -1;
	held_map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return held_map == MAP_FAILED ? -1 : 0;
}

// child: a process that lives on.
static long t_child(int argc, char **argv)
{
	(void)argc, (void)argv;
	pid_t p = fork();
	if (!p)
		for (;;)
			pause();
	return p;
}

// children: a child that forks N-1 others, so that all of them are there when it says so.
static long t_children(int argc, char **argv)
{
	long n = num(arg(argc, argv, 1, "1"));
	for (long i = 0; i < n; i++) {
		pid_t p = fork();
		if (p < 0)
			return -1;
		if (!p)
			for (;;)
				pause();
	}
	return 0;
}

// keep-memory: MB of it, for good.
static long t_keep_memory(int argc, char **argv)
{
	size_t n = (size_t)num(arg(argc, argv, 1, "1")) << 20;
	char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return -1;
	memset(p, 1, n);
	return 0;
}

// reap: collects what has ended, as any parent should.
static long t_reap(int argc, char **argv)
{
	(void)argc, (void)argv;
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
	return 0;
}

static void *fork_for_ever(void *unused)
{
	(void)unused;
	for (;;) {
		pid_t p = fork();
		if (!p)
			for (;;)
				pause();
		if (p > 0) { // one at a time each, so that the pids limit never stops it
			kill(p, SIGKILL);
			waitpid(p, NULL, 0);
		}
	}
	return NULL;
}

// storm: N threads that fork for ever.
static long t_storm(int argc, char **argv)
{
	for (long n = num(arg(argc, argv, 1, "4")); n > 0; n--) {
		pthread_t t;
		if ((errno = pthread_create(&t, NULL, fork_for_ever, NULL)))
			return -1;
	}
	return 0;
}

static void *hold_until_refused(void *file)
{
	int fd = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	if (fd < 0)
		return NULL;
	for (;;) {
		pid_t p = fork();
		if (!p)
			_exit(0);
		if (p < 0 && errno == EPERM)
			break;
		if (p > 0)
			waitpid(p, NULL, 0);
		usleep(500);
	}
	usleep(5000); // so that the demotion meets it open
	if (write(fd, "x", 1) < 0)
		perror("write");
	close(fd);
	return NULL;
}

// writer: a thread that has a file open for writing and lets go of it soon after it was refused a process.
static long t_writer(int argc, char **argv)
{
	static char file[256];
	pthread_t t;
	snprintf(file, sizeof file, "%s", arg(argc, argv, 1, "/workspace/log"));
	return (errno = pthread_create(&t, NULL, hold_until_refused, file)) ? -1 : 0;
}

static void *burn(void *unused)
{
	for (volatile unsigned long n = 0;; n++)
		;
	return unused;
}

// burn: N threads that use up whatever processor time there is.
static long t_burn(int argc, char **argv)
{
	for (long n = num(arg(argc, argv, 1, "2")); n > 0; n--) {
		pthread_t t;
		if ((errno = pthread_create(&t, NULL, burn, NULL)))
			return -1;
	}
	return 0;
}

static int attempt(int argc, char **argv);

// live: tries from stdin, one a line; "ready" when it listens.
static long t_live(int argc, char **argv)
{
	char line[1024];
	(void)argc, (void)argv;
	dprintf(1, "ready\n");
	for (size_t n = 0;;) {
		ssize_t got = read(0, line + n, 1);
		if (got <= 0)
			return say("eof");
		if (line[n] != '\n') {
			n += n < sizeof line - 1;
			continue;
		}
		line[n] = 0;
		n = 0;
		char *words[16];
		int count = 0;
		for (char *w = strtok(line, " "); w && count < 16; w = strtok(NULL, " "))
			words[count++] = w;
		if (count)
			attempt(count, words);
	}
}
