// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/fault"
	"agentrun/rings"
	"agentrun/runtime"
)

// M-23: freeze and thaw, as often as one likes; the agent does nothing in between, and its time runs on.
func TestM23FreezeAndThaw(t *testing.T) {
	a := startAlive(t, aliveOpts{profile: "ring3"})
	// Neither a quota that is used up nor refusals that wait for their turn hold off a freeze.
	a.expect("ok", "burn 2", "storm 50")
	for s, _ := a.Snapshot(); s.Refused["clone"]+s.Refused["fork"] < 2500; s, _ = a.Snapshot() {
		time.Sleep(5 * time.Millisecond)
	}
	for range 3 {
		began := time.Now()
		if err := a.Freeze(a.context()); err != nil {
			t.Fatal(err)
		}
		if took, bound := time.Since(began), 5*soon(); took > bound { // no promise of 100 ms: the v1 freezer tries again
			t.Errorf("frozen after %v, want %v", took, bound)
		}
		before, err := a.Snapshot()
		if err != nil || before.State != runtime.LiveFrozen {
			t.Fatalf("%v, %v, want %v", before.State, err, runtime.LiveFrozen)
		}
		time.Sleep(20 * time.Millisecond)
		if after, _ := a.Snapshot(); after.Stats.CPU-before.Stats.CPU > time.Millisecond {
			t.Errorf("used %v of processor time while frozen", after.Stats.CPU-before.Stats.CPU)
		}
		for range 2 {
			if err := a.Thaw(a.context()); err != nil {
				t.Fatal(err)
			}
		}
		if s, _ := a.Snapshot(); s.State != runtime.LiveRunning {
			t.Errorf("%v, want %v", s.State, runtime.LiveRunning)
		}
		a.expect("errno=EPERM", "fork")
	}
}

// M-23, M-3: limits change within their ranges, and stay what the operator made them when the ring changes.
func TestM23Update(t *testing.T) {
	a := startAlive(t, aliveOpts{profile: "ring3", change: func(s *runtime.Spec) { s.Ranges.TestOnly = false; s.Limits.Timeout = 300e9 }})
	for _, bad := range []runtime.Limits{{}, {CPU: 0.001}, {CPU: 1.5}, {CPU: math.NaN()}, {CPU: -1}, {Memory: 1 << 20}, {Memory: 2 << 30}, {PIDs: -1}, {PIDs: 5000}, {CPU: 0.5, PIDs: 1}} {
		if before, after, err := a.Update(a.context(), bad, nil); err == nil || before != after {
			t.Errorf("%+v was taken", bad)
		}
	}
	before, after, err := a.Update(a.context(), runtime.Limits{PIDs: 100, CPU: 0.6}, nil)
	want := runtime.Limits{CPU: 0.6, Memory: 256 << 20, PIDs: 100}
	if err != nil || before != (runtime.Limits{CPU: 0.5, Memory: 256 << 20, PIDs: 64}) || after != want {
		t.Fatalf("before %+v, after %+v, %v", before, after, err)
	}
	a.applied(rings.Privileged)
	want.Memory = 1 << 30
	if s, _ := a.Snapshot(); s.Limits != want {
		t.Errorf("elevated: %+v, want %+v", s.Limits, want)
	}
	a.applied(rings.Sandbox)
	want.Memory = 256 << 20
	if s, _ := a.Snapshot(); s.Limits != want {
		t.Errorf("demoted: %+v, want %+v", s.Limits, want)
	}
}

