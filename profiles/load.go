// SPDX-License-Identifier: Apache-2.0

package profiles

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"agentrun/internal/read"
)

// maxDepth bounds a chain of extends; five people building on each other are already hard to review.
const maxDepth = 8

// Sources says where profiles come from, besides the built-ins.
type Sources struct {
	Dirs   []string   // folders of NAME.yaml; of two files with one name the later folder's counts; missing folders are empty
	Ranges NodeRanges // of limits
}

// DefaultDirs are /etc/agentrun/profiles and agentrun/profiles in the user's configuration folder.
func DefaultDirs(getenv func(string) string) []string {
	dirs := []string{"/etc/agentrun/profiles"}
	// The XDG specification: relative paths are to be ignored.
	if x := getenv("XDG_CONFIG_HOME"); filepath.IsAbs(x) {
		return append(dirs, filepath.Join(x, "agentrun/profiles"))
	}
	if h := getenv("HOME"); filepath.IsAbs(h) {
		return append(dirs, filepath.Join(h, ".config/agentrun/profiles"))
	}
	return dirs
}

// Builtin returns a built-in profile; ok is false when there is none of that name. The caller may change what it gets.
func Builtin(name string) (p Profile, ok bool) {
	spare.Lock()
	defer spare.Unlock()
	if spare.of == name && spare.copy != nil {
		p, spare.copy = *spare.copy, nil
		return p, true
	}
	if p, ok = copyBuiltin(name); ok {
		spare.of, spare.copy = name, nil
	}
	return p, ok
}

func copyBuiltin(name string) (p Profile, ok bool) {
	for i := range builtinTable {
		b := &builtinTable[i]
		if b.profile.Name == name {
			p = b.profile.Clone()
			p.Syscalls = make([]SyscallRule, len(b.rules))
			for j, r := range b.rules {
				p.Syscalls[j] = builtinRules[r]
			}
			detachRules(p.Syscalls)
			return p, true
		}
	}
	return Profile{}, false
}

// spare is a copy of the profile that was asked for last, which nobody has had.
var spare struct {
	sync.Mutex
	of   string
	copy *Profile
}

// Ahead copies the built-in profile that was asked for last, so that whoever asks for it next needn't wait.
func Ahead() {
	spare.Lock()
	defer spare.Unlock()
	if spare.copy == nil {
		if p, ok := copyBuiltin(spare.of); ok {
			spare.copy = &p
		}
	}
}

func builtinNames() []string {
	names := make([]string, len(builtinTable))
	for i := range builtinTable {
		names[i] = builtinTable[i].profile.Name
	}
	slices.Sort(names)
	return names
}

//go:embed base.yaml ring1.yaml ring2.yaml ring3.yaml strict.yaml
var builtinFiles embed.FS

// BuiltinYAML returns the source of a built-in profile.
func BuiltinYAML(name string) (string, bool) {
	text, err := builtinFiles.ReadFile(name + ".yaml")
	return string(text), err == nil
}

//go:embed profile.schema.json
var schema []byte

// Schema returns the JSON Schema (draft 2020-12) of a profile file.
func Schema() []byte { return slices.Clone(schema) }

// Load returns the profile of that name, resolved and checked, ready to run: an abstract one is refused.
func Load(s Sources, name string) (Profile, error) {
	p, err := s.resolve(name, nil)
	if err != nil {
		return Profile{}, err
	}
	if p.Abstract {
		return Profile{}, invalid(name, "abstract", "only a base for others; it can't be run")
	}
	return p, nil
}

// Info is a line of the list of profiles.
type Info struct {
	Name        string `json:"name"`
	Origin      string `json:"origin"` // "built-in" or the file
	Ring        int    `json:"ring,omitempty"`
	Abstract    bool   `json:"abstract,omitempty"`
	Description string `json:"description,omitempty"`
	Err         error  `json:"-"` // why it can't be used
}

// List returns every profile by name, the broken ones with their error.
func List(s Sources) []Info {
	var infos []Info
	for _, name := range builtinNames() {
		p, _ := Builtin(name)
		infos = append(infos, Info{Name: name, Origin: "built-in", Ring: p.Ring, Abstract: p.Abstract, Description: p.Description})
	}
	files := map[string]string{}
	for _, dir := range s.Dirs {
		matches, _ := os.ReadDir(dir)
		for _, e := range matches {
			if name, ok := strings.CutSuffix(e.Name(), ".yaml"); ok {
				files[name] = filepath.Join(dir, e.Name())
			}
		}
	}
	for name, file := range files {
		info := Info{Name: name, Origin: file}
		p, err := s.resolve(name, nil)
		info.Ring, info.Abstract, info.Description, info.Err = p.Ring, p.Abstract, p.Description, err
		infos = append(infos, info)
	}
	slices.SortFunc(infos, func(a, b Info) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Origin, b.Origin))
	})
	return infos
}

// ValidateFile returns everything wrong with the profile in file. Parents are looked for beside it, then in s.
func ValidateFile(s Sources, file string) []read.Problem {
	name, ok := strings.CutSuffix(filepath.Base(file), ".yaml")
	if !ok {
		return []read.Problem{{File: file, Message: "a profile's file is called NAME.yaml"}}
	}
	if _, builtin := BuiltinYAML(name); builtin {
		return []read.Problem{{File: file, Message: (&ShadowError{name, file}).Error()}}
	}
	s.Dirs = append(slices.Clone(s.Dirs), filepath.Dir(file))
	_, err := s.fromFile(name, file, nil)
	return asProblems(file, err)
}

