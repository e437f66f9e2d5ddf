// SPDX-License-Identifier: Apache-2.0

package based

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"agentrun/images"
)

// HostileError is a name that layers use as no image needs to.
type HostileError struct{ Name, Why string }

func (e *HostileError) Error() string { return fmt.Sprintf("%.200q: %s", e.Name, e.Why) }

const (
	onTheWay = "a link or a file is on the way to it"
	noFile   = "a hard link leads to it, and it isn't there, is no file of the image, or lies behind a link"
)

// maxDepth is that of images.
const maxDepth = 128

// join is two trees that become one.
type join struct {
	base, root *os.File
	owners     bool
	hidden     map[string]bool
	folders    map[string]bool
	link       linker
}

// linker gives a file another name.
type linker func(from int, old string, to int, name string) error

// Complete puts what the layers in root leave of a base below them. missing are the deletions that meant nothing. owners: files have those
// of the base, which takes root; else all are this process's.
func Complete(ctx context.Context, root, base string, d images.Delta, owners bool) (missing int64, err error) {
	return complete(ctx, root, base, d, owners, func(from int, old string, to int, name string) error { return unix.Linkat(from, old, to, name, 0) })
}

func complete(ctx context.Context, root, base string, d images.Delta, owners bool, link linker) (missing int64, err error) {
	j := join{owners: owners, hidden: set(d.Hidden), folders: set(d.Folders), link: link}
	if j.base, err = top(base); err != nil {
		return 0, err
	}
	defer j.base.Close()
	if j.root, err = top(root); err != nil {
		return 0, err
	}
	defer j.root.Close()
	for _, name := range d.Through {
		switch kind, err := find(j.base, string(name)); {
		case err != nil:
			return 0, err
		case kind != 0 && kind != unix.S_IFDIR:
			return 0, &HostileError{string(name), onTheWay}
		}
	}
	for _, name := range d.Files {
		switch kind, err := find(j.base, string(name)); {
		case err != nil:
			return 0, err
		case kind != unix.S_IFREG && kind != unix.S_IFLNK:
			return 0, &HostileError{string(name), noFile}
		}
	}
	for _, name := range d.Deleted {
		kind, err := find(j.base, string(name))
		if err != nil {
			return 0, err
		}
		if kind == 0 {
			missing++
		}
	}
	for _, l := range d.Links {
		if err := j.hard(string(l.Name), string(l.To)); err != nil {
			return 0, err
		}
	}
	return missing, j.folder(ctx, j.base, j.root, "", 0, false)
}

func set(names []images.Name) map[string]bool {
	all := make(map[string]bool, len(names))
	for _, n := range names {
		all[string(n)] = true
	}
	return all
}

func top(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return os.NewFile(uintptr(fd), dir), nil
}

// open opens a name beneath a folder; no link is followed.
func open(at *os.File, name string, flags uint64) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   flags | unix.O_CLOEXEC | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	if flags&unix.O_CREAT != 0 {
		how.Mode = 0o600
	}
	for {
		fd, err := unix.Openat2(int(at.Fd()), name, &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), name), nil
		case !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN):
			return nil, &os.PathError{Op: "openat2", Path: name, Err: err}
		}
	}
}

// parent opens the folder of a name.
func parent(at *os.File, name string) (*os.File, string, error) {
	dir, base := path.Split(name)
	if base == "" || base == "." || base == ".." {
		return nil, "", &HostileError{name, "it is no name of a file"}
	}
	f, err := open(at, "./"+strings.TrimSuffix(dir, "/"), unix.O_RDONLY|unix.O_DIRECTORY)
	return f, base, err
}

// find tells of what kind a name is; 0: it isn't there, since nothing is, or since something else than a folder is on the way.
func find(at *os.File, name string) (uint32, error) {
	dir, base, err := parent(at, name)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	st, err := stat(dir, base)
	return st.Mode & unix.S_IFMT, err
}

// stat is zero where there is nothing.
func stat(dir *os.File, name string) (st unix.Stat_t, err error) {
	if err = unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); errors.Is(err, unix.ENOENT) {
		return unix.Stat_t{}, nil
	}
	if err != nil {
		err = &os.PathError{Op: "fstatat", Path: name, Err: err}
	}
	return st, err
}

// hard puts a hard link to a file of the base in the place of the empty file that stands for it.
func (j *join) hard(name, to string) error {
	from, old, err := parent(j.base, to)
	if err != nil {
		return err
	}
	defer from.Close()
	at, base, err := parent(j.root, name)
	if err != nil {
		return err
	}
	defer at.Close()
	st, err := stat(at, base)
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != 0 {
		return fmt.Errorf("%.200q: want an empty file in the place of a link", name)
	}
	was, err := stat(at, ".")
	if err == nil {
		err = os.NewSyscallError("unlinkat", unix.Unlinkat(int(at.Fd()), base, 0))
	}
	if err == nil {
		err = j.share(from, old, at, base)
	}
	if err != nil {
		return err
	}
	return touch(at, ".", was)
}

