// SPDX-License-Identifier: Apache-2.0
//
// Threat class "namespaces and mounts".

#include "probe.h"
#include <linux/openat2.h>

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x00000080
#endif

static long namespace_flag(const char *name)
{
	static const struct { const char *name; long flag; } all[] = {
		{"user", CLONE_NEWUSER}, {"mnt", CLONE_NEWNS}, {"pid", CLONE_NEWPID},
		{"net", CLONE_NEWNET}, {"ipc", CLONE_NEWIPC}, {"uts", CLONE_NEWUTS},
		{"cgroup", CLONE_NEWCGROUP}, {"time", CLONE_NEWTIME},
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (!strcmp(all[i].name, name))
			return all[i].flag;
	return num(name);
}

// High bits: the kernel takes unsigned long flags, a filter that compares
// 32 bits would let 1<<32|CLONE_NEWUSER through. The kernel refuses unknown
// bits itself (EINVAL), so this must never succeed either.
static long t_unshare(int argc, char **argv)
{
	long flag = namespace_flag(arg(argc, argv, 1, "user"));
	return syscall(SYS_unshare, argc > 2 ? flag | num(argv[2]) << 32 : flag);
}

static long reap_or_exit(long pid)
{
	if (pid == 0)
		_exit(0);
	if (pid > 0)
		waitpid((pid_t)pid, NULL, __WALL);
	return pid;
}

static long t_clone(int argc, char **argv)
{
	return reap_or_exit(syscall(SYS_clone, namespace_flag(arg(argc, argv, 1, "user")) | SIGCHLD, 0, 0, 0, 0));
}

struct clone3_args {
	uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};

static long t_clone3(int argc, char **argv)
{
	struct clone3_args a = {.flags = (uint64_t)namespace_flag(arg(argc, argv, 1, "0")), .exit_signal = SIGCHLD};
	return reap_or_exit(syscall(SYS_clone3, &a, sizeof a));
}

static long t_setns(int argc, char **argv)
{
	char path[64];
	const char *kind = arg(argc, argv, 1, "user");
	snprintf(path, sizeof path, "/proc/%s/ns/%s", arg(argc, argv, 2, "self"), kind);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	long r = syscall(SYS_setns, fd, namespace_flag(kind));
	int e = errno;
	close(fd);
	errno = e;
	return r;
}

// setns with a pidfd takes several namespaces of another process at once.
static long t_setns_pidfd(int argc, char **argv)
{
	int fd = (int)syscall(SYS_pidfd_open, num(arg(argc, argv, 1, "1")), 0);
	if (fd < 0)
		return -1;
	long r = syscall(SYS_setns, fd, CLONE_NEWNS | CLONE_NEWUSER | CLONE_NEWPID);
	int e = errno;
	close(fd);
	errno = e;
	return r;
}

static long t_mount(int argc, char **argv)
{
	const char *type = arg(argc, argv, 1, "tmpfs");
	return syscall(SYS_mount, type, arg(argc, argv, 2, SCRATCH), type, 0, arg(argc, argv, 3, ""));
}

static long t_mount_bind(int argc, char **argv)
{
	return syscall(SYS_mount, arg(argc, argv, 1, "/"), arg(argc, argv, 2, SCRATCH), NULL, MS_BIND | MS_REC, NULL);
}

static long t_mount_remount(int argc, char **argv)
{
	return syscall(SYS_mount, NULL, arg(argc, argv, 1, "/"), NULL, MS_REMOUNT | MS_BIND, NULL);
}

static long t_mount_propagation(int argc, char **argv)
{
	(void)argc, (void)argv;
	return syscall(SYS_mount, NULL, "/", NULL, MS_SHARED | MS_REC, NULL);
}

static long t_umount(int argc, char **argv)
{
	return syscall(SYS_umount2, arg(argc, argv, 1, "/proc"), MNT_DETACH);
}

static long t_pivot_root(int argc, char **argv)
{
	(void)argc, (void)argv;
	return syscall(SYS_pivot_root, SCRATCH, SCRATCH);
}

static long t_chroot(int argc, char **argv) { return chroot(arg(argc, argv, 1, ".")); }

static long t_open_tree(int argc, char **argv)
{
	return keep(syscall(SYS_open_tree, AT_FDCWD, arg(argc, argv, 1, "/"), 1 /* OPEN_TREE_CLONE */));
}

static long t_move_mount(int argc, char **argv)
{
	(void)argc, (void)argv;
	return syscall(SYS_move_mount, AT_FDCWD, "/proc", AT_FDCWD, SCRATCH, 0);
}

static long t_fsopen(int argc, char **argv) { return keep(syscall(SYS_fsopen, arg(argc, argv, 1, "tmpfs"), 0)); }
static long t_fsconfig(int argc, char **argv) { (void)argc, (void)argv; return syscall(SYS_fsconfig, 0, 6 /* CREATE */, 0, 0, 0); }
static long t_fsmount(int argc, char **argv) { (void)argc, (void)argv; return keep(syscall(SYS_fsmount, 0, 0, 0)); }
static long t_fspick(int argc, char **argv) { (void)argc, (void)argv; return keep(syscall(SYS_fspick, AT_FDCWD, "/", 0)); }

static long t_mount_setattr(int argc, char **argv)
{
	(void)argc, (void)argv;
	struct { uint64_t set, clr, propagation, userns_fd; } a = {.clr = 1 /* MOUNT_ATTR_RDONLY */};
	return syscall(SYS_mount_setattr, AT_FDCWD, "/", 0, &a, sizeof a);
}

static long t_statmount(int argc, char **argv) { (void)argc, (void)argv; return syscall(457, 0, 0, 0, 0); }
static long t_listmount(int argc, char **argv) { (void)argc, (void)argv; return syscall(458, 0, 0, 0, 0); }

// The shocker attack: a handle for the root inode of the disk (inode 2)
// reaches any file on it, past every mount.
static long t_open_by_handle(int argc, char **argv)
{
	struct { struct file_handle h; unsigned char bytes[8]; } fh = {.h = {.handle_bytes = 8, .handle_type = 1}, .bytes = {2}};
	int at = open(arg(argc, argv, 1, "/"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (at < 0)
		return -1;
	long r = keep(syscall(SYS_open_by_handle_at, at, &fh, O_RDONLY));
	int e = errno;
	close(at);
	errno = e;
	return r;
}

static long t_name_to_handle(int argc, char **argv)
{
	struct { struct file_handle h; unsigned char bytes[128]; } fh = {.h = {.handle_bytes = 128}};
	int id;
	return syscall(SYS_name_to_handle_at, AT_FDCWD, arg(argc, argv, 1, "/usr"), &fh, &id, 0);
}

// CVE-2022-0492: with a cgroup v1 hierarchy mounted by oneself, release_agent
// names a program that the kernel runs as root of the host.
static long t_release_agent(int argc, char **argv)
{
	(void)argc, (void)argv;
	if (syscall(SYS_mount, "cgroup", SCRATCH, "cgroup", 0, "rdma") < 0)
		return -1;
	return keep(open(SCRATCH "/release_agent", O_WRONLY));
}

static long t_mknod(int argc, char **argv)
{
	mode_t type = !strcmp(arg(argc, argv, 1, "char"), "block") ? S_IFBLK : S_IFCHR;
	unlink(SCRATCH "/node");
	return mknod(SCRATCH "/node", type | 0666, (8 << 8) /* sda */);
}
