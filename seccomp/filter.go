// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// Action is what the kernel does with a call that a rule matches.
type Action uint8

const (
	// Invalid is the zero value and never compiles: a forgotten action must not become a permission.
	Invalid Action = iota
	// Allow lets the call run.
	Allow
	// Notify stops the caller until the supervisor (see [Serve]) has answered.
	Notify
	// Errno fails the call with the rule's errno; nobody is told.
	Errno
	// KillProcess ends the whole process with SIGSYS; nobody is told. With a listener, Notify and [Kill] do the same on record.
	KillProcess
)

var actionNames = [...]string{"invalid", "allow", "notify", "errno", "kill"}

// String gives the name used in profiles and reports.
func (a Action) String() string {
	if a > KillProcess {
		a = Invalid
	}
	return actionNames[a]
}

// Op compares one argument of a call with a constant.
type Op uint8

const (
	// OpInvalid is the zero value and never compiles.
	OpInvalid Op = iota
	// Equal holds when the argument is Value.
	Equal
	// NotEqual holds when it is not.
	NotEqual
	// MaskedEqual holds when argument & Mask == Value.
	MaskedEqual
	// MaskedNotEqual is its complement. With Value 0 it reads "any of these bits is set".
	MaskedNotEqual
	opEnd
)

// Arg is a condition on one argument of a call.
//
// A register holds 64 bits, but the kernel reads many arguments as a 32-bit int or unsigned int and drops the upper half:
// ioctl(fd, 1<<32|TIOCSTI) is TIOCSTI to the kernel, and a filter that compares all 64 bits does not see it
// (CVE-2019-7303 was this). For the arguments known to be narrow (see narrowArgs) every comparison therefore looks at the
// lower 32 bits only, which is what the kernel will act on. For any other argument a rule that *refuses* one value should use
// MaskedEqual with the mask that the kernel applies.
type Arg struct {
	// Index is the argument's place, 0 to 5.
	Index uint
	Op    Op
	Value uint64
	// Mask belongs to MaskedEqual and MaskedNotEqual, and must be zero for the others.
	Mask uint64
}

// Rule gives one action to calls of the named system calls. Rules are tried in the order of Filter.Rules and the first one
// whose Args all hold decides. A rule without Args decides every call that got so far: it is the fallback of the conditional
// ones above it. A call that no rule decides goes to Filter.Unlisted, also when conditional rules name it.
type Rule struct {
	Syscalls []string
	Action   Action
	// Errno goes with Action Errno and no other.
	Errno unix.Errno
	// Args must all hold. Empty: always.
	Args []Arg
	// IfPresent lets names through that this architecture does not have (fork and open on arm64). Without it such a name is an
	// error, because a rule that protects nothing should be noticed. A name that no architecture has is always an error.
	IfPresent bool
	// Why is the reason, for people and reports. It does not change the program but is required.
	Why string
}

// Filter is a policy over native system calls. What it does not name is refused:
//
//   - a native call that no rule decides gets Unlisted;
//   - a call through a foreign architecture (i386 or x32 on x86-64) kills the process;
//   - a number without a name, or younger than Linux 6.7, gives ENOSYS, so that libraries fall back to the call they used before.
//
// With Unlisted Notify there is a listener, so the last two go to it too: an attempt must be seen (M-4). [Serve] kills
// for a foreign call whatever its handler answers.
type Filter struct {
	Rules []Rule
	// Unlisted is Notify (so that the attempt is seen), Errno or KillProcess; Allow is refused.
	Unlisted Action
	// UnlistedErrno goes with Unlisted == Errno.
	UnlistedErrno unix.Errno
}

// Problem is one thing wrong with a filter.
type Problem struct {
	// Rule is the index in Filter.Rules, or -1 for the filter itself.
	Rule int
	// Syscall is the name concerned, if one is.
	Syscall string
	// Err is one of the errors below or says more.
	Err error
}

