// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"agentrun/internal/hostcaps"
)

// overlaid runs a script in ring 2 with its workspace under a layer of its own, and returns the run's id.
func overlaid(t *testing.T, ws, script string, flags ...string) string {
	t.Helper()
	time.Sleep(50 * time.Millisecond) // the kernel takes the times of files by its tick: what is younger than that counts as later
	r := run(t, opts{profile: "ring2", flags: append([]string{"--no-gateway", "--workspace", ws, "--workspace-mode", "overlay"}, flags...)}, "sh", "-ec", script)
	if r.exit != 0 {
		t.Fatalf("exit %d: %s", r.exit, r.stderr)
	}
	return r.status.ID
}

// change is a line of agentrun diff --json.
type change struct{ Path, Kind, Link, Risky, Conflict string }

func diffOf(t *testing.T, id string) (list []change) {
	t.Helper()
	r := tool(t, "diff", "--json", id)
	if err := json.Unmarshal([]byte(r.stdout), &list); err != nil {
		t.Fatalf("%v: %s%s", err, r.stdout, r.stderr)
	}
	return list
}

func changeLines(list []change) (all []string) {
	for _, c := range list {
		line := c.Kind + " " + c.Path
		if c.Risky != "" {
			line += " risky"
		}
		if c.Conflict != "" {
			line += " conflict"
		}
		all = append(all, line)
	}
	slices.Sort(all)
	return all
}

// The workspace is as it was until somebody applies what the run has changed; then it is as the agent saw it.
func TestOverlayWorkspace(t *testing.T) {
	needSandbox(t)
	need(t, hostcaps.OverlayIDMapped)
	ws := workspace(t)
	for name, text := range map[string]string{"keep": "k", "change": "old\n", "gone": "g", "dir/a": "a", "dir/b": "b", "re/old": "o", "file": "f", "was/x": "x"} {
		write(t, filepath.Join(ws, name), text, 0o644)
	}
	if err := os.Symlink("keep", filepath.Join(ws, "ln")); err != nil {
		t.Fatal(err)
	}
	owned(t, ws)
	before := folder(t, ws)
	id := overlaid(t, ws, `
echo new > change; rm gone; rm -r dir/a; echo n > new; mkdir -p deep/er; echo d > deep/er/f; ln deep/er/f hard; ln -s keep soft; chmod 755 keep
rm -r re; mkdir re; echo r > re/new; rm file; mkdir file; echo i > file/i; rm -r was; echo w > was; rm ln; echo l > ln; mkfifo pipe; touch untouched; rm untouched
chmod u+s new 2>/dev/null || true; cat change`)
	if after := folder(t, ws); !slices.Equal(before, after) {
		t.Errorf("the workspace has changed before anybody applied:\n%q\n%q", before, after)
	}
	want := []string{
		"added deep", "added deep/er", "added deep/er/f", "added file/i", "added hard", "added new", "added re/new", "added soft", "deleted dir/a", "deleted gone",
		"deleted re/old", "modified change", "modified file", "modified keep", "modified ln", "modified was",
	}
	if got := changeLines(diffOf(t, id)); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if r := tool(t, "diff", id[:8]); !strings.Contains(r.stdout, "-old\n+new\n") || !strings.Contains(r.stdout, "added    soft -> keep") {
		t.Errorf("diff: %s%s", r.stdout, r.stderr)
	}
	if r := tool(t, "apply", id, "deep/er", "nosuch"); r.exit == 0 || !strings.Contains(r.stderr, "nosuch") {
		t.Errorf("a path that isn't among them: exit %d: %s", r.exit, r.stderr)
	}
	if r := tool(t, "apply", id, "deep/er/f", "change"); r.exit != 0 {
		t.Errorf("a part: %s", r.stderr)
	}
	if got := readFile(t, filepath.Join(ws, "deep/er/f")) + readFile(t, filepath.Join(ws, "change")); got != "d\nnew\n" {
		t.Errorf("a part: %q", got)
	}
	if r := tool(t, "apply", id); r.exit != 0 {
		t.Fatalf("the rest: %s", r.stderr)
	}
	left := names(t, ws)
	slices.Sort(left)
	if want := []string{
		".", "change", "deep", "deep/er", "deep/er/f", "dir", "dir/b", "file", "file/i", "hard", "keep", "ln", "new", "re", "re/new", "soft", "was",
	}; !slices.Equal(left, want) {
		t.Errorf("got  %q\nwant %q", left, want)
	}
	info, err := os.Lstat(filepath.Join(ws, "deep/er/f"))
	if err != nil || info.Sys().(*unixStat).Uid != owner || info.Mode() != 0o644 {
		t.Errorf("what was applied: %v, %v", info, err)
	}
	if info, err := os.Lstat(filepath.Join(ws, "keep")); err != nil || info.Mode() != 0o755 {
		t.Errorf("the mode: %v, %v", info, err)
	}
	if r := tool(t, "diff", id); r.exit == 0 || !strings.Contains(r.stderr, "no changes") {
		t.Errorf("all is applied, and it is still there: %s", r.stdout)
	}
}

