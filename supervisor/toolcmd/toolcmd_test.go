// SPDX-License-Identifier: Apache-2.0

package toolcmd

import (
	"context"
	"strings"
	"testing"

	"agentrun/toolproxy/link"
)

// The gateway may be taken over: what it announces is looked at, and what it didn't announce isn't run.
func TestAnnounce(t *testing.T) {
	for _, tt := range []struct {
		name string
		cmd  link.Command
		bad  string
	}{
		{"a program", link.Command{Tool: "t", Argv: []string{"/bin/true"}}, ""},
		{"ring 2", link.Command{Tool: "t", Argv: []string{"/bin/true"}, Ring: 2}, ""},
		{"no tool", link.Command{Argv: []string{"/bin/true"}}, "no absolute path"},
		{"no program", link.Command{Tool: "t"}, "no absolute path"},
		{"a relative path", link.Command{Tool: "t", Argv: []string{"./true"}}, "no absolute path"},
		{"ring 1", link.Command{Tool: "t", Argv: []string{"/bin/true"}, Ring: 1}, "want 2 or 3"},
		{"a ring below all", link.Command{Tool: "t", Argv: []string{"/bin/true"}, Ring: -1}, "want 2 or 3"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := (&Commands{}).Announce([]link.Command{tt.cmd})
			if (err == nil) != (tt.bad == "") || err != nil && !strings.Contains(err.Error(), tt.bad) {
				t.Errorf("got %v, want %q", err, tt.bad)
			}
		})
	}
	if _, err := (&Commands{}).Execute(context.Background(), "t"); err == nil || !strings.Contains(err.Error(), "no command was announced") {
		t.Errorf("a tool that nobody announced: got %v", err)
	}
}

// A program without a way out of its own gets none, whatever its profile says. What a program of a run is asked by is
// what the run was asked by (M-9).
func TestArgs(t *testing.T) {
	plain := Options{Node: []string{"--state-dir", "/s", "--run-dir", "/r"}}
	closed := "--no-gateway --safety disabled --require-intent=false"
	for _, tt := range []struct {
		name string
		cmd  link.Command
		want string
	}{
		{"policies", link.Command{Tool: "asked", Argv: []string{"/x"}}, "--state-dir /s --run-dir /r exec --ring 3 -i --status-file F --gateway /g --policy /p " + closed + " -- /x"},
		{"policies with a way out", link.Command{Tool: "asked", Argv: []string{"/x"}, Allow: []string{"h"}}, "--state-dir /s --run-dir /r exec --ring 3 -i --status-file F --policy /p --allow h -- /x"},
		{"least", link.Command{Argv: []string{"/bin/x", "--ring", "1"}}, "--state-dir /s --run-dir /r exec --ring 3 -i --status-file F " + closed + " -- /bin/x --ring 1"},
		{"with a way out", link.Command{Argv: []string{"/x"}, Ring: 2, Profile: "p", Memory: "1G", Env: []string{"A=b"}, ROBind: []string{"/c"}, Allow: []string{"h:1"}},
			"--state-dir /s --run-dir /r exec --ring 2 -i --status-file F --profile p --memory 1G --env A=b --ro-bind /c --allow h:1 -- /x"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &Commands{Options: plain}
			if tt.cmd.Tool == "asked" {
				c.Options.Gateway, c.Options.Policy = "/g", "/p"
			}
			if got := strings.Join(c.args(tt.cmd, "F"), " "); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}
