// SPDX-License-Identifier: Apache-2.0

// Package agents describes coding agents that people host: where the program of each is found, what of the host it
// must see, which key goes to which host, and what it is told so that it behaves in a sandbox.
//
//	a, err := agents.Load(agents.DefaultDirs(configDirs), "claude")
//	found := a.Find(os.Getenv)
//	if len(found.Missing) == 0 { … found.Program, found.Shown … }
//
// Guarantees. A description is data: a file NAME.yaml, built in or the operator's own, in which each choice has a
// reason. It loosens nothing: what it says becomes flags of `agentrun exec`, which are checked as anybody's. A file of
// the operator's counts only if nobody else could have written it, and never takes the name of a built-in one.
//
// Errors. ErrNotFound: nobody has described that agent. fs.ErrPermission: others could have written the file. What
// is wrong with its text is a *read.InvalidError.
//
// It does not protect against a hostile program of that name in the caller's PATH: a sandbox does.
package agents

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"agentrun/internal/hinted"
	"agentrun/internal/read"
	"agentrun/profiles"
)

// Agent is the description of one coding agent.
type Agent struct {
	Name        string          `json:"name" read:"required"` // as the file's, without .yaml
	Origin      string          `json:"-"`                    // the file; empty: built in
	Description string          `json:"description" read:"required"`
	Program     string          `json:"program" read:"required"` // a file name
	Package     string          `json:"package"`                 // of npm, that brings the program
	Node        int             `json:"node"`                    // the least major version of Node, where the program is a script for it
	Places      []Place         `json:"places"`                  // where the program is, besides PATH and the usual places
	Ring        int             `json:"ring" read:"required"`
	Limits      profiles.Limits `json:"limits"` // as much of them as the node's ranges have
	Way         Way             `json:"way"`    // to its model; empty: Egress
	Keys        []Key           `json:"keys"`   // at least one of them is needed
	Allow       []Allow         `json:"allow"`
	Environment []Variable      `json:"environment"`
	Arguments   []Argument      `json:"arguments"`
	Home        []File          `json:"home"`
}

// Way is how an agent reaches its model.
type Way string

// The ways.
const (
	Egress Way = "egress" // the provider's own name; the gateway intercepts, and puts the key in
	Door   Way = "door"   // the gateway's own address, which counts, caps and stops, and asks the provider
)

// Choices implements read.Choice.
func (Way) Choices() []string { return []string{string(Egress), string(Door)} }

// Variable is one of the agent's environment.
type Variable struct {
	Name  string `json:"name" read:"required"`
	Value string `json:"value"`
	Way   Way    `json:"way"` // that it is for; empty: both
	Why   string `json:"why" read:"say why, for whoever reviews this"`
}

// Place is a folder where programs are: ~/ is the caller's home, $NAME/ a folder that a variable of the caller's names,
// * any name.
type Place struct {
	Path string `json:"path" read:"required"`
	Why  string `json:"why" read:"say why, for whoever reviews this"`
}

// Key is what a model's provider wants of whoever asks. The agent never has it: it is put into the agent's requests
// outside of the sandbox (M-8).
type Key struct {
	Env    string `json:"env" read:"required"`  // the caller's variable; inside, StandIn stands in it
	Host   string `json:"host" read:"required"` // whose certificate is verified before the key goes there
	Header string `json:"header" read:"required"`
	Prefix string `json:"prefix"` // before the key, as "Bearer "
	Door   Behind `json:"door"`   // the provider behind the model door; the zero value: it is reached by egress only
	Why    string `json:"why" read:"say why, for whoever reviews this"`
}

// Behind is what the section llm: of gateway.yaml is to say of a provider. Its models pass as they come, whatever their names.
type Behind struct {
	BaseURL      string   `json:"base_url"`
	Dialects     []string `json:"dialects"`
	AllowPrivate bool     `json:"allow_private"`
	CAFile       string   `json:"ca_file"`
	Input        int64    `json:"input"` // prices, as there; 0: calls are counted and cost nothing
	Output       int64    `json:"output"`
}

// StandIn is what an agent finds in the place of a key.
const StandIn = "agentrun-puts-the-key-in"

// Allow is a host that the agent needs besides its model's.
type Allow struct {
	Host string `json:"host" read:"required"`
	Why  string `json:"why" read:"say why, for whoever reviews this"`
}

// Argument comes before the caller's own.
type Argument struct {
	Text string `json:"text" read:"required"`
	Way  Way    `json:"way"` // that it is for; empty: both
	Why  string `json:"why" read:"say why, for whoever reviews this"`
}

// File is written into a new home of the agent's, and never over one that is there.
type File struct {
	Path    string `json:"path" read:"required"` // below the home
	Content string `json:"content" read:"required"`
	Why     string `json:"why" read:"say why, for whoever reviews this"`
}

