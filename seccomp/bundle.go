// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"agentrun/internal/read"
)

// bundleActions are those that a bundle's filter may take. SCMP_ACT_KILL is the thread's, as in libseccomp.
var bundleActions = map[specs.LinuxSeccompAction]uint32{
	specs.ActAllow: unix.SECCOMP_RET_ALLOW, specs.ActLog: unix.SECCOMP_RET_LOG, specs.ActErrno: unix.SECCOMP_RET_ERRNO, specs.ActTrap: unix.SECCOMP_RET_TRAP,
	specs.ActKill: unix.SECCOMP_RET_KILL_THREAD, specs.ActKillThread: unix.SECCOMP_RET_KILL_THREAD, specs.ActKillProcess: unix.SECCOMP_RET_KILL_PROCESS,
}

// without says why there are no others.
var without = map[specs.LinuxSeccompAction]string{
	specs.ActNotify: "it asks a program of the engine's (listenerPath), and the supervisor answers for a run",
	specs.ActTrace:  "nothing may trace a run",
}

// bundleFlags are without meaning for a filter that holds beside another, or would loosen what that one has.
var bundleFlags = []specs.LinuxSeccompFlag{"SECCOMP_FILTER_FLAG_TSYNC", specs.LinuxSeccompFlagSpecAllow, specs.LinuxSeccompFlagWaitKillableRecv}

// bundleArchs are the names of those we run on.
var bundleArchs = map[int]specs.Arch{onAMD64: specs.ArchX86_64, onARM64: specs.ArchAARCH64}

// OfBundle compiles the filter of a container's bundle (linux.seccomp of its config.json) for the native architecture, with the meaning
// that runc and libseccomp give it, and with ENOSYS for calls that are younger than all that it names, so that libraries fall back to
// older ones. Where several rules with conditions hold for a call, which libseccomp leaves to the shape of its tree, the strictest does. By
// itself it is no wall, since it may allow everything: see [Program.Within]. What it can't be taken at its word for is refused by name, joined.
func OfBundle(s *specs.LinuxSeccomp) (Program, error) {
	arch, err := Native.info()
	if err != nil {
		return Program{}, err
	}
	b := &bundle{policy: policy{arch: arch, foreign: unix.SECCOMP_RET_KILL_THREAD, known: make([]bool, maxNumber), steps: map[int][]step{}}}
	b.unlisted = b.action("defaultAction", s.DefaultAction, s.DefaultErrnoRet)
	if len(s.Architectures) > 0 && !slices.Contains(s.Architectures, bundleArchs[arch.on]) {
		b.bad("architectures", "%s is not among them, so that every call of the container's would be its end", bundleArchs[arch.on])
	}
	for _, flag := range s.Flags {
		if !slices.Contains(bundleFlags, flag) {
			b.bad("flags", "%.64q can't be honoured", string(flag))
		}
	}
	for i := range s.Syscalls {
		if b.rule(fmt.Sprintf("syscalls[%d]", i), &s.Syscalls[i]); b.count > maxInsns {
			b.bad("syscalls", "they take more than %[1]d instructions, the kernel takes %[1]d", maxInsns)
			break
		}
	}
	if err := errors.Join(b.problems...); err != nil {
		return Program{}, err
	}
	if b.unknown = retENOSYS; b.unlisted == unix.SECCOMP_RET_ALLOW || b.unlisted == unix.SECCOMP_RET_LOG {
		b.unknown = b.unlisted
	}
	for nr := range b.youngest + 1 {
		b.known[nr] = true
	}
	for _, chain := range b.steps {
		slices.SortStableFunc(chain, func(x, y step) int { return cmp.Compare(strictness(x), strictness(y)) })
	}
	prog := Program{code: b.assemble()}
	if prog.Len() > maxInsns {
		b.bad("syscalls", "they take %d instructions, the kernel takes %d", prog.Len(), maxInsns)
		return Program{}, errors.Join(b.problems...)
	}
	if err := b.verify(prog); err != nil {
		return Program{}, err
	}
	return prog, nil
}

