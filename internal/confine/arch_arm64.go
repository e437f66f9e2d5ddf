// SPDX-License-Identifier: Apache-2.0

package confine

import "golang.org/x/sys/unix"

const (
	auditArch  = unix.AUDIT_ARCH_AARCH64
	x32Bit     = 0x80000000 // there is no such thing; no number has the bit
	newfstatat = unix.SYS_FSTATAT
)

func ofArchitecture() []rule { return nil }
