// SPDX-License-Identifier: Apache-2.0

package pdp

import (
	"fmt"
	"strings"
	"testing"

	cedar "github.com/cedar-policy/cedar-go"
	"pgregory.net/rapid"

	"agentrun/rings"
)

var few = []string{"a", "b", "c"}

func drawRequest(t *rapid.T) Request {
	pick := func(label string, from ...string) string { return rapid.SampledFrom(from).Draw(t, label) }
	r := good()
	r.Subject = Subject{ID: pick("id", few...), Type: SubjectType(pick("type", "agent", "user"))}
	r.TeamID, r.Resource.TeamID = pick("team", few...), pick("owner", few...)
	if rapid.Bool().Draw(t, "own") {
		r.Resource.TeamID = r.TeamID
	}
	r.Resource.ID = pick("resource", few...)
	r.Resource.Mode = Mode(pick("mode", "public", "confidential"))
	r.Context.Role = pick("role", "", "a", "b", "c")
	r.Context.Plan = pick("plan", few...)
	r.Context.Ring = rapid.SampledFrom([]rings.Ring{rings.Privileged, rings.Standard, rings.Sandbox}).Draw(t, "ring")
	r.Context.RequiredRing = rings.Sandbox
	r.Context.Tool.PlaintextFree = rapid.Bool().Draw(t, "plain")
	if rapid.Bool().Draw(t, "run") {
		r.Action, r.Context.Tool = RunAction, Tool{}
	} else {
		r.Action = ToolAction(pick("tool", few...))
	}
	r.Context.Capabilities = []string{RunAction, ToolAction("a"), ToolAction("b")}
	return r
}

func drawPolicy(t *rapid.T, effect string) string {
	one := func(label string, from ...string) string { return rapid.SampledFrom(from).Draw(t, label) }
	id := one("entity", few...)
	principal := one("principal", "principal", `principal == Agent::"%s"`, `principal == User::"%s"`, `principal in Team::"%s"`, `principal in Role::"%s"`, `principal is Agent`, `principal is User in Team::"%s"`)
	if strings.Contains(principal, "%s") {
		principal = fmt.Sprintf(principal, id)
	}
	scope := one("scope",
		`action, resource`, `action == Action::"tool.invoke", resource`, `action == Action::"tool.invoke", resource == Tool::"a"`,
		`action == Action::"agent.run.invoke", resource == Resource::"b"`, `action == Action::"agent.run.invoke", resource in Team::"c"`,
		`action in [Action::"tool.invoke", Action::"agent.run.invoke"], resource`)
	when := one("when", "", `when { context.ring < 3 }`, `unless { context.plan == "a" }`, `when { context.target in Team::"b" }`, `when { context.quota.limit * 9000000000000000000 > 0 }`)
	return fmt.Sprintf("%s (%s, %s) %s;\n", effect, principal, scope, when)
}

func drawPolicies(t *rapid.T) string {
	var b strings.Builder
	for range rapid.IntRange(1, 12).Draw(t, "n") {
		b.WriteString(drawPolicy(t, rapid.SampledFrom([]string{"permit", "forbid"}).Draw(t, "effect")))
	}
	return b.String()
}

func mustCompile(t *rapid.T, text string) *Set {
	s, err := Compile([]File{{"p", []byte(text)}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestM9ForbidNeverAllowsMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text, r := drawPolicies(t), drawRequest(t)
		without := mustCompile(t, text).Decide(t.Context(), r)
		with := mustCompile(t, text+drawPolicy(t, "forbid")).Decide(t.Context(), r)
		if with.Allowed() && !without.Allowed() {
			t.Fatalf("without the forbid %+v, with it %+v", without, with)
		}
	})
}

// all is a set of policies without the index.
type all struct{ s *Set }

func (a all) forEffect(effect cedar.Effect) cedar.PolicyMap {
	m := cedar.PolicyMap{}
	for id, p := range a.s.byID {
		if p.compiled.Effect() == effect {
			m[id] = p.compiled
		}
	}
	return m
}

