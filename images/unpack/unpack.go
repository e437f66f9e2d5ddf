// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/images"
)

// Limits bound what an image may take. Each counts over all of its layers, also what a later one takes away again.
type Limits struct {
	Bytes int64 // of files' content and extended attributes
	Files int64 // entries of every kind; and as many folders that no entry names
	Depth int   // names in a path
	Paths int64 // bytes of all entries' names and links together, which are kept in memory
	// Ratio is how many bytes may come of one of a compressed layer, once more than RatioFrom have come.
	Ratio, RatioFrom int64
}

// DefaultLimits have room for the images of compilers and of machine learning, which are the largest that people run agents in.
func DefaultLimits() Limits {
	return Limits{Bytes: 8 << 30, Files: 1_000_000, Depth: 128, Paths: 256 << 20, Ratio: 200, RatioFrom: 64 << 20}
}

// ErrLimit is an image that is larger than Limits.
var ErrLimit = errors.New("larger than an image may be")

// HostileError is an entry that is refused.
type HostileError struct {
	Layer int // from 1
	Name  string
	Why   string
}

func (e *HostileError) Error() string {
	return fmt.Sprintf("layer %d: %.200q: %s", e.Layer, e.Name, e.Why)
}

// maxID is the highest id that a run has a place for.
const maxID = 65535

// Tree is a folder that layers are written to. It is one goroutine's.
type Tree struct {
	root   int
	limits Limits
	owners bool
	counts images.Counts
	layer  int
	// unnamed are the folders that were made because something lies in them: an entry may have 127.
	unnamed int64
	paths   int64
	text    counted // of all layers, which are tars by then
	wrote   int64   // to files
	dirs    map[string]folder
	here    map[string]bool // what this layer has put there: its deletions spare that
	deleted map[string]bool // what it has deleted: there is nothing else any more
	below   *below
}

// folder is what an archive says of one; it is applied last, since a folder that can't be written takes no files.
type folder struct {
	mode  uint32
	time  time.Time
	below bool // no layer has said what it is: if there is one below, it is that
}

// Open begins with an empty folder. owners: files get the archive's, which takes root; else all are this process's.
func Open(dir string, l Limits, owners bool) (*Tree, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return &Tree{root: fd, limits: l, owners: owners, dirs: map[string]folder{"": {mode: 0o755}}}, nil
}

// Close lets go of the folder.
func (t *Tree) Close() { unix.Close(t.root) }

// Apply writes the next layer and returns the digest of the tar in it, as an image's configuration has it (diff_ids).
func (t *Tree) Apply(packed io.Reader) (diffID string, err error) {
	t.layer++
	t.here, t.deleted = map[string]bool{}, map[string]bool{}
	plain, err := t.decompress(packed)
	if err != nil {
		return "", fmt.Errorf("layer %d: %w", t.layer, err)
	}
	defer plain.Close()
	sum := sha256.New()
	t.text.r = io.TeeReader(plain, sum)
	if err := t.entries(tar.NewReader(&t.text)); err != nil {
		return "", err
	}
	if err := drain(&t.text, t.limits.RatioFrom); err != nil {
		return "", fmt.Errorf("layer %d: %w", t.layer, err)
	}
	return digest(sum), nil
}

func digest(h hash.Hash) string { return "sha256:" + hex.EncodeToString(h.Sum(nil)) }

// drain reads what lies behind the archive's end: the digest is over that too.
func drain(r io.Reader, most int64) error {
	n, err := io.Copy(io.Discard, io.LimitReader(r, most+1))
	if err == nil && n > most {
		err = fmt.Errorf("behind its end: %w", ErrLimit)
	}
	return err
}

