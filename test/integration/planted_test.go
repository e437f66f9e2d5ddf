// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/hostcaps"
	"agentrun/rings"
	"agentrun/runtime"
)

// What the agent leaves in its workspace for the host to run (docs/protected-paths.md): each row is what it does inside, and what
// the host does later. A payload that is run on the host makes a file that no sandbox can see.

// plant is one attack. In both scripts $M is the file that must not come into being, in inside's payloads too.
type plant struct {
	name   string
	inside string // sh, in the workspace
	host   string // sh, in the workspace
}

// git is the host's, run by somebody who trusts the folder.
const hostGit = "git -c user.name=h -c user.email=h@h"

// onCommit is what most hosts do next.
const onCommit = hostGit + " commit -q --allow-empty -m later; " + hostGit + " status"

// Programs that aren't here are simulated by what they do with the file: an editor that runs a task when a folder is opened, an agent
// that starts its tool servers and runs its hooks, direnv that was allowed, a runner that takes workflows.
const (
	editor     = `python3 -c 'import json,subprocess; [subprocess.run(t["command"],shell=True) for t in json.load(open(".vscode/tasks.json"))["tasks"]]'`
	hostAgent  = `python3 -c 'import json,subprocess; [subprocess.run(h["command"],shell=True) for h in json.load(open(".claude/settings.json"))["hooks"]]'`
	servers    = `python3 -c 'import json,subprocess; [subprocess.run([s["command"]]) for s in json.load(open(".mcp.json"))["mcpServers"].values()]'`
	container  = `python3 -c 'import json,subprocess; subprocess.run(json.load(open(".devcontainer.json"))["initializeCommand"],shell=True)'`
	direnv     = `[ -f .envrc ] && sh ./.envrc`
	yarn       = `sh "$(sed -n 's/^yarnPath: //p' .yarnrc.yml)"`
	asdf       = `v=$(sed -n 's/^nodejs path://p' .tool-versions); [ -z "$v" ] || sh "$v/x"`
	mise       = `sh -c "$(sed -n 's/^enter = //p' mise.toml)"`
	hg         = `sh -c "$(sed -n 's/^pre-status = //p' .hg/hgrc)"`
	toolServer = `sh "$(sed -n 's/.*"command":"\([^"]*\)".*/\1/p' .gemini/settings.json)"`
	runner     = `[ -f .github/workflows/x.yml ] && sh .github/workflows/x.yml`
)

// payload is a program that leaves the mark.
const payload = `mkdir -p p; printf '#!/bin/sh\ntouch %s\ncat\n' "$M" > p/x; chmod 755 p/x; `

