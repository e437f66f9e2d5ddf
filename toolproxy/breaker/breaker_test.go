// SPDX-License-Identifier: Apache-2.0

package breaker

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"agentrun/internal/read"
	"agentrun/pdp"
	"agentrun/rings"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/gate/gatetest"
	"agentrun/toolproxy/link"
)

// section is the section breaker: with that text.
func section(text string) *read.Node {
	return read.YAML(read.Source{Path: "breaker", Max: 1 << 20}, []byte(text))
}

// world is a breaker before a gate.
type world struct {
	*Entrance
	s      *gatetest.Supervisor
	gate   *gate.Gate
	refuse bool // the policy refuses
	alarms []string
}

func newWorld(t testing.TB, c Config) *world {
	t.Helper()
	w := &world{s: gatetest.New(rings.Sandbox)}
	g, err := gate.New(gate.Options{
		Supervisor: w.s, MaxSteps: 1 << 20, Caller: link.Caller{Run: "run-1", Role: "member", Plan: "premium", Mode: "public"}, Granted: gate.Granting(nil),
		Policy: pdp.DeciderFunc(func(context.Context, pdp.Request) pdp.Decision {
			if w.refuse {
				return pdp.Decision{Code: pdp.CodeACLBlock}
			}
			return pdp.Decision{Verdict: rings.Allow, Code: pdp.CodeOK}
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.gate = g
	w.Entrance = New(Options{Entrance: g, Config: c, Alarm: func(detail string) { w.alarms = append(w.alarms, detail) }})
	return w
}

func call(tool string) gate.Call {
	return gate.Call{Kind: "tool", Tool: tool, Category: gate.CategoryA, PlaintextFree: true,
		Action: rings.Action{ID: "tool." + tool + ".invoke", Name: tool, ExecuteAPI: tool, Reversibility: rings.Full, ReadOnly: true}}
}

var broken = &gate.Error{Code: gate.CodeToolFailed}

// once makes one call that ends with e, or tells what refused it.
func (w *world) once(t testing.TB, tool string, e *gate.Error) *gate.Error {
	t.Helper()
	p, refused := w.Enter(t.Context(), call(tool))
	if refused != nil {
		return refused
	}
	if lost := p.End(gate.Outcome{Err: e}); lost != nil {
		t.Fatalf("end: %v", lost)
	}
	return nil
}

func (w *world) times(t testing.TB, n int, tool string, e *gate.Error) {
	t.Helper()
	for i := range n {
		if refused := w.once(t, tool, e); refused != nil {
			t.Fatalf("%s, call %d: %v", tool, i+1, refused)
		}
	}
}

func TestH23ToolIsShutAndTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		w.times(t, 5, "weather", nil)
		w.times(t, 5, "weather", broken) // the tenth call makes five of ten
		before, _ := w.gate.Steps()
		refused := w.once(t, "weather", nil)
		if refused == nil || refused.Code != gate.CodeToolUnavailable || refused.Retry != 30*time.Second || refused.Next == "" || gate.Status(refused.Code) != 503 {
			t.Fatalf("got %+v, want tool_unavailable for 30 s", refused)
		}
		if after, _ := w.gate.Steps(); after != before {
			t.Errorf("a call that wasn't made counted as a step")
		}
		if last := w.s.Records()[len(w.s.Records())-1]; last.Allowed || last.Code != gate.CodeToolUnavailable {
			t.Errorf("got record %+v", last)
		}
		w.times(t, 3, "math", nil) // others go on
		time.Sleep(31 * time.Second)
		// One call is let through, and while it is under way no other.
		p, refused := w.Enter(t.Context(), call("weather"))
		if refused != nil {
			t.Fatal(refused)
		}
		if refused := w.once(t, "weather", nil); refused == nil || refused.Code != gate.CodeToolUnavailable {
			t.Errorf("a second call beside the trial: got %v", refused)
		}
		p.End(gate.Outcome{Err: broken})
		if refused := w.once(t, "weather", nil); refused == nil || refused.Retry != 30*time.Second {
			t.Errorf("after a failed trial: got %v", refused)
		}
		time.Sleep(31 * time.Second)
		w.times(t, 20, "weather", nil)
		if places, reservations, wrong := w.s.Held(); places+reservations != 0 || wrong != nil {
			t.Errorf("got %d, %d, %v held", places, reservations, wrong)
		}
		if len(w.alarms) != 0 {
			t.Errorf("got %v, want no alarm: it is off", w.alarms)
		}
	})
}

// What is not an upstream's failure shuts nothing, and a trial that a policy refused is no trial.
func TestH23WhatCountsAsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		for _, e := range []*gate.Error{
			{Code: gate.CodeToolFailed, Asked: true}, {Code: gate.CodeToolTimeout, Asked: true}, {Code: gate.CodeBadArguments}, {Code: gate.CodeTooLarge},
			{Code: gate.CodeRing}, {Code: gate.CodeCanceled}, {Code: gate.CodeCost}, {Code: "a code of tomorrow"},
		} {
			w.times(t, 30, "weather", e)
		}
		w.times(t, 30, "code-executor", broken)
		w.refuse = true
		for range 30 {
			if refused := w.once(t, "weather", nil); refused == nil || refused.Code != pdp.CodeACLBlock {
				t.Fatalf("got %v, want the policy's refusal", refused)
			}
		}
		w.refuse = false
		w.times(t, 10, "weather", &gate.Error{Code: gate.CodeUnavailable})
		time.Sleep(31 * time.Second)
		w.refuse = true
		for range 3 {
			if refused := w.once(t, "weather", nil); refused == nil || refused.Code != pdp.CodeACLBlock {
				t.Errorf("trial: got %v, want the policy's refusal", refused)
			}
		}
		w.refuse = false
		w.times(t, 1, "weather", nil)
	})
}