func (t *Tree) entries(r *tar.Reader) error {
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("layer %d: %w", t.layer, err)
		}
		if err := t.room(&t.counts.Files); err != nil {
			return fmt.Errorf("layer %d: %w", t.layer, err)
		}
		if t.paths += int64(len(h.Name) + len(h.Linkname)); t.paths > t.limits.Paths {
			return fmt.Errorf("layer %d: paths of more than %d bytes together: %w", t.layer, t.limits.Paths, ErrLimit)
		}
		if err := t.entry(h, r); err != nil {
			if hostile, ok := errors.AsType[*HostileError](err); ok {
				hostile.Layer, hostile.Name = t.layer, h.Name
				return hostile
			}
			return fmt.Errorf("layer %d: %.200q: %w", t.layer, h.Name, err)
		}
	}
}

// room counts one more of what takes an inode: entries, or folders that no entry names. Each by itself, as the latter aren't known of layers
// that are here already.
func (t *Tree) room(of *int64) error {
	if *of++; *of > t.limits.Files {
		return fmt.Errorf("more than %d files: %w", t.limits.Files, ErrLimit)
	}
	return nil
}

// bytes counts what is written to a file or beside it: some file systems take megabytes of attributes of each.
func (t *Tree) bytes(n int64) error {
	if t.counts.Bytes += n; t.counts.Bytes > t.limits.Bytes {
		return fmt.Errorf("more than %d bytes: %w", t.limits.Bytes, ErrLimit)
	}
	return nil
}

func hostile(format string, args ...any) error {
	return &HostileError{Why: fmt.Sprintf(format, args...)}
}

// inside is a path in the image, without the slashes that archives put around it; the empty one is the root itself.
func (t *Tree) inside(unsafeName string) (string, error) {
	var parts []string
	for part := range strings.SplitSeq(unsafeName, "/") {
		switch {
		case part == "" || part == ".":
		case part == "..":
			return "", hostile("it has .. in its name, and leads out of the image")
		case len(part) > 255:
			return "", hostile("it has a name of %d bytes, and 255 are the most", len(part))
		default:
			parts = append(parts, part)
		}
	}
	if name := strings.Join(parts, "/"); len(parts) <= t.limits.Depth && len(name) < 4096 {
		return strings.Clone(name), nil // the reader's may be a part of a header of 1 MiB, which would be kept with it
	}
	return "", hostile("it lies in more than %d folders, or has a path of 4096 bytes", t.limits.Depth)
}

// Names of deletions (image-spec, layer.md). What begins with both prefixes and is not the second is bookkeeping of old tools.
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
	internal = ".wh..wh."
)

func (t *Tree) entry(h *tar.Header, content io.Reader) error {
	name, err := t.inside(h.Name)
	if err != nil {
		return err
	}
	if name == "" && h.Typeflag != tar.TypeDir {
		return hostile("it is the root, and no folder")
	}
	dir, base := path.Split(name)
	dir = strings.TrimSuffix(dir, "/")
	if strings.HasPrefix(base, whiteout) {
		return t.delete(dir, base)
	}
	if skip, err := t.skipped(h, name); skip || err != nil {
		return err
	}
	if name == "" {
		t.dirs[""] = folder{mode: permissions(h), time: h.ModTime}
		return t.own(t.root, ".", h)
	}
	at, err := t.parent(dir, true)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	if err := t.clear(at, base, name, h.Typeflag == tar.TypeDir); err != nil {
		return err
	}
	t.here[name] = true
	switch h.Typeflag {
	case tar.TypeDir:
		return t.folder(at, base, name, h)
	case tar.TypeReg, tar.TypeGNUSparse:
		return t.file(at, base, h, content)
	case tar.TypeSymlink:
		return t.symlink(at, base, h)
	case tar.TypeLink:
		return t.link(at, base, name, h)
	}
	return hostile("it is of kind %q, which no image has", h.Typeflag)
}

