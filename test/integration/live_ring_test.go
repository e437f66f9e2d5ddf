// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"agentrun/profiles"
	"agentrun/rings"
	"agentrun/runtime"
)

// The life of an elevation: denied, elevated, allowed, over, denied; and back once more, so that nothing is used up by it.
func TestM22LifeOfAnElevation(t *testing.T) {
	a := startAlive(t, aliveOpts{profile: "ring3"})
	if err := os.WriteFile(a.file("before"), []byte("b"), 0o644); err != nil {
		t.Fatal(err)
	}
	spawn := []string{"fork", "vfork", "clone-process", "posix_spawn"}
	denied := func() {
		t.Helper()
		a.expect("errno=EPERM", spawn...)
		a.expect("errno=EROFS", "create /workspace/new", "write /workspace/before x", "mkdir /workspace/dir", "unlink /workspace/before")
		if s, _ := a.Snapshot(); s.Limits != (runtime.Limits{CPU: 0.5, Memory: 256 << 20, PIDs: 64}) {
			t.Errorf("limits %+v, want ring 3's", s.Limits)
		}
	}
	denied()
	for range 2 {
		a.applied(rings.Standard)
		a.expect("ok", append(slices.Clone(spawn), "create /workspace/at", "write /workspace/before x")...)
		if s, _ := a.Snapshot(); s.Limits != (runtime.Limits{CPU: 0.75, Memory: 512 << 20, PIDs: 128}) {
			t.Errorf("limits %+v, want ring 2's", s.Limits)
		}
		// What no ring gives is not given by an elevation either.
		a.expect("errno=EPERM", "unshare user", "mount tmpfs", "ptrace 1", "clone user")
		if got := a.try("threads 4"); got != "value=4 0" {
			t.Errorf("threads: %s", got)
		}
		if err := os.Remove(a.file("at")); err != nil {
			t.Error(err)
		}
		a.applied(rings.Sandbox)
		denied()
		if got := a.try("threads 4"); got != "value=4 0" {
			t.Errorf("threads after the demotion: %s", got)
		}
	}
	a.applied(rings.Privileged)
	a.expect("ok", "fork", "create /workspace/at")
	a.expect("errno=EROFS", "create /new") // the root view of ring 1 is built at the start
	a.applied(rings.Standard)
	a.expect("ok", "fork", "write /workspace/at x")
	if s := a.quit(); s.State != runtime.Exited {
		t.Errorf("got %+v, want exited", s)
	}
	if _, err := a.Snapshot(); !errors.Is(err, runtime.ErrEnded) {
		t.Errorf("snapshot after the end: %v, want %v", err, runtime.ErrEnded)
	}
}

// A scratch that holds programs holds none in ring 3, and does again in its own ring. One that was built for ring 3 never does: the
// flag is locked, and the Landlock domain gives no execute.
func TestM22ScratchFollowsTheRing(t *testing.T) {
	more := func(s *runtime.Spec) { s.Tmpfs = []runtime.Tmpfs{{Target: "/data"}, {Target: "/tmp/more"}} }
	a := startAlive(t, aliveOpts{profile: "ring2", change: more})
	places := []string{"mmap-exec /tmp", "mmap-exec /tmp/sandbox", "mmap-exec /dev/shm", "mmap-exec /data", "mmap-exec /tmp/more"}
	for range 2 {
		a.expect("ok", places...)
		a.applied(rings.Sandbox)
		a.expect("errno=EPERM", places...)
		a.applied(rings.Standard)
	}
	a.quit()
	a = startAlive(t, aliveOpts{profile: "ring3", change: more})
	a.applied(rings.Standard)
	a.expect("errno=EPERM", places...)
	a.quit()
}

