// SPDX-License-Identifier: Apache-2.0

// For a process that goes on alone, which has a libc.

#include <malloc.h>

#ifdef M_ARENA_MAX // of glibc
// Go's threads hardly allocate by libc, which would make each of them an arena: a mapping of 128 MiB, cut to 64.
__attribute__((constructor)) static void agentrun_one_arena(void) { (void)mallopt(M_ARENA_MAX, 1); }
#endif
