// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"agentrun/profiles"
	"agentrun/rings"
	"agentrun/seccomp"
)

// Observer is told of a run before what it hears of takes effect (H-28), from more than one goroutine. An
// error says that the account can't be kept or that the run must end: it keeps the run from starting, or
// ends it as state policy. What isn't recorded doesn't happen.
type Observer interface {
	// Start comes before the agent's process gets its command; the agent's first instruction waits for its
	// answer.
	Start(Status) error
	// Settled comes after Start, if at all, and returns when what that recorded is on disk. Before, nothing
	// that the agent does outlives the machine: its first connection waits for it, and a run that may write
	// files of the host is not executed.
	Settled() error
	// Refused comes with every refused call, before the caller hears of it. It holds up the notifications of
	// the whole run: an agent can make 100 000 refused calls a second.
	Refused(Refusal) error
	// End comes once for every run, also one that failed to start, when all its processes are dead. The
	// status has no leftovers yet: mounts, cgroups and folders are removed at the same time.
	End(Status) error
}

// Refusal is a refused system call.
type Refusal struct {
	At      time.Time
	Syscall string
	Detail  string     // class of the arguments; no contents of the agent's memory
	Called  rings.Ring // the least privileged ring whose built-in profile allows the call; Root if none does
	Never   bool       // no ring has it, as the built-in profiles are: an attempt, and nothing else
	Verdict string     // what it was answered, as EPERM
	PID     int        // of the thread that waits for the answer; 0: not known
}

// Program is the name of whose call it is, as the kernel has it; the agent chooses it. Empty: it can't be told.
func (r Refusal) Program() string {
	if r.PID == 0 {
		return ""
	}
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", r.PID)) // it waits for us, or is dead, and then nobody's
	return strings.TrimSpace(string(name))
}

// nobody is the observer of a run whose caller keeps no account.
type nobody struct{}

func (nobody) Start(Status) error    { return nil }
func (nobody) Settled() error        { return nil }
func (nobody) Refused(Refusal) error { return nil }
func (nobody) End(Status) error      { return nil }

// refusals turns the recorder's events into reports, one after the other: each process that joined has a notification loop
// beside that of the first.
type refusals struct {
	observer Observer
	mu       sync.Mutex
	called   map[kind]rings.Ring // what calledRing said; the recorder bounds the kinds
}

type kind struct{ syscall, detail string }

// seen gets each refused call with its answer, the event it is counted in and the ring that it aims at, or byProfile.
func (r *refusals) seen(c seccomp.Call, a seccomp.Answer, e seccomp.Event, called rings.Ring) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := kind{e.Syscall, e.Detail}
	ok := called != byProfile
	if !ok {
		called, ok = r.called[k]
	}
	if !ok {
		called = calledRing(c)
		if r.called == nil {
			r.called = map[kind]rings.Ring{}
		}
		r.called[k] = called
	}
	// A number that nobody knows isn't one that no ring will have.
	never := called == rings.Root && c.Name != seccomp.Unknown && c.Name != "io_uring_setup"
	return r.observer.Refused(Refusal{
		At: e.Last, Syscall: e.Syscall, Detail: e.Detail, Called: called, Never: never, Verdict: a.String(), PID: c.PID,
	})
}

// calledRing is what a refused call says about where the agent wants to go: Standard for what ring 2
// would have let it do, Privileged for what only ring 1 does, Root for what no agent ever gets. A foreign
// call weighs as the native one of its name, and at least as Privileged: it is a way past the filter.
func calledRing(c seccomp.Call) rings.Ring {
	for _, of := range []struct {
		profile string
		ring    rings.Ring
	}{{"ring2", rings.Standard}, {"ring1", rings.Privileged}} {
		if c.Foreign != "" && of.ring == rings.Standard {
			continue
		}
		if p, ok := profiles.Builtin(of.profile); ok && allows(p, c) {
			return of.ring
		}
	}
	return rings.Root
}

// allows looks a call up as the filter and the warden of that profile would decide it.
func allows(p profiles.Profile, c seccomp.Call) bool {
	switch c.Name {
	case "fork", "vfork":
		return p.Subprocess.Mode == profiles.SubprocessAllow
	case "clone":
		return p.Subprocess.Mode == profiles.SubprocessAllow && plainClone(c.Args[0])
	}
	i := slices.IndexFunc(p.Syscalls, func(r profiles.SyscallRule) bool {
		return slices.Contains(r.Names, c.Name) && !slices.ContainsFunc(r.Args, func(a profiles.ArgCond) bool {
			return !argHolds(a, c.Args[a.Index])
		})
	})
	return i >= 0 && p.Syscalls[i].Action == profiles.ActionAllow
}

func argHolds(a profiles.ArgCond, v uint64) bool {
	switch a.Op {
	case profiles.OpEq:
		return v == a.Value.N
	case profiles.OpNe:
		return v != a.Value.N
	case profiles.OpMaskedEq:
		return v&a.Mask.N == a.Value.N
	}
	return false
}
