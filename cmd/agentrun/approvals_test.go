// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"agentrun/hypervisor"
)

func TestM11ApprovalCommands(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	do := func(want int, args ...string) string {
		t.Helper()
		out, errs, code := operatorRun(t, "", append([]string{"--state-dir", state}, args...)...)
		if code != want || want != 0 && !strings.Contains(errs, "hint: ") {
			t.Fatalf("%v: exit code %d, want %d: %s", args, code, want, errs)
		}
		return out
	}
	var g hypervisor.StandingGrant
	if err := json.Unmarshal([]byte(do(0, "approvals", "grant", "--agent", "mailer", "--tool", "webhook.send", "--for", "30m", "--json")), &g); err != nil {
		t.Fatal(err)
	}
	if g.Agent != "mailer" || !strings.HasPrefix(g.By, "uid:") || g.Expires.Sub(g.Granted).Minutes() > 30 {
		t.Errorf("got %+v", g)
	}
	if out := do(0, "approvals", "list"); !strings.Contains(out, g.ID) || !strings.Contains(out, "standing grant") {
		t.Errorf("got %q", out)
	}
	do(0, "approvals", "revoke", g.ID)
	if out := do(0, "approvals", "list", "--json"); strings.Contains(out, g.ID) || !strings.Contains(out, `"approvals": []`) {
		t.Errorf("got %q", out)
	}
	for _, args := range [][]string{
		{"approvals", "revoke", g.ID}, {"approvals", "approve", "nothing"}, {"approvals", "deny", "../x"}, {"approvals", "show", "x"},
		{"approvals", "grant", "--agent", "mailer"}, {"approvals", "grant", "--agent", "mailer", "--tool", "t", "--for", "1000h"},
	} {
		do(125, args...)
	}
}

// THREATS "records and disk": arguments are the agent's text, and are shown to a person who decides by them.
func TestM11ArgumentsAreShownAsTheyAre(t *testing.T) {
	for raw, want := range map[string]string{
		`{"text":"pay \"now\"","n":1}`:       `{"text":"pay \"now\"","n":1}`,
		"{\n  \"a\": [1, 2]\n}":              `{"a":[1,2]}`,
		`{"a":"\u001b[2J\n"}`:                `{"a":"\u001b[2J\n"}`,
		"{\"a\":\"\u009b2J\u007f\"}":         `{"a":"\u009b2J\u007f"}`,
		"{\"a\":\"x\u202ey\u200bz\u2028\"}":  `{"a":"x\u202ey\u200bz\u2028"}`,
		"{\"a\":\"\U000e0041é日\U0001f600\"}": `{"a":"\udb40\udc41é日😀"}`,
		"{\"a\":\"\x1b[2J\"}":                `{\"a\":\"\x1b[2J\"}`, // no JSON
		"":                                   "",
	} {
		if got := shownJSON(json.RawMessage(raw)); got != want {
			t.Errorf("%q: got %s, want %s", raw, got, want)
		}
	}
	var back struct{ A string }
	if err := json.Unmarshal([]byte(shownJSON(json.RawMessage("{\"a\":\"\U000e0041\u009b\"}"))), &back); err != nil || back.A != "\U000e0041\u009b" {
		t.Errorf("got %q, %v, want what was asked", back.A, err)
	}
}

func TestM19PlanCommands(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	state := filepath.Join(t.TempDir(), "state")
	do := func(want int, args ...string) string {
		t.Helper()
		out, errs, code := operatorRun(t, "", append([]string{"--state-dir", state}, args...)...)
		if code != want || want != 0 && !strings.Contains(errs, "hint: ") {
			t.Fatalf("%v: exit code %d, want %d: %s", args, code, want, errs)
		}
		return out
	}
	out := do(0, "agent", "set", "p", "--plan", "casual", "--team", "research", "--stake", "5000", "--mode", "confidential")
	for _, want := range []string{"plan        casual", "team        research", "stake       5000", "mode        confidential"} {
		if !strings.Contains(out, want) {
			t.Errorf("got %q, want %q in it", out, want)
		}
	}
	if out := do(0, "agent", "set", "p", "--team", ""); strings.Contains(out, "research") || !strings.Contains(out, "casual") {
		t.Errorf("got %q, want only the team taken away", out)
	}
	for _, args := range [][]string{{"agent", "set", "p"}, {"agent", "set", "p", "--plan", "nope"}, {"agent", "set", "p", "--stake", "-1"}, {"agent", "set", "p", "--mode", "x"}} {
		do(125, args...)
	}
	var usage []hypervisor.AgentUsage
	if err := json.Unmarshal([]byte(do(0, "usage", "--agent", "p", "--json")), &usage); err != nil || len(usage) != 1 || usage[0].CostPerDay != 750_000 || usage[0].Subject != "agent:p" {
		t.Errorf("got %+v %v", usage, err)
	}
	if out := do(0, "usage"); !strings.Contains(out, "0.75") || !strings.Contains(out, "unlimited") {
		t.Errorf("got %q", out)
	}
}