// strictness orders rules as the kernel does answers of several filters (include/uapi/linux/seccomp.h); one without conditions is alone.
func strictness(s step) int32 { return int32(s.ret & unix.SECCOMP_RET_ACTION_FULL) } //nolint:gosec // as there: killing is below all others

// bundle is a filter in the making, and what is wrong with it.
type bundle struct {
	policy

	youngest int // number that it names
	count    int // of steps with conditions
	problems []error
}

func (b *bundle) bad(path, format string, args ...any) {
	b.problems = append(b.problems, read.Bad("linux.seccomp."+path, format, args...))
}

func (b *bundle) action(path string, name specs.LinuxSeccompAction, errno *uint) uint32 {
	ret, ok := bundleActions[name]
	switch {
	case without[name] != "":
		b.bad(path, "%s can't be honoured: %s", name, without[name])
	case !ok:
		b.bad(path, "%.64q is no action", string(name))
	case name != specs.ActErrno: // others' errnoRet has no meaning
	case errno == nil:
		return ret | uint32(unix.EPERM)
	case *errno == 0 || *errno > maxErrno: // 0 would be a success of what hasn't run
		b.bad(path, "errno %d is no error number", *errno)
	default:
		return ret | uint32(*errno) //nolint:gosec // 4095 at most
	}
	return ret
}

func (b *bundle) rule(path string, r *specs.LinuxSyscall) {
	ret := b.action(path+".action", r.Action, r.ErrnoRet)
	conds := b.conditions(path, r.Args)
	for _, name := range r.Names {
		nr, err := number(name, b.arch)
		if err != nil {
			continue // of another architecture, or without a number that we know: the ring's filter has ENOSYS for those
		}
		b.youngest = max(b.youngest, nr)
		if ret == b.unlisted {
			continue // as in runc: what repeats the default is no rule
		}
		for _, all := range conds {
			chain := b.steps[nr]
			if len(chain) > 0 && len(chain[0].args) == 0 {
				break // decides every such call
			}
			if len(all) == 0 {
				b.steps[nr] = []step{{nil, ret}}
				continue
			}
			b.steps[nr] = append(chain, step{all, ret})
			// Names times conditions: a few megabytes of a bundle would be more than any memory.
			if b.count++; b.count > maxInsns {
				return
			}
		}
	}
}

// conditions are the lists of which one must hold whole. As runc has it, conditions of one argument are alternatives.
func (b *bundle) conditions(path string, args []specs.LinuxSeccompArg) (lists [][]cond) {
	var all []cond
	seen, twice := map[uint]bool{}, false
	for i, a := range args {
		c, ok := condition(a)
		switch {
		case !ok:
			b.bad(fmt.Sprintf("%s.args[%d].op", path, i), "%.64q is no comparison", string(a.Op))
		case a.Index > 5:
			b.bad(fmt.Sprintf("%s.args[%d].index", path, i), "%d: a call has arguments 0 to 5", a.Index)
		}
		twice = twice || seen[a.Index]
		seen[a.Index] = true
		all = append(all, c)
	}
	holds := func(c cond) bool { return c.mask == 0 }
	if !twice {
		return [][]cond{slices.DeleteFunc(all, holds)}
	}
	for _, c := range all {
		lists = append(lists, slices.DeleteFunc([]cond{c}, holds))
	}
	return lists
}

// condition reads a comparison of a bundle's.
func condition(a specs.LinuxSeccompArg) (c cond, ok bool) {
	c = cond{index: a.Index, value: a.Value, mask: math.MaxUint64}
	switch a.Op {
	case specs.OpEqualTo:
	case specs.OpNotEqual:
		c.differs = true
	case specs.OpMaskedEqual: // the mask stands first; one of 0 always holds
		c.mask, c.value = a.Value, a.Value&a.ValueTwo
	case specs.OpGreaterEqual:
		c.atLeast = true
	case specs.OpLessThan:
		c.atLeast, c.differs = true, true
	case specs.OpGreaterThan: // than the greatest: never
		c.atLeast, c.differs, c.value = true, a.Value == math.MaxUint64, a.Value+1
	case specs.OpLessEqual:
		c.atLeast, c.differs, c.value = true, a.Value != math.MaxUint64, a.Value+1
	default:
		return c, false
	}
	return c, true
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