// Errors a Problem wraps where a caller may want to tell them apart.
var (
	// ErrUnknownName: no architecture has a call of this name.
	ErrUnknownName = errors.New("no such system call")
	// ErrNotHere: the name exists, but not on this architecture, and the rule is not marked IfPresent.
	ErrNotHere = errors.New("not a system call of this architecture (mark the rule if-present when that is meant)")
	// ErrUnreachable: an earlier rule without conditions already decides every such call.
	ErrUnreachable = errors.New("never reached, an earlier rule decides every such call")
	// ErrUnsupportedArch: the package has no code generator for this architecture.
	ErrUnsupportedArch = errors.New("unsupported architecture")
)

// Error names the place and the problem.
func (p *Problem) Error() string {
	where := "filter"
	if p.Rule >= 0 {
		where = fmt.Sprintf("rule %d", p.Rule)
	}
	if p.Syscall != "" {
		where += " (" + p.Syscall + ")"
	}
	return where + ": " + p.Err.Error()
}

// Unwrap gives the cause.
func (p *Problem) Unwrap() error { return p.Err }

const (
	maxErrno = 4095 // MAX_ERRNO in include/linux/err.h: larger values are not errors to the caller
	// maxArgs keeps the code of one rule within an 8-bit jump (at most 6 instructions a condition).
	maxArgs = 16
)

// Validate reports everything wrong with the filter on the native architecture, joined, each a *[Problem].
func (f Filter) Validate() error {
	_, err := f.resolve(Native)
	return err
}

// step is a rule as it applies to one system call number.
type step struct {
	args []cond
	ret  uint32
}

// cond is an Arg as it is compared: the bits of the mask are the value, or, with atLeast, all of it is the value or more. With differs
// that must not hold. A mask that selects nothing always holds, or never.
type cond struct {
	index            uint
	value, mask      uint64
	differs, atLeast bool
}

// policy is a filter resolved against one architecture.
type policy struct {
	arch     archInfo
	unlisted uint32
	foreign  uint32 // for calls of another architecture
	unknown  uint32 // for numbers without a name
	// known[nr] says that the number has a name, so that unlisted applies, and not unknown.
	known []bool
	steps map[int][]step
}

