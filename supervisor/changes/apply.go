// SPDX-License-Identifier: Apache-2.0

package changes

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"agentrun/internal/beneath"
	"agentrun/internal/hinted"
)

// openWithin opens a path, none of whose components is a link, within a folder; nil: from the root.
func openWithin(root *os.File, name string, flags uint64) (*os.File, error) {
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS}
	at := unix.AT_FDCWD
	if root != nil {
		at, how.Resolve = int(root.Fd()), how.Resolve|unix.RESOLVE_BENEATH
	}
	fd, err := unix.Openat2(at, name, &how)
	if err != nil {
		return nil, &os.PathError{Op: "openat2", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (s *Set) open(name string, flags uint64) (*os.File, error) {
	return openWithin(s.root, name, flags)
}

// parent opens the folder of a path, which holds its last component.
func (s *Set) parent(name string) (*os.File, string, error) {
	f, err := s.open(path.Dir(name), unix.O_PATH|unix.O_DIRECTORY)
	return f, path.Base(name), err
}

// in does something with the folder of a path.
func (s *Set) in(name string, do func(dir int, base string) error) error {
	f, base, err := s.parent(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := do(int(f.Fd()), base); err != nil {
		return &os.PathError{Op: "change", Path: name, Err: err}
	}
	return nil
}

func (s *Set) stat(name string, st *unix.Stat_t) error {
	return s.in(name, func(dir int, base string) error { return unix.Fstatat(dir, base, st, unix.AT_SYMLINK_NOFOLLOW) })
}

func (s *Set) readlink(name string) (to string, err error) {
	err = s.in(name, func(dir int, base string) error {
		b := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(dir, base, b)
		if err == nil {
			to = string(b[:n])
		}
		return err
	})
	return to, err
}

// regular opens a file for reading that is one: a FIFO would never answer.
func (s *Set) regular(name string) (*os.File, error) {
	f, err := s.open(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, errors.Join(err, fs.ErrInvalid)
	}
	return f, nil
}

// walk calls fn with a folder, and then with what is below it, deepest last.
func (s *Set) walk(dir string, fn func(at string, st *unix.Stat_t)) error {
	f, err := s.open(dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	names, err := f.Readdirnames(-1)
	f.Close()
	if err != nil {
		return err
	}
	for _, n := range names {
		at := path.Join(dir, n)
		var st unix.Stat_t
		if err := s.stat(at, &st); err != nil {
			return err
		}
		fn(at, &st)
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			if err := s.walk(at, fn); err != nil {
				return err
			}
		}
	}
	return nil
}

// RefusedError lists what keeps changes from being applied. Nothing was.
type RefusedError struct {
	Conflicts, Risky, Unknown []string
	since                     string
}

func (e *RefusedError) Error() string {
	var parts []string
	for _, p := range []struct {
		what string
		list []string
	}{{"changed on the host since " + e.since, e.Conflicts}, {"run by the host, or saying what is run", e.Risky}, {"not among the changes", e.Unknown}} {
		if n := len(p.list); n > 0 {
			shown := p.list[:min(n, 5)]
			text := fmt.Sprintf("%s: %q", p.what, shown)
			if n > len(shown) {
				text += fmt.Sprintf(" and %d more", n-len(shown))
			}
			parts = append(parts, text)
		}
	}
	return "apply: " + strings.Join(parts, "; ")
}

// hint is the way out.
func (e *RefusedError) hint() string {
	switch {
	case len(e.Conflicts) > 0:
		return "name the paths that are to be applied, without these; agentrun diff shows what they would have become"
	case len(e.Risky) > 0:
		return "look at them with agentrun diff; --risky applies them, naming other paths leaves them out"
	}
	return "agentrun diff --stat lists them"
}

// Apply brings changes into the workspace: those at and below the paths, all without any. It refuses all of it where one is in conflict,
// or risky unless that was said to be meant. The error of a file that couldn't be written leaves those before it applied, as the list
// says.
func (s *Set) Apply(paths []string, risky bool) (applied []Change, err error) {
	list, err := s.List()
	if err != nil {
		return nil, err
	}
	chosen, err := s.choose(list, paths, risky)
	if err != nil {
		return nil, err
	}
	s.about.Applying = true
	if err := s.save(&s.about); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.settle(list, applied)) }()
	if s.about.Applied == nil {
		s.about.Applied = map[string]stamp{}
	}
	for _, c := range chosen {
		if err := s.apply(c); err != nil {
			return applied, fmt.Errorf("apply %q: %w", c.Path, err)
		}
		applied = append(applied, c)
	}
	return applied, nil
}

// settle keeps in mind what was applied, or forgets the run when nothing is left to do.
func (s *Set) settle(list, applied []Change) error {
	if len(applied) == len(list) {
		if err := s.synced(); err != nil {
			return err
		}
		return s.Discard()
	}
	s.about.Applying = false
	return s.save(&s.about)
}

// synced returns when no power cut takes back what was applied: only then may the changes go.
func (s *Set) synced() error {
	f, err := s.open(".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer f.Close()
	return os.NewSyscallError("syncfs", unix.Syncfs(int(f.Fd())))
}

// adopt takes what an apply that was killed has put into the workspace for applied: it is as the agent left it.
func (s *Set) adopt() error {
	if !s.about.Applying {
		return nil
	}
	if s.about.Applied == nil {
		s.about.Applied = map[string]stamp{}
	}
	for name, it := range s.items {
		var st unix.Stat_t
		if !it.gone && s.stat(name, &st) == nil && s.change(name, it, true, &st) == nil {
			s.about.Applied[name] = stampOf(&st)
		}
	}
	s.about.Applying = false
	return s.save(&s.about)
}

func (s *Set) choose(list []Change, paths []string, risky bool) (chosen []Change, err error) {
	e := RefusedError{since: s.since}
	used, bytes := map[string]bool{}, int64(0)
	for _, c := range list {
		at := slices.IndexFunc(paths, func(p string) bool { return p == "." || c.Path == p || strings.HasPrefix(c.Path, p+"/") })
		above := c.Folder && c.Kind != Deleted && slices.ContainsFunc(paths, func(p string) bool { return strings.HasPrefix(p, c.Path+"/") })
		if len(paths) > 0 && at < 0 && !above {
			continue
		}
		if at >= 0 {
			used[paths[at]] = true
		}
		if c.Conflict != "" {
			e.Conflicts = append(e.Conflicts, c.Path)
		}
		if c.Risky != "" && !risky {
			e.Risky = append(e.Risky, c.Path)
		}
		chosen = append(chosen, c)
		bytes += c.Size
	}
	if err := s.fits(bytes); err != nil {
		return nil, err
	}
	for _, p := range paths {
		if !used[p] {
			e.Unknown = append(e.Unknown, p)
		}
	}
	if len(e.Conflicts)+len(e.Risky)+len(e.Unknown) > 0 {
		return nil, hinted.New(&e, e.hint())
	}
	return chosen, nil
}

// mostCopies of second names may come beside four times what the layer takes.
const mostCopies = 256 << 20

// fits says whether so much may be applied: a second name of a file takes nothing in the layer, and comes as a copy.
func (s *Set) fits(bytes int64) error {
	if bytes == 0 {
		return nil
	}
	info, err := s.file.Stat()
	if err != nil || bytes <= 4*info.Size()+mostCopies {
		return err
	}
	return hinted.New(fmt.Errorf("apply: it would be %d bytes, and the changes take %d: files have second names, which come as copies", bytes, info.Size()),
		"name the paths that are to be applied, a part at a time")
}

// Discard throws the changes away. The set can't be used any more.
func (s *Set) Discard() error { return s.drop() }

func (s *Set) apply(c Change) error {
	it := s.items[c.Path]
	if c.Kind != Added { // looked at once more, as near to the change as can be
		var st unix.Stat_t
		if err := s.stat(c.Path, &st); err != nil {
			return err
		}
		if why := s.conflict(c.Path, &st); why != "" {
			return errors.New(why)
		}
		if c.Kind == Deleted || st.Mode&unix.S_IFMT == unix.S_IFDIR || c.Folder {
			if err := s.remove(c.Path); err != nil || c.Kind == Deleted {
				return err
			}
		}
	}
	if err := s.in(c.Path, func(dir int, base string) error { return s.put(dir, base, c, it) }); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := s.stat(c.Path, &st); err != nil {
		return err
	}
	s.about.Applied[c.Path] = stampOf(&st)
	return nil
}

// put makes a folder, a link or a file in its place, whole: the last two take the place of what was there by rename(2), which follows no
// link and, where nothing was, takes no place that somebody has filled meanwhile.
func (s *Set) put(dir int, base string, c Change, it item) (err error) {
	if c.Folder {
		if err := unix.Mkdirat(dir, base, 0o700); err != nil {
			return os.NewSyscallError("mkdirat", err)
		}
		f, err := beneath.Fresh(dir, base, 0o700)
		if err != nil {
			return err
		}
		return s.give(f, c)
	}
	temp := fmt.Sprintf(".agentrun-%s-%d", s.about.Run, os.Getpid())
	defer func() {
		if err != nil {
			_ = unix.Unlinkat(dir, temp, 0) // the error that brought us here is the one to report
		}
	}()
	if it.header.Typeflag == tar.TypeSymlink {
		err = os.NewSyscallError("symlinkat", unix.Symlinkat(c.Link, dir, temp))
		if err == nil {
			err = beneath.GiveLink(dir, temp, c.Link, s.about.UID, s.about.GID)
		}
	} else {
		err = s.fill(dir, temp, c, s.content(it))
	}
	if err != nil {
		return err
	}
	var flags uint
	if c.Kind == Added {
		flags = unix.RENAME_NOREPLACE
	}
	return os.NewSyscallError("renameat2", unix.Renameat2(dir, temp, dir, base, flags))
}

// fill makes a file with that content.
func (s *Set) fill(dir int, name string, c Change, content io.Reader) error {
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return os.NewSyscallError("openat", err)
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = io.Copy(f, content)
	return errors.Join(err, s.give(f, c))
}

// give has what was made be the workspace owner's, with the mode that the agent chose, without a set-ID bit, and closes it.
func (s *Set) give(f *os.File, c Change) error {
	return errors.Join(f.Chown(s.about.UID, s.about.GID), f.Chmod(c.Mode.Perm()), f.Close())
}

// remove takes a path away with all that is below it.
func (s *Set) remove(name string) error {
	var below []string
	var st unix.Stat_t
	if err := s.stat(name, &st); err != nil {
		return err
	}
	isDir := map[string]bool{name: st.Mode&unix.S_IFMT == unix.S_IFDIR}
	if isDir[name] {
		if err := s.walk(name, func(at string, st *unix.Stat_t) {
			below = append(below, at)
			isDir[at] = st.Mode&unix.S_IFMT == unix.S_IFDIR
		}); err != nil {
			return err
		}
	}
	for _, at := range slices.Backward(append([]string{name}, below...)) {
		flags := 0
		if isDir[at] {
			flags = unix.AT_REMOVEDIR
		}
		if err := s.in(at, func(dir int, base string) error { return unix.Unlinkat(dir, base, flags) }); err != nil {
			return err
		}
	}
	return nil
}
