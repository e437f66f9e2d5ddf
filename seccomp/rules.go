// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// narrowArgs gives, as a bit per argument, those that the kernel declares as int or unsigned int (SYSCALL_DEFINE in the files
// named). Only arguments that a rule may want to compare are here; those wrongly left out are compared on 64 bits, as libseccomp does.
func narrowArgs(name string) uint8 {
	const a0, a1, a2, a3 = 1, 2, 4, 8
	switch name {
	case "socket", "socketpair": // net/socket.c
		return a0 | a1 | a2
	case "setsockopt", "getsockopt": // net/socket.c
		return a0 | a1 | a2
	case "ioctl", "fcntl": // fs/ioctl.c, fs/fcntl.c
		return a0 | a1
	case "prctl", "personality", "bpf", "keyctl": // kernel/sys.c, kernel/exec_domain.c, kernel/bpf/syscall.c, security/keys/keyctl.c
		return a0
	case "seccomp": // kernel/seccomp.c
		return a0 | a1
	case "setns": // kernel/nsproxy.c
		return a0 | a1
	case "clone": // kernel/fork.c: lower_32_bits(clone_flags)
		return a0
	case "open": // fs/open.c
		return a1
	case "openat": // fs/open.c
		return a0 | a2
	case "madvise": // mm/madvise.c
		return a2
	case "memfd_create": // mm/memfd.c
		return a1
	case "prlimit64": // kernel/sys.c
		return a0 | a1
	case "sched_setscheduler": // kernel/sched/syscalls.c
		return a0 | a1
	case "kill": // kernel/signal.c
		return a0 | a1
	case "tgkill":
		return a0 | a1 | a2
	case "execveat": // fs/exec.c: fd and flags
		return a0
	case "accept4": // net/socket.c
		return a0 | a3
	}
	return 0
}

// NamespaceFlags are the flags of clone and unshare that make a namespace. CLONE_NEWTIME shares its bit with the exit
// signal's byte in clone, where it is no flag: legacy clone can't make a time namespace (clone(2)), so it counts in unshare only.
const NamespaceFlags = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// SetIDBits are S_ISUID and S_ISGID.
const SetIDBits = unix.S_ISUID | unix.S_ISGID

// class is the part of a call's arguments by which attempts are told apart in reports: comparable, and without the pointers
// and sizes that would make each call its own kind.
type class struct {
	nr    int32
	value uint64
}

// classValue picks the argument that says what was tried.
func classValue(name string, args *[6]uint64) uint64 {
	switch name {
	case "socket", "socketpair":
		return args[0] & 0xffffffff
	case "clone":
		return args[0] & (NamespaceFlags | unix.CLONE_THREAD)
	case "unshare", "setns":
		i := 0
		if name == "setns" {
			i = 1
		}
		return args[i] & (NamespaceFlags | unix.CLONE_NEWTIME)
	case "ioctl", "fcntl":
		return args[1] & 0xffffffff
	case "chmod", "fchmod", "creat", "mkdir", "mknod":
		return args[1] & SetIDBits
	case "fchmodat", "fchmodat2", "mkdirat", "mknodat", "open":
		return args[2] & SetIDBits
	case "openat":
		return args[3] & SetIDBits
	case "prctl", "personality", "bpf", "keyctl", "ptrace":
		return args[0] & 0xffffffff
	}
	return 0
}

// DescribeArgs says in words what a call was after, as far as its registers tell: "family=AF_VSOCK", "flags=CLONE_NEWUSER",
// "request=TIOCSTI". Empty when the name says it all. Nothing is read from the caller's memory.
func DescribeArgs(name string, args [6]uint64) string {
	v := classValue(name, &args)
	switch name {
	case "socket", "socketpair":
		return "family=" + familyName(v)
	case "clone", "unshare", "setns":
		if s := flagNames(v); s != "" {
			return "flags=" + s
		}
		return ""
	case "ioctl":
		return "request=" + ioctlName(v)
	case "fcntl":
		return "command=" + strconv.FormatUint(v, 10)
	case "chmod", "fchmod", "creat", "mkdir", "mknod", "fchmodat", "fchmodat2", "mkdirat", "mknodat", "open", "openat":
		switch v {
		case unix.S_ISUID:
			return "mode=S_ISUID"
		case unix.S_ISGID:
			return "mode=S_ISGID"
		case SetIDBits:
			return "mode=S_ISUID|S_ISGID"
		}
		return ""
	case "prctl", "bpf", "keyctl":
		return "operation=" + strconv.FormatUint(v, 10)
	case "ptrace":
		return "request=" + strconv.FormatUint(v, 10)
	case "personality":
		return "persona=0x" + strconv.FormatUint(v, 16)
	}
	return ""
}

