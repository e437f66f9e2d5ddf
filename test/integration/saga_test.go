// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// sagaFile is two steps in sandboxes; the second waits, until a file says go.
func sagaFile(t *testing.T, dir, idempotent string) (file, log string) {
	t.Helper()
	w := filepath.Join(dir, "w")
	if err := os.Mkdir(w, 0o755); err != nil {
		t.Fatal(err)
	}
	return write(t, filepath.Join(dir, "saga.yaml"), `name: trip
steps:
  - id: a
    execute: {command: [/bin/sh, -c, "echo a >> log"], ring: 2, workspace: w}
    undo: {command: [/bin/sh, -c, "echo undo a >> log"], ring: 2, workspace: w}
  - id: b
    idempotent: `+idempotent+`
    execute: {command: [/bin/sh, -c, "echo b $AGENTRUN_IDEMPOTENCY_KEY >> log; [ -e go ] || sleep 100"], ring: 2, workspace: w}
`, 0o644), filepath.Join(w, "log")
}

// killedSaga runs the file until its second step waits, then kills the orchestrator.
func (n node) killedSaga(file, log string) {
	n.t.Helper()
	cmd := exec.Command(agentrun, "--state-dir", n.dir, "--run-dir", runDir, "saga", "run", "--id", "s", file)
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	deadline := time.Now().Add(hang())
	for {
		if b, _ := os.ReadFile(log); strings.Contains(string(b), "b ") {
			break
		}
		if time.Now().After(deadline) {
			n.t.Fatal("the second step doesn't begin")
		}
		time.Sleep(10 * time.Millisecond)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	noAgents(n.t)
	if err := os.WriteFile(filepath.Join(filepath.Dir(log), "go"), nil, 0o644); err != nil {
		n.t.Fatal(err)
	}
}

// H-20: after kill -9 an idempotent step is called again with the same key, and nothing else is.
func TestH20SagaResumes(t *testing.T) {
	n := newNode(t)
	file, log := sagaFile(t, t.TempDir(), "true")
	n.killedSaga(file, log)
	if r := n.do("saga", "resume", "s"); r.exit != 0 || !strings.Contains(r.stdout, "committed") {
		t.Errorf("resume: exit %d\n%s%s", r.exit, r.stdout, r.stderr)
	}
	if got := strings.Join(lines(log), "; "); got != "a; b s/b; b s/b" {
		t.Errorf("log: %s", got)
	}
	if r := n.do("saga", "resume", "s"); r.exit != 0 {
		t.Errorf("resume of what has ended: exit %d\n%s", r.exit, r.stderr)
	}
	if k := kinds(n.audit("node")); strings.Count(k, "saga ") != 0 || !strings.HasSuffix(k, "saga_step saga") {
		t.Errorf("audit: %s", k)
	}
}

// H-19, H-20: one that isn't idempotent is never called again; what came before is undone, and a human is asked.
func TestH20SagaEscalates(t *testing.T) {
	n := newNode(t)
	file, log := sagaFile(t, t.TempDir(), "false")
	n.killedSaga(file, log)
	if r := n.do("saga", "resume"); r.exit != 2 || !strings.Contains(r.stdout, "escalated") {
		t.Errorf("resume: exit %d\n%s%s", r.exit, r.stdout, r.stderr)
	}
	if got := strings.Join(lines(log), "; "); got != "a; b s/b; undo a" {
		t.Errorf("log: %s", got)
	}
	n.audit("node")
}

// H-19: the time limit that a step gives is its run's: 120 s in ring 3, whose own profile would end it after 60.
func TestH19StepTimeoutReachesTheRun(t *testing.T) {
	n := newNode(t)
	file := write(t, filepath.Join(t.TempDir(), "saga.yaml"), `name: slow
steps:
  - id: a
    step_timeout_seconds: 120.5
    execute: {command: [/bin/sleep, "100"]}
`, 0o644)
	cmd := exec.Command(agentrun, "--state-dir", n.dir, "--run-dir", runDir, "saga", "run", "--id", "s", file)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	}()
	p := place{t, runDir, n.dir}
	var limit string
	eventually(t, hang(), "the step's run", func() bool {
		in := p.do("inspect", "saga-s", "--json")
		var run struct {
			Plan struct {
				Limits struct {
					Timeout string `json:"timeout"`
				} `json:"limits"`
			} `json:"plan"`
		}
		_ = json.Unmarshal([]byte(in.stdout), &run) // not there yet: no JSON
		limit = run.Plan.Limits.Timeout
		return limit != ""
	})
	if limit != "121s" {
		t.Errorf("got a time limit of %s, want 121s", limit)
	}
}

// H-19, M-19: a step that says nothing of its time has what its agent's plan gives.
func TestH19StepWithinItsPlan(t *testing.T) {
	n := newNode(t)
	n.must("agent", "set", "a", "--plan", "freemium")
	file := write(t, filepath.Join(t.TempDir(), "saga.yaml"), `name: trip
agent: a
steps:
  - id: a
    execute: {command: ["true"]}
`, 0o644)
	if r := n.do("saga", "run", file); r.exit != 0 {
		t.Errorf("exit %d\n%s%s", r.exit, r.stdout, r.stderr)
	}
}

// H-21: an operator's kill of a step isn't undone by the next attempt, also in a saga without an agent.
func TestH21KilledStepIsNotTriedAgain(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	file, log := sagaFile(t, dir, "true")
	ended := make(chan result, 1)
	go func() { ended <- n.do("saga", "run", "--id", "s", file) }()
	eventually(t, hang(), "the second step", func() bool { return len(lines(log)) == 2 })
	n.must("kill", "saga-s")
	if r := <-ended; r.exit != 125 {
		t.Errorf("exit %d, want the saga not at its end\n%s%s", r.exit, r.stdout, r.stderr)
	}
	if r := n.do("saga", "resume", "s"); r.exit == 0 {
		t.Errorf("resumed: exit %d\n%s%s", r.exit, r.stdout, r.stderr)
	}
	if got := strings.Join(lines(log), "; "); got != "a; b s/b; undo a" {
		t.Errorf("log: %s", got)
	}
}

// H-21: what a killed agent's saga has still to do is its substitute's: it goes on under that name, in what that one may.
func TestH21SubstituteGoesOn(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	file, log := sagaFile(t, dir, "true")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, "agent: doer\n"+string(b), 0o644)
	for _, agent := range []string{"doer", "stand-in"} {
		n.must("agent", "score", agent, "0.7")
	}
	n.must("agent", "set", "doer", "--substitute", "stand-in")
	ended := make(chan result, 1)
	go func() { ended <- n.do("saga", "run", "--id", "s", file) }()
	eventually(t, hang(), "the second step", func() bool { return len(lines(log)) == 2 })
	n.must("kill", "saga-s")
	<-ended
	n.must("agent", "quarantine", "doer", "--reason", "a test") // who is killed is mostly held, too
	write(t, filepath.Join(filepath.Dir(log), "go"), "", 0o644)
	n.must("saga", "resume", "s")
	var who []string
	for _, e := range n.audit("node") {
		if e.Kind == "sandbox_start" {
			who = append(who, fmt.Sprint(e.Data["agent_id"]))
		}
	}
	if got := strings.Join(who, " "); got != "doer doer stand-in" {
		t.Errorf("the steps are by %s", got)
	}
}
