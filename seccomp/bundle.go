// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	lib "github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"

	"agentrun/internal/read"
)

// bundleActions are those that a bundle's filter may take. SCMP_ACT_KILL is the thread's, as in libseccomp.
var bundleActions = map[specs.LinuxSeccompAction]lib.ScmpAction{
	specs.ActAllow: lib.ActAllow, specs.ActLog: lib.ActLog, specs.ActErrno: lib.ActErrno, specs.ActTrap: lib.ActTrap,
	specs.ActKill: lib.ActKillThread, specs.ActKillThread: lib.ActKillThread, specs.ActKillProcess: lib.ActKillProcess,
}

// without says why there are no others.
var without = map[specs.LinuxSeccompAction]string{
	specs.ActNotify: "it asks a program of the engine's (listenerPath), and the supervisor answers for a run",
	specs.ActTrace:  "nothing may trace a run",
}

var bundleOps = map[specs.LinuxSeccompOperator]lib.ScmpCompareOp{
	specs.OpNotEqual: lib.CompareNotEqual, specs.OpLessThan: lib.CompareLess, specs.OpLessEqual: lib.CompareLessOrEqual, specs.OpEqualTo: lib.CompareEqual,
	specs.OpGreaterEqual: lib.CompareGreaterEqual, specs.OpGreaterThan: lib.CompareGreater, specs.OpMaskedEqual: lib.CompareMaskedEqual,
}

// bundleFlags are without meaning for a filter that holds beside another, or would loosen what that one has.
var bundleFlags = []specs.LinuxSeccompFlag{"SECCOMP_FILTER_FLAG_TSYNC", specs.LinuxSeccompFlagSpecAllow, specs.LinuxSeccompFlagWaitKillableRecv}

// bundleArchs are the names of those we run on.
var bundleArchs = map[lib.ScmpArch]specs.Arch{lib.ArchAMD64: specs.ArchX86_64, lib.ArchARM64: specs.ArchAARCH64}

// OfBundle compiles the filter of a container's bundle (linux.seccomp of its config.json) for the native architecture, as runc does: by
// libseccomp, and with ENOSYS for calls that are younger than all that it names, so that libraries fall back to older ones. By itself it
// is no wall, since it may allow everything: see [Program.Within]. What it can't be taken at its word for is refused by name, joined.
func OfBundle(s *specs.LinuxSeccomp) (Program, error) {
	arch, err := Native.info()
	if err != nil {
		return Program{}, err
	}
	b := &bundle{arch: arch}
	base := b.action("defaultAction", s.DefaultAction, s.DefaultErrnoRet)
	if len(s.Architectures) > 0 && !slices.Contains(s.Architectures, bundleArchs[arch.lib]) {
		b.bad("architectures", "%s is not among them, so that every call of the container's would be its end", bundleArchs[arch.lib])
	}
	for _, flag := range s.Flags {
		if !slices.Contains(bundleFlags, flag) {
			b.bad("flags", "%.64q can't be honoured", string(flag))
		}
	}
	if err := errors.Join(b.problems...); err != nil {
		return Program{}, err
	}
	if b.filter, err = lib.NewFilter(base); err != nil {
		return Program{}, fmt.Errorf("make libseccomp filter: %w", err)
	}
	defer b.filter.Release()
	if err := b.filter.SetOptimize(2); err != nil {
		return Program{}, fmt.Errorf("ask for a binary tree: %w", err)
	}
	for i := range s.Syscalls {
		b.rule(fmt.Sprintf("syscalls[%d]", i), &s.Syscalls[i], base)
	}
	if err := errors.Join(b.problems...); err != nil {
		return Program{}, err
	}
	code, err := export(b.filter)
	if err != nil {
		return Program{}, err
	}
	if base != lib.ActAllow && base != lib.ActLog {
		code = append(assemble([]unix.SockFilter{
			{Code: opLoad, K: offNR}, {Code: opJgt, K: b.youngest, Jf: 1}, {Code: opRet, K: retENOSYS},
		}), code...)
	}
	return Program{code: code}, nil
}

// bundle is a filter in the making, and what is wrong with it.
type bundle struct {
	arch     archInfo
	filter   *lib.ScmpFilter
	youngest uint32 // number that it names
	problems []error
}

func (b *bundle) bad(path, format string, args ...any) {
	b.problems = append(b.problems, read.Bad("linux.seccomp."+path, format, args...))
}

func (b *bundle) action(path string, name specs.LinuxSeccompAction, errno *uint) lib.ScmpAction {
	action, ok := bundleActions[name]
	switch {
	case without[name] != "":
		b.bad(path, "%s can't be honoured: %s", name, without[name])
	case !ok:
		b.bad(path, "%.64q is no action", string(name))
	case name != specs.ActErrno: // others' errnoRet has no meaning
	case errno == nil:
		return action.SetReturnCode(int16(unix.EPERM))
	case *errno == 0 || *errno > maxErrno: // 0 would be a success of what hasn't run
		b.bad(path, "errno %d is no error number", *errno)
	default:
		return action.SetReturnCode(int16(*errno)) //nolint:gosec // 4095 at most
	}
	return action
}