// A killed run: empty when Kill returns, the cause in the status, whoever asks and however often.
func TestM23Kill(t *testing.T) {
	a := startAlive(t, aliveOpts{profile: "ring2"})
	a.expect("ok", "children 50", "storm 4")
	if err := a.FreezeForKill(a.context()); err != nil {
		t.Fatal(err)
	}
	// Whatever else is asked for, it stays frozen.
	a.source.to(rings.Sandbox)
	for what, err := range map[string]error{"thaw": a.Thaw(a.context()), "freeze": a.Freeze(a.context())} {
		if !errors.Is(err, runtime.ErrEnded) {
			t.Errorf("%s: %v, want %v", what, err, runtime.ErrEnded)
		}
	}
	if s, err := a.Snapshot(); err == nil && s.State != runtime.LiveEnding {
		t.Errorf("%v, want %v", s.State, runtime.LiveEnding)
	}
	var wg sync.WaitGroup
	var most int
	var mu sync.Mutex
	for range 20 {
		wg.Go(func() {
			killed, err := a.Kill(a.context(), runtime.KillCause{Reason: "kill switch: manual"})
			if err != nil && !errors.Is(err, runtime.ErrEnded) {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			most = max(most, killed)
		})
	}
	wg.Wait()
	if most < 51 {
		t.Errorf("%d processes killed, want 51 and more", most)
	}
	if s := a.ended(); s.State != runtime.Killed || s.Reason != "kill switch: manual" {
		t.Errorf("got %s: %s", s.State, s.Reason)
	}
	<-a.Done()
	_, snapErr := a.Snapshot()
	_, listErr := a.Processes()
	_, _, updateErr := a.Update(a.context(), runtime.Limits{PIDs: 100}, nil)
	_, killErr := a.Kill(a.context(), runtime.KillCause{})
	for i, err := range []error{snapErr, listErr, updateErr, killErr, a.Freeze(a.context()), a.Thaw(a.context()), a.FreezeForKill(a.context()), a.Signal(unix.SIGTERM)} {
		if !errors.Is(err, runtime.ErrEnded) {
			t.Errorf("call %d after the end: %v, want %v", i, err, runtime.ErrEnded)
		}
	}
	if a.Status().Reason != "kill switch: manual" {
		t.Errorf("status %+v", a.Status())
	}
}

// Everything at once, and the end in the midst of it: nothing hangs, nothing is left.
func TestM23ManyAtOnce(t *testing.T) {
	a := startAlive(t, aliveOpts{profile: "ring3"})
	a.expect("ok", "writer /workspace/log", "burn 1")
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(slow*float64(300*time.Millisecond)))
	defer cancel()
	var wg sync.WaitGroup
	for i, do := range []func(){
		func() { a.source.to(rings.Standard) }, func() { a.source.to(rings.Sandbox) },
		func() { _ = a.Freeze(ctx) }, func() { _ = a.Thaw(ctx) }, func() { _, _ = a.Snapshot() }, func() { _, _ = a.Processes() },
		func() { _, _, _ = a.Update(ctx, runtime.Limits{PIDs: 80}, nil) },
	} {
		wg.Go(func() {
			for ctx.Err() == nil {
				do()
				time.Sleep(time.Duration(i+1) * time.Millisecond)
			}
		})
	}
	go func() {
		for range a.events {
		}
	}()
	wg.Wait()
	_, err := a.Kill(a.context(), runtime.KillCause{State: runtime.Policy, Reason: "over"})
	if err != nil && !errors.Is(err, runtime.ErrEnded) {
		t.Error(err)
	}
	s := a.ended()
	if s.State != runtime.Policy {
		t.Errorf("got %s: %s, want %s", s.State, s.Reason, runtime.Policy)
	}
	t.Logf("%s: %s", s.State, s.Reason)
}

// A launch that fails after the run is live, or just before, ends it for everybody who holds it, and leaves nothing.
func TestM22FailedLaunch(t *testing.T) {
	for _, step := range []string{"live mounts", "probe", "exec"} {
		undo := fault.Set("launch/" + step + "=EIO")
		a := launchAlive(t, aliveOpts{profile: "ring3", start: rings.Standard})
		if s := a.ended(); s.State != runtime.Failed || s.FailedStep != step {
			t.Errorf("%s: got %+v", step, s)
		}
		undo()
		if a.Live == nil {
			continue
		}
		<-a.Done()
		if err := a.Freeze(a.context()); !errors.Is(err, runtime.ErrEnded) || a.Status().State != runtime.Failed {
			t.Errorf("%s: freeze: %v, status %+v", step, err, a.Status())
		}
	}
}

// M-5: a launch that was given up because its thread didn't come back is undone when it does, and its account stays what it was. By the
// time of the account, the processes are dead.
func TestM5AbandonedLaunchUndoesItself(t *testing.T) {
	for _, step := range []string{"root view", "container", "probe"} {
		t.Run(step, func(t *testing.T) {
			t.Setenv("AGENTRUN_TESTONLY_STEP_PATIENCE", scaled(time.Second)) // no step takes so long, also where all is busy
			defer fault.Set("launch/" + step + "=delay:" + scaled(4*time.Second))()
			began := time.Now()
			a := launchAlive(t, aliveOpts{profile: "ring3", leaves: true})
			s := a.ended()
			if s.State != runtime.Failed || s.FailedStep != step || len(s.Leftovers) != 1 || !strings.Contains(s.Leftovers[0], s.ID) {
				t.Errorf("got %+v, want %s given up and the run named as left", s, step)
			}
			if took := time.Since(began); took > time.Duration(slow*float64(3800*time.Millisecond)) {
				t.Errorf("the account came after %v", took)
			}
			folder := filepath.Join(runDir, "sandboxes", s.ID)
			if _, err := os.Stat(folder); err != nil {
				t.Errorf("it was undone before its thread came back: %v", err)
			}
			eventually(t, 10*time.Second, "it is undone", func() bool { _, err := os.Stat(folder); return err != nil })
			for _, dir := range cgroupDirs() {
				if filepath.Base(dir) == s.ID {
					t.Errorf("left: %s", dir)
				}
			}
		})
	}
}
