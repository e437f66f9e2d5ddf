// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// How a command line becomes a program: `agentrun exec --ring 3 -- agent.py`.
func TestCommandNames(t *testing.T) {
	needSandbox(t)
	py, sh, js := "print('fine')\n", "echo fine\n", "console.log('fine')\n"
	for _, tt := range []struct {
		name    string
		file    string
		content string
		mode    os.FileMode
		argv    []string
		needs   []string
		exit    int
		out     string // in stdout, or in stderr when exit is not 0
	}{
		{"extension .py", "agent.py", py, 0o644, []string{"agent.py"}, []string{"python3"}, 0, "fine"},
		{"extension .py with ./", "agent.py", py, 0o644, []string{"./agent.py"}, []string{"python3"}, 0, "fine"},
		{"extension .sh", "agent.sh", sh, 0o644, []string{"agent.sh"}, nil, 0, "fine"},
		{"extension .js", "agent.js", js, 0o644, []string{"agent.js"}, []string{"node"}, 0, "fine"},
		{"below", "dir/agent.sh", sh, 0o644, []string{"dir/agent.sh"}, nil, 0, "fine"},
		{"executable without shebang", "agent.py", py, 0o755, []string{"agent.py"}, []string{"python3"}, 0, "fine"},
		{"shebang", "agent", "#!/bin/sh\n" + sh, 0o755, []string{"agent"}, nil, 0, "fine"},
		{"shebang through env", "agent", "#!/usr/bin/env python3\n" + py, 0o755, []string{"agent"}, []string{"python3"}, 0, "fine"},
		{"shebang before extension", "agent.py", "#!/bin/sh\n" + sh, 0o755, []string{"agent.py"}, nil, 0, "fine"},
		{"shebang, not executable", "agent.py", "#!/usr/bin/env python3\n" + py, 0o644, []string{"agent.py"}, []string{"python3"}, 0, "fine"},
		{"arguments", "agent.sh", "echo \"$1|$2|$#\"\n", 0o644, []string{"agent.sh", "a b", ""}, nil, 0, "a b||2"},
		{"line break in arguments", "agent.sh", "printf %s \"$1\"\n", 0o644, []string{"agent.sh", "a\nb"}, nil, 0, "a\nb"},
		{"path wins over folder", "cat", "#!/bin/sh\necho wrong\n", 0o755, []string{"cat", "/etc/hostname"}, nil, 0, "sandbox"},
		{"working directory", "agent.sh", "pwd\n", 0o644, []string{"agent.sh"}, nil, 0, "/workspace"},
		{"workspace read-only", "agent.sh", "echo x > /workspace/x && exit 9; echo fine\n", 0o644, []string{"agent.sh"}, nil, 0, "fine"},

		{"not found", "x", "", 0o644, []string{"no-such-command"}, nil, 127, "no-such-command"},
		{"not found with path", "x", "", 0o644, []string{"/no/such/command"}, nil, 127, "/no/such/command"},
		{"out of the folder", "x", "", 0o644, []string{"../x"}, nil, 127, "../x"},
		{"not executable", "agent", "data", 0o644, []string{"agent"}, nil, 126, "not executable"},
		{"a folder", "dir/x", "", 0o644, []string{"./dir"}, nil, 126, "dir"},
		{"no program at all", "agent", "\x00\x01\x02", 0o755, []string{"agent"}, nil, 126, "agent"},
		{"interpreter missing", "agent", "#!/opt/none/python\n", 0o755, []string{"agent"}, nil, 127, "/opt/none/python"},
		{"empty shebang", "agent", "#!\n", 0o755, []string{"agent"}, nil, 126, "agent"},
	} {
		for _, profile := range []string{"ring2", "ring3"} {
			t.Run(profile+" "+tt.name, func(t *testing.T) {
				needProgram(t, tt.needs...)
				dir := t.TempDir()
				write(t, filepath.Join(dir, tt.file), tt.content, tt.mode)
				r := run(t, opts{profile: profile, dir: dir, flags: []string{"--memory", "512M"}}, tt.argv...)
				if r.exit != tt.exit {
					t.Errorf("got exit %d (%s), want %d\nstdout: %s\nstderr: %s\nrefused: %v", r.exit, r.status.State, tt.exit, r.stdout, r.stderr, r.status.Refused)
				}
				where := r.stdout
				if tt.exit != 0 {
					where = r.stderr
				}
				if !strings.Contains(where, tt.out) {
					t.Errorf("got %q, want it to contain %q", where, tt.out)
				}
			})
		}
	}
}

