// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"agentrun/fsjail"
	"agentrun/profiles"
	"agentrun/rings"
	"agentrun/seccomp"
)

func planFor(p profiles.Profile) *Plan {
	return &Plan{
		Ring: p.Ring, Profile: p.Name, profile: p,
		Subprocess: p.Subprocess.Mode == profiles.SubprocessAllow, WritableRoot: p.Files.Root == profiles.RootOverlay,
		Limits: PlanLimits{CPU: p.Limits.CPU, Memory: int64(p.Limits.Memory), PIDs: int64(p.Limits.PIDs)},
	}
}

// quiet are the calls that ring 2 allows and ring 3 refuses in the kernel, where no elevation can give them: only ways in which
// libraries ask for something they do without.
var quiet = []string{
	"socket: how glibc asks for nscd",    // AF_UNIX, SOCK_STREAM|SOCK_CLOEXEC|SOCK_NONBLOCK
	"socket: how glibc lists interfaces", // AF_NETLINK, SOCK_RAW|SOCK_CLOEXEC, NETLINK_ROUTE
	"inotify_",                           // watchers poll without it
	"setsockopt: SO_RCVBUF: buffers of a connection",
	"setsockopt: SO_SNDBUF, likewise",
}

// M-22: whatever ring 2 or 1 allows and ring 3 doesn't is left to the supervisor by ring 3's filter, so that a live process can
// be given it.
func TestM22WhatElevationGivesIsNotified(t *testing.T) {
	low := builtin(t, "ring3")
	for _, name := range []string{"ring2", "ring1"} {
		high := builtin(t, name)
		checked := 0
		for _, r := range high.Syscalls {
			if r.Action != profiles.ActionAllow {
				continue
			}
			for _, call := range r.Names {
				for _, args := range registers(r, low, call) {
					if high.Match(call, args) < 0 || high.Syscalls[high.Match(call, args)].Action != profiles.ActionAllow {
						continue
					}
					i := low.Match(call, args)
					if i < 0 || low.Syscalls[i].Action == profiles.ActionAllow || low.Syscalls[i].Action == profiles.ActionNotify {
						checked++
						continue
					}
					if !slices.ContainsFunc(quiet, func(q string) bool {
						return strings.HasPrefix(call+": "+low.Syscalls[i].Why, q)
					}) {
						t.Errorf("%s allows %s%v, ring 3 answers it by %s: %s", name, call, args, low.Syscalls[i].Action, low.Syscalls[i].Why)
					}
				}
			}
		}
		if checked < 100 {
			t.Errorf("%s: %d calls were looked at", name, checked)
		}
	}
}

// registers are arguments that a rule holds for, also where a rule of the other profile for the same call holds.
func registers(r profiles.SyscallRule, other profiles.Profile, call string) [][6]uint64 {
	var list [][6]uint64
	add := func(conds ...profiles.ArgCond) {
		var args [6]uint64
		for _, c := range conds {
			args[c.Index] |= c.Value.N
		}
		list = append(list, args)
	}
	add(r.Args...)
	for _, o := range other.Syscalls {
		if slices.Contains(o.Names, call) && len(o.Args) > 0 {
			add(append(slices.Clone(r.Args), o.Args...)...)
		}
	}
	return list
}

