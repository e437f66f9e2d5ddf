// SPDX-License-Identifier: Apache-2.0

package sandboxes

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/fsjail"
	"agentrun/internal/beneath"
	"agentrun/internal/fault"
	"agentrun/profiles"
	"agentrun/supervisor/homes"
)

// A layer is a folder of one or more sandboxes' files:
//
//	homes/home/files   HOME, of a sandbox whose files it is the first layer of
//	root/changes/…     what changed in the root, and in HOME where a layer below has one: upper layers of overlays
//	workspace/changes  what changed in an overlaid workspace, and what is known of that (package changes)
//
// The workspace may change beneath what changed in it, and a part of that be applied to it. So these changes lie in one piece, of which each
// layer has a copy of its own: only the sandbox's own layer's is ever mounted or looked at.
//
// The folder is ours, mode 0700, and what is in it the agent's. One that no sandbox and no snapshot names is removed by prune.

// Files are what a sandbox or a snapshot is made of.
type Files struct {
	Below  []string      `json:"below,omitempty"`  // sealed layers, the uppermost first
	Sealed profiles.Size `json:"sealed,omitempty"` // bytes in them
}

// Snapshot is what a sandbox's files were.
type Snapshot struct {
	Name string    `json:"name"`
	By   string    `json:"by"`
	At   time.Time `json:"at"`
	Files
}

// maxSnapshots of one sandbox: what is known of it is read at each start.
const maxSnapshots = 256

var (
	// ErrNoSnapshot is one that there isn't.
	ErrNoSnapshot = errors.New("there is no snapshot of that name")
	// ErrSnapshotExists is one that there is already.
	ErrSnapshotExists = errors.New("there is a snapshot of that name already")
	// ErrTooMany layers lie on each other.
	ErrTooMany = fmt.Errorf("its files lie in %d layers, and more are not mounted", fsjail.MaxSealed)
)

// Still has the run of a live sandbox stand still while copy runs, and lets it go on. Its error is copy's, or that the run didn't.
type Still func(copy func() error) error

// isLayer tells whether a name is one that newLayer gives.
func isLayer(name string) bool {
	return len(name) == 32 && strings.Trim(name, "0123456789abcdef") == ""
}

func (s *Sandbox) checkLayers() error {
	all := append([]string{s.Layer}, s.Below...)
	for _, snap := range s.Snapshots {
		all = append(all, snap.Below...)
	}
	for _, l := range all {
		if !isLayer(l) {
			return fmt.Errorf("the state of sandbox %s: %.64q is no layer", s.Name, l)
		}
	}
	return nil
}

// Has tells whether there is a snapshot of that name.
func (s *Sandbox) Has(snapshot string) bool {
	_, err := s.snapshot(snapshot)
	return err == nil
}

// snapshot finds one by its name.
func (s *Sandbox) snapshot(name string) (Snapshot, error) {
	i := slices.IndexFunc(s.Snapshots, func(o Snapshot) bool { return o.Name == name })
	if i < 0 {
		return Snapshot{}, ErrNoSnapshot
	}
	return s.Snapshots[i], nil
}

func (f Folder) layers() string         { return filepath.Join(f.StateDir, "layers") }
func (f Folder) layer(id string) string { return filepath.Join(f.layers(), id) }

// Homes is where the home of a sandbox is that has none in a layer below its own, under the name Home. The quota is that of all that the
// sandbox keeps, which Take looks at.
func (f Folder) Homes(s Sandbox) homes.Folder {
	return homes.Folder{StateDir: f.layer(s.Layer), Config: homes.Config{Quota: math.MaxInt64}}
}

// Home is the name of a sandbox's home in Homes.
const Home = "home"

// Root is where changes stay of the root, and of a home that a layer below has.
func (f Folder) Root(s Sandbox) string { return f.root(s.Layer) }

func (f Folder) root(id string) string { return filepath.Join(f.layer(id), "root") }

