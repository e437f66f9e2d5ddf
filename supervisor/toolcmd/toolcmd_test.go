// SPDX-License-Identifier: Apache-2.0

package toolcmd

import (
	"context"
	"io"
	"os"
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

// M-12: a command hears of the end of its call, and is waited for; what it says of its own end is told as it is.
func TestExecute(t *testing.T) {
	c := &Commands{Run: func(ctx context.Context, cmd link.Command, stdin, stdout *os.File) (int, string) {
		said, _ := io.ReadAll(stdin)
		if string(said) == "end" {
			return 7, ""
		}
		<-ctx.Done()
		return 137, context.Cause(ctx).Error()
	}}
	if err := c.Announce([]link.Command{{Tool: "t", Argv: []string{"/bin/true"}}}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		said string
		code int
		why  string
	}{{"end", 7, ""}, {"stay", 137, errClosed.Error()}} {
		t.Run(tt.said, func(t *testing.T) {
			p, err := c.Execute(context.Background(), "t")
			if err != nil {
				t.Fatal(err)
			}
			_, _ = p.Stdin().WriteString(tt.said)
			p.Stdin().Close()
			if tt.said == "stay" {
				_ = p.Close()
			}
			if code, why, err := p.Wait(context.Background()); code != tt.code || why != tt.why || err != nil {
				t.Errorf("got %d, %q, %v, want %d, %q", code, why, err, tt.code, tt.why)
			}
			_ = p.Close()
		})
	}
}
