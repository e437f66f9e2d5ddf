// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"agentrun/audit"
	"agentrun/rings"
	"agentrun/safetyloop"
	"agentrun/store"
	"agentrun/telemetry"
	"agentrun/toolproxy/link"
)

// strict stops whoever says anything.
type strict struct{}

func (strict) Judge(context.Context, string) (safetyloop.Judgement, error) {
	return safetyloop.Judgement{Rule: safetyloop.RuleDeny, Score: 1}, nil
}

func (n *node) loop() *safetyloop.Loop {
	n.t.Helper()
	l, err := n.SafetyLoop(safetyloop.Settings{
		Mode: safetyloop.Enforcing, Tolerance: safetyloop.Moderate, MaxSteps: 5, Confirm: safetyloop.ConfirmClient, OnlyOperators: true, Judge: strict{},
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return l
}

func halted(t *testing.T, l *safetyloop.Loop, agent string) {
	t.Helper()
	r := l.Do(t.Context(), safetyloop.Call{
		Caller: safetyloop.Caller{Principal: agent, Bound: true}, Endpoint: safetyloop.Create, Operation: "record_execution_step",
		Params: telemetry.NewPlaintext(json.RawMessage(`{"element_name":"x","nextActionHint":"drop the database"}`)),
	})
	if d, ok := r.Data.(safetyloop.Directive); !ok || !d.Stopped {
		t.Fatalf("got %+v, want a stop", r)
	}
}

// A stop outlives the process that gave it, holds for every run of the agent, whatever its profile says, and for nobody else; it is on
// record, as is its end.
func TestS8StoppedAgentIsNotAdmitted(t *testing.T) {
	n := newNode(t)
	n.score("a", 0.9, true)
	l := n.loop()
	halted(t, l, "a")
	l.Close()
	n.restart()
	for _, req := range []Request{{Agent: "a"}, {Agent: "a", Ring: rings.Sandbox}} {
		_, err := n.Admit(t.Context(), req)
		d, ok := errors.AsType[*DeniedError](err)
		if !ok || d.Code != CodeAgentStopped || !strings.Contains(d.Hint, "agentrun challenges") {
			t.Errorf("%+v: got %v, want %s", req, err, CodeAgentStopped)
		}
		if _, err := n.RingFor(t.Context(), req); err == nil {
			t.Errorf("%+v: a plan was made of it", req)
		}
	}
	for _, req := range []Request{{Agent: "b"}, {}} {
		adm, err := n.Admit(t.Context(), req)
		if err != nil {
			t.Errorf("%+v: %v", req, err)
		}
		adm.Done()
	}
	blocks, err := n.SafetyBlocks(t.Context())
	if err != nil || len(blocks) != 1 || blocks[0].Agent != "a" {
		t.Errorf("got %+v, %v, want a's", blocks, err)
	}
	l = n.loop()
	defer l.Close()
	if err := l.Unblock(t.Context(), "uid:0", "a", "false alarm"); err != nil {
		t.Fatal(err)
	}
	adm, err := n.Admit(t.Context(), Request{Agent: "a"})
	if err != nil {
		t.Error(err)
	}
	adm.Done()
	events := []string{}
	for _, r := range (&site{node: n}).records(audit.NodeChain, "safety_block") {
		events = append(events, r.(*audit.SafetyBlock).Event)
	}
	if strings.Join(events, " ") != "blocked released" {
		t.Errorf("on record: %v, want blocked released", events)
	}
}

// What can't be read stops everybody (S-8): an agent that could spoil the list would be free.
func TestS8UnreadableBlocksStopAgents(t *testing.T) {
	n := newNode(t)
	n.score("a", 0.9, true)
	db, err := n.Hypervisor.store()
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(t.Context(), func(tx *store.Tx) error { return tx.Bucket("safety_blocks").Put("other", []byte(`{"agent":7}`)) })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Admit(t.Context(), Request{Agent: "a"}); !errors.Is(err, safetyloop.ErrUnread) {
		t.Errorf("got %v, want %v", err, safetyloop.ErrUnread)
	}
	if adm, err := n.Admit(t.Context(), Request{}); err != nil {
		t.Errorf("the operator's own run: %v", err)
	} else {
		adm.Done()
	}
}

// reached counts what comes through to a loop.
type reached struct{ n int }

func (r *reached) Safety(context.Context, link.Safety) (json.RawMessage, error) {
	r.n++
	return json.RawMessage(`{"success":true}`), nil
}
func (r *reached) Intent(context.Context, string, string) error { r.n++; return nil }
func (r *reached) Blocked(context.Context) error                { r.n++; return nil }

// S-15: while a run is stopped nothing leaves it, its gateway hears of it at once, and its processes' ring stays. All of it comes back.
func TestS15StopShutsEveryWayOut(t *testing.T) {
	s := newSite(t)
	s.score("a", 0.9, true)
	adm, err := s.Admit(t.Context(), Request{Agent: "a", Ring: rings.Standard})
	if err != nil {
		t.Fatal(err)
	}
	defer adm.Done()
	c := s.Control(adm, ControlOptions{Run: "r1", Elevatable: func(rings.Ring) error { return nil }})
	defer c.Close()
	loop := &reached{}
	e := c.Broker(BrokerOptions{
		MaxSteps: 1000, Safety: loop,
		Execute: func(context.Context, string) (link.Process, error) { return nil, errors.New("executed") },
	})
	defer e.Close()
	for range 2 {
		wantRing(t, c, rings.Standard)
		if v, err := e.Check(t.Context(), link.Check{Egress: true}); err != nil || !v.Allowed {
			t.Fatalf("got %+v, %v, want it allowed", v, err)
		}
		_, changed := e.Ring()
		c.Stop()
		c.Stop()
		select {
		case <-changed:
		default:
			t.Error("nobody was told of the stop")
		}
		wantRing(t, c, rings.Standard)
		ring, resumed := e.Ring()
		if ring != rings.Sandbox {
			t.Errorf("the broker is in %v, want %v", ring, rings.Sandbox)
		}
		for what, v := range map[string]link.Check{"connection": {Egress: true}, "tool": {Action: link.Check{}.Action, Held: true}} {
			if got, err := e.Check(t.Context(), v); err != nil || got.Allowed || got.Code != link.CodeStopped {
				t.Errorf("%s: got %+v, %v, want %s", what, got, err, link.CodeStopped)
			}
		}
		if r, err := e.Reserve(t.Context(), link.Spend{}); err != nil || r.Allowed || r.Code != link.CodeStopped {
			t.Errorf("reserve: got %+v, %v", r, err)
		}
		if r, err := e.Approve(t.Context(), link.Approval{}); err != nil || r.Allowed || r.Code != link.CodeStopped {
			t.Errorf("approve: got %+v, %v", r, err)
		}
		if r, err := e.Elevate(t.Context(), link.Elevation{Target: rings.Privileged}); err != nil || r.Granted || r.Code != link.CodeStopped {
			t.Errorf("elevate: got %+v, %v", r, err)
		}
		if _, err := e.Execute(t.Context(), "x"); !errors.Is(err, errStopped) {
			t.Errorf("execute: got %v, want %v", err, errStopped)
		}
		for what, err := range map[string]error{"intent": e.Intent(t.Context(), "x", ""), "blocked": e.Blocked(t.Context())} {
			if !errors.Is(err, link.ErrStopped) {
				t.Errorf("%s: got %v, want %v", what, err, link.ErrStopped)
			}
		}
		loop.n = 0
		if _, err := e.Safety(t.Context(), link.Safety{Endpoint: "CREATE", Operation: "verify_challenge"}); err != nil || loop.n != 1 {
			t.Errorf("the loop itself isn't reached: %v", err)
		}
		if err := e.Record(t.Context(), link.Record{Kind: "tool", Name: "x", Code: link.CodeStopped, Count: 1}); err != nil {
			t.Error(err)
		}
		c.Resume()
		select {
		case <-resumed:
		default:
			t.Error("nobody was told that it goes on")
		}
	}
	if e.Intent(t.Context(), "x", "") != nil || e.Blocked(t.Context()) != nil {
		t.Error("resumed, and still stopped")
	}
	if err := errors.Join(e.Close(), c.Close()); err != nil {
		t.Error(err)
	}
	codes := s.records(audit.NodeChain, "tool_call")
	if len(codes) != 2 || codes[0].(*audit.ToolCall).Code != "agent_stopped" {
		t.Errorf("on record: %+v", codes)
	}
}

// A flood of steps is refused in the words of the loop, and costs tools nothing.
func TestS15SafetyIsPaced(t *testing.T) {
	s := newSite(t)
	adm, err := s.Admit(t.Context(), Request{})
	if err != nil {
		t.Fatal(err)
	}
	defer adm.Done()
	loop := &reached{}
	e := s.Control(adm, ControlOptions{Run: "r1"}).Broker(BrokerOptions{MaxSteps: 1000, Safety: loop})
	defer e.Close()
	var last json.RawMessage
	for range 1000 {
		if last, err = e.Safety(t.Context(), link.Safety{Endpoint: "READ", Operation: "introspect"}); err != nil {
			t.Fatal(err)
		}
	}
	var reply safetyloop.Reply
	if err := json.Unmarshal(last, &reply); err != nil || reply.Success || reply.Error == nil || reply.Error.Code != safetyloop.CodeRateLimit || loop.n >= 1000 || loop.n == 0 {
		t.Errorf("got %s (%v) after %d, want a refusal", last, err, loop.n)
	}
	if r := adm.meter.Take(rings.Sandbox, 1); !r.Allowed {
		t.Errorf("a tool call has to wait for it: %v", err)
	}
	without := s.Control(adm, ControlOptions{Run: "r1"}).Broker(BrokerOptions{})
	defer without.Close()
	if _, err := without.Safety(t.Context(), link.Safety{Endpoint: "READ", Operation: "introspect"}); !errors.Is(err, errNoSafetyLoop) {
		t.Errorf("got %v, want %v", err, errNoSafetyLoop)
	}
	if without.Intent(t.Context(), "x", "") == nil || without.Blocked(t.Context()) == nil {
		t.Error("a run without a loop has approved steps")
	}
}
