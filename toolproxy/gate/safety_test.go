// SPDX-License-Identifier: Apache-2.0

package gate_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/pdp"
	"agentrun/rings"
	"agentrun/telemetry"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/gate/gatetest"
	"agentrun/toolproxy/link"
)

// requiring is a gate of a run whose tool calls take an approved step, and what was asked of its policy.
func requiring(t *testing.T, s *gatetest.Supervisor, change func(*gate.Options)) (g *gate.Gate, decided *int) {
	t.Helper()
	decided = new(int)
	o := options(s)
	o.Safety, o.RequireIntent = s, true
	o.Policy = pdp.DeciderFunc(func(ctx context.Context, r pdp.Request) pdp.Decision { *decided++; return allow(ctx, r) })
	if change != nil {
		change(&o)
	}
	return newGate(t, o), decided
}

func about(target string) gate.Call {
	c := call()
	c.Target = telemetry.NewPlaintext(target)
	return c
}

// Each approved step is one call's: the call's own tool and target are asked about, after steps and before the policy.
func TestS15IntentIsAskedBetweenStepsAndPolicy(t *testing.T) {
	s := gatetest.New(rings.Sandbox)
	var asked []string
	s.OnIntent = func(_ context.Context, tool, target string) error {
		asked = append(asked, tool+" "+target)
		if target == "b" {
			return link.ErrNoIntent
		}
		return nil
	}
	g, decided := requiring(t, s, func(o *gate.Options) { o.MaxSteps = 2 })
	p, e := g.Enter(t.Context(), about("a"))
	if e != nil {
		t.Fatal(e)
	}
	if e := p.End(gate.Outcome{}); e != nil {
		t.Fatal(e)
	}
	_, e = g.Enter(t.Context(), about("b"))
	if e == nil || e.Code != gate.CodeIntent || *decided != 1 || !strings.Contains(e.Next, "math and b") || !strings.Contains(e.Next, "record_execution_step") || gate.Status(e.Code) != 403 {
		t.Errorf("got %+v after %d decisions, want %s, and no policy asked", e, *decided, gate.CodeIntent)
	}
	if _, e := g.Enter(t.Context(), about("a")); e == nil || e.Code != gate.CodeSteps {
		t.Errorf("got %v, want %s", e, gate.CodeSteps)
	}
	if d := cmp.Diff([]string{"math a", "math b"}, asked); d != "" {
		t.Errorf("a step was spent for a call that had none left: %s", d)
	}
	if r := s.Records()[1]; r.Code != gate.CodeIntent || r.Rule != "S-15" || r.Allowed || r.Weight != rings.NoRing {
		t.Errorf("got record %+v", r)
	}
	balanced(t, s, 3)
}

// Models are what an agent thinks with; lists and requests for a ring are no calls of a tool.
func TestS15WhatTakesNoIntent(t *testing.T) {
	s := gatetest.New(rings.Sandbox)
	s.OnIntent = func(context.Context, string, string) error { return link.ErrNoIntent }
	g, _ := requiring(t, s, nil)
	model := call()
	model.Kind = "llm"
	p, e := g.Enter(t.Context(), model)
	if e != nil {
		t.Fatalf("a model: got %v", e)
	}
	if e := p.End(gate.Outcome{}); e != nil {
		t.Error(e)
	}
	if !g.May(t.Context(), call()) {
		t.Error("the tool isn't listed")
	}
	if e := g.AskElevation(t.Context(), rings.Standard); e != nil {
		t.Errorf("elevation: got %v", e)
	}
	if e := g.AskSafety(t.Context()); e != nil {
		t.Errorf("safety loop: got %v", e)
	}
	if d := cmp.Diff([]string{"check", "reserve", "end", "check"}, s.Asked()); d != "" {
		t.Error(d)
	}
}

func TestS15IntentFailsClosed(t *testing.T) {
	for name, c := range map[string]struct {
		answer func() error
		want   rings.Code
	}{
		"none":     {func() error { return link.ErrNoIntent }, gate.CodeIntent},
		"stopped":  {func() error { return link.ErrStopped }, gate.CodeStopped},
		"error":    {func() error { return errors.New("the store is gone") }, gate.CodeUnavailable},
		"no loop":  {func() error { return link.ErrGone }, gate.CodeUnavailable},
		"a panic":  {func() error { panic("broke") }, gate.CodeUnavailable},
		"too long": {func() error { return nil }, gate.CodeIntent},
	} {
		s := gatetest.New(rings.Sandbox)
		s.OnIntent = func(context.Context, string, string) error { return c.answer() }
		g, decided := requiring(t, s, nil)
		one := about("x")
		if name == "too long" {
			one = about(strings.Repeat("x", link.MaxSafetyTarget+1))
		}
		p, e := g.Enter(t.Context(), one)
		if p != nil || e == nil || e.Code != c.want || *decided != 0 || e.Next == "" || len(e.Next) > 500 {
			t.Errorf("%s: got %v, %+v, want %s", name, p, e, c.want)
		}
		balanced(t, s, 1)
	}
	o := options(gatetest.New(rings.Sandbox))
	o.RequireIntent = true
	if _, err := gate.New(o); err == nil {
		t.Error("intents are required of nobody: want an error")
	}
}