// A writer that lets go in its grace lives on; one that doesn't, and one with a mapping, are killed with a reason that says so.
func TestM22DemotionOfWriters(t *testing.T) {
	for name, c := range map[string]struct {
		get, after string
		lives      bool
	}{
		"lets go": {"writer /workspace/log", "errno=EROFS", true},
		"holds":   {"hold /workspace/held", "", false},
		"maps":    {"map /workspace/mapped", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			a := startAlive(t, aliveOpts{profile: "ring3"})
			a.applied(rings.Standard)
			a.expect("ok", c.get)
			if c.lives {
				for range 5 {
					a.applied(rings.Sandbox)
					a.expect(c.after, "create /workspace/new")
					a.applied(rings.Standard)
					a.expect("ok", c.get)
				}
				return
			}
			e := a.turn(rings.Sandbox)
			if e.Kind != runtime.LiveRingFailed {
				t.Errorf("got %+v, want %s", e, runtime.LiveRingFailed)
			}
			if s := a.ended(); s.State != runtime.Policy || !strings.Contains(s.Reason, "mount /workspace is held by a file open for writing") {
				t.Errorf("got %s: %s, want %s and the mount that was held", s.State, s.Reason, runtime.Policy)
			}
		})
	}
}

// Memory above the new limit: cgroup v1 can't take it back, v2 kills for it; in neither case does the run live on with it.
func TestM22DemotionWithTooMuchMemory(t *testing.T) {
	a := startAlive(t, aliveOpts{profile: "ring3"})
	a.applied(rings.Standard)
	a.expect("ok", "keep-memory 300")
	a.turn(rings.Sandbox)
	if s := a.ended(); s.State != runtime.Policy && s.State != runtime.OOM {
		t.Errorf("got %s: %s, want %s or %s", s.State, s.Reason, runtime.Policy, runtime.OOM)
	} else {
		t.Logf("%s: %s", s.State, s.Reason)
	}
}

// Subprocesses at the demotion: killed, or kept without being able to make more, as the profile says.
func TestM22DemotionOfSubprocesses(t *testing.T) {
	for _, keep := range []profiles.OnDemotion{"", profiles.DemotionKill, profiles.DemotionKeep} {
		t.Run("on_demotion="+string(keep), func(t *testing.T) {
			a := startAlive(t, aliveOpts{profile: "ring3", change: func(s *runtime.Spec) { s.Profile.Subprocess.OnDemotion = keep }})
			a.applied(rings.Standard)
			a.expect("ok", "child", "children 20")
			e := a.applied(rings.Sandbox)
			ps, err := a.Processes()
			if err != nil {
				t.Fatal(err)
			}
			want, killed := 1, 21
			if keep == profiles.DemotionKeep {
				want, killed = 22, 0
			}
			if len(ps) != want || e.Killed != killed {
				t.Errorf("%d processes, %d killed, want %d and %d", len(ps), e.Killed, want, killed)
			}
			if !slices.ContainsFunc(ps, func(p runtime.Process) bool {
				return p.First && p.PID == a.PID() && p.Comm == "probe" && p.Threads >= 1
			}) {
				t.Errorf("the first process is not in %+v", ps)
			}
			a.expect("errno=EPERM", "fork")
		})
	}
}

// A fork storm at the instant of the demotion: nothing of it is left, whenever it comes.
func TestM22ForkStormAtDemotion(t *testing.T) {
	a := startAlive(t, aliveOpts{profile: "ring3"})
	a.applied(rings.Standard)
	a.expect("ok", "storm 4", "burn 2")
	var took []time.Duration
	for range 10 {
		took = append(took, a.applied(rings.Sandbox).Took.Round(time.Millisecond))
		for range 3 {
			if ps, err := a.Processes(); err != nil || len(ps) != 1 {
				t.Fatalf("%d processes, %v, want the first one only", len(ps), err)
			}
		}
		a.applied(rings.Standard)
	}
	t.Log("demotions took", took)
}

