// SPDX-License-Identifier: Apache-2.0

package fsjail

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
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentrun/internal/thread"
)

// Files are those of a live sandbox, with the rights of its agent and as it sees them. Each call works on a thread that has entered the
// sandbox's mount namespace, has the agent's ids and no capability, and is thrown away: whatever a path of the agent's leads to, through
// links and renames of this instant, is something that the agent could have opened itself. No path of it is ever looked up on the host.
//
// The files are hostile. Nothing waits for them: pipes, devices and files that somebody holds a lease on are refused. Set-ID bits,
// owners and attributes are left behind. What is written is charged to the supervisor's cgroup, not to the run's; the sandbox's tmpfs have
// a size.
type Files struct {
	process *os.File // a pidfd: a number could come to mean another process
	agent   IDs
	ours    map[string]bool
}

// FilesOf are those of the sandbox that the process of a pidfd is in. The caller keeps it open. The paths in ours are nobody's files, and left
// out where a folder is copied.
func FilesOf(process *os.File, agent IDs, ours map[string]bool) *Files {
	return &Files{process, agent, ours}
}

// FilesLimits bound one call. Zero values refuse.
type FilesLimits struct {
	Bytes   int64 // of content
	Entries int
}

// Copied is what a call has copied.
type Copied struct {
	Entries int   `json:"entries"`
	Bytes   int64 `json:"bytes"`   // of content
	Left    int   `json:"left"`    // what is no file, folder or link, and was left out
	Changed int   `json:"changed"` // files that grew shorter while they were read; zeros stand for what was gone
}

// FileInfo is what a sandbox has under a name.
type FileInfo struct {
	Name string      `json:"name"`
	Mode fs.FileMode `json:"mode"`
	Size int64       `json:"size"`
	Time time.Time   `json:"time"`
	Link string      `json:"link,omitempty"` // where a link leads
}

// ErrTooMuch: more than FilesLimits allow.
var ErrTooMuch = errors.New("more than the limit")

// capHead says whose capabilities capset(2) sets; pid 0 is the calling thread.
type capHead struct {
	version uint32
	pid     int32
}

const capVersion3 = 0x20080522

// dumpable is what the process is while threads of it have an agent's ids: for the kernel that is a loss of rights, and makes all of the
// process undumpable (commit_creds), which shuts an ordinary user's supervisor out of files of its own in /proc. Until they are gone it is
// what is wanted: the agent's user can't trace it.
var dumpable struct {
	mu      sync.Mutex
	threads int
	before  uintptr
}

func lendIDs() (back func()) {
	dumpable.mu.Lock()
	defer dumpable.mu.Unlock()
	if dumpable.threads++; dumpable.threads == 1 {
		dumpable.before, _, _ = unix.RawSyscall(unix.SYS_PRCTL, unix.PR_GET_DUMPABLE, 0, 0)
	}
	return func() {
		dumpable.mu.Lock()
		defer dumpable.mu.Unlock()
		if dumpable.threads--; dumpable.threads == 0 && dumpable.before == 1 {
			_ = unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
		}
	}
}

// within calls do with the folder that the path's last name is in, and that name; links on the way are followed as the agent would.
func (f *Files) within(unsafePath string, do func(dir *os.Root, base string) error) (err error) {
	defer lendIDs()()
	thread.Throwaway(func() {
		if err = f.enter(); err != nil {
			return
		}
		var dir *os.Root
		clean := path.Clean("/" + unsafePath)
		if err = enterFolder(path.Dir(clean)); err != nil {
			return
		}
		if dir, err = os.OpenRoot("."); err != nil {
			return
		}
		defer dir.Close()
		base := path.Base(clean)
		if clean == "/" {
			base = "."
		}
		err = do(dir, base)
	})
	return err
}