// SealedRoots are the folders as Root of the layers below, the uppermost first.
func (f Folder) SealedRoots(s Sandbox) (folders []string) {
	for _, id := range s.Below {
		folders = append(folders, f.root(id))
	}
	return folders
}

// SealedHomes are what the layers below have of the home that is seen at target, the uppermost first.
func (f Folder) SealedHomes(s Sandbox, target string) (folders []string) {
	for _, id := range s.Below {
		for _, at := range []string{
			fsjail.ChangesIn(f.root(id), target), homes.Folder{StateDir: f.layer(id)}.Files(Home),
		} {
			if info, err := os.Lstat(at); err == nil && info.IsDir() {
				folders = append(folders, at)
				break
			}
		}
	}
	return folders
}

// Within tells that a path is one of a sandbox's files.
func (f Folder) Within(s Sandbox, path string) bool {
	return slices.ContainsFunc(append([]string{s.Layer}, s.Below...), func(id string) bool {
		dir, err := filepath.EvalSymlinks(f.layer(id))
		return err == nil && strings.HasPrefix(path, dir+"/")
	})
}

// making keeps prune from layers that no sandbox names yet, until it is closed.
func (f Folder) making() (*os.File, error) { return f.lockLayers(unix.LOCK_SH) }

func (f Folder) lockLayers(how int) (*os.File, error) {
	if err := os.MkdirAll(f.layers(), 0o700); err != nil {
		return nil, err
	}
	return lockFolder(f.layers(), how)
}

// above makes a layer over others, with their changes of the workspace.
func (f Folder) above(ctx context.Context, below []string) (id string, err error) {
	if id, err = f.newLayer(); err == nil && len(below) > 0 {
		err = f.copyParts(ctx, below[0], id, workspaceChanges)
	}
	if err != nil && id != "" {
		err = errors.Join(err, f.drop(id))
	}
	return id, err
}

const workspaceChanges = "workspace/changes"

// Workspace is where a sandbox has what it changed in an overlaid workspace.
func (f Folder) Workspace(s Sandbox) string { return filepath.Join(f.layer(s.Layer), "workspace") }

// putAway is what EmptyWorkspace has not removed yet.
func (f Folder) putAway(s Sandbox) string { return filepath.Join(f.Workspace(s), "gone") }

func (f Folder) dropPutAway(s Sandbox) error {
	if _, err := os.Lstat(f.putAway(s)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := fault.At("sandbox/emptied"); err != nil {
		return err
	}
	return beneath.RemoveAll(f.putAway(s))
}

// EmptyWorkspace removes what the sandbox changed in its workspace: all or nothing of it is there at each moment, as half of it would be
// another change.
func (t *Taken) EmptyWorkspace() error {
	if err := t.in.dropPutAway(t.Sandbox); err != nil {
		return err
	}
	if err := fault.At("sandbox/empty"); err != nil {
		return err
	}
	err := os.Rename(filepath.Join(t.in.layer(t.Layer), workspaceChanges), t.in.putAway(t.Sandbox))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = sync(t.in.Workspace(t.Sandbox))
	}
	return errors.Join(err, t.in.dropPutAway(t.Sandbox))
}

// newLayer makes one, with a home that is empty.
func (f Folder) newLayer() (id string, err error) {
	var b [16]byte
	_, _ = rand.Read(b[:])
	id = hex.EncodeToString(b[:])
	if err := os.Mkdir(f.layer(id), 0o700); err != nil {
		return "", err
	}
	return id, os.MkdirAll(homes.Folder{StateDir: f.layer(id)}.Files(Home), 0o700)
}

// drop removes a layer that nobody names, or what prune has put away.
func (f Folder) drop(id string) error {
	if err := fault.At("sandbox/prune"); err != nil {
		return err
	}
	return beneath.RemoveAll(f.layer(id))
}

// aside begins the names of layers that nobody will name any more.
const aside = "gone-"

