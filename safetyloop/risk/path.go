// SPDX-License-Identifier: Apache-2.0

package risk

import (
	"path"
	"slices"
	"strings"
)

// pathLike tells a path from a word: absolute, relative with dots, in the home folder, on a Windows drive, or
// a name with a suffix that files have.
func pathLike(s string) bool {
	switch {
	case s == "" || strings.Contains(s, "://"):
		return false
	case s[0] == '/', s[0] == '~', strings.HasPrefix(s, "./"), strings.HasPrefix(s, "../"), s == "..", drive(s), strings.HasPrefix(s, "$HOME"), s[0] == '.' && len(s) > 2 && letter(s[1]), strings.Contains(s, "/../"):
		return true
	}
	return is(strings.ToLower(path.Ext(s)), suffix) // a name such as fs.delete_file has none of them
}

func letter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

func drive(s string) bool {
	return len(s) > 2 && letter(s[0]) && s[1] == ':' && (s[2] == '/' || s[2] == '\\')
}

// places judges the paths, once it is known what is done.
func (f *finder) places() {
	for _, p := range f.paths {
		if p.prose && slices.Contains(f.programs, p.path) {
			continue
		}
		f.judge(p.path, p.changes || p.prose && f.rewrites())
	}
	if f.found[changesOutside] {
		f.found[readsOutside] = false
	}
}

// judge weighs one path. Credentials and start-up files come first, wherever they lie: they count within the
// workspace as well. A root is then all there is to say. Only after that does it matter whether the path is
// inside: a path that is inside or harmless adds nothing.
//
// The path isn't looked up, because the judge has no files and the agent could change them before it acts. A
// link within the workspace that leads out of it isn't seen; the sandbox holds that.
func (f *finder) judge(raw string, changes bool) {
	name := cleaned(raw)
	if w := f.env.Workspace; w != "" && (name == ".." || strings.HasPrefix(name, "../")) {
		name = path.Join(w, name) // at least: from a folder further down it may lead out as well
	}
	if changes && within(strings.ToLower("/"+name), starts) {
		f.add(persistence, raw)
	}
	if credentials(name) {
		f.add(credentialPath, raw)
		f.sensitive = true
	}
	if changes && root(name) {
		f.add(targetRoot, raw)
		return
	}
	if is(name, harmless) || strings.HasPrefix(name, "/tmp/") || strings.HasPrefix(name, "/dev/fd/") || f.inside(name) {
		return
	}
	if osPath(name) {
		f.add(systemPath, raw)
	}
	if changes {
		f.add(changesOutside, raw)
	} else {
		f.add(readsOutside, raw)
	}
	f.sensitive = f.sensitive || osPath(name)
}

// cleaned resolves dots without looking at any file, and takes every spelling of a home folder as ~. The star
// at a path's end is kept: all that is in a folder is another thing than the folder. Two slashes at the
// front, and file: before them, are one.
func cleaned(p string) string {
	p = strings.ReplaceAll(p, "\\", "/")
	for _, home := range [...]string{"$HOME", "${HOME}", "$home"} {
		if rest, ok := strings.CutPrefix(p, home); ok {
			p = "~" + rest
		}
	}
	if strings.HasPrefix(p, "file:/") {
		p = "/" + strings.TrimLeft(p[len("file:/"):], "/")
	}
	star := strings.HasSuffix(p, "/*") || strings.HasSuffix(p, "/.")
	p = path.Clean(p)
	if star && path.Base(p) != "*" {
		p = path.Join(p, "*")
	}
	if strings.HasPrefix(p, "//") {
		p = p[1:]
	}
	return p
}

// inside tells whether a cleaned path is within the workspace. A relative one is, unless it climbs out: where
// the agent stands isn't known, and cd is followed by touch. No workspace, or the root as one, has nothing
// inside.
func (f *finder) inside(p string) bool {
	switch {
	case strings.HasPrefix(p, "~"), drive(p):
		return false
	case strings.HasPrefix(p, "/"):
		w := path.Clean(f.env.Workspace)
		return f.env.Workspace != "" && w != "/" && (p == w || strings.HasPrefix(p, w+"/"))
	}
	return p != ".." && !strings.HasPrefix(p, "../")
}

// root takes what nothing is left of when it is gone.
func root(p string) bool {
	switch lower := strings.ToLower(p); {
	case is(p, whole):
		return true
	case len(lower) <= 4 && drive(lower+"/"), strings.HasPrefix(lower, "c:/windows"):
		return true
	case strings.HasPrefix(lower, "/dev/"):
		return disk(lower[len("/dev/"):])
	case strings.HasPrefix(p, "/home/"), strings.HasPrefix(p, "/Users/"):
		return strings.Count(p, "/") == 2
	}
	return false
}

// disk takes the names of devices that hold everything, or memory.
func disk(name string) bool {
	return slices.ContainsFunc(lexicon().lists[device], func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

func osPath(p string) bool {
	if strings.HasSuffix(p, ".sock") {
		return true
	}
	return slices.ContainsFunc(lexicon().lists[osFolder], func(top string) bool { return p == top || strings.HasPrefix(p, top+"/") })
}

// credentials takes the usual places of keys and passwords, in any case of letters: not every file system
// tells them apart. Files that only show what a .env looks like hold none.
func credentials(p string) bool {
	p = strings.ToLower(p)
	if within("/"+p, credentialPlace) {
		return true
	}
	base := path.Base(p)
	switch {
	case base == "shadow" || base == "environ":
		return strings.HasPrefix(p, "/etc") || strings.HasPrefix(p, "/proc")
	case strings.HasPrefix(base, ".env."):
		return base != ".env.example" && base != ".env.sample" && base != ".env.template"
	}
	return is(base, credentialFile) || is(path.Ext(base), credentialSuffix)
}
