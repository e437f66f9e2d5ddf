// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"agentrun/rings"
	"agentrun/runtime"
)

// kin is a parent in ring 1 with one child in ring 2, and what ended the child.
type kin struct {
	*node
	parent, child *Control
	adm           Admission
	ended         context.Context
}

func newKin(t *testing.T) *kin {
	t.Helper()
	k := &kin{node: newNode(t)}
	k.score("a", 0.97, true)
	k.parent = k.Control(k.admit(Request{Agent: "a", Ring: rings.Privileged}), ControlOptions{Run: "p", Processes: newCrew()})
	t.Cleanup(func() { k.parent.Close() })
	ctx, end := context.WithCancelCause(t.Context())
	k.ended = ctx
	var err error
	if k.adm, err = k.parent.AdmitChild(t.Context(), "c", rings.Standard, end); err != nil {
		t.Fatal(err)
	}
	k.child = k.Control(k.adm, ControlOptions{Run: "c", Parent: k.parent, Elevatable: func(rings.Ring) error { return nil }})
	return k
}

// leave is the child's end.
func (k *kin) leave() {
	k.t.Helper()
	if err := k.child.Close(); err != nil {
		k.t.Error(err)
	}
	k.adm.Done()
}

// becomes waits until a run is in a ring.
func becomes(t *testing.T, c *Control, want rings.Ring) {
	t.Helper()
	late := time.After(10 * time.Second)
	for {
		ring, changed := c.Ring()
		if ring == want {
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("the ring is %v, want %v", ring, want)
		}
	}
}

// H-15: a child is its parent's agent, in its parent's session, below its ring; it falls with it and is never raised. What it is refused
// is its parent's (H-24).
func TestH15Child(t *testing.T) {
	k := newKin(t)
	if k.adm.Agent != "a" || k.adm.meter != k.parent.adm.meter {
		t.Errorf("the child is of agent %q, want a, on its parent's account", k.adm.Agent)
	}
	if _, err := k.parent.AdmitChild(t.Context(), "c", rings.Privileged, func(error) {}); code(t, err) != rings.CodeInsufficientRing {
		t.Errorf("a child in its parent's ring: %v", err)
	}
	becomes(t, k.child, rings.Standard)
	if _, err := k.child.Elevate(t.Context(), ElevateRequest{Target: rings.Privileged, Reason: "test"}); err == nil {
		t.Error("a child was elevated")
	}
	k.score("a", 0.7, false)
	becomes(t, k.parent, rings.Standard)
	becomes(t, k.child, rings.Sandbox)
	w := k.child.Watch(WatchOptions{})
	for range 5 { // 4 each, from the ring that it has just lost
		if err := w.Refused(runtime.Refusal{Syscall: "mount", Verdict: "EPERM", Called: rings.Root}); err != nil {
			t.Fatal(err)
		}
	}
	if a := k.agent("a"); a.Quarantined == nil || !strings.Contains(a.Quarantined.Reason, "run p") {
		t.Errorf("quarantine after its child's breach: %+v, want run p named", a.Quarantined)
	}
	if _, err := k.parent.AdmitChild(t.Context(), "c", rings.Sandbox, func(error) {}); code(t, err) != rings.CodeQuarantined {
		t.Errorf("a child of a held agent: %v", err)
	}
	k.leave()
}

// H-21: a kill ends the children that there are, lets none begin, and has ended when they are gone; a stop and an end likewise.
func TestH15KillEndsChildren(t *testing.T) {
	k := newKin(t)
	var gone sync.WaitGroup
	gone.Go(func() {
		<-k.ended.Done()
		if _, err := k.parent.AdmitChild(t.Context(), "c", rings.Sandbox, func(error) {}); !errors.Is(err, ErrParentOver) {
			t.Errorf("a child of a run that is being killed: %v", err)
		}
		if !k.child.over() {
			t.Error("the child isn't over while its parent is killed")
		}
		time.Sleep(20 * time.Millisecond) // a kill that doesn't wait would be back
		k.leave()
	})
	res := k.parent.Kill(t.Context(), KillRequest{Reason: rings.KillManual})
	if len(res.Errors) > 0 {
		t.Errorf("errors of the kill: %v", res.Errors)
	}
	k.parent.mu.Lock()
	if n := len(k.parent.children); n != 0 {
		t.Errorf("the kill has ended, and %d children are left", n)
	}
	k.parent.mu.Unlock()
	gone.Wait()
	if why := context.Cause(k.ended); !errors.Is(why, ErrParentOver) {
		t.Errorf("the child was ended for %v", why)
	}
}

// S-15: what shuts the parent's ways out shuts the child's, and tells it.
func TestS15StopReachesChildren(t *testing.T) {
	k := newKin(t)
	defer k.leave()
	_, changed := k.child.Ring()
	k.parent.Stop()
	select {
	case <-changed:
	case <-time.After(10 * time.Second):
		t.Fatal("the child wasn't told")
	}
	if ring, _ := k.child.live.brokerRing(); ring != rings.Sandbox || !k.child.live.isStopped() {
		t.Errorf("the child's way out is in ring %v, want it shut", ring)
	}
	if _, err := k.parent.AdmitChild(t.Context(), "c", rings.Sandbox, func(error) {}); err == nil {
		t.Error("a stopped run begins another")
	}
	k.parent.Resume()
	if k.child.live.isStopped() {
		t.Error("the parent goes on, the child doesn't")
	}
}

// M-3, M-19: a child's tool calls are steps of its parent, and its costs too.
func TestH15StepsAndCosts(t *testing.T) {
	k := newKin(t)
	defer k.leave()
	of := k.parent.Broker(BrokerOptions{MaxSteps: 3})
	b := k.child.Broker(BrokerOptions{MaxSteps: 100, Parent: of})
	defer func() { _ = errors.Join(b.Close(), of.Close()) }()
	allowed := 0
	for range 5 {
		if check(t, b, tool("math")).Allowed {
			allowed++
		}
	}
	if allowed != 3 || check(t, of, tool("math")).Allowed {
		t.Errorf("a child of a run with 3 steps made %d calls, and the run another", allowed)
	}
	if b.ledger != of.ledger {
		t.Error("the child pays from a purse of its own")
	}
}