// The supervisor refuses whatever a stopped agent asks for; the agent is told so.
func TestS15StoppedAgentsCallsAreRefused(t *testing.T) {
	s := gatetest.New(rings.Sandbox)
	s.OnCheck = func(link.Check) (link.Verdict, error) {
		return link.Verdict{Code: link.CodeStopped, Ring: rings.Sandbox}, nil
	}
	g, decided := requiring(t, s, nil)
	if _, e := g.Enter(t.Context(), call()); e == nil || e.Code != gate.CodeStopped || e.Next == "" || *decided != 0 {
		t.Errorf("got %+v, want %s", e, gate.CodeStopped)
	}
	if e := g.AskElevation(t.Context(), rings.Standard); e == nil || e.Code != gate.CodeStopped {
		t.Errorf("elevation: got %v, want %s", e, gate.CodeStopped)
	}
	balanced(t, s, 2)
}

// A stop that leaves the ring as it is ends calls under way all the same, models' included, and their results are withheld.
func TestS15StopEndsCallsUnderWay(t *testing.T) {
	for name, c := range map[string]struct {
		blocked error
		want    rings.Code
	}{"stopped": {link.ErrStopped, gate.CodeStopped}, "nobody knows": {errors.New("unread"), gate.CodeUnavailable}, "not stopped": {nil, gate.CodeToolTimeout}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := gatetest.New(rings.Sandbox)
				asked := 0
				s.OnBlocked = func(context.Context) error {
					if asked++; asked < 3 {
						return nil
					}
					return c.blocked
				}
				o := options(s)
				o.Safety = s
				g := newGate(t, o)
				one := call()
				one.Kind, one.Timeout = "llm", 30*time.Second
				began := time.Now()
				p, e := g.Enter(t.Context(), one)
				if e != nil {
					t.Fatal(e)
				}
				<-p.Context().Done()
				took := time.Since(began)
				e = p.End(gate.Outcome{})
				if c.blocked == nil {
					if took != one.Timeout || e != nil {
						t.Errorf("ended after %v with %v, want %v", took, e, one.Timeout)
					}
				} else if took != 3*time.Second || e == nil || e.Code != c.want {
					t.Errorf("ended after %v with %v, want 3s and %s", took, e, c.want)
				}
				synctest.Wait()
				balanced(t, s, 1)
			})
		})
	}
}

// Reporting is no right: neither steps, ring nor policy bound it, and a stopped agent is told so by the loop. After the end there is
// nothing to report.
func TestS15WhoMaySpeakToTheLoop(t *testing.T) {
	for name, c := range map[string]struct {
		ring rings.Ring
		want rings.Code
	}{"lives": {rings.Sandbox, ""}, "ended": {rings.NoRing, gate.CodeCanceled}} {
		s := gatetest.New(c.ring)
		s.OnCheck = func(link.Check) (link.Verdict, error) {
			return link.Verdict{Code: link.CodeStopped, Ring: rings.Sandbox}, nil
		}
		g, decided := requiring(t, s, func(o *gate.Options) { o.MaxSteps = 0 })
		e := g.AskSafety(t.Context())
		records := 1
		if c.want == "" {
			records = 0
		}
		if (e == nil) != (c.want == "") || e != nil && e.Code != c.want || *decided != 0 {
			t.Errorf("%s: got %v, %d decisions, want %q", name, e, *decided, c.want)
		}
		balanced(t, s, records)
		if records == 1 && s.Records()[0].Name != "safety" {
			t.Errorf("%s: got record %+v", name, s.Records()[0])
		}
	}
	s := gatetest.New(rings.Sandbox)
	g, _ := requiring(t, s, func(o *gate.Options) {
		o.Policy = pdp.DeciderFunc(func(context.Context, pdp.Request) pdp.Decision {
			return pdp.Decision{Code: pdp.CodeACLBlock, Policy: "p", Critical: true}
		})
	})
	if _, e := g.Enter(t.Context(), call()); e == nil {
		t.Fatal("want the call refused")
	}
	if e := g.AskSafety(t.Context()); e == nil || e.Code != gate.CodeCanceled {
		t.Errorf("after a critical violation: got %v, want %s", e, gate.CodeCanceled)
	}
}
