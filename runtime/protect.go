// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"agentrun/fsjail"
	"agentrun/internal/rootless"
	"agentrun/profiles"
)

// guards lists the mounts that keep an agent from leaving, in a workspace that it may write, what the host runs
// later: the profile's table (files.guard, mode readonly), and what the repository's configuration names.
//
// The attack: a hook, an editor's task or a tool server is planted, and the next git commit, or the next folder
// opened, runs it outside of any sandbox. The kernel's rule that is relied on: what is a mount point in the
// caller's mount namespace can't be renamed, removed or replaced, EBUSY (rename(2), rmdir(2), unlink(2)). So:
//
//   - what is guarded is mounted over itself, read-only;
//   - each folder above it is mounted over itself too, as writable as the workspace, or it could be renamed away
//     and made anew with other content;
//   - what isn't there is made for the run (placeholders), down to the first missing folder, or nothing could be
//     mounted on it;
//   - a link is covered by /dev/null on a nodev mount, and what it leads to is guarded in its turn.
//
// What remains possible is in docs/protected-paths.md. The list is of the host as it is now; what is mounted is
// opened without following a link, so what has changed by then makes the launch fail.
func (p *Plan) guards(ws fsjail.Entry) ([]fsjail.Entry, error) {
	g, err := p.guarding(ws)
	if err != nil {
		return nil, err
	}
	return g.list(), nil
}

func (p *Plan) guarding(ws fsjail.Entry) (*guarding, error) {
	root, err := os.OpenRoot(ws.Source)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	g := &guarding{ws: ws, root: root, at: map[string]fsjail.Entry{}, absent: map[string]bool{}}
	for _, e := range p.profile.Files.Guard {
		if e.Mode != profiles.GuardReadonly {
			continue
		}
		if err := g.each("", e.Path, e.Why); err != nil {
			return nil, fmt.Errorf("guard %s: %w", e.Path, err)
		}
	}
	for _, dir := range g.repositories() {
		if err := g.modules(dir, p.profile.Files.Guard); err != nil {
			return nil, fmt.Errorf("guard %s/modules: %w", dir, err)
		}
		for _, name := range []string{dir + "/config", dir + "/config.worktree"} {
			if _, ok := g.at[name]; !ok {
				continue
			}
			if err := g.config(name, 0); err != nil {
				return nil, fmt.Errorf("guard what %s names: %w", name, err)
			}
		}
	}
	if err := g.submodules(p.profile.Files.Guard); err != nil {
		return nil, fmt.Errorf("guard submodules: %w", err)
	}
	for _, name := range settings {
		if !g.closed(name) {
			continue
		}
		if err := g.settings(name); err != nil {
			return nil, fmt.Errorf("guard what %s names: %w", name, err)
		}
	}
	return g, g.hooked(p.profile.Files.Guard)
}

// closed says whether a path is guarded, by itself or with a folder, and isn't known to be missing.
func (g *guarding) closed(rel string) bool {
	for at := rel; at != "."; at = path.Dir(at) {
		if e, ok := g.at[at]; ok && !e.Writable && !e.Live {
			return !g.absent[at]
		}
	}
	return false
}

// hooked guards the settings of what runs as a hook of git's, where there is a hook: it runs what they name at the next commit.
func (g *guarding) hooked(table []profiles.GuardEntry) error {
	if !g.hook {
		return nil
	}
	for _, e := range table {
		if !slices.Contains(hookSettings, e.Path) || e.Mode != profiles.GuardTell {
			continue
		}
		if _, err := g.root.Lstat(e.Path); err == nil {
			if err := g.add(e.Path, e.Why); err != nil {
				return err
			}
		}
	}
	return nil
}

var hookSettings = []string{".pre-commit-config.yaml", "lefthook.yml", "lefthook.yaml", ".lefthook.yml", "lefthook-local.yml"}

// Guarded says whether a path of a workspace is kept as it is. It is for what is written there on an agent's behalf from outside of the sandbox,
// where nothing is mounted. What can't be looked at is guarded.
func (p *Plan) Guarded(workspace, rel string) bool {
	g, err := p.guarding(fsjail.Entry{Target: workspaceDir, Source: workspace, Writable: true})
	if err != nil {
		return true
	}
	for at, e := range g.at {
		if !e.Writable && (rel == at || strings.HasPrefix(rel, at+"/")) {
			return true
		}
	}
	return false
}

