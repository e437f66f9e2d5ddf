// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"agentrun/fsjail"
	"agentrun/profiles"
)

// planView lists the root view and finds the command in it. The order of entries is that of mounting: of two
// with the same target, or one within the other, the later one is what the agent sees. So the operator's
// binds come after everything of ours and after the workspace, and can't cover what CheckTarget keeps for us.
func (p *Plan) planView(s *Spec, hostRoot func() ([]fsjail.Entry, error)) error {
	var root, etc []fsjail.Entry
	var err error
	if s.Rootfs == "" {
		etc = p.etc()
		root, err = hostRoot()
	} else {
		root, err = p.suppliedRoot(s.Rootfs, s.Image)
	}
	if err != nil {
		return err
	}
	p.Entries = make([]fsjail.Entry, 0, 64) // as many as a view has, as a rule
	for _, e := range root {
		if e.Kind == fsjail.Bind && p.WritableRoot && !e.IsFile {
			e.Kind, e.Why = fsjail.Overlay, "private and writable, changes are thrown away unless kept (ring 1)"
			for _, dir := range s.RootSealed {
				if at := fsjail.ChangesIn(dir, e.Target); isFolder(at) {
					e.Sealed = append(e.Sealed, at)
				}
			}
		}
		p.Entries = append(p.Entries, e)
	}
	p.Entries = append(p.Entries, etc...)
	p.Entries = append(p.Entries, devEntries()...)
	p.Entries = append(p.Entries, p.scratch()...)
	binds := len(p.Entries)
	if err := p.planBinds(s); err != nil {
		return err
	}
	p.custom = s.Rootfs != "" || len(s.Binds) > 0 || len(s.Tmpfs) > 0 || s.Overlay
	if err := p.planWorkspace(s, binds); err != nil {
		return err
	}
	if err := p.mountPoints(binds); err != nil {
		return err
	}
	pathVar := defaultPath
	for _, kv := range slices.Concat(s.Image.Env, s.Env) {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			pathVar = v
		}
	}
	p.Command, err = p.looks().resolve(s.Command, pathVar)
	view(p.Entries).suggest(err, s.WorkDir)
	if err != nil {
		return err
	}
	if err := p.exceptCommand(); err != nil {
		return err
	}
	switch p.Cwd = s.Cwd; {
	case p.Cwd != "":
		p.Cwd = path.Clean(p.Cwd)
	case p.hasWorkspace():
		p.Cwd = workspaceDir
	case path.Clean("/"+s.Image.Workdir) != "/":
		p.Cwd = path.Clean("/" + s.Image.Workdir)
		if _, info, err := view(p.Entries).host(p.Cwd); err != nil || !info.IsDir() {
			return invalid("--image", "its working directory %.200q is no folder of it; --cwd names another", p.Cwd)
		}
	default:
		p.Cwd = scratchDir
	}
	return nil
}

func isFolder(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir()
}

func (p *Plan) suppliedRoot(dir string, of Image) ([]fsjail.Entry, error) {
	if of.ID != "" {
		entries, err := fsjail.SuppliedRoot(dir)
		if err != nil {
			return nil, invalid("--image", "%v", err)
		}
		for i := range entries {
			entries[i].Why = "the image, read-only"
			if entries[i].Kind == fsjail.Bind && !p.WritableRoot {
				entries[i].Owner = of.Owner
			}
		}
		return entries, nil
	}
	at, err := p.seen.Canonical(dir)
	if err == nil && !at.IsDir() {
		err = unix.ENOTDIR
	}
	if err != nil {
		return nil, invalid("--rootfs", "%v", err)
	}
	if at.Path == "/" {
		return nil, invalid("--rootfs", "the host's own / would show everything in it; leave the flag out for the default view")
	}
	entries, err := fsjail.SuppliedRoot(at.Path)
	if err != nil {
		return nil, invalid("--rootfs", "%v", err)
	}
	return entries, nil
}