var plants = []plant{
	{"a hook", payload + `cp p/x .git/hooks/post-commit`, onCommit},
	{"a hook, by an open folder", payload + `exec 3<.git; cp p/x /proc/self/fd/3/hooks/post-commit`, onCommit},
	{"hooks moved away", payload + `mv .git/hooks .git/h2; mkdir .git/hooks; cp p/x .git/hooks/post-commit`, onCommit},
	{"hooks exchanged", payload + `mkdir p/h; cp p/x p/h/post-commit
python3 -c 'import ctypes; ctypes.CDLL(None).syscall(316, -100, b".git/hooks", -100, b"p/h", 2)'`, onCommit},
	{".git moved away", payload + `mv .git g2 && cp -r g2 .git && cp p/x .git/hooks/post-commit`, onCommit},
	{".git exchanged", payload + `cp -r .git p/g; cp p/x p/g/hooks/post-commit
python3 -c 'import ctypes; ctypes.CDLL(None).syscall(316, -100, b".git", -100, b"p/g", 2)'`, onCommit},
	{"unmounted", payload + `umount -l .git/hooks; unshare -Urm umount -l .git/hooks; cp p/x .git/hooks/post-commit`, onCommit},
	{"core.hooksPath", payload + `cp p/x p/post-commit; git config core.hooksPath p`, onCommit},
	{"core.fsmonitor, appended", payload + `printf '[core]\n\tfsmonitor = p/x\n' >> .git/config`, onCommit},
	{"the configuration replaced", payload + `(cat .git/config; printf '[core]\n\tfsmonitor = p/x\n') > .git/config.lock; mv -f .git/config.lock .git/config`, onCommit},
	{"the configuration a link", payload + `(cat .git/config; printf '[core]\n\tfsmonitor = p/x\n') > p/c; ln -sf ../p/c .git/config`, onCommit},
	{"the configuration, by a hard link", payload + `ln .git/config p/c && printf '[core]\n\tfsmonitor = p/x\n' >> p/c`, onCommit},
	{"an included configuration", payload + `rm -f shared.cfg; printf '[core]\n\tfsmonitor = p/x\n' > shared.cfg`, onCommit},
	{"an included configuration that was missing", payload + `printf '[core]\n\tfsmonitor = p/x\n' > later.cfg`, onCommit},
	{"commondir", payload + `cp -r .git p/g; cp p/x p/g/hooks/post-commit; printf '../p/g\n' > .git/commondir`, onCommit},
	{"the configuration of the worktree", payload + `printf '[core]\n\tfsmonitor = p/x\n' > .git/config.worktree`, hostGit + " config extensions.worktreeConfig true; " + onCommit},
	{"a filter's program", payload + `cp p/x tools/clean; rm -f tools/clean; cp p/x tools/clean`, "echo more >> file.dat; " + hostGit + " add file.dat; " + onCommit},
	{"a program that the worktree's configuration names", payload + `cp p/x side/clean; mv side s3; mkdir side; cp p/x side/clean`, "echo more >> file.wt; " + hostGit + " add file.wt"},
	{"a program below what git says is the top", payload + `cp p/x tools/top`, "echo more >> file.top; " + hostGit + " diff -- file.top"},
	{"what a hook's settings name", payload + `echo "touch $M" > .pre-commit-config.yaml`, "sh .pre-commit-config.yaml"},
	{"the program of a tool server that was there", payload + `cp p/x tools/serve.sh; mv tools t3; mkdir tools; cp p/x tools/serve.sh`, toolServer},
	{"a filter's program, its folder moved", payload + `mv tools t2; mkdir tools; cp p/x tools/clean`, "echo more >> file.dat; " + hostGit + " add file.dat"},
	{"what a hook is a link to", payload + `cp p/x scripts/pre-commit; mv scripts s2; mkdir scripts; cp p/x scripts/pre-commit`, onCommit},
	{"husky", payload + `mkdir .husky; cp p/x .husky/post-commit`, strings.ReplaceAll(onCommit, "-c user.name", "-c core.hooksPath=.husky -c user.name")},
	{"direnv, a new file", payload + `echo "touch $M" > .envrc`, direnv},
	{"direnv, a link", payload + `ln -s p/x .envrc`, direnv},
	{"asdf's versions", payload + `mkdir q; cp p/x q/x; echo "nodejs path:$W/q" > .tool-versions`, asdf},
	{"mise's hooks, trusted before", payload + `rm -f mise.toml; printf '[hooks]\nenter = touch %s\n' "$M" > mise.toml`, mise},
	{"what yarn hands over to", payload + `cp p/x .yarn/releases/yarn.cjs; mv .yarn y2; mkdir -p .yarn/releases; cp p/x .yarn/releases/yarn.cjs`, yarn},
	{"npm's shell", payload + `echo "script-shell=$W/p/x" > .npmrc`, "npm run hello"},
	{"an editor's task, changed", payload + `rm -f .vscode/tasks.json; printf '{"tasks":[{"command":"touch %s"}]}' "$M" > .vscode/tasks.json`, editor},
	{"an editor's task, its folder made anew", payload + `rm -rf .vscode; mv .vscode v2; mkdir .vscode; printf '{"tasks":[{"command":"touch %s"}]}' "$M" > .vscode/tasks.json`, editor},
	{"an agent's hook", payload + `mkdir .claude; printf '{"hooks":[{"command":"touch %s"}]}' "$M" > .claude/settings.json`, hostAgent},
	{"an agent's settings, a link", payload + `mkdir p/c; printf '{"hooks":[{"command":"touch %s"}]}' "$M" > p/c/settings.json; ln -s p/c .claude`, hostAgent},
	{"a tool server", payload + `printf '{"mcpServers":{"x":{"command":"%s/p/x"}}}' "$W" > .mcp.json`, servers},
	{"a dev container's command", payload + `printf '{"initializeCommand":"touch %s"}' "$M" > .devcontainer.json`, container},
	{"a workflow", payload + `mkdir -p .github/workflows; echo "touch $M" > .github/workflows/x.yml`, runner},
	{"Mercurial's hooks", payload + `printf '[hooks]\npre-status = touch %s\n' "$M" > .hg/hgrc; mv .hg .h2; mkdir -p .hg; printf '[hooks]\npre-status = touch %s\n' "$M" > .hg/hgrc`, hg},
	{"another repository in a submodule's folder", payload + `mkdir -p q; cp p/x q/evil; cp -r .git/modules/libs/sub .git/objects/evil; sed -i '/worktree/d' .git/objects/evil/config
printf '[core]\n\tfsmonitor = %s/q/evil\n' "$W" >> .git/objects/evil/config; printf 'gitdir: ../../.git/objects/evil\n' > p/file
cp p/file libs/sub/.git; mv -f p/file libs/sub/.git; mv libs l2 && cp -r l2 libs && mv -f p/file libs/sub/.git`, hostGit + " status"},
	{"a submodule's configuration", payload + `printf '[core]\n\tfsmonitor = %s/p/x\n' "$W" >> .git/modules/libs/sub/config`, hostGit + " status"},
	{"a submodule's hook", payload + `cp p/x .git/modules/libs/sub/hooks/post-commit`, hostGit + " -C libs/sub commit -q --allow-empty -m later"},
	{"a submodule's repository, moved away", payload + `: > .git/modules/HEAD; mv .git/modules/libs p/l && cp -r p/l .git/modules/libs
printf '[core]\n\tfsmonitor = %s/p/x\n' "$W" >> .git/modules/libs/sub/config`, hostGit + " status"},
	{"a linked worktree's commondir", payload + `cp -r .git p/g; (cat .git/config; printf '[core]\n\tfsmonitor = %s/p/x\n' "$W") > p/g/config
rm -f .git/worktrees/linked/commondir; printf '../../../p/g\n' > .git/worktrees/linked/commondir`, hostGit + ` -C "$L" status`},
}

