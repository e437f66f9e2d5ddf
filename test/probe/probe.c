// SPDX-License-Identifier: Apache-2.0
//
// probe runs inside a sandbox and tries what must not work there. Static, so
// that it runs in any root; raw system calls where a library would hide the
// answer.
//
//     probe NAME [ARG…] [, NAME [ARG…]]…
//
// Each try prints one line that starts with its words:
//
//     mount tmpfs: errno=EPERM      refused, and how
//     fork: ok                      it worked
//     pids: value=1|7               an observation; items apart by |
//
// Exit status: 0 every try was refused or an observation, 3 one worked,
// 2 misuse. A try that ends the process (exit, raise, int80 under a filter that
// kills) prints nothing more.
//
//     gcc -static -O1 -o bin/probe test/probe/probe.c

#include "probe.h"

#include "namespaces.h"

#include "counts.h"
#include "files.h"
#include "hostile.h"
#include "kernel.h"
#include "life.h"
#include "live.h"
#include "look.h"
#include "processes.h"
#include "sockets.h"

static const struct try tries[] = {
	// namespaces and mounts
	{"unshare", t_unshare, "KIND [HIGH]"}, {"clone", t_clone, "KIND"}, {"clone3", t_clone3, "[KIND]"},
	{"setns", t_setns, "KIND [PID]"}, {"setns-pidfd", t_setns_pidfd, "PID"},
	{"mount", t_mount, "TYPE [AT [DATA]]"}, {"mount-bind", t_mount_bind, "FROM AT"}, {"mount-remount", t_mount_remount, "AT"},
	{"mount-propagation", t_mount_propagation, ""}, {"umount", t_umount, "AT"}, {"pivot_root", t_pivot_root, ""}, {"chroot", t_chroot, "DIR"},
	{"open_tree", t_open_tree, "DIR"}, {"move_mount", t_move_mount, ""}, {"fsopen", t_fsopen, "TYPE"}, {"fsconfig", t_fsconfig, ""},
	{"fsmount", t_fsmount, ""}, {"fspick", t_fspick, ""}, {"mount_setattr", t_mount_setattr, ""},
	{"statmount", t_statmount, ""}, {"listmount", t_listmount, ""},
	{"open_by_handle_at", t_open_by_handle, "DIR"}, {"name_to_handle_at", t_name_to_handle, "FILE"},
	{"release_agent", t_release_agent, ""}, {"mknod", t_mknod, "char|block"},
	// processes, runtime takeover
	{"ptrace", t_ptrace, "PID"}, {"ptrace-seize", t_ptrace_seize, "PID"}, {"ptrace-traceme", t_ptrace_traceme, ""},
	{"process_vm_readv", t_vm_readv, "PID"}, {"process_vm_writev", t_vm_writev, "PID"}, {"pidfd_getfd", t_pidfd_getfd, "PID FD"},
	{"process_madvise", t_process_madvise, "PID"}, {"kcmp", t_kcmp, "PID"}, {"prlimit", t_prlimit, "PID"},
	{"kill", t_kill, "PID SIGNAL"}, {"kill-init", t_kill_init, ""}, {"setsid", t_setsid, ""},
	{"fork", t_fork, ""}, {"vfork", t_vfork, ""}, {"clone-process", t_clone_process, ""}, {"sibling", t_sibling, ""}, {"posix_spawn", t_posix_spawn, ""},
	{"exec", t_exec, "FILE [ARG…]"}, {"exec-chain", t_exec_chain, "AT TO"}, {"exec-copy", t_exec_copy, "DIR"}, {"mmap-exec", t_mmap_exec, "DIR"},
	{"memfd-execveat", t_memfd_execveat, "[FLAGS]"}, {"memfd-fexecve", t_memfd_fexecve, "[FLAGS]"}, {"memfd-mmap-exec", t_memfd_mmap_exec, ""},
	{"threads", t_threads, "N"}, {"forks", t_forks, "N"}, {"bomb", t_bomb, ""}, {"orphans", t_orphans, "N"}, {"nofile", t_nofile, ""},
	// kernel surface
	{"io_uring_setup", t_io_uring_setup, ""}, {"io_uring_enter", t_io_uring_enter, ""}, {"io_uring_register", t_io_uring_register, ""},
	{"bpf", t_bpf, ""}, {"perf_event_open", t_perf_event_open, ""}, {"userfaultfd", t_userfaultfd, ""}, {"memfd_secret", t_memfd_secret, ""},
	{"keyctl", t_keyctl, "[OP]"}, {"add_key", t_add_key, ""}, {"request_key", t_request_key, ""},
	{"kexec_load", t_kexec_load, ""}, {"kexec_file_load", t_kexec_file_load, ""},
	{"init_module", t_init_module, ""}, {"finit_module", t_finit_module, ""}, {"delete_module", t_delete_module, ""},
	{"quotactl", t_quotactl, ""}, {"quotactl_fd", t_quotactl_fd, ""}, {"acct", t_acct, ""}, {"swapon", t_swapon, ""}, {"swapoff", t_swapoff, ""},
	{"reboot", t_reboot, ""}, {"sethostname", t_sethostname, ""}, {"setdomainname", t_setdomainname, ""}, {"iopl", t_iopl, ""}, {"ioperm", t_ioperm, ""},
	{"modify_ldt", t_modify_ldt, ""}, {"lookup_dcookie", t_lookup_dcookie, ""}, {"syslog", t_syslog, ""}, {"vhangup", t_vhangup, ""},
	{"uselib", t_uselib, ""}, {"ustat", t_ustat, ""}, {"sysfs", t_sysfs, ""}, {"settimeofday", t_settimeofday, ""}, {"clock_settime", t_clock_settime, ""},
	{"clock_adjtime", t_clock_adjtime, ""}, {"fanotify_init", t_fanotify_init, ""}, {"migrate_pages", t_migrate_pages, ""}, {"move_pages", t_move_pages, ""},
	{"nfsservctl", t_nfsservctl, ""}, {"_sysctl", t__sysctl, ""}, {"personality", t_personality, "[P]"}, {"sys", t_sys, "NR [ARG…]"},
	{"int80", t_int80, "[NR]"}, {"x32", t_x32, "[NR]"}, {"tiocsti", t_tiocsti, "[HIGH]"}, {"tioclinux", t_tioclinux, "[HIGH]"},
	{"tiocsctty", t_tiocsctty, "[HIGH]"}, {"tiocsetd", t_tiocsetd, "[HIGH]"}, {"tioccons", t_tioccons, "[HIGH]"}, {"ioctl", t_ioctl, "REQUEST"}, {"pty", t_pty, ""}, {"core-limit", t_core_limit, ""}, {"prctl", t_prctl, "OP [ARG…]"},
	{"setuid", t_setuid, "[UID]"}, {"setgid", t_setgid, "[GID]"}, {"setresuid", t_setresuid, ""}, {"setgroups", t_setgroups, ""},
	{"capset", t_capset, ""}, {"seccomp-listener", t_seccomp_listener, ""}, {"huge", t_huge, "mmap|memfd|shm [SIZE]"},
	// sockets
	{"socket", t_socket, "FAMILY TYPE [PROTOCOL [HIGH]]"}, {"socketpair", t_socketpair, "FAMILY [TYPE]"}, {"pair", t_pair, "HOW TYPE PATH"}, {"tcp-connect", t_tcp_connect, "ADDRESS PORT"},
	{"udp-send", t_udp_send, "ADDRESS PORT"}, {"unix-connect", t_unix_connect, "@NAME|PATH"}, {"serve", t_serve, "PORT @NAME"},
	{"route-add", t_route_add, ""}, {"link-down", t_link_down, ""}, {"link-add", t_link_add, ""}, {"links", t_links, ""},
	// shared counters
	{"hold-inotify", t_hold_inotify, ""}, {"hold-signals", t_hold_signals, "[N]"}, {"hold-timers", t_hold_timers, "[N]"},
	{"hold-tcp", t_hold_tcp, "N [accept|leave|close] [BUFFER]"}, {"hold-udp", t_hold_udp, "N"}, {"hold-timewait", t_hold_timewait, "N"}, {"hold-keys", t_hold_keys, ""}, {"hold-netlink", t_hold_netlink, "N"},
	{"asks", t_asks, "N"},
	// files
	{"read", t_read, "FILE"}, {"cat", t_cat, "FILE"}, {"write", t_write, "FILE [TEXT]"}, {"create", t_create, "FILE [TEXT]"}, {"mkdir", t_mkdir, "DIR"},
	{"unlink", t_unlink, "FILE"}, {"rename", t_rename, "FROM TO"}, {"symlink", t_symlink, "TO AT"}, {"link", t_link, "FROM AT"},
	{"truncate", t_truncate, "FILE"}, {"chown", t_chown, "FILE UID"}, {"stat", t_stat, "FILE"}, {"readlink", t_readlink, "LINK"}, {"ls", t_ls, "DIR"},
	{"suid", t_suid, "WAY DIR"}, {"setxattr-cap", t_setxattr_cap, "DIR"}, {"fill", t_fill, "DIR [MB]"}, {"inodes", t_inodes, "DIR MAX"},
	{"writable", t_writable, "[DIR]"}, {"devices", t_devices, ""}, {"lease", t_lease, "FILE"}, {"dnotify", t_dnotify, "DIR"}, {"inotify", t_inotify, "DIR"}, {"locks", t_locks, "N SECONDS"}, {"folders", t_folders, "N SECONDS"}, {"merged", t_merged, "DIR NAMES N SECONDS [sent]"}, {"watches", t_watches, "EPOLLS N SECONDS [PROCESSES]"}, {"polls", t_polls, "PROCESSES THREADS N SECONDS"}, {"ofd-lock", t_ofd_lock, ""}, {"mount-flags", t_nosuid, "DIR"},
	// observations
	{"ok", t_ok, ""}, {"id", t_id, ""}, {"status", t_status, "[PID]"}, {"fds", t_fds, ""}, {"outside", t_outside, ""}, {"pids", t_pids, ""},
	{"env", t_env, ""}, {"argv", t_argv, "…"}, {"cwd", t_cwd, ""}, {"ns", t_ns, ""}, {"rlimits", t_rlimits, ""}, {"tty", t_tty, ""},
	{"uptime", t_uptime, ""}, {"dumpable", t_dumpable, ""},
	// behaviours
	{"exit", t_exit, "CODE"}, {"raise", t_raise, "SIGNAL"}, {"ready", t_ready, ""}, {"wait", t_wait, ""}, {"sleep", t_sleep, "SECONDS"}, {"spin", t_spin, "SECONDS"},
	{"stubborn", t_stubborn, ""}, {"trap", t_trap, ""}, {"winch", t_winch, ""}, {"alloc", t_alloc, "MB"}, {"output", t_output, "BYTES [FD]"},
	{"live", t_live, ""}, {"hold", t_hold, "FILE"}, {"write-held", t_write_held, ""}, {"release", t_release, ""}, {"keep", t_keep, "PATH"}, {"send", t_send, "FD"}, {"chdir", t_chdir, "DIR"}, {"map", t_map, "FILE"},
	{"child", t_child, ""}, {"children", t_children, "N"}, {"reap", t_reap, ""}, {"keep-memory", t_keep_memory, "MB"}, {"storm", t_storm, "THREADS"}, {"writer", t_writer, "FILE"}, {"burn", t_burn, "THREADS"},
	{"flood", t_flood, "N"}, {"flood-threads", t_flood_threads, "THREADS N"}, {"pulse", t_pulse, "SECONDS [DIR [calls]]"}, {"hostile", t_hostile, "KIND"},
	{"echo", t_echo, ""}, {"stderr", t_stderr, "TEXT"},
};

