// SPDX-License-Identifier: Apache-2.0

// Package homes keeps folders that agents have as HOME from one run to the next: their sign-ins, settings, sessions and
// caches. What lies in one was written by an agent, and is data to everybody else.
//
//	h, err := f.Take("claude", quota) // made if there is none
//	… h.Files is shown to the run, writable …
//	h.Close()
//
// Guarantees. A home is one run's at a time, until its supervisor ends, however that ends. A run isn't started with a
// home over its quota. Files of ours are put in beneath it (no link leads out) and never over one that is there. The
// folder is its owner's alone, mode 0700; inside, the agent is its owner.
//
// Errors. ErrBusy: a live run has it. ErrNone: there is none of that name. *OverQuotaError.
//
// It does not bound what a run writes into its home while it lives: that is looked at before the next. It protects no
// agent from another that is given the same name.
package homes

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/beneath"
	"agentrun/internal/claim"
	"agentrun/profiles"
)

// Config is the section homes: of config.yaml.
type Config struct {
	Quota profiles.Size `yaml:"quota"` // of each home; 0: DefaultQuota
	Keep  time.Duration `yaml:"keep"`  // after its last run, until agentrun gc removes it; 0: DefaultKeep
}

// What holds where the configuration says nothing.
const (
	DefaultQuota = 4 * profiles.GiB
	DefaultKeep  = 90 * 24 * time.Hour
)

var (
	// ErrBusy is a home that a live run has.
	ErrBusy = errors.New("a live run has it")
	// ErrNone is a home that there isn't.
	ErrNone = errors.New("there is none of that name")
)

// OverQuotaError is a home with more in it than it may have.
type OverQuotaError struct{ Bytes, Quota profiles.Size }

func (e *OverQuotaError) Error() string {
	return fmt.Sprintf("%d MiB lie in it, and its quota is %v", e.Bytes/profiles.MiB, e.Quota)
}

// Folder is where a node's homes are.
type Folder struct {
	StateDir string
	Config
}

// Home is one that was taken.
type Home struct {
	Files string // what the agent sees as its HOME, without links
	lock  *os.File
}

// File is what a new home is given.
type File struct{ Path, Content string }

// CheckName refuses what is no name of a home: it becomes a folder's.
func CheckName(name string) error {
	if name == "" || len(name) > 64 || name[0] == '-' || name[0] == '.' ||
		strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") != "" {
		return fmt.Errorf("%.64q is no name of a home: want up to 64 letters, digits, and . _ - behind the first", name)
	}
	return nil
}

func (f Folder) dir() string { return filepath.Join(f.StateDir, "homes") }

// Of is the folder of one home: what the agent sees lies below it, and what is only about it beside that.
func (f Folder) Of(name string) string { return filepath.Join(f.dir(), name) }

// Files is what the agent of that home sees. It needn't be there.
func (f Folder) Files(name string) string { return filepath.Join(f.Of(name), "files") }

func (f Folder) lockOf(name string) string { return filepath.Join(f.Of(name), "lock") }

