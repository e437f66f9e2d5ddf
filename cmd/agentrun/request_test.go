// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"

	"agentrun/hypervisor"
	"agentrun/runtime"
	"agentrun/supervisor"
)

// What a flag asks for is in the request; what can't be read is told by the flag's name, all of it.
func TestRequestOf(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		want supervisor.Request
		bad  string // fields
	}{
		{"a command", []string{"echo", "hi"}, supervisor.Request{Command: []string{"echo", "hi"}}, ""},
		{"paths are the caller's", []string{"--workspace", "w", "--keep", "/k", "--gateway", "g", "--policy", "p", "--status-file", "s", "--rootfs", "r", "x"},
			supervisor.Request{Command: []string{"x"}, Workspace: "/at/w", Keep: "/k", Gateway: "/at/g", Policy: "/at/p", StatusFile: "/at/s", Rootfs: "/at/r"}, ""},
		{"binds", []string{"--bind", "a:/b", "--ro-bind", "/c", "x"},
			supervisor.Request{Command: []string{"x"}, Binds: []runtime.BindMount{{Source: "/c"}, {Source: "/at/a", Target: "/b", Writable: true}}}, ""},
		{"ring", []string{"--ring", "0", "x"}, supervisor.Request{Command: []string{"x"}, Ring: new(0)}, ""},
		{"intent", []string{"--require-intent=false", "x"}, supervisor.Request{Command: []string{"x"}, RequireIntent: new(false)}, ""},
		{"limits", []string{"--pids", "5", "x"}, supervisor.Request{Command: []string{"x"}, Limits: supervisor.Limits{PIDs: new(5)}}, ""},
		{"empty", []string{"--agent", "", "--profile", "", "x"}, supervisor.Request{Command: []string{"x"}}, "--agent --profile"},
		{"quarantine", []string{"--agent", "a", "--quarantine-timeout", "5s", "x"},
			supervisor.Request{Command: []string{"x"}, Agent: "a", QuarantineTimeout: 5 * time.Second}, ""},
		{"never in quarantine", []string{"--agent", "a", "--quarantine-timeout", "0s", "x"}, supervisor.Request{Command: []string{"x"}, Agent: "a"}, "--quarantine-timeout"},
		{"nobody to hold", []string{"--quarantine-timeout", "5s", "x"}, supervisor.Request{Command: []string{"x"}, QuarantineTimeout: 5 * time.Second}, "--quarantine-timeout"},
		{"unreadable", []string{"--memory", "x", "--pids", "-1", "--cpu-time", "soon", "--bind", ":x", "x"}, supervisor.Request{Command: []string{"x"}}, "--memory --pids --cpu-time --bind"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got *supervisor.Request
			g := &global{caller: &supervisor.Caller{}}
			app := &cli.App{Name: "agentrun", Flags: execCommand(g).Flags, Action: func(c *cli.Context) error {
				got = requestOf(&supervisor.Caller{Dir: "/at"}, c)
				return nil
			}}
			if err := app.Run(append([]string{"agentrun"}, tt.args...)); err != nil {
				t.Fatal(err)
			}
			var bad []string
			for _, p := range got.Malformed {
				bad = append(bad, p.Path)
			}
			if fields := strings.Join(bad, " "); fields != tt.bad {
				t.Errorf("malformed: got %s, want %s", fields, tt.bad)
			}
			got.Malformed = nil
			if len(got.Env)+len(got.EnvPass)+len(got.Allow)+len(got.Tools) == 0 {
				got.Env, got.EnvPass, got.Allow, got.Tools = nil, nil, nil, nil
			}
			if d := cmp.Diff(tt.want, *got, cmp.Comparer(func(a, b hypervisor.Token) bool { return a.Reveal() == b.Reveal() })); d != "" {
				t.Error(d)
			}
		})
	}
}