// An interpreter that only exists outside the visible root: the message names
// it and the flag that would show it, and following the advice works.
func TestInterpreterOutsideTheRoot(t *testing.T) {
	needSandbox(t)
	outside := t.TempDir()
	interp := filepath.Join(outside, "bin", "interp")
	write(t, interp, "#!/bin/sh\necho ran by interp\n", 0o755)
	// The kernel goes through one more script only since 2.6.28; a shell
	// script as interpreter is fine.
	dir := t.TempDir()
	write(t, filepath.Join(dir, "agent"), "#!"+interp+"\n", 0o755)
	r := run(t, opts{profile: "ring2", dir: dir}, "agent")
	if r.exit != 126 && r.exit != 127 || !strings.Contains(r.stderr, interp) || !strings.Contains(r.stderr, "--ro-bind") {
		t.Fatalf("got exit %d, want 126 or 127, the interpreter's name and --ro-bind\n%s", r.exit, r.stderr)
	}
	var advice []string
	words := strings.Fields(r.stderr)
	for i, w := range words {
		if w == "--ro-bind" && i+1 < len(words) {
			advice = append(advice, w, strings.Trim(words[i+1], ".,;)\"'"))
		}
	}
	r = run(t, opts{profile: "ring2", dir: dir, flags: advice}, "agent")
	if r.exit != 0 || !strings.Contains(r.stdout, "ran by interp") {
		t.Errorf("following the advice %v: exit %d\nstdout: %s\nstderr: %s", advice, r.exit, r.stdout, r.stderr)
	}
}

// The caller's folder is shown only for a file in it, never a whole home.
func TestImplicitWorkspace(t *testing.T) {
	needSandbox(t)
	home := t.TempDir()
	write(t, filepath.Join(home, "agent.sh"), "ls -A /workspace; cat /workspace/.ssh/key\n", 0o644)
	write(t, filepath.Join(home, ".ssh", "key"), "private", 0o644)
	r := run(t, opts{profile: "ring2", dir: home, env: []string{"HOME=" + home}}, "agent.sh")
	if strings.Contains(r.stdout, "private") {
		t.Errorf("the home folder became the workspace: %s", r.stdout)
	}
	// A command from PATH takes nothing from where one happens to stand.
	dir := t.TempDir()
	write(t, filepath.Join(dir, "secret"), "x", 0o644)
	r = run(t, opts{profile: "ring2", dir: dir}, "ls", "-A", "/")
	if strings.Contains(r.stdout, "secret") {
		t.Errorf("the caller's folder is shown: %s", r.stdout)
	}
	r = run(t, opts{profile: "ring2", dir: dir}, "cat", "/workspace/secret")
	if r.exit == 0 {
		t.Error("the caller's folder is shown for a command from PATH")
	}
}

func TestNoCommand(t *testing.T) {
	needSandbox(t)
	for _, args := range [][]string{{"exec"}, {"exec", "--"}, {"exec", "--", ""}, {"exec", "--ring", "3"}} {
		r := tool(t, args...)
		if r.exit != 125 {
			t.Errorf("%v: got exit %d, want 125\n%s", args, r.exit, r.stderr)
		}
	}
	if r := tool(t, "no-such-subcommand"); r.exit == 0 {
		t.Error("an unknown subcommand succeeds")
	}
}

// Whoever presses TAB behind an agent's command has ordered nothing: it isn't run to hear what could stand next.
func TestCompletionStartsNothing(t *testing.T) {
	needProgram(t, "bash")
	p := newPlace(t)
	p.kept("dev", "--ring", "3")
	p.must("start", "dev")
	before := len(p.audit())
	for _, words := range []string{"exec -- true", "exec --no-gateway --ring 2 -- tr", "create --name x -- true", "exec --in dev -- true", "kill --all --yes --", "exe", "kill d"} {
		cmd := exec.Command("bash", "-c", fmt.Sprintf(`source <("$0" completion bash)
COMP_WORDS=("$0" %s "") COMP_CWORD=%d
[[ "%[1]s" == *--* ]] || { unset 'COMP_WORDS[-1]'; let COMP_CWORD--; }
_agentrun; echo "${COMPREPLY[*]}"`, words, len(strings.Fields(words))+1), agentrun)
		cmd.Env = append(os.Environ(), "AGENTRUN_STATE_DIR="+p.state, "AGENTRUN_RUN_DIR="+p.run)
		out, err := cmd.CombinedOutput()
		if want := map[string]string{"exe": "exec", "kill d": "dev"}[words]; err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("%s: %q, %v, want %q", words, out, err, want)
		}
	}
	if after := p.audit(); len(after) > before || len(p.lives("dev")) != 1 || p.holds("x") {
		t.Errorf("it did something: %+v", after[before:])
	}
}