// plantedRepository is what a host works in: a repository with a linked worktree, a submodule, a filter, an include, a hook that is a link.
func plantedRepository(t *testing.T, ws string) (linked string) {
	t.Helper()
	linked = filepath.Join(t.TempDir(), "linked")
	write(t, filepath.Join(ws, "tools/clean"), "#!/bin/sh\ncat\n", 0o755)
	write(t, filepath.Join(ws, "scripts/pre-commit"), "#!/bin/sh\nexit 0\n", 0o755)
	write(t, filepath.Join(ws, ".vscode/tasks.json"), `{"tasks":[]}`, 0o644)
	write(t, filepath.Join(ws, "package.json"), `{"name":"x","version":"1.0.0","scripts":{"hello":"echo hello"}}`, 0o644)
	write(t, filepath.Join(ws, "mise.toml"), "[tools]\n", 0o644)
	write(t, filepath.Join(ws, ".yarnrc.yml"), "yarnPath: .yarn/releases/yarn.cjs\n", 0o644)
	write(t, filepath.Join(ws, ".yarn/releases/yarn.cjs"), "true\n", 0o644)
	write(t, filepath.Join(ws, ".hg/requires"), "share-safe\n", 0o644)
	write(t, filepath.Join(ws, "tools/top"), "#!/bin/sh\ncat \"$1\"\n", 0o755)
	write(t, filepath.Join(ws, "tools/serve.sh"), "true\n", 0o644)
	write(t, filepath.Join(ws, ".gemini/settings.json"), `{"mcpServers":{"x":{"command":"tools/serve.sh"}}}`, 0o644)
	write(t, filepath.Join(ws, ".pre-commit-config.yaml"), "true\n", 0o644)
	write(t, filepath.Join(ws, "side/clean"), "#!/bin/sh\ncat\n", 0o755)
	write(t, filepath.Join(ws, ".gitattributes"), "*.dat filter=tidy\n*.wt filter=side\n*.top diff=top\n", 0o644)
	write(t, filepath.Join(ws, "shared.cfg"), "[alias]\n\tlast = log -1\n", 0o644)
	host(t, ws, "", `git init -q . && git config filter.tidy.clean tools/clean && git config include.path ../shared.cfg &&
git config --add include.path ../later.cfg && git config diff.top.textconv '"$(git rev-parse --show-toplevel)"/tools/top' && echo 1 > file.top && ln -s ../../scripts/pre-commit .git/hooks/pre-commit && echo 1 > file.dat &&
git config extensions.worktreeConfig true && git config --worktree filter.side.clean side/clean && echo 1 > file.wt &&
git init -q "$L.sub" && `+hostGit+` -C "$L.sub" commit -q --allow-empty -m sub && git -c protocol.file.allow=always submodule -q add "$L.sub" libs/sub &&
`+hostGit+` add -A && `+hostGit+` commit -q -m first && `+hostGit+` worktree add -q "$L"`, "L="+linked)
	owned(t, ws)
	return linked
}

// owned gives all of a folder to its owner.
func owned(t *testing.T, ws string) {
	t.Helper()
	info, err := os.Stat(ws)
	if err != nil {
		t.Fatal(err)
	}
	st := info.Sys().(*unixStat)
	if err := filepath.WalkDir(ws, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(st.Uid), int(st.Gid))
	}); err != nil {
		t.Fatal(err)
	}
}

// host runs a script as the host would, and returns what it printed. Without a mark it must succeed.
func host(t *testing.T, dir, mark, script string, env ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang())
	defer cancel()
	home := t.TempDir()
	write(t, filepath.Join(home, ".gitconfig"), "[safe]\n\tdirectory = *\n", 0o644)
	cmd := exec.CommandContext(ctx, "sh", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), append(env, "M="+mark, "HOME="+home, "GIT_CONFIG_NOSYSTEM=1", "npm_config_update_notifier=false")...)
	out, err := cmd.CombinedOutput()
	if err != nil && mark == "" {
		t.Fatalf("on the host: %v\n%s\n%s", err, script, out)
	}
	return string(out)
}

// script is what the agent does, in a shell of its own.
func (p plant) script(workspace, ws, mark string) string {
	return fmt.Sprintf("( cd %s; M=%s; W=%s; export M W; %s\n) 2>&1\n", workspace, mark, ws, p.inside)
}

// TestPlantedFiles has an agent try every row in one workspace, then works there as the host would: nothing of the agent's is run. Done
// by a program that no sandbox holds, in a copy for each, nearly all of them take: so the rows are attacks.
func TestPlantedFiles(t *testing.T) {
	needSandbox(t)
	needProgram(t, "git", "python3")
	for _, by := range []string{"root", "rootless"} {
		t.Run(by, func(t *testing.T) {
			o, ws := opts{profile: "ring2", flags: []string{"--no-gateway"}}, ""
			if by == "rootless" {
				o.user = someone(t)
				ws = o.user.workspace(t)
			} else {
				ws = workspace(t)
			}
			linked := plantedRepository(t, ws)
			o.flags = append(o.flags, "--workspace", ws)
			marks := t.TempDir()
			script := ""
			for i, p := range plants {
				script += p.script("/workspace", ws, filepath.Join(marks, itoa(i)))
			}
			r := run(t, o, "sh", "-c", script+"exit 0")
			if r.exit != 0 {
				t.Fatalf("exit %d: %s", r.exit, r.stderr)
			}
			for _, script := range hostScripts() {
				host(t, ws, marks, script, "L="+linked)
			}
			for i, p := range plants {
				if _, err := os.Lstat(filepath.Join(marks, itoa(i))); err == nil {
					t.Errorf("%s: the host has run what the agent left", p.name)
				}
			}
			if got := host(t, ws, "", hostGit+" log --format=%s"); !strings.Contains(got, "later") {
				t.Errorf("the host's commits came to nothing: %s\ninside: %.3000s", got, r.stdout)
			}
		})
	}
	t.Run("unguarded", func(t *testing.T) {
		taken, template := 0, workspace(t)
		linked := plantedRepository(t, template)
		for _, p := range plants {
			if strings.HasPrefix(p.host, "npm") && sandboxProgram("npm") == "" {
				continue
			}
			ws := template
			if !strings.Contains(p.host, "$L") { // that one is of the template's, and the last
				ws = filepath.Join(t.TempDir(), "copy")
				host(t, template, "", "cp -a . "+ws)
			}
			mark := filepath.Join(t.TempDir(), "mark")
			host(t, ws, mark, p.script(ws, ws, mark))
			out := host(t, ws, mark, p.host, "L="+linked)
			if _, err := os.Lstat(mark); err == nil {
				taken++
			} else {
				t.Logf("%s takes nowhere: %s", p.name, out)
			}
		}
		if taken < 20 {
			t.Errorf("%d rows take where nothing is guarded, want 20 at least", taken)
		}
	})
}