// What is risky or in conflict is refused, and nothing leads out of the workspace.
func TestOverlayRefusals(t *testing.T) {
	needSandbox(t)
	need(t, hostcaps.OverlayIDMapped)
	ws, outside := workspace(t), t.TempDir()
	write(t, filepath.Join(ws, "a"), "a", 0o644)
	write(t, filepath.Join(ws, "dir/f"), "f", 0o644)
	write(t, filepath.Join(ws, "tree/f"), "f", 0o644)
	owned(t, ws)
	id := overlaid(t, ws, `mkdir -p .git/hooks sub/.vscode; echo h > .git/hooks/post-commit; echo '{}' > sub/.vscode/tasks.json; ln -s ../../etc out; ln -s /etc/passwd abs; mkdir -p p/q; ln -s ../.. p/q/up; ln -s p/q/up/../x twice
echo changed > a; echo in > dir/new; echo in >> dir/f; rm -r tree; echo ok > ok`)
	write(t, filepath.Join(ws, "a"), "the host's", 0o644)
	write(t, filepath.Join(ws, "tree/f"), "the host's", 0o644)
	for _, w := range []string{
		"added .git/hooks risky", "added .git/hooks/post-commit risky", "added abs risky", "added out risky", "added twice risky", "added p/q/up", "added sub/.vscode/tasks.json risky",
		"deleted tree conflict", "modified a conflict", "modified dir/f", "added dir/new", "added ok",
	} {
		if got := changeLines(diffOf(t, id)); !slices.Contains(got, w) {
			t.Errorf("%q isn't among %q", w, got)
		}
	}
	for _, tt := range []struct {
		args []string
		says string
	}{
		{nil, "changed on the host"}, {[]string{"--risky"}, "changed on the host"}, {[]string{".git"}, "run by the host"}, {[]string{"tree"}, "changed on the host"}, {[]string{"out"}, "run by the host"},
		{[]string{"../x"}, "not among"}, {[]string{"/etc"}, "not among"},
	} {
		args := []string{"apply"}
		if len(tt.args) > 0 && strings.HasPrefix(tt.args[0], "--") {
			args = append(append(args, tt.args...), id)
		} else {
			args = append(append(args, id), tt.args...)
		}
		if r := tool(t, args...); r.exit == 0 || !strings.Contains(strings.ToLower(r.stderr), strings.ToLower(tt.says)) {
			t.Errorf("%q: exit %d: %s", args, r.exit, r.stderr)
		}
	}
	// The host has put a link where a folder was: what lies beyond isn't written.
	if err := os.Rename(filepath.Join(ws, "dir"), filepath.Join(ws, "moved")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(ws, "dir")); err != nil {
		t.Fatal(err)
	}
	if r := tool(t, "apply", id, "dir/new"); r.exit == 0 {
		t.Errorf("through a link: exit %d: %s", r.exit, r.stderr)
	}
	if left := names(t, outside); len(left) != 1 {
		t.Errorf("outside: %v", left)
	}
	if r := tool(t, "apply", id, "ok"); r.exit != 0 || readFile(t, filepath.Join(ws, "ok")) != "ok\n" {
		t.Errorf("what is neither: %s", r.stderr)
	}
	if r := tool(t, "apply", "--risky", id, ".git"); r.exit != 0 || readFile(t, filepath.Join(ws, ".git/hooks/post-commit")) != "h\n" {
		t.Errorf("risky, and meant: %s", r.stderr)
	}
	if r := tool(t, "discard", id); r.exit != 0 {
		t.Error(r.stderr)
	}
	if r := tool(t, "discard", id); r.exit == 0 {
		t.Errorf("twice: %s", r.stdout)
	}
	if got := readFile(t, filepath.Join(ws, "a")); got != "the host's" {
		t.Errorf("a is %q", got)
	}
	for flag, says := range map[string]string{"ring3": "--workspace-mode", "ring2": "--workspace"} {
		r := run(t, opts{profile: flag, flags: []string{"--no-gateway", "--workspace-mode", "overlay"}}, "true")
		if r.exit == 025 && r.exit != 2 || !strings.Contains(r.stderr, says) {
			t.Errorf("%s: exit %d: %s", flag, r.exit, r.stderr)
		}
	}
}

