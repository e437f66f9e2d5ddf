// SPDX-License-Identifier: Apache-2.0
//
// Threat classes "proc and sys" and "root view": what can be opened, written,
// and marked as privileged.

#include "probe.h"
#include <linux/openat2.h>
#include <sys/inotify.h>

static long t_read(int argc, char **argv)
{
	char b[4096];
	int fd = open(arg(argc, argv, 1, "/etc/shadow"), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return -1;
	long r = read(fd, b, sizeof b);
	int e = errno;
	close(fd);
	errno = e;
	return r;
}

// cat FILE: the content as the value.
static long t_cat(int argc, char **argv)
{
	long n = slurp(arg(argc, argv, 1, "/proc/self/status"), value, sizeof value);
	for (long i = 0; i < n; i++)
		if (value[i] == '\n' || value[i] == 0)
			value[i] = '|';
	return n < 0 ? -1 : OBSERVED;
}

static long t_write(int argc, char **argv)
{
	const char *text = arg(argc, argv, 2, NULL);
	int fd = open(arg(argc, argv, 1, "/x"), O_WRONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return -1;
	long r = text ? write(fd, text, strlen(text)) : 0;
	int e = errno;
	close(fd);
	errno = e;
	return r;
}

static long t_create(int argc, char **argv)
{
	const char *text = arg(argc, argv, 2, "x");
	int fd = open(arg(argc, argv, 1, "/x"), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0)
		return -1;
	long r = write(fd, text, strlen(text));
	int e = errno;
	close(fd);
	errno = e;
	return r;
}

static long t_mkdir(int argc, char **argv) { return mkdir(arg(argc, argv, 1, "/x"), 0755); }
static long t_unlink(int argc, char **argv) { return unlink(arg(argc, argv, 1, "/x")); }
static long t_rename(int argc, char **argv) { return rename(arg(argc, argv, 1, "/x"), arg(argc, argv, 2, "/y")); }
static long t_symlink(int argc, char **argv) { return symlink(arg(argc, argv, 1, "/"), arg(argc, argv, 2, SCRATCH "/link")); }
static long t_link(int argc, char **argv) { return link(arg(argc, argv, 1, "/x"), arg(argc, argv, 2, SCRATCH "/hard")); }
static long t_truncate(int argc, char **argv) { return truncate(arg(argc, argv, 1, "/x"), 0); }
static long t_chown(int argc, char **argv) { return chown(arg(argc, argv, 1, "/x"), (uid_t)num(arg(argc, argv, 2, "0")), (gid_t)num(arg(argc, argv, 2, "0"))); }

static long t_stat(int argc, char **argv)
{
	struct stat st;
	if (lstat(arg(argc, argv, 1, "/"), &st) < 0)
		return -1;
	return say("%o %u:%u %lld", st.st_mode, st.st_uid, st.st_gid, (long long)st.st_size);
}

static long t_readlink(int argc, char **argv)
{
	ssize_t n = readlink(arg(argc, argv, 1, "/proc/self/cwd"), value, sizeof value - 1);
	if (n < 0)
		return -1;
	value[n] = 0;
	return OBSERVED;
}

static long t_ls(int argc, char **argv)
{
	struct dirent *e;
	DIR *d = opendir(arg(argc, argv, 1, "/"));
	if (!d)
		return -1;
	while ((e = readdir(d)))
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			add("%s", e->d_name);
	closedir(d);
	return OBSERVED;
}

// suid WAY DIR: a file or folder with the set-user-id or set-group-id bit. In
// a writable workspace it would stand on the host, without nosuid, owned by
// the workspace's owner: a present for the next local user. Success is decided
// by the bit, not by the call: a call that drops it has refused.
static long bit_set(const char *path, long r)
{
	struct stat st;
	int e = errno;
	if (r >= 0)
		close((int)r);
	if (lstat(path, &st) == 0 && (st.st_mode & (S_ISUID | S_ISGID)))
		return 0;
	if (r >= 0)
		return say("dropped");
	errno = e;
	return -1;
}

static long t_suid(int argc, char **argv)
{
	const char *way = arg(argc, argv, 1, "chmod");
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s/suid-%s", arg(argc, argv, 2, SCRATCH), way);
	unlink(path), rmdir(path);
	const mode_t mode = 06755;
	long r = -1;
	if (!strcmp(way, "open"))
		return bit_set(path, syscall(SYS_open, path, O_CREAT | O_WRONLY | O_CLOEXEC, mode));
	if (!strcmp(way, "openat"))
		return bit_set(path, syscall(SYS_openat, AT_FDCWD, path, O_CREAT | O_WRONLY | O_CLOEXEC, mode));
	if (!strcmp(way, "openat2")) {
		struct open_how how = {.flags = O_CREAT | O_WRONLY | O_CLOEXEC, .mode = mode};
		return bit_set(path, syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how));
	}
	if (!strcmp(way, "creat"))
		return bit_set(path, syscall(SYS_creat, path, mode));
	if (!strcmp(way, "mkdir") || !strcmp(way, "mkdirat")) {
		r = way[5] ? syscall(SYS_mkdirat, AT_FDCWD, path, mode) : syscall(SYS_mkdir, path, mode);
		return bit_set(path, r < 0 ? -1 : 1 << 20);
	}
	if (!strcmp(way, "mknod") || !strcmp(way, "mknodat")) {
		r = way[5] ? syscall(SYS_mknodat, AT_FDCWD, path, S_IFREG | mode, 0) : syscall(SYS_mknod, path, S_IFREG | mode, 0);
		return bit_set(path, r < 0 ? -1 : 1 << 20);
	}
	if (!strcmp(way, "tmpfile")) {
		int fd = (int)syscall(SYS_openat, AT_FDCWD, arg(argc, argv, 2, SCRATCH), O_TMPFILE | O_RDWR | O_CLOEXEC, mode);
		struct stat st;
		if (fd < 0)
			return -1;
		r = fstat(fd, &st);
		close(fd);
		return r == 0 && (st.st_mode & (S_ISUID | S_ISGID)) ? 0 : say("dropped");
	}
	int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
	if (fd < 0)
		return say("not written: %s", strerrorname_np(errno));
	if (!strcmp(way, "chmod"))
		r = syscall(SYS_chmod, path, mode);
	else if (!strcmp(way, "fchmod"))
		r = syscall(SYS_fchmod, fd, mode);
	else if (!strcmp(way, "fchmodat"))
		r = syscall(SYS_fchmodat, AT_FDCWD, path, mode);
	else if (!strcmp(way, "fchmodat2"))
		r = syscall(452, AT_FDCWD, path, mode, 0);
	else if (!strcmp(way, "chmod-high")) // mode is 16 bits wide in the kernel
		r = syscall(SYS_chmod, path, 0x100000000L | mode);
	else
		return USAGE;
	int e = errno;
	close(fd);
	errno = e;
	return bit_set(path, r < 0 ? -1 : 1 << 20);
}

static long t_setxattr_cap(int argc, char **argv)
{
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s/caps", arg(argc, argv, 1, SCRATCH));
	int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0755);
	if (fd < 0)
		return say("not written: %s", strerrorname_np(errno));
	close(fd);
	uint32_t all[5] = {0x02000001, 0xffffffff, 0, 0xffffffff, 0};
	return setxattr(path, "security.capability", all, sizeof all, 0);
}

