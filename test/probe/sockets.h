// SPDX-License-Identifier: Apache-2.0
//
// Threat class "sockets".

#include "probe.h"
#include <arpa/inet.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>

// asks N: so many calls that the supervisor lets run, and that the kernel then refuses at once for their flags.
static long t_asks(int argc, char **argv)
{
	long n = num(arg(argc, argv, 1, "1000"));
	for (long i = 0; i < n; i++)
		if (socket(AF_INET, SOCK_STREAM | 1 << 20, 0) >= 0 || errno != EINVAL)
			return -1;
	return say("%ld", n);
}

static long socket_family(const char *name)
{
	static const struct { const char *name; long family; } all[] = {
		{"unix", AF_UNIX}, {"inet", AF_INET}, {"inet6", AF_INET6}, {"netlink", AF_NETLINK},
		{"packet", AF_PACKET}, {"alg", 38}, {"vsock", 40}, {"bluetooth", 31}, {"can", 29},
		{"tipc", 30}, {"kcm", 41}, {"smc", 43}, {"xdp", 44}, {"key", 15}, {"rds", 21},
		{"x25", 9}, {"ax25", 3}, {"nfc", 39}, {"qipcrtr", 42}, {"mctp", 45}, {"pppox", 24},
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (!strcmp(all[i].name, name))
			return all[i].family;
	return num(name);
}

static long socket_type(const char *name)
{
	return !strcmp(name, "stream") ? SOCK_STREAM : !strcmp(name, "dgram") ? SOCK_DGRAM
	     : !strcmp(name, "raw") ? SOCK_RAW : !strcmp(name, "seqpacket") ? SOCK_SEQPACKET : num(name);
}

// socket FAMILY TYPE [PROTOCOL [HIGH]]: HIGH goes into the upper half of the
// family argument, which the kernel does not look at.
static long t_socket(int argc, char **argv)
{
	long family = socket_family(arg(argc, argv, 1, "inet"));
	if (argc > 4)
		family |= num(argv[4]) << 32;
	return keep(syscall(SYS_socket, family, socket_type(arg(argc, argv, 2, "stream")), num(arg(argc, argv, 3, "0"))));
}

static long t_socketpair(int argc, char **argv)
{
	int fd[2];
	long r = syscall(SYS_socketpair, socket_family(arg(argc, argv, 1, "unix")), socket_type(arg(argc, argv, 2, "stream")), 0, fd);
	if (r == 0)
		close(fd[0]), close(fd[1]);
	return r;
}

static long connect_to(int fd, const void *to, socklen_t len)
{
	struct timeval limit = {.tv_sec = 2};
	if (fd < 0)
		return -1;
	// A connect that hangs is a connect that is not refused; bound it.
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
	long r = connect(fd, to, len);
	int e = errno;
	close(fd);
	errno = e;
	return r;
}

static int inet_addr_of(const char *host, long port, struct sockaddr_storage *ss, socklen_t *len)
{
	struct sockaddr_in *v4 = (void *)ss;
	struct sockaddr_in6 *v6 = (void *)ss;
	memset(ss, 0, sizeof *ss);
	if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET, v4->sin_port = htons((uint16_t)port), *len = sizeof *v4;
		return AF_INET;
	}
	inet_pton(AF_INET6, host, &v6->sin6_addr);
	v6->sin6_family = AF_INET6, v6->sin6_port = htons((uint16_t)port), *len = sizeof *v6;
	return AF_INET6;
}

static long t_tcp_connect(int argc, char **argv)
{
	struct sockaddr_storage ss;
	socklen_t len;
	int family = inet_addr_of(arg(argc, argv, 1, "127.0.0.1"), num(arg(argc, argv, 2, "80")), &ss, &len);
	return connect_to(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0), &ss, len);
}

static long t_udp_send(int argc, char **argv)
{
	struct sockaddr_storage ss;
	socklen_t len;
	int family = inet_addr_of(arg(argc, argv, 1, "127.0.0.1"), num(arg(argc, argv, 2, "53")), &ss, &len);
	int fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	long r = sendto(fd, "x", 1, 0, (void *)&ss, len);
	int e = errno;
	close(fd);
	errno = e;
	return r;
}

static socklen_t unix_addr(const char *name, struct sockaddr_un *un)
{
	size_t n = strlen(name);
	memset(un, 0, sizeof *un);
	un->sun_family = AF_UNIX;
	if (n >= sizeof un->sun_path)
		n = sizeof un->sun_path - 1;
	memcpy(un->sun_path, name, n);
	if (name[0] == '@') // abstract: bound to the network namespace, unix(7)
		un->sun_path[0] = 0;
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + (name[0] != '@'));
}

