// SPDX-License-Identifier: Apache-2.0

package pdp

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentrun/rings"
)

func asking() Request {
	return Request{
		Subject: Subject{ID: "agent-1", Type: Agent}, TeamID: "red", Action: ToolAction("shell"), Resource: Resource{ID: "run-1", TeamID: "red", Mode: Public}, KeyID: "key-1",
		Context: Context{Ring: rings.Standard, RequiredRing: rings.Sandbox, Plan: "premium", Role: "analyst", KeyValid: true, Capabilities: []string{ToolAction("shell"), ToolAction("math")},
			Tool: Tool{Category: "A", PlaintextFree: true}, Input: Clean, Quota: Quota{Used: 0, Limit: 10}},
	}
}

func elevating(target rings.Ring) Request {
	r := asking()
	r.Action, r.Resource.ID, r.Context.Tool, r.Context.Capabilities = ElevationAction, RingResource(target), Tool{}, []string{ElevationAction}
	return r
}

const noShell = `@id("no-shell") @reason("acl_block") @severity("critical") forbid (principal, action == Action::"tool.invoke", resource == Tool::"shell");`

func compiled(t testing.TB, text string) *Set {
	t.Helper()
	s, err := Compile([]File{{"p.cedar", []byte(text)}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestH23CriticalForbids(t *testing.T) {
	s := compiled(t, noShell+` @severity("high") forbid (principal, action, resource) when { context.plan == "freemium" };`)
	d := s.Decide(t.Context(), asking())
	if d.Allowed() || !d.Critical || d.Policy != "no-shell" || d.Code != CodeACLBlock {
		t.Errorf("got %+v, want critical", d)
	}
	if b, err := json.Marshal(d); err != nil || !strings.Contains(string(b), `"critical":true`) {
		t.Errorf("got %s, %v", b, err)
	}
	math := asking()
	math.Action = ToolAction("math")
	if d := s.Decide(t.Context(), math); !d.Allowed() || d.Critical {
		t.Errorf("another tool: got %+v", d)
	}
	math.Context.Plan = "freemium"
	if d := s.Decide(t.Context(), math); d.Allowed() || d.Critical {
		t.Errorf("high: got %+v, want it refused and not critical", d)
	}
	// An earlier reason of M-9 is told; the violation is one all the same.
	also := asking()
	also.Context.KeyValid = false
	if d := s.Decide(t.Context(), also); d.Code != CodeKeyInvalid || !d.Critical || d.Policy != "no-shell" {
		t.Errorf("with an invalid key: got %+v", d)
	}
	// What no policy was asked about is not its violation; and a forbid that can't be evaluated is not known to forbid.
	also.Context.RequiredRing = rings.Privileged
	if d := s.Decide(t.Context(), also); d.Code != rings.CodeInsufficientRing || d.Critical {
		t.Errorf("above the ring: got %+v", d)
	}
	broken := compiled(t, `@severity("critical") forbid (principal, action, resource) when { context.quota.limit * 9223372036854775807 > 0 };`)
	if d := broken.Decide(t.Context(), asking()); d.Code != CodeError || d.Critical {
		t.Errorf("broken: got %+v, want %s and not critical", d, CodeError)
	}
}

func TestH23SeverityIsHeldToItsWords(t *testing.T) {
	for text, want := range map[string]string{
		`@severity("crtical") forbid (principal, action, resource);`:  "none of low",
		`@severity("CRITICAL") forbid (principal, action, resource);`: "none of low",
		`@severity("") forbid (principal, action, resource);`:         "none of low",
		`@severity("critical") permit (principal, action, resource);`: "belongs to a forbid",
	} {
		if _, err := Compile([]File{{"p.cedar", []byte(text)}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
	both := Guarded(DeciderFunc(func(context.Context, Request) Decision {
		return Decision{Verdict: rings.Allow, Code: CodeOK, Critical: true}
	}))
	if d := both.Decide(t.Context(), asking()); d.Allowed() || d.Critical {
		t.Errorf("allowed and critical: got %+v, want a refusal that kills nobody", d)
	}
	first := DeciderFunc(func(context.Context, Request) Decision { return Decision{Code: CodeACLBlock, Critical: true} })
	if d := Every(first, both).Decide(t.Context(), asking()); !d.Critical {
		t.Errorf("among several: got %+v, want it kept", d)
	}
}

// Hot reload takes the severity with the policy.
func TestH23SeverityIsReloaded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.cedar")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write(strings.Replace(noShell, "critical", "low", 1))
	e, err := NewEngine(Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	if e.Decide(t.Context(), asking()).Critical {
		t.Error("low is critical")
	}
	write(noShell)
	if e.Poll(); !e.Decide(t.Context(), asking()).Critical {
		t.Error("got it not critical after the change")
	}
	write(strings.Replace(noShell, "critical", "nonsense", 1)) // refused: the last valid set goes on
	if e.Poll().Refused == nil || !e.Decide(t.Context(), asking()).Critical {
		t.Error("an invalid file took the severity away")
	}
}

func TestH13PolicyAboutElevations(t *testing.T) {
	builtin := compiled(t, noShell)
	if d := builtin.Decide(t.Context(), elevating(rings.Standard)); !d.Allowed() {
		t.Errorf("built-in: got %+v, want allowed to ask", d)
	}
	forbid := compiled(t, `@id("no-ring-1") forbid (principal, action == Action::"agent.elevation.request", resource == Resource::"ring:1");
@id("not-guests") forbid (principal in Role::"guest", action == Action::"agent.elevation.request", resource);`)
	if d := forbid.Decide(t.Context(), elevating(rings.Privileged)); d.Policy != "no-ring-1" || d.Allowed() {
		t.Errorf("ring 1: got %+v", d)
	}
	guest := elevating(rings.Standard)
	if d := forbid.Decide(t.Context(), guest); !d.Allowed() {
		t.Errorf("ring 2: got %+v", d)
	}
	guest.Context.Role = "guest"
	if d := forbid.Decide(t.Context(), guest); d.Policy != "not-guests" {
		t.Errorf("guest: got %+v", d)
	}
	// An operator who grants tools alone grants nothing else.
	tools := compiled(t, `permit (principal, action == Action::"tool.invoke", resource);`)
	if d := tools.Decide(t.Context(), elevating(rings.Standard)); d.Code != CodeRBACDenied {
		t.Errorf("tools alone: got %+v, want %s", d, CodeRBACDenied)
	}
	for name, spoil := range map[string]func(*Request){
		"resource":        func(r *Request) { r.Resource.ID = "ring:4" },
		"resource's name": func(r *Request) { r.Resource.ID = "run-1" },
		"tool":            func(r *Request) { r.Context.Tool = Tool{Category: "A"} },
		"no capability":   func(r *Request) { r.Context.Capabilities = nil },
		"wildcard":        func(r *Request) { r.Context.Capabilities = []string{"agent.*"} },
		"action":          func(r *Request) { r.Action = "agent.elevation.grant" },
	} {
		r := elevating(rings.Standard)
		spoil(&r)
		if d := builtin.Decide(t.Context(), r); d.Allowed() {
			t.Errorf("%s: allowed", name)
		}
	}
	if got := RingResource(rings.NoRing); got != "" {
		t.Errorf("got %q for no ring", got)
	}
}
