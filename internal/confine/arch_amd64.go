// SPDX-License-Identifier: Apache-2.0

package confine

import "golang.org/x/sys/unix"

const (
	auditArch  = unix.AUDIT_ARCH_X86_64
	x32Bit     = 0x40000000
	newfstatat = unix.SYS_NEWFSTATAT

	archSetFS = 0x1002 // arch_prctl(2)
)

func ofArchitecture() []rule {
	return []rule{
		{"arch_prctl", unix.SYS_ARCH_PRCTL, "a new thread's own storage", [][]condition{{is(0, archSetFS)}}},
		{"epoll_wait", unix.SYS_EPOLL_WAIT, "as epoll_pwait", nil},
		{"time", unix.SYS_TIME, "the vDSO's fallback", nil},
	}
}
