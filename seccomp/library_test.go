// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	lib "github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"
)

// What libseccomp names here has the same number in our table, and what it doesn't name is younger.
func TestCalls(t *testing.T) {
	if !slices.IsSortedFunc(calls[:], func(a, b call) int { return strings.Compare(a.name, b.name) }) {
		t.Fatal("not in order")
	}
	for on := range arches {
		bit := 0
		if on == onX32 {
			bit = x32Bit
		}
		theirs := map[string]int16{}
		for nr := range int16(maxNumber) {
			if name, err := (lib.ScmpSyscall(nr) | lib.ScmpSyscall(bit)).GetNameByArch(libArch(on)); err == nil {
				theirs[name] = nr
			}
		}
		for _, c := range calls {
			nr, found := theirs[c.name]
			if found != (c.nr[on] >= 0) && c.nr[on] <= youngest || found && nr != c.nr[on] {
				t.Errorf("%s (%d): %d, and libseccomp says %d, %t", c.name, on, c.nr[on], nr, found)
			}
			delete(theirs, c.name)
		}
		if len(theirs) > 0 {
			t.Errorf("%d: libseccomp names %v", on, theirs)
		}
	}
}

// libBundle is what runc asks of libseccomp.
func libBundle(t *testing.T, s *specs.LinuxSeccomp) Program {
	t.Helper()
	actions := map[specs.LinuxSeccompAction]lib.ScmpAction{
		specs.ActAllow: lib.ActAllow, specs.ActLog: lib.ActLog, specs.ActErrno: lib.ActErrno.SetReturnCode(1), specs.ActTrap: lib.ActTrap,
		specs.ActKill: lib.ActKillThread, specs.ActKillProcess: lib.ActKillProcess,
	}
	ops := map[specs.LinuxSeccompOperator]lib.ScmpCompareOp{
		specs.OpNotEqual: lib.CompareNotEqual, specs.OpLessThan: lib.CompareLess, specs.OpLessEqual: lib.CompareLessOrEqual, specs.OpEqualTo: lib.CompareEqual,
		specs.OpGreaterEqual: lib.CompareGreaterEqual, specs.OpGreaterThan: lib.CompareGreater, specs.OpMaskedEqual: lib.CompareMaskedEqual,
	}
	f, err := lib.NewFilter(actions[s.DefaultAction])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Release()
	for _, r := range s.Syscalls {
		if r.Action == s.DefaultAction {
			continue
		}
		var conds []lib.ScmpCondition
		for _, a := range r.Args {
			c, err := lib.MakeCondition(a.Index, ops[a.Op], a.Value, a.ValueTwo)
			if err != nil {
				t.Fatal(err)
			}
			conds = append(conds, c)
		}
		for _, name := range r.Names {
			nr, err := lib.GetSyscallFromName(name)
			if err == nil {
				err = f.AddRuleConditional(nr, actions[r.Action], conds)
			}
			if err != nil {
				t.Fatalf("%s %v: %v", name, r.Args, err)
			}
		}
	}
	code, err := export(f)
	if err != nil {
		t.Fatal(err)
	}
	return Program{code: code}
}

// The bundle's filters mean what libseccomp makes of them, wherever that is no matter of its tree's shape.
func TestBundleAsLibrary(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	pick := func(list []uint64) uint64 { return list[rnd.IntN(len(list))] }
	values := []uint64{0, 1, 2, 7, 8, 0xff, 1 << 31, math.MaxUint32, 1 << 32, 1<<32 + 8, 1 << 63, math.MaxUint64 - 1, math.MaxUint64}
	names := []string{"read", "write", "ioctl", "clone", "socket", "personality"}
	ops := []specs.LinuxSeccompOperator{
		specs.OpNotEqual, specs.OpLessThan, specs.OpLessEqual, specs.OpEqualTo, specs.OpGreaterEqual, specs.OpGreaterThan, specs.OpMaskedEqual,
	}
	defaults := []specs.LinuxSeccompAction{specs.ActAllow, specs.ActErrno, specs.ActKill, specs.ActLog, specs.ActTrap, specs.ActKillProcess}
	arch, err := Native.info()
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for range 300 {
		s := &specs.LinuxSeccomp{DefaultAction: defaults[rnd.IntN(len(defaults))]}
		for _, name := range names {
			r := specs.LinuxSyscall{Names: []string{name}, Action: defaults[rnd.IntN(len(defaults))]}
			for i := range uint(6) {
				if rnd.IntN(3) == 0 {
					r.Args = append(r.Args, specs.LinuxSeccompArg{Index: i, Value: pick(values), ValueTwo: pick(values), Op: ops[rnd.IntN(len(ops))]})
				}
			}
			s.Syscalls = append(s.Syscalls, r)
		}
		ours, err := OfBundle(s)
		if err != nil {
			t.Fatal(err)
		}
		theirs := libBundle(t, s)
		for range 200 {
			nr, err := number(names[rnd.IntN(len(names))], arch)
			if err != nil {
				t.Fatal(err)
			}
			d := Data{NR: uint32(nr), Arch: arch.audit}
			for i := range d.Args {
				d.Args[i] = pick(values) + uint64(rnd.IntN(3)) - 1
			}
			got, err := ours.Run(d)
			want, failed := theirs.Run(d)
			if err := errors.Join(err, failed); err != nil {
				t.Fatal(err)
			}
			named := slices.ContainsFunc(s.Syscalls, func(r specs.LinuxSyscall) bool {
				n, _ := number(r.Names[0], arch)
				return n >= nr
			})
			if got != want && (named || got != retENOSYS) {
				t.Fatalf("%s: %v: %#x, and libseccomp says %#x", text(t, s), d, got, want)
			}
			compared++
		}
	}
	t.Log(compared, "calls compared")
}

func text(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// byLibrary is what libseccomp makes of a filter, of which it can express what has no conditions: the other opinion on numbers and
// architectures.
func byLibrary(t testing.TB, f Filter, a Arch) Program {
	t.Helper()
	p, err := f.resolve(a)
	if err != nil {
		t.Fatal(err)
	}
	p.known = knownNumbers(p.arch)
	code, err := p.libseccomp()
	if err != nil {
		t.Fatal(err)
	}
	return Program{code: code}
}

func (p *policy) libseccomp() ([]byte, error) {
	f, err := lib.NewFilter(libAction(p.unknown))
	if err != nil {
		return nil, fmt.Errorf("make libseccomp filter: %w", err)
	}
	defer f.Release()
	native, err := lib.GetNativeArch()
	if err != nil {
		return nil, fmt.Errorf("ask libseccomp for the native architecture: %w", err)
	}
	if native != libArch(p.arch.on) {
		if err := errors.Join(f.AddArch(libArch(p.arch.on)), f.RemoveArch(native)); err != nil {
			return nil, fmt.Errorf("set architecture %s: %w", p.arch.name, err)
		}
	}
	if err := f.SetBadArchAction(libAction(p.foreign)); err != nil {
		return nil, fmt.Errorf("set action for foreign architectures: %w", err)
	}
	add := func(nr int, ret uint32) error {
		if ret == p.unknown {
			return nil // the default already; libseccomp refuses a rule that repeats it
		}
		call := lib.ScmpSyscall(nr)
		if native != libArch(p.arch.on) {
			// libseccomp reads the number as one of the machine it runs on and translates it by name.
			name, err := call.GetNameByArch(libArch(p.arch.on))
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

func libArch(on int) lib.ScmpArch {
	return [arches]lib.ScmpArch{lib.ArchAMD64, lib.ArchARM64, lib.ArchX86, lib.ArchX32, lib.ArchARM}[on]
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