// What an elevation gives and never gives, by registers.
func TestM22WardenUnderElevation(t *testing.T) {
	custom := builtin(t, "ring3")
	custom.Syscalls = slices.Concat([]profiles.SyscallRule{{Names: []string{"sync"}, Action: profiles.ActionNotify, Floor: true, Why: "test"}}, custom.Syscalls)
	for _, c := range []struct {
		call  seccomp.Call
		below string // the answer in ring 3
		above string // and in ring 2
	}{
		{seccomp.Call{Name: "fork"}, "EPERM", "allowed"},
		{seccomp.Call{Name: "vfork"}, "EPERM", "allowed"},
		{seccomp.Call{Name: "clone", Args: [6]uint64{uint64(unix.SIGCHLD)}}, "EPERM", "allowed"},
		{seccomp.Call{Name: "clone", Args: [6]uint64{unix.CLONE_NEWUSER}}, "EPERM", "EPERM"},
		{seccomp.Call{Name: "clone", Args: [6]uint64{unix.CLONE_NEWNS | uint64(unix.SIGCHLD)}}, "EPERM", "EPERM"},
		{seccomp.Call{Name: "execve", PID: 8}, "EPERM", "allowed"},
		{seccomp.Call{Name: "execveat", PID: 8, Args: [6]uint64{4: atEmptyPath}}, "EACCES", "EACCES"},
		{seccomp.Call{Name: "shmget"}, "EPERM", "allowed"},
		{seccomp.Call{Name: "fsetxattr"}, "EPERM", "allowed"},
		{seccomp.Call{Name: "socket", Args: [6]uint64{unix.AF_UNIX, unix.SOCK_STREAM}}, "EAFNOSUPPORT", "allowed"},
		{seccomp.Call{Name: "socket", Args: [6]uint64{unix.AF_PACKET, unix.SOCK_RAW}}, "EAFNOSUPPORT", "EAFNOSUPPORT"},
		{seccomp.Call{Name: "unshare"}, "EPERM", "EPERM"},
		{seccomp.Call{Name: "mount"}, "EPERM", "EPERM"},
		{seccomp.Call{Name: "ptrace"}, "EPERM", "EPERM"},
		{seccomp.Call{Name: "io_uring_setup"}, "EPERM", "EPERM"},
		{seccomp.Call{Name: "bpf"}, "EPERM", "EPERM"},
		{seccomp.Call{Name: "no_such_call"}, "EPERM", "EPERM"},
		{seccomp.Call{Name: "sync"}, "EPERM", "EPERM"}, // this profile's own floor
		{seccomp.Call{Name: "syncfs"}, "EPERM", "allowed"},
	} {
		plan := planFor(custom)
		w := &warden{live: &atomic.Pointer[rights]{}, agentPID: 7, recorder: &seccomp.Recorder{}, profile: &plan.profile, refused: func(seccomp.Call, seccomp.Answer, seccomp.Event, rings.Ring) {}}
		for i, ring := range []rings.Ring{rings.Sandbox, rings.Standard, rings.Sandbox} {
			w.live.Store(plan.rightsOf(ring))
			want := []string{c.below, c.above, c.below}[i]
			if got := w.answer(c.call).String(); got != want {
				t.Errorf("%s%v in %v: got %s, want %s", c.call.Name, c.call.Args, ring, got, want)
			}
		}
	}
}

// Above its own ring a plan has the built-in profile's rights where they are more, below it where they are less.
func TestM22Rights(t *testing.T) {
	type row struct {
		Subprocess, Workspace, Root, Above bool
		Limits                             Limits
	}
	l3, l2, l1 := Limits{CPU: 0.5, Memory: 256 << 20, PIDs: 64}, Limits{CPU: 0.75, Memory: 512 << 20, PIDs: 128}, Limits{CPU: 1, Memory: 1 << 30, PIDs: 256}
	strict2 := builtin(t, "ring2")
	strict2.Subprocess.Mode, strict2.Limits.PIDs, strict2.Limits.CPU = profiles.SubprocessDeny, 32, 0.2
	for _, c := range []struct {
		profile profiles.Profile
		ring    rings.Ring
		want    row
	}{
		{builtin(t, "ring3"), rings.Sandbox, row{Limits: l3}},
		{builtin(t, "ring3"), rings.Standard, row{true, true, false, true, l2}},
		{builtin(t, "ring3"), rings.Privileged, row{true, true, false, true, l1}},
		{builtin(t, "ring3"), rings.Root, row{Limits: l3}},
		{builtin(t, "ring2"), rings.Sandbox, row{Limits: l3}},
		{builtin(t, "ring2"), rings.Privileged, row{true, true, false, true, l1}},
		{builtin(t, "ring1"), rings.Privileged, row{true, true, true, false, l1}},
		{builtin(t, "ring1"), rings.Standard, row{true, true, false, false, l2}},
		{builtin(t, "ring1"), rings.Sandbox, row{Limits: l3}},
		{strict2, rings.Privileged, row{true, true, false, true, l1}},
		{strict2, rings.Standard, row{false, true, false, false, Limits{CPU: 0.2, Memory: 512 << 20, PIDs: 32}}},
		{strict2, rings.Sandbox, row{Limits: Limits{CPU: 0.2, Memory: 256 << 20, PIDs: 32}}},
	} {
		r := planFor(c.profile).rightsOf(c.ring)
		got := row{r.subprocess, r.workspace, r.root, r.above != nil, r.limits}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s in %v (-want +got):\n%s", c.profile.Name, c.ring, diff)
		}
	}
}