func familyName(v uint64) string {
	switch v {
	case unix.AF_UNSPEC:
		return "AF_UNSPEC"
	case unix.AF_UNIX:
		return "AF_UNIX"
	case unix.AF_INET:
		return "AF_INET"
	case unix.AF_AX25:
		return "AF_AX25"
	case unix.AF_IPX:
		return "AF_IPX"
	case unix.AF_APPLETALK:
		return "AF_APPLETALK"
	case unix.AF_NETROM:
		return "AF_NETROM"
	case unix.AF_X25:
		return "AF_X25"
	case unix.AF_INET6:
		return "AF_INET6"
	case unix.AF_ROSE:
		return "AF_ROSE"
	case unix.AF_KEY:
		return "AF_KEY"
	case unix.AF_NETLINK:
		return "AF_NETLINK"
	case unix.AF_PACKET:
		return "AF_PACKET"
	case unix.AF_RDS:
		return "AF_RDS"
	case unix.AF_PPPOX:
		return "AF_PPPOX"
	case unix.AF_LLC:
		return "AF_LLC"
	case unix.AF_IB:
		return "AF_IB"
	case unix.AF_CAN:
		return "AF_CAN"
	case unix.AF_TIPC:
		return "AF_TIPC"
	case unix.AF_BLUETOOTH:
		return "AF_BLUETOOTH"
	case unix.AF_IUCV:
		return "AF_IUCV"
	case unix.AF_RXRPC:
		return "AF_RXRPC"
	case unix.AF_PHONET:
		return "AF_PHONET"
	case unix.AF_IEEE802154:
		return "AF_IEEE802154"
	case unix.AF_ALG:
		return "AF_ALG"
	case unix.AF_NFC:
		return "AF_NFC"
	case unix.AF_VSOCK:
		return "AF_VSOCK"
	case unix.AF_KCM:
		return "AF_KCM"
	case unix.AF_QIPCRTR:
		return "AF_QIPCRTR"
	case unix.AF_SMC:
		return "AF_SMC"
	case unix.AF_XDP:
		return "AF_XDP"
	}
	return strconv.FormatUint(v, 10)
}

func ioctlName(v uint64) string {
	const tioclinux = 0x541c
	switch v {
	case unix.TIOCSTI:
		return "TIOCSTI"
	case tioclinux:
		return "TIOCLINUX"
	case unix.TIOCSCTTY:
		return "TIOCSCTTY"
	case unix.TIOCCONS:
		return "TIOCCONS"
	case unix.TIOCSETD:
		return "TIOCSETD"
	}
	return "0x" + strconv.FormatUint(v, 16)
}

func flagNames(v uint64) string {
	var names []string
	for _, f := range [...]struct {
		bit  uint64
		name string
	}{
		{unix.CLONE_NEWTIME, "CLONE_NEWTIME"}, {unix.CLONE_THREAD, "CLONE_THREAD"}, {unix.CLONE_NEWNS, "CLONE_NEWNS"},
		{unix.CLONE_NEWCGROUP, "CLONE_NEWCGROUP"}, {unix.CLONE_NEWUTS, "CLONE_NEWUTS"}, {unix.CLONE_NEWIPC, "CLONE_NEWIPC"},
		{unix.CLONE_NEWUSER, "CLONE_NEWUSER"}, {unix.CLONE_NEWPID, "CLONE_NEWPID"}, {unix.CLONE_NEWNET, "CLONE_NEWNET"},
	} {
		if v&f.bit != 0 {
			names = append(names, f.name)
		}
	}
	return strings.Join(names, "|")
}