// A repository that .git names in a file, and that lies in the workspace under another name, is guarded as .git is.
func TestPlantedInASeparateRepository(t *testing.T) {
	needSandbox(t)
	needProgram(t, "git")
	for _, by := range []string{"root", "rootless"} {
		for name, make := range map[string]string{
			"separate": "git init -q --separate-git-dir=.repo .",
			"worktree of a bare one": "git init -q --bare .repo && " + hostGit + " -C .repo commit-tree -m x $(git -C .repo hash-object -t tree -w /dev/null) > .c && " +
				"git -C .repo update-ref HEAD $(cat .c) && git -C .repo worktree add -q ../w && mv w/.git .git && echo $PWD/.git > .repo/worktrees/w/gitdir && rm -r w",
		} {
			t.Run(by+"/"+name, func(t *testing.T) {
				o, ws := opts{profile: "ring2", flags: []string{"--no-gateway"}}, ""
				if by == "rootless" {
					o.user = someone(t)
					ws = o.user.workspace(t)
				} else {
					ws = workspace(t)
				}
				host(t, ws, "", make+` && sed -i "s|$PWD/||" .git && `+hostGit+" commit -q --allow-empty -m first && git config core.pager tools/pager")
				write(t, filepath.Join(ws, "tools/pager"), "#!/bin/sh\ncat\n", 0o755)
				owned(t, ws)
				before := names(t, ws)
				mark := filepath.Join(t.TempDir(), "mark")
				o.flags = append(o.flags, "--workspace", ws)
				r := run(t, o, "sh", "-c", fmt.Sprintf(`M=%s; `, mark)+payload+`printf '[core]\n\tfsmonitor = p/x\n' >> .repo/config; cp p/x .repo/hooks/post-commit; cp p/x tools/pager
for w in .repo/worktrees/*/; do printf '/workspace/p\n' > $w/commondir; printf '[core]\n\tfsmonitor = p/x\n' > $w/config.worktree; done
mv .repo r2 && cp -r r2 .repo && cp p/x .repo/hooks/post-commit; rm -rf p; `+hostGit+` commit -q --allow-empty -m inside; exit 0`)
				if r.exit != 0 || strings.TrimSpace(host(t, ws, "", hostGit+" log -1 --format=%s")) != "inside" {
					t.Errorf("exit %d: %s%s", r.exit, r.stdout, r.stderr)
				}
				host(t, ws, mark, onCommit+"; git --paginate log")
				if _, err := os.Lstat(mark); err == nil {
					t.Error("the host has run what the agent left")
				}
				for _, n := range names(t, ws) {
					if !slices.Contains(before, n) && !strings.HasPrefix(n, ".repo/") || strings.HasSuffix(n, "commondir") && !slices.Contains(before, n) {
						t.Errorf("%s stayed in the workspace", n)
					}
				}
			})
		}
	}
}

// A workspace without a repository isn't one after a run: where the agent has made it one, .git stays, and leads nowhere.
func TestWorkspaceBecomesNoRepository(t *testing.T) {
	needSandbox(t)
	needProgram(t, "git")
	ws, mark := workspace(t), filepath.Join(t.TempDir(), "mark")
	o := opts{profile: "ring2", flags: []string{"--no-gateway", "--workspace", ws}}
	bare := fmt.Sprintf("M=%s; W=%s; %s", mark, ws, payload) + `mkdir -p objects refs; echo 'ref: refs/heads/x' > HEAD; printf '[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = %s\n\tfsmonitor = %s/p/x\n' "$W" "$W" > config`
	r := run(t, o, "sh", "-ec", bare)
	r.want(t, 0, "exited")
	host(t, ws, mark, "git status")
	if _, err := os.Lstat(mark); err == nil || !slices.Contains(r.status.RiskyFiles, "HEAD") {
		t.Errorf("the host has run what the agent left (%v), told %q", err == nil, r.status.RiskyFiles)
	}
	if got := readFile(t, filepath.Join(ws, ".git")); got != "gitdir: .git/none\n" {
		t.Errorf(".git is %q", got)
	}
	if err := os.Remove(filepath.Join(ws, ".git")); err != nil { // so it is an attack
		t.Fatal(err)
	}
	if host(t, ws, mark, "git status"); os.Remove(mark) != nil {
		t.Error("it takes nowhere where .git is gone")
	}
	before := names(t, ws) // a repository of the host's, by now
	run(t, o, "true").want(t, 0, "exited")
	if got := names(t, ws); !slices.Equal(got, before) {
		t.Errorf("left %q, before %q", got, before)
	}
}

// hostScripts are what the host does, each once.
func hostScripts() (list []string) {
	for _, p := range plants {
		if !slices.Contains(list, p.host) {
			list = append(list, p.host)
		}
	}
	return list
}