func (f Folder) putAside(id string) error {
	if err := fault.At("sandbox/aside"); err != nil {
		return err
	}
	return os.Rename(f.layer(id), f.layer(aside+id))
}

// seal has a sandbox that stands still go on in a new layer over its own, if that has anything: what it has is then in sealed ones only.
func (f Folder) seal(ctx context.Context, s *Sandbox) error {
	if !s.Changed {
		return nil
	}
	if len(s.Below) >= fsjail.MaxSealed {
		return ErrTooMany
	}
	bytes, err := homes.Size(f.layer(s.Layer))
	if err != nil {
		return err
	}
	if err := f.syncLayer(s.Layer); err != nil {
		return err
	}
	above, err := f.above(ctx, []string{s.Layer})
	if err != nil {
		return err
	}
	s.Files = Files{slices.Concat([]string{s.Layer}, s.Below), s.Sealed + bytes}
	s.Layer, s.Changed = above, false
	return nil
}

// syncLayer has what a sandbox wrote be on the disk before something says that it is.
func (f Folder) syncLayer(id string) error {
	if err := fault.At("sandbox/seal"); err != nil {
		return err
	}
	dir, err := os.Open(f.layer(id))
	if err != nil {
		return err
	}
	defer dir.Close()
	return os.NewSyscallError("syncfs", unix.Syncfs(int(dir.Fd())))
}

// copied makes a sealed layer of the files that a sandbox has in its own, which nobody changes meanwhile.
func (f Folder) copied(ctx context.Context, s *Sandbox) (files Files, err error) {
	if len(s.Below) >= fsjail.MaxSealed {
		return files, ErrTooMany
	}
	bytes, err := homes.Size(f.layer(s.Layer))
	if quota := s.Quota; err == nil && s.Sealed+bytes > quota {
		err = &homes.OverQuotaError{Bytes: s.Sealed + bytes, Quota: quota}
	}
	if err != nil {
		return files, err
	}
	id, err := f.newLayer()
	if err != nil {
		return files, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.drop(id))
		}
	}()
	if err := f.copyParts(ctx, s.Layer, id, "homes/"+Home+"/files", "root/changes", workspaceChanges); err != nil {
		return files, err
	}
	if err := f.syncLayer(id); err != nil {
		return files, err
	}
	return Files{slices.Concat([]string{id}, s.Below), s.Sealed + bytes}, nil
}

// copyParts copies folders of a layer into another, those that are there.
func (f Folder) copyParts(ctx context.Context, from, to string, parts ...string) error {
	if err := fault.At("sandbox/copy"); err != nil {
		return err
	}
	for _, part := range parts {
		from := filepath.Join(f.layer(from), part)
		if _, err := os.Lstat(from); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := copyTree(ctx, from, filepath.Join(f.layer(to), part)); err != nil {
			return err
		}
	}
	return nil
}

// copyTree copies what an agent wrote as it is, links, holes, owners and overlayfs' attributes too; where the file system can share
// blocks, it does. coreutils' cp follows no link with -a that is there when it looks. Whoever ends the pause of a run has its agent work beside
// it, and put a link in the place of a folder: so what it reads is a mount in which the kernel follows none.
func copyTree(ctx context.Context, from, to string) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	seen, err := withoutLinks(from)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	defer seen.Close()
	var said bytes.Buffer
	cp := exec.CommandContext(ctx, "cp", "-a", "--reflink=auto", "-T", "--", "/proc/self/fd/3/.", to)
	cp.Env, cp.Dir, cp.Stderr, cp.ExtraFiles = []string{"PATH=/usr/bin:/bin", "LC_ALL=C"}, "/", &said, []*os.File{seen}
	if err := cp.Run(); err != nil {
		text, _, _ := strings.Cut(said.String(), "\n")
		return fmt.Errorf("copy: %w: %.256q", err, text)
	}
	return nil
}

