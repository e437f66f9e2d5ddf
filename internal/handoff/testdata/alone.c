// SPDX-License-Identifier: Apache-2.0

// A program that begins as agentrun does, and when it isn't taken over says so and ends with 7.

#include "../../early/c/early.c"

static struct said said;

__attribute__((used)) static void alone(long *stack)
{
	agentrun_early(stack, &said);
	sys3(__NR_write, 1, "alone ", 6);
	sys3(__NR_write, 1, said.declined, length(said.declined));
	leave(&(struct terminal){0}, 7);
}

// As the go command writes it.
__asm__(".section .note.go.buildid,\"a\"\n	.long 4, 8, 4\n	.ascii \"Go\\0\\0\", \"a/b/c/d \"\n.text\n.globl _start\n_start:\n"
#if defined(__x86_64__)
	"	mov %rsp,%rdi\n	call alone\n");
#else
	"	mov x0,sp\n	bl alone\n");
#endif