func TestH23OldFailuresAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Calls: 4, Rate: 1, Window: 10 * time.Second, Open: 5 * time.Second})
		for range 6 {
			w.times(t, 3, "weather", broken)
			time.Sleep(11 * time.Second)
		}
		w.times(t, 4, "weather", &gate.Error{Code: gate.CodeToolTimeout})
		if refused := w.once(t, "weather", nil); refused == nil || refused.Retry != 5*time.Second {
			t.Errorf("got %v, want it shut for 5 s", refused)
		}
		off := newWorld(t, Config{Off: true, Calls: 1, KillAt: 0.1, KillCalls: 1})
		off.times(t, 100, "weather", broken)
		if len(off.alarms) != 0 {
			t.Errorf("got %v, want nothing: it is off", off.alarms)
		}
	})
}

// The share over all tools: one alarm, and nothing of the run passes from then on, also where nobody heard it.
func TestH23AllToolsFailing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{KillAt: 0.9, KillCalls: 20, KillWindow: time.Minute})
		w.times(t, 2, "math", nil)
		for i := range 17 {
			w.times(t, 1, fmt.Sprint("tool-", i), broken)
		}
		synctest.Wait()
		if len(w.alarms) != 0 {
			t.Fatalf("got %v after 19 calls, want none", w.alarms)
		}
		w.times(t, 1, "tool-a", broken)
		synctest.Wait()
		if len(w.alarms) != 1 || !strings.Contains(w.alarms[0], "90 %") {
			t.Fatalf("got %v, want one alarm", w.alarms)
		}
		for range 3 {
			if refused := w.once(t, "math", nil); refused == nil || refused.Code != gate.CodeCanceled {
				t.Errorf("got %v, want %v", refused, gate.CodeCanceled)
			}
			time.Sleep(time.Hour)
		}
		if len(w.alarms) != 1 {
			t.Errorf("got %d alarms, want 1", len(w.alarms))
		}
	})
}

// The quarantined hear of the quarantine, not of breakers; a list has shut tools in it still.
func TestM9BreakerComesAfterTheSupervisor(t *testing.T) {
	w := newWorld(t, Config{})
	w.times(t, 10, "weather", broken)
	if !w.May(t.Context(), call("weather")) {
		t.Error("a tool that is shut for a while isn't listed")
	}
	w.s.OnCheck = func(link.Check) (link.Verdict, error) { return link.Verdict{Code: rings.CodeQuarantined}, nil }
	if refused := w.once(t, "weather", nil); refused == nil || refused.Code != gate.CodeQuarantined {
		t.Errorf("got %v, want %v", refused, gate.CodeQuarantined)
	}
	w.s.OnCheck = nil
	c := call("weather")
	c.Rate = func() *gate.Error { return &gate.Error{Code: gate.CodeRateLimited} }
	if _, refused := w.Enter(t.Context(), c); refused == nil || refused.Code != gate.CodeRateLimited {
		t.Errorf("got %v, want %v", refused, gate.CodeRateLimited)
	}
}

func schema(t testing.TB) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(Schema)))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("breaker.json", doc); err != nil {
		t.Fatal(err)
	}
	return c.MustCompile("breaker.json")
}

func TestH23Config(t *testing.T) {
	published := schema(t)
	valid := func(text string) error {
		var v any
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			return err
		}
		return published.Validate(v)
	}
	text := "{enabled: false, calls: 5, rate: 0.25, window: 1m, open: 10s, kill_at: 0.9, kill_calls: 50, kill_window: 2m}"
	got, err := ParseConfig(section(text))
	want := Config{Off: true, Calls: 5, Rate: 0.25, Window: time.Minute, Open: 10 * time.Second, KillAt: 0.9, KillCalls: 50, KillWindow: 2 * time.Minute}
	if d := cmp.Diff(want, got); d != "" || err != nil || valid(text) != nil {
		t.Errorf("%s %v %v", d, err, valid(text))
	}
	if got, err := ParseConfig(nil); err != nil || got != (Config{}) || got.withDefaults().KillAt != 0 || got.withDefaults().Off {
		t.Errorf("nothing said: got %+v, %v", got, err)
	}
	for text, key := range map[string]string{
		"{calls: 0}": "breaker.calls", "{calls: 10001}": "breaker.calls", "{rate: 0}": "breaker.rate", "{rate: 1.01}": "breaker.rate", "{rate: .nan}": "breaker.rate", "{rate: .inf}": "breaker.rate",
		"{rate: -1}": "breaker.rate", "{kill_at: 0}": "breaker.kill_at", "{kill_calls: -1}": "breaker.kill_calls", "{window: 999ms}": "breaker.window", "{window: 2h}": "breaker.window",
		"{open: 0s}": "breaker.open", "{kill_window: -1s}": "breaker.kill_window", "{tripp: 1}": "breaker.tripp", "{enabled: maybe}": "breaker.enabled",
	} {
		if _, err := ParseConfig(section(text)); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: got %v, want an error about %s", text, err, key)
		}
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte("{calls: 5, rate: 0.25, window: 1m}"))
	f.Add([]byte("{rate: .nan, kill_at: 1}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := ParseConfig(section(string(text)))
		if err != nil {
			return
		}
		c = c.withDefaults()
		if !(c.Rate > 0 && c.Rate <= 1) || !(c.KillAt >= 0 && c.KillAt <= 1) || c.Calls < 1 || c.Window < minWindow || c.Open < minWindow || c.KillWindow < minWindow {
			t.Fatalf("taken: %+v", c)
		}
	})
}