// fill DIR: write until refused; the number of MiB that fitted.
static long t_fill(int argc, char **argv)
{
	static char block[1 << 20];
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s/fill", arg(argc, argv, 1, SCRATCH));
	int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
	long n = 0, max = num(arg(argc, argv, 2, "4096"));
	if (fd < 0)
		return -1;
	memset(block, 'x', sizeof block);
	while (n < max && write(fd, block, sizeof block) == (ssize_t)sizeof block)
		n++;
	int e = n < max ? errno : 0;
	close(fd);
	unlink(path);
	return say("%ld %s", n, e ? strerrorname_np(e) : "0");
}

// inodes DIR MAX: create empty files until refused.
static long t_inodes(int argc, char **argv)
{
	char path[PATH_MAX];
	long n = 0, max = num(arg(argc, argv, 2, "100000"));
	int e = 0;
	for (; n < max; n++) {
		snprintf(path, sizeof path, "%s/i%ld", arg(argc, argv, 1, SCRATCH), n);
		int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
		if (fd < 0) {
			e = errno;
			break;
		}
		close(fd);
	}
	for (long i = 0; i < n; i++) {
		snprintf(path, sizeof path, "%s/i%ld", arg(argc, argv, 1, SCRATCH), i);
		unlink(path);
	}
	return say("%ld %s", n, e ? strerrorname_np(e) : "0");
}