// TestGuardedWorkspaceWorks: commits, branches, builds and new files, and nothing of the placeholders stays; what was there already
// is as it was.
func TestGuardedWorkspaceWorks(t *testing.T) {
	needSandbox(t)
	needProgram(t, "git")
	for _, by := range []string{"root", "rootless"} {
		t.Run(by, func(t *testing.T) {
			o, ws := opts{profile: "ring2"}, ""
			if by == "rootless" {
				o.user = someone(t)
				ws = o.user.workspace(t)
			} else {
				ws = workspace(t)
			}
			plantedRepository(t, ws)
			before := names(t, ws)
			o.flags = []string{"--no-gateway", "--workspace", ws}
			r := run(t, o, "sh", "-ec", `
git='git -c user.name=a -c user.email=a@a'
echo new > new; $git add -A; $git commit -q -m two; $git checkout -q -b other; echo more >> new; $git commit -q -am three
$git stash list; $git checkout -q -; $git merge -q other; $git rebase -q HEAD~1; $git tag t; $git gc -q; $git status --porcelain; $git log --oneline | wc -l
git status --porcelain | head -1`)
			if r.exit != 0 || strings.TrimSpace(r.stdout) != "3" {
				t.Errorf("exit %d: %q\n%s", r.exit, r.stdout, r.stderr)
			}
			for _, n := range names(t, ws) {
				if !slices.Contains(before, n) && n != "new" && !strings.HasPrefix(n, ".git/") {
					t.Errorf("%s stayed in the workspace", n)
				}
			}
			for _, n := range []string{".git/commondir", ".git/config.worktree", ".git/info/attributes", ".claude", ".envrc"} {
				if _, err := os.Lstat(filepath.Join(ws, n)); err == nil && !slices.Contains(before, n) {
					t.Errorf("%s stayed in the workspace", n)
				}
			}
		})
	}
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, path)
		all = append(all, rel)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Two runs of one workspace: the end of the first takes nothing from the second, and the last one leaves nothing. A supervisor that is
// killed leaves placeholders, and the next call removes them.
func TestPlaceholdersAreShared(t *testing.T) {
	needSandbox(t)
	ws := workspace(t)
	o := opts{profile: "ring2", flags: []string{"--no-gateway", "--workspace", ws}}
	long := prepare(t, o, "sh", "-c", `echo up; while [ ! -e /workspace/go ]; do sleep 0.05; done; mkdir .claude; echo x > .claude/x; mv .claude c2; echo $?; exit 0`)
	long.startUntil(t, "up")
	if r := run(t, o, "true"); r.exit != 0 {
		t.Fatal(r.stderr)
	}
	if _, err := os.Stat(filepath.Join(ws, ".claude")); err != nil {
		t.Errorf("the first run's end took the placeholder of the second: %v", err)
	}
	write(t, filepath.Join(ws, "go"), "", 0o644)
	r := long.finish(t)
	if !strings.HasSuffix(r.stdout, "1\n") {
		t.Errorf("got %q: %s", r.stdout, r.stderr)
	}
	if left := names(t, ws); !slices.Equal(left, []string{".", "go"}) {
		t.Errorf("left: %v", left)
	}
	crash := prepare(t, o, "sh", "-c", "echo up; sleep 60")
	crash.startUntil(t, "up")
	crash.Process.Kill()
	crash.Wait()
	if _, err := os.Stat(filepath.Join(ws, ".claude")); err != nil {
		t.Fatalf("no placeholder is there to be removed: %v", err)
	}
	eventually(t, 10*time.Second, "the placeholders are gone", func() bool {
		tool(t, "gc")
		return slices.Equal(names(t, ws), []string{".", "go"})
	})
}

// An elevation that opens a workspace guards it first; until then nothing is made in it, and after the demotion it holds.
func TestElevationGuardsTheWorkspace(t *testing.T) {
	a := startAlive(t, aliveOpts{profile: "ring3"})
	write(t, a.file(".vscode/tasks.json"), "{}", 0o666)
	write(t, a.file(".git/config"), "", 0o666)
	if _, err := os.Lstat(a.file(".claude")); err == nil {
		t.Error("a placeholder in a workspace that is read-only")
	}
	for range 2 {
		a.applied(rings.Standard)
		a.expect("ok", "create /workspace/at", "unlink /workspace/at")
		for words, want := range map[string]string{
			"mkdir /workspace/.claude/x": "errno=EROFS", "create /workspace/.vscode/x": "errno=EROFS", "write /workspace/.vscode/tasks.json x": "errno=EROFS",
			"rename /workspace/.vscode /workspace/v": "errno=EBUSY", "rename /workspace/.claude /workspace/c": "errno=EBUSY",
		} {
			if got := a.try("%s", words); got != want {
				t.Errorf("%s: %s, want %s", words, got, want)
			}
		}
		a.try("mkdir /workspace/sub")
		a.try("mkdir /workspace/sub/.claude")
		a.expect("ok", "create /workspace/sub/.claude/x", "create /workspace/.git/x")
		a.applied(rings.Sandbox)
		a.expect("errno=EROFS", "create /workspace/at")
	}
	if s := a.quit(); !slices.Equal(s.RiskyFiles, []string{"sub/.claude"}) {
		t.Errorf("told %q of what was left while it was open", s.RiskyFiles)
	}
	if _, err := os.Lstat(a.file(".claude")); err == nil {
		t.Error("the placeholder stayed")
	}
}

