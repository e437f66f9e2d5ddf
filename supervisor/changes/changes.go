// SPDX-License-Identifier: Apache-2.0

// Package changes keeps what runs with --workspace-mode overlay have changed, until somebody has looked at it: it lists it against the
// workspace as it is now, applies all or a part, or throws it away.
//
// The changes of a run are a tar in the form of an OCI image layer (fsjail.Root.SaveTree) and a file about it, in the folder changes of
// the state, mode 0700. What is in the tar is the agent's: names are held to be local, and everything is done beneath the workspace,
// folder by folder, following no link (openat2(2)). The folder that the workspace was is held by path and not by inode: who moves it
// moves the changes' place.
//
// Those of a kept sandbox are an overlay's upper folder that outlives its runs (Layer). It is looked at by way of such a tar, so that what
// was looked at is what is applied.
//
// What it doesn't protect against: whoever writes in the workspace at the same instant. A conflict is looked for right before each file
// is put in its place, by a rename.
package changes

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/beneath"
	"agentrun/internal/hinted"
	"agentrun/profiles"
	"agentrun/runtime"
)

// Folder are those of one state folder.
type Folder struct{ StateDir string }

func (f Folder) dir() string { return filepath.Join(f.StateDir, "changes") }

// about is what is kept of a run beside its changes.
type about struct {
	Run       string                `json:"run"`
	Workspace string                `json:"workspace"`
	UID       int                   `json:"uid"` // of the workspace's owner, whose everything is that is applied
	GID       int                   `json:"gid"`
	Started   time.Time             `json:"started"`           // what was changed on the host since is in conflict
	Guard     []profiles.GuardEntry `json:"guard"`             // what is risky
	Applied   map[string]stamp      `json:"applied,omitempty"` // by path, as it was left: no conflict
	// First, of a sandbox, says for what was there at its last start since when, by quoted path; Started is that start.
	First map[string]time.Time `json:"first,omitempty"`
	// Applying is an apply that hasn't ended: what it has put into the workspace isn't among Applied yet.
	Applying bool `json:"applying,omitempty"`
}

// stamp says that a file is still the same. Nobody can set the time of an inode's last change back.
type stamp struct {
	Ino   uint64 `json:"ino"`
	Ctime int64  `json:"ctime_ns"`
}

func stampOf(st *unix.Stat_t) stamp { return stamp{st.Ino, st.Ctim.Nano()} }

const (
	tarSuffix   = ".tar"
	aboutSuffix = ".json"
	// clockTick is more than what the kernel takes the times of files by: what was changed within it before the start counts as later.
	clockTick = 20 * time.Millisecond
	// Keep is how long changes wait for somebody to look at them.
	Keep = 30 * 24 * time.Hour
)

// Begin makes a place for the changes of a run, and returns the file that they are to be written to.
func (f Folder) Begin(run, workspace string, uid, gid int, guard []profiles.GuardEntry) (string, error) {
	if err := os.MkdirAll(f.dir(), 0o700); err != nil {
		return "", fmt.Errorf("changes of the run: %w", err)
	}
	a := about{Run: run, Workspace: workspace, UID: uid, GID: gid, Started: time.Now().Add(-clockTick), Guard: guard}
	return filepath.Join(f.dir(), run+tarSuffix), a.save(f.about(run))
}

func (f Folder) about(run string) string { return filepath.Join(f.dir(), run+aboutSuffix) }

func (a *about) save(at string) error {
	b, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("encode what is kept of run %s: %w", a.Run, err)
	}
	f, err := os.OpenFile(at+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(at+".new", at)
}

