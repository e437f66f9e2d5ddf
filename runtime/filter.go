// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"agentrun/profiles"
	"agentrun/rings"
	"agentrun/seccomp"
)

// planFilter turns the profile's rules into the filter's. What no rule decides is a notification: the
// supervisor sees the attempt, refuses and counts it (M-4).
func (p *Plan) planFilter() error {
	p.filter = seccomp.Filter{Unlisted: seccomp.Notify}
	for i, r := range p.profile.Syscalls {
		rule, err := filterRule(r)
		if err != nil {
			return fmt.Errorf("profile %s: syscalls[%d]: %w", p.Profile, i, err)
		}
		if len(rule.Syscalls) == 0 {
			continue
		}
		if counted(r) {
			rule.Action = seccomp.Notify
		}
		p.filter.Rules = append(p.filter.Rules, rule)
	}
	p.Seccomp.Rules, p.Seccomp.Unlisted = len(p.filter.Rules), p.filter.Unlisted.String()
	return p.checkStubCalls()
}

// filterActions and filterOps have the words of a profile in those of package seccomp. One that is missing
// here would be the zero value, which that package refuses.
var filterActions = map[profiles.Action]seccomp.Action{
	profiles.ActionAllow: seccomp.Allow, profiles.ActionNotify: seccomp.Notify,
	profiles.ActionErrno: seccomp.Errno, profiles.ActionKill: seccomp.KillProcess,
}

var filterOps = map[profiles.Op]seccomp.Op{
	profiles.OpEq: seccomp.Equal, profiles.OpNe: seccomp.NotEqual, profiles.OpMaskedEq: seccomp.MaskedEqual,
}

func filterRule(r profiles.SyscallRule) (seccomp.Rule, error) {
	names := r.Names
	if r.IfKnown {
		names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !seccomp.Known(n) })
	}
	rule := seccomp.Rule{Syscalls: names, Action: filterActions[r.Action], IfPresent: r.IfKnown, Why: r.Why}
	if r.Errno != "" {
		e, ok := profiles.ErrnoValue(r.Errno)
		if !ok {
			return rule, fmt.Errorf("errno %q is unknown", r.Errno)
		}
		rule.Errno = unix.Errno(e)
	}
	for _, a := range r.Args {
		rule.Args = append(rule.Args, seccomp.Arg{Index: uint(a.Index), Op: filterOps[a.Op], Value: a.Value.N, Mask: a.Mask.N})
	}
	return rule, nil
}

// stubCalls are what the child does between its filter and the agent's first instruction. A filter that
// stops one of them would stop every launch, so it is refused here, where the profile can be named.
var stubCalls = []string{"write", "read", "close", "exit_group"}

func (p *Plan) checkStubCalls() error {
	for _, name := range stubCalls {
		if !letsPass(&p.profile, name) {
			return fmt.Errorf("profile %s: system call %s must be allowed without conditions: the launch itself uses it after the filter is in place", p.Profile, name)
		}
	}
	i := slices.IndexFunc(p.profile.Syscalls, func(r profiles.SyscallRule) bool {
		return slices.Contains(r.Names, "execve") && len(r.Args) == 0
	})
	if i >= 0 && p.profile.Syscalls[i].Action != profiles.ActionAllow && p.profile.Syscalls[i].Action != profiles.ActionNotify {
		return fmt.Errorf("profile %s: execve must be allow or notify, or the command itself can't be started", p.Profile)
	}
	return nil
}

// letsPass says that a call is allowed whatever its arguments are.
func letsPass(p *profiles.Profile, name string) bool {
	i := slices.IndexFunc(p.Syscalls, func(r profiles.SyscallRule) bool { return slices.Contains(r.Names, name) })
	return i >= 0 && p.Syscalls[i].Action == profiles.ActionAllow && len(p.Syscalls[i].Args) == 0
}

// chainTries is how many execve calls count as the command's own start. `env python3` tries each folder
// of PATH, a wrapper script or two the same; a program that goes on executing others is past its start.
// The number is no wall: another program in the same process has exactly the same rights.
const chainTries = 16

// warden answers the notifications of one run. It decides by registers and by who asks. What a pointer
// leads to can change after anybody looked, so it is looked at only where something in the kernel holds
// the call all the same (programs).
type warden struct {
	subprocess bool            // may create processes and execute programs
	programs   map[string]bool // not nil: all that may be executed; Landlock holds execve to them (narrowExec)
	agentPID   int
	listener   int // to ask whether the caller is still the one that asked
	tries      int
	recorder   *seccomp.Recorder
	refused    func(seccomp.Call, seccomp.Answer, seccomp.Event) // hears of each refusal before the caller does
	profile    *profiles.Profile                                 // the plan's
	live       atomic.Pointer[rights]                            // those of the live ring; nil: the plan's
	sockets    *socketCount
}

// rights holds for one decision: it may be another's in the next.
func (w *warden) rights() *rights {
	if r := w.live.Load(); r != nil {
		return r
	}
	return &rights{subprocess: w.subprocess}
}

