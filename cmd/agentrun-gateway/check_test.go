// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"agentrun/rings"
	"agentrun/toolproxy/link"
)

// checked is what the program says of a run.
func checked(t *testing.T, start link.Start, want int) (answer string) {
	t.Helper()
	text, err := json.Marshal(start)
	if err != nil {
		t.Fatal(err)
	}
	out, errs, code := gatewayRun(t, string(text), "check")
	if code != want || (errs == "") != (want != exitFailed) || want == exitFailed && out != "" {
		t.Errorf("got %d, %q, %q, want %d", code, out, errs, want)
	}
	return out
}

// A yes may be kept for other runs only if nothing of the run, and nothing that changes by itself, was asked for it.
func TestCheckTellsWhetherItHolds(t *testing.T) {
	policies := policyFile(t, "p.cedar", `@id("t.math")
forbid (principal, action == Action::"tool.invoke", resource == Tool::"math");`)
	forbids := policyFile(t, "f.cedar", `@id("t.no")
forbid (principal, action == Action::"agent.run.invoke", resource);`)
	run := func(start link.Start) link.Start {
		start.Ring = rings.Sandbox
		start.Caller = link.Caller{Run: "r1", Agent: "a", Plan: "operator", Mode: "public", Role: start.Caller.Role, Key: start.Caller.Key}
		return start
	}
	keyed := func(role string, may ...string) link.Start {
		return link.Start{Caller: link.Caller{Role: role, Key: &link.Key{ID: "k", May: may}}}
	}
	for _, tt := range []struct {
		name  string
		start link.Start
		want  int
		holds bool
	}{
		{"a key (M-9)", keyed("reader", "agent.run.invoke"), exitOK, true},
		{"a key without a role", keyed("", "agent.run.invoke"), exitDenied, false},
		{"a key that isn't for runs", keyed("reader", "tool.math.invoke"), exitDenied, false},
		{"a file", link.Start{Config: conf("egress: {allow: [a.example]}\n")}, exitOK, true},
		{"flags", link.Start{Allow: []string{"a.example"}, Tools: []string{"math"}}, exitOK, true},
		{"a safety loop", link.Start{Safety: &link.SafetyStart{Mode: "enforcing"}}, exitOK, true},
		{"metrics of the configuration", link.Start{Config: conf("telemetry: {metrics: {addr: '127.0.0.1:0'}}\n")}, exitOK, true},
		{"metrics anywhere", link.Start{Config: conf("telemetry: {metrics: {addr: '127.0.0.1:0', anywhere: true}}\n")}, exitOK, false},
		{"metrics of the run", link.Start{Metrics: "127.0.0.1:0"}, exitOK, false},
		{"policies of the run", link.Start{Policy: policies}, exitOK, false},
		{"policies of the configuration", link.Start{Config: conf("policy: {dir: " + filepath.Dir(policies) + "}\n")}, exitOK, false},
		{"a refusal", link.Start{Policy: forbids}, exitDenied, false},
		{"a mistake", link.Start{Config: conf("egres: {}\n")}, exitFailed, false},
		{"no such tool", link.Start{Tools: []string{"nosuch"}}, exitFailed, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := checked(t, run(tt.start), tt.want); (got == link.Holds) != tt.holds {
				t.Errorf("got %q, want that it holds: %v", got, tt.holds)
			}
		})
	}
}

// An authority's file that can't be used is told with its line before the run, also where this run intercepts nothing.
func TestCheckLooksAtAuthorities(t *testing.T) {
	dir := t.TempDir()
	empty, missing := filepath.Join(dir, "empty.pem"), filepath.Join(dir, "missing.pem")
	if err := os.WriteFile(empty, []byte("nothing\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	text := "egress:\n  allow: [a.example]\n  ca_files:\n    - " + missing + "\n    - " + empty + "\n    - own.pem\n"
	start, err := json.Marshal(link.Start{Config: conf(text), Ring: rings.Sandbox})
	if err != nil {
		t.Fatal(err)
	}
	out, errs, code := gatewayRun(t, string(start), "check")
	if code != exitFailed || out != "" {
		t.Errorf("got %d, %q, want %d", code, out, exitFailed)
	}
	for _, want := range []string{
		"gateway.yaml:4: egress.ca_files[0]: open " + missing + ": no such file",
		"gateway.yaml:5: egress.ca_files[1]: " + strconv.Quote(empty) + ": no certificate in PEM",
		`gateway.yaml:6: egress.ca_files[2]: "own.pem": want an absolute path`,
	} {
		if !strings.Contains(errs, want) {
			t.Errorf("got %q, want %q", errs, want)
		}
	}
}
