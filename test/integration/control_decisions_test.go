// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/control"
	"agentrun/rings"
)

// operators makes an operator, and gives what an attestation of his releases.
func (p place) operator() (release func(agent string) []string) {
	p.t.Helper()
	home := p.t.TempDir()
	key, operators := filepath.Join(home, "key"), filepath.Join(home, "operators")
	line := p.must("operator", "keygen", "--out", key, "--name", "alice").stdout
	write(p.t, operators, line, 0o644)
	return func(agent string) []string {
		text := p.must("operator", "sign", "--key", key, "--action", "release-quarantine", "--subject", "agent:"+agent).stdout
		return []string{"--witness", write(p.t, filepath.Join(home, "attestation"), text, 0o600), "--operators", operators}
	}
}

// H-2, H-31, M-22: another process says that an agent's score has fallen, or that it is held; its live run follows at once.
func TestH31ALiveRunFollowsItsAgent(t *testing.T) {
	x := newExit(t)
	x.host("api.test", http.HandlerFunc(slowly))
	x.settings.tool("quick", x.httpTool("https://api.test/", "A"))
	x.n.must("agent", "score", "planner-1", "0.7")
	a := x.obeying("follower", "ring2", "--agent", "planner-1")
	release := a.operator()
	can := func() {
		t.Helper()
		a.expect("ok", "fork", "create /workspace/new")
		a.expect("value=ok", "tool quick")
		if b := a.seen(); b.Ring != 2 || b.Quarantined {
			t.Errorf("got %+v, want ring 2", b)
		}
	}
	var fell int
	cannot := func(tool string, since time.Time) {
		t.Helper()
		a.holds(3)
		fell++
		if e := a.events("ring_changed"); len(e) != fell || e[fell-1].At.Sub(since) > soon() {
			t.Errorf("ring 3 holds %v after it was said, want %v (M-22); %+v", e[len(e)-1].At.Sub(since), soon(), e)
		}
		fell++ // and up again
		a.expect("errno=EPERM", "fork")
		a.expect("errno=EROFS", "create /workspace/new")
		a.expect(tool, "tool quick")
		if diff := cmp.Diff(limits3, hostLimits(t, a.seen().PID)); diff != "" {
			t.Errorf("limits on the host (-want +got):\n%s", diff)
		}
	}
	can()
	a.must("agent", "score", "planner-1", "0.3")
	cannot("value=ok", time.Now())
	a.refused("insufficient_trust", "elevate", "follower", "--to", "2", "--reason", "x")
	a.must("score", "follower", "0.7")
	a.holds(2)
	can()
	a.must("quarantine", "follower", "--reason", "seen enough")
	cannot("value=quarantined", time.Now())
	if !a.seen().Quarantined {
		t.Error("the quarantine isn't shown")
	}
	a.refused("quarantined", "elevate", "follower", "--to", "2", "--reason", "x")
	a.must(append([]string{"release", "follower"}, release("planner-1")...)...)
	a.holds(2)
	can()
	a.must("agent", "quarantine", "planner-1", "--reason", "seen enough")
	cannot("value=quarantined", time.Now())
	a.must(append([]string{"agent", "release", "planner-1"}, release("planner-1")...)...)
	a.holds(2)
	can()
	a.ringChanges("2>3", "3>2", "2>3", "3>2", "2>3", "3>2")
	a.quit().want(t, 0, "exited")
	x.n.audit("node")
}

