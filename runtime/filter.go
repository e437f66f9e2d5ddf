// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"agentrun/internal/read"
	"agentrun/profiles"
	"agentrun/rings"
	"agentrun/seccomp"
)

// planFilter turns the profile's rules into the filter's. What no rule decides is a notification: the
// supervisor sees the attempt, refuses and counts it (M-4).
func (p *Plan) planFilter() error {
	p.filter = seccomp.Filter{Unlisted: seccomp.Notify, Rules: make([]seccomp.Rule, 0, len(p.profile.Syscalls))}
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
	profiles.ActionErrno: seccomp.Errno, profiles.ActionKill: seccomp.Notify, // the warden kills: of a filter's kill nobody hears (M-4)
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
	if r.Action == profiles.ActionErrno { // with notify it is the warden who gives one
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

// planBundle adds the filter of a container's bundle. The launch's own calls must pass it.
func (p *Plan) planBundle(s *specs.LinuxSeccomp) (err error) {
	if s == nil {
		return nil
	}
	if p.bundle, err = seccomp.OfBundle(s); err != nil {
		return err
	}
	for _, name := range append([]string{"execve"}, stubCalls...) {
		if !p.bundle.Lets(name) {
			return read.Bad("linux.seccomp", "it stops system call %s, which the launch itself uses after the filter is in place", name)
		}
	}
	p.Seccomp.Bundle = p.bundle.Digest()
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

// warden answers the notifications of one process of a run, and of what that starts. It decides by registers and by who asks. What a pointer
// leads to can change after anybody looked, so it is looked at only where something in the kernel holds
// the call all the same (programs).
//
// What it reads of clone3's flags decides nothing: the call gets ENOSYS whatever they are, so a second thread that changes them
// in time makes the record wrong, and no more.
type warden struct {
	subprocess bool            // may create processes and execute programs
	programs   map[string]bool // not nil: all that may be executed; Landlock holds execve to them (narrowExec)
	agentPID   int
	waits      func(id uint64) bool // whether the caller is still the one that asked
	tries      int
	recorder   *seccomp.Recorder
	// refused hears of each refusal before the caller does, with the ring that it aims at, or byProfile.
	refused func(seccomp.Call, seccomp.Answer, seccomp.Event, rings.Ring)
	profile *profiles.Profile       // the plan's
	bundle  seccomp.Program         // the plan's
	live    *atomic.Pointer[rights] // those of the live ring, for every warden of the run; nil, or of nil: the plan's
	sockets *socketCount
	killed  atomic.Pointer[string] // what that process was killed for; nil: it wasn't
}

// joined is the warden of another process of the run: it decides by the same rights, and neither has anything of the other's exec
// chain.
func (w *warden) joined(pid int) *warden {
	return &warden{
		subprocess: w.subprocess, programs: w.programs, agentPID: pid, recorder: w.recorder, refused: w.refused, profile: w.profile, bundle: w.bundle,
		live: w.live, sockets: w.sockets,
	}
}

// Rings that a refused call aims at without a look at what it is.
const (
	byProfile = rings.NoRing  // as the profiles have it
	noAttempt = rings.Sandbox // what every ring has: it weighs nothing
)

// rights holds for one decision: it may be another's in the next.
func (w *warden) rights() *rights {
	if w.live != nil {
		if r := w.live.Load(); r != nil {
			return r
		}
	}
	return &rights{subprocess: w.subprocess}
}

// rule is the profile's that decides a call; the zero rule if none does.
func (w *warden) rule(c seccomp.Call) (rule profiles.SyscallRule) {
	if w.profile == nil {
		return rule
	}
	if i := w.profile.Match(c.Name, c.Args); i >= 0 {
		rule = w.profile.Syscalls[i]
	}
	return rule
}

// allowed are the calls that the profile allows and the filter asks about all the same, to count them, and those that the live
// ring adds to the plan's. Like every decision here it is one by registers only. What the profile's floor stops, no ring gives:
// a floor is what must not be loosened.
func allowed(r *rights, rule profiles.SyscallRule, c seccomp.Call) bool {
	return counted(rule) || r.above != nil && !rule.Floor && allows(*r.above, c)
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
	r := w.rights()
	if c.Name == "clone3" && c.Foreign == "" {
		return w.clone3(r, c)
	}
	a, called := w.decide(r, c)
	if a.Allowed() && w.bundle.Len() > 0 {
		a, called = w.within(c), noAttempt
	}
	if !a.Allowed() {
		w.tell(r, c, a, called)
	}
	return a
}

// within is what the bundle's filter has to say of a call that the ring lets run. Those that the ring's filter lets run by itself come to
// it in the kernel.
func (w *warden) within(c seccomp.Call) seccomp.Answer {
	a := w.bundle.Answer(c)
	if a == seccomp.Kill() {
		return w.kill(c)
	}
	return a
}

// tell records a refusal and passes it on.
func (w *warden) tell(r *rights, c seccomp.Call, a seccomp.Answer, called rings.Ring) {
	e := w.recorder.Record(c, a)
	if (c.Name == seccomp.Unknown || c.Name == "io_uring_setup") && c.Foreign == "" {
		// A library that is younger than we are tries its new call at each start, libuv did so with io_uring, and a scan tries
		// many: each weighs once, as an attempt at the next ring. Whoever uses a ring that it hasn't got weighs as before.
		called = noAttempt
		if e.Count == 1 {
			called = w.ring(r) - 1
		}
	}
	w.refused(c, a, e, called)
}

// clone3 gets ENOSYS, on which libraries call clone, whose flags are in a register. One that asks for no more than clone would
// be given is no refusal: glibc makes one for each thread and child. One for a namespace is the attempt that it is by clone.
func (w *warden) clone3(r *rights, c seccomp.Call) seccomp.Answer {
	flags, ok := readWord(c.PID, c.Args[0])
	if ok && flags&seccomp.Clone3Flags == 0 && (r.subprocess || flags&unix.CLONE_THREAD != 0) {
		return seccomp.Probe(unix.ENOSYS)
	}
	a, called := seccomp.Deny(unix.ENOSYS), noAttempt
	c.Args[0] = 0
	if ok && flags&seccomp.Clone3Flags != 0 && w.waits(c.ID) { // else it may be another's memory
		c.Args[0], called = flags, rings.Root
	}
	w.tell(r, c, a, called)
	return a
}

// kill ends the process of a call; the account tells what for if it is the agent's first.
func (w *warden) kill(c seccomp.Call) seccomp.Answer {
	if process, err := seccomp.ProcessOf(c.PID); err == nil && process == w.agentPID {
		what := "system call " + c.Name
		if c.Foreign != "" {
			what += " of the architecture " + c.Foreign
		}
		w.killed.Store(&what)
	}
	return seccomp.Kill()
}

// nsFlags are the CLONE_NEW* bits that fit clone(2)'s flags. CLONE_NEWTIME shares its bit with the exit
// signal there and works with unshare(2) and clone3(2) only, which are refused as a whole.
const nsFlags = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// plainClone says that a new process has namespaces and a table of descriptors that are no news (see
// recordLocks), and is its maker's child. The parent of a command that joined is the supervisor, which waits for
// that command alone: another child would stay in its table, and the sandbox's pid 1 doesn't end before all of its
// namespace are waited for (zap_pid_ns_processes), so nor would the run.
func plainClone(flags uint64) bool {
	return flags&(nsFlags|unix.CLONE_PARENT) == 0 && flags&(unix.CLONE_FILES|unix.CLONE_THREAD) != unix.CLONE_FILES
}

const atEmptyPath = 0x1000

// decide also says which ring a refused call aims at.
func (w *warden) decide(r *rights, c seccomp.Call) (a seccomp.Answer, called rings.Ring) {
	switch {
	case c.Foreign != "":
		return w.kill(c), byProfile
	case c.Name == seccomp.Unknown:
		return seccomp.Deny(unix.ENOSYS), byProfile
	case c.Name == "clone" && !plainClone(c.Args[0]):
		return seccomp.Deny(unix.EPERM), byProfile
	case c.Name == "clone" || c.Name == "fork" || c.Name == "vfork":
		return ifSubprocess(r), byProfile
	}
	rule := w.rule(c)
	if allowed(r, rule, c) {
		if c.Name == "socket" && uint32(c.Args[0]) != unix.AF_UNIX { //nolint:gosec // the kernel looks at no more
			return w.sockets.socket(w.ring(r), c.Args[0]), noAttempt // one too many of what every ring has
		}
		return seccomp.Continue(), byProfile
	}
	switch {
	case rule.Action == profiles.ActionKill:
		return w.kill(c), byProfile
	case rule.Errno != "":
		errno, _ := profiles.ErrnoValue(rule.Errno)
		return seccomp.Deny(unix.Errno(errno)), noAttempt
	}
	return w.refuse(r, c), byProfile
}

// refuse answers what no rule has an answer for; the command's own start is let through.
func (w *warden) refuse(r *rights, c seccomp.Call) seccomp.Answer {
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
		if name, ok := readString(c.PID, c.Args[pathArg(c.Name)]); ok && w.programs[name] || !w.waits(c.ID) {
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

// readWord reads eight bytes out of a waiting process.
func readWord(pid int, addr uint64) (uint64, bool) {
	var word uint64
	local := []unix.Iovec{{Base: (*byte)(unsafe.Pointer(&word)), Len: 8}}
	n, err := unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: uintptr(addr), Len: 8}}, 0)
	return word, err == nil && n == 8
}