// Take makes the home if there is none, and keeps others from it until Close, or the end of this process.
func (f Folder) Take(name string) (*Home, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(f.Files(name), 0o700); err != nil {
		return nil, err
	}
	lock, err := f.lock(name)
	if err != nil {
		return nil, err
	}
	h := &Home{lock: lock}
	if h.Files, err = filepath.EvalSymlinks(f.Files(name)); err == nil {
		err = f.withinQuota(h.Files)
	}
	if err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// Close lets others have the home, and notes when it was used.
func (h *Home) Close() {
	if h != nil {
		claim.Touch(h.lock) // else gc counts from the run's start
		h.lock.Close()
	}
}

// lock holds a home. Whoever removes one holds it too.
func (f Folder) lock(name string) (*os.File, error) {
	file, err := claim.Take(f.lockOf(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = ErrNone
	case errors.Is(err, claim.ErrBusy):
		err = ErrBusy
	}
	return file, err
}

func (f Folder) withinQuota(files string) error {
	quota := cmp.Or(f.Quota, DefaultQuota)
	bytes, err := Size(files)
	if err == nil && bytes > quota {
		err = &OverQuotaError{bytes, quota}
	}
	return err
}

// maxDepth of folders in a home, as fsjail has it for what it saves: each costs a descriptor. Real trees have tens.
const maxDepth = 256

// ErrTooDeep is a tree that nobody wants to walk: the agent's folders lie in each other more than 256 deep.
var ErrTooDeep = fmt.Errorf("folders lie in it that are more than %d deep", maxDepth)

// Size is what lies below a folder takes of its disk. No link is followed: a live agent may put one anywhere. What it takes away meanwhile, or
// puts something else in the place of, doesn't count.
func Size(dir string) (profiles.Size, error) {
	f, err := os.OpenFile(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return 0, err
	}
	return sizeOf(f, 0)
}

// sizeOf closes dir. It goes down folder by folder: a path from the top would be looked up again for each.
func sizeOf(dir *os.File, depth int) (sum profiles.Size, err error) {
	defer dir.Close()
	if depth > maxDepth {
		return 0, ErrTooDeep
	}
	for {
		names, err := dir.Readdirnames(1024)
		for _, name := range names {
			of, err := sizeIn(dir, name, depth)
			sum += of
			if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
				return sum, err
			}
		}
		if errors.Is(err, io.EOF) {
			return sum, nil
		}
		if err != nil {
			return sum, err
		}
	}
}

// sizeIn is of one name of a folder, and what is below it.
func sizeIn(dir *os.File, name string, depth int) (profiles.Size, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return 0, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	own := 512 * profiles.Size(st.Blocks)
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return own, nil
	}
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return own, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	below, err := sizeOf(os.NewFile(uintptr(fd), name), depth+1)
	return own + below, err
}

// Seed puts files into a home, but for those that are there already.
func (f Folder) Seed(name string, files []File) error {
	if err := CheckName(name); err != nil {
		return err
	}
	if err := os.MkdirAll(f.Files(name), 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(f.Files(name))
	if err != nil {
		return err
	}
	defer root.Close()
	for _, file := range files {
		if err := root.MkdirAll(filepath.Dir(file.Path), 0o700); err != nil {
			return err
		}
		to, err := root.OpenFile(file.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return err
		}
		_, err = to.WriteString(file.Content)
		if err := errors.Join(err, to.Close()); err != nil {
			return err
		}
	}
	return nil
}

// Info is a home, for people.
type Info struct {
	Name  string        `json:"name"`
	Files string        `json:"files"`
	Bytes profiles.Size `json:"bytes"`
	Used  time.Time     `json:"used"`
	Live  bool          `json:"live"`
}

// List returns the homes there are, by name. What can't be read of one is an error beside the others: its agent must hide none of them.
func (f Folder) List() ([]Info, error) {
	infos, errs := []Info{}, []error(nil)
	for _, name := range f.names() {
		i := Info{Name: name, Files: f.Files(name), Used: f.used(name)}
		var err error
		if i.Bytes, err = Size(i.Files); err != nil && !errors.Is(err, ErrTooDeep) {
			errs = append(errs, fmt.Errorf("home %s: %w", name, err))
		}
		i.Live = claim.Held(f.lockOf(name))
		infos = append(infos, i)
	}
	return infos, errors.Join(errs...)
}

func (f Folder) names() (names []string) {
	dirs, _ := os.ReadDir(f.dir())
	for _, d := range dirs {
		if d.IsDir() && CheckName(d.Name()) == nil {
			names = append(names, d.Name())
		}
	}
	slices.Sort(names)
	return names
}

// used is when a run began or ended with the home, or it was made.
func (f Folder) used(name string) time.Time {
	for _, path := range []string{f.lockOf(name), f.Of(name)} {
		if info, err := os.Stat(path); err == nil {
			return info.ModTime()
		}
	}
	return time.Time{}
}

// Remove deletes a home that no live run has.
func (f Folder) Remove(name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	lock, err := f.lock(name)
	if err != nil {
		return err
	}
	defer lock.Close()
	return beneath.RemoveAll(f.Of(name))
}

// Sweep removes homes that no run has used for as long as the configuration says, and returns their names.
func (f Folder) Sweep(now time.Time) (removed []string, err error) {
	for _, name := range f.names() {
		if now.Sub(f.used(name)) < cmp.Or(f.Keep, DefaultKeep) {
			continue
		}
		switch rerr := f.Remove(name); {
		case rerr == nil:
			removed = append(removed, name)
		case !errors.Is(rerr, ErrBusy):
			err = errors.Join(err, fmt.Errorf("home %s: %w", name, rerr))
		}
	}
	return removed, err
}