// A folder or file that was open before an elevation guards it leads beneath the guards, and keeps the workspace closed; what leads nowhere
// doesn't.
func TestElevationMeetsWhatIsOpen(t *testing.T) {
	for _, tt := range []struct {
		name string
		open []string // the last one's number is put into the next
		try  string
		want string // of the try, where the workspace is opened
	}{
		{"a folder above a guarded one", []string{"keep /workspace/.git"}, "create /proc/self/fd/%s/hooks/post-commit", ""},
		{"a guarded folder", []string{"keep /workspace/.git/hooks"}, "create /proc/self/fd/%s/post-commit", ""},
		{"a guarded file", []string{"keep /workspace/.git/config"}, "write /proc/self/fd/%s x", ""},
		{"a working folder beside it", []string{"chdir /workspace/.git/objects"}, "create ../hooks/post-commit", ""},
		{"a folder in a socket", []string{"keep /workspace/.git", "send %s"}, "create /workspace/.git/hooks/post-commit", ""},
		{"a folder that is nobody's", []string{"keep /workspace/src", "chdir /workspace/src"}, "create ../.git/hooks/post-commit", "errno=EROFS"},
		{"a file beside guarded ones", []string{"keep /workspace/.git/HEAD"}, "write /proc/self/fd/%s x", "ok"},
		// Behind it /proc/self/exe, opened as a place only, is written when another program runs in its place.
		{"a program that is guarded", nil, "write /proc/self/exe x", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var ws string
			a := startAlive(t, aliveOpts{profile: "ring3", change: func(s *runtime.Spec) {
				ws = s.Workspace
				for name, text := range map[string]string{".git/config": "[core]\n", ".git/HEAD": "ref: refs/heads/main\n", ".git/hooks/x": "", ".git/objects/x": "", "src/x": ""} {
					write(t, filepath.Join(ws, name), text, 0o666)
				}
				if tt.open == nil {
					program, err := os.ReadFile(probeBin)
					if err != nil {
						t.Fatal(err)
					}
					write(t, filepath.Join(ws, ".git/hooks/x"), string(program), 0o755)
					s.Command[0] = "/workspace/.git/hooks/x"
				}
			}})
			number := ""
			for _, words := range append(slices.Clone(tt.open), tt.try) {
				if words == tt.try {
					if e := a.turn(rings.Standard); (e.Kind == runtime.LiveRing) != (tt.want != "") {
						t.Errorf("got %+v", e)
					}
				}
				got := a.try("%s", strings.ReplaceAll(words, "%s", number))
				number = strings.TrimPrefix(got, "value=")
				if words == tt.try && (got == "ok") != (tt.want == "ok") {
					t.Errorf("%s: %s", words, got)
				}
			}
			if tt.want != "ok" {
				a.expect("errno=EROFS", "create /workspace/.git/hooks/y")
			}
			if _, err := os.Lstat(filepath.Join(ws, ".git/hooks/post-commit")); err == nil {
				t.Error("a hook was planted")
			}
			if b, _ := os.ReadFile(filepath.Join(ws, ".git/config")); string(b) != "[core]\n" {
				t.Errorf("the configuration is %q", b)
			}
			a.quit()
		})
	}
}

// What stands for missing files is in nobody's way: git says that there is no repository, Go builds without looking for a version, and the
// settings of package managers, which end over a folder, read as empty files. git lists none of them.
func TestPlaceholdersAreNotInTheWay(t *testing.T) {
	needSandbox(t)
	needProgram(t, "git")
	for _, by := range []string{"root", "rootless"} {
		t.Run(by, func(t *testing.T) {
			o, ws := opts{profile: "ring2"}, ""
			if by == "rootless" {
				o.user = someone(t)
				ws = o.user.workspace(t)
			} else {
				ws = workspace(t)
			}
			write(t, filepath.Join(ws, "main.go"), "package main\n\nfunc main() { println(\"built\") }\n", 0o644)
			write(t, filepath.Join(ws, "go.mod"), "module m\n", 0o644)
			owned(t, ws)
			before := names(t, ws)
			o.flags = []string{"--no-gateway", "--workspace", ws}
			if by == "root" {
				o.flags = append(o.flags, "--env", "PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/go/bin")
			}
			r := run(t, o, "sh", "-c", `export GOCACHE=/tmp/go GOFLAGS=-mod=mod GOTOOLCHAIN=local
git status; cat .npmrc .yarnrc .yarnrc.yml .pnpmfile.cjs .envrc && echo empty; for f in .npmrc .envrc; do echo x > $f; rm -f $f; cat $f; done
ln -s /tmp/x .yarnrc.yml; mv main.go .yarnrc 2>/dev/null || echo held; mkdir /tmp/r && cp -a . /tmp/r 2>/dev/null; ! command -v go >/dev/null || { go build -o /tmp/m . && /tmp/m; }
git init -q /tmp/q; cd /tmp/q; git --work-tree=/workspace status --porcelain | sort`)
			r.want(t, 0, "exited")
			if !strings.Contains(r.stderr, "not a git repository") || r.stdout != "empty\nheld\n?? go.mod\n?? main.go\n" && r.stdout != "empty\nheld\n?? .git\n?? go.mod\n?? main.go\n" {
				t.Errorf("got %q\n%s", r.stdout, r.stderr)
			}
			if hasGo() && by == "root" && !strings.Contains(r.stderr, "built\n") {
				t.Errorf("go build: %s", r.stderr)
			}
			if got := names(t, ws); !slices.Equal(got, before) {
				t.Errorf("left %q, before %q", got, before)
			}
		})
	}
}