//go:embed *.yaml
var builtin embed.FS

const (
	placesFile = "places.yaml" // the usual places, for all
	maxFile    = 64 << 10
)

// DefaultDirs are agents below the folders of the configuration.
func DefaultDirs(configDirs []string) []string {
	var dirs []string
	for _, d := range configDirs {
		dirs = append(dirs, filepath.Join(d, "agents"))
	}
	return dirs
}

// ErrNotFound is an agent that nobody has described.
var ErrNotFound = errors.New("nobody has described this agent")

// Load returns the description of that name: the built-in one, or that of the last folder that has one.
func Load(dirs []string, name string) (Agent, error) {
	file := name + ".yaml"
	if isWord(name) && file != placesFile {
		for _, dir := range slices.Backward(dirs) {
			path := filepath.Join(dir, file)
			text, err := read.File(path, read.OthersMayWrite, maxFile)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err == nil && slices.Contains(Builtin(), name) {
				err = errors.New("a built-in description has this name; choose another for the file")
			}
			if err != nil {
				return Agent{}, fmt.Errorf("agent %s: %s: %w", name, path, err)
			}
			return parse(path, text)
		}
		if text, err := builtin.ReadFile(file); err == nil {
			a, err := parse(file, text)
			a.Origin = ""
			return a, err
		}
	}
	return Agent{}, hinted.New(fmt.Errorf("host %.64q: %w", name, ErrNotFound), "there are "+strings.Join(Names(dirs), ", ")+
		"; your own: NAME.yaml in the folder agents of the configuration's")
}

// Builtin are the names of the built-in descriptions.
func Builtin() []string {
	var names []string
	files, _ := builtin.ReadDir(".")
	for _, f := range files {
		if f.Name() != placesFile {
			names = append(names, strings.TrimSuffix(f.Name(), ".yaml"))
		}
	}
	return names
}

// Names are those of all descriptions there are, readable or not.
func Names(dirs []string) []string {
	names := Builtin()
	for _, dir := range dirs {
		files, _ := filepath.Glob(filepath.Join(dir, "*.yaml"))
		for _, f := range files {
			names = append(names, strings.TrimSuffix(filepath.Base(f), ".yaml"))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// isWord tells whether a name is one of letters, digits, - and _: no path, no line, nothing for a terminal.
func isWord(name string) bool {
	return name != "" && len(name) <= 64 && strings.IndexFunc(name, func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '-' && r != '_'
	}) < 0
}

func parse(file string, text []byte) (Agent, error) {
	a := Agent{Origin: file}
	n := read.YAML(read.Source{File: file, Max: maxFile}, text)
	n.Into(&a)
	return a, n.Done(a.check(strings.TrimSuffix(filepath.Base(file), ".yaml")).Err())
}

// check reports what makes no sense. What a flag of exec checks is left to that.
func (a *Agent) check(name string) (ps read.Problems) {
	if a.Name != name {
		ps.Add("name", "%.64q: want %s, as the file's name", a.Name, name)
	}
	if a.Ring < 1 || a.Ring > 3 {
		ps.Add("ring", "%d: agents run in 1, 2 or 3", a.Ring)
	}
	if a.Program != filepath.Base(a.Program) {
		ps.Add("program", "%.64q: want the name of a file, without a folder", a.Program)
	}
	for i, p := range a.Places {
		if !strings.HasPrefix(p.Path, "/") && !strings.HasPrefix(p.Path, "~/") && !strings.HasPrefix(p.Path, "$") {
			ps.Add(fmt.Sprintf("places[%d].path", i), "%.64q: want it to begin with /, ~/ or $NAME/", p.Path)
		}
	}
	for i, k := range a.Keys {
		if !isWord(k.Env) {
			ps.Add(fmt.Sprintf("keys[%d].env", i), "%.64q is no variable name", k.Env)
		}
		if !isWord(k.Header) {
			ps.Add(fmt.Sprintf("keys[%d].header", i), "%.64q is no name of a header", k.Header)
		}
	}
	for i, k := range a.Keys {
		if a.Way == Door && (k.Door.BaseURL == "" || len(k.Door.Dialects) == 0) {
			ps.Add(fmt.Sprintf("keys[%d].door", i), "missing: way: door needs base_url and dialects of the provider behind it")
		}
	}
	for i, f := range a.Home {
		if !filepath.IsLocal(f.Path) || filepath.Clean(f.Path) != f.Path || f.Path == "." {
			ps.Add(fmt.Sprintf("home[%d].path", i), "%.64q: want a path below the home", f.Path)
		}
	}
	for i, arg := range a.Arguments {
		if strings.ContainsFunc(arg.Text, unicode.IsControl) {
			ps.Add(fmt.Sprintf("arguments[%d].text", i), "contains a control character")
		}
	}
	return ps
}
