// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// THREATS "policy": the clock of the machine is set while runs live. Nothing that was given for a time lasts longer by it, no run gets more time or
// less, and the record stays sound. Only where the clock is nobody else's: in the virtual machine.
func TestClockJumps(t *testing.T) {
	needSandbox(t)
	if os.Getenv("AGENTRUN_TEST_CLOCK") != "1" {
		unmet(t, "a machine whose clock a test may set: AGENTRUN_TEST_CLOCK=1, as in the virtual machine")
	}
	const lent, most = 20 * time.Second, 6 * time.Second
	for _, tc := range []struct {
		what string
		by   time.Duration
	}{{"ahead", 26 * time.Hour}, {"back", -26 * time.Hour}} {
		t.Run(tc.what, func(t *testing.T) {
			p := newPlace(t)
			p.must("agent", "score", "planner-1", "0.7")
			a := p.agent("life", opts{profile: "ring3", flags: []string{"--agent", "planner-1"}})
			a.elevate(lent)
			began := time.Now()
			a.expect("ok", "fork")
			c := prepare(t, opts{unsafe: true, flags: []string{"--timeout", most.String()}}, "/probe", "ready", ",", "sleep", "100")
			c.startUntil(t, "ready")
			setClock(t, tc.by)
			r := c.finish(t)
			r.want(t, 124, "timeout")
			if r.wall < most || r.wall > most+time.Duration(slow*float64(10*time.Second)) {
				t.Errorf("a run of %v took %v", most, r.wall)
			}
			a.holds(3)
			if took := time.Since(began); took > lent+time.Duration(slow*float64(5*time.Second)) {
				t.Errorf("lent for %v, held for %v", lent, took)
			}
			a.expect("errno=EPERM", "fork")
			if r := a.quit(); r.status.State != "exited" {
				t.Errorf("the run ended as %s: %s", r.status.State, r.status.Reason)
			}
			p.must("audit", "verify")
		})
	}
}

// setClock sets it by so much until the test has ended.
func setClock(t *testing.T, by time.Duration) {
	t.Helper()
	set := func(by time.Duration) {
		ts := unix.NsecToTimespec(time.Now().Add(by).UnixNano())
		if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
			t.Fatal("clock_settime:", err)
		}
	}
	set(by)
	t.Cleanup(func() { set(-by) })
}
