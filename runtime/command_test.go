// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentrun/fsjail"
)

// tree makes files: a mode and content by path; "-> x" makes a link.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, spec := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if to, ok := strings.CutPrefix(spec, "-> "); ok {
			if err := os.Symlink(to, path); err != nil {
				t.Fatal(err)
			}
			continue
		}
		mode, content, _ := strings.Cut(spec, " ")
		perm := os.FileMode(0o644)
		if mode == "x" {
			perm = 0o755
		}
		if err := os.WriteFile(path, []byte(content), perm); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func testView(t *testing.T) view {
	root := tree(t, map[string]string{
		"usr/bin/python3.11": "x \x7fELF", "usr/bin/python3": "-> python3.11", "usr/bin/sh": "x \x7fELF",
		"usr/bin/env": "x \x7fELF", "usr/bin/awk": "-> /etc/alternatives/awk", "usr/bin/mawk": "x \x7fELF",
		"etc/alternatives/awk": "-> /usr/bin/mawk", "usr/bin/loop": "-> loop", "usr/bin/data": "- text",
	})
	ws := tree(t, map[string]string{
		"agent.py": "x #!/usr/bin/env python3\n", "plain.py": "- print()\n", "noext": "- text\n", "run.sh": "- echo\n",
		"pyenv.py": "x #!/root/.pyenv/shims/python3\n", "perl.py": "x #!/usr/bin/env perl6\n", "app.js": "- 1\n",
		"out": "-> /etc/passwd", "sub/tool": "x \x7fELF", "sh": "x \x7fELF", "empty.py": "x #!\n",
	})
	return view{
		{Kind: fsjail.Bind, Target: "/usr", Source: filepath.Join(root, "usr"), Exec: true},
		{Kind: fsjail.Link, Target: "/bin", Source: "usr/bin"},
		{Kind: fsjail.Bind, Target: "/etc/alternatives", Source: filepath.Join(root, "etc/alternatives")},
		{Kind: fsjail.Bind, Target: "/workspace", Source: ws, Exec: true},
	}
}

func TestResolve(t *testing.T) {
	v := testView(t)
	cases := []struct {
		argv string
		exe  string
		args string
	}{
		{"agent.py -v", "/workspace/agent.py", "agent.py -v"},
		{"./agent.py", "/workspace/agent.py", "./agent.py"},
		{"plain.py a", "/usr/bin/python3", "python3 /workspace/plain.py a"},
		{"run.sh", "/usr/bin/sh", "sh /workspace/run.sh"},
		{"sub/tool", "/workspace/sub/tool", "sub/tool"},
		{"sh", "/usr/bin/sh", "sh"}, // PATH comes before the workspace
		{"./sh", "/workspace/sh", "./sh"},
		{"/bin/sh -c x", "/bin/sh", "/bin/sh -c x"},
		{"awk", "/usr/bin/awk", "awk"}, // through two links
	}
	for _, c := range cases {
		got, err := looks(v.host).resolve(strings.Fields(c.argv), defaultPath)
		if err != nil {
			t.Errorf("%s: %v", c.argv, err)
			continue
		}
		if got.Exe != c.exe || strings.Join(got.Args, " ") != c.args {
			t.Errorf("%s: got %s %v, want %s %s", c.argv, got.Exe, got.Args, c.exe, c.args)
		}
	}
}

func TestResolveRefuses(t *testing.T) {
	v := testView(t)
	cases := []struct {
		name   string
		code   int
		reason string
	}{
		{"nosuch", ExitNotFound, "not found"},
		{"/usr/bin/nosuch", ExitNotFound, "no such file in the sandbox"},
		{"/etc/shadow", ExitNotFound, "no such file in the sandbox"},
		{"noext", ExitNotExecutable, "not executable"},
		{"/usr/bin/data", ExitNotExecutable, "not executable"},
		{"/usr/bin/loop", ExitNotFound, "symbolic links"},
		{"pyenv.py", ExitNotFound, "/root/.pyenv/shims/python3"},
		{"perl.py", ExitNotFound, "perl6"},
		{"app.js", ExitNotFound, "node"},
		{"empty.py", ExitNotExecutable, "names no interpreter"},
		{"out", ExitNotFound, "not found"}, // a link out of the workspace leads nowhere inside
		{"../etc/passwd", ExitNotFound, "out of the workspace"},
		{"/workspace", ExitNotExecutable, "not a regular file"},
	}
	t.Setenv("PATH", "/nonexistent")
	for _, c := range cases {
		_, err := looks(v.host).resolve([]string{c.name}, defaultPath)
		e, ok := errors.AsType[*CommandError](err)
		if !ok {
			t.Errorf("%s: got %v, want a CommandError", c.name, err)
			continue
		}
		if e.ExitCode() != c.code || !strings.Contains(e.Reason, c.reason) {
			t.Errorf("%s: got %d %q, want %d %q", c.name, e.ExitCode(), e.Reason, c.code, c.reason)
		}
	}
}

