// SPDX-License-Identifier: Apache-2.0
//
// Threat class "kernel surface": raw system calls, so that no library stands
// between the filter and us. Arguments are such that the kernel itself, if
// reached, answers EFAULT, EINVAL, EBADF or EPERM: the errno tells who refused.

#include "probe.h"
#include <sys/ipc.h>
#include <sys/shm.h>

#define CALL(name, ...)                                                \
	static long t_##name(int argc, char **argv)                    \
	{                                                              \
		(void)argc, (void)argv;                                \
		return syscall(SYS_##name, ##__VA_ARGS__);             \
	}

// io_uring by hand: a ring takes its calls past every filter.
static long t_io_uring_setup(int argc, char **argv)
{
	(void)argc, (void)argv;
	char params[120] = {0};
	return keep(syscall(SYS_io_uring_setup, 4, params));
}
CALL(io_uring_enter, 0, 1, 0, 0, 0, 0)
CALL(io_uring_register, 0, 0, 0, 0)

static long t_bpf(int argc, char **argv)
{
	(void)argc, (void)argv;
	struct { uint32_t type, key, val, max; char rest[112]; } a = {2 /* ARRAY */, 4, 4, 1, {0}};
	return keep(syscall(SYS_bpf, 0 /* MAP_CREATE */, &a, sizeof a));
}

static long t_perf_event_open(int argc, char **argv)
{
	(void)argc, (void)argv;
	struct { uint32_t type, size; uint64_t config, rest[12]; } a = {1 /* SOFTWARE */, 112, 0, {0}};
	return keep(syscall(SYS_perf_event_open, &a, 0, -1, -1, 0));
}

static long t_userfaultfd(int argc, char **argv) { (void)argc, (void)argv; return keep(syscall(SYS_userfaultfd, 1 /* USER_MODE_ONLY */)); }
static long t_memfd_secret(int argc, char **argv) { (void)argc, (void)argv; return keep(syscall(SYS_memfd_secret, 0)); }
static long t_keyctl(int argc, char **argv) { return syscall(SYS_keyctl, num(arg(argc, argv, 1, "0")), -3 /* session */, 1, 0, 0); }
CALL(add_key, "user", "agentrun-probe", "x", 1, -3)
CALL(request_key, "user", "agentrun-probe", NULL, 0)
CALL(kexec_load, 0, 0, 0, 0)
CALL(kexec_file_load, -1, -1, 0, "", 0)
CALL(init_module, "", 0, "")
CALL(finit_module, 0, "", 0)
CALL(delete_module, "none", O_NONBLOCK)
CALL(quotactl, 0x800002 << 8, "/dev/root", 0, 0)
CALL(quotactl_fd, 0, 0x800002 << 8, 0, 0)
CALL(acct, SCRATCH "/acct")
CALL(swapon, SCRATCH "/swap", 0)
CALL(swapoff, SCRATCH "/swap")
// A wrong magic number: reboot(2) would answer EINVAL, and never reboot.
CALL(reboot, 0, 0, 0, 0)
CALL(sethostname, "owned", 5)
CALL(setdomainname, "owned", 5)
CALL(iopl, 3)
CALL(ioperm, 0x80, 1, 1)
CALL(modify_ldt, 0, 0, 0)
CALL(lookup_dcookie, 0, 0, 0)
CALL(syslog, 3, value, sizeof value) // SYSLOG_ACTION_READ_ALL
CALL(vhangup)
CALL(uselib, "/none")
CALL(ustat, 0, value)
CALL(sysfs, 3)
CALL(settimeofday, NULL, NULL)
CALL(clock_adjtime, CLOCK_REALTIME, NULL)
CALL(fanotify_init, 0, 0)
CALL(migrate_pages, 1, 0, NULL, NULL)
CALL(move_pages, 1, 0, NULL, NULL, NULL, 0)
CALL(nfsservctl, 0, 0, 0)
CALL(_sysctl, 0)

static long t_clock_settime(int argc, char **argv)
{
	(void)argc, (void)argv;
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return syscall(SYS_clock_settime, CLOCK_REALTIME, &now);
}

static long t_personality(int argc, char **argv) { return syscall(SYS_personality, num(arg(argc, argv, 1, "0x0040000"))); } // ADDR_NO_RANDOMIZE

// sys NR [ARG…]: any number with any numeric arguments.
static long t_sys(int argc, char **argv)
{
	long a[6] = {0};
	for (int i = 0; i < 6 && i + 2 < argc; i++)
		a[i] = num(argv[i + 2]);
	return syscall(num(arg(argc, argv, 1, "9999")), a[0], a[1], a[2], a[3], a[4], a[5]);
}

// The i386 gate from a 64-bit program: other numbers, other filter. 20 is
// getpid there, and writev here.
static long t_int80(int argc, char **argv)
{
#ifdef __x86_64__
	long r = num(arg(argc, argv, 1, "20"));
	__asm__ volatile("int $0x80" : "+a"(r) : "b"(0L), "c"(0L), "d"(0L) : "memory", "r8", "r9", "r10", "r11");
	if (r < 0 && r > -4096) {
		errno = (int)-r;
		return -1;
	}
	return r;
#else
	(void)argc, (void)argv;
	errno = ENOSYS;
	return -1;
#endif
}

// x32 numbers carry bit 30; a filter that compares numbers only misses them.
static long t_x32(int argc, char **argv) { return syscall(0x40000000L | num(arg(argc, argv, 1, "39"))); }

// tty REQUEST [HIGH]: an ioctl on the terminal. ioctl(2) takes unsigned long,
// the kernel looks at the low 32 bits: HIGH set must not slip past the filter.
static long tty_ioctl(unsigned long request, int argc, char **argv, void *p)
{
	if (argc > 1)
		request |= (unsigned long)num(argv[1]) << 32;
	return syscall(SYS_ioctl, 0, request, p);
}

static long t_tiocsti(int argc, char **argv) { char c = 'x'; return tty_ioctl(TIOCSTI, argc, argv, &c); }
static long t_tioclinux(int argc, char **argv) { char c = 3; return tty_ioctl(TIOCLINUX, argc, argv, &c); }
static long t_tiocsctty(int argc, char **argv) { return tty_ioctl(TIOCSCTTY, argc, argv, (void *)1); }
static long t_tiocsetd(int argc, char **argv) { int n_gsm = 21; return tty_ioctl(TIOCSETD, argc, argv, &n_gsm); }
static long t_tioccons(int argc, char **argv) { return tty_ioctl(TIOCCONS, argc, argv, NULL); }
static long t_ioctl(int argc, char **argv) { return argc > 1 ? tty_ioctl(strtoul(argv[1], NULL, 0), 0, NULL, NULL) : -1; }

// pty: the other end of a new pseudo-terminal.
static long t_pty(int argc, char **argv)
{
	int fd = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC), unlock = 0;
	(void)argc, (void)argv;
	return fd < 0 || ioctl(fd, TIOCSPTLCK, &unlock) < 0 ? -1 : ioctl(fd, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
}

// core-limit: no core files, as GnuPG and ssh-agent ask for.
static long t_core_limit(int argc, char **argv)
{
	struct rlimit none = {0, 0};
	(void)argc, (void)argv;
	return setrlimit(RLIMIT_CORE, &none);
}

static long t_prctl(int argc, char **argv)
{
	unsigned long a[5] = {0};
	for (int i = 0; i < 5 && i + 1 < argc; i++)
		a[i] = (unsigned long)num(argv[i + 1]);
	return syscall(SYS_prctl, a[0], a[1], a[2], a[3], a[4]);
}

static long t_setuid(int argc, char **argv) { return syscall(SYS_setuid, num(arg(argc, argv, 1, "0"))); }
static long t_setgid(int argc, char **argv) { return syscall(SYS_setgid, num(arg(argc, argv, 1, "0"))); }
static long t_setresuid(int argc, char **argv) { return syscall(SYS_setresuid, 0, 0, num(arg(argc, argv, 1, "0"))); }
static long t_setgroups(int argc, char **argv) { (void)argc, (void)argv; gid_t none = 0; return syscall(SYS_setgroups, 1, &none); }

// capset [none|every]: CAP_SYS_ADMIN into all sets; nothing; each capability alone into each set, for oneself, for oneself by number, and for
// pid 1, and after how many of those tries any set had one. (The kernel takes bits without a name, and drops them.)
static long t_capset(int argc, char **argv)
{
	struct { uint32_t version; int pid; } h = {0x20080522, 0};
	struct { uint32_t set[3]; } d[2] = {{{1u << 21, 1u << 21, 1u << 21}}, {{0}}};
	const char *how = arg(argc, argv, 1, "");
	if (!strcmp(how, "none"))
		memset(d, 0, sizeof d);
	if (strcmp(how, "every"))
		return syscall(SYS_capset, &h, d);
	const int of[] = {0, getpid(), 1};
	int tries = 0, had = 0;
	for (int cap = 0; cap < 64; cap++)
		for (int set = 0; set < 3; set++)
			for (int who = 0; who < 3; who++) {
				memset(d, 0, sizeof d);
				d[cap / 32].set[set] = 1u << cap % 32;
				h.version = 0x20080522, h.pid = of[who];
				syscall(SYS_capset, &h, d);
				h.version = 0x20080522, h.pid = 0;
				memset(d, 0xff, sizeof d);
				int raised = syscall(SYS_capget, &h, d) < 0;
				for (int i = 0; i < 6; i++)
					raised |= d[i / 3].set[i % 3] != 0;
				had += raised, tries++;
			}
	return say("%d of %d", had, tries);
}

// A second filter must not hand the agent a listener of its own, with which it
// could answer its own calls "yes".
static long t_seccomp_listener(int argc, char **argv)
{
	(void)argc, (void)argv;
	struct { uint16_t code; uint8_t jt, jf; uint32_t k; } allow = {6, 0, 0, 0x7fff0000};
	struct { unsigned short len; void *filter; } prog = {1, &allow};
	return keep(syscall(SYS_seccomp, 1 /* SET_MODE_FILTER */, 8 /* NEW_LISTENER */, &prog));
}

// huge mmap|memfd|shm [SIZE]: a page of the host's pool. SIZE is the logarithm of a page size that no machine has: the kernel then
// says EINVAL (mmap, memfd) before it looks for a free page, so that a refusal of the filter's is told apart on a host without a pool.
static long t_huge(int argc, char **argv)
{
	const char *how = arg(argc, argv, 1, "mmap");
	unsigned long size = (unsigned long)num(arg(argc, argv, 2, "0")) << 26; // MAP_HUGE_SHIFT, and the others'
	if (!strcmp(how, "mmap")) {
		void *p = mmap(NULL, 2 << 20, PROT_READ | PROT_WRITE, (int)(MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | size), -1, 0);
		if (p == MAP_FAILED)
			return -1;
		*(volatile char *)p = 1;
		return munmap(p, 2 << 20);
	}
	if (!strcmp(how, "memfd"))
		return keep(syscall(SYS_memfd_create, "huge", 8 /* MFD_NOEXEC_SEAL */ | 4 /* MFD_HUGETLB */ | size));
	if (strcmp(how, "shm"))
		return USAGE;
	int id = (int)syscall(SYS_shmget, IPC_PRIVATE, 2 << 20, (int)(IPC_CREAT | 04000 /* SHM_HUGETLB */ | 0600 | size));
	return id < 0 ? -1 : shmctl(id, IPC_RMID, NULL);
}
