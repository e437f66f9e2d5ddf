// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"agentrun/rings"
	"agentrun/safetyloop/judge"
	"agentrun/toolproxy/gate/gatetest"
	"agentrun/toolproxy/link"
)

// reporting is an assembled gateway of a run with a safety loop.
func reporting(t *testing.T, config string, s *link.SafetyStart) (*gateway, *gatetest.Supervisor, error) {
	t.Helper()
	read, err := readSettings(conf(config), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	supervisor := gatetest.New(rings.Sandbox)
	start := link.Start{Ring: rings.Sandbox, MaxSteps: 100, MaxModelCalls: 100, Version: version, Caller: link.Caller{Run: "run-1", Agent: "builder", Plan: "operator", Mode: "public"}, Safety: s}
	g, err := assemble(t.Context(), start, read, supervisor, slog.New(slog.DiscardHandler))
	if err == nil {
		t.Cleanup(func() { g.close(nil, slog.New(slog.DiscardHandler)) })
	}
	return g, supervisor, err
}

const (
	createPath = "/internal/safety/create"
	safetyStep = `{"operation":"record_execution_step","params":{"element_name":"x","nextActionHint":"calling drop_table on users"}}`
)

// Without safety: in the profile there are neither routes nor tools, and nothing is asked of the loop.
func TestS15LoopIsThereWhereTheRunHasOne(t *testing.T) {
	math := `{"args":{"expression":"6*7"}}`
	g, s, err := reporting(t, "{}", nil)
	if err != nil {
		t.Fatal(err)
	}
	if code, body := g.ask("POST", createPath, safetyStep); code != 404 {
		t.Errorf("no loop: got %d %s", code, body)
	}
	if list := g.mcpList(t); strings.Contains(list, "mcp_aql") || !strings.Contains(list, `"math"`) {
		t.Errorf("no loop: got %.300s", list)
	}
	if code, body := g.ask("POST", "/internal/tools/math", math); code != 200 || slices.Contains(s.Asked(), "intent") {
		t.Errorf("no loop: got %d %s, %v", code, body, s.Asked())
	}
	g, s, err = reporting(t, "{}", &link.SafetyStart{Mode: "enforcing", RequireIntent: true})
	if err != nil {
		t.Fatal(err)
	}
	s.OnIntent = func(context.Context, string, string) error { return link.ErrNoIntent }
	if code, body := g.ask("POST", createPath, safetyStep); code != 200 || !strings.Contains(body, `"continue":true`) {
		t.Errorf("got %d %s", code, body)
	}
	if list := g.mcpList(t); !strings.Contains(list, "mcp_aql_create") || !strings.Contains(list, `"math"`) {
		t.Errorf("got %.300s", list)
	}
	for path, body := range map[string]string{"/internal/tools/math": math, "/internal/router/dispatch": `{"intent":"math","args":{"expression":"1"}}`} {
		if code, got := g.ask("POST", path, body); code != 403 || !strings.Contains(got, `"INTENT_REQUIRED"`) {
			t.Errorf("%s: got %d %s", path, code, got)
		}
	}
	if code, body := g.ask("POST", chatPath, `{"messages":[{"role":"user","content":"x"}]}`); code != 200 {
		t.Errorf("a model: got %d %s", code, body)
	}
	for config, c := range map[string]*link.SafetyStart{
		"{}": {Mode: "off"}, "tools: {mcp_aql_read: {category: B, read_only: true, description: x, args: {type: object}, http: {url: https://x.example/}}}": {Mode: "enforcing"},
		"{safety: {policy: /nonexistent}}": {Mode: "monitoring"},
	} {
		if _, _, err := reporting(t, config, c); err == nil {
			t.Errorf("%s, %s: want an error", config, c.Mode)
		}
	}
}

// The file's patterns, those of the run's own agent included, are in what the supervisor gets; --safety's file goes before it.
func TestS5AssembledGatewayJudgesByThePolicy(t *testing.T) {
	file := policyFile(t, "safety.yaml", "deny: [drop_*]\nagents: {builder: {autoApprove: [reading docs/*]}, other: {deny: [reading*]}}\n")
	other := policyFile(t, "other.yaml", "requiresApproval: [drop_*]\n")
	var got *judge.Judgement
	ask := func(s *link.SafetyStart, hint string) {
		t.Helper()
		g, supervisor, err := reporting(t, "safety: {policy: "+file+"}", s)
		if err != nil {
			t.Fatal(err)
		}
		got = nil
		supervisor.OnSafety = func(_ context.Context, q link.Safety) (json.RawMessage, error) {
			got = q.Judgement
			return json.RawMessage(`{"success":true,"data":{}}`), nil
		}
		params, err := json.Marshal(map[string]any{"operation": "record_execution_step", "params": map[string]string{"element_name": "other", "nextActionHint": hint}})
		if err != nil {
			t.Fatal(err)
		}
		if code, body := g.ask("POST", createPath, string(params)); code != 200 {
			t.Fatalf("got %d %s", code, body)
		}
	}
	ask(&link.SafetyStart{Mode: "enforcing"}, "calling drop_table on users")
	if got == nil || got.Rule != judge.RuleDeny || got.Pattern != "drop_*" {
		t.Errorf("got %+v, want it denied", got)
	}
	ask(&link.SafetyStart{Mode: "monitoring"}, "reading docs/a.md")
	if got == nil || got.Rule != judge.RuleAutoApprove {
		t.Errorf("the agent's own: got %+v, want it approved: element_name is the client's word", got)
	}
	ask(&link.SafetyStart{Mode: "enforcing", Policy: other}, "calling drop_table on users")
	if got == nil || got.Rule != judge.RuleRequiresApproval {
		t.Errorf("the run's own policy: got %+v", got)
	}
	ask(&link.SafetyStart{Mode: "enforcing", Workspace: "/work"}, "writing /work/a.txt")
	inside := got
	ask(&link.SafetyStart{Mode: "enforcing", Workspace: "/elsewhere"}, "writing /work/a.txt")
	if inside == nil || got == nil || got.Score <= inside.Score {
		t.Errorf("outside of the workspace: got %+v, inside %+v, want a higher score", got, inside)
	}
	ask(&link.SafetyStart{Mode: "logging"}, "calling drop_table on users")
	if got != nil {
		t.Errorf("logging: got %+v, want no judgement", got)
	}
}

// A policy that was changed holds within a second; one that became wrong, or can't be read any more, leaves the last good one.
func TestS5PolicyIsReadAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := policyFile(t, "safety.yaml", "deny: [drop_*]\n")
		var out bytes.Buffer
		j, err := newSafetyJudge(safetyConfig{Policy: file}, link.Start{Caller: link.Caller{Run: "r"}}, slog.New(slog.NewTextHandler(&out, nil)))
		if err != nil {
			t.Fatal(err)
		}
		holds := func(want judge.Rule, why string) {
			t.Helper()
			time.Sleep(2 * time.Second)
			if got, err := j.Judge(t.Context(), "calling drop_table on users"); err != nil || got.Rule != want {
				t.Errorf("%s: got %v, %v, want %v", why, got.Rule, err, want)
			}
		}
		write := func(text string) {
			t.Helper()
			next := file + ".new"
			if err := errors.Join(os.WriteFile(next, []byte(text), 0o644), os.Rename(next, file)); err != nil {
				t.Fatal(err)
			}
		}
		holds(judge.RuleDeny, "as it was")
		write("mode: monitoring\nrequiresApproval: [drop_*]\n")
		holds(judge.RuleRequiresApproval, "changed")
		if !strings.Contains(out.String(), "don't hold in a sandbox") {
			t.Errorf("got log %s", out.String())
		}
		write("deny: {")
		holds(judge.RuleRequiresApproval, "wrong")
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		holds(judge.RuleRequiresApproval, "gone")
		if n := strings.Count(out.String(), "safety policy refused"); n != 2 {
			t.Errorf("got %d complaints, want 2:\n%s", n, out.String())
		}
		write("{}")
		holds(judge.RuleDefault, "mended")
	})
}