// elevated says whether a call is one that the live ring adds to the plan's. Like every decision here it is
// one by registers only. What the profile's floor stops, no ring gives: a floor is what must not be loosened.
func (w *warden) elevated(r *rights, c seccomp.Call) bool {
	if r.above == nil {
		return false
	}
	if i := w.profile.Match(c.Name, c.Args); i >= 0 && w.profile.Syscalls[i].Floor {
		return false
	}
	return allows(*r.above, c)
}

// allowed are the calls that the profile allows and the filter asks about all the same, to count them.
func (w *warden) allowed(c seccomp.Call) bool {
	if w.profile == nil {
		return false
	}
	i := w.profile.Match(c.Name, c.Args)
	return i >= 0 && counted(w.profile.Syscalls[i])
}

// ring is the one whose bounds hold: the plan's own, or a more privileged one that the run has been given.
func (w *warden) ring(r *rights) rings.Ring {
	if r.above != nil {
		return r.ring
	}
	own, _ := rings.RingOf(w.profile.Ring)
	return own.OrSandbox()
}

func (w *warden) answer(c seccomp.Call) seccomp.Answer {
	a := w.decide(c)
	if !a.Allowed() {
		w.refused(c, a, w.recorder.Record(c, a))
	}
	return a
}

// nsFlags are the CLONE_NEW* bits that fit clone(2)'s flags. CLONE_NEWTIME shares its bit with the exit
// signal there and works with unshare(2) and clone3(2) only, which are refused as a whole.
const nsFlags = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// plainClone says that a new process has namespaces and a table of descriptors that are no news: see
// recordLocks.
func plainClone(flags uint64) bool {
	return flags&nsFlags == 0 && flags&(unix.CLONE_FILES|unix.CLONE_THREAD) != unix.CLONE_FILES
}

const atEmptyPath = 0x1000

func (w *warden) decide(c seccomp.Call) seccomp.Answer {
	r := w.rights()
	switch c.Name {
	case "clone":
		if !plainClone(c.Args[0]) {
			return seccomp.Deny(unix.EPERM)
		}
		return ifSubprocess(r)
	case "fork", "vfork":
		return ifSubprocess(r)
	}
	if w.allowed(c) || w.elevated(r, c) {
		if c.Name == "socket" && uint32(c.Args[0]) != unix.AF_UNIX { //nolint:gosec // the kernel looks at no more
			return w.sockets.socket(w.ring(r), c.Args[0])
		}
		return seccomp.Continue()
	}
	switch c.Name {
	case "execveat":
		if c.Args[4]&atEmptyPath != 0 { // fexecve: what it runs has no path that a mount could forbid
			return seccomp.Deny(unix.EACCES)
		}
		return w.exec(r, c)
	case "execve":
		return w.exec(r, c)
	case "socket", "socketpair":
		return seccomp.Deny(unix.EAFNOSUPPORT) // what programs expect of a kernel without the family
	}
	return seccomp.Deny(unix.EPERM)
}

func ifSubprocess(r *rights) seccomp.Answer {
	if r.subprocess {
		return seccomp.Continue()
	}
	return seccomp.Deny(unix.EPERM)
}

func (w *warden) exec(r *rights, c seccomp.Call) seccomp.Answer {
	if r.subprocess {
		return seccomp.Continue()
	}
	if c.PID == 0 || c.PID != w.agentPID {
		return seccomp.Deny(unix.EPERM)
	}
	if w.programs != nil {
		// Looked at so that a refusal is seen and counted. An agent that swaps the path afterwards gets
		// Landlock's answer instead of this one.
		if name, ok := readString(c.PID, c.Args[pathArg(c.Name)]); ok && w.programs[name] || !seccomp.StillWaiting(w.listener, c.ID) {
			return seccomp.Continue()
		}
		return seccomp.Deny(unix.EACCES)
	}
	if w.tries < chainTries {
		w.tries++
		return seccomp.Continue()
	}
	return seccomp.Deny(unix.EPERM)
}

func pathArg(call string) int {
	if call == "execveat" {
		return 1
	}
	return 0
}

// readString reads a path out of a waiting process. It gives up at PATH_MAX and at memory that isn't there.
func readString(pid int, addr uint64) (string, bool) {
	buf := make([]byte, unix.PathMax)
	for n := 0; n < len(buf); {
		// Not past a page: the next one may not be mapped, and a partial read says nothing about where.
		chunk := min(len(buf)-n, os.Getpagesize()-int((addr+uint64(n))%uint64(os.Getpagesize())))
		local := []unix.Iovec{{Base: &buf[n], Len: uint64(chunk)}}
		remote := []unix.RemoteIovec{{Base: uintptr(addr) + uintptr(n), Len: chunk}}
		got, err := unix.ProcessVMReadv(pid, local, remote, 0)
		if err != nil || got <= 0 {
			return "", false
		}
		if end := bytes.IndexByte(buf[n:n+got], 0); end >= 0 {
			return string(buf[:n+end]), true
		}
		n += got
	}
	return "", false
}
