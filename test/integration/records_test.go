// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// callsOfEachKind makes one call that passes, one above its ring, one with wrong arguments, and then more than its bucket has.
const callsOfEachKind = `
import http.client, json
c = http.client.HTTPConnection("127.0.0.1", 7600, timeout=20)
def call(tool, args):
    c.request("POST", "/internal/tools/" + tool, json.dumps({"args": args}), {"Content-Type": "application/json"})
    b = json.loads(c.getresponse().read())
    return b["error"]["code"] if "error" in b else "ok"
got = [call("math", {"expression": "1+1"}), call("shutdown", {}), call("math", {"nonsense": 1})]
got += [call("math", {"expression": "1+1"}) for _ in range(40)]
print(json.dumps(got))`

// boundaryRows is the table "what gets recorded at each ring boundary" of the original, and where its words stand in a record: agent,
// action and time are in each.
var boundaryRows = map[string][]string{
	"action_attempt": {"agent_id", "action", "ring", "eff_score", "timestamp", "required_ring", "bucket_tokens", "session_id", "run_id"},
	"ring_check":     {"agent_id", "action", "allowed", "required_ring", "agent_ring", "reason", "eff_score", "run_id"},
	"rate_limit":     {"agent_id", "action", "bucket_tokens", "exhausted", "ring", "required_ring", "eff_score", "session_id", "run_id"},
	"elevation":      {"agent_id", "target_ring", "trust_score", "granted", "reason", "run_id"},
	"kill":           {"agent_id", "reason", "callbacks_executed", "handoff_agent_id", "run_id"},
	"saga_step":      {"saga_id", "step_id", "state", "attempt_count", "compensated"},
}

// row returns the first record of a kind that has these members, and fails the test unless it is whole.
func row(t *testing.T, log []entry, kind string, with object) entry {
	t.Helper()
	for _, e := range log {
		if e.Kind != kind || !holds(e.Data, with) {
			continue
		}
		for _, member := range boundaryRows[kind] {
			if _, ok := e.Data[member]; !ok {
				t.Errorf("%s has no %s: %v", kind, member, e.Data)
			}
		}
		return e
	}
	t.Errorf("no %s with %v on record, only %s", kind, with, kinds(log))
	return entry{}
}

func holds(data map[string]any, with object) bool {
	for k, want := range with {
		if data[k] != want {
			return false
		}
	}
	return true
}

// H-27: a call has one record of what decided about it, with what that was decided by, and one more if it began. Forty calls that were
// refused alike are counted together: a flood must not fill the disk (M-18).
func TestH27RecordsOfCalls(t *testing.T) {
	t.Parallel()
	needProgram(t, "python3")
	x := newExit(t)
	down := x.httpTool("http://127.0.0.1:1/", "A")
	down["read_only"], down["reversibility"] = false, "none" // that is ring 1's
	x.settings.tool("shutdown", down)
	x.file("calls.py", callsOfEachKind)
	x.n.must("agent", "score", "a", "0.5")
	x.n.must("session", "create", "s")
	x.n.must("session", "join", "s", "--agent", "a")
	r := x.run(x.opts("ring3", "--agent", "a", "--session", "s"), "python3", "calls.py")
	r.want(t, 0, "exited")
	var got []string
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil {
		t.Fatalf("%v: %s%s", err, r.stdout, r.stderr)
	}
	if want := []string{"ok", "ring_denied", "bad_arguments"}; !slices.Equal(got[:3], want) || !slices.Contains(got, "rate_limited") {
		t.Fatalf("got %v, want %v and, as it goes on, rate_limited", got, want)
	}
	log := x.n.audit("session-s")
	mine := object{"agent_id": "a", "run_id": r.status.ID}
	with := func(more object) object {
		for k, v := range mine {
			more[k] = v
		}
		return more
	}
	row(t, log, "ring_check", with(object{"action": "agent.run.invoke", "allowed": true, "required_ring": 3.0, "agent_ring": 3.0, "eff_score": 0.5}))
	row(t, log, "action_attempt", with(object{"action": "tool.math.invoke", "ring": 3.0, "required_ring": 3.0, "eff_score": 0.5, "bucket_tokens": 9.0}))
	row(t, log, "ring_check", with(object{"action": "tool.shutdown.invoke", "allowed": false, "required_ring": 1.0, "agent_ring": 3.0, "reason": "ring_denied", "rule": "H-9", "eff_score": 0.5}))
	limit := row(t, log, "rate_limit", with(object{"action": "tool.math.invoke", "exhausted": true, "ring": 3.0, "session_id": "s"}))
	if left, _ := limit.Data["bucket_tokens"].(float64); left < 0 || left >= 1 {
		t.Errorf("refused for its rate with %v tokens left", limit.Data["bucket_tokens"])
	}
	row(t, log, "tool_call", with(object{"allowed": false, "code": "bad_arguments", "rule": "args", "ring": 3.0, "required_ring": 3.0}))

	told, counted := map[string]int{}, map[string]int{}
	for _, code := range got {
		told[code]++
	}
	for _, e := range log {
		n, _ := e.Data["count"].(float64)
		switch e.Kind {
		case "tool_call":
			counted[e.Data["code"].(string)] += int(n)
		case "rate_limit":
			counted["rate_limited"] += int(n)
		case "ring_check":
			counted["ring_denied"] += int(n)
		case "action_attempt":
			counted["began"]++
		}
	}
	for code, n := range told {
		if counted[code] != n {
			t.Errorf("%s: %d are on record, the agent saw %d: %v", code, counted[code], n, counted)
		}
	}
	if counted["began"] != told["ok"] {
		t.Errorf("%d calls are on record as begun, %d were", counted["began"], told["ok"])
	}
}