// skipped leaves out, or refuses, what may be no part of a sandbox, and counts what is taken from the rest.
func (t *Tree) skipped(h *tar.Header, name string) (bool, error) {
	switch h.Typeflag {
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		if strings.HasPrefix(name, "dev/") {
			t.counts.Devices++
			return true, nil
		}
		return false, hostile("it is a device or a pipe")
	case tar.TypeXGlobalHeader:
		return true, nil
	}
	if h.Mode&0o6000 != 0 && h.Typeflag != tar.TypeSymlink && h.Typeflag != tar.TypeLink {
		t.counts.SetID++
	}
	if _, has := h.PAXRecords[xattr+"security.capability"]; has {
		t.counts.Caps++
	}
	return false, nil
}

const xattr = "SCHILY.xattr."

// permissions are the archive's without set-ID bits. The sticky bit means something on folders only.
func permissions(h *tar.Header) uint32 {
	if h.Typeflag == tar.TypeDir {
		return uint32(h.Mode & 0o1777) //nolint:gosec // masked
	}
	return uint32(h.Mode & 0o777) //nolint:gosec // masked
}

func beneath(flags uint64) *unix.OpenHow {
	return &unix.OpenHow{
		Flags:   flags | unix.O_CLOEXEC | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
}

// open opens one name; at is a folder of the tree.
func open(at int, name string, flags uint64, mode uint64) (int, error) {
	how := beneath(flags)
	how.Mode = mode
	for {
		fd, err := unix.Openat2(at, name, how)
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return fd, err
		}
	}
}

// parent opens a folder of the tree. With make those that are missing are made: archives needn't have them.
func (t *Tree) parent(dir string, create bool) (int, error) {
	if dir == "" {
		return open(t.root, ".", unix.O_PATH|unix.O_DIRECTORY, 0)
	}
	fd, err := open(t.root, dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if errors.Is(err, unix.ENOENT) && create {
		t.pass(dir)
		above, base := path.Split(dir)
		at, err := t.parent(strings.TrimSuffix(above, "/"), true)
		if err != nil {
			return -1, err
		}
		defer unix.Close(at)
		if err := t.room(&t.unnamed); err != nil {
			return -1, err
		}
		if err := unix.Mkdirat(at, base, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
			return -1, os.NewSyscallError("mkdirat", err)
		}
		if _, known := t.dirs[dir]; !known {
			t.dirs[dir] = folder{mode: 0o755, below: !t.below.hides(dir)}
		}
		return open(at, base, unix.O_PATH|unix.O_DIRECTORY, 0)
	}
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EXDEV) {
		return -1, hostile("a link or a file is on the way to it")
	}
	return fd, os.NewSyscallError("openat2", err)
}

func kind(at int, name string) (uint32, error) {
	var st unix.Stat_t
	err := unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return st.Mode & unix.S_IFMT, err
}

// clear removes what has the name, but for a folder in whose place a folder comes: that one keeps what is in it.
func (t *Tree) clear(at int, base, name string, dir bool) error {
	if !dir {
		t.below.hide(name)
	}
	has, err := kind(at, base)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return os.NewSyscallError("fstatat", err)
	case dir && has == unix.S_IFDIR:
		return nil
	}
	return t.remove(at, base, name, false)
}

// remove takes a name away with all that is in it, but for what this layer has put there, where that is spared.
func (t *Tree) remove(at int, base, name string, spare bool) error {
	has, err := kind(at, base)
	if err != nil {
		return os.NewSyscallError("fstatat", err)
	}
	if spare && t.here[name] && has != unix.S_IFDIR {
		return nil
	}
	if has != unix.S_IFDIR {
		t.below.forget(name)
		return os.NewSyscallError("unlinkat", unix.Unlinkat(at, base, 0))
	}
	if err := t.empty(at, base, name, spare); err != nil {
		return err
	}
	if spare && t.here[name] {
		return nil
	}
	err = unix.Unlinkat(at, base, unix.AT_REMOVEDIR)
	if spare && errors.Is(err, unix.ENOTEMPTY) {
		return nil // this layer's are in it
	}
	delete(t.dirs, name)
	return os.NewSyscallError("unlinkat", err)
}