// An operator's freeze survives a demotion; what could not be taken then is taken at the thaw.
func TestM22DemotionOfTheFrozen(t *testing.T) {
	a := startAlive(t, aliveOpts{profile: "ring3"})
	a.applied(rings.Standard)
	a.expect("ok", "child")
	for _, err := range []error{a.Freeze(a.context()), a.Freeze(a.context())} {
		if err != nil {
			t.Fatal(err)
		}
	}
	a.applied(rings.Sandbox)
	if s, err := a.Snapshot(); err != nil || s.State != runtime.LiveFrozen {
		t.Errorf("state %v, %v, want %v", s.State, err, runtime.LiveFrozen)
	}
	if err := a.Thaw(a.context()); err != nil {
		t.Fatal(err)
	}
	a.expect("errno=EPERM", "fork")
	a.expect("errno=EROFS", "create /workspace/new")
	if ps, err := a.Processes(); err != nil || len(ps) != 1 {
		t.Errorf("%d processes, %v, want 1", len(ps), err)
	}

	a.applied(rings.Standard)
	a.expect("ok", "hold /workspace/held")
	if err := a.Freeze(a.context()); err != nil {
		t.Fatal(err)
	}
	a.applied(rings.Sandbox)
	if s, err := a.Snapshot(); err != nil || s.State != runtime.LiveFrozen {
		t.Errorf("state %v, %v, want %v", s.State, err, runtime.LiveFrozen)
	}
	if err := a.Thaw(a.context()); err == nil {
		t.Error("a writer lives on after the thaw, want it killed")
	}
	if s := a.ended(); s.State != runtime.Policy {
		t.Errorf("got %s: %s, want %s", s.State, s.Reason, runtime.Policy)
	}
}

// A score that falls: below the ring it was admitted to, a run loses what it was built with.
func TestM22DemotionBelowTheBase(t *testing.T) {
	for _, profile := range []string{"ring2", "ring1"} {
		t.Run(profile, func(t *testing.T) {
			bind := t.TempDir()
			a := startAlive(t, aliveOpts{profile: profile, change: func(s *runtime.Spec) {
				s.Binds = append(s.Binds, runtime.BindMount{Source: bind, Target: "/data", Writable: true})
			}})
			a.expect("ok", "fork", "create /workspace/a", "create /data/a", "child")
			root := "errno=EROFS"
			if profile == "ring1" {
				root = "ok"
			}
			a.expect(root, "create /new", "create /usr/new")
			a.applied(rings.Sandbox)
			a.expect("errno=EPERM", "fork", "posix_spawn")
			a.expect("errno=EROFS", "create /workspace/b", "create /data/b", "create /new2", "create /usr/new2", "create /dev/x")
			a.expect("ok", "create /tmp/sandbox/b", "write /dev/null x")
			if s, _ := a.Snapshot(); s.Limits != (runtime.Limits{CPU: 0.5, Memory: 256 << 20, PIDs: 64}) {
				t.Errorf("limits %+v, want ring 3's", s.Limits)
			}
			base, _ := rings.RingOf(a.Plan().Ring)
			a.applied(base)
			a.expect("ok", "fork", "create /workspace/b", "create /data/b")
			a.expect(root, "create /new2", "create /usr/new2")
		})
	}
}

// The ring that holds at the start need not be the plan's; a plan that can't be elevated says why and stays.
func TestM22OtherRingAtTheStart(t *testing.T) {
	a := startAlive(t, aliveOpts{profile: "ring2", start: rings.Sandbox})
	a.expect("errno=EPERM", "fork")
	a.expect("errno=EROFS", "create /workspace/a")
	if e := <-a.events; e.To != rings.Sandbox || e.From != rings.Standard {
		t.Errorf("got %+v, want ring 3 after ring 2", e)
	}
	a.applied(rings.Standard)
	a.expect("ok", "fork", "create /workspace/a")

	a = startAlive(t, aliveOpts{profile: "strict"})
	if a.Plan().Elevatable() == nil {
		t.Error("strict can be elevated")
	}
	if e := a.turn(rings.Standard); e.Kind != runtime.LiveRingFailed || e.Err == nil || !strings.Contains(e.Err.Error(), "strict") {
		t.Errorf("got %+v, want a refusal that names the profile", e)
	}
	a.expect("errno=EPERM", "fork")
	a.expect("errno=EROFS", "create /workspace/a")
}

// Changes faster than they can be applied end in the last one.
func TestM22QuickChanges(t *testing.T) {
	a := startAlive(t, aliveOpts{profile: "ring3"})
	for range 20 {
		for _, r := range []rings.Ring{rings.Standard, rings.Sandbox, rings.Standard, rings.NoRing, rings.Root} {
			a.source.to(r)
		}
	}
	a.source.to(rings.Privileged)
	for e := range a.events {
		if e.To == rings.Privileged {
			break
		}
	}
	a.applied(rings.Sandbox)
	a.expect("errno=EPERM", "fork")
	a.expect("errno=EROFS", "create /workspace/a")
}
