// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"slices"

	"golang.org/x/sys/unix"
)

// Options for Compile.
type Options struct {
	// Arch to compile for. Zero: the native one.
	Arch Arch
}

// Program is a compiled filter.
type Program struct {
	code []byte
	// Cached says that it was read from the cache; CacheErr why the cache could not be used, if so.
	Cached   bool
	CacheErr error
}

// Bytes is the array of struct sock_filter, in native byte order, as struct sock_fprog.filter points to it.
func (p Program) Bytes() []byte { return p.code }

// Len is the number of instructions (struct sock_fprog.len).
func (p Program) Len() int { return len(p.code) / insnSize }

// Digest is the SHA-256 of Bytes in hex.
func (p Program) Digest() string {
	sum := sha256.Sum256(p.code)
	return hex.EncodeToString(sum[:])
}

const (
	insnSize = 8
	maxInsns = 4096 // BPF_MAXINSNS
)

// Compile checks the filter and builds its program: a binary search for the number, with one leaf for all neighbours that have the same
// answer, and one for each call that has conditions, whose rules it tries in order. libseccomp can't be asked for it: it keeps no order
// between the rules of a call, lets a rule without conditions swallow the conditional ones, and takes one comparison per argument; and
// its tree has a comparison and an answer for each number, twice as much for the kernel to translate at each start.
//
// Before the program is returned, it is run for every number and for probes of each condition against the filter's own
// meaning; a difference is an error, not a program.
func (f Filter) Compile(o Options) (Program, error) {
	p, err := f.resolve(o.Arch)
	if err != nil {
		return Program{}, fmt.Errorf("compile seccomp filter: %w", err)
	}
	p.known = knownNumbers(p.arch)
	prog := Program{code: p.assemble()}
	if prog.Len() > maxInsns {
		return Program{}, fmt.Errorf("compile seccomp filter: %d instructions, the kernel takes %d", prog.Len(), maxInsns)
	}
	if err := p.verify(prog); err != nil {
		return Program{}, fmt.Errorf("compile seccomp filter: %w", err)
	}
	return prog, nil
}

// conditional reports whether a call's answer depends on its arguments.
func conditional(chain []step) bool { return len(chain) > 0 && len(chain[0].args) > 0 }

// assemble is the whole program.
func (p *policy) assemble() []byte {
	b := &builder{}
	b.emit(opLoad, 0, 0, offArch)
	b.emit(opJeq, 1, 0, p.arch.audit)
	b.emit(opRet, 0, 0, p.foreign)
	b.emit(opLoad, 0, 0, offNR)
	return assemble(append(b.code, search(p.leaves())...))
}

// leaf is what is decided for a number and for those up to the next leaf's.
type leaf struct {
	from uint32
	code []unix.SockFilter
}

// leaves are in order, and begin at 0.
func (p *policy) leaves() (list []leaf) {
	answered := false // by the leaf before, without a look at arguments
	add := func(from, ret uint32) {
		if answered && list[len(list)-1].code[0].K == ret {
			return
		}
		list, answered = append(list, leaf{from, []unix.SockFilter{{Code: opRet, K: ret}}}), true
	}
	for nr := range uint32(maxNumber) {
		d := Data{NR: nr, Arch: p.arch.audit}
		if chain := p.steps[int(nr)]; conditional(chain) {
			b := &builder{}
			b.chain(chain, p.unlisted)
			list, answered = append(list, leaf{nr, b.code}), false
		} else {
			add(nr, p.decide(d))
		}
	}
	add(maxNumber, p.unknown)
	if p.arch.x32 { // by the bit alone, and -1 is a tracer's
		add(x32Bit, p.foreign)
		add(2*x32Bit, p.unknown)
		add(3*x32Bit, p.foreign)
		add(math.MaxUint32, p.unknown)
	}
	return list
}

