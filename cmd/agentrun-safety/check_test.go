// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentrun/safetyloop/mcpaql"
)

// tool runs a command in-process, and gives its exit code and standard output.
func tool(t *testing.T, args ...string) (code int, stdout string) {
	t.Helper()
	dir := t.TempDir()
	out, err := os.Create(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	old := os.Stdout
	os.Stdout = out
	defer func() { os.Stdout = old }()
	code = run(t.Context(), append([]string{"agentrun-safety", "--state-dir", dir, "--run-dir", dir, "safety"}, args...))
	b, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return code, string(b)
}

func file(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const policyText = `{"deny": ["drop_*"], "requiresApproval": ["git push*"], "autoApprove": ["reading docs/*"]}`

func TestS5CheckExplainsTheVerdict(t *testing.T) {
	policy := file(t, "policy.json", policyText)
	for hint, want := range map[string][]string{
		"calling drop_table on users": {"deny: drop_*", "stop", "stopped: true"},
		"git push origin main":        {"requiresApproval: git push*", "pause", "continue: false"},
		"reading docs/guide.md":       {"autoApprove: reading docs/*", "continue: true"},
	} {
		code, out := tool(t, "check", "--policy", policy, hint)
		for _, w := range want {
			if code != 0 || !strings.Contains(out, w) {
				t.Errorf("%s: exit %d, want %q in\n%s", hint, code, w, out)
			}
		}
	}
	if code, out := tool(t, "check", "--policy", policy, "--json", "calling drop_table on users"); code != 0 || !strings.Contains(out, `"stopped": true`) || !strings.Contains(out, `"rule": "deny"`) {
		t.Errorf("exit %d\n%s", code, out)
	}
	if code, out := tool(t, "check", "--policy", policy, "--mode", "monitoring", "calling drop_table on users"); code != 0 || !strings.Contains(out, "continue: true") {
		t.Errorf("monitoring: exit %d\n%s", code, out)
	}
	t.Setenv("MCPAQL_SAFETY_LOOP", "off")
	for _, args := range [][]string{
		{"check", "hint"}, // a misspelt mode isn't a mode
		{"check"}, {"check", "--mode", "x", "hint"}, {"check", "--tolerance", "x", "hint"}, {"check", "--policy", "/nonexistent", "--mode", "enforcing", "hint"}, {"check", "--workspace", "rel", "hint"},
	} {
		if code, out := tool(t, args...); code != exitFailed {
			t.Errorf("%v: exit %d\n%s", args, code, out)
		}
	}
}

// S-14: flag, then the variable, then the policy.
func TestS14WhoSetsTheMode(t *testing.T) {
	policy := file(t, "policy.yaml", "mode: logging\ndeny: [drop_*]\n")
	const hint = "calling drop_table on users"
	for _, tt := range []struct{ flag, env, want string }{
		{"", "", "logging only"}, {"", "monitoring", "continue: true, stopped: false"}, {"enforcing", "monitoring", "stopped: true"}, {"disabled", "", "disabled"},
	} {
		args := []string{"check", "--policy", policy}
		if tt.flag != "" {
			args = append(args, "--mode", tt.flag)
		}
		if tt.env != "" {
			t.Setenv("MCPAQL_SAFETY_LOOP", tt.env)
		} else if err := os.Unsetenv("MCPAQL_SAFETY_LOOP"); err != nil {
			t.Fatal(err)
		}
		if code, out := tool(t, append(args, hint)...); code != 0 || !strings.Contains(out, tt.want) {
			t.Errorf("%+v: exit %d\n%s", tt, code, out)
		}
	}
}

func TestCasesAreCompared(t *testing.T) {
	policy := file(t, "policy.json", policyText)
	good := file(t, "good.yaml", `cases:
  - {hint: "reading docs/a", expect: {verdict: continue, rule: autoApprove}}
  - {hint: "git push origin", expect: {verdict: pause}}
  - {hint: "calling drop_table on users", expect: {verdict: stop, pattern: "drop_*"}}
`)
	if code, out := tool(t, "test", "--policy", policy, good); code != 0 || out != "" {
		t.Errorf("exit %d\n%s", code, out)
	}
	bad := file(t, "bad.yaml", "cases:\n  - {hint: calling drop_table on users, expect: {verdict: continue, rule: default}}\n")
	if code, out := tool(t, "test", "--policy", policy, bad); code != exitDiffers || strings.Count(out, "\n") != 2 || !strings.Contains(out, "got stop, want continue") {
		t.Errorf("exit %d\n%s", code, out)
	}
	if code, out := tool(t, "test", "--json", "--policy", policy, bad); code != exitDiffers || !strings.Contains(out, `"wrong"`) {
		t.Errorf("exit %d\n%s", code, out)
	}
	for name, content := range map[string]string{"empty": "cases: []\n", "none": "", "key": "cases:\n  - {hint: a, expct: {}}\n"} {
		if code, out := tool(t, "test", file(t, name, content)); code != exitFailed {
			t.Errorf("%s: exit %d\n%s", name, code, out)
		}
	}
	if code, out := tool(t, "schema"); code != 0 || !strings.Contains(out, "requiresApproval") {
		t.Errorf("schema: exit %d\n%s", code, out)
	}
}

func TestServeFlagsAreLookedAt(t *testing.T) {
	for _, args := range [][]string{
		{}, {"--stdio", "--http", "127.0.0.1:0"}, {"--stdio", "x"}, {"--stdio", "--tokens", "f"}, {"--stdio", "--allow-host", "h"}, {"--stdio", "--max-steps", "0"}, {"--stdio", "--max-steps", "10001"},
		{"--stdio", "--confirm", "nobody"}, {"--stdio", "--endpoints", "many"}, {"--stdio", "--principal", ""}, {"--stdio", "--principal", "a b"}, {"--stdio", "--webhook-key", "k"},
		{"--stdio", "--idle", "0s"}, {"--stdio", "--mode", "off"}, {"--nonsense"},
	} {
		if code, out := tool(t, append([]string{"serve"}, args...)...); code != exitFailed || out != "" {
			t.Errorf("%v: exit %d, %q on standard output", args, code, out)
		}
	}
}

func TestTokenIsPrintedOnce(t *testing.T) {
	code, out := tool(t, "token", "planner-1")
	if code != 0 || !strings.HasPrefix(out, "agentrun_") || strings.Count(out, "\n") != 1 {
		t.Errorf("exit %d, got %q", code, out)
	}
	for _, args := range [][]string{{"token"}, {"token", "a b"}, {"token", "a", "--role", "root"}, {"token", "--role", "root", "a"}} {
		if code, _ := tool(t, args...); code != exitFailed {
			t.Errorf("%v: exit %d", args, code)
		}
	}
}

// A token that is taken out of the file is good for nothing at the next look, and a file that can't be read lets nobody in.
func TestTokensAreReadAnew(t *testing.T) {
	line := func(name string) string {
		_, one, err := mcpaql.NewToken(name, mcpaql.Agent)
		if err != nil {
			t.Fatal(err)
		}
		return "tokens:\n  - {name: " + name + ", role: agent, sha256: " + one.SHA256 + "}\n"
	}
	path := file(t, "tokens.yaml", line("one"))
	d := &dongle{o: serveOptions{tokens: path}, log: slog.New(slog.DiscardHandler)}
	if err := d.readTokens(); err != nil {
		t.Fatal(err)
	}
	first := d.tokens.Load()
	d.lookAtTokens()
	if d.tokens.Load() != first {
		t.Error("a file that hasn't changed was read again")
	}
	change := func(content string, mode os.FileMode) *mcpaql.Tokens {
		t.Helper()
		if err := errors.Join(os.Remove(path), os.WriteFile(path, []byte(content), 0o600), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		d.lookAtTokens()
		return d.tokens.Load()
	}
	if got := change(line("other"), 0o600); got == first || got.Names()[0] != "other" {
		t.Errorf("got %v, want other", got.Names())
	}
	for content, mode := range map[string]os.FileMode{line("open"): 0o644, "tokens: [": 0o600} {
		if got := change(content, mode); len(got.Names()) != 0 {
			t.Errorf("mode %04o, %.20q: got %v, want nobody", mode, content, got.Names())
		}
	}
	if got := change(line("again"), 0o600); len(got.Names()) != 1 {
		t.Errorf("got %v after the file was mended", got.Names())
	}
}
