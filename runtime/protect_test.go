// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"agentrun/fsjail"
	"agentrun/profiles"
)

func TestReadGitConfig(t *testing.T) {
	text := `; comment
[core] hooksPath = .hooks ; not this
	fsmonitor = "tools/a b" # nor this
[filter "x]y"]
	clean = sh -c \
		'tools/clean "%f"'
[ALIAS]
	co = "!tools/co \"$1\""
[include "z"] path=../a
# a comment isn't continued \
[diff	"x"] textconv = tools/t ; C:\
	command = tools/d
[user]
broken
	name = "un;quoted` + "\n"
	want := []gitValue{
		{"core.hookspath", ".hooks"}, {"core.fsmonitor", "tools/a b"}, {"filter.clean", "sh -c \t\t'tools/clean %f'"},
		{"alias.co", `!tools/co "$1"`}, {"include.path", "../a"}, {"diff.textconv", "tools/t"}, {"diff.command", "tools/d"}, {"user.broken", ""}, {"user.name", "un;quoted"},
	}
	if d := cmp.Diff(want, readGitConfig("\ufeff"+text), cmp.AllowUnexported(gitValue{})); d != "" {
		t.Error(d)
	}
	if got := (gitValue{"alias.co", `!f() { tools/co "$1"; }; f`}).words(); !slices.Contains(got, "tools/co") {
		t.Errorf("words: %q", got)
	}
}

func FuzzReadGitConfig(f *testing.F) {
	f.Add("[core]\n\thooksPath = a\\\nb\n[include \"x\\\"]\"] path = \"y")
	f.Fuzz(func(_ *testing.T, text string) {
		for _, v := range readGitConfig(text) {
			v.words()
		}
	})
}

