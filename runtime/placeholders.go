// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"agentrun/fsjail"
	"agentrun/internal/beneath"
)

// Placeholders are made in a workspace where a guarded path is missing: nothing can be mounted on what isn't
// there. They are empty folders, which git doesn't list and no program acts on; where one would stumble over
// an empty folder, as Go over .git, there are files that say nothing,
// and where one would stumble over a folder for a file, as yarn does, sockets, which git doesn't list and the run doesn't see. The last run of the workspace removes them, or Collect after a crash.
//
// Runs that share a workspace share them: were one's removed while another lives, the kernel would take the
// other's mount away with it (detach_mounts). So there is a file for each workspace that has some, in the run
// folder, named after its inode: every run holds a shared lock on it for life, and who gets the exclusive one was
// the last. It lists what was made, each name before it is made. Making and removing is under a lock on the
// folder. Two nodes (another run folder, another user's) that share a workspace don't know of each other.
type placeholders struct {
	dir    string // of all such files
	record *os.File
}

const placeholdersDir = "placeholders"

// opencode makes this file where the folder is, and ends if it can't.
const ignoredByOpencode = ".opencode/.gitignore"

// gitUnlessHead is .git in the record where the workspace had no HEAD. Where it has one when the run is over, the agent has made a repository
// of the workspace, of which git on the host would run what the configuration names: then .git stays, which leads nowhere, so that git
// says "not a git repository" until somebody has looked.
const gitUnlessHead = ".git?"

// placeholder says what a file holds that stands for a path; what else stands for one is an empty folder.
func placeholder(rel string) string {
	switch {
	case path.Base(rel) == "commondir" && path.Base(path.Dir(path.Dir(rel))) == "worktrees" && path.Base(path.Dir(path.Dir(path.Dir(rel)))) != "modules":
		return "../..\n" // as git writes it
	case path.Base(rel) == "commondir":
		return ".\n" // the folder itself, as without the file
	case rel == ".git":
		return "gitdir: .git/none\n" // "not a git repository", as without it
	case rel == ignoredByOpencode:
		return "*\n"
	}
	return ""
}

// holdPlaceholders makes what is missing of the guarded paths among the entries of a view; nil if there are none.
func holdPlaceholders(runDir string, entries []fsjail.Entry) (_ *placeholders, err error) {
	i := slices.IndexFunc(entries, func(e fsjail.Entry) bool { return e.Guard })
	ws := slices.IndexFunc(entries, func(e fsjail.Entry) bool { return e.Target == workspaceDir })
	if i < 0 || ws < 0 {
		return nil, nil
	}
	root, name, err := openWorkspace(entries[ws].Source)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	dir := filepath.Join(runDir, placeholdersDir)
	unlock, err := lockPlaceholders(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	h := &placeholders{dir, f}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.end())
		}
	}()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); err != nil { // nobody has it exclusively without the folder's
		return nil, os.NewSyscallError("flock", err)
	}
	if _, err := fmt.Fprintln(f, strconv.Quote(entries[ws].Source)); err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !e.Guard {
			continue
		}
		rel := strings.TrimPrefix(e.Target, workspaceDir+"/")
		if err := h.make(root, rel, e.IsFile, entries[ws].Owner); err != nil {
			return nil, fmt.Errorf("make %s for the run, so that the agent can't: %w (a profile can leave it open: files.guard)",
				filepath.Join(entries[ws].Source, rel), err)
		}
	}
	return h, nil
}

// openWorkspace opens a workspace, whose name in the list of placeholders is that of its inode.
func openWorkspace(source string) (*os.File, string, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, source, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, "", &os.PathError{Op: "openat2", Path: source, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, "", os.NewSyscallError("fstat", err)
	}
	return os.NewFile(uintptr(fd), source), fmt.Sprintf("%x-%x", st.Dev, st.Ino), nil
}

// lockPlaceholders is held for some calls of mkdir(2) and rmdir(2).
func lockPlaceholders(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, os.NewSyscallError("flock", err)
	}
	return func() { f.Close() }, nil
}

// folder opens the folder of a path beneath a workspace, following no link.
func folder(root *os.File, rel string) (int, string, error) {
	fd, err := unix.Openat2(int(root.Fd()), path.Dir(rel), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return -1, "", os.NewSyscallError("openat2", err)
	}
	return fd, path.Base(rel), nil
}

// make makes one, of the workspace's owner; nil: of whoever runs this, as whom the agent acts.
func (h *placeholders) make(root *os.File, rel string, isFile bool, owner *fsjail.Owner) error {
	dir, name, err := folder(root, rel)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); !errors.Is(err, unix.ENOENT) {
		return os.NewSyscallError("fstatat", err)
	}
	listed := rel
	if !isFile {
		listed += "/"
	}
	if rel == ".git" && errors.Is(unix.Fstatat(dir, "HEAD", &st, unix.AT_SYMLINK_NOFOLLOW), unix.ENOENT) {
		listed = gitUnlessHead
	}
	if _, err := fmt.Fprintln(h.record, strconv.Quote(listed)); err != nil {
		return err
	}
	switch {
	case standsHidden(rel):
		// It stays this user's: by what it is nobody could tell it from another socket that has taken its name.
		err = os.NewSyscallError("mknodat", unix.Mknodat(dir, name, unix.S_IFSOCK|0o644, 0))
	case isFile:
		err = makeFile(dir, name, placeholder(rel), owner)
	default:
		err = makeFolder(dir, name, owner)
	}
	if errors.Is(err, unix.EEXIST) {
		return nil // in this instant somebody else has made one, and it is guarded as it is
	}
	if err == nil && rel == path.Dir(ignoredByOpencode) {
		err = h.make(root, ignoredByOpencode, true, owner)
	}
	return err
}

