// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"encoding/binary"
	"fmt"
)

// Data is what a filter sees of a call (struct seccomp_data without the instruction pointer, which no rule reads).
type Data struct {
	NR   uint32
	Arch uint32 // AUDIT_ARCH_…
	Args [6]uint64
}

// Run executes the program on one call as the kernel would and gives its return value (SECCOMP_RET_…). It knows the
// instructions that Compile and libseccomp emit and reports any other.
func (p Program) Run(d Data) (uint32, error) {
	var acc uint32
	for pc := 0; pc < p.Len(); pc++ {
		in := p.code[pc*insnSize : (pc+1)*insnSize]
		k := binary.NativeEndian.Uint32(in[4:])
		var cond bool
		switch code := binary.NativeEndian.Uint16(in); code {
		case opLoad:
			v, ok := d.load(k)
			if !ok {
				return 0, fmt.Errorf("instruction %d loads offset %d", pc, k)
			}
			acc = v
			continue
		case opAnd:
			acc &= k
			continue
		case opRet:
			return k, nil
		case opJump:
			if k >= maxInsns {
				return 0, fmt.Errorf("instruction %d jumps by %d", pc, k)
			}
			pc += int(k)
			continue
		case opJeq:
			cond = acc == k
		case opJgt:
			cond = acc > k
		case opJge:
			cond = acc >= k
		case opJset:
			cond = acc&k != 0
		default:
			return 0, fmt.Errorf("instruction %d has unknown code %#x", pc, code)
		}
		if cond {
			pc += int(in[2])
		} else {
			pc += int(in[3])
		}
	}
	return 0, fmt.Errorf("program of %d instructions runs past its end", p.Len())
}

// load reads a word of struct seccomp_data. Little-endian, as the supported architectures are.
func (d *Data) load(off uint32) (uint32, bool) {
	switch {
	case off == offNR:
		return d.NR, true
	case off == offArch:
		return d.Arch, true
	case off >= offArgs && off < offArgs+48 && off%4 == 0:
		v := d.Args[(off-offArgs)/8]
		if off%8 == 4 {
			v >>= 32
		}
		return uint32(v), true
	}
	return 0, false
}