// THREATS "second looks": a policy that others than root could have written is none.
func TestS5PolicyBelongsToRoot(t *testing.T) {
	file := policyFile(t, "safety.yaml", "{}")
	start := link.Start{Caller: link.Caller{Run: "r"}, Safety: &link.SafetyStart{Mode: "enforcing", Policy: file}}
	if err := os.Chmod(file, 0o666); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	if _, err := newSafetyJudge(safetyConfig{}, start, log); !errors.Is(err, os.ErrPermission) {
		t.Errorf("got %v, want %v", err, os.ErrPermission)
	}
	start.Safety.Policy = policyFile(t, "wrong.yaml", "denny: []")
	if _, err := newSafetyJudge(safetyConfig{}, start, log); err == nil || !strings.Contains(err.Error(), "denny") {
		t.Errorf("got %v, want the key", err)
	}
	if j, err := newSafetyJudge(safetyConfig{}, link.Start{}, log); err != nil || j.path != "" {
		t.Errorf("no policy: got %+v, %v", j, err)
	}
	g := &guarded{judge: &safetyJudge{path: "/etc/agentrun/safety.yaml"}}
	if d := cmp.Diff([]string{"/etc/agentrun"}, g.readable()); d != "" {
		t.Error(d)
	}
}

func TestSafetyConfig(t *testing.T) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(safetySchema))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("s.json", doc); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile("s.json")
	if err != nil {
		t.Fatal(err)
	}
	for text, good := range map[string]bool{"{}": true, "{policy: /p}": true, "{policy: p}": false, "{policy: [/p]}": false, "{mode: enforcing}": false, "{file: /p}": false} {
		var v any
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		b, _ := json.Marshal(v)
		v, _ = jsonschema.UnmarshalJSON(bytes.NewReader(b))
		_, perr := parseSafetyConfig(divide(conf("safety: " + text)).Safety)
		if serr := schema.Validate(v); (serr == nil) != good || (perr == nil) != good {
			t.Errorf("%s: schema %v, parser %v, want both to take it: %v", text, serr, perr, good)
		}
	}
}