// etc is the synthetic /etc: who the agent is, loopback, and what the profile shows of the host's.
func (p *Plan) etc() []fsjail.Entry {
	file := func(name, content, why string) fsjail.Entry {
		return fsjail.Entry{Kind: fsjail.File, Target: "/etc/" + name, Content: content, Mode: 0o444, Why: why}
	}
	list := []fsjail.Entry{
		{Kind: fsjail.Dir, Target: "/etc", Mode: 0o755, Agent: p.WritableRoot, Why: "synthetic: nothing of the host's users or services (M-2)"},
		file("passwd", "root:x:0:0:root:/:/usr/sbin/nologin\n"+agentUser+"nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n", "who the agent is"),
		file("group", "root:x:0:\ntty:x:5:\n"+agentGroup+"nogroup:x:65534:\n", "who the agent is"),
		file("hosts", "127.0.0.1 localhost "+p.Hostname+"\n::1 localhost\n", "loopback is all there is"),
		file("hostname", p.Hostname+"\n", "the UTS namespace's name"),
		file("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n", "no lookups through host services"),
		// Loopback, where nothing answers until the tool proxy does: a lookup fails at once instead of
		// after a time-out.
		file("resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n", "names are the proxy's to answer"),
	}
	for _, e := range p.profile.Files.Etc {
		at, err := p.seen.Canonical(e.Path)
		if err != nil {
			continue // optional by definition (docs/profiles.md): a host without it has nothing to show
		}
		list = append(list, fsjail.Entry{
			Kind: fsjail.Bind, Target: e.Path, Source: at.Path, IsFile: !at.IsDir(), Why: e.Why,
		})
	}
	return list
}

func devEntries() []fsjail.Entry {
	list := []fsjail.Entry{{Kind: fsjail.Dir, Target: "/dev", Mode: 0o755, Why: "a few nodes instead of the host's devices"}}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		list = append(list, fsjail.Entry{Kind: fsjail.Bind, Target: "/dev/" + name, Source: "/dev/" + name, Device: true, IsFile: true})
	}
	return append(list,
		fsjail.Entry{Kind: fsjail.Devpts, Target: "/dev/pts", Why: "terminals of its own; the caller's is never inside"},
		fsjail.Entry{Kind: fsjail.Link, Target: "/dev/ptmx", Source: "pts/ptmx"},
		fsjail.Entry{Kind: fsjail.Link, Target: "/dev/fd", Source: "/proc/self/fd"},
		fsjail.Entry{Kind: fsjail.Link, Target: "/dev/stdin", Source: "/proc/self/fd/0"},
		fsjail.Entry{Kind: fsjail.Link, Target: "/dev/stdout", Source: "/proc/self/fd/1"},
		fsjail.Entry{Kind: fsjail.Link, Target: "/dev/stderr", Source: "/proc/self/fd/2"},
		fsjail.Entry{Kind: fsjail.Link, Target: "/dev/shm", Source: scratchDir + "/.shm", Why: "shared memory is scratch memory, with its size limit"},
	)
}

// scratch holds programs where the workspace does and may be written too: what the agent could put there and start, it may as well put
// into /tmp, where compilers, runtimes and installers do. Elsewhere (ring 3, strict) no place is both writable and executable, and none
// becomes so by an elevation: the flag is locked when the user namespace is made, and Landlock gives no execute.
func (p *Plan) scratch() []fsjail.Entry {
	exec := p.scratchExec()
	return []fsjail.Entry{
		{Kind: fsjail.Dir, Target: "/proc", Mode: 0o555},
		{Kind: fsjail.Dir, Target: "/tmp", Mode: 0o755},
		{Kind: fsjail.Tmpfs, Target: "/tmp", Size: p.Limits.ScratchSize, Mode: 0o700, Exec: exec, Why: "the scratch: the only writable place of ring 3 (M-2)"},
		{Kind: fsjail.Dir, Target: scratchDir, Mode: 0o700, Agent: true},
		{Kind: fsjail.Again, Target: scratchDir, Source: "/tmp", Exec: exec, Why: "the same tmpfs under its own name; programs that insist on /tmp land in it too"},
		{Kind: fsjail.Dir, Target: HomeDir, Mode: 0o700, Agent: true},
		{Kind: fsjail.Dir, Target: scratchDir + "/.shm", Mode: 0o700, Agent: true},
	}
}

