// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// M-11: the tool file reaches the session's folder and nothing else, by no link and no other name; ring 3 reads (H-6), a run without
// session has no such tool, and what it reads stands in no record (M-18).
func TestM11FileToolOfASession(t *testing.T) {
	t.Parallel()
	x := newExit(t)
	for _, agent := range []string{"writer", "reader"} {
		x.n.must("agent", "score", agent, "0.7")
	}
	for _, session := range []string{"one", "two"} {
		x.n.must("session", "create", session)
		x.n.must("session", "join", session, "--agent", "writer")
	}
	x.n.must("session", "join", "one", "--agent", "reader")
	folder := filepath.Join(x.n.dir, "workspaces", "one")
	outside := write(t, filepath.Join(t.TempDir(), "outside"), "a secret of the host", 0o644)
	for name, to := range map[string]string{"link": outside, "two": "../two", "up": "..", "git": ".git"} {
		if err := os.Symlink(to, filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(folder, ".git", "hooks"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(folder, ".git", "config"), "[core]\n\thooksPath = checks\n[filter \"tidy\"]\n\tclean = tools/clean\n", 0o644)
	if err := os.Mkdir(filepath.Join(folder, "tools"), 0o755); err != nil {
		t.Fatal(err)
	}
	clean := write(t, filepath.Join(folder, "tools", "clean"), "#!/bin/sh\ncat\n", 0o755)
	if err := unix.Mkfifo(filepath.Join(folder, "pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	call := func(name, args string) toolCall { return toolCall{name, "file", args} }
	for _, tt := range []struct {
		agent, ring string
		calls       []toolCall
		want        map[string]string
	}{
		{"writer", "ring2", []toolCall{
			call("write", `{"op":"write","path":"notes/plan.md","text":"first"}`),
			call("again", `{"op":"write","path":"notes/plan.md","text":"the second plan"}`),
			call("read", `{"op":"read","path":"notes/plan.md"}`),
			call("piece", `{"op":"read","path":"notes/plan.md","offset":4}`),
			call("list", `{"op":"list"}`),
			call("by a link", `{"op":"read","path":"link"}`),
			call("over a link", `{"op":"write","path":"link","text":"x"}`),
			call("another session", `{"op":"write","path":"two/x","text":"x"}`),
			call("up by a link", `{"op":"list","path":"up"}`),
			call("dots", `{"op":"read","path":"../two/x"}`),
			call("absolute", `{"op":"read","path":"/etc/passwd"}`),
			call("a pipe", `{"op":"read","path":"pipe"}`),
			call("hook", `{"op":"write","path":".git/hooks/post-commit","text":"#!/bin/sh"}`),
			call("hook by a link", `{"op":"write","path":"git/hooks/post-commit","text":"#!/bin/sh"}`),
			call("hook that git is told of", `{"op":"write","path":"checks/post-commit","text":"#!/bin/sh"}`),
			call("a filter's program", `{"op":"write","path":"tools/clean","text":"#!/bin/sh"}`),
			call("beside it", `{"op":"write","path":"tools/other","text":"x"}`),
			call("full folder", `{"op":"delete","path":"notes"}`),
			call("escape", `{"op":"write","path":"a\u001bb","text":"x"}`),
		}, map[string]string{
			"write": `"bytes":5`, "again": `"bytes":15`, "read": `"text":"the second plan"`, "piece": `"text":"second plan"`,
			"list": `{"name":"link","kind":"link"}`, "by a link": "tool_restricted", "over a link": "tool_restricted",
			"another session": "tool_restricted", "up by a link": "tool_restricted", "dots": "bad_arguments", "absolute": "bad_arguments",
			"a pipe": "tool_restricted", "hook": "tool_restricted", "hook by a link": "tool_restricted", "hook that git is told of": "tool_restricted",
			"a filter's program": "tool_restricted", "beside it": `"bytes":1`, "full folder": "tool_restricted",
			"escape": "bad_arguments",
		}},
		{"reader", "ring3", []toolCall{
			call("read", `{"op":"read","path":"notes/plan.md"}`), call("list", `{"op":"list","path":"notes"}`),
			call("write", `{"op":"write","path":"notes/plan.md","text":"mine"}`), call("delete", `{"op":"delete","path":"notes/plan.md"}`),
		}, map[string]string{"read": "the second plan", "list": `"name":"plan.md"`, "write": "ring_denied", "delete": "ring_denied"}},
		{"writer", "ring2", []toolCall{
			call("delete", `{"op":"delete","path":"notes/plan.md"}`), call("gone", `{"op":"read","path":"notes/plan.md"}`),
			call("a link itself", `{"op":"delete","path":"link"}`),
		}, map[string]string{"delete": `"ok":true`, "gone": "not_found", "a link itself": `"ok":true`}},
	} {
		got := x.tools(x.opts(tt.ring, "--session", "one", "--agent", tt.agent, "--tool", "file"), tt.calls...)
		for name, want := range tt.want {
			if !strings.Contains(got[name], want) {
				t.Errorf("%s in %s, %s: got %.400q, want %q in it", tt.agent, tt.ring, name, got[name], want)
			}
		}
	}
	if got := x.tools(x.opts("ring2", "--agent", "writer"), call("list", `{"op":"list"}`))["list"]; !strings.Contains(got, "tool_unknown") {
		t.Errorf("a run without session: got %.400q", got)
	}
	if b, err := os.ReadFile(outside); err != nil || string(b) != "a secret of the host" {
		t.Errorf("a file of the host's is now %q, %v", b, err)
	}
	if b, err := os.ReadFile(clean); err != nil || string(b) != "#!/bin/sh\ncat\n" {
		t.Errorf("what the host's git runs is now %q, %v", b, err)
	}
	if got, err := filepath.Glob(filepath.Join(x.n.dir, "workspaces", "two", "*")); err != nil || len(got) > 0 {
		t.Errorf("the other session has %v, %v", got, err)
	}
	for _, e := range x.n.audit("session-one") {
		if s := fmt.Sprint(e.Data); strings.Contains(s, "second plan") || strings.Contains(s, "plan.md") {
			t.Errorf("arguments or contents are on record: %s", s)
		}
	}
}

// M-11: what an ordinary user's run writes by the tool is its own in the workspace, and the other way round.
func TestM11FileToolRootless(t *testing.T) {
	t.Parallel()
	needProgram(t, "python3")
	u := someone(t)
	for _, args := range [][]string{{"agent", "score", "a", "0.7"}, {"session", "create", "s"}, {"session", "join", "s", "--agent", "a"}} {
		if code, _, errOut := u.run(t, args...); code != 0 {
			t.Fatalf("%v: exit %d\n%s", args, code, errOut)
		}
	}
	const agent = using + `
print(use("file", op="write", path="notes/a", text="by the tool"))
with open("/workspace/notes/a", "a") as f: f.write(", and by the program")
print(use("file", op="read", path="notes/a"))`
	code, out, errOut := u.run(t, "exec", "--best-effort", "--ring", "2", "--session", "s", "--agent", "a", "--", "python3", "-c", agent)
	if code != 0 || !strings.Contains(out, "by the tool, and by the program") {
		t.Errorf("exit %d\n%s%s", code, out, errOut)
	}
}
