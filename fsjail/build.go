// SPDX-License-Identifier: Apache-2.0

package fsjail

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Isolate gives the calling thread a mount namespace of its own from which nothing propagates back.
// Call it on a locked thread that is never unlocked: mounts made there die with the last process or
// thread that uses the namespace, however that one dies.
func Isolate() error {
	// A thread shares its fs_struct with the others; unshare(2) splits it off with CLONE_NEWNS.
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare CLONE_NEWNS", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount / private", err)
	}
	return nil
}

// Root is a root view that was built.
type Root struct {
	Path  string // where it stands in the builder's mount namespace
	Upper string // where overlays keep changes; empty without overlays
	// Staged are its folders that are a mount, read-only and without programs, of Options.Stages.
	Staged []string

	fd        int
	agent     IDs
	ours      map[uint64]bool   // devices of file systems made here: only there may mount points be created
	placed    map[string]int    // target → O_PATH descriptor of the mount, for Again
	top       folder            // fd, the root's to close
	folders   map[string]folder // of ours below it, by their paths, which end with a slash
	layers    int
	upperSize int64
	lasts     bool            // Upper is the host's
	known     map[string]bool // top-level names the view put there, not the agent
	close     []int
}

// Options of a build.
type Options struct {
	Writable  bool  // the skeleton stays writable for the agent (ring 1)
	UpperSize int64 // bytes of the tmpfs that holds overlay changes; needed with Overlay entries
	// UpperDir is a folder of the host's for those changes instead, where they last: without links in its path, nobody's but the
	// supervisor's, on a file system that overlayfs takes as an upper layer. The files in it are agent's already. Its size is not bounded.
	UpperDir string
	Stages   *Stages // folders that views share; nil: none. A writable view has its own.
}

// Build puts the view together in dir, an existing empty directory. The caller's thread must have
// been through Isolate. On error the half-built mounts are detached again.
func Build(dir string, entries []Entry, agent IDs, opt Options) (_ *Root, err error) {
	r := &Root{
		Path: filepath.Join(dir, "root"), fd: -1, agent: agent, ours: map[uint64]bool{}, placed: map[string]int{}, folders: map[string]folder{},
		upperSize: opt.UpperSize,
	}
	defer func() {
		r.release()
		if err != nil {
			_ = unix.Unmount(dir, unix.MNT_DETACH) // the error that brought us here is the one to report
		}
	}()
	// 1 MiB holds the stub and a synthetic /etc; nobody but the builder writes to it unless the view
	// is writable, and then it is bounded by the same size as the overlays.
	size := int64(1 << 20)
	if opt.Writable {
		size = opt.UpperSize
	}
	for _, e := range entries {
		if e.Kind == Cover {
			size += int64(len(e.Content)) + 4096 // its last page is whole
		}
	}
	if err := mountTmpfs(dir, size, IDs{}); err != nil {
		return nil, fmt.Errorf("skeleton tmpfs: %w", err)
	}
	if err := os.Mkdir(r.Path, 0o755); err != nil {
		return nil, err
	}
	// A mount of its own, so that its read-only flag and its parent (no upper, no lower) are separate.
	owner := IDs{}
	if opt.Writable {
		owner = agent
	}
	if err := mountTmpfs(r.Path, size, owner); err != nil {
		return nil, fmt.Errorf("root tmpfs: %w", err)
	}
	if opt.UpperSize > 0 {
		r.Upper, r.lasts = opt.UpperDir, opt.UpperDir != ""
		if !r.lasts {
			r.Upper = filepath.Join(dir, "upper")
			if err := os.Mkdir(r.Upper, 0o755); err != nil {
				return nil, err
			}
			if err := mountTmpfs(r.Upper, opt.UpperSize, IDs{}); err != nil {
				return nil, fmt.Errorf("overlay tmpfs: %w", err)
			}
		}
	}
	r.fd, err = unix.Open(r.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("open root", err)
	}
	r.close = append(r.close, r.fd)
	if err := r.own(r.fd); err != nil {
		return nil, err
	}
	if r.top, err = r.folderOf(r.fd); err != nil {
		return nil, err
	}
	r.top.kept = true
	r.known = map[string]bool{}
	for _, e := range entries {
		r.known[strings.SplitN(strings.TrimPrefix(e.Target, "/"), "/", 2)[0]] = true
	}
	if opt.Stages != nil && !opt.Writable {
		for _, dir := range staged {
			if entries, err = r.stage(opt.Stages, dir, entries); err != nil {
				return nil, fmt.Errorf("stage %s: %w", dir, err)
			}
		}
	}
	for _, e := range entries {
		if err := r.add(e); err != nil {
			return nil, fmt.Errorf("%s %s: %w", e.Kind, e.Target, err)
		}
	}
	if !opt.Writable {
		// Only the skeleton: each mount on it carries its own flags.
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		if err := setattrOnce(r.fd, &attr); err != nil {
			return nil, os.NewSyscallError("mount_setattr root read-only", err)
		}
	}
	return r, nil
}

