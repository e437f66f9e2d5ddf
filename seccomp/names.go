// SPDX-License-Identifier: Apache-2.0

package seccomp

// #cgo pkg-config: libseccomp
// #include <seccomp.h>
import "C"

import (
	"fmt"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync/atomic"

	lib "github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"
)

// Arch is the architecture a program is compiled for.
type Arch uint8

const (
	// Native is the architecture of this binary.
	Native Arch = iota
	// AMD64 is x86-64 without x32.
	AMD64
	// ARM64 is aarch64.
	ARM64
)

type archInfo struct {
	name  string
	lib   lib.ScmpArch
	audit uint32
	x32   bool
}

// x32Bit marks x32 numbers under AUDIT_ARCH_X86_64 (__X32_SYSCALL_BIT).
const x32Bit = 0x40000000

// info describes the architecture. Only little-endian ones are here: the argument halves are addressed that way.
func (a Arch) info() (archInfo, error) {
	if a == Native {
		switch goruntime.GOARCH {
		case "amd64":
			a = AMD64
		case "arm64":
			a = ARM64
		}
	}
	switch a {
	case AMD64:
		return archInfo{"amd64", lib.ArchAMD64, unix.AUDIT_ARCH_X86_64, true}, nil
	case ARM64:
		return archInfo{"arm64", lib.ArchARM64, unix.AUDIT_ARCH_AARCH64, false}, nil
	}
	return archInfo{}, fmt.Errorf("%w %d (%s)", ErrUnsupportedArch, a, goruntime.GOARCH)
}

// maxNumber is above every number in use: the tables end at 469 in Linux 6.18, and x86-64 has nothing of its own from 512 to 547
// but x32 calls.
const maxNumber = 600

// newer gives the numbers of calls that are younger than libseccomp 2.5.4 (Linux 5.17; Debian 12 adds a few to it). From 424 on a call has the same number on every
// architecture (commit 39036cd27273 "arch: add pidfd and io_uring syscalls everywhere" and after). Without this table a profile
// could not speak of fchmodat2, which sets setuid bits as chmod does. For a filter, one that no rule names is a number without name.
func newer(name string) (int, bool) {
	for i, n := range newerNames {
		if n == name {
			return newerFirst + i, true
		}
	}
	return 0, false
}

const newerFirst = 450

var newerNames = [...]string{
	"set_mempolicy_home_node", "cachestat", "fchmodat2", "map_shadow_stack", "futex_wake", "futex_wait", "futex_requeue",
	"statmount", "listmount", "lsm_get_self_attr", "lsm_set_self_attr", "lsm_list_modules", "mseal",
	"setxattrat", "getxattrat", "listxattrat", "removexattrat", "open_tree_attr", "file_getattr", "file_setattr",
}

// number resolves a name. libseccomp gives a negative pseudo number to a call that only other architectures have.
func number(name string, arch archInfo) (int, error) {
	nr, err := lib.GetSyscallFromNameByArch(name, arch.lib)
	if err != nil {
		if n, ok := newer(name); ok {
			return n, nil
		}
		return 0, ErrUnknownName
	}
	if nr < 0 {
		return 0, fmt.Errorf("%s: %w", arch.name, ErrNotHere)
	}
	return int(nr), nil
}

// knownNumbers asks libseccomp which numbers have a name.
func knownNumbers(arch archInfo) []bool {
	known := make([]bool, maxNumber)
	for nr := range known {
		_, err := lib.ScmpSyscall(nr).GetNameByArch(arch.lib)
		known[nr] = err == nil
	}
	return known
}

// version is that of the library in memory, which the name tables come from. The binding's own function gives the older of
// header and library, and would hide an upgrade from the cache's key.
func version() [3]uint32 {
	v := C.seccomp_version()
	return [3]uint32{uint32(v.major), uint32(v.minor), uint32(v.micro)}
}

// Unknown is the name of a call whose number has none. All of them share it: there are 2³² numbers, and reports count by name.
const Unknown = "unknown"

// callName gives the name of a call that was notified, and its architecture's unless that is the native one.
func callName(arch uint32, nr int32) (name, foreign string) {
	native, err := Native.info()
	var of lib.ScmpArch
	switch {
	case err == nil && arch == native.audit && (!native.x32 || nr&x32Bit == 0 || nr == -1):
		if nr < 0 || nr >= maxNumber {
			return Unknown, ""
		}
		if name = Name(int(nr)); strings.HasPrefix(name, unnamed) {
			name = Unknown
		}
		return name, ""
	case arch == unix.AUDIT_ARCH_X86_64:
		foreign, of = "x32", lib.ArchX32
	case arch == unix.AUDIT_ARCH_I386:
		foreign, of = "i386", lib.ArchX86
	case arch == unix.AUDIT_ARCH_ARM:
		foreign, of = "arm", lib.ArchARM
	default:
		return Unknown, fmt.Sprintf("%#x", arch)
	}
	if name, err = lib.ScmpSyscall(nr).GetNameByArch(of); err != nil || nr < 0 { // libseccomp has names of its own below 0
		name = Unknown
	}
	return name, foreign
}

const unnamed = "syscall_"

// nativeNames is filled as numbers are seen: all of them at once would cost 0.2 ms at the start of every run, and one lookup
// for each call would allocate.
var nativeNames [maxNumber]atomic.Pointer[string]

// Name gives the native system call's name, or its number in words when it has none.
func Name(nr int) string {
	if nr < 0 || nr >= maxNumber {
		return unnamed + strconv.Itoa(nr)
	}
	if s := nativeNames[nr].Load(); s != nil {
		return *s
	}
	s := unnamed + strconv.Itoa(nr)
	if info, err := Native.info(); err == nil {
		if n, err := lib.ScmpSyscall(nr).GetNameByArch(info.lib); err == nil {
			s = n
		} else if i := nr - newerFirst; i >= 0 && i < len(newerNames) {
			s = newerNames[i]
		}
	}
	nativeNames[nr].Store(&s)
	return s
}