// Prune removes changes that have waited too long, and what a crash has left of those that never came.
func (f Folder) Prune(now time.Time) error {
	names, err := os.ReadDir(f.dir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var errs []error
	for _, n := range names {
		if info, err := n.Info(); err == nil && now.Sub(info.ModTime()) > Keep {
			errs = append(errs, os.Remove(filepath.Join(f.dir(), n.Name())))
		}
	}
	return errors.Join(append(errs, err)...)
}

// Set are the changes of one run, open. Close it.
type Set struct {
	about about
	file  *os.File // the tar; one who applies has it alone
	root  *os.File // the workspace
	items map[string]item
	order []string
	save  func(*about) error
	drop  func() error // forgets all
	since string       // what from on a change of the host's is in conflict, for people
}

// item is one entry of the tar.
type item struct {
	header *tar.Header
	at     int64 // of its content in the file
	gone   bool  // a deletion
	opaque bool  // nothing of what the folder held before is left
}

// ErrNone: no run of that name has changes that wait.
var ErrNone = errors.New("no changes of such a run are kept")

// Open finds the changes of a run by its id or the beginning of it.
func (f Folder) Open(ref string) (_ *Set, err error) {
	names, err := filepath.Glob(filepath.Join(f.dir(), "*"+tarSuffix))
	if err != nil {
		return nil, err
	}
	names = slices.DeleteFunc(names, func(n string) bool { return ref == "" || !strings.HasPrefix(filepath.Base(n), ref) })
	switch {
	case len(names) == 0:
		return nil, hinted.New(fmt.Errorf("run %.64q: %w", ref, ErrNone), "only a run with --workspace-mode overlay leaves some, when it is over, until they are applied or discarded")
	case len(names) > 1:
		return nil, hinted.New(fmt.Errorf("run %.64q fits %d runs", ref, len(names)), "give more of the id")
	}
	s := &Set{items: map[string]item{}, since: "the run began"}
	s.save = func(a *about) error { return a.save(f.about(a.Run)) }
	s.drop = func() error {
		return errors.Join(os.Remove(filepath.Join(f.dir(), s.about.Run+tarSuffix)), os.Remove(f.about(s.about.Run)))
	}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if err := s.take(names[0]); err != nil {
		return nil, fmt.Errorf("changes of run %.64q: %w", ref, err)
	}
	if s.root, err = openWithin(nil, s.about.Workspace, unix.O_PATH|unix.O_DIRECTORY); err != nil {
		return nil, fmt.Errorf("workspace of run %s: %w", s.about.Run, err)
	}
	return s, s.read()
}

// take opens a tar and waits until nobody else has it; only then what is known of it is what whoever had it has left.
func (s *Set) take(name string) (err error) {
	if s.file, err = os.Open(name); errors.Is(err, fs.ErrNotExist) {
		return ErrNone // since the folder was read
	} else if err != nil {
		return err
	}
	if err := unix.Flock(int(s.file.Fd()), unix.LOCK_EX); err != nil {
		return os.NewSyscallError("flock", err)
	}
	mine, err := s.file.Stat()
	if err != nil {
		return err
	}
	if there, err := os.Lstat(name); err != nil || !os.SameFile(mine, there) {
		return ErrNone
	}
	b, err := os.ReadFile(strings.TrimSuffix(name, tarSuffix) + aboutSuffix)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, &s.about)
}

// Run is the run's whole id, or the sandbox's name.
func (s *Set) Run() string { return s.about.Run }

// Workspace is where the changes belong.
func (s *Set) Workspace() string { return s.about.Workspace }

// Close lets go of the set.
func (s *Set) Close() {
	if s.file != nil {
		s.file.Close()
	}
	if s.root != nil {
		s.root.Close()
	}
}

// read takes in the tar's table. Content is looked up later, where it lies.
func (s *Set) read() error {
	for r := tar.NewReader(s.file); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("changes of run %s: %w", s.about.Run, err)
		}
		at, err := s.file.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		name := strings.TrimSuffix(h.Name, "/")
		if !filepath.IsLocal(name) || path.Clean(name) != name || name == "." {
			return fmt.Errorf("changes of run %s: %.256q is no name within a workspace", s.about.Run, h.Name)
		}
		// What is in a folder that hides what was there hides it too: overlayfs marks the uppermost alone. It comes behind its folder.
		it := item{header: h, at: at, opaque: h.Typeflag == tar.TypeDir && s.items[path.Dir(name)].opaque}
		switch base := path.Base(name); {
		case base == ".wh..wh..opq":
			name = path.Dir(name)
			if it = s.items[name]; it.header == nil {
				return fmt.Errorf("changes of run %s: %.256q isn't in it", s.about.Run, name)
			}
			it.opaque = true
		case strings.HasPrefix(base, ".wh."):
			name, it.gone = path.Join(path.Dir(name), strings.TrimPrefix(base, ".wh.")), true
		}
		if _, known := s.items[name]; !known {
			s.order = append(s.order, name)
		}
		s.items[name] = it
	}
}