func (p *Plan) scratchExec() bool {
	return p.profile.Files.Workspace == profiles.WorkspaceRW && p.profile.Files.WorkspaceExec && !p.onlyTools()
}

func bindFlag(writable bool) string {
	if writable {
		return "--bind"
	}
	return "--ro-bind"
}

// planBinds takes the operator's folders and files. Of one that may be written, the host's owner stays the
// owner of what the agent makes there. A folder comes before what is shown within it, in whatever order they
// were named: mounted later, it would cover that without a word.
func (p *Plan) planBinds(s *Spec) error {
	var binds []fsjail.Entry
	for _, b := range s.Binds {
		flag := bindFlag(b.Writable)
		refuse := func(err error) error { return invalid(flag, "%v", err) }
		at, err := p.seen.Canonical(b.Source)
		if err != nil {
			return refuse(notThere(b.Source, err))
		}
		if at.Path == "/" {
			return refuse(errors.New("the host's / would show everything in it; name the folder the agent needs"))
		}
		if s.NoLinks && at.Path != b.Source {
			return refuse(fmt.Errorf("%s leads to %s: it was changed since somebody looked", b.Source, at.Path))
		}
		target := b.Target
		if target == "" {
			if target, err = filepath.Abs(b.Source); err != nil {
				return refuse(err)
			}
		}
		if err := fsjail.CheckTarget(target); err != nil {
			return refuse(err)
		}
		if target == workspaceDir && s.Workspace != "" {
			return refuse(errors.New("mount point /workspace is where --workspace goes; choose another, or leave --workspace out"))
		}
		e := fsjail.Entry{
			Kind: fsjail.Bind, Target: target, Source: at.Path, Writable: b.Writable, Exec: true, IsFile: !at.IsDir(),
			Why: "asked for by " + flag,
		}
		if b.Writable {
			e.Owner = &fsjail.Owner{UID: at.UID, GID: at.GID}
		}
		if b.Changes != "" {
			e.Kind, e.Sealed, e.Changes, p.layered = fsjail.Overlay, b.Sealed, b.Changes, true
		}
		i := slices.IndexFunc(binds, func(o fsjail.Entry) bool { return o.Target == target })
		if i >= 0 && (binds[i].Source != e.Source || binds[i].Writable != e.Writable) {
			return refuse(fmt.Errorf("mount point %s is where %s goes already", target, binds[i].Source))
		}
		if i < 0 {
			binds = append(binds, e)
		}
	}
	for _, t := range s.Tmpfs {
		if err := fsjail.CheckTarget(t.Target); err != nil {
			return invalid("--tmpfs", "%v", err)
		}
		if t.Target == workspaceDir || t.Target == "/run" || strings.HasPrefix(t.Target+"/", "/run/agentrun/") ||
			slices.ContainsFunc(binds, func(o fsjail.Entry) bool { return o.Target == t.Target }) {
			return invalid("--tmpfs", "mount point %s is taken already", t.Target)
		}
		binds = append(binds, fsjail.Entry{
			Kind: fsjail.Tmpfs, Target: t.Target, Size: cmp.Or(t.Size, p.Limits.ScratchSize), Mode: 0o700, Exec: p.scratchExec(), Why: "asked for by --tmpfs",
		})
	}
	slices.SortFunc(binds, func(a, b fsjail.Entry) int { return strings.Compare(a.Target, b.Target) })
	p.Entries = append(p.Entries, binds...)
	return nil
}

// mountPoints looks whether the operator's binds, which are the entries from first on and may have the
// workspace before them, have a place: one within a folder of the host's must be there already.
func (p *Plan) mountPoints(first int) error {
	for i := first; i < len(p.Entries); i++ {
		e := p.Entries[i]
		flag := bindFlag(e.Writable)
		if e.Kind == fsjail.Tmpfs {
			flag = "--tmpfs"
		}
		host, within := view(p.Entries[:i]).source(e.Target)
		info, err := os.Lstat(host)
		if within && e.Kind == fsjail.Tmpfs && err == nil && !info.IsDir() {
			return invalid(flag, "mount point %s: %s is no folder", e.Target, host)
		}
		if within && !e.Guard && errors.Is(err, fs.ErrNotExist) {
			return invalid(flag, "mount point %s: %s isn't there, and agentrun makes nothing in the host's folders; "+
				"make it first (mkdir, or touch for a file)", e.Target, host)
		}
	}
	return nil
}

