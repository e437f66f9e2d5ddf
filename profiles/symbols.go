// SPDX-License-Identifier: Apache-2.0

package profiles

import (
	"cmp"
	"slices"
)

// A sorted array, not a map: a map literal is built at each start of the process, this is in the binary.
type symbol struct {
	name string
	n    uint64
}

// The values of Linux on amd64 (include/uapi); test compares those that golang.org/x/sys/unix knows.
var symbols = [...]symbol{
	{"AF_ALG", 38},
	{"AF_BLUETOOTH", 31},
	{"AF_INET", 2},
	{"AF_INET6", 10},
	{"AF_NETLINK", 16},
	{"AF_PACKET", 17},
	{"AF_UNIX", 1},
	{"AF_VSOCK", 40},
	{"AF_XDP", 44},
	{"AT_EMPTY_PATH", 0x1000},
	{"CLONE_FILES", 0x400},
	{"CLONE_FS", 0x200},
	{"CLONE_NEWCGROUP", 0x02000000},
	{"CLONE_NEWIPC", 0x08000000},
	{"CLONE_NEWNET", 0x40000000},
	{"CLONE_NEWNS", 0x00020000},
	{"CLONE_NEWPID", 0x20000000},
	{"CLONE_NEWTIME", 0x80},
	{"CLONE_NEWUSER", 0x10000000},
	{"CLONE_NEWUTS", 0x04000000},
	{"CLONE_SIGHAND", 0x800},
	{"CLONE_THREAD", 0x10000},
	{"CLONE_VFORK", 0x4000},
	{"CLONE_VM", 0x100},
	{"F_NOTIFY", 1026},
	{"F_OFD_GETLK", 36},
	{"F_OFD_SETLK", 37},
	{"F_OFD_SETLKW", 38},
	{"F_SETDELEG", 1040}, // Linux 6.19
	{"F_SETLEASE", 1024},
	{"IPPROTO_MPTCP", 262},
	{"IPPROTO_TCP", 6},
	{"IPPROTO_UDP", 17},
	{"MAP_HUGETLB", 0x40000},
	{"MFD_EXEC", 0x10},
	{"MFD_HUGETLB", 0x4},
	{"MFD_NOEXEC_SEAL", 0x8},
	{"NETLINK_ROUTE", 0},
	{"O_CREAT", 0o100},
	{"PROT_EXEC", 4},
	{"PROT_WRITE", 2},
	{"PR_CAPBSET_READ", 23},
	{"PR_GET_CHILD_SUBREAPER", 37},
	{"PR_GET_DUMPABLE", 3},
	{"PR_GET_MDWE", 66},
	{"PR_GET_NAME", 16},
	{"PR_GET_NO_NEW_PRIVS", 39},
	{"PR_GET_PDEATHSIG", 2},
	{"PR_GET_SECCOMP", 21},
	{"PR_GET_SECUREBITS", 27},
	{"PR_GET_SPECULATION_CTRL", 52},
	{"PR_GET_THP_DISABLE", 42},
	{"PR_GET_TIMERSLACK", 30},
	{"PR_SET_CHILD_SUBREAPER", 36},
	{"PR_SET_DUMPABLE", 4},
	{"PR_SET_MDWE", 65},
	{"PR_SET_NAME", 15},
	{"PR_SET_NO_NEW_PRIVS", 38},
	{"PR_SET_PDEATHSIG", 1},
	{"PR_SET_PTRACER", 0x59616d61},
	{"PR_SET_SECCOMP", 22},
	{"PR_SET_THP_DISABLE", 41},
	{"PR_SET_TIMERSLACK", 29},
	{"PR_SET_VMA", 0x53564d41},
	{"RLIMIT_CORE", 4},
	{"SHM_HUGETLB", 0o4000},
	{"SOCK_CLOEXEC", 0o2000000},
	{"SOCK_DGRAM", 2},
	{"SOCK_NONBLOCK", 0o4000},
	{"SOCK_RAW", 3},
	{"SOCK_SEQPACKET", 5},
	{"SOCK_STREAM", 1},
	{"SOCK_TYPE_MASK", 0xf}, // the type without SOCK_CLOEXEC and SOCK_NONBLOCK (include/linux/net.h)
	{"SOL_SOCKET", 1},
	{"SOL_TCP", 6},
	{"SO_ATTACH_FILTER", 26},
	{"SO_ATTACH_REUSEPORT_CBPF", 51},
	{"S_IFBLK", 0o060000},
	{"S_IFCHR", 0o020000},
	{"S_IFIFO", 0o010000},
	{"S_IFMT", 0o170000},
	{"S_IFREG", 0o100000},
	{"S_IFSOCK", 0o140000},
	{"S_ISGID", 0o2000},
	{"S_ISUID", 0o4000},
	{"TCP_ULP", 31},
	{"TIOCCONS", 0x541d},
	{"TIOCLINUX", 0x541c},
	{"TIOCSETD", 0x5423},
	{"TIOCSPTLCK", 0x40045431},
	{"TIOCSTI", 0x5412},
	{"__O_TMPFILE", 0o20000000}, // O_TMPFILE without O_DIRECTORY: the bit the kernel acts on
}

// The errnos a rule may answer. Few on purpose: 0 would fake success, and an odd one sends programs down paths nobody
// has tested.
var errnos = [...]symbol{
	{"EACCES", 13},
	{"EAFNOSUPPORT", 97},
	{"EINVAL", 22},
	{"ENOMEM", 12},
	{"ENOSYS", 38},
	{"ENOTSUP", 95},
	{"EOPNOTSUPP", 95},
	{"EPERM", 1},
	{"EPROTONOSUPPORT", 93},
	{"EROFS", 30},
}

// SymbolValue returns the number of a symbol that profiles may use.
func SymbolValue(name string) (uint64, bool) { return lookup(symbols[:], name) }

// ErrnoValue returns the number of an errno that profiles may use.
func ErrnoValue(name string) (int, bool) {
	n, ok := lookup(errnos[:], name)
	return int(n), ok
}

func lookup(table []symbol, name string) (uint64, bool) {
	i, ok := slices.BinarySearchFunc(table, name, func(s symbol, name string) int { return cmp.Compare(s.name, name) })
	if !ok {
		return 0, false
	}
	return table[i].n, true
}

// KnownSyscall reports whether Linux on amd64 has a call of that name. The table follows golang.org/x/sys/unix up to
// Linux 6.18.
func KnownSyscall(name string) bool {
	_, ok := slices.BinarySearch(syscallNames[:], name)
	return ok
}
