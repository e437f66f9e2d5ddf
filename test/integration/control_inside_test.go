// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"agentrun/test/exit"
)

// THREATS "elevation", "supervisor": an agent finds no way to the control socket; the run folder is shown to nobody
// (TestOwnFoldersByAnyPath). For its own wish it has one route, where the answer is an operator's unless its settings say
// otherwise (H-13).
func TestM23NoControlFromInside(t *testing.T) {
	x := newExit(t)
	x.n.must("agent", "score", "planner-1", "0.7")
	x.n.must("agent", "score", "planner-2", "0.7")
	out := x.obeying("outside", "ring3", "--agent", "planner-1")
	in := x.obeying("inside", "ring2", "--agent", "planner-2")
	sock := out.seen().ID + ".sock"
	for _, a := range []*told{out, in} {
		for _, at := range []string{
			"/run/agentrun/control/" + sock, runDir + "/control/" + sock, "/proc/1/root" + runDir + "/control/" + sock,
			"/proc/self/fd/3", "@agentrun", "@" + runDir + "/control/" + sock, "/run/agentrun/control/daemon.sock",
		} {
			if got := a.try("reach " + at + " GET_/v1/sandboxes_HTTP/1.1"); got != "value=silence" && !strings.HasPrefix(got, "errno=") {
				t.Errorf("%s reaches %s: %s", a.name, at, got)
			}
		}
		for _, dir := range []string{"/run/agentrun/control", runDir + "/control"} {
			if got := a.try("look " + dir); strings.Contains(got, ".sock") {
				t.Errorf("%s sees control sockets in %s: %s", a.name, dir, got)
			}
		}
		a.expect("value=", "roots")
	}

	// No word of the agent's gives it anything.
	out.expect("value=approval_required", "elevate 2 0")
	out.expect("value=insufficient_trust", "elevate 1 20")
	out.expect("value=ring_0_forbidden", "elevate 0 20")
	out.expect("errno=EPERM", "fork")
	for _, answer := range []string{"deny", "approve"} {
		out.tell("elevate 2 60")
		waits := x.waiting(1)[0]
		var ask struct {
			Target int    `json:"target_ring"`
			Reason string `json:"reason"`
		}
		if err := json.Unmarshal(waits.Args, &ask); err != nil || waits.Tool != "elevation" || ask.Target != 2 || ask.Reason != "a test" {
			t.Errorf("the operator sees %+v (%v)", waits, err)
		}
		if r := x.approvals(t, answer, waits.ID); r.exit != 0 {
			t.Errorf("%s: exit %d\n%s", answer, r.exit, r.stderr)
		}
		want, after := "value=ok", "ok"
		if answer == "deny" {
			want, after = "value=approval_required", "errno=EPERM"
		}
		if got := out.answer("elevate 2 60"); got != want {
			t.Errorf("after %s: got %s, want %s", answer, got, want)
		}
		out.expect(after, "fork")
	}
	out.must("revoke", "outside")
	out.expect("errno=EPERM", "fork")
	x.n.must("agent", "set", "planner-1", "--self-elevation")
	out.expect("value=ok", "elevate 2 0")
	out.expect("ok", "fork")
	out.must("revoke", "outside")
	x.n.must("agent", "set", "planner-1", "--self-elevation=false")
	out.expect("value=approval_required", "elevate 2 0")
	out.quit().want(t, 0, "exited")
	in.quit().want(t, 0, "exited")
	granted, ended := causes(x.n.audit("node"))
	if granted != 2 || strings.Join(ended, " ") != "revoked revoked" {
		t.Errorf("on record: %d granted, ended %v, want 2 revoked", granted, ended)
	}
}

// M-9, H-13: an agent's own request is decided by policy too: a remote PDP that says no, or nothing, is a no; an operator is not
// asked by way of it.
func TestM9PolicyDecidesAboutElevation(t *testing.T) {
	x := newExit(t)
	pdp := &exittest.PDP{}
	pdp.Be("allow")
	h := x.host("pdp.test", pdp)
	x.settings.egress(x.w)
	x.settings.remotePDP("http://" + h.Addr.String())
	x.n.must("agent", "score", "planner-1", "0.7")
	x.n.must("agent", "set", "planner-1", "--self-elevation")
	a := x.obeying("asker", "ring3", "--agent", "planner-1")
	a.expect("value=ok", "elevate 2 0")
	a.must("revoke", "asker")
	for _, mood := range []string{"deny", "hang"} {
		pdp.Be(mood)
		if got := a.try("elevate 2 0"); got == "value=ok" || !strings.HasPrefix(got, "value=") {
			t.Errorf("the policy's mood is %s: got %s, want a refusal", mood, got)
		}
		a.expect("errno=EPERM", "fork")
	}
	a.elevate(time.Hour)
	a.expect("ok", "fork")
	a.quit().want(t, 0, "exited")
	x.n.audit("node")
}
