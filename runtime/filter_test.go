// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"math/rand/v2"
	"os"
	goruntime "runtime"
	"slices"
	"strconv"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"agentrun/profiles"
	"agentrun/rings"
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
	case profiles.ActionNotify, profiles.ActionKill: // the supervisor kills
		return unix.SECCOMP_RET_USER_NOTIF, true
	default:
		e, _ := profiles.ErrnoValue(r.Errno)
		return unix.SECCOMP_RET_ERRNO | uint32(e), true
	}
}

// M-4: foreign architectures, x32 numbers and unknown ones are the supervisor's to see, in every profile.
func TestForeignCalls(t *testing.T) {
	for _, name := range builtins {
		prog, err := filterOf(t, name).filter.Compile(seccomp.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for what, data := range map[string]seccomp.Data{
			"i386":    {NR: 1, Arch: unix.AUDIT_ARCH_I386},
			"x32":     {NR: 0x40000000 | 1, Arch: unix.AUDIT_ARCH_X86_64},
			"unknown": {NR: 9999, Arch: unix.AUDIT_ARCH_X86_64},
		} {
			if got, err := prog.Run(data); err != nil || got != unix.SECCOMP_RET_USER_NOTIF {
				t.Errorf("%s, %s: got %#x, %v, want a notification", name, what, got, err)
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
		{"never a child of its parent's", true, call("clone", unix.CLONE_PARENT|uint64(unix.SIGCHLD)), unix.EPERM},
		{"the command's own exec", false, exec(7), 0},
		{"somebody else's exec", false, exec(8), unix.EPERM},
		{"ring 2: any exec", true, exec(8), 0},
		{"fexecve, ring 2 too", true, call("execveat", 0, 0, 0, 0, atEmptyPath), unix.EACCES},
		{"vsock", true, call("socket", unix.AF_VSOCK), unix.EAFNOSUPPORT},
		{"mount", true, call("mount"), unix.EPERM},
		{"an unknown number", true, call(seccomp.Unknown), unix.ENOSYS},
		{"as a kernel without it", true, call("openat2"), unix.ENOSYS},
		{"a rule that kills", true, call("acct"), unix.EPERM},
		{"M-4 a foreign call, which the profile would allow", true, seccomp.Call{Name: "read", Foreign: "x32"}, unix.EPERM},
	}
	ring2 := builtin(t, "ring2")
	ring2.Syscalls = append([]profiles.SyscallRule{{Names: []string{"acct"}, Action: profiles.ActionKill, Why: "test"}}, ring2.Syscalls...)
	for _, c := range cases {
		w := &warden{subprocess: c.subprocess, profile: &ring2, agentPID: 7, recorder: &seccomp.Recorder{}, refused: func(seccomp.Call, seccomp.Answer, seccomp.Event, rings.Ring) {}}
		a := w.answer(c.call)
		if a.Err() != c.want {
			t.Errorf("%s: got %v, want %v", c.name, a, c.want)
		}
		if killed := c.call.Name == "acct" || c.call.Foreign != ""; (a == seccomp.Kill()) != killed {
			t.Errorf("%s: got %v, killed %v", c.name, a, killed)
		}
		if refused := w.recorder.Snapshot().Total; (refused == 1) != (c.want != 0) {
			t.Errorf("%s: %d refusals recorded", c.name, refused)
		}
	}
}

// M-4: what clone3 asks for is read from its caller, and decides about the record only. What glibc asks for each thread and, where
// there may be processes, each child is none; H-24: a namespace is the attempt that it is by clone.
func TestM4Clone3IsRead(t *testing.T) {
	const thread, child = unix.CLONE_VM | unix.CLONE_THREAD, unix.CLONE_VM | unix.CLONE_VFORK
	nothing := Refusal{}
	refused := func(called rings.Ring, detail string) Refusal {
		return Refusal{Syscall: "clone3", Detail: detail, Called: called, Verdict: "ENOSYS"}
	}
	for _, tt := range []struct {
		what       string
		subprocess bool
		flags      uint64
		want       Refusal
	}{
		{"a thread", false, thread, nothing},
		{"a child", true, child, nothing},
		{"a child in ring 3", false, child, refused(rings.Sandbox, "")},
		{"a child in another cgroup", true, child | unix.CLONE_INTO_CGROUP, refused(rings.Root, "flags=CLONE_INTO_CGROUP")},
		{"a namespace", true, unix.CLONE_NEWUSER, refused(rings.Root, "flags=CLONE_NEWUSER")},
		{"a thread with one", true, thread | unix.CLONE_NEWTIME, refused(rings.Root, "flags=CLONE_NEWTIME")},
		{"what can't be read", true, 0, refused(rings.Sandbox, "")},
	} {
		args := []uint64{tt.flags}
		at := uint64(uintptr(unsafe.Pointer(&args[0])))
		if tt.what == "what can't be read" {
			at = 8
		}
		o := &told{}
		w := &warden{subprocess: tt.subprocess, recorder: &seccomp.Recorder{}, waits: func(uint64) bool { return true }}
		heard := refusals{observer: o}
		w.refused = func(c seccomp.Call, a seccomp.Answer, e seccomp.Event, called rings.Ring) {
			if err := heard.seen(c, a, e, called); err != nil {
				t.Error(err)
			}
		}
		if a := w.answer(seccomp.Call{PID: os.Getpid(), Name: "clone3", Args: [6]uint64{at, 88}}); a.Err() != unix.ENOSYS {
			t.Errorf("%s: got %v, want ENOSYS", tt.what, a)
		}
		goruntime.KeepAlive(args)
		got := nothing
		if len(o.refusals) == 1 {
			got = o.refusals[0]
			got.At, got.PID, tt.want.Never = tt.want.At, tt.want.PID, tt.want.Called == rings.Root
		}
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.what, d)
		}
	}
}

// H-24: a number that nobody knows weighs once, whoever repeats it: a library that is younger than we are asks at each start.
// So does the call by which libraries ask for io_uring.
func TestM4UnknownNumbersWeighOnce(t *testing.T) {
	for name, next := range map[string]rings.Ring{"ring3": rings.Standard, "ring2": rings.Privileged, "ring1": rings.Root} {
		profile := builtin(t, name)
		var called []rings.Ring
		w := &warden{profile: &profile, recorder: &seccomp.Recorder{}}
		w.refused = func(_ seccomp.Call, _ seccomp.Answer, _ seccomp.Event, r rings.Ring) { called = append(called, r) }
		for _, nr := range []int{600, 600, 601, 600, 601} {
			w.answer(seccomp.Call{NR: nr, Name: seccomp.Unknown})
		}
		for range 2 {
			w.answer(seccomp.Call{NR: unix.SYS_IO_URING_SETUP, Name: "io_uring_setup"})
		}
		if want := []rings.Ring{next, rings.Sandbox, next, rings.Sandbox, rings.Sandbox, next, rings.Sandbox}; !slices.Equal(called, want) {
			t.Errorf("%s: got %v, want %v", name, called, want)
		}
	}
}

// The chain at the start is bounded: a program that goes on executing others is past its start.
func TestExecChainEnds(t *testing.T) {
	w := &warden{agentPID: 7, recorder: &seccomp.Recorder{}, refused: func(seccomp.Call, seccomp.Answer, seccomp.Event, rings.Ring) {}}
	for i := range chainTries {
		if a := w.answer(seccomp.Call{Name: "execve", PID: 7}); !a.Allowed() {
			t.Fatalf("try %d: %v", i, a)
		}
	}
	if a := w.answer(seccomp.Call{Name: "execve", PID: 7}); a.Allowed() {
		t.Error("the chain never ends")
	}
	if a, _ := new(warden).decide(&rights{}, seccomp.Call{Name: "execve"}); a.Allowed() {
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
	if err := m.plan(&Plan{profile: mine}); err == nil {
		t.Error("a plan without its profile's digest got a filter, which then were every profile's")
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
