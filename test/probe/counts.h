// SPDX-License-Identifier: Apache-2.0
//
// Threat class "the host's shared counters": what the kernel counts by user or for all, taken until it is refused, and kept to the
// process's end, so that the test can look at the host meanwhile.

#include "probe.h"
#include <arpa/inet.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
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

// Sockets: what is sent and never read. Each answers MiB sent, and how it ended; the host's own counters tell what it holds.
static char chunk[1 << 16];

static long sent(int fd)
{
	long n, total = 0;
	for (int idle = 0; idle < 2;) {
		n = send(fd, chunk, sizeof chunk, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n > 0)
			total += n, idle = 0;
		else
			idle++, usleep(500);
	}
	return total;
}

static int tcp_listener(struct sockaddr_in *at)
{
	socklen_t len = sizeof *at;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	memset(at, 0, sizeof *at);
	at->sin_family = AF_INET, at->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd < 0 || bind(fd, (void *)at, sizeof *at) < 0 || listen(fd, 4096) < 0 || getsockname(fd, (void *)at, &len) < 0)
		return -1;
	return fd;
}

// hold-tcp N [accept|leave|close] [BUFFER]: connections to itself, both ends kept, or never accepted, or closed at the end that sends.
static long t_hold_tcp(int argc, char **argv)
{
	long n = 0, total = 0, max = num(arg(argc, argv, 1, "1000")), buffer = num(arg(argc, argv, 3, "0"));
	const char *how = arg(argc, argv, 2, "accept");
	struct sockaddr_in at;
	struct rlimit all;
	int l;
	if (getrlimit(RLIMIT_NOFILE, &all) == 0)
		all.rlim_cur = all.rlim_max, setrlimit(RLIMIT_NOFILE, &all);
	if ((l = tcp_listener(&at)) < 0)
		return -1;
	errno = 0;
	for (; n < max; n++) {
		struct timeval limit = {.tv_sec = 1};
		int b = (int)buffer, a, c = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (c < 0)
			break;
		setsockopt(c, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
		if (b)
			setsockopt(c, SOL_SOCKET, SO_SNDBUF, &b, sizeof b), setsockopt(l, SOL_SOCKET, SO_RCVBUF, &b, sizeof b);
		if (connect(c, (void *)&at, sizeof at) < 0)
			break;
		if (!strcmp(how, "accept")) {
			if ((a = accept(l, NULL, NULL)) < 0)
				break;
			total += sent(a);
		}
		total += sent(c);
		if (!strcmp(how, "close"))
			close(c);
		errno = 0;
	}
	return say("%ld %ld %s", n, total >> 20, errno ? strerrorname_np(errno) : "-");
}

// hold-timewait N: connections to itself, closed.
static long t_hold_timewait(int argc, char **argv)
{
	long n = 0, max = num(arg(argc, argv, 1, "1000"));
	struct sockaddr_in at;
	int l = tcp_listener(&at);
	if (l < 0)
		return -1;
	for (; n < max; n++) {
		int a, c = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (c < 0 || connect(c, (void *)&at, sizeof at) < 0 || (a = accept(l, NULL, NULL)) < 0)
			return -1;
		close(c), close(a);
	}
	return say("%ld", n);
}

// hold-keys: as many keys for peers (TCP_MD5SIG) as one socket takes.
static long t_hold_keys(int argc, char **argv)
{
	(void)argc, (void)argv;
	struct { struct sockaddr_storage peer; uint16_t flags, size; uint32_t link; uint8_t key[80]; } k = {.size = 16};
	struct sockaddr_in *peer = (void *)&k.peer;
	long n = 0;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	for (peer->sin_family = AF_INET; n < 100000; n++) {
		peer->sin_addr.s_addr = htonl(0x0a000001 + n);
		if (setsockopt(fd, IPPROTO_TCP, 14, &k, sizeof k))
			break;
	}
	return say("%ld %s", n, strerrorname_np(errno));
}

// hold-udp N: datagrams to itself.
static long t_hold_udp(int argc, char **argv)
{
	long n = 0, total = 0, max = num(arg(argc, argv, 1, "1000"));
	for (; n < max; n++) {
		struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
		socklen_t len = sizeof at;
		int big = 1 << 24, fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
		if (fd < 0)
			break;
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &big, sizeof big);
		if (bind(fd, (void *)&at, sizeof at) < 0 || getsockname(fd, (void *)&at, &len) < 0)
			break;
		for (int i = 0; i < 400; i++) {
			ssize_t r = sendto(fd, chunk, 1000, MSG_DONTWAIT, (void *)&at, sizeof at);
			total += r > 0 ? r : 0;
		}
		errno = 0;
	}
	return say("%ld %ld %s", n, total >> 20, errno ? strerrorname_np(errno) : "-");
}

// hold-netlink N: sockets with a dump each that nobody reads.
static long t_hold_netlink(int argc, char **argv)
{
	long n = 0, max = num(arg(argc, argv, 1, "1000"));
	struct { struct nlmsghdr h; struct rtgenmsg g; } ask = {
		.h = {.nlmsg_len = sizeof ask, .nlmsg_type = RTM_GETLINK, .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP, .nlmsg_seq = 1},
	};
	for (; n < max; n++) {
		int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
		if (fd < 0)
			break;
		send(fd, &ask, sizeof ask, MSG_DONTWAIT);
		errno = 0;
	}
	return say("%ld %s", n, errno ? strerrorname_np(errno) : "-");
}
