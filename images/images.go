// SPDX-License-Identifier: Apache-2.0

// Package images keeps the root file systems of container images, unpacked, for runs to share (exec --image).
//
//	i, err := f.Resolve("python:3.12-slim")
//	used, err := f.Use(i.ID) // nobody removes it until Close
//	… f.Root(i.ID) is shown to the run, read-only …
//
// Guarantees. An image's folder is named by the digest of its configuration, which names each layer by the digest of its
// content: what a name meant when a run was planned is what the run gets. An image is there whole or not at all, and is
// never changed; one that is half made or half removed is none, and Sweep takes it away. The folders are their owner's
// alone, mode 0700, so that ids of files in them, which are the archive's, are nobody's way to anything. What is removed
// is used by no run.
//
// Errors. ErrNone: there is none of that name. ErrBusy: a live run uses it. ErrMany: more than one is meant.
//
// It is not where images come from: Program pulls, reads and unpacks them, in a process of its own (package unpack). It
// says nothing of what is in them. An image may begin with the files of another one (package based): hard links, which neither of the two
// depends on once it is there.
package images

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/claim"
	"agentrun/internal/fault"
	"agentrun/internal/hinted"
	"agentrun/internal/read"
)

// Program fetches and unpacks.
const Program = "agentrun-image"

// Version of what is kept of an image.
const Version = 1

var (
	// ErrNone is an image that there isn't.
	ErrNone = errors.New("there is no such image here")
	// ErrBusy is an image that a live run uses.
	ErrBusy = errors.New("a live run uses it")
	// ErrMany is a digest of which more than one begin so.
	ErrMany = errors.New("more than one image has a digest that begins so")
)

// Config is what an image says of how it is run.
type Config struct {
	Env        []string `json:"env,omitempty"`
	User       string   `json:"user,omitempty"` // as it has it; who that is, UID and GID say
	Workdir    string   `json:"workdir,omitempty"`
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
}

// Image is what is known of one.
type Image struct {
	Version  int       `json:"version"`
	ID       string    `json:"id"`                 // sha256:… of its configuration
	Manifest string    `json:"manifest,omitempty"` // sha256:… of the manifest it came by; a docker-archive has none
	Platform string    `json:"platform"`
	Source   string    `json:"source"`              // registry, oci-layout, oci-archive, docker-archive, sandbox
	SignedBy string    `json:"signed_by,omitempty"` // the key whose signature was asked for when it came, by its Fingerprint
	By       string    `json:"by"`                  // who brought it, as uid:0
	Created  time.Time `json:"created"`
	Config   Config    `json:"config"`
	UID      int       `json:"uid"` // of Config.User, from the image's own passwd
	GID      int       `json:"gid"`
	Content  Counts    `json:"content"`
	Layers   []int64   `json:"layers,omitempty"` // bytes of each as it came, the lowest first
}

// Counts are what was unpacked, and what of it was left out.
type Counts struct {
	Bytes   int64 `json:"bytes"`
	Files   int64 `json:"files"`
	SetID   int64 `json:"set_id_stripped,omitempty"`     // files that had the bit
	Caps    int64 `json:"capabilities_dropped,omitzero"` // files that had some
	Devices int64 `json:"devices_skipped,omitzero"`      // in /dev, which every sandbox has its own of
	Owners  int64 `json:"owners_changed,omitzero"`       // ids above 65535, which are root's now
	Missing int64 `json:"whiteouts_of_nothing,omitzero"` // deletions of what isn't there
}

// Command is what is run where argv is asked for: behind the entrypoint, in the place of the image's own arguments.
func (c *Config) Command(argv []string) []string {
	if len(argv) == 0 {
		argv = c.Cmd
	}
	return slices.Concat(c.Entrypoint, argv)
}

// Folder is where a node's images are.
type Folder struct{ StateDir string }

func (f Folder) dir() string { return filepath.Join(f.StateDir, "images") }

// Of is the folder of one.
func (f Folder) Of(id string) string {
	return filepath.Join(f.dir(), strings.Replace(id, ":", "-", 1))
}