// A mistake in the policy is told before anything starts, whether this run has a loop or not.
func TestCheckLooksAtTheSafetyPolicy(t *testing.T) {
	wrong := policyFile(t, "wrong.yaml", "deny: ['[a]']")
	good := policyFile(t, "good.yaml", "deny: [drop_*]")
	loop := func(mode, policy string) link.Start {
		return link.Start{Ring: rings.Sandbox, Safety: &link.SafetyStart{Mode: mode, RequireIntent: true, Policy: policy}}
	}
	config := func(policy string) link.Start {
		return link.Start{Ring: rings.Sandbox, Config: conf("safety: {policy: " + policy + "}")}
	}
	for _, tt := range []struct {
		name  string
		start link.Start
		want  int
	}{
		{"the configuration's", config(good), exitOK},
		{"the run's", loop("enforcing", good), exitOK},
		{"the configuration's is wrong", config(wrong), exitFailed},
		{"there is none", config(filepath.Join(t.TempDir(), "none")), exitFailed},
		{"the run's is wrong", loop("enforcing", wrong), exitFailed},
		{"no mode", loop("sure", ""), exitFailed},
	} {
		t.Run(tt.name, func(t *testing.T) { checked(t, tt.start, tt.want) })
	}
	if out, errs, got := gatewayRun(t, "{", "check"); got != exitFailed || out != "" || errs == "" {
		t.Errorf("half a question: got %d, %q, %q", got, out, errs)
	}
}