// content of a file; another name of one has that one's.
func (s *Set) content(it item) *io.SectionReader {
	if it.header.Typeflag == tar.TypeLink {
		it = s.items[it.header.Linkname]
		if it.header == nil {
			return io.NewSectionReader(s.file, 0, 0)
		}
	}
	return io.NewSectionReader(s.file, it.at, it.header.Size)
}

// Kind says what became of a path.
type Kind string

// Kinds of change.
const (
	Added    Kind = "added"
	Modified Kind = "modified"
	Deleted  Kind = "deleted"
)

// Change is what became of one path of the workspace, which the agent may have named.
type Change struct {
	Path     string      `json:"path"`
	Kind     Kind        `json:"kind"`
	Folder   bool        `json:"folder,omitempty"`
	Link     string      `json:"link,omitempty"` // where a symbolic link leads
	Mode     fs.FileMode `json:"mode,omitempty"` // permission bits
	Size     int64       `json:"size"`
	Risky    string      `json:"risky,omitempty"`    // why the host may run it
	Conflict string      `json:"conflict,omitempty"` // why it can't be applied
}

// List compares the changes with the workspace as it is now. What is there already isn't a change any more.
func (s *Set) List() ([]Change, error) {
	var list []Change
	for _, name := range s.order {
		it := s.items[name]
		var st unix.Stat_t
		err := s.stat(name, &st)
		there := err == nil
		// Below a link or a file there is nothing: what a folder was for the agent is a change of its own then.
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP) {
			return nil, fmt.Errorf("look at %q: %w", name, err)
		}
		if it.opaque && there && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			more, err := s.hidden(name)
			if err != nil {
				return nil, err
			}
			list = append(list, more...)
		}
		c := s.change(name, it, there, &st)
		if c == nil {
			continue
		}
		if there {
			c.Conflict = s.conflict(name, &st)
		}
		list = append(list, *c)
	}
	return list, nil
}

// change is what an entry would change; nil: nothing.
func (s *Set) change(name string, it item, there bool, st *unix.Stat_t) *Change {
	c := &Change{Path: name, Kind: Added}
	if there {
		c.Kind = Modified
	}
	_, c.Risky, _ = runtime.Risky(s.about.Guard, name)
	if it.gone {
		kind := st.Mode & unix.S_IFMT
		c.Kind, c.Folder = Deleted, kind == unix.S_IFDIR
		// Whose rights the agent changed is a pipe in its layer, too.
		pipe := it.header.Typeflag == tar.TypeFifo && kind != unix.S_IFREG && kind != unix.S_IFDIR && kind != unix.S_IFLNK
		if !there || pipe {
			return nil
		}
		return c
	}
	if why, above := runtime.RiskyAbove(s.about.Guard, name); above && c.Risky == "" && it.header.Typeflag != tar.TypeDir {
		c.Risky = why
	}
	c.Mode, c.Size = it.header.FileInfo().Mode().Perm(), it.header.Size
	switch it.header.Typeflag {
	case tar.TypeDir:
		c.Folder, c.Size = true, 0
		if there && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			return nil
		}
	case tar.TypeSymlink:
		c.Link = it.header.Linkname
		if to := path.Join(path.Dir(name), c.Link); path.IsAbs(c.Link) || !filepath.IsLocal(to) || beneath.Climbs(c.Link) {
			c.Risky = "a link that leads out of the workspace"
		}
		if why, ok := runtime.RiskyLink(name); ok && c.Risky == "" {
			c.Risky = why
		}
		if now, err := s.readlink(name); there && err == nil && now == c.Link {
			return nil
		}
	default:
		c.Size = s.content(it).Size()
		if there && st.Mode&unix.S_IFMT == unix.S_IFREG && fs.FileMode(st.Mode).Perm() == c.Mode && s.same(name, it) {
			return nil
		}
	}
	return c
}