// Whoever writes the workspace can give the name of what was made to something of this user's: what gets another owner is what is open.
func makeFolder(dir int, name string, owner *fsjail.Owner) error {
	if err := unix.Mkdirat(dir, name, 0o755); err != nil || owner == nil {
		return os.NewSyscallError("mkdirat", err)
	}
	f, err := beneath.Fresh(dir, name, 0o755)
	if err != nil {
		return err
	}
	return errors.Join(f.Chown(int(owner.UID), int(owner.GID)), f.Close())
}

func makeFile(dir int, name, content string, owner *fsjail.Owner) error {
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return os.NewSyscallError("openat", err)
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.WriteString(content)
	if err == nil && owner != nil {
		err = f.Chown(int(owner.UID), int(owner.GID))
	}
	return errors.Join(err, f.Close())
}

// drop lets go of them. It may be called on nil.
func (h *placeholders) drop() error {
	if h == nil {
		return nil
	}
	unlock, err := lockPlaceholders(h.dir)
	if err != nil {
		h.record.Close()
		return err
	}
	defer unlock()
	return h.end()
}

// end removes what was made, unless a run of this workspace lives. The folder is locked.
func (h *placeholders) end() error {
	defer h.record.Close()
	if err := unix.Flock(int(h.record.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil // the last one does it
	}
	source, made := h.list()
	root, name, err := openWorkspace(source)
	if err == nil {
		if name == filepath.Base(h.record.Name()) {
			for _, rel := range slices.Backward(made) {
				err = errors.Join(err, unmake(root, rel))
			}
		}
		root.Close()
	}
	if lacks(err) { // the list stays: the next run, or Collect, tries again
		return fmt.Errorf("placeholders in %s: %w", source, err)
	}
	return os.Remove(h.record.Name())
}

// lacks tells that it was for want of something which comes back, and not for what lies there by now.
func lacks(err error) bool {
	return slices.ContainsFunc([]unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM}, func(e unix.Errno) bool { return errors.Is(err, e) })
}

// list is what the record has: the workspace, and what was made in it; folders end with a slash.
func (h *placeholders) list() (source string, made []string) {
	for s := bufio.NewScanner(io.NewSectionReader(h.record, 0, math.MaxInt64)); s.Scan(); {
		switch name, err := strconv.Unquote(s.Text()); {
		case err != nil: // a crash in the middle of writing: it wasn't made yet
		case path.IsAbs(name):
			source = name
		default:
			made = append(made, name)
		}
	}
	return source, made
}

// shown are the paths in the sandbox. It may be called on nil.
func (h *placeholders) shown() map[string]bool {
	all := map[string]bool{}
	if h == nil {
		return all
	}
	_, made := h.list()
	for _, rel := range made {
		if rel == gitUnlessHead {
			rel = ".git"
		}
		all[path.Join(workspaceDir, rel)] = true
	}
	return all
}

// unmake removes what still is as it was made: what somebody has put there since is theirs. The error is why that can't be told.
func unmake(root *os.File, listed string) error {
	rel, isDir := strings.CutSuffix(listed, "/")
	dir, name, err := folder(root, rel)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if listed == gitUnlessHead {
		var st unix.Stat_t
		if !errors.Is(unix.Fstatat(dir, "HEAD", &st, unix.AT_SYMLINK_NOFOLLOW), unix.ENOENT) {
			return nil
		}
		rel, name = ".git", ".git"
	}
	if isDir {
		return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
	}
	if standsHidden(rel) {
		var st unix.Stat_t
		if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
			return err
		}
		return unix.Unlinkat(dir, name, 0)
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	is, err := io.ReadAll(io.LimitReader(f, 64))
	if err != nil || string(is) != placeholder(rel) {
		return err
	}
	return unix.Unlinkat(dir, name, 0)
}

// sweepPlaceholders removes those of runs that are dead.
func sweepPlaceholders(runDir string) error {
	dir := filepath.Join(runDir, placeholdersDir)
	names, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(names) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	unlock, err := lockPlaceholders(dir)
	if err != nil {
		return err
	}
	defer unlock()
	var errs []error
	for _, n := range names {
		f, err := os.OpenFile(filepath.Join(dir, n.Name()), os.O_RDWR|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue // its run has just ended
		}
		errs = append(errs, (&placeholders{dir, f}).end())
	}
	return errors.Join(errs...)
}