func TestM10IndexChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, r := mustCompile(t, drawPolicies(t)), drawRequest(t)
		q := translate(r)
		var slow Explanation
		_, forbidden := cedar.Authorize(all{s}.forEffect(cedar.Forbid), q, q.request)
		_, permitted := cedar.Authorize(all{s}.forEffect(cedar.Permit), q, q.request)
		slow.Forbids, slow.Permits = s.matches(forbidden.Reasons), s.matches(permitted.Reasons)
		fast := s.Explain(t.Context(), r)
		if got, want := fmt.Sprint(fast.Forbids, fast.Permits, len(fast.Errors)), fmt.Sprint(slow.Forbids, slow.Permits, len(forbidden.Errors)+len(permitted.Errors)); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	})
}

// What the guards and the ring refuse, no policies of any kind allow.
func TestM9GuardsHoldUnderAnyPolicies(t *testing.T) {
	guards, err := Compile(nil)
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		s, r := mustCompile(t, drawPolicies(t)), drawRequest(t)
		r.Context.RequiredRing = rapid.SampledFrom([]rings.Ring{rings.Privileged, rings.Standard, rings.Sandbox}).Draw(t, "required")
		if s.Decide(t.Context(), r).Allowed() && !guards.Decide(t.Context(), r).Allowed() {
			t.Fatalf("%+v is allowed", r)
		}
	})
}

// An allowance is never given to a request with a part missing.
func TestM10DenyOnAnythingMissing(t *testing.T) {
	s, err := Compile([]File{{"p", []byte(openPolicy)}})
	if err != nil {
		t.Fatal(err)
	}
	removals := []func(*Request){
		func(r *Request) { r.Subject.ID = "" }, func(r *Request) { r.Subject.Type = "" }, func(r *Request) { r.TeamID = "" },
		func(r *Request) { r.Action = "" }, func(r *Request) { r.Resource.ID = "" }, func(r *Request) { r.Resource.TeamID = "" },
		func(r *Request) { r.Resource.Mode = "" }, func(r *Request) { r.KeyID = "" }, func(r *Request) { r.Context.Ring = 0 },
		func(r *Request) { r.Context.RequiredRing = 0 }, func(r *Request) { r.Context.Plan = "" }, func(r *Request) { r.Context.Role = "" },
		func(r *Request) { r.Context.KeyValid = false }, func(r *Request) { r.Context.Capabilities = nil },
		func(r *Request) { r.Context.Input = "" }, func(r *Request) { r.Context.Quota.Limit = 0 },
	}
	rapid.Check(t, func(t *rapid.T) {
		r := drawRequest(t)
		rapid.SampledFrom(removals).Draw(t, "missing")(&r)
		if d := s.Decide(t.Context(), r); d.Allowed() {
			t.Fatalf("got %+v", d)
		}
	})
}

func FuzzM10DecodeRequest(f *testing.F) {
	f.Add(encode(f, good()))
	f.Add(encode(f, run()))
	f.Add([]byte(`{"subject":{"id":"a","type":"agent"},"context":{"ring":0,"quota":{"used":-1}}}`))
	set, err := Compile(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := DecodeRequest(text)
		if (err == nil) != (r.Check() == nil) {
			t.Fatalf("%v, but the request's own check says %v", err, r.Check())
		}
		d := set.Decide(t.Context(), r)
		if d.Code == "" || d.Allowed() && (err != nil || !r.Context.KeyValid && (!r.Context.Keyless || r.KeyID != "") || r.Context.Ring == rings.Root && r.Subject.Type == Agent) {
			t.Fatalf("got %+v for %+v", d, r)
		}
	})
}

func FuzzM10Compile(f *testing.F) {
	f.Add(string(baseText))
	f.Add(string(grantText))
	f.Add(openPolicy)
	f.Add(closedPolicy)
	f.Add(`@id("x") forbid (principal is User in Team::"a", action in [Action::"tool.invoke"], resource) unless { if context has role then principal in Role::"x" else ip("::1").isLoopback() };`)
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Compile([]File{{"f", []byte(text)}})
		if (s == nil) == (err == nil) {
			t.Fatalf("exactly one of a set and an error: %v, %v", s, err)
		}
		if err == nil {
			r := good()
			r.Context.KeyValid = false
			if d := s.Decide(t.Context(), r); d.Code != CodeKeyInvalid {
				t.Fatalf("got %+v", d)
			}
		}
	})
}
