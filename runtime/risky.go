// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/fsjail"
	"agentrun/profiles"
)

// Risky says which part of a path below a workspace is one that the host runs later, and why: an entry of the profile's table, at any
// depth, as a nested repository has hooks too, and a submodule's in .git/modules has what .git has. Not ok: it is an ordinary file.
func Risky(table []profiles.GuardEntry, rel string) (at, why string, ok bool) {
	return newRiskyTable(table).find(rel)
}

// RiskyAbove says why a path that is no folder is risky where one would lead to what the host runs: what lies there is then named elsewhere, by
// a link, or by git's file with the name of a repository.
func RiskyAbove(table []profiles.GuardEntry, rel string) (why string, ok bool) {
	parts := strings.Split(rel, "/")
	for _, e := range table {
		if e.Mode == profiles.GuardOpen {
			continue
		}
		for above := path.Dir(e.Path); above != "."; above = path.Dir(above) {
			if n := strings.Count(above, "/") + 1; n <= len(parts) && matchParts(above, parts[len(parts)-n:]) == n {
				return e.Why, true
			}
		}
	}
	return "", false
}

// RiskyLink says whether a link lies in a folder of git's. The host's git writes through those in the place of logs/HEAD, COMMIT_EDITMSG, index
// and others, wherever they lead, and has text of the agent's to write: the name of the branch that somebody leaves.
func RiskyLink(rel string) (why string, ok bool) {
	return "git on the host writes through it", strings.Contains("/"+rel, "/.git/")
}

// riskyTable has the entries by how they begin, so that a path is held against those few that may fit.
type riskyTable struct {
	by   map[string][]profiles.GuardEntry
	wild []profiles.GuardEntry // that begin with a pattern
	part map[string]bool       // each name in a path
}

