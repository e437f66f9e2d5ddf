// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"fmt"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

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
	on    int // place in call.nr
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
		return archInfo{"amd64", onAMD64, unix.AUDIT_ARCH_X86_64, true}, nil
	case ARM64:
		return archInfo{"arm64", onARM64, unix.AUDIT_ARCH_AARCH64, false}, nil
	}
	return archInfo{}, fmt.Errorf("%w %d (%s)", ErrUnsupportedArch, a, goruntime.GOARCH)
}

// maxNumber is above every number in use: the tables end at 469 in Linux 6.18, and x86-64 has nothing of its own from 512 to 547
// but x32 calls.
const maxNumber = 600

// youngest is the last number that a filter takes for a call when no rule names it: what is younger gives ENOSYS, so that libraries fall back.
// It is what Debian 12's libseccomp names (Linux 6.7).
const youngest = 456

// number resolves a name.
func number(name string, arch archInfo) (int, error) {
	at, found := slices.BinarySearchFunc(calls[:], name, func(c call, name string) int { return strings.Compare(c.name, name) })
	if !found {
		return 0, ErrUnknownName
	}
	nr := calls[at].nr[arch.on]
	if nr < 0 {
		return 0, fmt.Errorf("%s: %w", arch.name, ErrNotHere)
	}
	return int(nr), nil
}

// named gives the name of a number, if it has one.
func named(nr, on int) (string, bool) {
	at := slices.IndexFunc(calls[:], func(c call) bool { return nr >= 0 && int(c.nr[on]) == nr })
	if at < 0 {
		return "", false
	}
	return calls[at].name, true
}

// knownNumbers tells which have a name, up to the youngest.
func knownNumbers(arch archInfo) []bool {
	known := make([]bool, maxNumber)
	for i := range calls {
		if nr := calls[i].nr[arch.on]; nr >= 0 && nr <= youngest {
			known[nr] = true
		}
	}
	return known
}

// Unknown is the name of a call whose number has none. All of them share it: there are 2³² numbers, and reports count by name.
const Unknown = "unknown"

// callName gives the name of a call that was notified, and its architecture's unless that is the native one.
func callName(arch uint32, nr int32) (name, foreign string) {
	native, err := Native.info()
	on := 0
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
		foreign, on, nr = "x32", onX32, nr&^x32Bit
	case arch == unix.AUDIT_ARCH_I386:
		foreign, on = "i386", onI386
	case arch == unix.AUDIT_ARCH_ARM:
		foreign, on = "arm", onARM
	default:
		return Unknown, fmt.Sprintf("%#x", arch)
	}
	name, found := named(int(nr), on)
	if !found {
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
		if name, found := named(nr, info.on); found {
			s = name
		}
	}
	nativeNames[nr].Store(&s)
	return s
}
