// SPDX-License-Identifier: Apache-2.0

package profiles

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// maxDepth bounds a chain of extends; five people building on each other are already hard to review.
const maxDepth = 8

// Sources says where profiles come from, besides the built-ins.
type Sources struct {
	Dirs   []string // folders of NAME.yaml; of two files with one name the later folder's counts; missing folders are empty
	Ranges Ranges   // of limits; the zero value means SpecRanges
}

func (s Sources) ranges() Ranges {
	if s.Ranges == (Ranges{}) {
		return SpecRanges()
	}
	return s.Ranges
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

func builtinNames() []string {
	names := make([]string, len(builtinTable))
	for i := range builtinTable {
		names[i] = builtinTable[i].profile.Name
	}
	slices.Sort(names)
	return names
}

// BuiltinYAML returns the source of a built-in profile.
func BuiltinYAML(name string) (string, bool) {
	switch name {
	case "base":
		return baseYAML, true
	case "ring1":
		return ring1YAML, true
	case "ring2":
		return ring2YAML, true
	case "ring3":
		return ring3YAML, true
	case "strict":
		return strictYAML, true
	}
	return "", false
}

var (
	//go:embed base.yaml
	baseYAML string
	//go:embed ring1.yaml
	ring1YAML string
	//go:embed ring2.yaml
	ring2YAML string
	//go:embed ring3.yaml
	ring3YAML string
	//go:embed strict.yaml
	strictYAML string
	//go:embed profile.schema.json
	schema string
)

// Schema returns the JSON Schema (draft 2020-12) of a profile file.
func Schema() []byte { return []byte(schema) }

// Load returns the profile of that name, resolved and checked, ready to run: an abstract one is refused.
func Load(s Sources, name string) (Profile, error) {
	p, err := s.resolve(name, nil)
	if err != nil {
		return Profile{}, err
	}
	if p.Abstract {
		return Profile{}, &InvalidError{name, []Problem{{Path: "abstract", Message: "only a base for others; it can't be run"}}}
	}
	// Not only of files: with narrower ranges a built-in may be out of them too.
	if ps := p.Limits.Check(s.ranges()); len(ps) > 0 {
		return Profile{}, &InvalidError{name, ps}
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
func ValidateFile(s Sources, file string) []Problem {
	name, ok := strings.CutSuffix(filepath.Base(file), ".yaml")
	if !ok {
		return []Problem{{File: file, Message: "a profile's file is called NAME.yaml"}}
	}
	if _, builtin := BuiltinYAML(name); builtin {
		return []Problem{{File: file, Message: (&ShadowError{name, file}).Error()}}
	}
	s.Dirs = append(slices.Clone(s.Dirs), filepath.Dir(file))
	_, err := s.fromFile(name, file, nil)
	return asProblems(file, err)
}

func asProblems(file string, err error) []Problem {
	if err == nil {
		return nil
	}
	if invalid, ok := errors.AsType[*InvalidError](err); ok {
		return invalid.Problems
	}
	return []Problem{{File: file, Message: err.Error()}}
}

// resolve returns a profile merged onto its parents. chain holds the names on the way here, for cycles.
func (s Sources) resolve(name string, chain []string) (Profile, error) {
	if !validName(name) {
		return Profile{}, &InvalidError{name, []Problem{{Path: "name", Message: fmt.Sprintf(
			"%q: want up to %d of a–z, 0–9, - and _, starting with a letter or digit", name, maxName)}}}
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
	data, err := readFile(file)
	if err != nil {
		return Profile{}, fmt.Errorf("profile %s: %w", name, err)
	}
	return s.fromYAML(name, file, data, append(chain, name))
}

// readFile reads a regular file of bounded size; O_NONBLOCK so that a FIFO left in the folder can't hang the start.
func readFile(file string) ([]byte, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", file)
	}
	return io.ReadAll(io.LimitReader(f, maxFileBytes+1))
}

// fromYAML decodes data onto its parent. It needs the parent first, and the parent's name stands in data: so the document
// is decoded twice, once onto nothing.
func (s Sources) fromYAML(name, file string, data []byte, chain []string) (Profile, error) {
	d := &decoder{file: file}
	var own Profile
	d.document(data, &own)
	if len(d.lines) == 0 || d.failed[""] { // not YAML, or no mapping: there is nothing to check
		return Profile{}, d.invalid(name)
	}
	checkDocument(own, d.reportAt)
	if own.Name != name {
		d.reportAt("name", "%q, but the file is called %s.yaml", own.Name, name)
	}
	parent, ok := s.parent(own, d, chain)
	if !ok {
		return Profile{}, d.invalid(name)
	}
	p := parent.Clone()
	p.Name, p.Description, p.Abstract, p.Extends = "", "", false, ""
	lists := takeLists(&p)
	(&decoder{}).document(data, &p) // said everything it had to say the first time
	mergeLists(&p, lists, d.reportAt)
	checkResolved(p, s.ranges(), d.reportAt)
	if len(d.problems) > 0 {
		return Profile{}, d.invalid(name)
	}
	return p, nil
}

// parent resolves what own extends; when it can't, ok is false and d has the problem. Everything but `base` itself must
// extend something, so that every chain ends in base and carries its floor.
func (s Sources) parent(own Profile, d *decoder, chain []string) (p Profile, ok bool) {
	fail := func(format string, args ...any) (Profile, bool) {
		d.reportAt("extends", format, args...)
		return Profile{}, false
	}
	switch {
	case own.Extends == "" && own.Name == "base" && chain[len(chain)-1] == "base":
		return Profile{}, true
	case own.Extends == "":
		return fail("missing: extend ring1, ring2, ring3, strict, base or a profile of your own")
	case slices.Contains(chain, own.Extends):
		return fail("goes in a circle: %s → %s", strings.Join(chain, " → "), own.Extends)
	case len(chain) >= maxDepth:
		return fail("more than %d profiles deep: %s", maxDepth, strings.Join(chain, " → "))
	}
	p, err := s.resolve(own.Extends, chain)
	if err == nil {
		return p, true
	}
	if invalid, ok := errors.AsType[*InvalidError](err); ok {
		// The parent's problems stand at the parent's lines.
		fail("%s is invalid:", own.Extends)
		d.problems = append(d.problems, invalid.Problems...)
		return Profile{}, false
	}
	return fail("%v", err)
}

// builtin is a generated profile: rules are indices into builtinRules, since the rings share most of theirs.
type builtin struct {
	profile Profile
	rules   []uint16
}