// Devices and the kernel's own mounts stay; every other writable mount is one that a ring decides about, and the scratch, as a place of
// programs, where it is one.
func TestM22WhatMountsChange(t *testing.T) {
	p := planFor(builtin(t, "ring1"))
	p.Entries = append(devEntries(), p.scratch()...)
	p.Entries = append(p.Entries,
		fsjail.Entry{Kind: fsjail.Overlay, Target: "/usr"}, fsjail.Entry{Kind: fsjail.Bind, Target: "/workspace", Live: true},
		fsjail.Entry{Kind: fsjail.Bind, Target: "/data", Writable: true}, fsjail.Entry{Kind: fsjail.Bind, Target: "/f", Writable: true, IsFile: true})
	none, workspace := &rights{}, &rights{workspace: true}
	const stays, ro, noexec = fsjail.Closes(0), fsjail.ReadOnly, fsjail.NoExec
	type change struct {
		closes fsjail.Closes
		open   bool // with the workspace
	}
	for at, want := range map[string]change{
		"/": {ro, false}, "/dev": {ro, false}, "/usr": {ro, false}, "/workspace": {ro, true}, "/workspace/sub": {ro, true},
		"/workspacex": {ro, false}, "/data": {ro, true}, "/f": {ro, true}, "/f/x": {ro, false}, "/unknown": {ro, false},
		"/tmp": {noexec, true}, "/tmp/sandbox": {noexec, true}, "/proc": {stays, false}, "/dev/pts": {stays, false}, "/dev/null": {stays, false},
	} {
		if got := p.changes(at); got != want.closes {
			t.Errorf("%s: got closed by %#x, want %#x", at, got, want.closes)
		}
		if got := p.open(at, workspace); want.closes != stays && got != want.open {
			t.Errorf("%s with the workspace: got %v, want %v", at, got, want.open)
		}
		if want.closes != stays && p.open(at, none) {
			t.Errorf("%s is open with no right", at)
		}
	}
}

// A scratch holds programs only where the workspace does and may be written: no profile gets a place that is both by it.
func TestM2ScratchHoldsPrograms(t *testing.T) {
	with := func(name string, change func(*profiles.Profile)) *Plan {
		p := builtin(t, name)
		change(&p)
		return planFor(p)
	}
	for name, c := range map[string]struct {
		plan *Plan
		want bool
	}{
		"ring 1":                {planFor(builtin(t, "ring1")), true},
		"ring 2":                {planFor(builtin(t, "ring2")), true},
		"ring 3":                {planFor(builtin(t, "ring3")), false},
		"strict":                {planFor(builtin(t, "strict")), false},
		"workspace read-only":   {with("ring2", func(p *profiles.Profile) { p.Files.Workspace = profiles.WorkspaceRO }), false},
		"no programs there":     {with("ring2", func(p *profiles.Profile) { p.Files.WorkspaceExec = false }), false},
		"only programs by name": {with("ring2", func(p *profiles.Profile) { p.Subprocess.Mode = profiles.SubprocessTools }), false},
	} {
		entries := c.plan.scratch()
		for _, e := range entries {
			if isScratch(e) && e.Exec != c.want {
				t.Errorf("%s: %s: got exec %v, want %v", name, e.Target, e.Exec, c.want)
			}
		}
		for _, r := range fsjail.Landlock(5, entries, false).Rules {
			if got := r.Access&unix.LANDLOCK_ACCESS_FS_EXECUTE != 0; r.Path == "/tmp" && got != c.want {
				t.Errorf("%s: Landlock lets programs of the scratch run: %v, want %v", name, got, c.want)
			}
		}
	}
}

// Only a folder that was offered by name is opened by an elevation, and only where the plan can be elevated.
func TestM22OnlyTheOfferedWorkspaceOpens(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		profile string
		offered bool
		want    bool
	}{{"ring3", true, true}, {"ring3", false, false}, {"strict", true, false}, {"ring2", true, false}} {
		p := planFor(builtin(t, c.profile))
		spec := Spec{}
		if c.offered {
			spec.Workspace = dir
		}
		if err := p.addWorkspace(&spec, 0, dir, workspaceDir, p.profile.Files.Workspace); err != nil {
			t.Fatal(err)
		}
		if got := p.Entries[0].Live; got != c.want {
			t.Errorf("%s, offered %v: live is %v, want %v", c.profile, c.offered, got, c.want)
		}
	}
}

