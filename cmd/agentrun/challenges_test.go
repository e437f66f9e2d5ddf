// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentrun/audit"
	"agentrun/control"
	"agentrun/safetyloop"
	"agentrun/safetyloop/desk"
	"agentrun/store"
	"agentrun/telemetry"
)

// verdicts judges by the first word of a hint.
type verdicts struct{}

func (verdicts) Judge(_ context.Context, hint string) (safetyloop.Judgement, error) {
	j := safetyloop.Judgement{Rule: safetyloop.RuleDefault, Score: 1}
	switch word, _, _ := strings.Cut(hint, " "); word {
	case "deny":
		j.Rule = safetyloop.RuleDeny
	case "ask":
		j.Rule = safetyloop.RuleRequiresApproval
	}
	return j, nil
}

func (verdicts) Record(context.Context, string, audit.Record) error { return nil }

type noRunsHere struct{ control.Controller }

// servedLoop is a loop whose operators' side is in runDir.
func servedLoop(t *testing.T, runDir string) *safetyloop.Loop {
	t.Helper()
	loop, err := safetyloop.New(safetyloop.Settings{
		Mode: safetyloop.Enforcing, Tolerance: safetyloop.Moderate, MaxSteps: 100, Confirm: safetyloop.ConfirmClient,
		Store: store.NewMemory(), Record: verdicts{}, Judge: verdicts{}, Now: time.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := control.Listen(runDir, "safety-test", control.Access{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- (&control.Server{Controller: noRunsHere{}, More: desk.Routes(loop)}).Serve(ctx, l)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		loop.Close()
	})
	return loop
}

// hintStep reports a step, and gives the directive's text.
func hintStep(t *testing.T, l *safetyloop.Loop, hint string) string {
	t.Helper()
	params, err := json.Marshal(map[string]string{"element_name": "planner", "nextActionHint": hint})
	if err != nil {
		t.Fatal(err)
	}
	reply, err := json.Marshal(l.Do(t.Context(), safetyloop.Call{
		Caller: safetyloop.Caller{Principal: "local"}, Endpoint: safetyloop.Create, Operation: "record_execution_step", Params: telemetry.NewPlaintext(json.RawMessage(params)),
	}))
	if err != nil {
		t.Fatal(err)
	}
	return string(reply)
}

func TestS10ChallengesAreAnsweredOnTheCommandLine(t *testing.T) {
	runDir := filepath.Join(t.TempDir(), "run")
	loop := servedLoop(t, runDir)
	do := func(want int, stdin string, args ...string) string {
		t.Helper()
		out, errs, code := operatorRun(t, stdin, append([]string{"--run-dir", runDir, "challenges"}, args...)...)
		if code != want || want != 0 && !strings.Contains(errs, "hint: ") {
			t.Fatalf("%v: exit code %d, want %d: %s%s", args, code, want, out, errs)
		}
		return out
	}
	var list struct {
		Challenges []struct{ ID, Agent, Kind string }
		Pending    []struct{ Token, Operation string }
	}
	listed := func() string {
		t.Helper()
		text := do(0, "", "list", "--json")
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			t.Fatalf("got %s, %v", text, err)
		}
		return text
	}
	hintStep(t, loop, "ask \x1b[2J whether to go on"+strings.Repeat(" with the notes", 10)+"; then wipe the mirror") // longer than a list shows
	if text := listed(); len(list.Pending) != 1 || len(list.Challenges) != 0 {
		t.Fatalf("got %s", text)
	}
	token := list.Pending[0].Token
	if table := do(0, "", "list"); !strings.Contains(table, token) || strings.Contains(table, "\x1b") {
		t.Errorf("got %q", table)
	}
	if whole := do(0, "", "show", token[:12]); !strings.Contains(whole, "; then wipe the mirror") || strings.Contains(whole, "\x1b") {
		t.Errorf("whoever confirms is shown %q", whole)
	}
	if said := do(0, "", "confirm", token[:12]); !strings.Contains(said, "; then wipe the mirror") {
		t.Errorf("got %q", said)
	}
	do(125, "", "confirm", token)
	hintStep(t, loop, "deny this")
	text := listed()
	if len(list.Challenges) != 1 || list.Challenges[0].Kind != "danger_zone" {
		t.Fatalf("got %s", text)
	}
	id := list.Challenges[0].ID
	code := ""
	for line := range strings.Lines(do(0, "", "show", id[:6])) {
		if v, ok := strings.CutPrefix(line, "code "); ok {
			code = strings.TrimSpace(v)
		}
	}
	if code == "" || strings.Contains(text, code) {
		t.Errorf("got code %q, list %s", code, text)
	}
	do(125, "", "verify", id, "wrong")
	do(125, "\n", "verify", id)
	if out := do(0, "", "blocks"); !strings.Contains(out, "local/planner") || !strings.Contains(out, id) {
		t.Errorf("got %q", out)
	}
	do(0, code+"\n", "verify", id)
	do(125, "", "verify", id, code)
	if out := do(0, "", "blocks", "--json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("got %q", out)
	}

	hintStep(t, loop, "deny that")
	do(125, "", "unblock", "local/planner")
	do(0, "", "unblock", "local/planner", "--reason", "false alarm")
	do(125, "", "unblock", "local/planner", "--reason", "false alarm")
	if got := hintStep(t, loop, "go"); !strings.Contains(got, `"continue":true`) {
		t.Errorf("got %s", got)
	}
	for _, args := range [][]string{{"show"}, {"show", "none"}, {"verify"}, {"verify", "none", "x"}, {"confirm", "none"}, {"confirm", ""}, {"list", "x"}, {"nonsense"}} {
		do(125, "", args...)
	}
}

// Nothing runs here: empty lists, no errors.
func TestChallengesWithoutALoop(t *testing.T) {
	runDir := filepath.Join(t.TempDir(), "run")
	for _, args := range [][]string{{"list"}, {"blocks"}, {"list", "--json"}} {
		if out, errs, code := operatorRun(t, "", append([]string{"--run-dir", runDir, "challenges"}, args...)...); code != 0 || errs != "" {
			t.Errorf("%v: got %d, %s%s", args, code, out, errs)
		}
	}
}
