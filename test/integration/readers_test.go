// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentrun/internal/fault"
	"agentrun/internal/hostcaps"
)

// A-M6: what the caller gives in the environment is seen by the agent and by nobody else: no reader of the control API, no file.
func TestEnvironmentIsTheAgentsOnly(t *testing.T) {
	needSandbox(t)
	need(t, hostcaps.IDMappedMounts(base))
	const given, passed = "value-that-was-given-78fc1", "value-that-was-passed-a1b02"
	state := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	name := "readers" + filepath.Base(filepath.Dir(t.TempDir()))
	status := filepath.Join(t.TempDir(), "status.json")
	args := []string{"exec", "--ring", "2", "--detach", "--name", name, "--status-file", status, "--env", "GIVEN=" + given, "--env-pass", "PASSED", "--ro-bind", probeBin + ":/probe", "--",
		"/probe", "sleep", "300"}
	for _, kind := range []string{"alone", "a failed launch"} {
		t.Run(kind, func(t *testing.T) {
			cmd := command(t.Context(), args...)
			cmd.Args[2] = state
			cmd.Env = append(os.Environ(), "PASSED="+passed)
			if kind != "alone" {
				cmd.Env = append(cmd.Env, fault.Variable+"=launch/probe=EIO")
			}
			text, err := cmd.CombinedOutput()
			if (err == nil) != (kind == "alone") {
				t.Fatalf("%v\n%s", err, text)
			}
			said := map[string]string{"exec": string(text)}
			verb := func(args ...string) {
				c := command(t.Context(), args...)
				c.Args[2] = state
				text, _ := c.CombinedOutput()
				said[strings.Join(args, " ")] = string(text)
			}
			if kind == "alone" {
				for _, v := range [][]string{{"ps", "--json"}, {"inspect", name, "--json"}, {"inspect", name}, {"events", "--json"}, {"top", "--once", "--json"}} {
					verb(v...)
				}
				if got := said["inspect "+name+" --json"]; !strings.Contains(got, `"GIVEN"`) || !strings.Contains(got, `"PASSED"`) || !strings.Contains(got, `"plan"`) {
					t.Errorf("inspect lacks the plan with the names:\n%s", got)
				}
				verb("kill", name)
				verb("wait", name, "--json")
			}
			verb("audit", "show", "--json")
			for what, text := range said {
				if strings.Contains(text, given) || strings.Contains(text, passed) {
					t.Errorf("%s shows a value:\n%s", what, text)
				}
			}
			for _, dir := range []string{state, runDir, filepath.Dir(status)} {
				err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
					if err != nil || !d.Type().IsRegular() {
						return nil // other runs' files come and go
					}
					if b, err := os.ReadFile(path); err == nil && (strings.Contains(string(b), given) || strings.Contains(string(b), passed)) {
						t.Errorf("%s holds a value", path)
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
}