// empty removes what is in a folder. Its depth is bounded by that of names.
func (t *Tree) empty(at int, base, name string, spare bool) error {
	fd, err := open(at, base, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return os.NewSyscallError("openat2", err)
	}
	dir := os.NewFile(uintptr(fd), base)
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	if spare { // folders stay if this layer has put something into them
		t.below.hide(name + "/")
	}
	for _, n := range names {
		if err := t.remove(fd, n, path.Join(name, n), spare); err != nil {
			return err
		}
	}
	return nil
}

// delete is a whiteout: what lower layers have is taken away. Tools write whiteouts of what no layer has, after merging
// layers or when a file came and went within one step of a build; they mean nothing, and every engine ignores them.
func (t *Tree) delete(dir, base string) error {
	gone := strings.TrimPrefix(base, whiteout)
	if base != opaque && strings.HasPrefix(base, internal) {
		return nil
	}
	if gone == "" || gone == "." || gone == ".." {
		return hostile("it deletes a folder by another name")
	}
	name := path.Join(dir, gone)
	of := name // what goes
	if base == opaque {
		name, of = dir, dir+"/"
	}
	at, err := t.parent(dir, false)
	if errors.Is(err, unix.ENOENT) {
		t.pass(dir)
		return t.gone(name, of)
	}
	if err != nil {
		return err
	}
	defer unix.Close(at)
	// Twice is once: all that is there since is this layer's. To look through it each time would take days.
	again := t.deleted[of]
	t.deleted[of] = true
	if base == opaque {
		if again {
			return nil
		}
		return t.empty(at, ".", dir, true)
	}
	if _, err := kind(at, gone); errors.Is(err, unix.ENOENT) {
		return t.gone(name, of)
	}
	if again {
		return nil
	}
	if err := t.remove(at, gone, name, true); err != nil {
		return err
	}
	if has, err := kind(at, gone); err == nil && has == unix.S_IFDIR { // this layer's are in it
		of += "/"
	}
	t.below.hide(of)
	return nil
}

func (t *Tree) folder(at int, base, name string, h *tar.Header) error {
	if err := unix.Mkdirat(at, base, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return os.NewSyscallError("mkdirat", err)
	}
	t.dirs[name] = folder{mode: permissions(h), time: h.ModTime}
	return t.own(at, base, h)
}

func (t *Tree) file(at int, base string, h *tar.Header, content io.Reader) (err error) {
	fd, err := open(at, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return os.NewSyscallError("openat2", err)
	}
	f := os.NewFile(uintptr(fd), base)
	defer func() { err = errors.Join(err, f.Close()) }()
	n, err := io.Copy(&filled{f, t}, io.LimitReader(content, t.limits.Bytes-t.counts.Bytes+1))
	if err := errors.Join(err, t.bytes(n)); err != nil {
		return err
	}
	if err := t.own(at, base, h); err != nil {
		return err
	}
	for name, value := range h.PAXRecords {
		if attr, ok := strings.CutPrefix(name, xattr+"user."); ok {
			if err := t.bytes(int64(len(attr) + len(value))); err != nil {
				return err
			}
			err := unix.Fsetxattr(fd, "user."+attr, []byte(value), 0)
			if err != nil && !errors.Is(err, unix.ENOTSUP) {
				return os.NewSyscallError("fsetxattr", err)
			}
		}
	}
	if err := unix.Fchmod(fd, permissions(h)); err != nil {
		return os.NewSyscallError("fchmod", err)
	}
	return touch(at, base, h.ModTime)
}

// filled is a file of the tree. Of a sparse one zeros come that no layer has: a kilobyte may stand for all that an image may be.
type filled struct {
	f *os.File
	t *Tree
}