// Root is the root file system of one.
func (f Folder) Root(id string) string { return filepath.Join(f.Of(id), "rootfs") }

// ConfigFile is the name of an image's configuration, as it came, in its folder.
const ConfigFile = "config.json"

// MaxConfig bounds it.
const MaxConfig = 4 << 20

// Raw is an image's configuration as it came, of which Config is a part. fs.ErrNotExist: an older agentrun has unpacked it.
func (f Folder) Raw(id string) ([]byte, error) {
	text, _, err := read.Regular(filepath.Join(f.Of(id), ConfigFile), MaxConfig)
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(text); id != "sha256:"+hex.EncodeToString(sum[:]) {
		return nil, fmt.Errorf("the configuration of image %s is damaged", id)
	}
	return text, nil
}

func (f Folder) about(id string) string  { return filepath.Join(f.Of(id), "image.json") }
func (f Folder) lockOf(id string) string { return filepath.Join(f.Of(id), "lock") }

// isDigest tells a whole digest.
func isDigest(s string) bool {
	hex, ok := strings.CutPrefix(s, "sha256:")
	return ok && len(hex) == 64 && strings.Trim(hex, "0123456789abcdef") == ""
}

// CheckName refuses what is no name of an image. Whether a registry has it is the registry's to say.
func CheckName(name string) error {
	if name == "" || len(name) > 512 || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' }) || strings.ContainsAny(name, `"'\`+"`") || name[0] == '-' {
		return fmt.Errorf("%.64q is no name of an image: want one as python:3.12-slim, or with a digest, NAME@sha256:…", name)
	}
	return nil
}

// shortDigest is how many digits stand for an image.
const shortDigest = 12

// Said are the names of an image that a file says it has. It has none with a digest: by that somebody asks for one image and no other,
// and Resolve looks names up first.
func Said(unsafeNames []string) []string {
	return slices.DeleteFunc(unsafeNames, func(n string) bool { return CheckName(n) != nil || CheckTag(n) != nil })
}

// CheckTag refuses a name that says which content it means, or can be read so: only a registry is held to that.
func CheckTag(name string) error {
	digits := strings.TrimPrefix(strings.TrimSuffix(name, ":latest"), "sha256:")
	if strings.Contains(name, "@") || len(digits) >= shortDigest && strings.Trim(digits, "0123456789abcdef") == "" {
		return fmt.Errorf("%.200q means one content, and can't be given to another", name)
	}
	return nil
}

// Canonical adds the tag that a name without one means. A name is what the image was pulled by: it isn't completed by a
// registry.
func Canonical(name string) string {
	if isDigest(name) || strings.Contains(name, "@") || strings.Contains(name[strings.LastIndex(name, "/")+1:], ":") {
		return name
	}
	return name + ":latest"
}

// Pinned is a name that goes on meaning this image when others come to have it.
func Pinned(ref, id string) string {
	name, _, _ := strings.Cut(ref, "@")
	if isDigest(name) || name == "" {
		return id
	}
	return name + "@" + id
}

// Load returns what is known of one, by its whole id.
func (f Folder) Load(id string) (i Image, err error) {
	if !isDigest(id) {
		return i, ErrNone
	}
	err = read.State(f.about(id), 1<<20, Version, &i)
	if errors.Is(err, fs.ErrNotExist) {
		return i, ErrNone
	}
	return i, err
}