// H-31: an agent that is held gets nothing of the calls that it has under way, also where it was in ring 3 already.
func TestH31HeldCallsEndInRing3(t *testing.T) {
	x := newExit(t)
	called := make(chan struct{})
	x.host("api.test", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(called)
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	slow := x.httpTool("https://api.test/", "B")
	slow["timeout"] = "20s"
	x.settings.tool("slow", slow)
	a := x.obeying("under-way", "ring3", "--agent", "planner-1")
	a.tell("tool slow")
	select {
	case <-called:
	case <-time.After(hang()):
		t.Fatal("the tool was never reached")
	}
	a.must("quarantine", "under-way", "--reason", "seen enough")
	if got := a.answer("tool slow"); got != "value=quarantined" {
		t.Errorf("a call that was under way: got %s", got)
	}
	a.quit().want(t, 0, "exited")
}

// H-13, H-15: each refusal by its code, through the real command line; asking costs nothing.
func TestH13RefusalsByTheCLI(t *testing.T) {
	p := newPlace(t)
	for agent, score := range map[string]string{"low": "0.3", "mid": "0.7", "high": "0.9"} {
		p.must("agent", "score", agent, score)
	}
	p.must("agent", "score", "held", "0.7")
	of := func(agent string) opts { return opts{profile: "ring3", flags: []string{"--agent", agent}} }
	low, mid, twin := p.agent("low", of("low")), p.agent("mid", of("mid")), p.agent("twin", of("mid"))
	p.agent("high", of("high"))
	p.agent("held", of("held"))
	p.agent("second", opts{profile: "ring2"})
	p.agent("strict", opts{profile: "strict"})
	p.must("agent", "quarantine", "held", "--reason", "a test")
	to := func(ring, name string, more ...string) []string {
		return append([]string{"elevate", name, "--to", ring, "--reason", "a test"}, more...)
	}
	for _, dry := range [][]string{{"--dry-run"}, nil} {
		p.refused("insufficient_trust", to("2", "low", dry...)...)
		p.refused("insufficient_trust", to("1", "mid", dry...)...)
		p.refused("no_consensus", to("1", "high", dry...)...)
		p.refused("invalid_target", to("2", "second", dry...)...)
		p.refused("quarantined", to("2", "held", dry...)...)
		p.refused("not_elevatable", to("2", "strict", dry...)...)
		p.refused("not_found", to("2", "nobody", dry...)...)
	}
	for _, args := range [][]string{to("0", "mid"), to("3", "mid"), {"elevate", "mid", "--to", "2"}, to("2", "mid", "--ttl", "2h"), to("2", "mid", "--ttl", "-1s")} {
		if r := p.do(args...); r.exit != 2 || !strings.Contains(r.stderr, "hint: ") {
			t.Errorf("%v: exit %d, want 2 and a hint\n%s", args, r.exit, r.stderr)
		}
	}
	// Below the command line ring 0 has its own answer.
	b := mid.seen()
	c, err := control.Open(p.run, b.ID)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Elevate(context.Background(), b.ID, control.ElevateRequest{Target: rings.Root, Reason: "a test"}, "")
	if e, ok := errors.AsType[*control.Error](err); !ok || e.Code != string(rings.CodeRing0Forbidden) {
		t.Errorf("ring 0: got %v", err)
	}
	// One for an agent, whoever supervises its runs.
	if r := p.must(to("2", "mid", "--dry-run")...); strings.Contains(r.stdout, "for 0s") {
		t.Errorf("a dry run says %q, and a loan has an end", r.stdout)
	}
	mid.elevate(time.Hour)
	p.refused("duplicate_elevation", to("2", "twin")...)
	p.refused("invalid_target", to("2", "mid")...)
	p.must("revoke", "mid")
	twin.elevate(time.Hour)
	p.refused("duplicate_elevation", to("2", "mid")...)
	twin.quit().want(t, 0, "exited")
	mid.elevate(time.Hour)
	low.quit().want(t, 0, "exited")
	p.refused("not_found", to("2", "low")...)
	other := b.ID[:15] + "7"
	if other == b.ID {
		other = b.ID[:15] + "6"
	}
	p.refused("not_found", to("2", other)...)
	granted, ended := causes(p.audit())
	if granted != 3 || strings.Join(ended, " ") != "revoked run_end" {
		t.Errorf("on record: %d granted, ended %v, want 3, and revoked, run_end", granted, ended)
	}
}

// H-13, H-14 for a supervisor that dies: its agents die, the elevation is gone, and nothing keeps the next from having one.
func TestM22SupervisorDiesWhileElevated(t *testing.T) {
	p := newPlace(t)
	p.must("agent", "score", "planner-1", "0.7")
	of := opts{profile: "ring3", flags: []string{"--agent", "planner-1"}}
	a := p.agent("first", of)
	a.elevate(time.Hour)
	a.expect("ok", "storm 2", "children 5")
	id := a.seen().ID
	_ = a.Process.Kill()
	_ = a.Wait()
	noAgents(t)
	socket := filepath.Join(p.run, "control", id+".sock")
	if _, err := os.Lstat(socket); err != nil {
		t.Fatalf("the supervisor left no socket, so that this test proves nothing: %v", err)
	}
	if list := p.list(); len(list) != 0 {
		t.Errorf("live: %+v", list)
	}
	p.refused("not_found", "elevate", "first", "--to", "2", "--reason", "a test")
	b := p.agent("next", of)
	if _, err := os.Lstat(socket); err == nil {
		t.Error("the dead supervisor's control socket is still there after the next start")
	}
	if left := p.list(); len(left) != 1 || left[0].Elevation != nil || left[0].Ring != 3 {
		t.Errorf("live: %+v", left)
	}
	b.expect("errno=EPERM", "fork")
	b.elevate(time.Hour)
	b.expect("ok", "fork")
	b.quit().want(t, 0, "exited")
	p.must("gc")
	p.audit()
}

// M-23: each change that an operator makes is on record with who asked for it, by the command and by the API.
func TestM23WhoAskedIsOnRecord(t *testing.T) {
	n := startDaemon(t)
	p := place{t, n.run, n.state}
	p.must("agent", "set", "planner-1", "--plan", "operator")
	p.must("agent", "score", "planner-1", "0.7")
	n.api(t, "POST", "/v1/agents/planner-1/score", `{"score": 0.8}`, http.StatusOK)
	p.must("exec", "-d", "--name", "first", "--agent", "planner-1", "--", "sleep", "60")
	p.must("signal", "first", "--signal", "WINCH")
	p.must("quarantine", "first", "--reason", "a test")
	p.must(append([]string{"release", "first"}, p.operator()("planner-1")...)...)
	key := asked[struct {
		ID string `json:"key_id"`
	}](p, "key", "issue", "--agent", "planner-1", "--may", "agent.run.invoke")
	p.must("key", "revoke", key.ID)
	p.must("kill", "first", "--reason", "policy_violation")
	named := map[string]int{}
	for _, e := range p.audit() {
		if e.Kind == "kill_order" && (e.Data["trigger"] != "operator" || e.Data["reason"] != "policy_violation") {
			t.Errorf("a kill by an operator: %v", e.Data)
		}
		if by, ok := e.Data["by"].(string); ok && strings.HasPrefix(by, "uid:") {
			named[e.Kind]++
		}
	}
	want := map[string]int{"agent_settings": 1, "score": 2, "sandbox_signal": 1, "quarantine": 1, "release": 1, "agent_key": 2, "kill_order": 1}
	if diff := cmp.Diff(want, named); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
