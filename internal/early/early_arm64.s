// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// The program begins here, with the stack as the kernel leaves it, which Go's own beginning finds again.
TEXT agentrun_entry(SB), NOSPLIT|NOFRAME|TOPFRAME, $0-0
	MOVD RSP, R0
	MOVD $·said(SB), R1
	CALL agentrun_early(SB)
	MOVD ZR, R30
	JMP _rt0_arm64_linux(SB)
