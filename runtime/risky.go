// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
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
}

func newRiskyTable(table []profiles.GuardEntry) *riskyTable {
	t := &riskyTable{by: map[string][]profiles.GuardEntry{}}
	for _, e := range table {
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
func (p *Plan) tellChanges(s *Status, since time.Time, count bool, wrote map[uint64]fsjail.Written) []FileWrite {
	for _, e := range p.Entries {
		if e.Target != workspaceDir || e.Kind != fsjail.Bind || !e.Writable && len(wrote) == 0 || e.IsFile {
			continue
		}
		l := &riskyLook{plan: p, table: newRiskyTable(p.profile.Files.Guard), count: count || len(wrote) > 0, wrote: wrote, since: since, until: time.Now().Add(maxRiskyLook), left: maxRiskyNames, seen: map[string]bool{}}
		if err := l.folder(e.Source, ""); err != nil {
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
	table        *riskyTable
	since, until time.Time
	left         int
	seen         map[string]bool
	list         []string
	count        bool // all that was changed
	changed      int
	wrote        map[uint64]fsjail.Written
	files        []FileWrite
	partial      bool
}

// unlooked are folders that hold too much to look at, and nothing of the table that a change of it wouldn't show elsewhere.
var unlooked = map[string]bool{"node_modules": true, "objects": true, "refs": true}

var errEnough = errors.New("enough")

// folder goes down by descriptor, without following links: a path of a hostile tree may be of any length and change at any time.
func (l *riskyLook) folder(name, rel string) error {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("open", err)
	}
	return l.opened(os.NewFile(uintptr(fd), name), rel, 0)
}

func (l *riskyLook) opened(f *os.File, rel string, depth int) error {
	defer f.Close()
	for {
		names, err := f.ReadDir(256)
		for _, n := range names {
			if l.left--; l.left < 0 || time.Now().After(l.until) || len(l.list) >= maxRisky {
				return errEnough
			}
			at := path.Join(rel, n.Name())
			if n.IsDir() && !(unlooked[n.Name()] && (n.Name() == "node_modules" || path.Base(rel) == ".git")) && depth < 64 {
				if fd, err := unix.Openat(int(f.Fd()), n.Name(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err == nil {
					if err := l.opened(os.NewFile(uintptr(fd), at), at, depth+1); err != nil {
						return err
					}
				}
			}
			if !n.IsDir() {
				l.file(int(f.Fd()), n.Name(), at, n.Type() == fs.ModeSymlink)
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

func (l *riskyLook) file(dir int, name, rel string, link bool) {
	at, _, risky := l.table.find(rel)
	if _, ok := RiskyLink(rel); ok && link && !risky {
		at, risky = rel, true
	}
	if risky = risky && !l.seen[at] && !l.plan.guardsPath(at); !risky && !l.count {
		return // a look at each file is most of what this costs
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || time.Unix(st.Ctim.Unix()).Before(l.since) {
		return
	}
	if !strings.HasPrefix(rel, ".git/") && !strings.Contains(rel, "/.git/") {
		l.changed++
		switch w, ok := l.wrote[st.Ino]; {
		case !ok:
		case len(l.files) < maxFileWrites:
			l.files = append(l.files, FileWrite{rel, w})
		default:
			l.partial = true
		}
	}
	if risky {
		l.seen[at] = true
		l.list = append(l.list, at)
	}
}

// guardsPath says whether a path of the workspace is read-only to the agent.
func (p *Plan) guardsPath(rel string) bool {
	for _, e := range p.Entries {
		if at := strings.TrimPrefix(e.Target, workspaceDir+"/"); e.Kind == fsjail.Bind && e.Guard && !e.Writable && (rel == at || strings.HasPrefix(rel, at+"/")) {
			return true
		}
	}
	return false
}