// H-28: what a call does in the world is done after its beginning is on record: whose supervisor is killed in the middle has left a trace.
func TestH28CallOfAKilledSupervisor(t *testing.T) {
	t.Parallel()
	needProgram(t, "python3")
	x := newExit(t)
	called, hold := make(chan struct{}), make(chan struct{})
	defer close(hold)
	x.host("slow.test", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { close(called); <-hold }))
	x.settings.tool("slow", x.httpTool("https://slow.test/", "B"))
	x.file("slow.py", `
import http.client
c = http.client.HTTPConnection("127.0.0.1", 7600, timeout=20)
c.request("POST", "/internal/tools/slow", '{"args": {}}', {"Content-Type": "application/json"})
print(c.getresponse().read())`)
	c := x.prepare(x.opts("ring3", "--agent", "a"), "python3", "slow.py")
	c.started = time.Now()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-called:
	case <-time.After(hang()):
		t.Error("the tool was never reached")
	}
	_ = c.Process.Kill()
	_ = c.Wait()
	log := x.n.audit("node")
	row(t, log, "ring_check", object{"agent_id": "a", "allowed": true})
	last := log[len(log)-1]
	if last.Kind != "action_attempt" || last.Data["action"] != "tool.slow.invoke" {
		t.Errorf("the last on record is %s %v", last.Kind, last.Data)
	}
	if r := x.n.do("gc"); r.exit != 0 {
		t.Errorf("gc: exit %d\n%s%s", r.exit, r.stdout, r.stderr)
	}
}

// H-27: the other rows, and what operators gave as their reasons: one line, masked, in every record that has one.
func TestH27RecordsOfDecisions(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	n := node{t, p.state}
	a := p.agent("recorded", opts{flags: []string{"--agent", "b", "--ring", "3"}})
	p.refused("insufficient_trust", "elevate", "recorded", "--to", "2", "--reason", "ticket 80")
	p.must("agent", "score", "b", "0.8")
	p.must("elevate", "recorded", "--to", "2", "--ttl", "60s", "--reason", "ticket 81 password=hunter2hunter2")
	p.must("kill", "recorded", "--reason", "reads what it shouldn't")
	a.finish(t).want(t, 137, "killed")
	p.must("quarantine", "--agent", "b", "--reason", "odd calls")
	p.must("agent", "release", "b", "--witness", attestation(t, p, "b"), "--operators", filepath.Join(p.state, "operators"), "--reason", strings.Repeat("looked at it ", 50))
	own := p.at(prepare(t, opts{}, "/probe", "exit", "0"))
	own.started = time.Now()
	if err := own.Start(); err != nil {
		t.Fatal(err)
	}
	mine := own.finish(t)
	file := write(t, filepath.Join(t.TempDir(), "saga.yaml"), "name: one\nsteps:\n  - id: a\n    execute: {command: [/bin/true]}\n", 0o644)
	p.must("saga", "run", "--id", "s1", file)

	log := n.audit("node")
	row(t, log, "elevation", object{"agent_id": "b", "granted": false, "reason": "insufficient_trust", "target_ring": 2.0, "note": "ticket 80"})
	granted := row(t, log, "elevation", object{"agent_id": "b", "granted": true, "target_ring": 2.0, "trust_score": 0.8})
	if note, _ := granted.Data["note"].(string); !strings.HasPrefix(note, "ticket 81") || strings.Contains(note, "hunter2") {
		t.Errorf("the elevation's reason is %q", note)
	}
	row(t, log, "kill_order", object{"agent_id": "b", "reason": "manual", "note": "reads what it shouldn't"})
	row(t, log, "kill", object{"agent_id": "b", "reason": "manual", "handoff_agent_id": nil})
	row(t, log, "quarantine", object{"agent_id": "b", "cause": "operator", "note": "odd calls"})
	released := row(t, log, "release", object{"agent_id": "b"})
	if note, _ := released.Data["note"].(string); !strings.HasPrefix(note, "looked at it") || len(note) > 256 {
		t.Errorf("the release's reason is %q", note)
	}
	row(t, log, "saga_step", object{"saga_id": "s1", "step_id": "a", "state": "committed", "attempt_count": 1.0, "compensated": false})
	row(t, log, "ring_check", object{"agent_id": "run:" + mine.status.ID, "run_id": mine.status.ID, "allowed": true, "required_ring": 3.0, "agent_ring": 3.0, "eff_score": nil})
	if r := p.do("agent", "release", "b", "--witness", "-", "--reason", strings.Repeat("x", 1025)); r.exit == 0 || !strings.Contains(r.stderr, "--reason") {
		t.Errorf("a reason of 1025 bytes: exit %d\n%s", r.exit, r.stderr)
	}
}

// attestation is a file with an operator's word that lets an agent out, and the operators' keys in the state folder.
func attestation(t *testing.T, p place, agent string) string {
	t.Helper()
	key := filepath.Join(t.TempDir(), "key")
	write(t, filepath.Join(p.state, "operators"), p.must("operator", "keygen", "--out", key, "--name", "alice").stdout, 0o644)
	text := p.must("operator", "sign", "--key", key, "--action", "release-quarantine", "--subject", "agent:"+agent).stdout
	file := filepath.Join(t.TempDir(), "attestation")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