// withoutLinks is a folder in a mount of its own, which nobody else has and which goes with it.
func withoutLinks(dir string) (*os.File, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return nil, os.NewSyscallError("open_tree", err)
	}
	f := os.NewFile(uintptr(fd), dir)
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSYMFOLLOW | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_RDONLY})
	if err != nil {
		f.Close()
		return nil, os.NewSyscallError("mount_setattr", err)
	}
	return f, nil
}

// settled changes a sandbox whose files are then in sealed layers only: those that change is given. One that stands still is given a new
// layer of its own; of one that runs, still is asked to have it stand still for a copy.
func (f Folder) settled(ctx context.Context, name string, still Still, change func(*Sandbox, Files) error) error {
	making, err := f.making()
	if err != nil {
		return err
	}
	defer making.Close()
	s, err := f.Load(name)
	if err != nil {
		return err
	}
	lock, err := f.take(name)
	if errors.Is(err, ErrBusy) && still != nil {
		var files Files
		err = still(func() (err error) {
			files, err = f.copied(ctx, &s)
			return err
		})
		if layer := s.Layer; err == nil {
			_, err = f.Change(name, func(s *Sandbox) error {
				if s.Layer != layer {
					return errors.New("it was rolled back meanwhile")
				}
				return change(s, files)
			})
		}
		if err != nil && len(files.Below) > 0 {
			err = errors.Join(err, f.drop(files.Below[0]))
		}
		return err
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	_, err = f.Change(name, func(s *Sandbox) error {
		if err := f.seal(ctx, s); err != nil {
			return err
		}
		return change(s, s.Files)
	})
	return err
}

// Snapshot keeps what a sandbox has now under a name, told by s. A nil still refuses one that runs.
func (f Folder) Snapshot(ctx context.Context, name string, snap Snapshot, still Still) (Snapshot, error) {
	if err := CheckName(snap.Name); err != nil {
		return snap, err
	}
	fits := func(s *Sandbox) error {
		if _, err := s.snapshot(snap.Name); err == nil {
			return ErrSnapshotExists
		}
		if len(s.Snapshots) >= maxSnapshots {
			return fmt.Errorf("it has %d snapshots, which is the most", maxSnapshots)
		}
		return nil
	}
	s, err := f.Load(name)
	if err == nil {
		err = fits(&s) // told before anything is copied
	}
	if err != nil {
		return snap, err
	}
	err = f.settled(ctx, name, still, func(s *Sandbox, files Files) error {
		if err := fits(s); err != nil {
			return err
		}
		snap.Files = files
		s.Snapshots = append(s.Snapshots, snap)
		return nil
	})
	return snap, err
}

// DropSnapshot forgets one. What nobody else has of it is removed.
func (f Folder) DropSnapshot(name, snapshot string) error {
	_, err := f.Change(name, func(s *Sandbox) error {
		if _, err := s.snapshot(snapshot); err != nil {
			return err
		}
		s.Snapshots = slices.DeleteFunc(s.Snapshots, func(o Snapshot) bool { return o.Name == snapshot })
		return nil
	})
	return errors.Join(err, f.prune())
}

// Rollback gives a sandbox that isn't running what a snapshot has. What it had since is gone, unless another snapshot has it.
func (f Folder) Rollback(ctx context.Context, name, snapshot string) error {
	making, err := f.making()
	if err != nil {
		return err
	}
	err = f.rollback(ctx, name, snapshot)
	making.Close()
	return errors.Join(err, f.prune())
}

func (f Folder) rollback(ctx context.Context, name, snapshot string) error {
	if _, err := f.Load(name); err != nil {
		return err
	}
	lock, err := f.take(name)
	if err != nil {
		return err
	}
	defer lock.Close()
	_, err = f.Change(name, func(s *Sandbox) error {
		snap, err := s.snapshot(snapshot)
		if err != nil {
			return err
		}
		s.Files, s.Changed = snap.Files, false
		s.Layer, err = f.above(ctx, s.Below)
		return err
	})
	return err
}

// Fork makes another sandbox of one, or of a snapshot of it, with its files and the words of its starts. It is stopped. What to says of it
// is its name, who makes it, and when.
func (f Folder) Fork(ctx context.Context, from, snapshot string, still Still, to Sandbox, complete func(*Sandbox) error) error {
	making, err := f.making()
	if err != nil {
		return err
	}
	defer making.Close()
	if _, err := f.Load(to.Name); !errors.Is(err, ErrNone) { // told before anything is copied
		return cmp.Or(err, ErrExists)
	}
	of, files, err := f.filesOf(ctx, from, snapshot, still)
	if err != nil {
		return err
	}
	to.Ring, to.Image, to.Restart, to.Quota, to.Dir, to.Words, to.Leads = of.Ring, of.Image, of.Restart, of.Quota, of.Dir, of.Words, of.Leads
	to.Files, to.Overlay = files, of.Overlay
	return f.Create(ctx, to, complete)
}

// filesOf are those that a sandbox, or a snapshot of it, has in sealed layers. Whoever calls is making something.
func (f Folder) filesOf(ctx context.Context, name, snapshot string, still Still) (of Sandbox, files Files, err error) {
	if snapshot == "" {
		err = f.settled(ctx, name, still, func(s *Sandbox, now Files) error {
			of, files = *s, now
			return nil
		})
		return of, files, err
	}
	if of, err = f.Load(name); err != nil {
		return of, files, err
	}
	snap, err := of.snapshot(snapshot)
	return of, snap.Files, err
}

// Sealed has use read the sealed layers of what a sandbox, or a snapshot of it, has, as SealedRoots gives them. Nobody changes or removes
// them meanwhile. A sandbox that runs is asked to stand still for a copy, which is then removed.
func (f Folder) Sealed(ctx context.Context, name, snapshot string, still Still, use func(s Sandbox) error) error {
	making, err := f.making()
	if err != nil {
		return err
	}
	of, files, err := f.filesOf(ctx, name, snapshot, still)
	if err == nil {
		of.Files = files
		err = use(of)
	}
	making.Close()
	return errors.Join(err, f.prune())
}

// prune removes the layers that no sandbox names, unless somebody is about to; then a later one does. It removes nothing while what any
// sandbox has can't be read. Only their names go while others wait: an agent can leave files that take minutes to remove.
func (f Folder) prune() error {
	if _, err := os.Lstat(f.layers()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	lock, err := f.lockLayers(unix.LOCK_EX | unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil
	}
	if err != nil {
		return err
	}
	gone, err := f.putUnnamedAside()
	lock.Close()
	for _, name := range gone {
		err = errors.Join(err, f.dropAside(name))
	}
	return err
}

// dropAside leaves what another is removing to that one.
func (f Folder) dropAside(name string) error {
	dir, err := os.Open(f.layer(name))
	if err != nil {
		return ignoreGone(err)
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil
	}
	return ignoreGone(f.drop(name))
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// putUnnamedAside is prune's under its lock.
func (f Folder) putUnnamedAside() (gone []string, err error) {
	named := map[string]bool{}
	var unread error
	err = f.each(func(s Sandbox, err error) {
		unread = errors.Join(unread, err)
		named[s.Layer] = true
		for _, id := range s.Below {
			named[id] = true
		}
		for _, snap := range s.Snapshots {
			for _, id := range snap.Below {
				named[id] = true
			}
		}
	})
	if err = errors.Join(err, unread); err != nil {
		return nil, fmt.Errorf("no layer is removed: %w", err)
	}
	dirs, err := os.ReadDir(f.layers())
	for _, d := range dirs {
		name := d.Name()
		if isLayer(name) && !named[name] {
			if perr := f.putAside(name); perr != nil {
				err = errors.Join(err, perr)
				continue
			}
			name = aside + name
		}
		if strings.HasPrefix(name, aside) {
			gone = append(gone, name)
		}
	}
	return gone, err
}
