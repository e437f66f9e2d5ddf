// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"path/filepath"
	"strings"
	"testing"
)

// H-32: participants reach their session's context from inside, by its mode, and no other session's; what lasts is a write, which ring
// 3 may not make (H-6).
func TestH32ContextFromInside(t *testing.T) {
	x := newExit(t)
	for _, agent := range []string{"writer", "reader", "stranger"} {
		x.n.must("agent", "score", agent, "0.7")
	}
	for session, mode := range map[string]string{"one": "strong", "two": "causal", "three": "eventual"} {
		x.n.must("session", "create", session, "--mode", mode)
		x.n.must("session", "join", session, "--agent", "writer")
		x.n.must("session", "join", session, "--agent", "reader")
	}
	as := func(session, agent, ring string, list ...toolCall) map[string]string {
		t.Helper()
		return x.tools(x.opts(ring, "--session", session, "--agent", agent), list...)
	}
	for _, tt := range []struct {
		session, agent, ring string
		calls                []toolCall
		want                 map[string]string
	}{
		{"one", "writer", "ring2", []toolCall{
			{"put", "context.put", `{"key":"plan","value":"first"}`},
			{"stale", "context.put", `{"key":"plan","value":"again"}`},
			{"next", "context.put", `{"key":"plan","value":"second","version":1}`},
			{"causal in strong", "context.put", `{"key":"plan","value":"x","clock":{"a":1}}`},
			{"too long", "context.put", `{"key":"big","value":"` + strings.Repeat("x", 65537) + `"}`},
		}, map[string]string{"put": `"version":1`, "stale": "another version", "next": `"version":2`, "causal in strong": "bad_arguments", "too long": "bad_arguments"}},
		{"one", "reader", "ring3", []toolCall{
			{"get", "context.get", `{"key":"plan"}`}, {"list", "context.list", `{}`}, {"put", "context.put", `{"key":"plan","value":"mine","version":2}`},
			{"memory put", "memory", `{"op":"put","kind":"summary","summary":"s"}`}, {"memory list", "memory", `{"op":"list"}`},
			{"task", "task", `{"op":"create","title":"t"}`}, {"code", "code-executor", `{"language":"sh","code":"echo hi"}`},
		}, map[string]string{
			"get": `"value":"second"`, "list": `"key":"plan"`, "put": "ring_denied", "memory put": "ring_denied", "memory list": `"items":[]`,
			"task": "ring_denied", "code": "ring_denied",
		}},
		{"two", "writer", "ring2", []toolCall{{"get", "context.get", `{"key":"plan"}`}, {"put", "context.put", `{"key":"plan","value":"a"}`}},
			map[string]string{"get": `"values":[]`, "put": `"clock":{"writer":1}`}},
		{"two", "reader", "ring2", []toolCall{{"put", "context.put", `{"key":"plan","value":"b"}`}, {"get", "context.get", `{"key":"plan"}`}, {"resolve", "context.put", `{"key":"plan","value":"c","clock":{"writer":1,"reader":1}}`}},
			map[string]string{"put": `"conflict":"concurrent"`, "get": `"value":"a"`, "resolve": `"values":1`}},
		{"three", "writer", "ring2", []toolCall{{"put", "context.put", `{"key":"k","value":"old"}`}}, map[string]string{"put": `"values":1`}},
		{"three", "reader", "ring2", []toolCall{{"put", "context.put", `{"key":"k","value":"new"}`}}, map[string]string{"put": `"conflict":"replaced"`}},
	} {
		got := as(tt.session, tt.agent, tt.ring, tt.calls...)
		for name, want := range tt.want {
			if !strings.Contains(got[name], want) {
				t.Errorf("session %s, %s in %s, %s: got %.400q, want %q in it", tt.session, tt.agent, tt.ring, name, got[name], want)
			}
		}
	}
	if r := x.n.must("session", "get", "one", "plan", "--agent", "reader"); strings.TrimSpace(r.stdout) != "second" {
		t.Errorf("the operator sees %q", r.stdout)
	}
	if got := x.tools(x.opts("ring2", "--agent", "stranger"), toolCall{"get", "context.get", `{"key":"plan"}`})["get"]; !strings.Contains(got, "tool_unknown") {
		t.Errorf("a run without session: got %.400q", got)
	}
	conflicts := 0
	for _, e := range x.n.audit("session-three") {
		if e.Kind == "conflict" {
			conflicts++
		}
	}
	if conflicts != 1 {
		t.Errorf("%d conflicts on record, want the one that lost a value", conflicts)
	}
}

// H-8: in a real run a policy sees the risk of the call: reading the memory passes, changing it doesn't.
func TestH8RiskOfARealCall(t *testing.T) {
	x := newExit(t)
	x.n.must("agent", "score", "a", "0.7")
	dir := t.TempDir()
	write(t, filepath.Join(dir, "risk.cedar"), "@id(\"risky\")\nforbid (principal, action == Action::\"tool.invoke\", resource) when { context.risk > 60 };\n", 0o644)
	got := x.tools(x.opts("ring2", "--agent", "a", "--policy", dir),
		memoryCall("list", `{"op":"list"}`), memoryCall("put", `{"op":"put","kind":"summary","summary":"s"}`),
		toolCall{"task", "task", `{"op":"create","title":"t"}`})
	for name, want := range map[string]string{"list": `"items":[]`, "put": "acl_block", "task": `"id":1`} {
		if !strings.Contains(got[name], want) {
			t.Errorf("%s: got %.400q, want %q in it", name, got[name], want)
		}
	}
}
