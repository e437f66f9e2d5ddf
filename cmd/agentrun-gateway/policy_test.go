// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const policyRequest = `{"subject":{"id":"a1","type":"agent"},"team_id":"red","action":"tool.math.invoke",
  "resource":{"id":"room","team_id":"red","mode":"public"},"key_id":"k1",
  "context":{"ring":3,"required_ring":3,"plan":"freemium","role":"analyst","key_valid":true,
    "capabilities":["tool.math.invoke"],"tool":{"category":"A","plaintext_free":true},
    "input":"clean","quota":{"used":0,"limit":10}}}`

// gatewayRun runs a command line in this process and returns its stdout, stderr and exit code.
func gatewayRun(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	dir := t.TempDir()
	file := func(name, text string) *os.File {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Seek(0, 0); err != nil {
			t.Fatal(err)
		}
		return f
	}
	in, out, errs := file("in", stdin), file("out", ""), file("err", "")
	defer func(i, o, e *os.File) { os.Stdin, os.Stdout, os.Stderr = i, o, e }(os.Stdin, os.Stdout, os.Stderr)
	os.Stdin, os.Stdout, os.Stderr = in, out, errs
	code = run(args)
	text := func(f *os.File) string {
		f.Close()
		b, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	return text(out), text(errs), code
}

func policyFile(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestM10PolicyCheckCommand(t *testing.T) {
	good := policyFile(t, "good.cedar", `@id("no-web") forbid (principal, action == Action::"tool.invoke", resource == Tool::"web");`)
	bad := policyFile(t, "bad.cedar", "// first\nforbid (principal, action, resource)\nwhen { context.rank > 1 };\n")
	if out, errs, code := gatewayRun(t, "", "policy", "check", good); code != 0 || !strings.Contains(out, "is valid: 1 policies; they hold no permit") {
		t.Errorf("exit code %d, %q, %q", code, out, errs)
	}
	for _, path := range []string{bad, filepath.Dir(bad)} {
		if out, errs, code := gatewayRun(t, "", "policy", "check", path); code != exitFailed || out != "" || !strings.Contains(errs, bad+":2: ") {
			t.Errorf("%s: exit code %d, %q, %q", path, code, out, errs)
		}
	}
	out, _, code := gatewayRun(t, "", "policy", "check", "--json", bad)
	var report struct {
		Valid    bool
		Problems []struct {
			File string
			Line int
		}
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil || code != exitFailed || report.Valid || len(report.Problems) != 1 || report.Problems[0].Line != 2 {
		t.Errorf("exit code %d, %q, %v", code, out, err)
	}
	for _, args := range []string{"policy check", "policy check a b", "policy check /nonexistent", "policy schema x"} {
		if _, errs, code := gatewayRun(t, "", strings.Fields(args)...); code != exitFailed || errs == "" {
			t.Errorf("%s: exit code %d, %q", args, code, errs)
		}
	}
	if _, _, code := gatewayRun(t, "", "policy", "check", ""); code != exitFailed {
		t.Error("an empty path is valid")
	}
	// What is printed as the built-in policies is itself a file that can be read, but for the names that are taken.
	out, _, code = gatewayRun(t, "", "policy", "builtin")
	if code != 0 || !strings.Contains(out, `@reason("quota_exceeded")`) || !strings.Contains(out, "permit (principal") {
		t.Errorf("exit code %d, %q", code, out)
	}
}

func TestM10PolicyExplainCommand(t *testing.T) {
	policy := policyFile(t, "p.cedar", `@id("no-math") @reason("rbac_denied") forbid (principal, action == Action::"tool.invoke", resource == Tool::"math");`)
	out, errs, code := gatewayRun(t, policyRequest, "policy", "explain", "--request", "-")
	if code != 0 || !strings.HasPrefix(out, "allow: ok: ") || !strings.Contains(out, "decided by default.grant") {
		t.Errorf("exit code %d, %q, %q", code, out, errs)
	}
	out, errs, code = gatewayRun(t, "", "policy", "explain", "--policy", policy, "--request", policyFile(t, "r.json", policyRequest))
	if code != 0 || !strings.HasPrefix(out, "deny: rbac_denied: ") || !strings.Contains(out, "decided by no-math ("+policy+":1)") || !strings.Contains(out, "permits  default.grant") {
		t.Errorf("exit code %d, %q, %q", code, out, errs)
	}
	out, _, code = gatewayRun(t, policyRequest, "policy", "explain", "--json", "--policy", policy, "--request", "-")
	var x struct {
		Decision struct {
			Allow          bool
			Reason, Policy string
		}
		Forbids []struct{ Policy string }
	}
	if err := json.Unmarshal([]byte(out), &x); err != nil || code != 0 || x.Decision.Allow || x.Decision.Reason != "rbac_denied" || len(x.Forbids) != 1 {
		t.Errorf("exit code %d, %q, %v", code, out, err)
	}
	if _, errs, code = gatewayRun(t, `{"subject":1}`, "policy", "explain", "--request", "-"); code != exitFailed || !strings.Contains(errs, "request: subject: want an object, got int") || !strings.Contains(errs, "hint: ") {
		t.Errorf("exit code %d, %q", code, errs)
	}
}

func TestM10PolicyTestCommand(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	put("p.cedar", `@id("no-guests") @reason("rbac_denied") forbid (principal in Role::"guest", action, resource);`)
	base := "policy: p.cedar\nbase: " + strings.ReplaceAll(policyRequest, "\n", "") + "\ncases:\n" // JSON is YAML
	right := base + `
  - {name: analyst, expect: {allow: true, reason: ok}}
  - {name: guest, request: {context: {role: guest}}, expect: {allow: false, reason: rbac_denied, policy: no-guests}}
  - {name: nonsense, request: {team_id: "-"}, expect: {allow: false, reason: pdp_malformed}}
`
	out, errs, code := gatewayRun(t, "", "policy", "test", put("right.yaml", right))
	if code != 0 || out != "" || errs != "3 cases, 0 different\n" {
		t.Errorf("exit code %d, %q, %q", code, out, errs)
	}
	wrong := right + "  - {name: oops, request: {context: {role: guest}}, expect: {allow: true, reason: ok}}\n"
	out, errs, code = gatewayRun(t, "", "policy", "test", put("wrong.yaml", wrong))
	if code != policyDiffers || out != "oops: got deny rbac_denied by no-guests, want allow ok\n" || !strings.HasPrefix(errs, "4 cases, 1 different") {
		t.Errorf("exit code %d, %q, %q", code, out, errs)
	}
	if out, _, code = gatewayRun(t, "", "policy", "test", "--json", put("wrong.yaml", wrong)); code != policyDiffers || !strings.Contains(out, `"different": 1`) {
		t.Errorf("exit code %d, %q", code, out)
	}
	for name, text := range map[string]string{
		"empty": "", "no cases": "policy: p.cedar\n", "nothing expected": base + "  - {name: x}\n", "half expected": base + "  - {expect: {allow: false}}\n",
		"unknown field": base + "  - {expects: {allow: true, reason: ok}}\n", "two documents": right + "---\ncases: []\n",
		"no such policy": strings.Replace(right, "p.cedar", "q.cedar", 1),
	} {
		if _, errs, code := gatewayRun(t, "", "policy", "test", put("bad.yaml", text)); code != exitFailed || errs == "" {
			t.Errorf("%s: exit code %d, %q", name, code, errs)
		}
	}
}
