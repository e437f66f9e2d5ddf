// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"fmt"
	"os"
	goruntime "runtime"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// rule allows one system call; everything without a rule is refused with EPERM.
type rule struct {
	name   string
	number uint32
	why    string
	// any are alternatives, each a list of conditions that must all hold; nil: whatever the arguments are.
	any [][]condition
}

// condition looks at 32 bits of one argument: those the kernel looks at, for arguments of type int (socket(2), kill(2)) and
// for the flags of clone(2), mmap(2) and prctl(2). Pointers need both halves.
type condition struct {
	arg  uint32
	high bool // the upper half
	mask uint32
	in   []uint32
}

func is(arg uint32, values ...uint32) condition {
	return condition{arg: arg, mask: ^uint32(0), in: values}
}

func bits(arg, mask, want uint32) condition {
	return condition{arg: arg, mask: mask, in: []uint32{want}}
}

// Offsets in struct seccomp_data, seccomp(2); little-endian, as both architectures here are.
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16
)

const refusal = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)

// program compiles rules. A call of another architecture kills the process: its numbers mean something else (i386's 1 is
// exit, amd64's is write), so no rule below can be trusted for it. x32 has amd64's architecture and bit 30 of the number.
func program(rules []rule) []bpf.Instruction {
	load := func(off uint32) bpf.Instruction { return bpf.LoadAbsolute{Off: off, Size: 4} }
	kill := bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS}
	p := []bpf.Instruction{
		load(offArch), bpf.JumpIf{Cond: bpf.JumpEqual, Val: auditArch, SkipTrue: 1}, kill,
		load(offNumber), bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: x32Bit, SkipTrue: 1}, kill,
	}
	for _, r := range rules {
		body := r.body()
		// Each jump is within its rule, so that 8 bits are enough; a longer one doesn't assemble.
		p = append(p, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: r.number, SkipTrue: uint8(len(body))}) //nolint:gosec // TestFilter assembles it
		p = append(p, body...)
	}
	return append(p, bpf.RetConstant{Val: refusal})
}

func (r rule) body() []bpf.Instruction {
	allow := bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}
	if r.any == nil {
		return []bpf.Instruction{allow}
	}
	var body []bpf.Instruction
	for _, alternative := range r.any {
		block := []bpf.Instruction{allow}
		for i := len(alternative) - 1; i >= 0; i-- {
			block = append(alternative[i].test(len(block)), block...)
		}
		body = append(body, block...)
	}
	return append(body, bpf.RetConstant{Val: refusal})
}

// test goes on after its end if the condition holds, and past the rest of its alternative if not.
func (c condition) test(rest int) []bpf.Instruction {
	off := offArgs + 8*c.arg
	if c.high {
		off += 4
	}
	p := []bpf.Instruction{bpf.LoadAbsolute{Off: off, Size: 4}}
	if c.mask != ^uint32(0) {
		p = append(p, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: c.mask})
	}
	for i, v := range c.in {
		left := len(c.in) - 1 - i
		j := bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipTrue: uint8(left)} //nolint:gosec // a handful
		if left == 0 {
			j.SkipFalse = uint8(rest) //nolint:gosec // as above
		}
		p = append(p, j)
	}
	return p
}

// installFilter puts the filter on all threads at once (SECCOMP_FILTER_FLAG_TSYNC): either all have it or none, and then the
// answer is the id of one that couldn't.
func installFilter(o Options) error {
	raw, err := bpf.Assemble(program(allowed(o, os.Getpid())))
	if err != nil {
		return fmt.Errorf("assemble filter: %w", err)
	}
	code := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		code[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]} //nolint:gosec // BPF_MAXINSNS is 4096, and the kernel looks
	stranger, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	goruntime.KeepAlive(code)
	switch {
	case errno != 0:
		return fmt.Errorf("seccomp(2): %w", errno)
	case stranger != 0:
		return fmt.Errorf("seccomp(2): thread %d has a filter of its own", stranger)
	}
	return nil
}