// What can't be guarded is told: risky files that the agent changed, at any depth.
func TestRiskyFilesAreTold(t *testing.T) {
	needSandbox(t)
	ws := workspace(t)
	write(t, filepath.Join(ws, "Makefile"), "all:\n", 0o644)
	write(t, filepath.Join(ws, "old/package.json"), "{}", 0o644)
	owned(t, ws)
	r := run(t, opts{profile: "ring2", flags: []string{"--no-gateway", "--workspace", ws}}, "sh", "-c",
		`sleep 0.1; echo x >> Makefile; echo x > makefile; echo x > old/docker-compose.yml; mkdir -p sub/.git/hooks sub/.git/logs sub/.claude node_modules/x; ln -s /root/.bashrc sub/.git/logs/HEAD; echo x > sub/.git/logs/x; echo x > sub/.git/hooks/pre-commit; echo x > sub/.claude/s; echo > node_modules/x/package.json; echo > plain; mkdir .hg; echo > .hg/hgrc; mkdir s2 s3; echo gitdir: ../x > s2/.git; ln -s ../x s3/.git`)
	if want := []string{".hg/hgrc", "Makefile", "makefile", "old/docker-compose.yml", "s2/.git", "s3/.git", "sub/.claude", "sub/.git/hooks", "sub/.git/logs/HEAD"}; !slices.Equal(sorted(r.status.RiskyFiles), want) {
		t.Errorf("told %q, want %q\n%s", r.status.RiskyFiles, want, r.stderr)
	}
	if r.status.FilesChanged != 8 { // Makefile, makefile, old/docker-compose.yml, sub/.claude/s, plain, .hg/hgrc, s2/.git, s3/.git
		t.Errorf("%d files changed, want 8", r.status.FilesChanged)
	}
}

// Nothing of it goes untold for lying in what was installed, too deep, or under another name until a later run.
func TestRiskyFilesAreNotHidden(t *testing.T) {
	needSandbox(t)
	ws := workspace(t)
	o := opts{profile: "ring2", flags: []string{"--no-gateway", "--workspace", ws}}
	in := func(script string) result {
		r := run(t, o, "sh", "-ec", script)
		r.want(t, 0, "exited")
		return r
	}
	r := in(`mkdir -p vendor/x/git/hooks node_modules/@s/y/.git; echo > vendor/x/git/config; echo > vendor/x/git/hooks/h; echo > node_modules/@s/y/.git/config; echo > node_modules/@s/y/Makefile`)
	if want := []string{"node_modules/@s/y/.git/config"}; !slices.Equal(r.status.RiskyFiles, want) || r.status.RiskyMore {
		t.Errorf("told %q, %v, want %q", r.status.RiskyFiles, r.status.RiskyMore, want)
	}
	r = in(`mv vendor/x/git vendor/x/.git; echo > plain`)
	if want := []string{"vendor/x/.git/config", "vendor/x/.git/hooks"}; !slices.Equal(sorted(r.status.RiskyFiles), want) || r.status.RiskyMore {
		t.Errorf("told %q, %v, want %q", r.status.RiskyFiles, r.status.RiskyMore, want)
	}
	if r = in(`echo > plain2; mkdir -p x/.kiro .gitea/workflows; echo > x/.kiro/s; echo > .gitea/workflows/w; echo > .travis.yml`); !slices.Equal(sorted(r.status.RiskyFiles), []string{".gitea/workflows", ".travis.yml", "x/.kiro"}) {
		t.Errorf("told %q", r.status.RiskyFiles)
	}
	if r = in(`echo > plain3`); len(r.status.RiskyFiles) > 0 || r.status.RiskyMore {
		t.Errorf("told %q, %v of a run that changed nothing of it", r.status.RiskyFiles, r.status.RiskyMore)
	}
	if r = in(`d=deep; for i in $(seq 70); do d=$d/d; done; mkdir -p $d/.git; echo > $d/.git/config`); !r.status.RiskyMore {
		t.Errorf("told %q, and that it is all", r.status.RiskyFiles)
	}
}

func sorted(list []string) []string {
	slices.Sort(list)
	return list
}

// A sandbox that was ready gets the workspace and what is guarded in it when it is handed out.
func TestPoolGuardsTheWorkspace(t *testing.T) {
	n := startDaemon(t)
	var ids []string
	for i := range 2 {
		c := n.plain(t, opts{profile: "ring2"}, "mkdir /workspace/.claude/x", "rename /workspace/.claude /workspace/c", "write /workspace/.vscode/tasks.json x",
			"rename /workspace/.vscode /workspace/v", "create /workspace/new")
		ws := c.Args[slices.Index(c.Args, "--workspace")+1]
		write(t, filepath.Join(ws, ".vscode/tasks.json"), "{}", 0o644)
		owned(t, ws)
		r := c.do(t)
		got := answers(r.stdout)
		for words, want := range map[string]string{
			"mkdir /workspace/.claude/x": "EROFS", "rename /workspace/.claude /workspace/c": "EBUSY", "write /workspace/.vscode/tasks.json x": "EROFS",
			"rename /workspace/.vscode /workspace/v": "EBUSY", "create /workspace/new": "ok",
		} {
			if got[words] != want {
				t.Errorf("run %d: %s: %s, want %s", i, words, got[words], want)
			}
		}
		left := names(t, ws)
		if want := []string{".", ".vscode", ".vscode/tasks.json", "new", "probe"}; !slices.Equal(left, want) {
			t.Errorf("run %d: left %q, want %q", i, left, want)
		}
		if i == 1 && !slices.Contains(ids, r.status.ID) {
			t.Errorf("run %s isn't of the ready %v", r.status.ID, ids)
		}
		ids = n.ready(t)
	}
	n.drain(t)
}