// enter makes the calling thread see what the agent sees, and may do no more than it. Every call is of this thread alone: the functions of
// the standard library would change all threads of the process.
func (f *Files) enter() error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return os.NewSyscallError("unshare CLONE_FS", err)
	}
	raw, err := f.process.SyscallConn()
	if err != nil {
		return err
	}
	err = errors.Join(raw.Control(func(fd uintptr) {
		err = os.NewSyscallError("setns mount namespace", unix.Setns(int(fd), unix.CLONE_NEWNS))
	}), err)
	if err != nil {
		return err
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
		return os.NewSyscallError("setgroups", errno)
	}
	gid, uid := uintptr(f.agent.GID), uintptr(f.agent.UID)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, gid, gid, gid); errno != 0 {
		return os.NewSyscallError("setresgid", errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid); errno != 0 {
		return os.NewSyscallError("setresuid", errno)
	}
	head, none := capHead{version: capVersion3}, [6]uint32{}
	if _, _, errno := unix.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&none)), 0); errno != 0 {
		return os.NewSyscallError("capset", errno)
	}
	return nil
}

// enterFolder makes a folder of the sandbox the thread's own.
func enterFolder(dir string) error {
	fd, err := unix.Openat2(unix.AT_FDCWD, dir, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	return os.NewSyscallError("fchdir", unix.Fchdir(fd))
}

// Read writes a file, or a folder with all that is on its file system below it, to a tar whose names begin with the path's last one. A link is
// a link in it, also the path itself.
func (f *Files) Read(unsafePath string, to io.Writer, most FilesLimits) (c Copied, err error) {
	err = f.within(unsafePath, func(dir *os.Root, base string) (err error) {
		name := base
		if base == "." {
			name = "root"
		}
		ours, clean := map[string]bool{}, path.Clean("/"+unsafePath)
		for p := range f.ours {
			if below, ok := strings.CutPrefix(p, strings.TrimSuffix(clean, "/")+"/"); ok {
				ours[path.Join(name, below)] = true
			}
		}
		c, err = Pack(dir, base, name, to, most, ours)
		return err
	})
	return c, err
}

// Pack is Read's for what is in a folder under a name, which the tar has under another. Names of the tar in without are left out.
func Pack(dir *os.Root, base, name string, to io.Writer, most FilesLimits, without map[string]bool) (c Copied, err error) {
	info, err := dir.Lstat(base)
	if err != nil {
		return c, err
	}
	w := &treeWriter{tar: tar.NewWriter(to), most: most, without: without, done: &c}
	if err := w.entry(dir, base, name, info); err != nil {
		return c, err
	}
	if info.IsDir() {
		sub, err := dir.OpenRoot(base + inIt)
		if err != nil {
			return c, err
		}
		defer sub.Close()
		if err := w.folder(sub, name, info, 0); err != nil {
			return c, err
		}
	}
	return c, w.tar.Close()
}

// inIt is behind the name of a folder that is to be opened: os.Root opens what is before a slash as a folder or not at all, and waits for
// whoever writes a pipe that has come in its place otherwise.
const inIt = "/."

// treeWriter writes one tar.
type treeWriter struct {
	tar     *tar.Writer
	most    FilesLimits
	without map[string]bool
	listed  int // names of folders that were read, all of which may be in memory
	done    *Copied
}

func deviceOf(info fs.FileInfo) uint64 { return info.Sys().(*syscall.Stat_t).Dev }

func (w *treeWriter) folder(dir *os.Root, at string, own fs.FileInfo, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("deeper than %d folders: %w", maxDepth, ErrTooMuch)
	}
	list, err := namesOf(dir, w.most.Entries-w.listed)
	if err != nil {
		return err
	}
	w.listed += len(list)
	for _, name := range list {
		if w.without[path.Join(at, name)] {
			continue
		}
		info, err := dir.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // gone meanwhile
		}
		if err != nil {
			return err
		}
		if deviceOf(info) != deviceOf(own) {
			w.done.Left++
			continue
		}
		if err := w.entry(dir, name, path.Join(at, name), info); err != nil {
			return err
		}
		if !info.IsDir() {
			continue
		}
		sub, err := dir.OpenRoot(name + inIt)
		if err != nil {
			return err
		}
		err = w.folder(sub, path.Join(at, name), own, depth+1)
		sub.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func namesOf(dir *os.Root, most int) ([]string, error) {
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	list, err := f.Readdirnames(most + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(list) > most {
		return nil, fmt.Errorf("%d names: %w", most, ErrTooMuch)
	}
	slices.Sort(list)
	return list, nil
}

// entry writes one file, folder or link.
func (w *treeWriter) entry(dir *os.Root, base, name string, info fs.FileInfo) error {
	h := &tar.Header{Name: name, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX}
	switch mode := info.Mode(); {
	case mode.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
	case mode.Type() == fs.ModeSymlink:
		link, err := dir.Readlink(base)
		if err != nil {
			return err
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, link
	case mode.IsRegular():
		h.Typeflag, h.Size = tar.TypeReg, info.Size()
	default:
		w.done.Left++
		return nil
	}
	if w.done.Entries++; w.done.Entries > w.most.Entries {
		return fmt.Errorf("%d files: %w", w.most.Entries, ErrTooMuch)
	}
	if h.Typeflag != tar.TypeReg {
		return w.tar.WriteHeader(h)
	}
	f, err := openPlain(dir, base)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil { // of what was opened
		return err
	}
	h.Size = info.Size()
	if w.done.Bytes += h.Size; w.done.Bytes > w.most.Bytes { // before hours are spent on reading holes
		return fmt.Errorf("%d bytes: %w", w.most.Bytes, ErrTooMuch)
	}
	if err := w.tar.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.CopyN(w.tar, f, h.Size)
	if errors.Is(err, io.EOF) {
		w.done.Changed++
		_, err = io.CopyN(w.tar, zeros{}, h.Size-n)
	}
	return err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// openPlain opens a plain file, and waits for nobody: neither for the other end of a pipe nor for the holder of a lease (fcntl(2)).
func openPlain(dir *os.Root, name string) (*os.File, error) {
	f, err := dir.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, errors.Join(err, &fs.PathError{Op: "open", Path: name, Err: errors.New("it is no plain file")})
	}
	return f, nil
}

// Write unpacks a tar into a folder that is there. A file takes the place of one that is there, whole or not at all; a folder joins what is
// there. What the tar has beside files, folders and links is refused, as are names that lead out of the folder.
func (f *Files) Write(unsafeFolder string, from io.Reader, most FilesLimits) (c Copied, err error) {
	err = f.within(unsafeFolder, func(dir *os.Root, base string) error {
		into, err := dir.OpenRoot(base + inIt)
		if err != nil {
			return err
		}
		defer into.Close()
		c, err = Unpack(into, from, most, nil)
		return err
	})
	return c, err
}

// Unpack unpacks a tar as Write does. keep says whether a link may be made; nil: each. Names and links are of whoever made the tar: nothing is
// made through a link that leads out of the folder, whatever the tar has made before (os.Root).
func Unpack(into *os.Root, from io.Reader, most FilesLimits, keep func(name, link string) bool) (c Copied, err error) {
	t := tar.NewReader(from)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return c, nil
		}
		if err != nil {
			return c, err
		}
		name := path.Clean(h.Name)
		if c.Entries++; c.Entries > most.Entries {
			return c, fmt.Errorf("%d files: %w", most.Entries, ErrTooMuch)
		}
		if c.Bytes += h.Size; h.Size < 0 || c.Bytes > most.Bytes {
			return c, fmt.Errorf("%d bytes: %w", most.Bytes, ErrTooMuch)
		}
		mode := fs.FileMode(h.Mode).Perm() //nolint:gosec // its lowest bits
		switch h.Typeflag {
		case tar.TypeDir:
			if err = into.Mkdir(name, mode|0o700); errors.Is(err, fs.ErrExist) {
				err = isFolder(into, name)
			}
		case tar.TypeReg:
			err = replace(into, name, func(temp string) error { return unpackFile(into, temp, t, mode, h.ModTime) })
		case tar.TypeSymlink:
			if keep != nil && !keep(name, h.Linkname) {
				c.Left++
				continue
			}
			err = replace(into, name, func(temp string) error { return into.Symlink(h.Linkname, temp) })
		default:
			return c, fmt.Errorf("%.256q is neither a file, a folder nor a link: %w", h.Name, unix.EINVAL)
		}
		if err != nil {
			return c, err
		}
	}
}

func isFolder(into *os.Root, name string) error {
	info, err := into.Lstat(name)
	if err == nil && !info.IsDir() {
		err = &fs.PathError{Op: "mkdir", Path: name, Err: fs.ErrExist}
	}
	return err
}

// replace has something made under a name that nothing has, and gives it its own.
func replace(into *os.Root, name string, make func(temp string) error) error {
	temp := path.Join(path.Dir(name), fmt.Sprintf(".agentrun-%x", time.Now().UnixNano()))
	if err := make(temp); err != nil {
		_ = into.Remove(temp)
		return err
	}
	if err := into.Rename(temp, name); err != nil {
		_ = into.Remove(temp)
		return err
	}
	return nil
}

func unpackFile(into *os.Root, name string, from io.Reader, mode fs.FileMode, at time.Time) (err error) {
	f, err := into.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := io.Copy(f, from); err != nil {
		return err
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	return into.Chtimes(name, at, at)
}

// mostText are bytes of names and links that List gives: an agent makes links of 4095 in no time, and JSON may have six for one.
const mostText = 2 << 20

// List describes what a folder has, by name; for anything else, that alone.
func (f *Files) List(unsafePath string, most int) (list []FileInfo, err error) {
	err = f.within(unsafePath, func(dir *os.Root, base string) error {
		info, err := dir.Lstat(base)
		if err != nil {
			return err
		}
		if !info.IsDir() {
			list, err = appendInfo(nil, dir, base, info)
			return err
		}
		sub, err := dir.OpenRoot(base + inIt)
		if err != nil {
			return err
		}
		defer sub.Close()
		names, err := namesOf(sub, most)
		if err != nil {
			return err
		}
		text := 0
		for _, name := range names {
			info, err := sub.Lstat(name)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err == nil {
				list, err = appendInfo(list, sub, name, info)
			}
			if err != nil {
				return err
			}
			if text += len(name) + len(list[len(list)-1].Link); text > mostText {
				return fmt.Errorf("names and links of %d bytes: %w", mostText, ErrTooMuch)
			}
		}
		return nil
	})
	return list, err
}

// Stat describes what is under a path; a link is described itself.
func (f *Files) Stat(unsafePath string) (FileInfo, error) {
	var list []FileInfo
	err := f.within(unsafePath, func(dir *os.Root, base string) error {
		info, err := dir.Lstat(base)
		if err == nil {
			list, err = appendInfo(nil, dir, base, info)
		}
		return err
	})
	if err != nil {
		return FileInfo{}, err
	}
	return list[0], nil
}

func appendInfo(list []FileInfo, dir *os.Root, name string, info fs.FileInfo) ([]FileInfo, error) {
	i := FileInfo{Name: name, Mode: info.Mode(), Size: info.Size(), Time: info.ModTime().UTC()}
	if i.Mode.Type() == fs.ModeSymlink {
		var err error
		if i.Link, err = dir.Readlink(name); err != nil {
			return list, err
		}
	}
	return append(list, i), nil
}

// FirstFile writes the content of the file that a tar begins with.
func FirstFile(from io.Reader, to io.Writer) error {
	t := tar.NewReader(from)
	h, err := t.Next()
	if err == nil && h.Typeflag != tar.TypeReg {
		err = errors.New("it is no plain file any more")
	}
	if err == nil {
		_, err = io.Copy(to, t)
	}
	return err
}
