// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"agentrun/fsjail"
	"agentrun/internal/read"
)

// CommandError is a command that can't be started: not found (exit code 127) or found and not
// executable (126). Hint is the way out.
type CommandError struct {
	Name     string
	NotFound bool
	Reason   string
	Hint     string
}

func (e *CommandError) Error() string { return fmt.Sprintf("command %s: %s", e.Name, e.Reason) }

// ExitCode is what agentrun exits with.
func (e *CommandError) ExitCode() int {
	if e.NotFound {
		return ExitNotFound
	}
	return ExitNotExecutable
}

// Command is what will be executed, as the sandbox sees it.
type Command struct {
	Exe  string   `json:"exe"`
	Args []string `json:"args"`
	Via  string   `json:"via,omitempty"` // how an interpreter was found: "shebang" or "extension"
}

// program is what may be told and kept of a command: see Status.Command.
func (c Command) program() []string {
	if c.Via == "extension" && len(c.Args) > 1 {
		return []string{c.Exe, c.Args[1]}
	}
	return []string{c.Exe}
}

// view answers what is where inside the sandbox, from the entries of the plan, without building it. It reads
// the host as it is now, as the user who plans: what it finds may be gone, or another file, when the sandbox
// is built. It only chooses names and explains errors; what is really reachable, the mounts decide.
type view []fsjail.Entry

const maxLinks = 40 // as the kernel, path_resolution(7)

// host maps a path inside to the host file that will be there, following links as the sandbox would.
func (v view) host(inside string) (string, fs.FileInfo, error) {
	_, name, info, err := v.resolved(inside)
	return name, info, err
}

// resolved gives the path inside without links, too.
func (v view) resolved(inside string) (string, string, fs.FileInfo, error) {
	links := 0
	done, rest := "/", strings.Split(path.Clean(inside)[1:], "/")
	var info fs.FileInfo
	var name string
	for len(rest) > 0 && rest[0] != "" {
		next := path.Join(done, rest[0])
		rest = rest[1:]
		link := ""
		if e, ok := v.at(next); ok && e.Kind == fsjail.Link {
			link = e.Source
		} else if name, ok = v.source(next); !ok {
			if v.within(next) { // an intermediate directory of the skeleton
				done, info = next, nil
				continue
			}
			return "", "", nil, fs.ErrNotExist
		} else {
			var err error
			if info, err = os.Lstat(name); err != nil {
				return "", "", nil, err
			}
			if info.Mode()&fs.ModeSymlink != 0 {
				if link, err = os.Readlink(name); err != nil {
					return "", "", nil, err
				}
			}
		}
		if link == "" {
			done = next
			continue
		}
		if links++; links > maxLinks {
			return "", "", nil, unix.ELOOP
		}
		if !path.IsAbs(link) {
			link = path.Join(done, link)
		}
		rest = append(strings.Split(path.Clean(link)[1:], "/"), rest...)
		done = "/"
	}
	if info == nil {
		return "", "", nil, fs.ErrNotExist
	}
	return done, name, info, nil
}

// at is the entry of exactly that target: of several the last, which is the one mounted on top.
func (v view) at(inside string) (fsjail.Entry, bool) {
	for i := len(v) - 1; i >= 0; i-- {
		if v[i].Target == inside {
			return v[i], true
		}
	}
	return fsjail.Entry{}, false
}

// source maps by the deepest bind that covers the path.
func (v view) source(inside string) (string, bool) {
	for dir := inside; ; dir = path.Dir(dir) {
		if e, ok := v.at(dir); ok {
			if e.Kind != fsjail.Bind && e.Kind != fsjail.Overlay && e.Kind != fsjail.Cover {
				return "", false
			}
			return filepath.Join(e.Source, strings.TrimPrefix(inside, dir)), true
		}
		if dir == "/" {
			return "", false
		}
	}
}

// within says that something is shown below dir, so that dir is there as a folder of the skeleton.
func (v view) within(dir string) bool {
	for _, e := range v {
		if strings.HasPrefix(e.Target, dir+"/") {
			return true
		}
	}
	return false
}

// looks gives what a path inside leads to, and a name by which that can be opened here. A view answers it for a sandbox that isn't
// there yet, and a live root for one that is (joinRoot).
type looks func(inside string) (name string, info fs.FileInfo, err error)

func (p *Plan) looks() looks { return view(p.Entries).host }

// program is an executable regular file inside.
func (v looks) program(inside string) bool {
	host, info, err := v(inside)
	return err == nil && found{inside, host, info}.program()
}

