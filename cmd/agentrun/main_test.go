// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"agentrun/runtime"
	"agentrun/supervisor"
)

func TestFlagCompletion(t *testing.T) {
	cases := []struct{ line, want string }{
		{"exec --r", "--ring --rootfs --ro-bind --require-intent"},
		{"exec --ring 2 --mem", "--memory"},
		{"--log", "--log-level --log-format"},
		{"profile list --", "--json"},
		{"exec -- --r", ""},
		{"plan --nosuch", ""},
	}
	for _, c := range cases {
		var out bytes.Buffer
		args := append(append([]string{"agentrun"}, strings.Fields(c.line)...), completeFlag)
		if !completeFlags(&out, newApp(), args) {
			t.Errorf("%s: not recognised", c.line)
		}
		if got := strings.Join(strings.Fields(out.String()), " "); got != c.want {
			t.Errorf("%s: got %q, want %q", c.line, got, c.want)
		}
	}
	if completeFlags(&bytes.Buffer{}, newApp(), []string{"agentrun", "exec", completeFlag}) {
		t.Error("a request for commands was taken for one for flags")
	}
}

// One line for what happened, one for the way out, and the documented exit code.
func TestReport(t *testing.T) {
	cases := []struct {
		err  error
		code int
		text string
	}{
		{nil, 0, ""},
		{exitError(42), 42, ""},
		{errors.New("broken"), runtime.ExitFailed, "agentrun: broken\n"},
		{supervisor.ErrRing0, runtime.ExitFailed, "hint: the rings for agents"},
		{fmt.Errorf("x: %w", &runtime.CommandError{Name: "a", NotFound: true, Hint: "try b"}), runtime.ExitNotFound, "hint: try b\n"},
		{&runtime.CommandError{Name: "a"}, runtime.ExitNotExecutable, "agentrun: command a"},
		{&runtime.MissingError{Missing: []runtime.Missing{{Name: "landlock-1"}}}, runtime.ExitFailed, "--best-effort"},
		{&runtime.MissingError{Needed: true}, runtime.ExitFailed, "agentrun doctor"},
	}
	for _, c := range cases {
		var out bytes.Buffer
		if code := report(&out, c.err); code != c.code {
			t.Errorf("%v: code %d, want %d", c.err, code, c.code)
		}
		if !strings.Contains(out.String(), c.text) || c.text == "" && out.Len() > 0 {
			t.Errorf("%v: printed %q, want %q in it", c.err, out.String(), c.text)
		}
	}
}

// Each command explains itself with an example.
func TestHelpHasExamples(t *testing.T) {
	for _, c := range newApp().Commands {
		if !strings.Contains(c.Description, "agentrun ") {
			t.Errorf("%s: no example in its help", c.Name)
		}
		if c.OnUsageError == nil && len(c.Subcommands) == 0 {
			t.Errorf("%s: usage errors have no hint", c.Name)
		}
	}
}

func TestFlagsFirst(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"agent score a 0.7 --consensus", "agent score --consensus a 0.7"},
		{"agent quarantine a --reason bad --json", "agent quarantine --reason bad --json a"},
		{"--state-dir d agent score a 0.7 --json", "--state-dir d agent score --json a 0.7"},
		{"session join s --agent=a", "session join --agent=a s"},
		{"agent release a --witness -", "agent release --witness - a"},
		{"agent score -- a -0.1", "agent score -- a -0.1"},
		{"agent score a -- --consensus", "agent score -- a --consensus"},
		{"exec agent.py --ring 1", "exec agent.py --ring 1"},
		{"plan x --json", "plan x --json"},
		{"nonsense --json", "nonsense --json"},
		{"gc --json", "gc --json"},
		{"", ""},
		{"agent", "agent"},
		{"agent score a --bogus x", "agent score --bogus a x"},
	} {
		in := append([]string{"agentrun"}, strings.Fields(tt.in)...)
		if got := strings.Join(flagsFirst(newApp(), in)[1:], " "); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.in, got, tt.want)
		}
	}
}

// gc of one name would be gc of all.
func TestCommandsThatTakeNoArguments(t *testing.T) {
	t.Setenv("AGENTRUN_STATE_DIR", t.TempDir())
	t.Setenv("AGENTRUN_RUN_DIR", t.TempDir())
	for _, line := range []string{"gc", "doctor", "profile list", "profile schema", "history", "image ls"} {
		err := newApp().RunContext(t.Context(), append(strings.Fields("agentrun "+line), "more"))
		if err == nil || !strings.Contains(err.Error(), "agentrun "+line+` takes no arguments, got "more"`) {
			t.Errorf("%s: %v", line, err)
		}
	}
}