// tree makes files by name; "-> X" makes a link, a name that ends in / a folder.
func guardTree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if to, link := strings.CutPrefix(content, "-> "); link {
			err = os.Symlink(to, at)
		} else if strings.HasSuffix(name, "/") {
			err = os.MkdirAll(at, 0o755)
		} else {
			err = os.WriteFile(at, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestGuards(t *testing.T) {
	table := []string{".git/hooks", ".git/config", ".git/commondir", ".git/worktrees/*/commondir", ".vscode", ".claude", ".github/workflows"}
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  []string // path, then rw for a folder that only stays where it is, hidden for a link
		err   string
	}{
		{"nothing is there", nil, []string{".claude", ".git", ".github", ".vscode"}, ""},
		{"a repository", map[string]string{".git/config": "", ".git/hooks/": "", ".vscode/x": "", ".claude/": ""},
			[]string{".claude", ".git rw", ".git/commondir", ".git/config", ".git/hooks", ".github", ".vscode"}, ""},
		{"a linked worktree of it", map[string]string{".git/config": "", ".git/worktrees/w/HEAD": "", ".git/worktrees/file": ""},
			[]string{".claude", ".git rw", ".git/commondir", ".git/config", ".git/hooks", ".git/worktrees rw", ".git/worktrees/w rw", ".git/worktrees/w/commondir", ".github", ".vscode"}, ""},
		{"submodules of it, one within another, beside what an agent has put there", map[string]string{
			".git/config": "", ".git/modules/HEAD": "", ".git/modules/a/b/config": "", ".git/modules/a/b/objects/00/x": "", ".git/modules/a/b/modules/c/config": "", ".git/modules/a/pipe": "",
		}, []string{
			".claude", ".git rw", ".git/commondir", ".git/config", ".git/hooks", ".git/modules rw", ".git/modules/a rw", ".git/modules/a/b rw", ".git/modules/a/b/commondir", ".git/modules/a/b/config",
			".git/modules/a/b/hooks", ".git/modules/a/b/modules rw", ".git/modules/a/b/modules/c rw", ".git/modules/a/b/modules/c/commondir", ".git/modules/a/b/modules/c/config",
			".git/modules/a/b/modules/c/hooks", ".git/modules/commondir", ".git/modules/config", ".git/modules/hooks", ".github", ".vscode",
		}, ""},
		{"another repository in a file, a worktree of it", map[string]string{".git": "gitdir: .bare/worktrees/w\n", ".bare/worktrees/w/commondir": "../..\n", ".bare/HEAD": "", ".bare/config": "[core]\nhooksPath = h\n", ".bare/modules/m/config": "", "h/x": ""},
			[]string{".bare rw", ".bare/commondir", ".bare/config", ".bare/hooks", ".bare/modules rw", ".bare/modules/m rw", ".bare/modules/m/commondir", ".bare/modules/m/config", ".bare/modules/m/hooks",
				".bare/worktrees rw", ".bare/worktrees/w rw", ".bare/worktrees/w/commondir", ".bare/worktrees/w/config", ".bare/worktrees/w/hooks", ".claude", ".git", ".github", ".vscode", "h"}, ""},
		{"is one itself", map[string]string{".git": "gitdir: /elsewhere"}, []string{".claude", ".git", ".github", ".vscode"}, ""},
		{"a folder above is there", map[string]string{".github/x": ""}, []string{".claude", ".git", ".github rw", ".github/workflows", ".vscode"}, ""},
		{"what the configuration names", map[string]string{
			".git/config": "[core]\nhooksPath = h\nfsmonitor = tools/later\n[include]\npath = ../inc\n[filter \"f\"]\nclean = sh tools/clean src\n[branch \"src\"]\nmerge=Makefile\n",
			"inc":         "[alias]\nx = !tools/x\n", "tools/clean": "", "src/a": "", "Makefile": "",
		}, []string{".claude", ".git rw", ".git/commondir", ".git/config", ".git/hooks", ".github", ".vscode", "h", "inc", "tools rw", "tools/clean", "tools/later", "tools/x"}, ""},
		{"a link", map[string]string{".claude": "-> conf/c", "conf/c/x": ""}, []string{".claude hidden", ".git", ".github", ".vscode", "conf rw", "conf/c"}, ""},
		{"a link out", map[string]string{".claude": "-> /etc", ".vscode": "-> ../../x"}, []string{".claude hidden", ".git", ".github", ".vscode hidden"}, ""},
		{"links in a circle", map[string]string{".claude": "-> b", "b": "-> .claude"}, []string{".claude hidden", ".git", ".github", ".vscode", "b hidden"}, ""},
		{"a hook is a link", map[string]string{".git/config": "", ".git/hooks/pre-commit": "-> ../../scripts/p", "scripts/p": "", ".git/hooks/dir": "-> ../../scripts"},
			[]string{".claude", ".git rw", ".git/commondir", ".git/config", ".git/hooks", ".github", ".vscode", "scripts rw", "scripts/p"}, ""},
		{"hooks are the workspace", map[string]string{".git/config": "[core]\nhooksPath=.\n"}, nil, "core.hookspath"},
		{"an include of itself", map[string]string{".git/config": "[include]\npath = config\n"}, nil, "deep"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := guardTree(t, tt.files)
			p := &Plan{}
			for _, path := range table {
				p.profile.Files.Guard = append(p.profile.Files.Guard, profiles.GuardEntry{Path: path, Mode: profiles.GuardReadonly, Why: "x"})
			}
			entries, err := p.guards(fsjail.Entry{Kind: fsjail.Bind, Target: workspaceDir, Source: dir, Writable: true})
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("got %v, want %s", err, tt.err)
				}
				return
			}
			var got []string
			for _, e := range entries {
				at := strings.TrimPrefix(e.Target, workspaceDir+"/")
				switch {
				case e.Writable:
					at += " rw"
				case e.Source == os.DevNull:
					at += " hidden"
				}
				got = append(got, at)
			}
			if err != nil || !slices.Equal(got, tt.want) {
				t.Errorf("got %q, %v\nwant %q", got, err, tt.want)
			}
		})
	}
}