// pair HOW TYPE PATH: what an end of a socketpair can do about somebody else: connect, orphan-connect and orphan-sendto (the
// other end is gone), sendto, give (a descriptor, by sendmsg), listen (bound to PATH).
static long t_pair(int argc, char **argv)
{
	const char *how = arg(argc, argv, 1, "connect");
	struct sockaddr_un un;
	socklen_t len = unix_addr(arg(argc, argv, 3, "@agentrun-test"), &un);
	int fd[2];
	if (syscall(SYS_socketpair, AF_UNIX, socket_type(arg(argc, argv, 2, "stream")), 0, fd) < 0)
		return -1;
	struct timeval limit = {.tv_sec = 2};
	setsockopt(fd[0], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
	if (!strncmp(how, "orphan-", 7))
		close(fd[1]), how += 7;
	long r = -1;
	if (!strcmp(how, "connect")) {
		r = connect(fd[0], (void *)&un, len);
	} else if (!strcmp(how, "sendto")) {
		r = sendto(fd[0], "x", 1, MSG_NOSIGNAL, (void *)&un, len);
	} else if (!strcmp(how, "give")) {
		char c = 'x', control[CMSG_SPACE(sizeof(int))] = {0};
		struct iovec iov = {&c, 1};
		struct msghdr m = {.msg_name = &un, .msg_namelen = len, .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
		struct cmsghdr *h = CMSG_FIRSTHDR(&m);
		h->cmsg_level = SOL_SOCKET, h->cmsg_type = SCM_RIGHTS, h->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(h), &fd[0], sizeof(int));
		r = sendmsg(fd[0], &m, MSG_NOSIGNAL);
	} else if (!strcmp(how, "listen")) {
		r = bind(fd[0], (void *)&un, len) < 0 ? -1 : listen(fd[0], 1);
	} else {
		return USAGE;
	}
	int e = errno;
	close(fd[0]), close(fd[1]);
	errno = e;
	return r;
}

// unix-connect @NAME | /PATH
static long t_unix_connect(int argc, char **argv)
{
	struct sockaddr_un un;
	socklen_t len = unix_addr(arg(argc, argv, 1, "@agentrun-test"), &un);
	return connect_to(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), &un, len);
}

// serve PORT @NAME FILE: listen on loopback and on an abstract name, create
// FILE when ready, end when FILE is removed. For attempts from a neighbour.
static long t_serve(int argc, char **argv)
{
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons((uint16_t)num(arg(argc, argv, 1, "4444")))};
	struct sockaddr_un un;
	socklen_t len = unix_addr(arg(argc, argv, 2, "@agentrun-test"), &un);
	int a = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), b = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (a < 0 || b < 0 || bind(a, (void *)&in, sizeof in) < 0 || listen(a, 1) < 0 || bind(b, (void *)&un, len) < 0 || listen(b, 1) < 0)
		return -1;
	dprintf(1, "ready\n");
	char c;
	struct pollfd p[3] = {{0, POLLIN, 0}, {a, POLLIN, 0}, {b, POLLIN, 0}};
	while (poll(p, 3, -1) > 0) {
		if (p[1].revents || p[2].revents)
			return say("reached");
		if (p[0].revents && read(0, &c, 1) <= 0)
			break; // stdin closed: the test is done
	}
	return say("unreached");
}

static long rtnetlink(int type, int flags, const void *body, size_t n)
{
	struct { struct nlmsghdr h; char body[256]; } q = {.h = {.nlmsg_len = (uint32_t)NLMSG_LENGTH(n), .nlmsg_type = (uint16_t)type,
		.nlmsg_flags = (uint16_t)(NLM_F_REQUEST | NLM_F_ACK | flags)}};
	struct { struct nlmsghdr h; struct nlmsgerr e; char rest[4096]; } a;
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	if (fd < 0)
		return -1;
	memcpy(q.body, body, n);
	if (send(fd, &q, q.h.nlmsg_len, 0) < 0 || recv(fd, &a, sizeof a, 0) < 0) {
		int e = errno;
		close(fd);
		errno = e;
		return -1;
	}
	close(fd);
	if (a.h.nlmsg_type == NLMSG_ERROR && a.e.error) {
		errno = -a.e.error;
		return -1;
	}
	return 0;
}

static long t_route_add(int argc, char **argv)
{
	(void)argc, (void)argv;
	// default dev lo: RTA_OIF 1
	struct { struct rtmsg r; struct rtattr a; uint32_t oif; } m = {
		.r = {.rtm_family = AF_INET, .rtm_table = RT_TABLE_MAIN, .rtm_protocol = RTPROT_STATIC, .rtm_scope = RT_SCOPE_LINK, .rtm_type = RTN_UNICAST},
		.a = {.rta_len = RTA_LENGTH(4), .rta_type = RTA_OIF}, .oif = 1};
	return rtnetlink(RTM_NEWROUTE, NLM_F_CREATE, &m, sizeof m);
}

static long t_link_down(int argc, char **argv)
{
	(void)argc, (void)argv;
	struct ifinfomsg m = {.ifi_family = AF_UNSPEC, .ifi_index = 1, .ifi_change = 1};
	return rtnetlink(RTM_NEWLINK, 0, &m, sizeof m);
}

static long t_link_add(int argc, char **argv)
{
	(void)argc, (void)argv;
	struct { struct ifinfomsg i; struct rtattr info; struct rtattr kind; char name[8]; } m = {
		.i = {.ifi_family = AF_UNSPEC}, .info = {.rta_len = RTA_LENGTH(0) + RTA_LENGTH(6), .rta_type = IFLA_LINKINFO},
		.kind = {.rta_len = RTA_LENGTH(6), .rta_type = 1 /* IFLA_INFO_KIND */}, .name = "dummy"};
	return rtnetlink(RTM_NEWLINK, NLM_F_CREATE, &m, sizeof m);
}

// links: the interfaces there are, with their flags.
static long t_links(int argc, char **argv)
{
	(void)argc, (void)argv;
	char buf[8192], *save, *line;
	if (slurp("/proc/net/dev", buf, sizeof buf) < 0 && slurp("/proc/self/net/dev", buf, sizeof buf) < 0)
		return -1;
	int n = 0;
	for (line = strtok_r(buf, "\n", &save); line; line = strtok_r(NULL, "\n", &save), n++) {
		char name[64];
		if (n >= 2 && sscanf(line, " %63[^:]:", name) == 1)
			add("%s", name);
	}
	return OBSERVED;
}
