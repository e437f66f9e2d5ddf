// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// A function's first act is to see that its stack has room for its frame. These have a frame and nothing in it.

TEXT ·Room32(SB), 0, $24576-0
	RET

TEXT ·Room16(SB), 0, $12288-0
	RET

TEXT ·Room8(SB), 0, $5120-0
	RET
