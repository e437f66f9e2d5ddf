// SPDX-License-Identifier: Apache-2.0
//
// Observations: what the process is and what it was given.

#include "probe.h"

static long t_ok(int argc, char **argv) { (void)argc, (void)argv; return 0; }

static long t_id(int argc, char **argv)
{
	gid_t groups[64];
	char host[65] = "";
	(void)argc, (void)argv;
	int n = getgroups(64, groups);
	gethostname(host, sizeof host);
	return say("uid=%u euid=%u gid=%u egid=%u groups=%d pid=%d ppid=%d sid=%d host=%s",
		   getuid(), geteuid(), getgid(), getegid(), n, getpid(), getppid(), getsid(0), host);
}

static long t_status(int argc, char **argv)
{
	char buf[8192], *save, *line;
	static const char *want[] = {"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters", "Uid", "Gid", "Groups"};
	char path[64];
	snprintf(path, sizeof path, "/proc/%s/status", arg(argc, argv, 1, "self"));
	if (slurp(path, buf, sizeof buf) < 0)
		return -1;
	for (line = strtok_r(buf, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		char *colon = strchr(line, ':');
		for (size_t i = 0; colon && i < sizeof want / sizeof *want; i++)
			if (strlen(want[i]) == (size_t)(colon - line) && !strncmp(line, want[i], strlen(want[i]))) {
				for (char *c = colon; *c; c++)
					if (*c == '\t')
						*c = ' ';
				*colon = '=';
				add("%s", line);
			}
	}
	return OBSERVED;
}

// fds: every open descriptor and what it is, but for the one used to look.
static long t_fds(int argc, char **argv)
{
	struct dirent *e;
	char link[PATH_MAX];
	(void)argc, (void)argv;
	DIR *d = opendir("/proc/self/fd");
	if (!d)
		return -1;
	while ((e = readdir(d))) {
		if (e->d_name[0] == '.' || atoi(e->d_name) == dirfd(d))
			continue;
		ssize_t n = readlinkat(dirfd(d), e->d_name, link, sizeof link - 1);
		link[n < 0 ? 0 : n] = 0;
		add("%s->%s", e->d_name, link);
	}
	closedir(d);
	return OBSERVED;
}

// outside: CVE-2024-21626. Any descriptor, working directory or /proc link
// from which ".." climbs to a root that is not ours.
static void climb(const char *what)
{
	char path[PATH_MAX];
	struct stat up, root;
	snprintf(path, sizeof path, "%s/../../../../../../../../../..", what);
	if (stat(path, &up) == 0 && stat("/", &root) == 0 && (up.st_dev != root.st_dev || up.st_ino != root.st_ino))
		add("%s", what);
}

static long t_outside(int argc, char **argv)
{
	char path[64];
	(void)argc, (void)argv;
	static const char *who[] = {"self", "1"};
	for (int w = 0; w < 2; w++) {
		for (int fd = 0; fd < 256; fd++) {
			snprintf(path, sizeof path, "/proc/%s/fd/%d", who[w], fd);
			climb(path);
		}
		snprintf(path, sizeof path, "/proc/%s/cwd", who[w]);
		climb(path);
		snprintf(path, sizeof path, "/proc/%s/root", who[w]);
		climb(path);
	}
	return OBSERVED;
}

static long t_pids(int argc, char **argv)
{
	struct dirent *e;
	(void)argc, (void)argv;
	DIR *d = opendir("/proc");
	if (!d)
		return -1;
	while ((e = readdir(d)))
		if (e->d_name[0] >= '0' && e->d_name[0] <= '9')
			add("%s", e->d_name);
	closedir(d);
	return OBSERVED;
}

static long t_env(int argc, char **argv)
{
	(void)argc, (void)argv;
	for (char **e = environ; *e; e++)
		add("%s", *e);
	return OBSERVED;
}

static long t_argv(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		add("%s", argv[i]);
	return OBSERVED;
}

static long t_cwd(int argc, char **argv)
{
	(void)argc, (void)argv;
	return getcwd(value, sizeof value) ? OBSERVED : -1;
}

static long t_ns(int argc, char **argv)
{
	static const char *all[] = {"user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"};
	char path[64], link[64];
	(void)argc, (void)argv;
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		snprintf(path, sizeof path, "/proc/self/ns/%s", all[i]);
		ssize_t n = readlink(path, link, sizeof link - 1);
		if (n > 0) {
			link[n] = 0;
			add("%s", link);
		}
	}
	return OBSERVED;
}

static long t_rlimits(int argc, char **argv)
{
	static const struct { const char *name; int id; } all[] = {
		{"core", RLIMIT_CORE}, {"nofile", RLIMIT_NOFILE}, {"nproc", RLIMIT_NPROC}, {"fsize", RLIMIT_FSIZE},
		{"memlock", RLIMIT_MEMLOCK}, {"msgqueue", RLIMIT_MSGQUEUE}, {"sigpending", RLIMIT_SIGPENDING}, {"rtprio", RLIMIT_RTPRIO},
		{"nice", RLIMIT_NICE}, {"cpu", RLIMIT_CPU}, {"stack", RLIMIT_STACK},
	};
	(void)argc, (void)argv;
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		struct rlimit r;
		if (getrlimit(all[i].id, &r) == 0)
			add("%s=%lld/%lld", all[i].name, (long long)r.rlim_cur, (long long)r.rlim_max);
	}
	return OBSERVED;
}

static long t_tty(int argc, char **argv)
{
	struct winsize w = {0};
	(void)argc, (void)argv;
	if (!isatty(0))
		return say("no tty");
	ioctl(0, TIOCGWINSZ, &w);
	return say("%ux%u %d%d%d %s fg=%d", w.ws_col, w.ws_row, isatty(0), isatty(1), isatty(2), ttyname(0) ? ttyname(0) : "?", tcgetpgrp(0) == getpgrp());
}

static long t_uptime(int argc, char **argv)
{
	struct timespec t;
	(void)argc, (void)argv;
	clock_gettime(CLOCK_BOOTTIME, &t);
	return say("%lld", (long long)t.tv_sec);
}

// call NR: the cost of one system call is the bench's matter; here only that
// an ordinary one works.
static long t_dumpable(int argc, char **argv) { (void)argc, (void)argv; return say("%d", prctl(PR_GET_DUMPABLE)); }