// search finds the leaf of the number that was loaded. A conditional jump reaches 255 instructions, an unconditional one everything.
func search(list []leaf) []unix.SockFilter {
	if len(list) == 1 {
		return list[0].code
	}
	mid := len(list) / 2
	low, high := search(list[:mid]), search(list[mid:])
	code := []unix.SockFilter{{Code: opJge, K: list[mid].from, Jt: uint8(len(low))}} //nolint:gosec // or else, as follows
	if len(low) > math.MaxUint8 {
		code = []unix.SockFilter{{Code: opJge, K: list[mid].from, Jf: 1}, {Code: opJump, K: uint32(len(low))}} //nolint:gosec // 4096 at most
	}
	return slices.Concat(code, low, high)
}

// Instructions the kernel takes in a seccomp filter (seccomp_check_filter in kernel/seccomp.c takes a few more).
const (
	opLoad = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	opAnd  = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	opJump = unix.BPF_JMP | unix.BPF_JA
	opJeq  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	opJgt  = unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K
	opJge  = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	opJset = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
	opRet  = unix.BPF_RET | unix.BPF_K
)

// Offsets in struct seccomp_data.
const (
	offNR   = 0
	offArch = 4
	offArgs = 16
)

// builder emits the rules of one call. A conditional jump reaches 255 instructions and is only used within one rule.
type builder struct {
	code []unix.SockFilter
	word uint32 // offset of what is loaded, however it was come to here; 0, as the number's is: something else
	// fail and done are conditional jumps waiting for their target: the end of the rule, and the end of the condition.
	fail, done []jump
}

type jump struct {
	at     int
	onTrue bool
	word   uint32
}

func (b *builder) emit(code uint16, jt, jf uint8, k uint32) int {
	b.code = append(b.code, unix.SockFilter{Code: code, Jt: jt, Jf: jf, K: k})
	return len(b.code) - 1
}

// land points the waiting jumps at the next instruction.
func (b *builder) land(js []jump) []jump {
	for _, j := range js {
		if b.word != j.word {
			b.word = 0
		}
		d := uint8(len(b.code) - j.at - 1)
		if j.onTrue {
			b.code[j.at].Jt = d
		} else {
			b.code[j.at].Jf = d
		}
	}
	return js[:0]
}

// assemble writes instructions as the kernel reads them.
func assemble(code []unix.SockFilter) []byte {
	out := make([]byte, 0, len(code)*insnSize+4096)
	for _, in := range code {
		out = binary.NativeEndian.AppendUint16(out, in.Code)
		out = append(out, in.Jt, in.Jf)
		out = binary.NativeEndian.AppendUint32(out, in.K)
	}
	return out
}

// chain emits the rules of one call in order; it always returns.
func (b *builder) chain(chain []step, unlisted uint32) {
	for _, s := range chain {
		for _, c := range s.args {
			b.cond(c)
		}
		b.emit(opRet, 0, 0, s.ret)
		if len(s.args) == 0 {
			return
		}
		b.word = b.fail[0].word // nothing falls through, and each condition can fail: its mask selects something
		b.fail = b.land(b.fail)
	}
	b.emit(opRet, 0, 0, unlisted)
}

// cond emits one condition: falls through when it holds, jumps to the rule's end when not.
func (b *builder) cond(c cond) {
	lo := uint32(offArgs + 8*c.index)
	half := func(off, mask, value uint32, last bool) {
		if mask == 0 {
			return
		}
		b.load(off)
		code, equal := uint16(opJeq), true // whether the jump's condition is that it is equal
		switch {
		case mask == math.MaxUint32:
		case value == 0 || value == mask && mask&(mask-1) == 0:
			code, equal, value = opJset, value != 0, mask
		default:
			b.emit(opAnd, 0, 0, mask)
			b.word = 0
		}
		at := b.emit(code, 0, 0, value)
		switch {
		case !c.differs:
			b.fail = append(b.fail, jump{at, !equal, b.word})
		case last:
			b.fail = append(b.fail, jump{at, equal, b.word})
		default:
			b.done = append(b.done, jump{at, !equal, b.word})
		}
	}
	if c.atLeast {
		b.atLeast(lo, c)
	} else {
		half(lo+4, uint32(c.mask>>32), uint32(c.value>>32), uint32(c.mask) == 0)
		half(lo, uint32(c.mask), uint32(c.value), true)
	}
	b.done = b.land(b.done)
}