// resolve checks the filter and turns names into numbers.
func (f Filter) resolve(arch Arch) (*policy, error) {
	info, err := arch.info()
	if err != nil {
		return nil, &Problem{Rule: -1, Err: err}
	}
	var problems []error
	report := func(rule int, name string, err error) {
		problems = append(problems, &Problem{Rule: rule, Syscall: name, Err: err})
	}
	if err := checkAction(f.Unlisted, f.UnlistedErrno); err != nil {
		report(-1, "", fmt.Errorf("action for unlisted calls: %w", err))
	} else if f.Unlisted == Allow {
		report(-1, "", errors.New("unlisted calls can't be allowed: the filter denies by default"))
	}
	p := &policy{arch: info, unlisted: returnValue(f.Unlisted, f.UnlistedErrno), steps: make(map[int][]step, 512)}
	p.foreign, p.unknown = unix.SECCOMP_RET_KILL_PROCESS, retENOSYS
	if f.Unlisted == Notify {
		p.foreign, p.unknown = unix.SECCOMP_RET_USER_NOTIF, unix.SECCOMP_RET_USER_NOTIF
	}
	for i, r := range f.Rules {
		if err := checkAction(r.Action, r.Errno); err != nil {
			report(i, "", err)
		}
		if len(r.Syscalls) == 0 {
			report(i, "", errors.New("names no system call"))
		}
		if r.Why == "" {
			report(i, "", errors.New("gives no reason"))
		}
		if len(r.Args) > maxArgs {
			report(i, "", fmt.Errorf("%d conditions, at most %d are possible", len(r.Args), maxArgs))
		}
		for _, name := range r.Syscalls {
			conds := make([]cond, 0, len(r.Args))
			for j, a := range r.Args {
				c, err := a.settle(name)
				if err != nil {
					report(i, name, fmt.Errorf("condition %d: %w", j, err))
				}
				conds = append(conds, c)
			}
			nr, err := number(name, info)
			if errors.Is(err, ErrNotHere) && r.IfPresent {
				continue
			}
			if err != nil {
				report(i, name, err)
				continue
			}
			chain := p.steps[nr]
			if n := len(chain); n > 0 && len(chain[n-1].args) == 0 {
				report(i, name, ErrUnreachable)
				continue
			}
			p.steps[nr] = append(chain, step{conds, returnValue(r.Action, r.Errno)})
		}
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return p, nil
}

func checkAction(a Action, e unix.Errno) error {
	switch {
	case a == Invalid || a > KillProcess:
		return errors.New("no valid action")
	case a == Errno && (e == 0 || e > maxErrno):
		// SECCOMP_RET_ERRNO with data 0 makes the call return 0: success without having run.
		return fmt.Errorf("errno %d is not an error number", uint(e))
	case a != Errno && e != 0:
		return fmt.Errorf("errno %d given with action %v", uint(e), a)
	}
	return nil
}

// settle checks a condition and fixes the width it is compared at for this call. Every comparison becomes a masked one: one shape
// to generate and to get wrong.
func (a Arg) settle(name string) (cond, error) {
	c := cond{index: a.Index, value: a.Value, mask: a.Mask, differs: a.Op == NotEqual || a.Op == MaskedNotEqual}
	if a.Index > 5 {
		return c, fmt.Errorf("argument %d: a call has arguments 0 to 5", a.Index)
	}
	if a.Op == OpInvalid || a.Op >= opEnd {
		return c, errors.New("no valid comparison")
	}
	width := uint64(math.MaxUint64)
	if narrowArgs(name)&(1<<a.Index) != 0 {
		width = math.MaxUint32
	}
	masked := a.Op == MaskedEqual || a.Op == MaskedNotEqual
	switch {
	case !masked && a.Mask != 0:
		return c, errors.New("a mask goes with masked comparisons only")
	case a.Value > width || a.Mask > width:
		return c, fmt.Errorf("argument %d is 32 bits wide in the kernel, value %#x or mask %#x is wider",
			a.Index, a.Value, a.Mask)
	case masked && a.Mask == 0:
		return c, errors.New("the mask selects nothing")
	case masked && a.Value&^a.Mask != 0:
		return c, fmt.Errorf("value %#x has bits outside the mask %#x: it can't be equal", a.Value, a.Mask)
	case !masked:
		c.mask = width
	}
	return c, nil
}

// holds is the meaning of a condition, against which every compiled program is checked.
func (c cond) holds(v uint64) bool {
	if c.atLeast {
		return v >= c.value != c.differs
	}
	return (v&c.mask == c.value) != c.differs
}

// decide is the meaning of the policy.
func (p *policy) decide(d Data) uint32 {
	if d.Arch != p.arch.audit || (p.arch.x32 && d.NR&x32Bit != 0 && d.NR != ^uint32(0)) {
		return p.foreign
	}
	chain := p.steps[int(d.NR)]
next:
	for _, s := range chain {
		for _, c := range s.args {
			if !c.holds(d.Args[c.index]) {
				continue next
			}
		}
		return s.ret
	}
	if len(chain) > 0 || (uint64(d.NR) < uint64(len(p.known)) && p.known[d.NR]) {
		return p.unlisted
	}
	return p.unknown
}

const retENOSYS = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)

// returnValue is what the program returns to the kernel. An invalid action kills: it can't happen, and must not allow.
func returnValue(a Action, e unix.Errno) uint32 {
	switch a {
	case Allow:
		return unix.SECCOMP_RET_ALLOW
	case Notify:
		return unix.SECCOMP_RET_USER_NOTIF
	case Errno:
		return unix.SECCOMP_RET_ERRNO | uint32(e)&unix.SECCOMP_RET_DATA
	default:
		return unix.SECCOMP_RET_KILL_PROCESS
	}
}