// Resolve finds an image by a name, a name with a digest, which is what counts then, a digest of its configuration or its
// manifest, or the first 12 or more digits of the former.
func (f Folder) Resolve(ref string) (Image, error) {
	if err := CheckName(ref); err != nil {
		return Image{}, err
	}
	names, err := f.names()
	if err != nil {
		return Image{}, err
	}
	if id, ok := names[Canonical(ref)]; ok {
		return f.Load(id)
	}
	want := ref
	if i := strings.LastIndex(ref, "@"); i >= 0 {
		want = ref[i+1:]
	}
	digits := strings.TrimPrefix(want, "sha256:")
	if len(digits) < shortDigest || strings.Trim(digits, "0123456789abcdef") != "" || want != ref && !isDigest(want) {
		return Image{}, ErrNone
	}
	var found []Image
	for _, id := range f.ids() {
		i, err := f.Load(id)
		if err == nil && (strings.HasPrefix(id, "sha256:"+digits) || i.Manifest == "sha256:"+digits) {
			found = append(found, i)
		}
	}
	switch len(found) {
	case 0:
		return Image{}, ErrNone
	case 1:
		return found[0], nil
	}
	return Image{}, ErrMany
}

// Use keeps an image from being removed until Close of what it returns, or the end of this process.
func (f Folder) Use(id string) (*os.File, error) {
	file, err := claim.Share(f.lockOf(id))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, claim.ErrBusy) { // it is being removed
		err = ErrNone
	}
	if err == nil {
		if _, err = f.Load(id); err != nil {
			file.Close()
		}
	}
	return file, err
}

// names are what images are called. Damage is an error, and not no names: gc would take all images for unwanted.
func (f Folder) names() (map[string]string, error) {
	names := map[string]string{}
	text, _, err := read.Regular(f.index(), 1<<24)
	if errors.Is(err, fs.ErrNotExist) {
		return names, nil
	}
	if err == nil {
		err = read.Exactly(text, &names)
	}
	if err != nil {
		return nil, hinted.New(fmt.Errorf("%s: %w", f.index(), err), "remove it: images stay, by their digests, and a pull or import gives them names again")
	}
	return names, nil
}

func (f Folder) index() string { return filepath.Join(f.dir(), "names.json") }

// change alters the names; others that do so wait.
func (f Folder) change(change func(names map[string]string)) error {
	dir, err := os.Open(f.dir())
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return os.NewSyscallError("flock", err)
	}
	names, err := f.names()
	if err != nil {
		return err
	}
	before := maps.Clone(names)
	change(names)
	if maps.Equal(before, names) {
		return nil
	}
	if err := fault.At("image/names"); err != nil {
		return err
	}
	return read.Replace(f.index(), names, nil)
}

// half are folders of images that are being made.
const half = ".new-"

// New is an image that is being made. It is none before Commit.
type New struct {
	Dir  string // its folder: rootfs is in it, empty
	f    Folder
	lock *os.File
}

// Begin makes the place of an image that isn't known yet.
func (f Folder) Begin() (*New, error) {
	if err := os.MkdirAll(f.dir(), 0o700); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(f.dir(), half)
	if err != nil {
		return nil, err
	}
	n := &New{Dir: dir, f: f}
	if n.lock, err = claim.Share(filepath.Join(dir, "lock")); err == nil {
		err = os.Mkdir(filepath.Join(dir, "rootfs"), 0o755)
	}
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// Commit makes it an image, under these names. If there is one with the same content already, that one has the names.
func (n *New) Commit(i Image, names []string) error {
	i.Version = Version
	if !isDigest(i.ID) {
		return fmt.Errorf("%.80q is no digest", i.ID)
	}
	if err := read.Replace(filepath.Join(n.Dir, "image.json"), i, nil); err != nil {
		return err
	}
	// All of it is on disk before it has a name by which anybody looks.
	if err := syncAll(n.Dir); err != nil {
		return err
	}
	if err := fault.At("image/commit"); err != nil {
		return err
	}
	err := unix.Renameat2(unix.AT_FDCWD, n.Dir, unix.AT_FDCWD, n.f.Of(i.ID), unix.RENAME_NOREPLACE)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return os.NewSyscallError("renameat2", err)
	}
	if errors.Is(err, unix.EEXIST) {
		if err := n.again(i); err != nil {
			return err
		}
	}
	return n.f.change(func(all map[string]string) {
		for _, name := range names {
			all[Canonical(name)] = i.ID
		}
	})
}