// M-2: what git's configuration names is risky as what the table has, and so is what is put in the place of a folder above either.
func TestOverlayTellsWhatGitRuns(t *testing.T) {
	needSandbox(t)
	need(t, hostcaps.OverlayIDMapped)
	needProgram(t, "git")
	ws := workspace(t)
	host(t, ws, "", `git init -q . && git config core.hooksPath tools/hooks && mkdir -p tools/hooks other && git init -q other/x && mv other/x/.git other/bare && rmdir other/x && mkdir -p .git/modules/libs && cp -r other/bare .git/modules/libs/sub && `+hostGit+` commit -q --allow-empty -m first`)
	owned(t, ws)
	const hook = `printf '#!/bin/sh\ntouch "$M"\n' > h; chmod 755 h; `
	for name, script := range map[string]string{
		"core.hooksPath": hook + "cp h tools/hooks/post-commit", "a link above it": hook + "rm -r tools; mkdir -p t2/hooks; cp h t2/hooks/post-commit; ln -s t2 tools",
		"a link for .git": hook + "cp h other/bare/hooks/post-commit; rm -r .git; ln -s other/bare .git", "a file for .git": hook + "cp h other/bare/hooks/post-commit; rm -r .git; echo gitdir: other/bare > .git",
	} {
		mark := filepath.Join(t.TempDir(), "mark")
		id := overlaid(t, ws, script)
		if r := tool(t, "apply", id); r.exit != 125 || !strings.Contains(r.stderr, "run by the host") {
			t.Errorf("%s: exit %d %s", name, r.exit, r.stderr)
		}
		host(t, ws, mark, onCommit)
		if _, err := os.Lstat(mark); err == nil {
			t.Errorf("%s: the host has run what the agent left", name)
		}
		tool(t, "discard", id)
		owned(t, ws)
	}
	// A submodule's repository by another name, or the folder above it.
	for _, script := range []string{"rm -r .git/modules/libs/sub; ln -s ../../../other/bare .git/modules/libs/sub", "mv .git/modules/libs l; ln -s ../../l .git/modules/libs"} {
		id := overlaid(t, ws, script)
		if r := tool(t, "apply", id); r.exit != 125 || !strings.Contains(r.stderr, "run by the host") {
			t.Errorf("%s: exit %d %s", script, r.exit, r.stderr)
		}
		tool(t, "discard", id)
	}
	host(t, ws, "", "git config core.hooksPath .")
	id := overlaid(t, ws, "echo x > any")
	if got := changeLines(diffOf(t, id)); !slices.Equal(got, []string{"added any risky"}) {
		t.Errorf("where all of the workspace is hooks: %q", got)
	}
}

// M-5: second names come as copies, so a few bytes of a layer could be any number of the workspace's disk.
func TestOverlayBoundsSecondNames(t *testing.T) {
	needSandbox(t)
	need(t, hostcaps.OverlayIDMapped)
	ws := workspace(t)
	owned(t, ws)
	id := overlaid(t, ws, `head -c 8000000 /dev/zero | tr '\0' a > 0; i=1; while [ $i -lt 40 ]; do ln 0 $i; i=$((i+1)); done; mkdir wide; chmod 777 wide; printf 'true\0' > script; head -c 100000 /dev/zero | tr '\0' b > b; i=1; while [ $i -lt 40 ]; do ln b b$i; i=$((i+1)); done`)
	if r := tool(t, "apply", id); r.exit != 125 || !strings.Contains(r.stderr, "second names") {
		t.Errorf("exit %d %s%s", r.exit, r.stdout, r.stderr)
	}
	if left := names(t, ws); len(left) != 1 {
		t.Errorf("applied all the same: %q", left)
	}
	if r := tool(t, "diff", "--stat", id); !strings.Contains(r.stdout, "added    wide/ (0777)\n") {
		t.Errorf("a folder that anybody may write looks like others: %s", r.stdout)
	}
	if r := tool(t, "diff", id); !strings.Contains(r.stdout, "added    script (5 bytes, 0644)\n  content isn't shown") {
		t.Error("what is no text for diff, and is for a shell, isn't told")
	} else if len(r.stdout) > 200_000 || !strings.Contains(r.stdout, "added    b39 (100000 bytes, 0644)\n  content as that of b\n") {
		t.Errorf("diff is of %d bytes", len(r.stdout))
	}
	if r := tool(t, "apply", id, "1", "2"); r.exit != 0 {
		t.Errorf("a part: exit %d %s", r.exit, r.stderr)
	}
}

// A script's variable that isn't set names no run, though most runs have no name and every id begins with nothing, and no part of its changes.
func TestOverlayOfNoRunInParticular(t *testing.T) {
	p := newPlace(t)
	need(t, hostcaps.OverlayIDMapped)
	ws := workspace(t)
	owned(t, ws)
	p.must("exec", "--ring", "2", "--no-gateway", "--workspace", ws, "--workspace-mode", "overlay", "--", "sh", "-c", "echo new > new")
	id := strings.TrimSpace(p.must("ps", "--all", "-q").stdout)
	for _, args := range [][]string{{"apply", ""}, {"apply", id, ""}, {"discard", ""}, {"diff", ""}} {
		if r := p.do(args...); r.exit != 125 || strings.Contains(r.stdout, "new") {
			t.Errorf("%q: exit %d\n%s%s", args, r.exit, r.stdout, r.stderr)
		}
	}
	if _, err := os.Lstat(filepath.Join(ws, "new")); err == nil {
		t.Error("a change was applied")
	}
	if r := p.must("apply", id, "new"); !strings.Contains(r.stdout, "added    new") {
		t.Errorf("applied %q", r.stdout)
	}
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}