// atLeast compares the upper halves first.
func (b *builder) atLeast(lo uint32, c cond) {
	more, less := &b.done, &b.fail
	if c.differs {
		more, less = less, more
	}
	b.load(lo + 4)
	high := uint32(c.value >> 32)
	*more = append(*more, jump{b.emit(opJgt, 0, 0, high), true, b.word})
	*less = append(*less, jump{b.emit(opJeq, 0, 0, high), false, b.word})
	b.load(lo)
	b.fail = append(b.fail, jump{b.emit(opJge, 0, 0, uint32(c.value)), c.differs, b.word})
}

func (b *builder) load(off uint32) {
	if b.word != off {
		b.emit(opLoad, 0, 0, off)
	}
	b.word = off
}

// verify runs the program against the policy's meaning: every number with arguments zero and all ones, a foreign
// architecture, x32 numbers, and for each condition the values at and around its edges.
func (p *policy) verify(prog Program) error {
	check := func(d Data) error {
		got, err := prog.Run(d)
		if err != nil {
			return fmt.Errorf("check program: %w", err)
		}
		if want := p.decide(d); got != want {
			return fmt.Errorf("check program: system call %d%v of architecture %#x gives %#x, the filter says %#x (a bug in agentrun)",
				int32(d.NR), d.Args, d.Arch, got, want)
		}
		return nil
	}
	ones := [6]uint64{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}
	for nr := uint32(0); nr < maxNumber; nr++ {
		if err := check(Data{NR: nr, Arch: p.arch.audit}); err != nil {
			return err
		}
		if len(p.steps[int(nr)]) > 0 {
			if err := check(Data{NR: nr, Arch: p.arch.audit, Args: ones}); err != nil {
				return err
			}
		}
	}
	for _, d := range []Data{
		{NR: 0, Arch: unix.AUDIT_ARCH_I386}, {NR: 11, Arch: unix.AUDIT_ARCH_I386}, {NR: 11, Arch: unix.AUDIT_ARCH_ARM},
		{NR: x32Bit, Arch: p.arch.audit}, {NR: x32Bit | 520, Arch: p.arch.audit}, {NR: ^uint32(1), Arch: p.arch.audit},
		{NR: ^uint32(0), Arch: p.arch.audit}, {NR: maxNumber, Arch: p.arch.audit}, {NR: 0x3fffffff, Arch: p.arch.audit},
		{NR: 2 * x32Bit, Arch: p.arch.audit}, {NR: 3*x32Bit - 1, Arch: p.arch.audit}, {NR: 3 * x32Bit, Arch: p.arch.audit},
	} {
		if err := check(d); err != nil {
			return err
		}
	}
	for nr, chain := range p.steps {
		for _, s := range chain {
			// Start from arguments that make the rule's conditions hold where that is simple, then turn one after the other.
			d := Data{NR: uint32(nr), Arch: p.arch.audit}
			for _, c := range s.args {
				d.Args[c.index] = c.example()
			}
			if err := check(d); err != nil {
				return err
			}
			for _, c := range s.args {
				old := d.Args[c.index]
				for _, v := range c.edges() {
					d.Args[c.index] = v
					if err := check(d); err != nil {
						return err
					}
				}
				d.Args[c.index] = old
			}
		}
	}
	return nil
}

// example is a value for which the condition holds, if there is one.
func (c cond) example() uint64 {
	for _, v := range c.edges() {
		if c.holds(v) {
			return v
		}
	}
	return c.value
}

// edges are the values where a wrong comparison would show.
func (c cond) edges() []uint64 {
	bit := c.mask & -c.mask
	return []uint64{
		c.value, c.value ^ bit, c.value + 1, c.value - 1, c.value | 1<<32, c.value ^ 1<<63, c.value ^ 1<<31, c.value ^ c.mask, 0, ^uint64(0),
	}
}
