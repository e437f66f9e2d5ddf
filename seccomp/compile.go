// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"

	lib "github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"
)

// Options for Compile.
type Options struct {
	// Arch to compile for. Zero: the native one.
	Arch Arch
	// Plain makes libseccomp emit a list of comparisons instead of a binary tree. The meaning is the same (tests hold the two
	// together), and the program is shorter, but the kernel runs it once for every number when it takes it in (the constant-answer
	// bitmap, since Linux 5.11): 0.6 ms for the list, 0.3 ms for the tree.
	Plain bool
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

// Compile checks the filter and builds its program: first the calls that have conditional rules, generated here, then
// everything else by libseccomp. libseccomp keeps no order between the rules of a call, lets a rule without conditions swallow
// the conditional ones, and takes one comparison per argument, so first-match order cannot be put to it without splitting
// every fallback into disjoint pieces (a refused set of three socket families makes about ninety). A head that returns before
// libseccomp's part is reached says the same in four instructions a rule. BPF jumps are relative and forward only, so putting
// code in front leaves libseccomp's part as it is, with its checks of the architecture and of x32 numbers.
//
// Before the program is returned, it is run for every number and for probes of each condition against the filter's own
// meaning; a difference is an error, not a program.
func (f Filter) Compile(o Options) (Program, error) {
	p, err := f.resolve(o.Arch)
	if err != nil {
		return Program{}, fmt.Errorf("compile seccomp filter: %w", err)
	}
	p.known = knownNumbers(p.arch)
	tail, err := p.libseccomp(o.Plain)
	if err != nil {
		return Program{}, fmt.Errorf("compile seccomp filter: %w", err)
	}
	head := p.head()
	prog := Program{code: append(head, tail...)}
	if prog.Len() > maxInsns {
		return Program{}, fmt.Errorf("compile seccomp filter: %d instructions, the kernel takes %d", prog.Len(), maxInsns)
	}
	if err := p.verify(prog); err != nil {
		return Program{}, fmt.Errorf("compile seccomp filter: %w", err)
	}
	return prog, nil
}

// conditional reports whether the head decides the call.
func conditional(chain []step) bool { return len(chain[0].args) > 0 }

// libseccomp compiles the part without conditions.
func (p *policy) libseccomp(plain bool) ([]byte, error) {
	f, err := lib.NewFilter(libAction(p.unknown))
	if err != nil {
		return nil, fmt.Errorf("make libseccomp filter: %w", err)
	}
	defer f.Release()
	native, err := lib.GetNativeArch()
	if err != nil {
		return nil, fmt.Errorf("ask libseccomp for the native architecture: %w", err)
	}
	if native != p.arch.lib {
		if err := errors.Join(f.AddArch(p.arch.lib), f.RemoveArch(native)); err != nil {
			return nil, fmt.Errorf("set architecture %s: %w", p.arch.name, err)
		}
	}
	if err := f.SetBadArchAction(libAction(p.foreign)); err != nil {
		return nil, fmt.Errorf("set action for foreign architectures: %w", err)
	}
	if !plain {
		if err := f.SetOptimize(2); err != nil {
			return nil, fmt.Errorf("ask for a binary tree: %w", err)
		}
	}
	add := func(nr int, ret uint32) error {
		if ret == p.unknown {
			return nil // the default already; libseccomp refuses a rule that repeats it
		}
		call := lib.ScmpSyscall(nr)
		if native != p.arch.lib {
			// libseccomp reads the number as one of the machine it runs on and translates it by name.
			name, err := call.GetNameByArch(p.arch.lib)
			if err != nil {
				return fmt.Errorf("translate system call %d of %s: %w", nr, p.arch.name, err)
			}
			if call, err = lib.GetSyscallFromName(name); err != nil {
				return fmt.Errorf("translate system call %s of %s: %w", name, p.arch.name, err)
			}
		}
		if err := f.AddRule(call, libAction(ret)); err != nil {
			return fmt.Errorf("add rule for system call %d: %w", nr, err)
		}
		return nil
	}
	for nr := range p.known {
		var err error
		if chain := p.steps[nr]; len(chain) == 0 {
			if p.known[nr] {
				err = add(nr, p.unlisted)
			}
		} else if !conditional(chain) {
			err = add(nr, chain[0].ret)
		}
		if err != nil {
			return nil, err
		}
	}
	return export(f)
}

func libAction(ret uint32) lib.ScmpAction {
	switch ret & unix.SECCOMP_RET_ACTION_FULL {
	case unix.SECCOMP_RET_ALLOW:
		return lib.ActAllow
	case unix.SECCOMP_RET_USER_NOTIF:
		return lib.ActNotify
	case unix.SECCOMP_RET_ERRNO:
		return lib.ActErrno.SetReturnCode(int16(ret & unix.SECCOMP_RET_DATA))
	default:
		return lib.ActKillProcess
	}
}

// export reads the program back through a memory file: libseccomp 2.5 can write it to a descriptor only, and a pipe would need a
// second thread for programs over 64 KiB.
func export(f *lib.ScmpFilter) ([]byte, error) {
	fd, err := unix.MemfdCreate("agentrun-seccomp", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make memory file for the program: %w", err)
	}
	file := os.NewFile(uintptr(fd), "seccomp program")
	defer file.Close()
	if err := f.ExportBPF(file); err != nil {
		return nil, fmt.Errorf("export program from libseccomp: %w", err)
	}
	code, err := io.ReadAll(io.NewSectionReader(file, 0, maxInsns*insnSize+1))
	if err != nil {
		return nil, fmt.Errorf("read program from libseccomp: %w", err)
	}
	if len(code) == 0 || len(code)%insnSize != 0 {
		return nil, fmt.Errorf("read program from libseccomp: %d bytes are no whole program", len(code))
	}
	return code, nil
}

// Instructions the kernel takes in a seccomp filter (seccomp_check_filter in kernel/seccomp.c takes a few more).
const (
	opLoad = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	opAnd  = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	opJump = unix.BPF_JMP | unix.BPF_JA
	opJeq  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	opJgt  = unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K
	opJge  = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	opRet  = unix.BPF_RET | unix.BPF_K
)

// Offsets in struct seccomp_data.
const (
	offNR   = 0
	offArch = 4
	offArgs = 16
)

// builder emits instructions. A conditional jump reaches 255 instructions and is only used within one rule; between
// rules and calls the unconditional jump (32 bits) is used.
type builder struct {
	code []unix.SockFilter
	// fail and done are conditional jumps waiting for their target: the end of the rule, and the end of the condition.
	fail, done []jump
}

type jump struct {
	at     int
	onTrue bool
}

func (b *builder) emit(code uint16, jt, jf uint8, k uint32) int {
	b.code = append(b.code, unix.SockFilter{Code: code, Jt: jt, Jf: jf, K: k})
	return len(b.code) - 1
}

// land points the waiting jumps at the next instruction.
func (b *builder) land(js []jump) []jump {
	for _, j := range js {
		d := uint8(len(b.code) - j.at - 1)
		if j.onTrue {
			b.code[j.at].Jt = d
		} else {
			b.code[j.at].Jf = d
		}
	}
	return js[:0]
}

// landFar points an unconditional jump at the next instruction.
func (b *builder) landFar(at int) { b.code[at].K = uint32(len(b.code) - at - 1) }

// head emits the code for calls with conditional rules; every other call falls through to its end.
func (p *policy) head() []byte {
	var nrs []int
	for _, nr := range slices.Sorted(maps.Keys(p.steps)) {
		if conditional(p.steps[nr]) {
			nrs = append(nrs, nr)
		}
	}
	if len(nrs) == 0 {
		return nil
	}
	b := &builder{}
	var exits []int
	b.emit(opLoad, 0, 0, offArch)
	b.emit(opJeq, 1, 0, p.arch.audit)
	exits = append(exits, b.emit(opJump, 0, 0, 0)) // foreign: libseccomp's part decides
	b.emit(opLoad, 0, 0, offNR)
	b.dispatch(p, nrs, &exits)
	for _, at := range exits {
		b.landFar(at)
	}
	return assemble(b.code)
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

// dispatch emits a binary search over the sorted numbers. x32 numbers are larger than all of them and leave by an exit.
func (b *builder) dispatch(p *policy, nrs []int, exits *[]int) {
	if len(nrs) == 1 {
		b.emit(opJeq, 1, 0, uint32(nrs[0]))
		*exits = append(*exits, b.emit(opJump, 0, 0, 0))
		b.chain(p.steps[nrs[0]], p.unlisted)
		return
	}
	mid := len(nrs) / 2
	b.emit(opJge, 0, 1, uint32(nrs[mid]))
	right := b.emit(opJump, 0, 0, 0)
	b.dispatch(p, nrs[:mid], exits)
	b.landFar(right)
	b.dispatch(p, nrs[mid:], exits)
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
		b.emit(opLoad, 0, 0, off)
		if mask != math.MaxUint32 {
			b.emit(opAnd, 0, 0, mask)
		}
		at := b.emit(opJeq, 0, 0, value)
		switch {
		case !c.differs:
			b.fail = append(b.fail, jump{at, false})
		case last:
			b.fail = append(b.fail, jump{at, true})
		default:
			b.done = append(b.done, jump{at, false})
		}
	}
	half(lo+4, uint32(c.mask>>32), uint32(c.value>>32), uint32(c.mask) == 0)
	half(lo, uint32(c.mask), uint32(c.value), true)
	b.done = b.land(b.done)
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
			return fmt.Errorf("check program: system call %d%v of architecture %#x gives %#x, the filter says %#x (a bug in agentrun or libseccomp)",
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
