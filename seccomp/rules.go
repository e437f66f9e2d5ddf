// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// narrow has, as a bit per argument, those that the kernel declares as int or unsigned int (SYSCALL_DEFINE in the files
// named). Only arguments that a rule may want to compare are here; those wrongly left out are compared on 64 bits, as libseccomp does.
var narrow = [...]struct {
	name string
	args uint8
}{
	{"accept4", 1<<0 | 1<<3},            // net/socket.c
	{"bpf", 1 << 0},                     // kernel/bpf/syscall.c
	{"clone", 1 << 0},                   // kernel/fork.c: lower_32_bits(clone_flags)
	{"execveat", 1 << 0},                // fs/exec.c: fd and flags
	{"fcntl", 1<<0 | 1<<1},              // fs/fcntl.c
	{"getsockopt", 1<<0 | 1<<1 | 1<<2},  // net/socket.c
	{"ioctl", 1<<0 | 1<<1},              // fs/ioctl.c
	{"keyctl", 1 << 0},                  // security/keys/keyctl.c
	{"kill", 1<<0 | 1<<1},               // kernel/signal.c
	{"madvise", 1 << 2},                 // mm/madvise.c
	{"memfd_create", 1 << 1},            // mm/memfd.c
	{"open", 1 << 1},                    // fs/open.c
	{"openat", 1<<0 | 1<<2},             // fs/open.c
	{"personality", 1 << 0},             // kernel/exec_domain.c
	{"prctl", 1 << 0},                   // kernel/sys.c
	{"prlimit64", 1<<0 | 1<<1},          // kernel/sys.c
	{"sched_setscheduler", 1<<0 | 1<<1}, // kernel/sched/syscalls.c
	{"seccomp", 1<<0 | 1<<1},            // kernel/seccomp.c
	{"setns", 1<<0 | 1<<1},              // kernel/nsproxy.c
	{"setsockopt", 1<<0 | 1<<1 | 1<<2},  // net/socket.c
	{"socket", 1<<0 | 1<<1 | 1<<2},      // net/socket.c
	{"socketpair", 1<<0 | 1<<1 | 1<<2},  // net/socket.c
	{"tgkill", 1<<0 | 1<<1 | 1<<2},      // kernel/signal.c
}

func narrowArgs(name string) uint8 {
	for _, n := range narrow {
		if n.name == name {
			return n.args
		}
	}
	return 0
}

// NamespaceFlags are the flags of clone and unshare that make a namespace. CLONE_NEWTIME shares its bit with the exit
// signal's byte in clone, where it is no flag: legacy clone can't make a time namespace (clone(2)), so it counts in unshare only.
const NamespaceFlags = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// Clone3Flags are those of clone3 that no agent is given: a namespace, or a process in another cgroup.
const Clone3Flags = NamespaceFlags | unix.CLONE_NEWTIME | unix.CLONE_INTO_CGROUP

// SetIDBits are S_ISUID and S_ISGID.
const SetIDBits = unix.S_ISUID | unix.S_ISGID

// class is the part of a call's arguments by which attempts are told apart in reports: comparable, and without the pointers
// and sizes that would make each call its own kind.
type class struct {
	arch  uint32
	nr    int32
	value uint64
}

// classOf gives the class of a call. Unknown numbers are one call with the number as what was tried: a recorder has room for each
// call, and there are 2³² numbers.
func classOf(c *Call) class {
	k := class{c.Arch, int32(c.NR), 0}
	switch {
	case c.Name == Unknown:
		k.nr, k.value = -1, uint64(uint32(c.NR))
	case c.Foreign == "":
		k.value = classValue(c.Name, &c.Args)
	}
	return k
}

// detail says what a call was after: its architecture if that is foreign, its number if that has no name, else as [DescribeArgs].
func (c *Call) detail() string {
	var words []string
	if c.Foreign != "" {
		words = append(words, "arch="+c.Foreign)
	}
	if c.Name == Unknown {
		words = append(words, "number="+decimal(uint64(uint32(c.NR))))
	}
	if words == nil {
		return DescribeArgs(c.Name, c.Args)
	}
	return strings.Join(words, " ")
}

// tellings say which argument of a call tells what was tried, which bits of it, and how they read.
var tellings = [...]struct {
	calls []string
	arg   int
	bits  uint64
	what  string
	text  func(uint64) string
}{
	{[]string{"socket", "socketpair"}, 0, math.MaxUint32, "family=", familyName},
	{[]string{"clone"}, 0, NamespaceFlags | unix.CLONE_THREAD, "flags=", flags.names},
	{[]string{"clone3"}, 0, Clone3Flags, "flags=", flags.names}, // what whoever serves has read of its structure
	{[]string{"unshare"}, 0, NamespaceFlags | unix.CLONE_NEWTIME, "flags=", flags.names},
	{[]string{"setns"}, 1, NamespaceFlags | unix.CLONE_NEWTIME, "flags=", flags.names},
	{[]string{"ioctl"}, 1, math.MaxUint32, "request=", ioctlName},
	{[]string{"fcntl"}, 1, math.MaxUint32, "command=", decimal},
	{[]string{"chmod", "fchmod", "creat", "mkdir", "mknod"}, 1, SetIDBits, "mode=", modes.names},
	{[]string{"fchmodat", "fchmodat2", "mkdirat", "mknodat", "open"}, 2, SetIDBits, "mode=", modes.names},
	{[]string{"openat"}, 3, SetIDBits, "mode=", modes.names},
	{[]string{"prctl", "bpf", "keyctl"}, 0, math.MaxUint32, "operation=", decimal},
	{[]string{"ptrace"}, 0, math.MaxUint32, "request=", decimal},
	{[]string{"personality"}, 0, math.MaxUint32, "persona=", hexadecimal},
}