func (p *Plan) hasWorkspace() bool {
	return slices.ContainsFunc(p.Entries, func(e fsjail.Entry) bool {
		return e.Target == workspaceDir || strings.HasPrefix(e.Target, workspaceDir+"/")
	})
}

// planWorkspace puts the workspace, if there is one, among the entries before those from at on.
func (p *Plan) planWorkspace(s *Spec, at int) error {
	mode := p.profile.Files.Workspace
	p.overlayDir = s.OverlayDir
	dir := s.Workspace
	if dir != "" && mode == profiles.WorkspaceNone {
		return invalid("--workspace", "profile %s has none", p.Profile)
	}
	if dir == "" {
		var only string
		var err error
		if dir, only, err = p.implicitWorkspace(s); dir == "" {
			return err
		}
		mode = profiles.WorkspaceRO // nobody offered this folder for writing
		if only != "" {
			return p.addWorkspace(s, at, only, workspaceDir+"/"+filepath.Base(only), mode)
		}
	}
	if filepath.Clean(dir) == "." {
		dir = s.WorkDir
	}
	return p.addWorkspace(s, at, dir, workspaceDir, mode)
}

// implicitWorkspace is the caller's folder when the command is a file in it and no workspace was
// given, nor a bind that takes its place. Where the folder is somebody's home or the system's, only the file
// itself is shown: a shorthand must not expose keys and mail (M-2).
func (p *Plan) implicitWorkspace(s *Spec) (dir, only string, err error) {
	name := s.Command[0]
	_, bound := view(p.Entries).at(workspaceDir)
	if bound || filepath.IsAbs(name) || p.profile.Files.Workspace == profiles.WorkspaceNone {
		return "", "", nil
	}
	if !strings.Contains(name, "/") {
		if _, found := p.looks().lookPath(name, defaultPath); found {
			return "", "", nil
		}
	}
	file := filepath.Join(s.WorkDir, name)
	info, err := os.Stat(file)
	if err != nil || !strings.HasPrefix(file, s.WorkDir+"/") && s.WorkDir != "/" {
		return "", "", nil // resolve says what is not found
	}
	if !info.Mode().IsRegular() {
		return "", "", &CommandError{Name: name, Reason: file + " is not a regular file"}
	}
	if Private(s.WorkDir, s.Environ) {
		if filepath.Dir(file) != filepath.Clean(s.WorkDir) {
			return "", "", nil
		}
		return s.WorkDir, file, nil
	}
	return s.WorkDir, "", nil
}

// Private says that a folder holds more than one program's files.
func Private(dir string, environ []string) bool {
	dir = filepath.Clean(dir)
	if slices.Contains([]string{"/", "/root", "/home", "/etc", "/var", "/usr", "/tmp", "/run", "/srv", "/opt", "/proc", "/sys", "/dev", "/boot", "/mnt", "/media"}, dir) ||
		filepath.Dir(dir) == "/home" {
		return true
	}
	for _, kv := range environ {
		if home, ok := strings.CutPrefix(kv, "HOME="); ok && filepath.Clean(home) == dir {
			return true
		}
	}
	return false
}

// holdsTheHost says that whoever writes in a folder writes what the host, or its user, runs.
func holdsTheHost(dir string, environ []string) bool {
	return Private(dir, environ) && !slices.Contains([]string{"/tmp", "/srv", "/opt", "/mnt", "/media"}, dir)
}

// notThere says what to do about a host path that isn't there.
func notThere(name string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s isn't there on this host; make it, or look at its spelling", name)
	}
	return err
}

