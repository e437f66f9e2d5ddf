// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"agentrun/hypervisor"
	"agentrun/pdp"
	"agentrun/profiles"
	"agentrun/rings"
	"agentrun/runtime"
	"agentrun/safetyloop/judge"
	"agentrun/safetyloop/policy"
	"agentrun/telemetry"
	"agentrun/toolproxy/egress"
	entrance "agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/safety"
	"agentrun/toolproxy/tools"
)

// inside is what an agent has: its gateway's gate and handler on one end of a real link, the supervisor's broker and loop on the other.
type inside struct {
	t    *testing.T
	runs *Runs
	run  *Run
	gate *entrance.Gate
	http http.Handler
	ring func() (rings.Ring, <-chan struct{})
}

func newInside(t *testing.T) *inside {
	t.Helper()
	h, err := hypervisor.Open(hypervisor.Options{StateDir: stateFolder(t)})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := h.SetScore(t.Context(), "a", 0.7, false, "uid:0"); err != nil {
		t.Fatal(err)
	}
	adm, err := h.Admit(t.Context(), hypervisor.Request{Agent: "a"})
	if err != nil {
		t.Fatal(err)
	}
	s := runsOn(t, h)
	v, err := s.Begin(h, adm, &runtime.Plan{
		ID: "r1", Agent: "a", Ring: 2, Wayout: &runtime.PlanWayout{}, Safety: &profiles.Safety{Mode: profiles.SafetyEnforcing, RequireIntent: true},
	}, RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	x := v.Control.Broker(hypervisor.BrokerOptions{MaxSteps: 100, Safety: v.Safety})
	start := link.Start{Caller: adm.Caller("r1", ""), Ring: adm.Ring, MaxSteps: 100, Safety: SafetyStart(v.Plan)}
	ours, theirs, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- (&link.Server{Start: start, Supervisor: x}).Serve(ctx, ours) }()
	client, err := link.Connect(theirs)
	if err == nil {
		err = client.Hello(nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		cancel()
		<-done
		x.Close()
		v.Close()
		s.Close()
		adm.Done()
		h.Close()
	})
	given := client.Start().Safety
	if given == nil || !given.RequireIntent || given.Mode != "enforcing" {
		t.Fatalf("the gateway is told %+v", given)
	}
	c := client.Start().Caller
	c.Team, c.Role = "t", "member"
	g, err := entrance.New(entrance.Options{
		Supervisor: client, Caller: c, MaxSteps: 100, Granted: entrance.Granting(nil), Safety: client, RequireIntent: given.RequireIntent,
		Policy: pdp.DeciderFunc(func(context.Context, pdp.Request) pdp.Decision {
			return pdp.Decision{Verdict: rings.Allow, Code: pdp.CodeOK}
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	p, err := policy.Parse("policy.yaml", []byte("deny: [drop_*]\nautoApprove: [\"calling *\"]\n"))
	if err != nil {
		t.Fatal(err)
	}
	handler, err := safety.New(safety.Options{Gate: g, Loop: client, Judge: p.For("a", true), Mode: judge.Enforcing})
	if err != nil {
		t.Fatal(err)
	}
	mux := tools.NewMux(tools.MuxOptions{Mounts: map[egress.Family]http.Handler{egress.Safety: handler}, Hosts: []string{"gateway"}, Record: client.Record})
	return &inside{t, s, v, g, mux, client.Ring}
}

func (i *inside) step(hint string) string {
	i.t.Helper()
	body, err := json.Marshal(map[string]any{"operation": "record_execution_step", "params": map[string]string{"element_name": "planner", "nextActionHint": hint}})
	if err != nil {
		i.t.Fatal(err)
	}
	r := httptest.NewRequestWithContext(i.t.Context(), "POST", "/internal/safety/create", strings.NewReader(string(body)))
	r.Header.Set("Content-Type", "application/json")
	r.Host = "gateway"
	w := httptest.NewRecorder()
	i.http.ServeHTTP(w, r)
	return w.Body.String()
}

// enter is a tool call; it gives its code.
func (i *inside) enter() rings.Code {
	i.t.Helper()
	p, e := i.gate.Enter(i.t.Context(), entrance.Call{
		Kind: "tool", Tool: "look_up", Category: entrance.CategoryA, Args: telemetry.NewPlaintext(json.RawMessage(`{}`)),
		Action: rings.Action{ID: "tool.look_up.invoke", Name: "look_up", ExecuteAPI: "tool", Reversibility: rings.Full, ReadOnly: true},
	})
	if e != nil {
		return e.Code
	}
	if e := p.End(entrance.Outcome{}); e != nil {
		return e.Code
	}
	return rings.CodeOK
}

func (i *inside) expect(want rings.Code) {
	i.t.Helper()
	if got := i.enter(); got != want {
		i.t.Errorf("a tool call: got %s, want %s", got, want)
	}
}

// S-15, both sides of the link without a sandbox: an approved step is good for one call, a stop shuts everything and is told to the
// gateway at once, an operator's code gives it all back, and nothing of what was approved before.
func TestS15BothSidesOfTheLink(t *testing.T) {
	i := newInside(t)
	i.expect(link.CodeNoIntent)
	if got := i.step("calling look_up"); !strings.Contains(got, `"continue":true`) {
		t.Fatalf("got %s", got)
	}
	i.expect(rings.CodeOK)
	i.expect(link.CodeNoIntent)
	i.step("calling look_up")
	before, changed := i.ring()
	if got := i.step("drop_table users"); !strings.Contains(got, `"stopped":true`) {
		t.Fatalf("got %s, want a stop", got)
	}
	select {
	case <-changed:
	case <-time.After(10 * time.Second):
		t.Fatal("the gateway isn't told")
	}
	if ring, _ := i.ring(); ring != rings.Sandbox || before != rings.Standard {
		t.Errorf("the gateway is in %v, before in %v", ring, before)
	}
	i.expect(link.CodeStopped)
	if got := i.step("calling look_up"); !strings.Contains(got, `"stopped":true`) {
		t.Errorf("got %s, want it stopped", got)
	}
	waiting := i.runs.safety.Challenges(t.Context())
	if len(waiting) != 1 || waiting[0].Agent != "a" {
		t.Fatalf("got %+v, want one", waiting)
	}
	shown, err := i.runs.safety.Show(t.Context(), "uid:0", waiting[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := i.runs.safety.Verify(t.Context(), "uid:0", shown.ID, shown.Code.Reveal()); err != nil {
		t.Fatal(err)
	}
	// The run has no processes here, so its stop got no further than the ways out: what a loop doesn't resume, the watch does.
	for deadline := time.After(10 * time.Second); ; {
		ring, changed := i.ring()
		if ring == rings.Standard {
			break
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatal("released, and its ways out stay shut")
		}
	}
	i.expect(link.CodeNoIntent)
	i.step("calling look_up")
	i.expect(rings.CodeOK)
}
