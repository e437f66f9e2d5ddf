// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"agentrun/profiles"
	"agentrun/seccomp"
)

var builtins = []string{"ring1", "ring2", "ring3", "strict"}

func builtin(t testing.TB, name string) profiles.Profile {
	t.Helper()
	p, ok := profiles.Builtin(name)
	if !ok {
		t.Fatalf("no built-in profile %s", name)
	}
	return p
}

func filterOf(t testing.TB, name string) *Plan {
	t.Helper()
	p := &Plan{Profile: name, profile: builtin(t, name)}
	if err := p.planFilter(); err != nil {
		t.Fatal(err)
	}
	return p
}

// M-4: the program in the kernel means what the profile says, for every rule and for random registers.
// profiles.Match is the meaning in ten lines, seccomp.Program.Run the kernel's view.
func TestFilterMeansProfile(t *testing.T) {
	for _, name := range builtins {
		t.Run(name, func(t *testing.T) {
			p := filterOf(t, name)
			prog, err := p.filter.Compile(seccomp.Options{})
			if err != nil {
				t.Fatal(err)
			}
			rng := rand.New(rand.NewPCG(1, 2))
			for nr := range 470 {
				call := seccomp.Name(nr)
				for range 50 {
					args := interesting(rng, p.profile, call)
					got, err := prog.Run(seccomp.Data{NR: uint32(nr), Arch: unix.AUDIT_ARCH_X86_64, Args: args})
					if err != nil {
						t.Fatal(err)
					}
					if want, ok := meaning(p.profile, call, args); ok && got != want {
						t.Fatalf("%s%x: the filter says %#x, the profile %#x", call, args, got, want)
					}
				}
			}
		})
	}
}

// interesting registers: the values the rules compare with, one off, and noise in the upper half.
func interesting(rng *rand.Rand, p profiles.Profile, call string) (args [6]uint64) {
	for i := range args {
		args[i] = rng.Uint64() >> rng.IntN(64)
	}
	for _, r := range p.Syscalls {
		for _, n := range r.Names {
			if n != call || rng.IntN(3) == 0 {
				continue
			}
			for _, a := range r.Args {
				args[a.Index] = a.Value.N ^ uint64(rng.IntN(2))<<rng.IntN(64)
			}
		}
	}
	return args
}

// meaning is what the kernel must return by the profile; false for names that the filter knows as
// numbers only.
func meaning(p profiles.Profile, call string, args [6]uint64) (uint32, bool) {
	i := p.Match(call, args)
	if i < 0 {
		return 0, false
	}
	switch r := p.Syscalls[i]; r.Action {
	case profiles.ActionAllow:
		if counted(r) {
			return unix.SECCOMP_RET_USER_NOTIF, true
		}
		return unix.SECCOMP_RET_ALLOW, true
	case profiles.ActionNotify:
		return unix.SECCOMP_RET_USER_NOTIF, true
	case profiles.ActionKill:
		return unix.SECCOMP_RET_KILL_PROCESS, true
	default:
		e, _ := profiles.ErrnoValue(r.Errno)
		return unix.SECCOMP_RET_ERRNO | uint32(e), true
	}
}

