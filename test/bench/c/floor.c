// SPDX-License-Identifier: Apache-2.0
//
// floor ROOT PROGRAM runs the static PROGRAM in new user, pid, mount, network, ipc, uts and cgroup
// namespaces, on a tmpfs root at the empty folder ROOT that shows /usr read-only and a /proc, as a mapped
// user without privilege; it waits and passes the exit code on.
//
// It is the yardstick for a cold start: what the kernel charges for a view of this shape, with nothing
// around it. No cgroup, no seccomp, no checks: it is no sandbox. Nothing is mounted where the host can
// see it, so there is nothing to clean up.

#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define AGENT 1000   // the user inside
#define HOST 100000  // what root inside is outside

static void need(long ret, const char *what) {
	if (ret >= 0) return;
	perror(what);
	_exit(125);
}

// Links a merged-/usr root has at its top.
static const char *const links[][2] = {
	{"usr/bin", "bin"}, {"usr/sbin", "sbin"}, {"usr/lib", "lib"}, {"usr/lib64", "lib64"},
};

static void build_root(const char *root, const char *program) {
	need(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "make / private");
	need(mount("root", root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755"), "mount root");
	need(chdir(root), root);
	for (size_t i = 0; i < sizeof links / sizeof *links; i++) need(symlink(links[i][0], links[i][1]), links[i][1]);
	need(mkdir("usr", 0755), "usr");
	need(mkdir("proc", 0755), "proc");
	need(close(open("true", O_CREAT | O_WRONLY | O_CLOEXEC, 0755)), "true");
	// Recursive: a user namespace may not look below what is mounted on /usr.
	need(mount("/usr", "usr", NULL, MS_BIND | MS_REC, NULL), "bind /usr");
	need(mount(NULL, "usr", NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL), "/usr read-only");
	need(mount(program, "true", NULL, MS_BIND, NULL), "bind program");
	need(mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL), "mount /proc");
	need(syscall(SYS_pivot_root, ".", "."), "pivot_root");
	need(umount2(".", MNT_DETACH), "leave the old root");
	need(mount(NULL, "/", NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL), "/ read-only");
}

static _Noreturn void child(int mapped, const char *root, const char *program) {
	char c;
	need(read(mapped, &c, 1) == 1 ? 0 : -1, "wait for the id maps");
	need(setresgid(0, 0, 0), "setresgid");
	need(setresuid(0, 0, 0), "setresuid");
	build_root(root, program);
	need(setresgid(AGENT, AGENT, AGENT), "setresgid");
	need(setresuid(AGENT, AGENT, AGENT), "setresuid");
	execve("/true", (char *[]){"true", NULL}, (char *[]){NULL});
	need(-1, "execve");
	_exit(125);
}

static void map_ids(pid_t pid, const char *file) {
	char name[64], map[64];
	snprintf(name, sizeof name, "/proc/%d/%s", pid, file);
	int n = snprintf(map, sizeof map, "0 %d 65536\n", HOST);
	int fd = open(name, O_WRONLY | O_CLOEXEC);
	need(fd, name);
	need(write(fd, map, n) == n ? 0 : -1, name);
	close(fd);
}

int main(int argc, char **argv) {
	if (argc != 3) {
		fprintf(stderr, "usage: floor ROOT PROGRAM\n");
		return 125;
	}
	int go[2];
	need(pipe2(go, O_CLOEXEC), "pipe2");
	struct clone_args args = {
		.flags = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP,
		.exit_signal = SIGCHLD,
	};
	pid_t pid = syscall(SYS_clone3, &args, sizeof args);
	need(pid, "clone3");
	if (pid == 0) child(go[0], argv[1], argv[2]);
	map_ids(pid, "uid_map");
	map_ids(pid, "gid_map");
	need(write(go[1], "", 1), "go");
	int status;
	need(waitpid(pid, &status, 0), "waitpid");
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