// setattrOnce waits for the copies of our own descriptors. A child has one of each that was open at its fork, also of files that we
// have written to and closed since, until it is past its exec; syscall.ForkLock is free a little earlier than that. Nobody else can
// write here yet, so EBUSY passes.
func setattrOnce(fd int, attr *unix.MountAttr) (err error) {
	for range copiesLooks {
		if err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, attr); !errors.Is(err, unix.EBUSY) {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return err
}

// copiesLooks, a millisecond apart, are ages for a fork to come to its exec.
const copiesLooks = 2000

func (r *Root) release() {
	for _, fd := range r.close {
		unix.Close(fd)
	}
	r.close = nil
	clear(r.folders)
}

// own remembers that mount points may be created on the file system fd is on.
func (r *Root) own(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	r.ours[st.Dev] = true
	return nil
}

var builders = map[Kind]func(*Root, Entry) error{
	Dir: (*Root).addDir, Link: (*Root).addLink, File: (*Root).addFile, Bind: (*Root).addBind, Tmpfs: (*Root).addTmpfs,
	Devpts: (*Root).addDevpts, Overlay: (*Root).addOverlay, Again: (*Root).addAgain, Cover: (*Root).addCover,
	Fact: func(*Root, Entry) error { return nil }, // see Facts.Show
}

func (r *Root) add(e Entry) error {
	if !strings.HasPrefix(e.Target, "/") || filepath.Clean(e.Target) != e.Target {
		return fmt.Errorf("target is not a clean absolute path: %w", unix.EINVAL)
	}
	if build, ok := builders[e.Kind]; ok {
		return build(r, e)
	}
	return fmt.Errorf("kind %q: %w", e.Kind, unix.EINVAL)
}

// folder is where a target stands.
type folder struct {
	fd    int
	ours  bool // made here: mount points may be created in it
	kept  bool // the root's to close
	owner IDs
}

func (f folder) done() {
	if !f.kept {
		unix.Close(f.fd)
	}
}

// parent opens the folder a target stands in, creating what is missing on our own file systems, and gives the last component. No link is
// followed on the way. A folder of ours is kept for the next target in it: nobody else can reach it before the view is whole, and a
// mount, which might come to lie over it, lets all of them go (place).
func (r *Root) parent(target string) (folder, string, error) {
	at, name := path.Split(target)
	f := r.top
	if at == "/" {
		return f, name, nil
	}
	if f, ok := r.folders[at]; ok {
		return f, name, nil
	}
	for part := range strings.SplitSeq(strings.Trim(at, "/"), "/") {
		next, err := r.step(f, part)
		f.done()
		if err != nil {
			return folder{}, "", fmt.Errorf("%s in %s: %w", part, target, err)
		}
		f = next
	}
	if f.ours {
		f.kept = true
		r.close = append(r.close, f.fd)
		r.folders[at] = f
	}
	return f, name, nil
}

const openPath = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC

func (r *Root) step(dir folder, name string) (folder, error) {
	fd, err := unix.Openat(dir.fd, name, openPath, 0)
	if errors.Is(err, unix.ENOENT) {
		if err := dir.make(name, true); err != nil {
			return folder{}, err
		}
		fd, err = unix.Openat(dir.fd, name, openPath|unix.O_DIRECTORY, 0)
	}
	if err != nil {
		return folder{}, os.NewSyscallError("openat", err)
	}
	f, err := r.folderOf(fd)
	if err != nil {
		unix.Close(fd)
	}
	return f, err
}

func (r *Root) folderOf(fd int) (folder, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return folder{}, os.NewSyscallError("fstat", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return folder{}, fmt.Errorf("is a link or file, not a directory: %w", unix.ENOTDIR)
	}
	return folder{fd: fd, ours: r.ours[st.Dev], owner: IDs{UID: int(st.Uid), GID: int(st.Gid)}}, nil
}

// ErrNoMountPoint: the mount point would have to be created in a directory of the host.
var ErrNoMountPoint = errors.New("no such mount point, and agentrun creates none in the host's directories")

// make makes a folder or a file for a mount, with the owner of the folder it is in: what stands in the agent's scratch is the agent's, who
// writes beside the mount (a program's other settings beside one that is shown). What is in the skeleton stays ours.
func (f folder) make(name string, isDir bool) (err error) {
	if !f.ours {
		return ErrNoMountPoint
	}
	if isDir {
		if err = unix.Mkdirat(f.fd, name, 0o755); err == nil {
			err = unix.Fchmodat(f.fd, name, 0o755, 0) // past the umask; nobody else reaches it yet
		}
	} else {
		err = unix.Mknodat(f.fd, name, unix.S_IFREG|0o644, 0)
	}
	if err == nil && f.owner != (IDs{UID: os.Geteuid(), GID: os.Getegid()}) {
		err = unix.Fchownat(f.fd, name, f.owner.UID, f.owner.GID, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		return fmt.Errorf("create mount point: %w", err)
	}
	return nil
}

// ourParent is parent for what is made in it.
func (r *Root) ourParent(target string) (folder, string, error) {
	f, name, err := r.parent(target)
	if err == nil && !f.ours {
		f.done()
		err = ErrNoMountPoint
	}
	return f, name, err
}

func (r *Root) addDir(e Entry) error {
	dir, name, err := r.ourParent(e.Target)
	if err != nil {
		return err
	}
	defer dir.done()
	if err := unix.Mkdirat(dir.fd, name, uint32(e.Mode.Perm())); err != nil && !errors.Is(err, unix.EEXIST) {
		return os.NewSyscallError("mkdirat", err)
	}
	fd, err := unix.Openat(dir.fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("openat", err)
	}
	defer unix.Close(fd)
	if e.Agent {
		if err := unix.Fchown(fd, r.agent.UID, r.agent.GID); err != nil {
			return os.NewSyscallError("fchown", err)
		}
	}
	return os.NewSyscallError("fchmod", unix.Fchmod(fd, uint32(e.Mode.Perm()))) // past the umask
}

func (r *Root) addLink(e Entry) error {
	dir, name, err := r.ourParent(e.Target)
	if err != nil {
		return err
	}
	defer dir.done()
	return os.NewSyscallError("symlinkat", unix.Symlinkat(e.Source, dir.fd, name))
}

func (r *Root) addFile(e Entry) error {
	dir, name, err := r.ourParent(e.Target)
	if err != nil {
		return err
	}
	defer dir.done()
	return writeNew(dir.fd, name, e.Content, uint32(e.Mode.Perm()))
}

// target says where a mount goes: a name in a folder, or, without a name, what is open. The mount point is created on our own file systems:
// what was just made there is what was asked for. What was there already is looked at.
func (r *Root) target(target string, isDir bool) (at folder, name string, err error) {
	dir, name, err := r.parent(target)
	if err != nil {
		return folder{}, "", err
	}
	if dir.ours {
		if err = dir.make(name, isDir); !errors.Is(err, unix.EEXIST) {
			return dir, name, err
		}
	}
	defer dir.done()
	fd, err := unix.Openat(dir.fd, name, openPath, 0)
	if errors.Is(err, unix.ENOENT) {
		return folder{}, "", ErrNoMountPoint
	}
	if err != nil {
		return folder{}, "", os.NewSyscallError("openat", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return folder{}, "", os.NewSyscallError("fstat", err)
	}
	if kind := st.Mode & unix.S_IFMT; kind == unix.S_IFLNK || (kind == unix.S_IFDIR) != isDir {
		unix.Close(fd)
		return folder{}, "", fmt.Errorf("mount point is of another kind than what is mounted on it: %w", unix.ENOTDIR)
	}
	return folder{fd: fd}, "", nil
}

// place moves a detached mount onto its target and remembers it. The descriptor is the root's to close from here on.
func (r *Root) place(mnt int, target string, isDir bool) error {
	r.close = append(r.close, mnt)
	at, name, err := r.target(target, isDir)
	if err != nil {
		return err
	}
	defer at.done()
	flags := unix.MOVE_MOUNT_F_EMPTY_PATH // a link as last component isn't followed
	if name == "" {
		flags |= unix.MOVE_MOUNT_T_EMPTY_PATH
	}
	if err := unix.MoveMount(mnt, "", at.fd, name, flags); err != nil {
		return os.NewSyscallError("move_mount", err)
	}
	if isDir {
		clear(r.folders)
	}
	r.placed[target] = mnt
	return nil
}

// openNoLinks opens a path, as a place only, none of whose components is a link.
func openNoLinks(path string, flags uint64) (int, error) {
	return unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC | flags, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// openSource opens a host path none of whose components is a link, and clones the mounts below it.
func openSource(source string) (mnt int, isDir bool, err error) {
	fd, err := openNoLinks(source, 0)
	if err != nil {
		return -1, false, fmt.Errorf("openat2 %s: %w", source, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return -1, false, os.NewSyscallError("fstat", err)
	}
	mnt, err = unix.OpenTree(fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)
	if err != nil {
		return -1, false, fmt.Errorf("open_tree %s: %w", source, err)
	}
	return mnt, st.Mode&unix.S_IFMT == unix.S_IFDIR, nil
}

// ErrNoIDMap: the file system of a source can't show its files under other owners.
var ErrNoIDMap = errors.New("idmapped mounts are not supported by this file system")

func (r *Root) addBind(e Entry) error {
	if e.Guard {
		mnt, err := r.addGuard(e)
		if err == nil {
			r.close = append(r.close, mnt)
		}
		return err
	}
	mnt, isDir, err := openSource(e.Source)
	if err != nil {
		return err
	}
	if err := r.dress(mnt, e); err != nil {
		unix.Close(mnt)
		return err
	}
	return r.place(mnt, e.Target, isDir)
}

// addGuard mounts a part of the view over itself: what is a mount point can't be renamed, removed or replaced from within
// (is_local_mountpoint, EBUSY in rename(2), rmdir(2), unlink(2)). It is a copy of what is seen there, so nothing else can come in between,
// and it has the owners that are seen there. A link can't be mounted over itself: /dev/null hides it, and a socket,
// which stands for a file that isn't there. The caller closes the mount.
func (r *Root) addGuard(e Entry) (mnt int, err error) {
	dir, name, err := r.parent(e.Target)
	if err != nil {
		return -1, err
	}
	defer dir.done()
	at, err := unix.Openat(dir.fd, name, openPath, 0)
	if err != nil {
		return -1, os.NewSyscallError("openat", err)
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return -1, os.NewSyscallError("fstat", err)
	}
	source := at
	kind := st.Mode & unix.S_IFMT
	if hidden := kind == unix.S_IFLNK || kind == unix.S_IFSOCK; hidden != (e.Source == os.DevNull) {
		return -1, fmt.Errorf("was replaced since the run was planned: %w", unix.ESTALE)
	} else if hidden {
		if source, err = openNoLinks(os.DevNull, 0); err != nil {
			return -1, os.NewSyscallError("openat2", err)
		}
		defer unix.Close(source)
	}
	mnt, err = unix.OpenTree(source, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)
	if err != nil {
		return -1, os.NewSyscallError("open_tree", err)
	}
	if err = r.dress(mnt, e); err == nil {
		err = os.NewSyscallError("move_mount", unix.MoveMount(mnt, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH))
	}
	if err != nil {
		unix.Close(mnt)
		return -1, err
	}
	return mnt, nil
}

// dress sets the flags and the id mapping of a detached mount and of all mounts below it, before
// anybody can reach it: there is no instant in which it is visible with more rights.
func (r *Root) dress(mnt int, e Entry) error {
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID, Propagation: unix.MS_PRIVATE}
	if !e.Writable && !e.Live {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if !e.Exec {
		attr.Attr_set |= unix.MOUNT_ATTR_NOEXEC
	}
	if !e.Device {
		attr.Attr_set |= unix.MOUNT_ATTR_NODEV
	}
	if err := unix.MountSetattr(mnt, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		return os.NewSyscallError("mount_setattr", err)
	}
	if e.Owner == nil {
		return nil
	}
	ns, err := idmapNamespace(*e.Owner, r.agent)
	if err != nil {
		return err
	}
	defer unix.Close(ns)
	attr = unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns)}
	err = unix.MountSetattr(mnt, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr)
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%s: %w", e.Source, ErrNoIDMap)
	}
	return os.NewSyscallError("mount_setattr idmap", err)
}

func (r *Root) addAgain(e Entry) error {
	first, ok := r.placed[e.Source]
	if !ok {
		return fmt.Errorf("no earlier mount at %s: %w", e.Source, unix.EINVAL)
	}
	mnt, err := unix.OpenTree(first, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return os.NewSyscallError("open_tree", err)
	}
	return r.place(mnt, e.Target, true)
}

// addCover makes a file on the skeleton and mounts it over what the view shows at the target.
func (r *Root) addCover(e Entry) error {
	name := fmt.Sprintf(".agentrun-cover-%d", len(r.close))
	r.known[name] = true
	if err := r.addFile(Entry{Target: "/" + name, Content: e.Content, Mode: 0o555}); err != nil {
		return err
	}
	mnt, err := unix.OpenTree(r.fd, name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return os.NewSyscallError("open_tree", err)
	}
	if err := r.dress(mnt, Entry{Exec: true}); err != nil {
		unix.Close(mnt)
		return err
	}
	return r.place(mnt, e.Target, false)
}

func (r *Root) addTmpfs(e Entry) error {
	if e.Size <= 0 {
		return fmt.Errorf("tmpfs without a size: %w", unix.EINVAL)
	}
	options := tmpfsOptions(e.Size, e.Mode.Perm(), r.agent)
	// One inode takes about 1 KiB of kernel memory outside of size; the agent's memory limit
	// covers it too, this keeps a flood of empty files an ENOSPC and not an OOM.
	options["nr_inodes"] = strconv.FormatInt(max(1024, e.Size/4096), 10)
	attrs := unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	if !e.Exec {
		attrs |= unix.MOUNT_ATTR_NOEXEC
	}
	mnt, err := newFS("tmpfs", options, attrs)
	if err != nil {
		return err
	}
	if err := r.place(mnt, e.Target, true); err != nil {
		return err
	}
	return r.own(mnt)
}

func (r *Root) addDevpts(e Entry) error {
	// newinstance is the only kind since Linux 4.7; max bounds the ptys an agent can hold.
	mnt, err := newFS("devpts", map[string]string{"ptmxmode": "0666", "mode": "0620", "max": "64"},
		unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return err
	}
	return r.place(mnt, e.Target, true)
}

// addOverlay shows a host directory as if the agent owned it: the lower layers are idmapped clones
// (host root's files are the agent's), the upper layer a directory of the run's tmpfs, or of the host where changes last.
func (r *Root) addOverlay(e Entry) error {
	upper, lasts := cmp.Or(e.Changes, r.Upper), e.Changes != "" || r.lasts
	if upper == "" {
		return fmt.Errorf("overlay without a size for its changes: %w", unix.EINVAL)
	}
	if len(e.Sealed) > MaxSealed {
		return fmt.Errorf("%d sealed layers, at most %d: %w", len(e.Sealed), MaxSealed, unix.E2BIG)
	}
	n := strconv.Itoa(r.layers)
	var lowers []string
	for _, sealed := range e.Sealed {
		var st unix.Stat_t
		if err := unix.Lstat(sealed, &st); err != nil {
			return &os.PathError{Op: "lstat", Path: sealed, Err: err}
		}
		name, err := r.addLower(sealed, &Owner{UID: st.Uid, GID: st.Gid})
		if err != nil {
			return err
		}
		lowers = append(lowers, name)
	}
	owner := e.Owner
	if owner == nil {
		owner = &Owner{}
	}
	name, err := r.addLower(e.Source, owner)
	if err != nil {
		return err
	}
	lowers = append(lowers, name)
	changes, work := ChangesIn(upper, e.Target), filepath.Join(upper, "work", n)
	for _, d := range []string{changes, work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	// Where changes last, what lies in another overlay's is the agent's, and may be a link by now.
	if at, err := filepath.EvalSymlinks(changes); err != nil || at != changes {
		return fmt.Errorf("changes of %s: %w", e.Target, cmp.Or(err, error(unix.ELOOP)))
	}
	if err := os.Lchown(changes, r.agent.UID, r.agent.GID); err != nil {
		return err
	}
	attr := unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	if e.Owner != nil && !e.Exec {
		attr |= unix.MOUNT_ATTR_NOEXEC
	}
	// What a host may have switched on by default: content that lies elsewhere than where it is seen, which SaveTree would miss. What
	// lasts isn't saved, and there a folder that lies in a lower layer can be renamed, as package managers do.
	with, in := map[string]string{"redirect_dir": "off", "metacopy": "off", "index": "off"}, "../upper"
	if lasts {
		with["redirect_dir"] = "on"
		if in, err = r.seenAs(upper); err != nil {
			return err
		}
	}
	if e.Shifting {
		// What the kernel takes back of a lower layer that changed meanwhile is defined without these four only (overlayfs.rst, "Changes to
		// underlying filesystems").
		with["redirect_dir"], with["xino"] = "nofollow", "off"
	}
	with["lowerdir"], with["upperdir"], with["workdir"] = strings.Join(lowers, ":"), ChangesIn(in, e.Target), filepath.Join(in, "work", n)
	// Relative paths: /proc/mounts shows what is said here, and where the host keeps files is not the agent's to know.
	var mnt int
	err = r.inLower(func() (err error) {
		// The last part is the name that a root gives its folder, and overlayfs reads some characters of it as its own (before Linux 6.5, fsconfig(2) too).
		if changes := with["upperdir"]; strings.ContainsAny(changes, `,:\`) {
			fd, err := unix.Open(changes, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
			if err != nil {
				return &os.PathError{Op: "open", Path: changes, Err: err}
			}
			defer unix.Close(fd)
			with["upperdir"] = fmt.Sprintf("/proc/self/fd/%d", fd)
		}
		mnt, err = newFS("overlay", with, attr)
		return err
	})
	if err != nil {
		return err
	}
	return r.place(mnt, e.Target, true)
}

func (r *Root) lower() string { return filepath.Join(filepath.Dir(r.Path), "lower") }

// addLower makes a lower layer of a host folder, and gives its name in the folder of lower ones.
func (r *Root) addLower(source string, owner *Owner) (name string, err error) {
	mnt, isDir, err := openSource(source)
	if err != nil {
		return "", err
	}
	defer unix.Close(mnt)
	if !isDir {
		return "", unix.ENOTDIR
	}
	if err := r.dress(mnt, Entry{Source: source, Exec: true, Owner: owner}); err != nil {
		return "", err
	}
	return r.attach(mnt)
}

// seenAs gives a host folder a name among lower layers.
func (r *Root) seenAs(folder string) (name string, err error) {
	mnt, _, err := openSource(folder)
	if err != nil {
		return "", err
	}
	defer unix.Close(mnt)
	return r.attach(mnt)
}

// attach gives a mount a place beside the root, outside of what the sandbox pivots into: overlayfs refuses a layer on one that is attached
// nowhere (clone_private_mount).
func (r *Root) attach(mnt int) (name string, err error) {
	name = strconv.Itoa(r.layers)
	r.layers++
	at := filepath.Join(r.lower(), name)
	if err := os.MkdirAll(at, 0o755); err != nil {
		return "", err
	}
	err = unix.MoveMount(mnt, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
	return name, os.NewSyscallError("move_mount lower", err)
}

// inLower runs fn in the folder of lower layers: their names are short there. The thread's folder is its own, since Isolate.
func (r *Root) inLower(fn func() error) error {
	back, err := unix.Open(".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("open the working directory", err)
	}
	defer unix.Close(back)
	if err := unix.Chdir(r.lower()); err != nil {
		return os.NewSyscallError("chdir", err)
	}
	return errors.Join(fn(), os.NewSyscallError("fchdir", unix.Fchdir(back)))
}

func tmpfsOptions(size int64, mode os.FileMode, owner IDs) map[string]string {
	return map[string]string{
		"size": strconv.FormatInt(size, 10), "mode": fmt.Sprintf("%o", mode),
		"uid": strconv.Itoa(owner.UID), "gid": strconv.Itoa(owner.GID),
	}
}

func mountTmpfs(at string, size int64, owner IDs) error {
	mnt, err := newFS("tmpfs", tmpfsOptions(size, 0o755, owner), unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return err
	}
	defer unix.Close(mnt)
	return os.NewSyscallError("move_mount", unix.MoveMount(mnt, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH))
}

// newFS makes a detached mount of a new file system.
func newFS(fstype string, options map[string]string, attrs int) (int, error) {
	fs, err := unix.Fsopen(fstype, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen %s: %w", fstype, err)
	}
	defer unix.Close(fs)
	for k, v := range options { // order does not matter to the kernel: one option, one key
		if err := unix.FsconfigSetString(fs, k, v); err != nil {
			return -1, fmt.Errorf("fsconfig %s %s=%s: %w", fstype, k, v, err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("create %s: %w", fstype, err)
	}
	mnt, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attrs)
	if err != nil {
		return -1, fmt.Errorf("fsmount %s: %w", fstype, err)
	}
	return mnt, nil
}