// folder puts what is in a folder of the base beside what the layers have put into theirs.
func (j *join) folder(ctx context.Context, below, above *os.File, name string, depth int, made bool) error {
	if depth > maxDepth {
		return fmt.Errorf("%.200q lies in more than %d folders", name, maxDepth)
	}
	was, err := stat(above, ".")
	if err != nil {
		return err
	}
	entries, err := below.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, n := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		at := path.Join(name, n)
		// Of a folder that was emptied, folders stay that the layers have put something into.
		if j.hidden[at] || j.hidden[name+"/"] && !j.folders[at] {
			continue
		}
		if err := j.entry(ctx, below, above, n, at, depth); err != nil {
			return err
		}
	}
	if !made && !j.folders[name] {
		return touch(above, ".", was)
	}
	if was, err = stat(below, "."); err != nil {
		return err
	}
	if err := j.own(above, ".", was); err != nil {
		return err
	}
	if err := above.Chmod(os.FileMode(was.Mode&0o777) | sticky(was)); err != nil {
		return err
	}
	return touch(above, ".", was)
}

func sticky(st unix.Stat_t) os.FileMode {
	if st.Mode&unix.S_ISVTX != 0 {
		return os.ModeSticky
	}
	return 0
}

func (j *join) entry(ctx context.Context, below, above *os.File, n, name string, depth int) error {
	is, err := stat(below, n)
	if err != nil {
		return err
	}
	has, err := stat(above, n)
	if err != nil {
		return err
	}
	there, dir := has.Mode != 0, has.Mode&unix.S_IFMT == unix.S_IFDIR
	switch kind := is.Mode & unix.S_IFMT; {
	case kind == unix.S_IFDIR && (!there || dir):
		if !there {
			if err := unix.Mkdirat(int(above.Fd()), n, 0o700); err != nil {
				return &os.PathError{Op: "mkdirat", Path: name, Err: err}
			}
		}
		from, err := open(below, n, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		defer from.Close()
		to, err := open(above, n, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		defer to.Close()
		return j.folder(ctx, from, to, name, depth+1, !there)
	case there: // the layers have put something else there
		return nil
	case kind == unix.S_IFREG || kind == unix.S_IFLNK:
		return j.share(below, n, above, n)
	}
	return fmt.Errorf("%.200q of the base is of a kind that no image has", name)
}

// share gives a file of the base another name, or makes one like it where it can't have that.
func (j *join) share(from *os.File, old string, to *os.File, name string) error {
	err := j.link(int(from.Fd()), old, int(to.Fd()), name)
	for _, cannot := range []error{unix.EMLINK, unix.EXDEV, unix.EPERM, unix.EOPNOTSUPP, unix.ENOSYS} {
		if errors.Is(err, cannot) {
			return j.copy(from, old, to, name)
		}
	}
	return os.NewSyscallError("linkat", err)
}

func (j *join) copy(from *os.File, old string, to *os.File, name string) (err error) {
	st, err := stat(from, old)
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		text := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(int(from.Fd()), old, text)
		if err == nil {
			err = unix.Symlinkat(string(text[:n]), int(to.Fd()), name)
		}
		if err != nil {
			return &os.PathError{Op: "copy", Path: old, Err: err}
		}
		return errors.Join(j.own(to, name, st), touch(to, name, st))
	}
	src, err := open(from, old, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := open(to, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	if _, err := io.Copy(dst, src); err != nil {
		return err
	}
	if err := attributes(src, dst); err != nil {
		return err
	}
	if err := j.own(to, name, st); err != nil {
		return err
	}
	if err := dst.Chmod(os.FileMode(st.Mode & 0o777)); err != nil {
		return err
	}
	return touch(to, name, st)
}

// attributes copies those that images have.
func attributes(src, dst *os.File) error {
	list := make([]byte, 1<<16)
	n, err := unix.Flistxattr(int(src.Fd()), list)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("flistxattr", err)
	}
	value := make([]byte, 1<<16)
	for name := range strings.SplitSeq(string(list[:n]), "\x00") {
		if !strings.HasPrefix(name, "user.") {
			continue
		}
		n, err := unix.Fgetxattr(int(src.Fd()), name, value)
		if err != nil {
			return os.NewSyscallError("fgetxattr", err)
		}
		if err := unix.Fsetxattr(int(dst.Fd()), name, value[:n], 0); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			return os.NewSyscallError("fsetxattr", err)
		}
	}
	return nil
}

func (j *join) own(at *os.File, name string, as unix.Stat_t) error {
	if !j.owners {
		return nil
	}
	return os.NewSyscallError("fchownat", unix.Fchownat(int(at.Fd()), name, int(as.Uid), int(as.Gid), unix.AT_SYMLINK_NOFOLLOW))
}

func touch(at *os.File, name string, as unix.Stat_t) error {
	return os.NewSyscallError("utimensat", unix.UtimesNanoAt(int(at.Fd()), name, []unix.Timespec{as.Mtim, as.Mtim}, unix.AT_SYMLINK_NOFOLLOW))
}
