// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/read"
)

// Found is what of an agent is on this machine.
type Found struct {
	Program string   `json:"program,omitempty"` // without links
	Node    string   `json:"node,omitempty"`    // that the program is a script for; empty: it is none
	Shown   []string `json:"shown,omitempty"`   // of the host, besides /usr, at the same path inside, read-only
	Path    []string `json:"-"`                 // folders for the agent's PATH, before the usual ones
	Missing []string `json:"missing,omitempty"` // what must be there and isn't, with the way to get it
}

// finder looks for programs on behalf of a caller.
type finder struct {
	getenv  func(string) string
	places  []Place
	written []string // folders that agents may have written
}

// Find looks for the agent's program, and for what runs it, as the caller with these variables would: in PATH, then
// in the agent's places, then in the usual ones. A script's Node is asked for its version, which is all that is run.
//
// What is shown is as little as works. A package's programs load others of the same node_modules, so that folder is
// shown, the outermost there is: package managers link from one in it to another. Of other programs it is the file.
// What lies where agents write, as in the workspace, is neither run nor followed out of there.
func (a *Agent) Find(getenv func(string) string, workspace string) (found Found) {
	here, err := unix.Getwd()
	if err != nil {
		found.Missing = append(found.Missing, fmt.Sprintf("the current folder: %v", err))
		return found
	}
	f := finder{getenv, append(slices.Clone(a.Places), usualPlaces()...), written(getenv("HOME"), here, workspace)}
	at, ok := f.program(a.Program, nil)
	if !ok {
		missing := fmt.Sprintf("program %s: not in PATH, nor where npm, nvm and installers put programs", a.Program)
		if a.Package != "" {
			missing += "; npm install -g " + a.Package
		}
		found.Missing = append(found.Missing, missing)
		return found
	}
	real, err := filepath.EvalSymlinks(at)
	if err != nil {
		found.Missing = append(found.Missing, err.Error())
		return found
	}
	// An agent's link would choose what of the host is shown to the next one.
	if f.theirs(at) && !f.theirs(real) {
		found.Missing = append(found.Missing, fmt.Sprintf("program %s: %s lies where agents write, and leads out of there to %s; take that folder out of PATH", a.Program, at, real))
		return found
	}
	found.Program = real
	found.show(packageOf(real))
	if !scriptOfNode(real) {
		return found
	}
	node, err := f.node(filepath.Dir(at), a.Node)
	if err != nil {
		found.Missing = append(found.Missing, err.Error())
		return found
	}
	found.Node, found.Path = node, []string{filepath.Dir(node)}
	found.show(installationOf(node))
	return found
}

// show adds a path unless it is in every sandbox's view, or below what is shown already.
func (f *Found) show(path string) {
	for _, seen := range append([]string{"/usr"}, f.Shown...) {
		if path == seen || strings.HasPrefix(path, seen+"/") {
			return
		}
	}
	if strings.Contains(path, ":") {
		f.Missing = append(f.Missing, path+": a folder with a colon in its name can't be shown (--ro-bind, PATH); move it")
	}
	f.Shown = append(f.Shown, path)
}

// usualPlaces are those of places.yaml, which a test reads.
func usualPlaces() (places []Place) {
	text, err := builtin.ReadFile(placesFile)
	if err == nil {
		n := read.YAML(read.Source{File: placesFile, Max: maxFile}, text)
		n.Into(&places)
		err = n.Done()
	}
	if err != nil {
		panic(err) // it is ours
	}
	return places
}

// program finds an executable file by its name: in first, in PATH, in the places.
func (f finder) program(name string, first []string) (path string, ok bool) {
	dirs := slices.Concat(first, filepath.SplitList(f.getenv("PATH")))
	for _, p := range f.places {
		dirs = append(dirs, f.folders(p.Path)...)
	}
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); filepath.IsAbs(dir) && err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, true
		}
	}
	return "", false
}

// folders are those that a place stands for. Of several the newest comes first.
func (f finder) folders(place string) []string {
	if rest, ok := strings.CutPrefix(place, "~/"); ok {
		place = "$HOME/" + rest
	}
	if rest, ok := strings.CutPrefix(place, "$"); ok {
		variable, rest, _ := strings.Cut(rest, "/")
		place = filepath.Join(f.getenv(variable), rest)
	}
	if !filepath.IsAbs(place) {
		return nil // the variable isn't set
	}
	dirs, _ := filepath.Glob(place)
	slices.SortStableFunc(dirs, func(a, b string) int { return changed(b).Compare(changed(a)) })
	return dirs
}

