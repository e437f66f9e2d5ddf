// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// M-3: a run that keeps processors busy is behind those that don't, as long as it does; what it is ended by finds it all the same.
func TestM3BusyRunsYield(t *testing.T) {
	needSandbox(t)
	in, hold, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Close()
	quiet := prepare(t, opts{flags: []string{"-i", "--name", "modest"}, stdin: in}, "/probe", "wait")
	quiet.startUntil(t, "ready")
	in.Close()
	busy := prepare(t, opts{flags: []string{"--name", "busy"}}, "/probe", "spin", "3600")
	busy.startUntil(t, "ready")
	yields := func(name string) string {
		var run struct {
			ID string `json:"id"`
		}
		if out := tool(t, "inspect", name, "--json"); json.Unmarshal([]byte(out.stdout), &run) != nil || run.ID == "" {
			t.Fatalf("inspect %s: %s%s", name, out.stdout, out.stderr)
		}
		for _, dir := range []string{"/sys/fs/cgroup/cpu/agentrun", "/sys/fs/cgroup/agentrun"} {
			if b, err := os.ReadFile(filepath.Join(dir, run.ID, "cpu.idle")); err == nil {
				return strings.TrimSpace(string(b))
			}
		}
		unmet(t, "cpu.idle: Linux 5.15")
		return ""
	}
	// On a slow machine the quiet run has used up its allowance by its start, and yields for some seconds.
	eventually(t, time.Minute, "the busy run yields, and the quiet one doesn't", func() bool { return yields("busy") == "1" && yields("modest") == "0" })
	for file, want := range map[string]string{"/sys/fs/cgroup/cpu/agentrun/cpu.shares": "64", "/sys/fs/cgroup/agentrun/cpu.weight": "6"} {
		if _, err := os.Stat(file); err != nil {
			continue
		}
		eventually(t, 20*time.Second, file+" is "+want+", all runs together, when none is being ended", func() bool {
			got, err := os.ReadFile(file)
			return err == nil && strings.TrimSpace(string(got)) == want
		})
	}
	busy.Process.Signal(unix.SIGTERM)
	busy.finish(t).want(t, 128+15, "signaled")
	hold.Close()
	quiet.finish(t).want(t, 0, "exited")
}