// classValue picks what says what was tried.
func classValue(name string, args *[6]uint64) uint64 {
	for i := range tellings {
		if t := &tellings[i]; slices.Contains(t.calls, name) {
			return args[t.arg] & t.bits
		}
	}
	return 0
}

// DescribeArgs says in words what a call was after, as far as its registers tell: "family=AF_VSOCK", "flags=CLONE_NEWUSER",
// "request=TIOCSTI". Empty when the name says it all. Nothing is read from the caller's memory.
func DescribeArgs(name string, args [6]uint64) string {
	for i := range tellings {
		if t := &tellings[i]; slices.Contains(t.calls, name) {
			if text := t.text(args[t.arg] & t.bits); text != "" {
				return t.what + text
			}
		}
	}
	return ""
}

func decimal(v uint64) string     { return strconv.FormatUint(v, 10) }
func hexadecimal(v uint64) string { return "0x" + strconv.FormatUint(v, 16) }

var families = [...]string{
	unix.AF_UNSPEC: "AF_UNSPEC", unix.AF_UNIX: "AF_UNIX", unix.AF_INET: "AF_INET", unix.AF_AX25: "AF_AX25",
	unix.AF_IPX: "AF_IPX", unix.AF_APPLETALK: "AF_APPLETALK", unix.AF_NETROM: "AF_NETROM", unix.AF_X25: "AF_X25",
	unix.AF_INET6: "AF_INET6", unix.AF_ROSE: "AF_ROSE", unix.AF_KEY: "AF_KEY", unix.AF_NETLINK: "AF_NETLINK",
	unix.AF_PACKET: "AF_PACKET", unix.AF_RDS: "AF_RDS", unix.AF_PPPOX: "AF_PPPOX", unix.AF_LLC: "AF_LLC",
	unix.AF_IB: "AF_IB", unix.AF_CAN: "AF_CAN", unix.AF_TIPC: "AF_TIPC", unix.AF_BLUETOOTH: "AF_BLUETOOTH",
	unix.AF_IUCV: "AF_IUCV", unix.AF_RXRPC: "AF_RXRPC", unix.AF_PHONET: "AF_PHONET",
	unix.AF_IEEE802154: "AF_IEEE802154", unix.AF_ALG: "AF_ALG", unix.AF_NFC: "AF_NFC", unix.AF_VSOCK: "AF_VSOCK", unix.AF_KCM: "AF_KCM",
	unix.AF_QIPCRTR: "AF_QIPCRTR", unix.AF_SMC: "AF_SMC", unix.AF_XDP: "AF_XDP",
}

func familyName(v uint64) string {
	if v < uint64(len(families)) && families[v] != "" {
		return families[v]
	}
	return decimal(v)
}

// words name bits, or whole values.
type words []struct {
	value uint64
	name  string
}

func (w words) names(v uint64) string {
	var names []string
	for _, bit := range w {
		if v&bit.value != 0 {
			names = append(names, bit.name)
		}
	}
	return strings.Join(names, "|")
}

var (
	flags = words{
		{unix.CLONE_NEWTIME, "CLONE_NEWTIME"}, {unix.CLONE_THREAD, "CLONE_THREAD"}, {unix.CLONE_NEWNS, "CLONE_NEWNS"},
		{unix.CLONE_NEWCGROUP, "CLONE_NEWCGROUP"}, {unix.CLONE_NEWUTS, "CLONE_NEWUTS"}, {unix.CLONE_NEWIPC, "CLONE_NEWIPC"},
		{unix.CLONE_INTO_CGROUP, "CLONE_INTO_CGROUP"}, {unix.CLONE_NEWUSER, "CLONE_NEWUSER"}, {unix.CLONE_NEWPID, "CLONE_NEWPID"}, {unix.CLONE_NEWNET, "CLONE_NEWNET"},
	}
	modes  = words{{unix.S_ISUID, "S_ISUID"}, {unix.S_ISGID, "S_ISGID"}}
	ioctls = words{
		{unix.TIOCSTI, "TIOCSTI"}, {0x541c, "TIOCLINUX"}, {unix.TIOCSCTTY, "TIOCSCTTY"},
		{unix.TIOCCONS, "TIOCCONS"}, {unix.TIOCSETD, "TIOCSETD"},
	}
)

func ioctlName(v uint64) string {
	for _, request := range ioctls {
		if request.value == v {
			return request.name
		}
	}
	return hexadecimal(v)
}