func newRiskyTable(table []profiles.GuardEntry) *riskyTable {
	t := &riskyTable{by: map[string][]profiles.GuardEntry{}, part: map[string]bool{}}
	for _, e := range table {
		for part := range strings.SplitSeq(e.Path, "/") {
			t.part[part] = true
		}
		switch first, _, _ := strings.Cut(e.Path, "/"); {
		case e.Mode == profiles.GuardOpen:
		case strings.ContainsAny(first, `*?[\`):
			t.wild = append(t.wild, e)
		default:
			t.by[first] = append(t.by[first], e)
		}
	}
	return t
}

func (t *riskyTable) find(rel string) (at, why string, ok bool) {
	parts := strings.Split(rel, "/")
	if _, below, ok := strings.Cut("/"+rel, "/"+gitModules+"/"); ok {
		for i := len(parts) - strings.Count(below, "/"); i < len(parts); i++ { // the name of a submodule may have slashes
			for _, e := range t.by[".git"] {
				rest, in := strings.CutPrefix(e.Path, ".git/")
				if n := matchParts(rest, parts[i:]); in && n > 0 {
					return strings.Join(parts[:i+n], "/"), e.Why, true
				}
			}
		}
	}
	for i, part := range parts {
		for _, list := range [][]profiles.GuardEntry{t.by[part], t.wild} {
			for _, e := range list {
				if n := matchParts(e.Path, parts[i:]); n > 0 {
					return strings.Join(parts[:i+n], "/"), e.Why, true
				}
			}
		}
	}
	return "", "", false
}

// matchParts is how many parts the pattern matches, from the first on; 0: it doesn't.
func matchParts(pattern string, parts []string) int {
	for n := 0; ; n++ {
		one, rest, more := strings.Cut(pattern, "/")
		if n == len(parts) {
			return 0
		}
		if ok, _ := path.Match(one, parts[n]); one != parts[n] && !ok {
			return 0
		}
		if !more {
			return n + 1
		}
		pattern = rest
	}
}

const (
	maxRisky      = 100     // told of one run
	maxRiskyNames = 1 << 18 // looked at
	maxRiskyLook  = time.Second
)

// tellChanges tells how many files of the writable workspace were changed since its first instruction, and which of them are in the table,
// wherever they are; RiskyMore: there are more, or not all was looked at. The time is that of the last change of the inode, which nobody
// can set back, by the clock that the kernel takes it from (clock_gettime(2), CLOCK_REALTIME_COARSE). What is mounted over itself can't have changed by the agent, and is left out.
//
// What it finds that is among the files that the run has written, by inode, it returns.
//
// Of a workspace that an elevation has opened, late is what was guarded then.
func (p *Plan) tellChanges(s *Status, since time.Time, count bool, wrote map[uint64]fsjail.Written, late []fsjail.Entry) []FileWrite {
	for _, e := range p.Entries {
		if e.Target != workspaceDir || e.Kind != fsjail.Bind || !e.Writable && len(wrote) == 0 && late == nil || e.IsFile {
			continue
		}
		l := &riskyLook{plan: p, guards: slices.Concat(p.Entries, late), table: newRiskyTable(p.profile.Files.Guard), count: count || len(wrote) > 0, wrote: wrote, since: since, until: time.Now().Add(maxRiskyLook), left: maxRiskyNames, seen: map[string]bool{}}
		if err := l.look(e.Source); err != nil {
			l.partial = true
		}
		s.FilesChanged, s.RiskyFiles, s.RiskyMore = l.changed, l.list, l.partial
		return l.files
	}
	return nil
}

// FileWrite is a file of the workspace as a run has left it.
type FileWrite struct {
	Path string // relative to the workspace
	fsjail.Written
}

// maxFileWrites are told of a run.
const maxFileWrites = 1000

type riskyLook struct {
	plan         *Plan
	guards       []fsjail.Entry // among others
	table        *riskyTable
	since, until time.Time
	left         int
	seen         map[string]bool
	list         []string
	count        bool // all that was changed
	changed      int
	wrote        map[uint64]fsjail.Written
	files        []FileWrite
	later        []*riskyFolder // with what was installed
	packages     bool           // these are looked at
	partial      bool
}

// unlooked are folders of .git that hold too much to look at.
var unlooked = map[string]bool{"objects": true, "refs": true}

const (
	installed = "node_modules" // of all that it has only repositories are told, and last: what has a Makefile there is run by nobody's word
	mostLater = 64             // such folders, each of which is open until then
	mostDepth = 64
)

var errEnough = errors.New("enough")

// look goes down by descriptor, without following links: a path of a hostile tree may be of any length and change at any time.
func (l *riskyLook) look(name string) error {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("open", err)
	}
	err = l.opened(&riskyFolder{File: os.NewFile(uintptr(fd), name)})
	l.packages = true
	for _, f := range l.later {
		if err != nil {
			f.Close()
		} else {
			err = l.opened(f)
		}
	}
	return err
}

// riskyFolder is open.
type riskyFolder struct {
	*os.File
	rel   string
	depth int
	moved bool // it, or one above it, may have been given its name since
}

func (l *riskyLook) opened(f *riskyFolder) error {
	defer f.Close()
	for {
		names, err := f.ReadDir(256)
		for _, n := range names {
			if l.left--; l.left < 0 || time.Now().After(l.until) || len(l.list) >= maxRisky {
				return errEnough
			}
			at := path.Join(f.rel, n.Name())
			switch {
			case !n.IsDir():
				l.file(f, n.Name(), at, n.Type() == fs.ModeSymlink)
			case unlooked[n.Name()] && path.Base(f.rel) == ".git":
			default:
				if err := l.down(f, n.Name(), at); err != nil {
					return err
				}
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ENOENT) { // a folder that was removed under us has no names
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// down goes into a folder, or keeps it for later.
func (l *riskyLook) down(f *riskyFolder, name, at string) error {
	fd, err := unix.Openat(int(f.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil || f.depth == mostDepth {
		l.partial = l.partial || !errors.Is(err, unix.ENOENT)
		if err == nil {
			unix.Close(fd)
		}
		return nil
	}
	sub := &riskyFolder{os.NewFile(uintptr(fd), at), at, f.depth + 1, f.moved || l.renamed(fd, at)}
	switch {
	case name != installed || l.packages:
		return l.opened(sub)
	case len(l.later) < mostLater:
		l.later = append(l.later, sub)
	default:
		l.partial = true
		return sub.Close()
	}
	return nil
}

// renamed tells whether a folder of the table, or above what is in it, may have come from another name, where nothing in it was told: an
// earlier run made x/git and this one .git of it. The time of its own inode says so, of what is in it no time does. A folder that is a mount point
// kept its name.
func (l *riskyLook) renamed(fd int, at string) bool {
	if !l.table.part[path.Base(at)] {
		return false // what it was put into has changed
	}
	_, _, risky := l.table.find(at)
	if !risky {
		_, risky = RiskyAbove(l.plan.profile.Files.Guard, at)
	}
	var st unix.Stat_t
	return risky && !l.staysPut(at) && unix.Fstat(fd, &st) == nil && !time.Unix(st.Ctim.Unix()).Before(l.since)
}

func (l *riskyLook) file(f *riskyFolder, name, rel string, link bool) {
	if l.packages && name != "HEAD" && name != ".git" && !strings.Contains(rel, "/.git/") {
		return
	}
	at, _, risky := l.table.find(rel)
	if _, ok := RiskyLink(rel); ok && link && !risky {
		at, risky = rel, true
	}
	if !risky && l.table.part[name] { // git's file, or a link, that says where what is in the table lies
		_, risky = RiskyAbove(l.plan.profile.Files.Guard, rel)
		at = rel
	}
	count := l.count && !l.packages
	if risky = risky && !l.seen[at] && !l.kept(at); !risky && !count {
		return // a look at each file is most of what this costs
	}
	var st unix.Stat_t
	if err := unix.Fstatat(int(f.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return
	}
	changed := !time.Unix(st.Ctim.Unix()).Before(l.since)
	if changed && count && !strings.HasPrefix(rel, ".git/") && !strings.Contains(rel, "/.git/") {
		l.changed++
		switch w, ok := l.wrote[st.Ino]; {
		case !ok:
		case len(l.files) < maxFileWrites:
			l.files = append(l.files, FileWrite{rel, w})
		default:
			l.partial = true
		}
	}
	if risky && (changed || f.moved) {
		l.seen[at] = true
		l.list = append(l.list, at)
	}
}

// kept says whether a path of the workspace is read-only to the agent.
func (l *riskyLook) kept(rel string) bool {
	for _, e := range l.guards {
		if at := strings.TrimPrefix(e.Target, workspaceDir+"/"); e.Kind == fsjail.Bind && e.Guard && !e.Writable && !e.Live && (rel == at || strings.HasPrefix(rel, at+"/")) {
			return true
		}
	}
	return false
}

// staysPut says whether a folder of the workspace couldn't be given its name by the agent.
func (l *riskyLook) staysPut(rel string) bool {
	return slices.ContainsFunc(l.guards, func(e fsjail.Entry) bool { return e.Guard && e.Target == path.Join(workspaceDir, rel) }) || l.kept(rel)
}