// lookPath searches the sandbox's PATH.
func (v looks) lookPath(name, pathVar string) (string, bool) {
	f, ok := v.search(name, pathVar)
	return f.inside, ok
}

// found is a file inside and what it is on the host.
type found struct {
	inside, host string      // the path as it was asked for, and where it leads, without links
	info         fs.FileInfo // of the latter
}

func (f found) program() bool { return f.info.Mode().IsRegular() && f.info.Mode()&0o111 != 0 }

// search takes the first program of that name, as a shell would; relative folders of PATH, which depend on
// where the agent is, don't count.
func (v looks) search(name, pathVar string) (found, bool) {
	for dir := range strings.SplitSeq(pathVar, ":") {
		if !path.IsAbs(dir) {
			continue
		}
		inside := path.Join(dir, name)
		host, info, err := v(inside)
		if f := (found{inside, host, info}); err == nil && f.program() {
			return f, true
		}
	}
	return found{}, false
}

var extensions = map[string][]string{".py": {"python3", "python"}, ".js": {"node", "nodejs"}, ".sh": {"sh"}}

// resolve turns the command line into what to execute. An absolute name is a path inside; a bare name
// is searched in PATH, then in the workspace; a relative path is in the workspace.
func (v looks) resolve(argv []string, pathVar string) (Command, error) {
	name := argv[0]
	inside := ""
	switch {
	case path.IsAbs(name):
		inside = path.Clean(name)
	case !strings.Contains(name, "/"):
		if f, ok := v.search(name, pathVar); ok {
			return v.script(f, argv)
		}
		inside = path.Join(workspaceDir, name)
	default:
		inside = path.Join(workspaceDir, name)
		if !strings.HasPrefix(inside, workspaceDir+"/") {
			return Command{}, &CommandError{Name: name, NotFound: true, Reason: "leads out of the workspace"}
		}
	}
	host, info, err := v(inside)
	if err != nil {
		return Command{}, v.notFound(name, inside, pathVar, err)
	}
	if !info.Mode().IsRegular() {
		return Command{}, &CommandError{Name: name, Reason: inside + " is not a regular file"}
	}
	return v.script(found{inside, host, info}, argv)
}

// notFound tells a command that is nowhere from one that is on the host and not shown, or shown and not in PATH: those are the common
// mistakes. What is shown isn't in PATH by that, so a name by itself needs both.
func (v looks) notFound(name, inside, pathVar string, err error) error {
	e := &CommandError{Name: name, NotFound: true, Reason: "not found in the sandbox's PATH or in the workspace"}
	if path.IsAbs(name) {
		e.Reason = "no such file in the sandbox"
	}
	if !errors.Is(err, fs.ErrNotExist) {
		e.Reason = err.Error()
	}
	if outside, lerr := exec.LookPath(name); lerr == nil {
		e.Reason = "exists only outside the sandbox's root, as " + outside
		e.Hint = showHint(outside)
		if v.program(outside) {
			e.Reason, e.Hint = "not in the sandbox's PATH; it is there as "+outside, "find it with"
		}
		if !strings.Contains(name, "/") {
			e.Hint += " --env PATH=" + filepath.Dir(outside) + ":" + pathVar
		}
	} else if !path.IsAbs(name) {
		e.Hint = "start it from the folder it is in, or say --workspace DIR"
	}
	return e
}

// maxSuggested bounds how many files of a folder are looked through for the one that was meant.
const maxSuggested = 1000

// suggest adds to what says that a file isn't there the one beside it that was probably meant: of the workspace, or of the
// caller's folder where there is none.
func (v view) suggest(err error, workDir string) {
	e, ok := errors.AsType[*CommandError](err)
	if !ok || !e.NotFound || path.IsAbs(e.Name) || !strings.Contains(e.Name, ".") && !strings.Contains(e.Name, "/") {
		return // a word without a dot is a program of PATH
	}
	dir := workDir
	if host, _, err := v.host(workspaceDir); err == nil {
		dir = host
	}
	root, oerr := os.OpenRoot(dir) // the agent's, where it is the workspace
	if oerr != nil {
		return
	}
	defer root.Close()
	f, oerr := root.Open(filepath.Dir(e.Name) + "/.")
	if oerr != nil {
		return
	}
	defer f.Close()
	names, _ := f.Readdirnames(maxSuggested)
	if near := read.Nearest(filepath.Base(e.Name), names); near != "" {
		e.Hint = "did you mean " + filepath.Join(filepath.Dir(e.Name), near) + "?"
	}
}