func (b *bundle) rule(path string, r *specs.LinuxSyscall, base lib.ScmpAction) {
	action := b.action(path+".action", r.Action, r.ErrnoRet)
	conds := b.conditions(path, r.Args)
	for _, name := range r.Names {
		nr, err := number(name, b.arch)
		if err != nil {
			continue // of another architecture, or without a number that we know: the ring's filter has ENOSYS for those
		}
		b.youngest = max(b.youngest, uint32(nr)) //nolint:gosec // a call's number
		if action == base {
			continue // libseccomp refuses a rule that repeats the default
		}
		for _, all := range conds {
			if err := b.filter.AddRuleConditional(lib.ScmpSyscall(nr), action, all); err != nil {
				b.bad(path, "%.64s: %v", name, err)
			}
		}
	}
}

// conditions are the lists of which one must hold whole. As runc has it, conditions of one argument are alternatives.
func (b *bundle) conditions(path string, args []specs.LinuxSeccompArg) (lists [][]lib.ScmpCondition) {
	var all []lib.ScmpCondition
	seen, twice := map[uint]bool{}, false
	for i, a := range args {
		op, ok := bundleOps[a.Op]
		if !ok {
			b.bad(fmt.Sprintf("%s.args[%d].op", path, i), "%.64q is no comparison", string(a.Op))
			continue
		}
		cond, err := lib.MakeCondition(a.Index, op, a.Value, a.ValueTwo)
		if err != nil {
			b.bad(fmt.Sprintf("%s.args[%d]", path, i), "%v", err)
			continue
		}
		twice = twice || seen[a.Index]
		seen[a.Index] = true
		all = append(all, cond)
	}
	if !twice {
		return [][]lib.ScmpCondition{all}
	}
	for _, cond := range all {
		lists = append(lists, []lib.ScmpCondition{cond})
	}
	return lists
}

// Within is p, with what it allows left to the filter of a bundle: the stricter of the two holds. It is one program and not a second
// filter in the kernel, which would answer by itself what p asks the supervisor about, so that nobody saw the attempt (M-4). A call that
// p asks about is held to the bundle by [Program.Answer], if the supervisor would let it run.
func (p Program) Within(bundle Program) (Program, error) {
	code := slices.Clone(p.code)
	end := p.Len()
	for pc := range end {
		in := code[pc*insnSize : (pc+1)*insnSize]
		if binary.NativeEndian.Uint16(in) == opRet && binary.NativeEndian.Uint32(in[4:]) == unix.SECCOMP_RET_ALLOW {
			copy(in, assemble([]unix.SockFilter{{Code: opJump, K: uint32(end - pc - 1)}})) //nolint:gosec // within a program
		}
	}
	both := Program{code: append(code, bundle.code...)}
	if both.Len() > maxInsns {
		return Program{}, fmt.Errorf("the ring's filter and the bundle's have %d instructions, the kernel takes %d", both.Len(), maxInsns)
	}
	return both, both.checkWithin(p, bundle)
}

// checkWithin runs all three for every number: a program that isn't what it should be is an error.
func (p Program) checkWithin(ring, bundle Program) error {
	arch, err := Native.info()
	if err != nil {
		return err
	}
	for nr := range uint32(maxNumber) {
		for _, arg := range []uint64{0, math.MaxUint64} {
			d := Data{NR: nr, Arch: arch.audit, Args: [6]uint64{arg, arg, arg, arg, arg, arg}}
			want, err := ring.Run(d)
			if err == nil && want == unix.SECCOMP_RET_ALLOW {
				want, err = bundle.Run(d)
			}
			got, failed := p.Run(d)
			if err := errors.Join(err, failed); err != nil {
				return fmt.Errorf("check program: %w", err)
			}
			if got != want {
				return fmt.Errorf("check program: system call %d gives %#x, the two filters say %#x (a bug in agentrun)", nr, got, want)
			}
		}
	}
	return nil
}

// Answer is what a bundle's filter says of a call that the supervisor was asked about and would let run. What it would end by a signal,
// ends by SIGKILL.
func (p Program) Answer(c Call) Answer {
	verdict, err := p.Run(Data{NR: uint32(c.NR), Arch: c.Arch, Args: c.Args}) //nolint:gosec // the kernel's own type
	switch {
	case err != nil:
		return Deny(unix.EPERM)
	case verdict == unix.SECCOMP_RET_ALLOW || verdict == unix.SECCOMP_RET_LOG:
		return Continue()
	case verdict&unix.SECCOMP_RET_ACTION_FULL == unix.SECCOMP_RET_ERRNO:
		return Deny(unix.Errno(verdict & unix.SECCOMP_RET_DATA))
	}
	return Kill()
}

// Lets says that a bundle's filter lets the call run whatever its arguments are, as far as can be told by two of them.
func (p Program) Lets(name string) bool {
	arch, err := Native.info()
	if err != nil {
		return false
	}
	nr, err := number(name, arch)
	if err != nil {
		return false
	}
	for _, arg := range []uint64{0, math.MaxUint64} {
		if !p.Answer(Call{NR: nr, Arch: arch.audit, Args: [6]uint64{arg, arg, arg, arg, arg, arg}}).Allowed() {
			return false
		}
	}
	return true
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