// begins says since when a change of the host's is in conflict with what becomes of a path: since the run began, of a sandbox the one that first
// changed it, or first took away or replaced a folder above it.
func (s *Set) begins(name string) time.Time {
	first := func(name string) time.Time {
		if t, ok := s.about.First[quoted(name)]; ok {
			return t
		}
		return s.about.Started
	}
	at := first(name)
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		it, ok := s.items[dir]
		hides := ok && (it.gone || it.opaque || it.header.Typeflag != tar.TypeDir)
		if t := first(dir); hides && t.Before(at) {
			at = t
		}
	}
	return at
}

// quoted is a path in JSON, which has no bytes that aren't UTF-8.
func quoted(name string) string { return strconv.QuoteToASCII(name) }

// conflict says whether something was changed on the host since the run began; what was applied from here is no conflict while it is as
// it was left.
func (s *Set) conflict(name string, st *unix.Stat_t) string {
	if done, ok := s.about.Applied[name]; ok && done == stampOf(st) {
		return ""
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		later := ""
		if err := s.walk(name, func(at string, st *unix.Stat_t) {
			if later == "" && st.Mode&unix.S_IFMT != unix.S_IFDIR {
				later = s.conflict(at, st)
			}
		}); err != nil {
			return err.Error()
		}
		return later
	}
	if !time.Unix(st.Ctim.Unix()).Before(s.begins(name)) {
		return fmt.Sprintf("%q was changed on the host since %s", name, s.since)
	}
	return ""
}

// hidden are the deletions that an opaque folder means: what it holds on the host and not in the changes.
func (s *Set) hidden(dir string) (list []Change, err error) {
	f, err := s.open(dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, fmt.Errorf("look into %q: %w", dir, err)
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	for _, n := range names {
		at := path.Join(dir, n)
		if _, ok := s.items[at]; ok {
			continue
		}
		var st unix.Stat_t
		if err := s.stat(at, &st); err != nil {
			return nil, err
		}
		c := Change{Path: at, Kind: Deleted, Folder: st.Mode&unix.S_IFMT == unix.S_IFDIR, Conflict: s.conflict(at, &st)}
		_, c.Risky, _ = runtime.Risky(s.about.Guard, at)
		list = append(list, c)
	}
	return list, nil
}

// Texts are what a file was and what it will be, cut to most bytes; not ok: one of them is larger, or no text.
func (s *Set) Texts(c Change, most int64) (before, after string, ok bool) {
	read := func(r io.Reader) string {
		b, err := io.ReadAll(io.LimitReader(r, most+1))
		ok = ok && err == nil && int64(len(b)) <= most && bytes.IndexByte(b, 0) < 0
		return string(b)
	}
	ok = !c.Folder && c.Link == ""
	if !ok {
		return "", "", false
	}
	if c.Kind != Added {
		f, err := s.regular(c.Path)
		if err != nil {
			return "", "", false
		}
		defer f.Close()
		before = read(f)
	}
	if c.Kind != Deleted {
		after = read(s.content(s.items[c.Path]))
	}
	return before, after, ok
}

// SecondOf is the path that a file is another name of, in the layer; empty: of none.
func (s *Set) SecondOf(c Change) string {
	if it := s.items[c.Path]; it.header != nil && it.header.Typeflag == tar.TypeLink {
		return it.header.Linkname
	}
	return ""
}

func (s *Set) same(name string, it item) bool {
	f, err := s.regular(name)
	if err != nil {
		return false
	}
	defer f.Close()
	info, err := f.Stat()
	content := s.content(it)
	if err != nil || info.Size() != content.Size() {
		return false
	}
	a, b := make([]byte, 1<<16), make([]byte, 1<<16)
	for {
		n, err1 := io.ReadFull(f, a)
		m, err2 := io.ReadFull(content, b)
		if n != m || !bytes.Equal(a[:n], b[:m]) {
			return false
		}
		if err1 != nil || err2 != nil {
			return errors.Is(err1, err2) // both are at their end
		}
	}
}