// showHint says which folder must be shown for a program outside the view to work: for version
// managers, the prefix above bin, through the links that lead there; for a package of npm, the outermost
// node_modules, where Node looks for the packages beside it. Not the folder above that: it may be a home.
func showHint(outside string) string {
	abs, err := filepath.Abs(outside)
	if err != nil {
		abs = outside
	}
	prefix := func(p string) string {
		if above, _, ok := strings.Cut(p, "/node_modules/"); ok {
			return above + "/node_modules"
		}
		if d := filepath.Dir(p); filepath.Base(d) == "bin" || filepath.Base(d) == "shims" {
			return filepath.Dir(d)
		}
		return filepath.Dir(p)
	}
	hint := "show it with --ro-bind " + prefix(abs)
	if real, err := filepath.EvalSymlinks(abs); err == nil && !strings.HasPrefix(real, prefix(abs)+"/") {
		hint += " --ro-bind " + prefix(real)
	}
	return hint
}

// script finds the interpreter of a file: its shebang when it is executable, else its extension.
func (v looks) script(f found, argv []string) (Command, error) {
	inside, executable := f.inside, f.info.Mode()&0o111 != 0
	magic, shebang, err := readHead(f.host)
	if err != nil {
		return Command{}, &CommandError{Name: argv[0], Reason: err.Error()}
	}
	direct := Command{Exe: inside, Args: argv}
	switch {
	case executable && shebang != "":
		direct.Via = "shebang"
		return direct, v.checkShebang(argv[0], shebang)
	case executable && magic == "\x7fELF":
		return direct, nil
	}
	interpreters, known := extensions[path.Ext(inside)]
	if !known {
		if !executable {
			return Command{}, &CommandError{Name: argv[0], Reason: inside + " is not executable", Hint: "chmod +x it, or name its interpreter: agentrun exec … -- INTERPRETER " + argv[0]}
		}
		return direct, nil // the kernel says ENOEXEC, or binfmt_misc knows it
	}
	for _, i := range interpreters {
		if exe, ok := v.lookPath(i, defaultPath); ok {
			return Command{Exe: exe, Args: append([]string{i, inside}, argv[1:]...), Via: "extension"}, nil
		}
	}
	e := &CommandError{Name: argv[0], NotFound: true, Reason: fmt.Sprintf("needs %s, which is not in the sandbox", interpreters[0])}
	if outside, err := exec.LookPath(interpreters[0]); err == nil {
		e.Reason = fmt.Sprintf("needs %s, which exists only outside the sandbox's root, as %s", interpreters[0], outside)
		e.Hint = showHint(outside)
	}
	return Command{}, e
}

// checkShebang looks whether the interpreter will be there: execve(2) would only say ENOENT, which
// reads as if the script were missing.
func (v looks) checkShebang(name, line string) error {
	fields := strings.Fields(line)
	if len(fields) == 0 {
		return &CommandError{Name: name, Reason: "its shebang line names no interpreter"}
	}
	interp := fields[0]
	if path.Base(interp) == "env" && len(fields) > 1 && v.program(interp) {
		// env(1) searches PATH itself: check the first word that is neither option nor assignment.
		for _, f := range fields[1:] {
			if !strings.HasPrefix(f, "-") && !strings.Contains(f, "=") {
				interp = f
				break
			}
		}
		if _, ok := v.lookPath(interp, defaultPath); ok {
			return nil
		}
	} else if v.program(interp) {
		return nil
	}
	e := &CommandError{Name: name, NotFound: true, Reason: fmt.Sprintf("its interpreter %s is not in the sandbox", interp)}
	if outside, err := exec.LookPath(interp); err == nil {
		e.Reason = fmt.Sprintf("its interpreter %s exists only outside the sandbox's root, as %s", interp, outside)
		e.Hint = showHint(outside)
	}
	return e
}

// readHead gives the first four bytes and the shebang line, if any (at most 255 bytes, as the kernel's
// BINPRM_BUF_SIZE).
func readHead(name string) (magic, shebang string, err error) {
	f, err := openHead(name)
	if err != nil {
		return "", "", err
	}
	defer f.Close()
	head, err := bufio.NewReader(io.LimitReader(f, 255)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", "", err
	}
	if strings.HasPrefix(head, "#!") {
		shebang = strings.TrimSpace(head[2:])
		if shebang == "" {
			shebang = " "
		}
	}
	return head[:min(4, len(head))], shebang, nil
}

// openHead opens a file of the root view on the host. Another may be in its place by now: a FIFO must not
// hang us, neither at the open nor at the first read.
func openHead(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", name)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