func asProblems(file string, err error) []read.Problem {
	if err == nil {
		return nil
	}
	if invalid, ok := errors.AsType[*read.InvalidError](err); ok {
		return invalid.Problems
	}
	return []read.Problem{{File: file, Message: err.Error()}}
}

// resolve returns a profile merged onto its parents. chain holds the names on the way here, for cycles.
func (s Sources) resolve(name string, chain []string) (Profile, error) {
	if !validName(name) {
		return Profile{}, invalid(name, "name", "%q: want up to %d of a–z, 0–9, - and _, starting with a letter or digit", name, maxName)
	}
	file, err := s.find(name)
	if err != nil {
		return Profile{}, err
	}
	p, builtin := Builtin(name)
	switch {
	case builtin && file != "":
		return Profile{}, &ShadowError{name, file}
	case builtin:
		if !p.Abstract {
			p.Limits.within(s.Ranges.Of(p.Ring))
		}
		return p, nil
	case file == "":
		return Profile{}, &NotFoundError{name, s.Dirs}
	}
	return s.fromFile(name, file, chain)
}

// find returns the file of that name in the last folder that has one. Only "does not exist" means there is none: a
// folder that can't be read may hold the profile the operator wants.
func (s Sources) find(name string) (string, error) {
	for _, dir := range slices.Backward(s.Dirs) {
		file := filepath.Join(dir, name+".yaml")
		switch _, err := os.Lstat(file); {
		case err == nil:
			return file, nil
		case !errors.Is(err, fs.ErrNotExist):
			return "", fmt.Errorf("profile %s: %w", name, err)
		}
	}
	return "", nil
}

func (s Sources) fromFile(name, file string, chain []string) (Profile, error) {
	data, info, err := read.Regular(file, maxFileBytes)
	if err == nil {
		err = read.Trusted(file, info)
	}
	if err != nil {
		return Profile{}, fmt.Errorf("profile %s: %w", name, err)
	}
	return s.fromYAML(name, file, data, append(chain, name))
}

// fromYAML decodes data onto its parent. It needs the parent first, and the parent's name stands in data: so the document
// is decoded twice, once onto nothing.
func (s Sources) fromYAML(name, file string, data []byte, chain []string) (p Profile, err error) {
	var own Profile
	var ps read.Problems
	n := decode(file, data, &own)
	if n.Empty() {
		ps.Add("", "empty: a profile has at least name, description, extends")
	}
	checkDocument(own, ps.Add)
	checkTexts(&own, ps.Add)
	if own.Name != name {
		ps.Add("name", "%q, but the file is called %s.yaml", own.Name, name)
	}
	parent, err := s.parent(own, chain)
	theirs, broken := errors.AsType[*read.InvalidError](err)
	switch {
	case broken:
		ps.Add("extends", "%s is invalid:", own.Extends)
	case err != nil:
		ps.Add("extends", "%v", err)
	default:
		p = merged(parent, data, &ps)
		checkResolved(p, s.Ranges.Of(p.Ring), ps.Add)
	}
	if err = n.Done(ps.Err()); err == nil {
		return p, nil
	}
	if ours, ok := errors.AsType[*read.InvalidError](err); ok && broken {
		ours.Problems = append(ours.Problems, theirs.Problems...) // they stand at the parent's lines
	}
	return Profile{}, fmt.Errorf("profile %s: %w", name, err)
}

// merged decodes data, which was decoded before, onto a copy of its parent.
func merged(parent Profile, data []byte, ps *read.Problems) Profile {
	p := parent.Clone()
	p.Name, p.Description, p.Abstract, p.Extends = "", "", false, ""
	lists := takeLists(&p)
	decode("", data, &p) // said everything it had to say the first time
	trimReasons(&p)
	mergeLists(&p, lists, ps.Add)
	return p
}

// parent resolves what own extends. Everything but `base` itself must extend something, so that every chain ends in base and
// carries its floor.
func (s Sources) parent(own Profile, chain []string) (Profile, error) {
	switch {
	case own.Extends == "" && own.Name == "base" && chain[len(chain)-1] == "base":
		return Profile{}, nil
	case own.Extends == "":
		return Profile{}, errors.New("missing: extend ring1, ring2, ring3, strict, base or a profile of your own")
	case slices.Contains(chain, own.Extends):
		return Profile{}, fmt.Errorf("goes in a circle: %s → %s", strings.Join(chain, " → "), own.Extends)
	case len(chain) >= maxDepth:
		return Profile{}, fmt.Errorf("more than %d profiles deep: %s", maxDepth, strings.Join(chain, " → "))
	}
	return s.resolve(own.Extends, chain)
}

// invalid is one problem of a profile that no line of a file has.
func invalid(name, path, format string, args ...any) error {
	var ps read.Problems
	ps.Add(path, format, args...)
	return fmt.Errorf("profile %s: %w", name, ps.Err())
}

// builtin is a generated profile: rules are indices into builtinRules, since the rings share most of theirs.
type builtin struct {
	profile Profile
	rules   []uint16
	sum     string // Digest of it
}