// What other settings name than git's configuration.
func TestGuardsOfWhatSettingsName(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		files      []string // executable where they end in x
		want       []string
	}{
		{".git/config.worktree", "[core]\nfsmonitor = tools/watch\n", []string{"tools/watch"}, []string{"tools/watch"}},
		{".git/config", "[core]\nhooksPath = ~/HERE/h\n[alias]\na = !$HOME/HERE/tools/a\n[diff]\nexternal = ~/elsewhere/d\n", []string{"h/pre-commit", "tools/a"}, []string{"h", "tools/a"}},
		{".git/config", "[core]\nhooksPath = ~someone/HERE/h\n[lfs \"customtransfer.x\"]\npath = tools/move\n", []string{"h/pre-commit", "tools/move"}, []string{"h", "tools/move"}},
		{".git/config", "[core]\nfsmonitor = \"$(git rev-parse --show-toplevel)/tools/watch\"\neditor = $WORK_DIR/tools/edit\npager = /usr/bin/less\n", []string{"tools/watch", "tools/edit", "usr/x"}, []string{"tools/edit", "tools/watch"}},
		{".yarnrc.yml", "# see a.js\nyarnPath: .yarn/releases/yarn-4.1.0.cjs\nlockfileFilename: yarn.lock\nplugins:\n  - path: \".yarn/plugins/x.cjs\"\n    spec: p\n",
			[]string{"a.js", "yarn.lock", ".yarn/releases/yarn-4.1.0.cjs", ".yarn/plugins/x.cjs"}, []string{".yarn/plugins/x.cjs", ".yarn/releases/yarn-4.1.0.cjs"}},
		{".yarnrc", "yarn-path \".yarn/releases/yarn-1.22.22.js\"\n", []string{".yarn/releases/yarn-1.22.22.js"}, []string{".yarn/releases/yarn-1.22.22.js"}},
		{".envrc", "use node\nsource_env env/local\n. ./vars.sh\ndotenv .env\nPATH_add bin\nwatch_file package.json\n", []string{"env/local", "vars.sh", ".env", "bin/x", "local", "package.json"}, []string{".env", "env/local", "vars.sh"}},
		{".mcp.json", `{"mcpServers":{"a":{"command":"./serve/ax","args":["--config","serve/c.json"]},"b":{"command":"python3","args":["serve/b.py"]}}}`, []string{"serve/ax", "serve/b.py", "serve/c.json"}, []string{"serve/ax", "serve/b.py"}},
		{".claude/settings.json", `{"hooks":{"PostToolUse":[{"hooks":[{"command":"$CLAUDE_PROJECT_DIR/tools/fmt.sh"},{"command":"\"$CLAUDE_PROJECT_DIR\"/tools/lint.py --fix"}]}]},"permissions":{"allow":["Bash(make:*)","Edit(src/a.py)","Bash(python3 tools/gen.py)"]}}`,
			[]string{"tools/fmt.sh", "tools/lint.py", "src/a.py", "tools/gen.py", "make"}, []string{"tools/fmt.sh", "tools/gen.py", "tools/lint.py"}},
		{".npmrc", "script-shell=./bin/shx\nnode-options=--require ./first.js\ncafile=ca.pem\n; late.js\n", []string{"bin/shx", "first.js", "ca.pem", "late.js"}, []string{"bin/shx", "first.js"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tree := map[string]string{".git/config": "", tt.name: tt.text}
			for _, f := range tt.files {
				tree[f] = ""
			}
			dir := guardTree(t, tree)
			if err := os.WriteFile(filepath.Join(dir, tt.name), []byte(strings.ReplaceAll(tt.text, "HERE", filepath.Base(dir))), 0o644); err != nil {
				t.Fatal(err)
			}
			for _, f := range tt.files {
				if strings.HasSuffix(f, "x") {
					if err := os.Chmod(filepath.Join(dir, f), 0o755); err != nil {
						t.Fatal(err)
					}
				}
			}
			p := &Plan{}
			p.profile.Files.Guard = []profiles.GuardEntry{{Path: tt.name, Mode: profiles.GuardReadonly, Why: "x"}}
			entries, err := p.guards(fsjail.Entry{Kind: fsjail.Bind, Target: workspaceDir, Source: dir, Writable: true})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range entries {
				if at := strings.TrimPrefix(e.Target, workspaceDir+"/"); !e.Writable && at != tt.name {
					got = append(got, at)
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// The settings of what runs as a hook are guarded where there is a hook, and no others.
func TestGuardsOfHooks(t *testing.T) {
	for hook, want := range map[string]bool{".git/hooks/pre-commit": true, ".git/hooks/pre-commit.sample": false} {
		dir := guardTree(t, map[string]string{hook: "", ".pre-commit-config.yaml": "", "Makefile": ""})
		p := &Plan{}
		p.profile.Files.Guard = []profiles.GuardEntry{
			{Path: ".git/hooks", Mode: profiles.GuardReadonly, Why: "x"}, {Path: ".pre-commit-config.yaml", Mode: profiles.GuardTell, Why: "x"},
			{Path: "lefthook.yml", Mode: profiles.GuardTell, Why: "x"}, {Path: "Makefile", Mode: profiles.GuardTell, Why: "x"},
		}
		entries, err := p.guards(fsjail.Entry{Kind: fsjail.Bind, Target: workspaceDir, Source: dir, Writable: true})
		var got []string
		for _, e := range entries {
			got = append(got, strings.TrimPrefix(e.Target, workspaceDir+"/"))
		}
		if err != nil || slices.Contains(got, ".pre-commit-config.yaml") != want || slices.Contains(got, "Makefile") || slices.Contains(got, "lefthook.yml") {
			t.Errorf("%s: got %q, %v", hook, got, err)
		}
	}
}

// A path in the configuration may go by a link above the workspace, as of a home that lies elsewhere.
func TestGuardsByALinkAbove(t *testing.T) {
	dir := guardTree(t, map[string]string{"h/pre-commit": ""})
	above := filepath.Join(t.TempDir(), "home")
	if err := os.Symlink(filepath.Dir(dir), above); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	g := &guarding{ws: fsjail.Entry{Source: dir, Target: workspaceDir}, root: root, at: map[string]fsjail.Entry{}}
	if err := g.named(gitValue{"core.hookspath", filepath.Join(above, filepath.Base(dir), "h")}, gitConfig, 0); err != nil {
		t.Fatal(err)
	}
	if e, ok := g.at["h"]; !ok || e.Writable {
		t.Errorf("got %+v", g.at)
	}
}

func TestRisky(t *testing.T) {
	table := []profiles.GuardEntry{{Path: ".git/hooks", Mode: "readonly"}, {Path: "Makefile", Mode: "tell"}, {Path: "*.ws", Mode: "tell"}, {Path: ".off", Mode: "open"}, {Path: ".w/*/c", Mode: "readonly"}}
	for rel, want := range map[string]string{
		"Makefile": "Makefile", "a/b/Makefile": "a/b/Makefile", "Makefile2": "", "a/.git/hooks/x/y": "a/.git/hooks", ".git": "", ".git/config": "", "x.ws": "x.ws",
		".off": "", ".w/a/c/d": ".w/a/c", ".w/c": "", "": "",
		".git/modules/a/b/hooks/x": ".git/modules/a/b/hooks", "x/.git/modules/a/hooks": "x/.git/modules/a/hooks", ".git/modules/hooks/x": "", ".git/modules/a/objects/hook": "", ".git/modules": "",
	} {
		if got, _, ok := Risky(table, rel); got != want || ok != (want != "") {
			t.Errorf("%s: got %q, want %q", rel, got, want)
		}
	}
}

// What can't be made in a workspace, here since a run that lives there has put a link in its way, is an error of the one run that wants
// it, and nothing of it is left.
func TestPlaceholdersThatCantBeMade(t *testing.T) {
	ws, dir := t.TempDir(), t.TempDir()
	if err := os.Symlink("/", filepath.Join(ws, "link")); err != nil {
		t.Fatal(err)
	}
	h, err := holdPlaceholders(dir, []fsjail.Entry{
		{Target: workspaceDir, Source: ws},
		{Target: workspaceDir + "/.envrc", Guard: true, IsFile: true},
		{Target: workspaceDir + "/link/.envrc", Guard: true, IsFile: true},
	})
	if h != nil || err == nil || !strings.Contains(err.Error(), "link/.envrc") {
		t.Errorf("%v, %v, want an error that names link/.envrc", h, err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, placeholdersDir)); len(left) > 0 || err != nil {
		t.Errorf("left: %v, %v", left, err)
	}
	if _, err := os.Lstat(filepath.Join(ws, ".envrc")); err == nil {
		t.Error(".envrc is left")
	}
}

// Without a descriptor to look into the workspace by, what was made there stays on its list, and goes with the next look.
func TestPlaceholdersWithoutDescriptors(t *testing.T) {
	ws, dir := t.TempDir(), t.TempDir()
	hold := func() *placeholders {
		t.Helper()
		h, err := holdPlaceholders(dir, []fsjail.Entry{
			{Target: workspaceDir, Source: ws},
			{Target: workspaceDir + "/.envrc", Guard: true, IsFile: true}, {Target: workspaceDir + "/.vscode", Guard: true},
		})
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	for free := 1; free < 3; free++ { // for the lock alone, and for the workspace too
		h := hold()
		withDescriptors(t, free, func() {
			if err := h.drop(); !errors.Is(err, unix.EMFILE) {
				t.Errorf("%d descriptors: %v, want EMFILE", free, err)
			}
		})
		if err := sweepPlaceholders(dir); err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(ws); len(left) > 0 || err != nil {
			t.Errorf("%d descriptors: left: %v, %v", free, left, err)
		}
	}
}

// withDescriptors has this process have so many descriptors free while it does something.
func withDescriptors(t *testing.T, free int, do func()) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	less := was
	less.Cur = 128
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &less); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Fatal(err)
		}
	}()
	var all []int
	for {
		fd, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.EMFILE) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fd)
	}
	for i, fd := range all {
		if unix.Close(fd); i == free-1 {
			do()
		}
	}
}

