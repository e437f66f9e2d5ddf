// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agentrun/runtime"
)

// Flags, stdin and exit codes reach the gateway's program; help and completion don't need it.
func TestM10PolicyHandsOver(t *testing.T) {
	dir := t.TempDir()
	build := func(cgo, name string) string {
		out := filepath.Join(dir, name)
		cmd := exec.Command("go", "build", "-o", out, "agentrun/cmd/"+name)
		cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo)
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", name, err, text)
		}
		return out
	}
	agentrun := build("1", "agentrun")
	policy := func(stdin string, args ...string) (string, int) {
		cmd := exec.Command(agentrun, append([]string{"policy"}, args...)...)
		cmd.Stdin = strings.NewReader(stdin)
		cmd.Env = append(os.Environ(), "PATH=/nonexistent")
		out, _ := cmd.CombinedOutput()
		return string(out), cmd.ProcessState.ExitCode()
	}
	if out, code := policy("", "builtin"); code != runtime.ExitFailed || !strings.Contains(out, dir+"/agentrun-gateway, ") || !strings.Contains(out, "hint: ") {
		t.Errorf("without the gateway: exit code %d, %q", code, out)
	}
	gateway := build("0", "agentrun-gateway")
	file := filepath.Join(dir, "--odd name.cedar")
	if err := os.WriteFile(file, []byte("permit (principal, action, resource);"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, code := policy("", "check", "--json", "--", file); code != 0 || !strings.Contains(out, `"valid": true`) {
		t.Errorf("check: exit code %d, %q", code, out)
	}
	if out, code := policy("{}", "explain", "--request", "-", "--policy", file); code != runtime.ExitFailed || !strings.Contains(out, "agentrun: request: subject.id: ") {
		t.Errorf("explain: exit code %d, %q", code, out)
	}
	if out, code := policy("", "check", "/nonexistent"); code != runtime.ExitFailed || !strings.Contains(out, "no such file") {
		t.Errorf("a missing file: exit code %d, %q", code, out)
	}
	if err := os.Chmod(gateway, 0o777); err != nil {
		t.Fatal(err)
	}
	if out, code := policy("", "builtin"); code != runtime.ExitFailed || !strings.Contains(out, "can be written by others") {
		t.Errorf("a gateway that anybody may change: exit code %d, %q", code, out)
	}
	if out, code := policy("", "--help"); code != 0 || !strings.Contains(out, "explain") {
		t.Errorf("help: exit code %d, %q", code, out)
	}
	if out, code := policy("", "explain", "--re", completeFlag); code != 0 || !strings.Contains(out, "--request") {
		t.Errorf("completion: exit code %d, %q", code, out)
	}
	if out, code := policy("", completeFlag); code != 0 || !strings.Contains(out, "explain") {
		t.Errorf("completion: exit code %d, %q", code, out)
	}
}