func changed(path string) time.Time {
	info, err := os.Stat(path)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// node finds Node beside the program, where version managers put both, then as any program.
func (f finder) node(beside string, least int) (string, error) {
	get := fmt.Sprintf("; install it from the distribution, or: nvm install %d", least)
	at, ok := f.program("node", []string{beside})
	if !ok {
		return "", fmt.Errorf("node %d or newer: not found%s", least, get)
	}
	real, err := filepath.EvalSymlinks(at)
	if err != nil {
		return "", err
	}
	// It is run here, and not in a sandbox: what an agent has left must not be, nor what its link leads to, as into its home.
	if f.theirs(at) || f.theirs(real) {
		return "", fmt.Errorf("node %d or newer: %s lies where agents write, and would be run on the host; take that folder out of PATH", least, at)
	}
	major, text, err := version(real)
	if err != nil {
		return "", fmt.Errorf("node %d or newer: %s --version: %w", least, real, err)
	}
	if major < least {
		return "", fmt.Errorf("node %d or newer: %s is %s%s", least, real, text, get)
	}
	return real, nil
}

// written are the folders that agents may have written: those that are given, the repositories that they lie in, and each node_modules
// above, which npm's scripts put into PATH. A folder that the caller's home is in is nobody's, and version managers put Node there.
func written(home string, dirs ...string) (all []string) {
	if real, err := filepath.EvalSymlinks(home); err == nil {
		home = real
	}
	for _, dir := range dirs {
		for given := true; dir != "" && dir != "/" && !strings.HasPrefix(home+"/", dir+"/"); dir, given = filepath.Dir(dir), false {
			all = append(all, dir+"/node_modules")
			if _, err := os.Lstat(dir + "/.git"); given || err == nil {
				all = append(all, dir)
			}
		}
	}
	return all
}

// theirs tells whether a path, or the folder that it leads through, is in one that agents may have written.
func (f finder) theirs(path string) bool {
	real, _ := filepath.EvalSymlinks(filepath.Dir(path))
	return slices.ContainsFunc(f.written, func(dir string) bool {
		return strings.HasPrefix(path, dir+"/") || strings.HasPrefix(real+"/", dir+"/")
	})
}

// version asks a Node, as v22.11.0.
func version(node string) (major int, text string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, node, "--version")
	// Version managers put a script in Node's place, which runs what a file of the current folder names (asdf's .tool-versions, "path:"), and
	// agents write that. In / nobody else does.
	cmd.Dir = "/"
	out, err := cmd.Output()
	if err != nil {
		return 0, "", err
	}
	text = strings.TrimSpace(string(out))
	m := regexp.MustCompile(`^v(\d{1,4})\.[\d.]+$`).FindStringSubmatch(text)
	if m == nil {
		return 0, "", errors.New("it says no version")
	}
	major, err = strconv.Atoi(m[1])
	return major, text, err
}

// packageOf is what to show of a program.
func packageOf(program string) string {
	const modules = "/node_modules"
	if above, _, ok := strings.Cut(program, modules+"/"); ok {
		return above + modules
	}
	return program
}

// ofAVersion says whether it is a folder that version managers make for one version of a program.
func ofAVersion(name string) bool {
	parts := strings.Split(strings.TrimPrefix(name, "v"), ".")
	for _, p := range parts {
		if p == "" || strings.Trim(p, "0123456789") != "" {
			return false
		}
	}
	return len(parts) == 3
}

// installationOf is what to show of a Node: all of its folder where that is for one version of it, as npm lies in it;
// else the file, since a folder such as ~/.local holds anything.
func installationOf(node string) string {
	prefix := filepath.Dir(filepath.Dir(node))
	for _, dir := range []string{prefix, filepath.Dir(prefix)} {
		if ofAVersion(filepath.Base(dir)) {
			return prefix
		}
	}
	return node
}

// scriptOfNode tells whether a file's first line names node.
func scriptOfNode(path string) bool {
	file, err := os.Open(path) //nolint:gosec // a program of the caller's PATH
	if err != nil {
		return false
	}
	defer file.Close()
	line := make([]byte, 128)
	n, _ := file.Read(line)
	first, _, _ := strings.Cut(string(line[:n]), "\n")
	return strings.HasPrefix(first, "#!") && strings.Contains(first, "node")
}
