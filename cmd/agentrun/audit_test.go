// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentrun/audit"
	"agentrun/audit/heads"
	"agentrun/runtime"
)

// auditRun runs the real command line on a state folder and gives what it printed, its errors and its exit code.
func auditRun(t *testing.T, state string, args ...string) (out, errs string, code int) {
	t.Helper()
	var o, e bytes.Buffer
	app := newApp()
	app.Writer, app.ErrWriter = &o, &e
	err := app.RunContext(t.Context(), append([]string{"agentrun", "--state-dir", state, "audit"}, args...))
	code = report(&e, err)
	return o.String(), e.String(), code
}

// auditState is a state folder with a node chain of six entries and a session's chain.
func auditState(t *testing.T) string {
	t.Helper()
	state := filepath.Join(t.TempDir(), "state")
	notes := audit.Checkpoints{Dir: filepath.Join(state, "checkpoints"), Heads: heads.State{Dir: state}}
	at := time.Date(2026, 11, 21, 7, 0, 0, 0, time.UTC)
	clock := func() time.Time { at = at.Add(time.Minute); return at }
	for _, chain := range []string{audit.NodeChain, audit.SessionChain("s1")} {
		if err := notes.Begin(filepath.Join(state, "audit"), chain); err != nil {
			t.Fatal(err)
		}
		l, err := audit.Open(filepath.Join(state, "audit"), chain, audit.Options{Now: clock})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range []audit.Record{
			&audit.SandboxStart{PlanDigest: audit.Hash{1}, Profile: "ring3", Ring: audit.Sandbox, RunID: "r1"},
			&audit.Refusal{AgentID: "a1", Count: 2, RunID: "r1", Syscall: "mount", Verdict: "EPERM"},
			&audit.Refusal{AgentID: "a2\x1b[2J", Count: 1, RunID: "r1", Syscall: "unshare", Verdict: "EPERM"},
			&audit.SandboxEnd{PlanDigest: audit.Hash{1}, RunID: "r1", State: "exited"},
		} {
			if _, err := l.Append(r); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return state
}

func nodeFile(state string) string { return filepath.Join(state, "audit", "node", "000001.jsonl") }

func TestAuditReading(t *testing.T) {
	state := auditState(t)
	file, err := os.ReadFile(nodeFile(state))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args  string
		lines int
		text  string
	}{
		{"tail", 4, "sandbox_start"},
		{"tail -n 1", 1, "sandbox_end"},
		{"tail -n 0", 0, ""},
		{"tail --session s1 -n 2 --json", 2, `"chain":"session-s1"`},
		{"show", 4, "syscall=mount"},
		{"show 1 3", 2, "refusal"},
		{"show --kind refusal", 2, "verdict=EPERM"},
		{"show --agent a1", 1, "agent_id=a1"},
		{"show --since 2026-11-21T07:02:00Z --until 2026-11-21T07:04:00Z", 2, "refusal"},
		{"show --since 1ns", 0, ""},
		{"export", 4, string(file)},
		{"export --chain session-s1", 4, `"chain":"session-s1"`},
	} {
		out, errs, code := auditRun(t, state, strings.Fields(tt.args)...)
		if code != 0 || strings.Count(out, "\n") != tt.lines || !strings.Contains(out, tt.text) {
			t.Errorf("%s: code %d, %s\n%s", tt.args, code, errs, out)
		}
		if strings.Contains(out, "\x1b") {
			t.Errorf("%s: an agent's escape sequence reaches the terminal", tt.args)
		}
	}
	for args, text := range map[string]string{
		"show x":                     "hint: ",
		"show 99":                    "not in the chain",
		"show --kind nonsense":       "hint: kinds: action_attempt",
		"show --since yesterday":     "hint: ",
		"tail --chain none":          "hint: agentrun audit verify --all",
		"tail --chain ../x":          "chain name",
		"tail --chain a --session":   "hint: ",
		"tail --chain a --session b": "hint: ",
		"export 1":                   "no arguments",
		"verify x":                   "hint: ",
		"verify --all --chain x":     "--all",
	} {
		if _, errs, code := auditRun(t, state, strings.Fields(args)...); code != runtime.ExitFailed || !strings.Contains(errs, text) {
			t.Errorf("%s: code %d, %q, want %q in it", args, code, errs, text)
		}
	}
}

// Exit codes: 0 sound, 1 broken and which entry, 125 couldn't check.
func TestH25AuditVerifyCommand(t *testing.T) {
	state := auditState(t)
	out, errs, code := auditRun(t, state, "verify")
	if code != 0 || !strings.Contains(out, "node: sound: 4 entries") || !strings.Contains(out, "no checkpoint") {
		t.Errorf("code %d: %s%s", code, out, errs)
	}
	if out, _, code := auditRun(t, state, "verify", "--all"); code != 0 || !strings.Contains(out, "session-s1: sound") {
		t.Errorf("code %d: %s", code, out)
	}
	if out, errs, code := auditRun(t, state, "verify", "--chain", "none"); code != runtime.ExitFailed || !strings.Contains(errs, "none") || !strings.Contains(out, "not checked") {
		t.Errorf("code %d: %s%s", code, out, errs)
	}
	if out, _, code := auditRun(t, t.TempDir(), "verify", "--all"); code != 0 || out != "no chains yet\n" {
		t.Errorf("nothing there: code %d: %s", code, out)
	}
	file, err := os.ReadFile(nodeFile(state))
	if err != nil {
		t.Fatal(err)
	}
	os.WriteFile(nodeFile(state), bytes.Replace(file, []byte("unshare"), []byte("unshary"), 1), 0o600)
	out, _, code = auditRun(t, state, "verify", "--all")
	if code != exitBroken || !strings.Contains(out, "node: BROKEN: 000001.jsonl:3: entry 2: edited") || !strings.Contains(out, "session-s1: sound") {
		t.Errorf("code %d: %s", code, out)
	}
	var answer struct {
		Valid  bool
		Chains []audit.Report
	}
	out, _, code = auditRun(t, state, "verify", "--json")
	if err := json.Unmarshal([]byte(out), &struct {
		Valid  *bool `json:"valid"`
		Chains any   `json:"chains"`
	}{&answer.Valid, nil}); err != nil || code != exitBroken || answer.Valid || !strings.Contains(out, `"code": "edited"`) {
		t.Errorf("code %d, %v: %s", code, err, out)
	}
	if out, errs, code := auditRun(t, state, "show"); code != runtime.ExitFailed || strings.Count(out, "\n") != 2 || !strings.Contains(errs, "hint: agentrun audit verify") {
		t.Errorf("show of a broken chain: code %d: %s%s", code, out, errs)
	}
	if _, errs, code := auditRun(t, state, "checkpoint"); code != exitBroken || !strings.Contains(errs, "not signed") {
		t.Errorf("checkpoint of a broken chain: code %d: %s", code, errs)
	}
}

func TestH26AuditCheckpointCommand(t *testing.T) {
	state := auditState(t)
	key, _, code := auditRun(t, state, "key")
	if code != 0 || !strings.HasPrefix(key, "agentrun-audit+") {
		t.Fatalf("code %d: %s", code, key)
	}
	if out, _, _ := auditRun(t, state, "show", "--kind", "key"); !strings.Contains(out, "event=created") {
		t.Errorf("the new key isn't in the chain: %s", out)
	}
	note, errs, code := auditRun(t, state, "checkpoint")
	if code != 0 || !strings.HasPrefix(note, "agentrun.audit/node\n5\n") {
		t.Fatalf("code %d: %s%s", code, note, errs)
	}
	if again, _, _ := auditRun(t, state, "checkpoint"); again != note {
		t.Errorf("nothing new, and another note: %s", again)
	}
	if out, _, code := auditRun(t, state, "verify"); code != 0 || !strings.Contains(out, "5 entries, 5 of them signed") {
		t.Errorf("code %d: %s", code, out)
	}
	kept := filepath.Join(t.TempDir(), "note")
	os.WriteFile(kept, []byte(note), 0o600)

	file, err := os.ReadFile(nodeFile(state))
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(file, []byte("\n"))
	os.WriteFile(nodeFile(state), bytes.Join(lines[:3], nil), 0o600)
	if out, _, code := auditRun(t, state, "verify"); code != exitBroken || !strings.Contains(out, "truncated") {
		t.Errorf("end cut: code %d: %s", code, out)
	}
	if _, errs, code := auditRun(t, state, "checkpoint"); code != exitBroken || !strings.Contains(errs, "truncated") {
		t.Errorf("end cut and signed again: code %d: %s", code, errs)
	}
	// Whoever takes the stored checkpoint away too is found by what the state remembers, and whoever takes that as well by
	// the one kept elsewhere, also without the node's key.
	os.RemoveAll(filepath.Join(state, "checkpoints"))
	if out, _, code := auditRun(t, state, "verify"); code != exitBroken || !strings.Contains(out, "truncated") {
		t.Errorf("without its note: code %d: %s", code, out)
	}
	os.Remove(filepath.Join(state, "state.db"))
	if out, _, code := auditRun(t, state, "verify"); code != 0 || !strings.Contains(out, "no checkpoint") {
		t.Errorf("code %d: %s", code, out)
	}
	if out, _, code := auditRun(t, state, "verify", "--checkpoint", kept, "--key", strings.TrimSpace(key)); code != exitBroken || !strings.Contains(out, "truncated") {
		t.Errorf("with the note kept: code %d: %s", code, out)
	}
	os.RemoveAll(filepath.Join(state, "keys"))
	if _, errs, code := auditRun(t, state, "verify", "--checkpoint", kept); code != runtime.ExitFailed || !strings.Contains(errs, "hint: --key") {
		t.Errorf("no key: code %d: %s", code, errs)
	}
	if _, err := os.Stat(filepath.Join(state, "keys")); err == nil {
		t.Error("verify made a key")
	}
	os.Mkdir(filepath.Join(state, "keys"), 0o755)
	if _, errs, code := auditRun(t, state, "key"); code != runtime.ExitFailed || !strings.Contains(errs, "chmod 700") {
		t.Errorf("open key folder: code %d: %s", code, errs)
	}
	// A chain whose log is gone altogether is known by its checkpoint.
	state = auditState(t)
	auditRun(t, state, "checkpoint", "--session", "s1")
	os.RemoveAll(filepath.Join(state, "audit", "session-s1"))
	if out, _, code := auditRun(t, state, "verify", "--all"); code != exitBroken || !strings.Contains(out, "session-s1: BROKEN: entry 0: truncated") {
		t.Errorf("log removed: code %d: %s", code, out)
	}
}