// What another run had made may go between a look at it and the next: then it is as if it had never been there.
func TestGuardsOfWhatGoes(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	g := &guarding{root: root, at: map[string]fsjail.Entry{}}
	if err := g.within(".pi", 0); err != nil {
		t.Errorf("a folder that was there: %v", err)
	}
}

func TestRiskyAbove(t *testing.T) {
	table := []profiles.GuardEntry{{Path: ".git/hooks", Mode: "readonly", Why: "w"}, {Path: ".w/*/c", Mode: "readonly"}, {Path: "a/b", Mode: "open"}, {Path: "top", Mode: "tell"}}
	for rel, want := range map[string]bool{".git": true, "x/.git": true, ".git/hooks": false, ".git/x": false, ".w/y": true, "a": false, "top": false, "git": false} {
		if _, got := RiskyAbove(table, rel); got != want {
			t.Errorf("%q: %v, want %v", rel, got, want)
		}
	}
}

// A submodule's own submodules are guarded as it is, and no number of them makes a start wait.
func TestGuardsOfSubmodules(t *testing.T) {
	tree := map[string]string{
		".gitmodules": "[submodule \"a\"]\n\tpath = libs/a\n[submodule \"b\"]\n\tpath = b\n[submodule \"out\"]\n\tpath = ../out\n[submodule \"new\"]\n\tpath = new\n",
		"libs/a/.git": "gitdir: ../../.git/modules/a", "b/.git/HEAD": "", "new/x": "", "libs/a/.gitmodules": "[submodule \"c\"]\n\tpath = c\n", "libs/a/c/.git": "x",
	}
	p := &Plan{}
	p.profile.Files.Guard = []profiles.GuardEntry{{Path: ".git/config", Mode: profiles.GuardReadonly, Why: "x"}}
	guards := func() (got []string, err error) {
		entries, err := p.guards(fsjail.Entry{Kind: fsjail.Bind, Target: workspaceDir, Source: guardTree(t, tree), Writable: true})
		for _, e := range entries {
			if !e.Writable {
				got = append(got, strings.TrimPrefix(e.Target, workspaceDir+"/"))
			}
		}
		return got, err
	}
	if got, err := guards(); err != nil || !slices.Equal(got, []string{".git", "b/.git/config", "libs/a/.git", "libs/a/c/.git"}) {
		t.Errorf("got %q, %v", got, err)
	}
	tree["libs/a/.gitmodules"] = strings.Repeat("\tpath = none\n", maxGitConfig/13)
	if got, err := guards(); err == nil {
		t.Errorf("got %q of what takes long to read", got)
	}
}