static int usage(const char *why)
{
	dprintf(2, "probe: %s\nusage: probe NAME [ARG…] [, NAME [ARG…]]…\n", why);
	for (size_t i = 0; i < sizeof tries / sizeof *tries; i++)
		dprintf(2, "  %s %s\n", tries[i].name, tries[i].args);
	return 2;
}

static int attempt(int argc, char **argv)
{
	for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
		if (strcmp(tries[i].name, argv[0]))
			continue;
		value[0] = 0;
		errno = 0;
		long r = tries[i].fn(argc, argv);
		int e = errno;
		if (r == USAGE)
			return usage("unknown argument");
		static char words[4096];
		size_t n = 0;
		for (int a = 0; a < argc && n < sizeof words; a++)
			n += (size_t)snprintf(words + n, sizeof words - n, a ? " %s" : "%s", argv[a]);
		if (r == OBSERVED)
			dprintf(1, "%s: value=%s\n", words, value);
		else if (r < 0)
			dprintf(1, "%s: errno=%s\n", words, strerrorname_np(e) ? strerrorname_np(e) : "?");
		else
			dprintf(1, "%s: ok\n", words);
		return r >= 0 && r != OBSERVED ? 3 : 0;
	}
	return usage(argv[0]);
}

int main(int argc, char **argv)
{
	int worst = 0;
	if (argc < 2)
		return usage("nothing to try");
	for (int i = 1; i < argc; i++) {
		int from = i;
		while (i < argc && strcmp(argv[i], ","))
			i++;
		if (i == from)
			return usage("empty try");
		int code = attempt(i - from, argv + from);
		if (code > worst)
			worst = code;
		if (code == 2)
			return 2;
	}
	return worst;
}
