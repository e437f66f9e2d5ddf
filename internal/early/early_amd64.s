// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// The program begins here, with the stack as the kernel leaves it, which Go's own beginning finds again.
TEXT agentrun_entry(SB), NOSPLIT|NOFRAME|TOPFRAME, $0-0
	MOVQ SP, DI
	LEAQ ·said(SB), SI
	CALL agentrun_early(SB)
	JMP _rt0_amd64_linux(SB)