// M-5, M-23: pipes where the host looks for folders, and folders without number where each of them is guarded, hold up
// nobody and nothing: neither a start nor an elevation, nor a freeze after it.
func TestThreatSurvivePipesForFolders(t *testing.T) {
	p := newPlace(t)
	ws := workspace(t)
	if err := os.MkdirAll(filepath.Join(ws, ".git"), 0o755); err != nil {
		t.Fatal(err)
	}
	owned(t, ws)
	start := func(ring, script string) result {
		t.Helper()
		return p.do("exec", "--no-gateway", "--ring", ring, "--workspace", ws, "--", "sh", "-c", script)
	}
	if r := start("2", "mkfifo .git/worktrees .git/modules tools"); r.exit != 0 {
		t.Fatalf("the agent's pipes: %d %s", r.exit, r.stderr)
	}
	for _, ring := range []string{"2", "3"} {
		if r := start(ring, "echo here"); r.exit != 0 || r.stdout != "here\n" {
			t.Errorf("ring %s beside pipes: %d %s", ring, r.exit, r.stderr)
		}
	}
	if r := p.do("exec", "--no-gateway", "--ring", "3", "--workspace", ws, "--", "tools/run.py"); r.exit != 127 {
		t.Errorf("a program below a pipe: %d %s", r.exit, r.stderr)
	}
	p.must("agent", "score", "climber", "0.9")
	p.must("exec", "-d", "--no-gateway", "--agent", "climber", "--name", "up", "--ring", "3", "--workspace", ws, "--", "sleep", "600")
	p.must("elevate", "up", "--to", "2", "--ttl", "60s", "--reason", "test")
	eventually(t, hang(), "the elevation holds", func() bool { return asked[box](p, "inspect", "up").Ring == 2 })
	p.must("freeze", "up")
	p.must("kill", "up")
	// Names that are no folders count too: among many the one that is could be overlooked.
	if r := start("2", "rm .git/worktrees; mkdir -p .git/worktrees/z; i=0; while [ $i -lt 600 ]; do : > .git/worktrees/$i; i=$((i+1)); done"); r.exit != 0 {
		t.Fatalf("the agent's names: %d %s", r.exit, r.stderr)
	}
	if r := start("2", "echo here"); r.exit != 125 || r.stdout != "" || !strings.Contains(r.stderr, ".git/worktrees has more than 512 names") || !strings.Contains(r.stderr, "files.guard") {
		t.Errorf("with 600 names: %d %q %s", r.exit, r.stdout, r.stderr)
	}
	if r := start("3", "echo here"); r.exit != 0 || r.stdout != "here\n" {
		t.Errorf("where nothing is written: %d %s", r.exit, r.stderr)
	}
	p.must("exec", "-d", "--no-gateway", "--agent", "climber", "--name", "up", "--ring", "3", "--workspace", ws, "--", "sleep", "600")
	// What is granted can't be given, so it is no grant, and who asked hears why.
	if r := p.do("elevate", "up", "--to", "2", "--ttl", "60s", "--reason", "test"); r.exit == 0 || !strings.Contains(r.stderr, "unapplied") || !strings.Contains(r.stderr, "more than 512 names") {
		t.Errorf("an elevation that can't be given: %d %s", r.exit, r.stderr)
	}
	if b := asked[box](p, "inspect", "up"); b.Ring != 3 || b.Elevation != nil {
		t.Errorf("where nothing can be guarded it is in ring %d, with the elevation %+v", b.Ring, b.Elevation)
	}
	if _, ended := causes(p.audit()); len(ended) == 0 || ended[len(ended)-1] != "unapplied" {
		t.Errorf("on record elevations end by %v", ended)
	}
	if err := os.RemoveAll(filepath.Join(ws, ".git", "worktrees")); err != nil {
		t.Fatal(err)
	}
	p.must("elevate", "up", "--to", "2", "--ttl", "60s", "--reason", "test")
	p.must("freeze", "up")
	p.must("kill", "up")
}

// M-2, THREATS "takeover": whoever the workspace belongs to gives the names of what root makes in it, for guards and for changes that are
// applied, to a file of root's, which must not become theirs.
func TestThreatTakeoverFilesInAWorkspace(t *testing.T) {
	needSandbox(t)
	need(t, hostcaps.OverlayIDMapped)
	if os.Geteuid() != 0 {
		t.Skip("need: root, to have what others haven't")
	}
	ws := workspace(t)
	owned(t, ws)
	secret := filepath.Join(ws, "secret")
	write(t, secret, "of root", 0o600)
	kept, err := os.Open(secret)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	roots := func() bool {
		var st unix.Stat_t
		return unix.Fstat(int(kept.Fd()), &st) == nil && st.Uid == 0
	}
	id := overlaid(t, ws, "i=0; while [ $i -lt 200 ]; do ln -s nowhere l$i; i=$((i+1)); done")
	dir, err := os.Open(ws)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() }) // after what is swapped by it has ended
	var temp atomic.Pointer[string]
	swapping(t, func() {
		for _, name := range []string{".git", ".claude", ".gitmodules"} {
			_ = unix.Renameat2(int(dir.Fd()), "secret", int(dir.Fd()), name, unix.RENAME_EXCHANGE)
		}
		if name := temp.Load(); name != nil {
			_ = unix.Renameat2(int(dir.Fd()), "secret", int(dir.Fd()), *name, unix.RENAME_EXCHANGE)
		}
	})
	for range 10 {
		_ = run(t, opts{profile: "ring2", flags: []string{"--no-gateway", "--workspace", ws}}, "true")
		if !roots() {
			t.Fatal("a guard has made a file of root's the workspace owner's")
		}
	}
	c := command(t.Context(), "apply", id)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf(".agentrun-%s-%d", id, c.Process.Pid)
	temp.Store(&name)
	_ = c.Wait()
	if !roots() {
		t.Error("a change that was applied has made a file of root's the workspace owner's")
	}
}