// M-4: foreign architectures and x32 numbers kill, unknown numbers are ENOSYS, in every profile.
func TestForeignCalls(t *testing.T) {
	for _, name := range builtins {
		prog, err := filterOf(t, name).filter.Compile(seccomp.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for what, c := range map[string]struct {
			data seccomp.Data
			want uint32
		}{
			"i386":    {seccomp.Data{NR: 1, Arch: unix.AUDIT_ARCH_I386}, unix.SECCOMP_RET_KILL_PROCESS},
			"x32":     {seccomp.Data{NR: 0x40000000 | 1, Arch: unix.AUDIT_ARCH_X86_64}, unix.SECCOMP_RET_KILL_PROCESS},
			"unknown": {seccomp.Data{NR: 9999, Arch: unix.AUDIT_ARCH_X86_64}, unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		} {
			if got, err := prog.Run(c.data); err != nil || got != c.want {
				t.Errorf("%s, %s: got %#x, %v, want %#x", name, what, got, err, c.want)
			}
		}
	}
}

// A profile that stops what the launch itself needs is refused by name, not found out by a hang.
func TestFilterNeedsTheStubsCalls(t *testing.T) {
	for _, call := range []string{"write", "read", "close", "exit_group", "execve"} {
		p := &Plan{Profile: "x", profile: builtin(t, "ring3")}
		p.profile.Syscalls = append([]profiles.SyscallRule{{
			Names: []string{call}, Action: profiles.ActionErrno, Errno: "EPERM", Why: "test",
		}}, p.profile.Syscalls...)
		if err := p.planFilter(); err == nil {
			t.Errorf("a profile without %s was accepted", call)
		}
	}
}

// The warden decides by registers and by who asks.
func TestWarden(t *testing.T) {
	exec := func(pid int) seccomp.Call { return seccomp.Call{Name: "execve", PID: pid} }
	call := func(name string, args ...uint64) seccomp.Call {
		c := seccomp.Call{Name: name, PID: 7}
		copy(c.Args[:], args)
		return c
	}
	cases := []struct {
		name       string
		subprocess bool
		call       seccomp.Call
		want       unix.Errno // 0: allowed
	}{
		{"H-11 ring 3: no process", false, call("clone", uint64(unix.SIGCHLD)), unix.EPERM},
		{"H-11 ring 3: no vfork", false, call("vfork"), unix.EPERM},
		{"H-11 ring 2: processes", true, call("clone", uint64(unix.SIGCHLD)), 0},
		{"H-11 ring 2: vfork", true, call("vfork"), 0},
		{"never a namespace", true, call("clone", unix.CLONE_NEWUSER|uint64(unix.SIGCHLD)), unix.EPERM},
		{"the command's own exec", false, exec(7), 0},
		{"somebody else's exec", false, exec(8), unix.EPERM},
		{"ring 2: any exec", true, exec(8), 0},
		{"fexecve, ring 2 too", true, call("execveat", 0, 0, 0, 0, atEmptyPath), unix.EACCES},
		{"vsock", true, call("socket", unix.AF_VSOCK), unix.EAFNOSUPPORT},
		{"mount", true, call("mount"), unix.EPERM},
	}
	for _, c := range cases {
		w := &warden{subprocess: c.subprocess, agentPID: 7, recorder: &seccomp.Recorder{}, refused: func(seccomp.Call, seccomp.Answer, seccomp.Event) {}}
		a := w.answer(c.call)
		if a.Err() != c.want {
			t.Errorf("%s: got %v, want %v", c.name, a, c.want)
		}
		if refused := w.recorder.Snapshot().Total; (refused == 1) != (c.want != 0) {
			t.Errorf("%s: %d refusals recorded", c.name, refused)
		}
	}
}

// The chain at the start is bounded: a program that goes on executing others is past its start.
func TestExecChainEnds(t *testing.T) {
	w := &warden{agentPID: 7, recorder: &seccomp.Recorder{}, refused: func(seccomp.Call, seccomp.Answer, seccomp.Event) {}}
	for i := range chainTries {
		if a := w.answer(seccomp.Call{Name: "execve", PID: 7}); !a.Allowed() {
			t.Fatalf("try %d: %v", i, a)
		}
	}
	if a := w.answer(seccomp.Call{Name: "execve", PID: 7}); a.Allowed() {
		t.Error("the chain never ends")
	}
	if a := new(warden).decide(seccomp.Call{Name: "execve"}); a.Allowed() {
		t.Error("the zero warden allows an exec") // agentPID 0 is nobody
	}
}

// A filter that is kept is that of the profile as it was, and of no other one.
func TestFilterIsKept(t *testing.T) {
	var m filterMemo
	plan := func(profile profiles.Profile) *Plan {
		t.Helper()
		p := &Plan{Profile: profile.Name, ProfileSum: profile.Digest(), profile: profile}
		if err := m.plan(p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for range 2 {
		for _, name := range builtins {
			got, want := plan(builtin(t, name)), filterOf(t, name)
			if diff := cmp.Diff(want.filter, got.filter); diff != "" || got.Seccomp != want.Seccomp {
				t.Errorf("%s: %+v (-want +got)\n%s", name, got.Seccomp, diff)
			}
		}
	}
	mine := builtin(t, "ring3")
	before := plan(mine).filter
	i := slices.IndexFunc(mine.Syscalls, func(r profiles.SyscallRule) bool { return slices.Contains(r.Names, "getpid") })
	mine.Syscalls[i].Names[slices.Index(mine.Syscalls[i].Names, "getpid")] = "ptrace"
	if diff := cmp.Diff(filterOf(t, "ring3").filter, before); diff != "" {
		t.Errorf("who has a profile changed a filter (-want +got)\n%s", diff)
	}
	if cmp.Equal(plan(mine).filter, before) {
		t.Error("another profile got the filter that was kept")
	}
	for n := range 3 * maxFilters {
		mine.Description = strconv.Itoa(n)
		plan(mine)
	}
	if len(m.kept) > maxFilters {
		t.Errorf("%d are kept, want at most %d", len(m.kept), maxFilters)
	}
	broken := builtin(t, "ring3")
	broken.Syscalls = nil
	for range 2 {
		if err := m.plan(&Plan{ProfileSum: broken.Digest(), profile: broken}); err == nil {
			t.Error("a profile that stops every launch got a filter")
		}
	}
}