func (p *Plan) addWorkspace(
	s *Spec, index int, source, target string, mode profiles.WorkspaceMode,
) error {
	offered := s.Workspace != ""
	refuse := func(err error) error { return invalid("--workspace", "%v", err) }
	at, err := p.seen.Canonical(source)
	if err != nil {
		return refuse(notThere(source, err))
	}
	// Whoever names the folder that they are in mean that one: an agent that may write above it can have put a link in its place since.
	if filepath.Clean(source) == s.WorkDir && at.Path != s.WorkDir {
		return refuse(fmt.Errorf("the current folder, %s, leads to %s: it was changed since you entered it", s.WorkDir, at.Path))
	}
	own := holdsTheHost(at.Path, s.Environ)
	if own && offered && mode == profiles.WorkspaceRW {
		return refuse(fmt.Errorf("%s is a home or one of the system's folders: the agent could write what others run, and read their keys; "+
			"name the project's folder in it, or show all of it with --bind %s:%s", at.Path, at.Path, target))
	}
	// An elevation opens what was offered by name, and nothing else.
	live := offered && !own && mode == profiles.WorkspaceRO && p.Elevatable() == nil
	if at.Path == "/" {
		return refuse(errors.New("the host's / would show everything in it; name the folder the agent works in"))
	}
	if target == workspaceDir && !at.IsDir() {
		return refuse(fmt.Errorf("%s is not a directory", at.Path))
	}
	e := fsjail.Entry{
		Kind: fsjail.Bind, Target: target, Source: at.Path, Writable: mode == profiles.WorkspaceRW,
		Live: live, Exec: p.profile.Files.WorkspaceExec, IsFile: !at.IsDir(), Owner: &fsjail.Owner{UID: at.UID, GID: at.GID},
		Why: "the workspace; what the agent writes belongs to its owner on the host",
	}
	if p.Overlay {
		e.Kind, e.Why = fsjail.Overlay, "the workspace as it is, under a layer of the run's own, which waits for agentrun apply"
		if p.overlayDir != "" {
			e.Changes, e.Shifting, e.Why = p.overlayDir, true, "the workspace as it is, under a layer of the sandbox's own, which waits for agentrun apply"
		}
	}
	entries := []fsjail.Entry{e}
	if e.Writable && !e.IsFile && !p.Overlay { // one that an elevation may open is guarded when it does
		guards, err := p.guards(e)
		if err != nil {
			return refuse(err)
		}
		entries = append(entries, guards...)
	}
	p.Entries = slices.Insert(p.Entries, index, entries...)
	return nil
}

// exceptCommand lets the command itself be executed from a workspace that is otherwise noexec. In a folder
// that the operator shows within it, it can be anyhow.
func (p *Plan) exceptCommand() error {
	exe := p.Command.Exe
	if p.profile.Files.WorkspaceExec || !strings.HasPrefix(exe, workspaceDir+"/") ||
		slices.ContainsFunc(p.Entries, func(e fsjail.Entry) bool { return e.Exec && strings.HasPrefix(exe+"/", e.Target+"/") }) {
		return nil
	}
	e, ok := view(p.Entries).at(workspaceDir)
	if !ok {
		if i := slices.IndexFunc(p.Entries, func(e fsjail.Entry) bool { return e.Target == p.Command.Exe }); i >= 0 {
			p.Entries[i].Exec = true
		}
		return nil
	}
	source, info, err := view(p.Entries).host(p.Command.Exe)
	if err != nil || !info.Mode().IsRegular() {
		return fmt.Errorf("command %s: %w", p.Command.Exe, err)
	}
	p.Entries = append(p.Entries, fsjail.Entry{
		Kind: fsjail.Bind, Target: p.Command.Exe, Source: source, Exec: true, IsFile: true, Owner: e.Owner,
		Why: "the command itself; the rest of the workspace can't be executed",
	})
	return nil
}

// upperSize is the size of the tmpfs behind a writable root and an overlay: the scratch's, as both are the run's memory.
func (p *Plan) upperSize() int64 {
	if !p.WritableRoot && (!p.Overlay || p.overlayDir != "") {
		return 0
	}
	return p.Limits.ScratchSize
}