// again is Commit of what is there already. A signature is one of the files that came with it: where the first coming had not that one,
// the new files take the place of the old, which a program that strangers' layers had taken over may have written. For another
// manifest, and a note of its layers, they stay.
func (n *New) again(i Image) error {
	used, err := n.f.Use(i.ID)
	if err != nil {
		return fmt.Errorf("image %s is being removed: %w", i.ID, err)
	}
	defer used.Close()
	old, err := n.f.Load(i.ID)
	if err != nil {
		return err
	}
	if i.SignedBy != "" && i.SignedBy != old.SignedBy {
		used.Close()
		return n.instead(i.ID)
	}
	if i.SignedBy != "" || old.Manifest == "" && i.Manifest != "" {
		old.Manifest, old.By, old.Created = i.Manifest, i.By, i.Created
		if err := read.Replace(n.f.about(i.ID), old, nil); err != nil {
			return err
		}
	}
	if err = os.Rename(filepath.Join(n.Dir, layersFile), filepath.Join(n.f.Of(i.ID), layersFile)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// instead puts it in the place of the one with its digest, which no run may use; Close throws that away.
func (n *New) instead(id string) error {
	lock, err := claim.Take(n.f.lockOf(id))
	if errors.Is(err, claim.ErrBusy) {
		return hinted.New(fmt.Errorf("image %s came without this signature, and a run uses it: %w", id, ErrBusy), "end the run, then bring the image again")
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := fault.At("image/instead"); err != nil {
		return err
	}
	return os.NewSyscallError("renameat2", unix.Renameat2(unix.AT_FDCWD, n.Dir, unix.AT_FDCWD, n.f.Of(id), unix.RENAME_EXCHANGE))
}

func syncAll(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return os.NewSyscallError("syncfs", unix.Syncfs(int(d.Fd())))
}

// Close throws away what was not committed.
func (n *New) Close() error {
	defer n.lock.Close()
	return os.RemoveAll(n.Dir) // after Commit nothing is there
}

// maxBases are looked at, the newest first.
const maxBases = 1000

// Bases are the images that another one may begin with: whose layers are known, and which this process's user has unpacked. With a signer
// (a key's Fingerprint) only those that came with its signature: a program that strangers' layers have taken over says of them what it
// likes, and what nobody signed must not lie below what was.
func (f Folder) Bases(signer string) (all []Base) {
	list, _ := f.List() // what can't be read is none
	for _, i := range list[:min(len(list), maxBases)] {
		var l layers
		var st unix.Stat_t
		err := errors.Join(read.State(filepath.Join(f.Of(i.ID), layersFile), 1<<12, rules, &l), unix.Lstat(f.Of(i.ID), &st))
		if err == nil && int(st.Uid) == os.Geteuid() && (signer == "" || i.SignedBy == signer) {
			all = append(all, Base{i.ID, l.Chain, i.Content})
		}
	}
	return all
}

// layers are those that an image's folder was made of: not what its configuration is read to say later, by whatever reader. Without the
// file, an older agentrun has unpacked it, and it is no base; a pull of the same image adds it.
type layers struct {
	Version int    `json:"version"`
	Chain   string `json:"chain"`
}

const layersFile = "layers.json"

// rules is the version of how layers become files. What other rules have made is no base.
const rules = 1

// Layers notes of which layers it is.
func (n *New) Layers(chain string) error {
	return read.Replace(filepath.Join(n.Dir, layersFile), layers{rules, chain}, nil)
}

// Info is an image, for people.
type Info struct {
	Image
	Names []string `json:"names"`
	Live  bool     `json:"live"` // a run uses it
}

func (f Folder) ids() (ids []string) {
	dirs, _ := os.ReadDir(f.dir())
	for _, d := range dirs {
		if id := strings.Replace(d.Name(), "-", ":", 1); d.IsDir() && isDigest(id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// List returns the images there are, the newest first. What can't be read of one is an error beside the others.
func (f Folder) List() (list []Info, err error) {
	list = []Info{}
	names, err := f.names() // without them the images are listed all the same
	for _, id := range f.ids() {
		i, lerr := f.Load(id)
		if lerr != nil {
			if !errors.Is(lerr, ErrNone) {
				err = errors.Join(err, lerr)
			}
			continue
		}
		list = append(list, Info{Image: i, Names: namesOf(names, id), Live: claim.Held(f.lockOf(id))})
	}
	slices.SortFunc(list, func(a, b Info) int { return b.Created.Compare(a.Created) })
	return list, err
}

func namesOf(names map[string]string, id string) []string {
	of := []string{}
	for name, to := range names {
		if to == id {
			of = append(of, name)
		}
	}
	slices.Sort(of)
	return of
}

// Inspect is List of one.
func (f Folder) Inspect(ref string) (Info, error) {
	i, err := f.Resolve(ref)
	if err != nil {
		return Info{}, err
	}
	names, err := f.names()
	return Info{Image: i, Names: namesOf(names, i.ID), Live: claim.Held(f.lockOf(i.ID))}, err
}

// Remove takes a name away, and the image if that was its last one; named by a digest, the image with all its names. It
// tells whether the image is gone. before is called when it is certain that no run uses what is about to go.
func (f Folder) Remove(ref string, before func(i Image, whole bool) error) (gone bool, err error) {
	i, err := f.Resolve(ref)
	if err != nil {
		return false, err
	}
	name := Canonical(ref)
	names, err := f.names()
	if err != nil {
		return false, err
	}
	of := namesOf(names, i.ID)
	if slices.Contains(of, name) && len(of) > 1 {
		if err := before(i, false); err != nil {
			return false, err
		}
		return false, f.change(func(all map[string]string) { delete(all, name) })
	}
	return true, f.remove(i.ID, func() error { return before(i, true) })
}

// remove deletes an image that no run uses: first its names, then what makes it one.
func (f Folder) remove(id string, before func() error) error {
	lock, err := claim.Take(f.lockOf(id))
	if errors.Is(err, claim.ErrBusy) {
		return ErrBusy
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := before(); err != nil {
		return err
	}
	if err := f.change(func(all map[string]string) { maps.DeleteFunc(all, func(_, to string) bool { return to == id }) }); err != nil {
		return err
	}
	if err := os.Remove(f.about(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := fault.At("image/remove"); err != nil {
		return err
	}
	return os.RemoveAll(f.Of(id))
}

// Sweep removes what killed pulls and removals have left. unwanted says which images go as well, if no run uses them: nil, none.
func (f Folder) Sweep(unwanted func(Info) bool, before func(Image) error) (removed []string, err error) {
	halves, _ := filepath.Glob(filepath.Join(f.dir(), half+"*"))
	for _, dir := range halves {
		lock, lerr := claim.Take(filepath.Join(dir, "lock"))
		if lerr != nil {
			continue // it is being made
		}
		err = errors.Join(err, os.RemoveAll(dir))
		lock.Close()
		removed = append(removed, filepath.Base(dir))
	}
	names, nerr := f.names()
	if nerr != nil {
		return removed, errors.Join(err, nerr)
	}
	for _, id := range f.ids() {
		i, rerr := f.Load(id)
		switch {
		case errors.Is(rerr, ErrNone):
			rerr = f.remove(id, func() error { return nil })
		case rerr == nil && unwanted != nil && unwanted(Info{Image: i, Names: namesOf(names, id)}):
			rerr = f.remove(id, func() error { // what a pull or a sandbox has made of it since, now that nobody uses it
				now, err := f.names()
				if err == nil && !unwanted(Info{Image: i, Names: namesOf(now, id)}) {
					err = ErrBusy
				}
				if err != nil {
					return err
				}
				return before(i)
			})
		default:
			continue
		}
		if rerr == nil {
			removed = append(removed, id)
		} else if !errors.Is(rerr, ErrBusy) {
			err = errors.Join(err, fmt.Errorf("image %s: %w", id, rerr))
		}
	}
	return removed, err
}