// A package of npm isn't alone: its siblings are shown with it, and nothing above (F16: Codex died of "Cannot find package").
func TestHintForPackages(t *testing.T) {
	host := tree(t, map[string]string{
		"project/node_modules/@openai/codex/bin/codex.js":      "x #!/usr/bin/env node\n",
		"global/lib/node_modules/pi/node_modules/inner/cli.js": "x #!/usr/bin/env node\n",
	})
	for _, c := range []struct{ link, target, want string }{
		{"project/node_modules/.bin/codex", "project/node_modules/@openai/codex/bin/codex.js", "project/node_modules"},
		{"global/bin/pi", "global/lib/node_modules/pi/node_modules/inner/cli.js", "global"},
		{"elsewhere/pi", "global/lib/node_modules/pi/node_modules/inner/cli.js", "elsewhere --ro-bind " + host + "/global/lib/node_modules"},
	} {
		link := filepath.Join(host, c.link)
		if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.Symlink(filepath.Join(host, c.target), link)); err != nil {
			t.Fatal(err)
		}
		if h, want := showHint(link), "show it with --ro-bind "+host+"/"+c.want; h != want {
			t.Errorf("got %q, want %q", h, want)
		}
	}
}

// What is shown isn't in PATH by that: the hint for a name by itself says both, so that following it ends.
func TestHintForNames(t *testing.T) {
	host := tree(t, map[string]string{"tool/bin/mytool": "x \x7fELF"})
	tool := filepath.Join(host, "tool")
	pathVar := tool + "/bin:" + defaultPath
	t.Setenv("PATH", tool+"/bin")
	shown := view{{Kind: fsjail.Bind, Target: tool, Source: tool}}
	for _, c := range []struct {
		view view
		name string
		want string
	}{
		{nil, "mytool", "show it with --ro-bind " + tool + " --env PATH=" + pathVar},
		{nil, tool + "/bin/mytool", "show it with --ro-bind " + tool},
		{shown, "mytool", "find it with --env PATH=" + pathVar},
	} {
		_, err := looks(c.view.host).resolve([]string{c.name}, defaultPath)
		if e, ok := errors.AsType[*CommandError](err); !ok || !e.NotFound || e.Hint != c.want {
			t.Errorf("%s: got %v, %+v, want the hint %q", c.name, err, e, c.want)
		}
	}
	if got, err := looks(shown.host).resolve([]string{"mytool"}, pathVar); err != nil || got.Exe != tool+"/bin/mytool" {
		t.Errorf("with what the hint says: %+v, %v", got, err)
	}
}

// An interpreter that exists on the host only is named, with the flag that shows it.
func TestHintForVersionManager(t *testing.T) {
	host := tree(t, map[string]string{"pyenv/versions/3/bin/python3": "x \x7fELF", "pyenv/shims/python3": "x #!/bin/sh\n"})
	shim := filepath.Join(host, "pyenv/shims/python3")
	if h := showHint(shim); h != "show it with --ro-bind "+filepath.Join(host, "pyenv") {
		t.Error(h)
	}
	link := filepath.Join(host, "bin/python3")
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(host, "pyenv/versions/3/bin/python3"), link); err != nil {
		t.Fatal(err)
	}
	// The link's own folder is the prefix's parent here, so the real place is shown by it as well.
	if h := showHint(link); !strings.Contains(h, "--ro-bind "+host) {
		t.Error(h)
	}
}