// writable: every folder in the view in which a file can be made.
static void walk(const char *dir, int depth)
{
	char path[PATH_MAX];
	struct dirent *e;
	if (depth > 12 || !strncmp(dir, "/proc", 5))
		return;
	snprintf(path, sizeof path, "%s/.agentrun-probe", strcmp(dir, "/") ? dir : "");
	int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
	if (fd >= 0) {
		close(fd);
		unlink(path);
		add("%s", dir);
	}
	DIR *d = opendir(dir);
	if (!d)
		return;
	while ((e = readdir(d))) {
		if (e->d_type != DT_DIR || !strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		snprintf(path, sizeof path, "%s/%s", strcmp(dir, "/") ? dir : "", e->d_name);
		char *copy = strdup(path);
		walk(copy, depth + 1);
		free(copy);
	}
	closedir(d);
}

static long t_writable(int argc, char **argv)
{
	walk(arg(argc, argv, 1, "/"), 0);
	return OBSERVED;
}

// devices: what is in /dev that is a device, with its number.
static long t_devices(int argc, char **argv)
{
	struct dirent *e;
	struct stat st;
	char path[PATH_MAX];
	(void)argc, (void)argv;
	DIR *d = opendir("/dev");
	if (!d)
		return -1;
	while ((e = readdir(d))) {
		snprintf(path, sizeof path, "/dev/%s", e->d_name);
		if (lstat(path, &st) == 0 && (S_ISCHR(st.st_mode) || S_ISBLK(st.st_mode)))
			add("%s %c%u:%u", e->d_name, S_ISCHR(st.st_mode) ? 'c' : 'b', (unsigned)(st.st_rdev >> 8 & 0xfff), (unsigned)(st.st_rdev & 0xff));
	}
	closedir(d);
	return OBSERVED;
}

// setuid-files: programs in the view that would be privileged without nosuid
// and no_new_privs.
static long t_nosuid(int argc, char **argv)
{
	struct statvfs st;
	if (statvfs(arg(argc, argv, 1, "/usr"), &st) < 0)
		return -1;
	return say("%s%s%s%s", st.f_flag & ST_RDONLY ? "ro" : "rw", st.f_flag & ST_NOSUID ? ",nosuid" : "",
		   st.f_flag & ST_NODEV ? ",nodev" : "", st.f_flag & ST_NOEXEC ? ",noexec" : "");
}

// lease FILE: a read lease, kept until the process ends.
static long t_lease(int argc, char **argv)
{
	int fd = open(arg(argc, argv, 1, "/workspace/file"), O_RDONLY | O_CLOEXEC);
	return fd < 0 ? -1 : fcntl(fd, F_SETLEASE, F_RDLCK);
}

static long t_dnotify(int argc, char **argv)
{
	int fd = open(arg(argc, argv, 1, "/usr/bin"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	signal(SIGIO, SIG_IGN);
	return fd < 0 ? -1 : fcntl(fd, F_NOTIFY, DN_ACCESS | DN_MULTISHOT);
}

static long t_inotify(int argc, char **argv)
{
	int fd = (int)syscall(SYS_inotify_init1, IN_CLOEXEC);
	if (fd < 0)
		return -1;
	long r = inotify_add_watch(fd, arg(argc, argv, 1, "/usr/bin"), IN_OPEN);
	int e = errno;
	close(fd);
	errno = e;
	return r;
}

// locks N SECONDS: holds N record locks, 0 for as many as can be, and uses so much processor time.
static long t_locks(int argc, char **argv)
{
	long want = num(arg(argc, argv, 1, "0")), n = 0;
	clock_t end = clock() + num(arg(argc, argv, 2, "3")) * CLOCKS_PER_SEC;
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
	int fds[512], files = 0;
	for (char path[64]; files < 512; files++) {
		snprintf(path, sizeof path, SCRATCH "/lock-%d", files);
		if ((fds[files] = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600)) < 0)
			return -1;
	}
	for (long at = 1L << 40; clock() < end; at -= 2) // each before the last: the kernel's list is in order
		for (int i = 0; i < files && (!want || n < want); i++, n++) {
			lock.l_start = at;
			if (fcntl(fds[i], F_SETLK, &lock) < 0)
				return -1;
		}
	return say("%ld", n);
}

// folders N SECONDS: has a folder open N times, 0 for as often as can be, read in part, and uses so much processor time.
static long t_folders(int argc, char **argv)
{
	long want = num(arg(argc, argv, 1, "0")), n = 0;
	clock_t end = clock() + num(arg(argc, argv, 2, "3")) * CLOCKS_PER_SEC;
	char entry[64];
	for (int fd; (!want || n < want) && (fd = open("/usr/bin", O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0; n++)
		if (syscall(SYS_getdents64, fd, entry, sizeof entry) < 0)
			return -1;
	while (clock() < end)
		;
	return say("%ld", n);
}

// merged DIR NAMES N SECONDS [sent]: gives a folder of an overlay so many long names, and has it open N times, each time after a change and
// read in part; sent: on its way through a socket and not open any more. It uses so much processor time.
static long t_merged(int argc, char **argv)
{
	const char *dir = arg(argc, argv, 1, "/usr/share");
	long names = num(arg(argc, argv, 2, "1000")), want = num(arg(argc, argv, 3, "1")), n = 0;
	clock_t end = clock() + num(arg(argc, argv, 4, "3")) * CLOCKS_PER_SEC;
	int at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), pair[2], sent = argc > 5;
	char name[256], entry[512], control[CMSG_SPACE(sizeof(int))] = {0}, byte = 0;
	struct iovec iov = {&byte, 1};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	*c = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
	if (at < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return -1;
	memset(name, 'n', sizeof name);
	for (long i = 0; i <= names; i++) {
		snprintf(name + 240, sizeof name - 240, "%ld", i);
		int fd = openat(at, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
		if (fd < 0 || close(fd) < 0)
			return -1;
	}
	for (int fd; n < want; n++) {
		if ((fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0 || syscall(SYS_getdents64, fd, entry, sizeof entry) < 0)
			return -1;
		if (n % 2 ? keep(openat(at, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600)) < 0 : unlinkat(at, name, 0) < 0)
			return -1;
		memcpy(CMSG_DATA(c), &fd, sizeof fd);
		if (sent && (sendmsg(pair[0], &m, 0) < 0 || close(fd) < 0))
			return -1;
	}
	while (clock() < end)
		;
	return say("%ld", n);
}

// watches EPOLLS N SECONDS [PROCESSES]: so many epolls watch a timer under N numbers each, which further processes inherit; then it sleeps,
// and uses no processor time.
static long t_watches(int argc, char **argv)
{
	long epolls = num(arg(argc, argv, 1, "1")), numbers = num(arg(argc, argv, 2, "1")), n = 0;
	int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC), first = 0, last = -1;
	for (long i = 0; i < numbers && (last = fcntl(timer, F_DUPFD_CLOEXEC, 0)) >= 0; i++)
		first = first ? first : last;
	for (long i = 0; i < epolls; i++) {
		int e = epoll_create1(EPOLL_CLOEXEC);
		for (int fd = first; fd <= last; fd++, n++) {
			struct epoll_event ev = {.events = EPOLLIN | EPOLLET};
			if (epoll_ctl(e, EPOLL_CTL_ADD, fd, &ev))
				return -1;
		}
	}
	for (long i = num(arg(argc, argv, 4, "0")); i > 0; i--)
		if (fork() == 0) {
			sleep(num(arg(argc, argv, 3, "3")));
			_exit(0);
		}
	sleep(num(arg(argc, argv, 3, "3")));
	return say("%ld", n);
}

static long t_ofd_lock(int argc, char **argv)
{
	(void)argc, (void)argv;
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
	int fd = open(SCRATCH "/ofd", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	return fd < 0 ? -1 : fcntl(fd, F_OFD_SETLK, &lock);
}