func (w *filled) Write(b []byte) (int, error) {
	t := w.t
	if t.wrote += int64(len(b)); t.wrote-t.text.n > t.limits.RatioFrom && t.wrote > t.limits.Ratio*t.text.n {
		return 0, fmt.Errorf("%d bytes of files have come of %d: %w", t.wrote, t.text.n, ErrLimit)
	}
	return w.f.Write(b)
}

func (t *Tree) symlink(at int, base string, h *tar.Header) error {
	if h.Linkname == "" || len(h.Linkname) > 4095 {
		return hostile("it is a link of %d bytes", len(h.Linkname))
	}
	// Its text is free: it is followed inside the sandbox only.
	if err := unix.Symlinkat(h.Linkname, at, base); err != nil {
		return os.NewSyscallError("symlinkat", err)
	}
	if err := t.own(at, base, h); err != nil {
		return err
	}
	return touch(at, base, h.ModTime)
}

func (t *Tree) link(at int, base, name string, h *tar.Header) error {
	to, err := t.inside(h.Linkname)
	if err != nil {
		return hostile("it is a hard link that leads out of the image, to %.200q", h.Linkname)
	}
	dir, old := path.Split(to)
	from, err := t.parent(strings.TrimSuffix(dir, "/"), false)
	if errors.Is(err, unix.ENOENT) && to != name && !t.below.hides(to) {
		return t.below.link(at, base, name, to)
	}
	if err != nil {
		return hostile("it is a hard link to %.200q, which isn't there or lies behind a link", h.Linkname)
	}
	defer unix.Close(from)
	has, err := kind(from, old)
	if errors.Is(err, unix.ENOENT) && to != "" && to != name && !t.below.hides(to) {
		return t.below.link(at, base, name, to)
	}
	if to == "" || to == name || err != nil || has != unix.S_IFREG && has != unix.S_IFLNK {
		return hostile("it is a hard link to %.200q, which is no file of the image", h.Linkname)
	}
	if first, placeholder := t.below.linked(to); placeholder {
		return t.below.link(at, base, name, first)
	}
	return os.NewSyscallError("linkat", unix.Linkat(from, old, at, base, 0))
}

func (t *Tree) own(at int, base string, h *tar.Header) error {
	if !t.owners {
		return nil
	}
	uid, gid := h.Uid, h.Gid
	if uid < 0 || uid > maxID || gid < 0 || gid > maxID {
		t.counts.Owners++
		uid, gid = 0, 0
	}
	return os.NewSyscallError("fchownat", unix.Fchownat(at, base, uid, gid, unix.AT_SYMLINK_NOFOLLOW))
}

func touch(at int, base string, to time.Time) error {
	if to.IsZero() {
		to = time.Unix(0, 0)
	}
	spec, err := unix.TimeToTimespec(to)
	if err != nil {
		spec = unix.Timespec{} // a year that no file system has
	}
	return os.NewSyscallError("utimensat", unix.UtimesNanoAt(at, base, []unix.Timespec{spec, spec}, unix.AT_SYMLINK_NOFOLLOW))
}

// Done gives the folders their modes and times, the deepest first, and returns what was unpacked.
func (t *Tree) Done() (images.Counts, error) {
	names := make([]string, 0, len(t.dirs))
	for name := range t.dirs {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return strings.Compare(b, a) })
	for _, name := range names {
		at, err := t.parent(name, false)
		if err != nil {
			continue // another layer has put something else there
		}
		d := t.dirs[name]
		if !t.owners {
			d.mode |= 0o700 // whoever unpacked it must be able to remove it
		}
		dir, err := open(at, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err == nil {
			if err = os.NewSyscallError("fchmod", unix.Fchmod(dir, d.mode)); err == nil {
				err = touch(dir, ".", d.time)
			}
			unix.Close(dir)
		}
		unix.Close(at)
		if err != nil {
			return t.counts, fmt.Errorf("folder %.200q: %w", name, err)
		}
	}
	return t.counts, nil
}