const gitModules = ".git/modules"

// repositories are .git, or those that a file .git leads to in the workspace, as git init --separate-git-dir makes it, or whoever has the
// worktrees of a bare repository beside it (gitrepository-layout(5)): the one that it names, and the one that this shares.
func (g *guarding) repositories() (dirs []string) {
	dirs = []string{".git"}
	if !g.closed(".git") {
		return dirs // a folder, or missing
	}
	for name, word := ".git", "gitdir: "; len(dirs) < 3; name, word = dirs[len(dirs)-1]+"/commondir", "" {
		to, ok := strings.CutPrefix(strings.TrimRight(g.text(name), "\r\n"), word)
		rel, within := g.written(to, path.Dir(name))
		if !ok || to == "" || !within || rel == "." {
			break
		}
		dirs = append(dirs, rel)
	}
	return dirs
}

// text is what a file says; empty: it is none, or says too much.
func (g *guarding) text(name string) string {
	f, err := g.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > maxGitConfig {
		return ""
	}
	text, _ := io.ReadAll(io.LimitReader(f, maxGitConfig))
	return string(text)
}

// submodules guards what says in the folder of each submodule which repository is there: git status of the outer one runs git in that, with its
// configuration. What isn't there an agent can make, as a repository in any folder, and it is told.
func (g *guarding) submodules(table []profiles.GuardEntry) error {
	folders, bytes := []string{""}, 0
	for n := 0; n < len(folders); n++ {
		name := path.Join(folders[n], ".gitmodules")
		if g.absent[name] {
			continue
		}
		text := g.text(name)
		if bytes += len(text); n > maxGuardFolders || bytes > maxGitConfig { // below the first, agents write them
			return fmt.Errorf("there are more than %d, or they are named in more than %d bytes: use --workspace-mode overlay", maxGuardFolders, maxGitConfig)
		}
		for _, v := range readGitConfig(text) {
			dir := path.Join(folders[n], v.value)
			info, err := g.root.Lstat(path.Join(dir, ".git"))
			if v.key != "submodule.path" || dir == folders[n] || err != nil {
				continue
			}
			folders = append(folders, dir)
			if info.IsDir() {
				err = g.parts(path.Join(dir, ".git"), table)
			} else {
				err = g.add(path.Join(dir, ".git"), "says in which repository git of the outer one runs git")
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// modules guards what the table has of .git in another repository, and in those of its submodules: git status of the outer one runs git in each
// of them. Their names may have slashes, and each may have modules of its own. What an agent puts beside them hides none: it is one more to be guarded.
func (g *guarding) modules(repository string, table []profiles.GuardEntry) error {
	if repository != ".git" {
		if err := g.parts(repository, table); err != nil {
			return err
		}
	}
	folders := []string{repository + "/modules"}
	for n := 0; n < len(folders); n++ {
		if n >= maxGuardFolders {
			return fmt.Errorf("it has more than %d folders: remove those that nobody needs, or use --workspace-mode overlay", maxGuardFolders)
		}
		dir := folders[n]
		names, err := g.names(dir, maxGuardFolders)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			continue
		}
		if err != nil {
			return err
		}
		repository := false
		for _, n := range names {
			at := path.Join(dir, n.Name())
			repository = repository || slices.Contains([]string{"HEAD", "config", "objects"}, n.Name())
			_, err := g.root.Lstat(path.Join(at, "config"))
			if n.IsDir() && (err == nil || !slices.Contains(gitParts, n.Name())) {
				folders = append(folders, at)
			}
		}
		if repository {
			if err := g.parts(dir, table); err != nil {
				return err
			}
		}
	}
	return nil
}

// parts guards in a repository what the table has of .git.
func (g *guarding) parts(dir string, table []profiles.GuardEntry) error {
	for _, e := range table {
		rest, ok := strings.CutPrefix(e.Path, ".git/")
		if !ok || e.Mode != profiles.GuardReadonly {
			continue
		}
		if err := g.each(dir, rest, e.Why); err != nil {
			return err
		}
	}
	return nil
}

// gitParts are folders of a repository, of which some have very many names.
var gitParts = []string{"objects", "refs", "logs", "hooks", "info", "lfs", "rr-cache", "branches", "worktrees"}

// unguarded is a workspace that was shown read-only, and that nothing was guarded in yet; nil: there is none.
func (l *launch) unguarded() *fsjail.Entry {
	i := slices.IndexFunc(l.plan.Entries, func(e fsjail.Entry) bool { return e.Live && e.Target == workspaceDir })
	if i < 0 || l.guarded != nil || l.live == nil {
		return nil
	}
	return &l.plan.Entries[i]
}

// guardWorkspace guards a workspace that an elevation opens now: until then nothing is made in it. The run stands still.
func (l *launch) guardWorkspace(ws fsjail.Entry, pids []int) error {
	entries, err := l.plan.guards(ws)
	if err != nil {
		return err
	}
	if err := l.openBelow(entries, pids); err != nil {
		return err
	}
	held, err := holdPlaceholders(l.opt.RunDir, append([]fsjail.Entry{ws}, entries...))
	if err != nil {
		return err
	}
	if err := l.live.Guard(entries); err != nil {
		return errors.Join(err, held.drop())
	}
	l.guarded, l.late = held, entries
	return nil
}

// openBelow refuses a run that has open, from before it is guarded, what is at or below a guarded path. The attack: a descriptor of .git, or a
// working folder there, stays on the workspace's own mount, which an elevation opens; the guards' mounts hang on another one and aren't met from
// it (path_resolution(7): a mount is crossed by the mount that it hangs on). A plain file is written by way of /proc/self/fd; the program that
// runs by /proc/self/exe, opened as a place only, when another one runs in its place. What waits in a unix socket can't be looked at, and what
// can't be read isn't known to be harmless.
func (l *launch) openBelow(guards []fsjail.Entry, pids []int) error {
	for _, pid := range pids {
		if pid == l.initPID {
			continue // it is ours, and has nothing of the workspace
		}
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		for _, t := range tasks {
			if err == nil {
				err = taskOpenBelow(fmt.Sprintf("/proc/%d/task/%s/", pid, t.Name()), guards)
			}
		}
		if err != nil && !hasEnded(err) {
			return fmt.Errorf("process %d has open %w", pid, err)
		}
	}
	return nil
}

func hasEnded(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

func taskOpenBelow(task string, guards []fsjail.Entry) error {
	fds, err := os.ReadDir(task + "fd")
	links := []string{"cwd"}
	for _, fd := range fds {
		links = append(links, "fd/"+fd.Name())
	}
	links = append(links, "exe") // last: a thread that has ended has none
	for _, link := range links {
		var at string
		if err == nil {
			at, err = os.Readlink(task + link)
		}
		if err == nil && strings.HasPrefix(at, "socket:") && sentThrough(task+"fdinfo/"+path.Base(link)) > 0 {
			err = fmt.Errorf("a socket with descriptors on their way: %w", unix.EBUSY)
		}
		for _, g := range guards {
			if err != nil || at != g.Target && !strings.HasPrefix(at, g.Target+"/") {
				continue
			}
			var st unix.Statx_t
			err = unix.Statx(unix.AT_FDCWD, task+link, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &st)
			if err == nil && (!g.Live || st.Mode&unix.S_IFMT == unix.S_IFDIR) { // in a folder that only stays where it is, files are the agent's own
				err = fmt.Errorf("%q, from before it was guarded: %w", at, unix.EBUSY)
			}
		}
	}
	if hasEnded(err) {
		return nil
	}
	return err
}

// guarding is a workspace whose guarded paths are being looked for. Paths are relative to it.
type guarding struct {
	ws     fsjail.Entry
	root   *os.Root
	at     map[string]fsjail.Entry
	absent map[string]bool
	hook   bool                  // git has one
	asked  []profiles.GuardEntry // all that was to be guarded
	links  int
}

// each guards a path of the table, of which a component * stands for every folder there.
func (g *guarding) each(dir, rest, why string) error {
	before, after, many := strings.Cut(rest, "*/")
	if !many {
		return g.add(path.Join(dir, rest), why)
	}
	dir = path.Join(dir, before)
	names, err := g.names(dir, maxGuardFolders)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, n := range names {
		if !n.IsDir() {
			continue
		}
		if err := g.each(path.Join(dir, n.Name()), after, why); err != nil {
			return err
		}
	}
	return nil
}

// names is what a folder has; what an agent has put in its place, a pipe among them, is none. More than most is an error: what isn't looked at
// isn't guarded.
func (g *guarding) names(dir string, most int) ([]fs.DirEntry, error) {
	f, err := g.root.Open(path.Join(".", dir) + "/.")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.ReadDir(most + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(names) > most {
		return nil, fmt.Errorf("%s has more than %d names: remove those that nobody needs (git worktree prune), or leave it open in a profile (files.guard)",
			cmp.Or(dir, "the workspace"), most)
	}
	slices.SortFunc(names, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return names, nil
}

// add guards a path, whatever of it is there.
func (g *guarding) add(rel, why string) error {
	return g.addKind(rel, standsAsFile(rel), why)
}

// standsAsFile says whether git would stumble over a folder in a missing path's place.
func standsAsFile(rel string) bool {
	return strings.Contains(rel, "/") && slices.Contains([]string{"commondir", "config", "config.worktree", "attributes"}, path.Base(rel))
}

// standsHidden says whether the programs that read a missing path would end over a folder in its place.
func standsHidden(rel string) bool {
	return slices.Contains([]string{".npmrc", ".yarnrc", ".yarnrc.yml", ".pnpmfile.cjs", ".envrc", ".tool-versions", ".aider.conf.yml"}, path.Base(rel))
}

// onlyTold says whether nothing stands for a missing path: mise reads a new file only after somebody has said so, and Mercurial has few
// users, who know where they have a repository.
func onlyTold(rel string) bool {
	return slices.Contains([]string{"mise.toml", ".mise.toml", ".hg"}, path.Base(rel))
}

// addKind is add, where a missing path is to be a file or a folder.
func (g *guarding) addKind(rel string, isFile bool, why string) error {
	g.asked = append(g.asked, profiles.GuardEntry{Path: rel, Mode: profiles.GuardReadonly, Why: why})
	parts := strings.Split(rel, "/")
	for i := range parts {
		at := strings.Join(parts[:i+1], "/")
		if e, ok := g.at[at]; ok && !e.Writable && !e.Live {
			return nil // it is guarded whole
		}
		info, err := g.root.Lstat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return g.missing(at, at == ".git" || isFile && i == len(parts)-1, why)
		case err != nil:
			return err
		case info.Mode()&fs.ModeSocket != 0: // made for another run
			g.hide(at, "hidden: "+why)
			return nil
		case info.Mode()&fs.ModeSymlink != 0:
			return g.link(at, strings.Join(parts[i+1:], "/"), why)
		case i == len(parts)-1 || !info.IsDir(): // a file in the way, as .git in a linked worktree, is as good as the path itself
			g.close(at, !info.IsDir(), why)
			if info.IsDir() {
				return g.within(at, 0)
			}
			return nil
		}
		g.pin(at)
	}
	return nil
}

func (g *guarding) entry(at string, isFile bool, why string) fsjail.Entry {
	return fsjail.Entry{
		Kind: fsjail.Bind, Target: path.Join(g.ws.Target, at), Source: filepath.Join(g.ws.Source, at), IsFile: isFile,
		Exec: g.ws.Exec, Guard: true, Why: why,
	}
}

func (g *guarding) close(at string, isFile bool, why string) {
	g.at[at] = g.entry(at, isFile, "read-only: "+why)
}

func (g *guarding) pin(at string) {
	e := g.entry(at, false, "can't be renamed or removed, for what is guarded in it")
	e.Writable, e.Live = g.ws.Writable, g.ws.Live
	g.at[at] = e
}

// missing is made for the run, unless nobody can make it: on a read-only file system, or where the folder isn't the user's own who runs
// this without root, as whom or less the agent acts.
func (g *guarding) missing(at string, isFile bool, why string) error {
	err := unix.Faccessat(unix.AT_FDCWD, filepath.Join(g.ws.Source, path.Dir(at)), unix.W_OK, unix.AT_EACCESS)
	if errors.Is(err, unix.EROFS) || err != nil && rootless.Is() || onlyTold(at) {
		return nil
	}
	g.absent[at] = true
	if standsHidden(at) {
		g.hide(at, "empty, made for this run: "+why)
	} else {
		g.at[at] = g.entry(at, isFile, "read-only, made for this run: "+why)
	}
	return nil
}

// hide puts /dev/null where a path is: what reads it finds an empty file, and git lists no devices.
func (g *guarding) hide(at, why string) {
	e := g.entry(at, true, why)
	e.Source, e.Exec, e.Device = os.DevNull, false, true
	g.at[at] = e
}

// maxGuardLinks is as many as the kernel follows (path_resolution(7)).
const maxGuardLinks = 40

// link covers a link, which can't be mounted over itself, and guards what it leads to in the workspace. What lies elsewhere the agent
// can't reach.
func (g *guarding) link(at, rest, why string) error {
	g.hide(at, "hidden, as it is a link: "+why)
	to, err := g.root.Readlink(at)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EINVAL) {
		return nil // gone in this instant, or no link any more
	}
	if err != nil {
		return err
	}
	if g.links++; g.links > maxGuardLinks {
		return unix.ELOOP
	}
	if rel, ok := g.relative(to, path.Dir(at)); ok && rel != "." {
		return g.add(path.Join(rel, rest), why+"; "+at+" leads to it")
	}
	return nil
}

// relative is where a name leads that is read in a folder of the workspace; not ok: elsewhere.
func (g *guarding) relative(name, dir string) (string, bool) {
	if path.IsAbs(name) {
		rel, err := filepath.Rel(g.ws.Source, path.Clean(name))
		return rel, err == nil && filepath.IsLocal(rel)
	}
	rel := path.Join(dir, name)
	return rel, filepath.IsLocal(rel)
}

// written is relative for a name in a configuration. It may begin with a home that the workspace lies in: whose git it will be isn't known, so
// each folder above may be one. HOME is what words leaves of $HOME. And it may go by a link above the workspace, whose own path has none.
func (g *guarding) written(name, dir string) (string, bool) {
	if user, rest, ok := strings.Cut(name, "/"); ok && strings.HasPrefix(user, "~") { // whose home it is isn't known either
		name = "~/" + rest
	}
	for _, home := range []string{"~/", "HOME/"} {
		for above := g.ws.Source; strings.HasPrefix(name, home) && above != "/" && above != "."; {
			above = path.Dir(above)
			if rel, ok := g.relative(path.Join(above, name[len(home):]), ""); ok {
				return rel, true
			}
		}
	}
	rel, ok := g.relative(name, dir)
	if ok || !path.IsAbs(name) {
		return rel, ok && !strings.HasPrefix(name, "~/")
	}
	real, err := filepath.EvalSymlinks(path.Dir(name))
	if err != nil {
		return "", false
	}
	return g.relative(path.Join(real, path.Base(name)), "")
}

const (
	maxGuardDepth   = 3
	maxGuardNames   = 4096
	maxGuardFolders = 512 // that a * is looked for in: each takes descriptors of the launch, some mounts and placeholders
)

// within guards files that links in a guarded folder lead to, as .git/hooks/pre-commit to a script of the repository.
func (g *guarding) within(dir string, depth int) error {
	if depth == maxGuardDepth {
		return nil
	}
	names, err := g.names(dir, maxGuardNames)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil // whose it isn't to read runs nothing of it; and what another run had made is gone in this instant
	}
	if err != nil {
		return err
	}
	for _, n := range names {
		at := path.Join(dir, n.Name())
		g.hook = g.hook || dir == ".git/hooks" && path.Ext(at) != ".sample"
		if n.IsDir() {
			err = g.within(at, depth+1)
		} else if n.Type() == fs.ModeSymlink {
			err = g.linked(at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (g *guarding) linked(at string) error {
	to, err := g.root.Readlink(at)
	if err != nil {
		return err
	}
	rel, ok := g.relative(to, path.Dir(at))
	if !ok {
		return nil
	}
	if info, err := g.root.Lstat(rel); err != nil || info.IsDir() {
		return nil // a folder may be anything, up to all of the workspace
	}
	return g.add(rel, at+" leads to it")
}

// list is in the order of mounting: what is above comes first, and nothing within what is guarded whole.
func (g *guarding) list() []fsjail.Entry {
	all := make([]string, 0, len(g.at))
	for at := range g.at {
		all = append(all, at)
	}
	slices.Sort(all)
	var entries []fsjail.Entry
	for _, at := range all {
		whole := false
		for dir := path.Dir(at); dir != "."; dir = path.Dir(dir) {
			if e, ok := g.at[dir]; ok && !e.Writable && !e.Live {
				whole = true
			}
		}
		if !whole {
			entries = append(entries, g.at[at])
		}
	}
	return entries
}

const gitConfig = ".git/config"

// config guards what a configuration file of git's names: folders with hooks, other configurations, programs.
func (g *guarding) config(name string, depth int) error {
	f, err := g.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxGitConfig+1))
	if err != nil {
		return err
	}
	if len(text) > maxGitConfig || depth > maxIncludes {
		return fmt.Errorf("%s is larger than %d bytes, or included more than %d deep", name, maxGitConfig, maxIncludes)
	}
	for _, v := range readGitConfig(string(text)) {
		if err := g.named(v, name, depth); err != nil {
			return err
		}
	}
	return nil
}

// named guards what one value names.
func (g *guarding) named(v gitValue, in string, depth int) error {
	why := in + " names it: " + v.key
	switch base := ""; v.key {
	case "include.path", "includeif.path":
		base = path.Dir(in)
		fallthrough
	case "core.hookspath", "init.templatedir":
		rel, ok := g.written(v.value, base)
		if !ok {
			return nil
		}
		if rel == "." {
			return fmt.Errorf("%s of %s is the workspace itself: anything in it would be run; name a folder there, or use --workspace-mode overlay", v.key, in)
		}
		if err := g.addKind(rel, base != "", why); err != nil || base == "" {
			return err
		}
		return g.config(rel, depth+1)
	}
	if v.plain() {
		return nil
	}
	for i, word := range v.words() {
		rel, ok := g.written(word, "")
		if at, _ := g.program(word); at != "" {
			rel = at
		} else if _, err := g.root.Lstat(rel); !ok || i > 0 || !errors.Is(err, fs.ErrNotExist) || !strings.Contains(word, "/") {
			continue
		}
		if err := g.add(rel, why); err != nil {
			return err
		}
	}
	return nil
}

// program is the file of the workspace that a word names, or a word with a variable before it that stands for the workspace, as
// $(git rev-parse --show-toplevel)/tools/x, of which words leaves /tools/x, or $CLAUDE_PROJECT_DIR/tools/x; empty: none that is there.
func (g *guarding) program(word string) (string, fs.FileInfo) {
	first, rest, _ := strings.Cut(word, "/")
	for i, name := range []string{word, rest} {
		if i > 0 && strings.Trim(first, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") != "" {
			break
		}
		if rel, ok := g.written(name, ""); ok && rel != "." {
			if info, err := g.root.Lstat(rel); err == nil && !info.IsDir() {
				return rel, info
			}
		}
	}
	return "", nil
}

// settings name programs as git's configuration does: yarn hands over to yarnPath at each command, yarn --version too, and loads
// plugins; npm takes a shell, a git, and what Node is to load first; agents on the host start tool servers and hooks; direnv reads what .envrc
// sources, of which it was asked about .envrc alone.
var settings = []string{
	".yarnrc.yml", ".yarnrc", ".npmrc", ".envrc", ".mcp.json", ".claude/settings.json", ".claude/settings.local.json", ".codex/config.toml",
	".codex/hooks.json", ".gemini/settings.json", ".qwen/settings.json", ".cursor/mcp.json", ".cursor/hooks.json",
}

// scripts are what an interpreter runs that isn't executable.
var scripts = []string{".js", ".cjs", ".mjs", ".ts", ".py", ".sh", ".bash", ".rb", ".pl"}

// edited are the files that Claude Code may read and change without a question, and doesn't run.
var edited = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\b(Read|Edit|Write|MultiEdit|NotebookEdit)\([^)]*\)`)
})

// sources are what direnv takes any file by.
var sources = []string{".", "source", "source_env", "source_env_if_exists", "dotenv", "dotenv_if_exists", "eval"}

// settings guards the programs that settings name: files that can be executed, and scripts; of direnv's what it sources. Others, such as
// the lock file, are the agent's to write.
func (g *guarding) settings(name string) error {
	f, err := g.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil //nolint:nilerr // missing, or what stands for it, or a link that leads out: it names nothing here
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxGitConfig+1))
	if err != nil {
		return err
	}
	if len(text) > maxGitConfig {
		return fmt.Errorf("it is larger than %d bytes", maxGitConfig)
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") || strings.HasPrefix(line, ";") {
			continue
		}
		first, _, _ := strings.Cut(line, " ")
		for _, word := range (gitValue{value: edited().ReplaceAllString(line, "")}).words() {
			rel, info := g.program(word)
			sourced := name == ".envrc" && slices.Contains(sources, first)
			if rel == "" || info.Mode()&(fs.ModeSymlink|0o111) == 0 && !slices.Contains(scripts, path.Ext(rel)) && !sourced {
				continue
			}
			if err := g.add(rel, name+" names it"); err != nil {
				return err
			}
		}
	}
	return nil
}