// Whoever has the channel before a look misses no change after it, and the end is one.
func TestM22ChangesOfRingAreTold(t *testing.T) {
	ctx, die := context.WithCancel(t.Context())
	v := &Live{life: ctx, die: die, moved: make(chan struct{}), relimit: make(chan struct{}, 1), turn: make(chan struct{}, 1)}
	v.ring.Store(uint32(rings.Sandbox))
	told := func(changed <-chan struct{}) bool {
		select {
		case <-changed:
			return true
		default:
			return false
		}
	}
	ring, whole, changed := v.Ring()
	if ring != rings.Sandbox || !whole || told(changed) {
		t.Errorf("at first: got %v, %v", ring, whole)
	}
	v.holds(&rights{ring: rings.Standard})
	if !told(changed) {
		t.Error("a new ring is not told")
	}
	v.taking.Store(true)
	if ring, whole, changed = v.Ring(); ring != rings.Standard || whole || told(changed) {
		t.Errorf("while it is taken: got %v, %v", ring, whole)
	}
	v.end()
	if !told(changed) {
		t.Error("the end is not told")
	}
	if ring, _, _ = v.Ring(); ring != rings.NoRing {
		t.Errorf("at the end: got %v", ring)
	}
}

func TestParseStat(t *testing.T) {
	self, ticks, err := readProcess(os.Getpid())
	if err != nil || self.PID != os.Getpid() || self.PPID != os.Getppid() || self.Threads < 1 || self.User != os.Geteuid() || ticks == 0 || len(self.Command) == 0 || self.Command[0] != os.Args[0] {
		t.Errorf("got %+v at %d, %v", self, ticks, err)
	}
	const tail = " S 12 1 1 0 -1 4194560 1 0 0 0 1 2 3 4 20 0 7 0 100"
	for text, want := range map[string]Process{
		"5 (a) b) (c)" + tail: {PID: 5, PPID: 12, Threads: 7, Comm: "a) b) (c", State: 'S'},
		"5 ()" + tail:         {PID: 5, PPID: 12, Threads: 7, State: 'S'},
		"":                    {}, "5 (a": {}, ")5 (": {}, "5 (a) S 1": {}, "x (a)" + tail: {},
	} {
		got, ticks, err := parseStat([]byte(text))
		if !reflect.DeepEqual(got, want) || (err == nil) != (want.PID != 0) || err == nil && ticks != 100 {
			t.Errorf("%q: got %+v, %d, %v, want %+v", text, got, ticks, err, want)
		}
	}
}

func TestParseStatus(t *testing.T) {
	for text, want := range map[string][2]int{
		"Name:\ta\\nUid:\t0\t0\t0\t0\nUid:\t7\t8\t9\t9\nNSpid:\t100\t5\n": {5, 8},
		"Name:\ta\nUid:\t7\t8\t9\t9\nNSpid:\t100\n":                       {0, 8}, // it has not entered
	} {
		if inside, user, err := parseStatus([]byte(text)); err != nil || [2]int{inside, user} != want {
			t.Errorf("%q: got %d, %d, %v, want %v", text, inside, user, err, want)
		}
	}
	for _, text := range []string{"", "Uid:\t7\n", "Uid:\tx\tx\tx\tx\n", "Uid:\t1\t1\t1\t1\nNSpid:\t1\tx\n"} {
		if inside, user, err := parseStatus([]byte(text)); err == nil {
			t.Errorf("%q: got %d, %d", text, inside, user)
		}
	}
}

// Numbers that are read one after another may make a ring; nobody then waits for its end.
func TestComeFrom(t *testing.T) {
	list := []Process{
		{PID: 10, PPID: 1, First: true}, {PID: 11, PPID: 10}, {PID: 12, PPID: 11},
		{PID: 20, PPID: 1}, {PID: 21, PPID: 20}, {PID: 30, PPID: 2}, {PID: 31, PPID: 30}, {PID: 40, PPID: 41}, {PID: 41, PPID: 40},
	}
	comeFrom(list, []int{20})
	want := []ProcessFrom{FromCommand, FromCommand, FromCommand, FromEntered, FromEntered, "", "", "", ""}
	for i, p := range list {
		if p.From != want[i] {
			t.Errorf("%d: got %q, want %q", p.PID, p.From, want[i])
		}
	}
}

// The kernel's file holds a name that the agent chooses.
func FuzzParseStat(f *testing.F) {
	f.Add("a) R 1 (b")
	f.Fuzz(func(t *testing.T, comm string) {
		got, _, err := parseStat([]byte("5 (" + comm + ") S 12 1 1 0 -1 4194560 1 0 0 0 1 2 3 4 20 0 7 0 100"))
		if err != nil || !reflect.DeepEqual(got, Process{PID: 5, PPID: 12, Threads: 7, Comm: comm, State: 'S'}) {
			t.Errorf("%q: got %+v, %v", comm, got, err)
		}
		_, _, _ = parseStat([]byte(comm))
		_, _, _ = parseStatus([]byte(comm))
	})
}
