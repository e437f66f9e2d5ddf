// SPDX-License-Identifier: Apache-2.0

// Package sandboxes keeps what is known of sandboxes that outlive their runs (agentrun create): the exec that each start is, what the
// agent's files are, and whether it is to run. Each start is a run like any other, admitted, planned and recorded anew; what lasts is
//
//   - home: HOME of the agent, where its ring may write (package homes);
//   - root: what it changed in the copies of the host's folders that its root shows, where its profile has a writable one (ring 1);
//   - workspace: what it changed in an overlaid one, until somebody applies or discards it.
//
// They lie in a layer of its own, over any number of layers that are sealed: those nobody changes any more, and sandboxes share them
// (layers.go). So a snapshot and a fork copy nothing of a sandbox that stands still, and of one that runs what it has changed.
//
// Guarantees. A sandbox is one run's at a time, until its supervisor ends, however that ends. What is known of one is the old or the new,
// never between, whenever a process dies; one that is only half made or half removed is none, and Sweep takes it away. The folder is its
// owner's alone, mode 0700. State of another version is refused by name.
//
// Errors. ErrBusy: a live run has it. ErrNone: there is none of that name. ErrExists: there is. *homes.OverQuotaError.
//
// It does not bound what a run writes while it lives: that is looked at before the next. Nothing is encrypted: that is the host's disk's.
package sandboxes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/beneath"
	"agentrun/internal/claim"
	"agentrun/internal/fault"
	"agentrun/internal/read"
	"agentrun/profiles"
	"agentrun/supervisor/homes"
)

// Version of the state. It changes with the meaning of what is kept.
const Version = 1

// DefaultQuota of all that one keeps.
const DefaultQuota = 4 * profiles.GiB

var (
	// ErrBusy is a sandbox that a live run has.
	ErrBusy = errors.New("it is running")
	// ErrNone is a sandbox that there isn't.
	ErrNone = errors.New("there is no kept sandbox of that name")
	// ErrExists is a sandbox that there is already.
	ErrExists = errors.New("there is a kept sandbox of that name already")
)

// Restart says when a run that has ended is followed by another.
type Restart string

// The zero value is never.
const (
	RestartNo        Restart = "no"
	RestartOnFailure Restart = "on-failure" // ended other than with exit code 0
	RestartAlways    Restart = "always"     // also after the daemon's own restart
)

// Choices are all there are.
func (Restart) Choices() []string {
	return []string{string(RestartNo), string(RestartOnFailure), string(RestartAlways)}
}

// Sandbox is what is known of one. What only its starts change is last.
type Sandbox struct {
	Version int           `json:"version"`
	Name    string        `json:"-"`  // that of its folder
	Frozen  bool          `json:"-"`  // its run, or the last one, was made to stand still, and nobody has let it go on: Freeze
	By      string        `json:"by"` // who made it, as uid:0
	Created time.Time     `json:"created"`
	Until   time.Time     `json:"until,omitzero"`  // then gc removes it, if it isn't running; zero: never
	Ring    int           `json:"ring"`            // of its starts, as it was created
	Image   string        `json:"image,omitempty"` // whose root it has, by its id
	Restart Restart       `json:"restart"`
	Quota   profiles.Size `json:"quota"`
	Dir     string        `json:"dir"`             // that relative paths of Words start from
	Words   []string      `json:"words"`           // flags of exec, "--", the command
	Leads   []string      `json:"leads,omitempty"` // the workspace and the binds of Words, where they lay then; empty: named by a link

	Files                // what it has, under its layer
	Layer     string     `json:"layer"`             // its own
	Changed   bool       `json:"changed,omitempty"` // a run has had its own layer, or its changes of the workspace were applied or discarded
	Overlay   bool       `json:"overlay,omitempty"` // its changes of the workspace are in it
	Snapshots []Snapshot `json:"snapshots,omitempty"`

	Wanted   bool      `json:"wanted"`             // it was started, and nobody has stopped it since
	Run      string    `json:"run,omitempty"`      // its run, or the last one
	Began    time.Time `json:"began,omitzero"`     // of that
	Restarts int       `json:"restarts,omitempty"` // in a row, since an operator's start or a run that lasted
}

// Exec are Words without what nobody else may read, and that: the values of --env. A command line each user of the host reads for as long as the
// run lives (proc_pid_cmdline(5)).
func (s Sandbox) Exec() (words, variables []string) {
	for i, w := range s.Words {
		if w == "--" {
			return append(words, s.Words[i:]...), variables
		}
		if v, ok := strings.CutPrefix(w, "--env="); ok {
			variables = append(variables, v)
		} else {
			words = append(words, w)
		}
	}
	return words, variables
}

// Folder is where a node's sandboxes are.
type Folder struct{ StateDir string }

func (f Folder) dir() string { return filepath.Join(f.StateDir, "sandboxes") }

// Of is the folder of one.
func (f Folder) Of(name string) string { return filepath.Join(f.dir(), name) }

func (f Folder) about(name string) string  { return filepath.Join(f.Of(name), "sandbox.json") }
func (f Folder) lockOf(name string) string { return filepath.Join(f.Of(name), "lock") }

// CheckName refuses what is no name of a sandbox: it becomes a folder's, and the name of runs.
func CheckName(name string) error {
	if homes.CheckName(name) != nil {
		return fmt.Errorf("%.64q is no name of a sandbox: want up to 64 letters, digits, and . _ - behind the first", name)
	}
	return nil
}

// Create puts a sandbox there that is stopped. What is still to be known of it is told by complete, once its folders are there, which a
// plan shows; an error of it leaves nothing. The last step makes it one.
func (f Folder) Create(ctx context.Context, s Sandbox, complete func(*Sandbox) error) (err error) {
	if err := CheckName(s.Name); err != nil {
		return err
	}
	if !slices.Contains(s.Restart.Choices(), string(s.Restart)) {
		return fmt.Errorf("restart: %.64q is none of %s", s.Restart, strings.Join(s.Restart.Choices(), ", "))
	}
	if err := os.MkdirAll(f.dir(), 0o700); err != nil {
		return err
	}
	err = os.Mkdir(f.Of(s.Name), 0o700)
	if errors.Is(err, fs.ErrExist) {
		if _, lerr := f.Load(s.Name); !errors.Is(lerr, ErrNone) {
			return ErrExists
		}
		err = f.sweep(s.Name) // half of one, if nobody is about to make it
		if err == nil {
			err = os.Mkdir(f.Of(s.Name), 0o700)
		}
	}
	if err != nil {
		return err
	}
	lock, err := f.take(s.Name)
	if err != nil {
		return err
	}
	defer lock.Close()
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(f.Of(s.Name)))
		}
	}()
	making, err := f.making()
	if err != nil {
		return err
	}
	defer making.Close()
	if s.Layer, err = f.above(ctx, s.Below); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.drop(s.Layer))
		}
	}()
	if err := fault.At("sandbox/create"); err != nil {
		return err
	}
	if err := complete(&s); err != nil {
		return err
	}
	s.Version, s.Quota = Version, cmp.Or(s.Quota, DefaultQuota)
	return f.save(s)
}

// save replaces what is known of a sandbox. Where that fails, one that is not to run any more gets a mode that says so: a disk that the agent
// has filled has no room for another file, and the next daemon would start what was killed.
func (f Folder) save(s Sandbox) error {
	err := fault.At("sandbox/save")
	if err == nil {
		err = read.Replace(f.about(s.Name), s, func() error { return fault.At("sandbox/saved") })
	}
	if err != nil && !s.Wanted {
		_ = os.Chmod(f.about(s.Name), unwanted) // what went wrong is told all the same
	}
	return err
}

// unwanted is the mode of what is known of a sandbox that isn't wanted, whatever stands in it.
const unwanted = 0o400

// Freeze notes whether a sandbox's run stands still by somebody's word: no other follows on one that does, however that one ends. The mode of
// the folder says so, for which the fullest disk has room.
func (f Folder) Freeze(name string, still bool) error {
	mode := fs.FileMode(0o700)
	if still {
		mode |= fs.ModeSticky
	}
	return errors.Join(os.Chmod(f.Of(name), mode), sync(f.Of(name)))
}

func sync(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// Load returns what is known of one.
func (f Folder) Load(name string) (s Sandbox, err error) {
	if err := CheckName(name); err != nil {
		return s, err
	}
	err = read.State(f.about(name), 1<<20, Version, &s)
	if errors.Is(err, fs.ErrNotExist) {
		return s, ErrNone
	}
	if err != nil {
		return s, err
	}
	if info, serr := os.Stat(f.about(name)); serr != nil || info.Mode().Perm() == unwanted {
		s.Wanted = false
	}
	info, err := os.Stat(f.Of(name))
	s.Name, s.Frozen = name, err != nil || info.Mode()&fs.ModeSticky != 0
	return s, s.checkLayers()
}

// Change loads a sandbox, has change alter it, and saves it; others that do so wait. An error of change leaves it as it was.
func (f Folder) Change(name string, change func(*Sandbox) error) (s Sandbox, err error) {
	turn, err := f.turn(name)
	if err != nil {
		return s, err
	}
	defer turn.Close()
	if s, err = f.Load(name); err != nil {
		return s, err
	}
	if err := change(&s); err != nil {
		return s, err
	}
	return s, f.save(s)
}

// turn waits for whoever alters what is known of a sandbox, or takes its name away: what it was told meanwhile would be lost, or written
// into another sandbox that has the name by then.
func (f Folder) turn(name string) (*os.File, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	for {
		dir, err := os.Open(f.Of(name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, ErrNone
		}
		if err != nil {
			return nil, err
		}
		err = os.NewSyscallError("flock", unix.Flock(int(dir.Fd()), unix.LOCK_EX))
		var mine, there os.FileInfo
		if err == nil {
			mine, err = dir.Stat()
		}
		if err == nil {
			there, err = os.Lstat(f.Of(name))
		}
		if err == nil && os.SameFile(mine, there) {
			return dir, nil
		}
		dir.Close()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
}

// take holds a sandbox.
func (f Folder) take(name string) (*os.File, error) {
	file, err := claim.Take(f.lockOf(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = ErrNone
	case errors.Is(err, claim.ErrBusy):
		err = ErrBusy
	}
	return file, err
}

// Taken is a sandbox that a run has.
type Taken struct {
	Sandbox
	in   Folder
	lock *os.File
}

// Close lets others have it.
func (t *Taken) Close() {
	if t != nil {
		t.lock.Close()
	}
}

// Take gives a sandbox to a run, unless one has it, or it keeps more than it may.
func (f Folder) Take(name string) (*Taken, error) {
	t, err := f.Hold(name)
	if err != nil {
		return nil, err
	}
	err = f.dropPutAway(t.Sandbox)
	if err == nil {
		err = f.withinQuota(t.Sandbox)
	}
	if err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// Hold keeps runs from a sandbox that none has, for whoever looks after what it has changed in its workspace.
func (f Folder) Hold(name string) (*Taken, error) {
	if _, err := f.Load(name); err != nil {
		return nil, err
	}
	lock, err := f.take(name)
	if err != nil {
		return nil, err
	}
	t := &Taken{in: f, lock: lock}
	if t.Sandbox, err = f.Load(name); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// Alter is Change of the sandbox that is held.
func (t *Taken) Alter(change func(*Sandbox) error) (err error) {
	t.Sandbox, err = t.in.Change(t.Name, change)
	return err
}

func (f Folder) withinQuota(s Sandbox) error {
	bytes, err := homes.Size(f.layer(s.Layer))
	bytes += s.Sealed
	if quota := cmp.Or(s.Quota, DefaultQuota); err == nil && bytes > quota {
		err = &homes.OverQuotaError{Bytes: bytes, Quota: quota}
	}
	return err
}

// Info is a sandbox, for people.
type Info struct {
	Sandbox
	Live bool `json:"live"`
}

// List returns the sandboxes there are, by name. What can't be read of one is an error beside the others.
func (f Folder) List() (list []Info, err error) {
	var errs []error
	err = f.each(func(s Sandbox, lerr error) {
		if lerr == nil {
			list = append(list, Info{Sandbox: s, Live: claim.Held(f.lockOf(s.Name))})
		}
		errs = append(errs, lerr)
	})
	return list, errors.Join(append(errs, err)...)
}

// each has do hear of each sandbox, by name, or why it can't be read. None gets another name meanwhile: it could be seen under neither, and
// what nobody has is removed. Its error is that not all were looked at.
func (f Folder) each(do func(Sandbox, error)) error {
	still, err := lockFolder(f.dir(), unix.LOCK_SH)
	if err != nil {
		return ignoreGone(err)
	}
	defer still.Close()
	names, err := f.names()
	for _, name := range names {
		if s, err := f.Load(name); !errors.Is(err, ErrNone) {
			do(s, err)
		}
	}
	return err
}

func lockFolder(path string, how int) (*os.File, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(dir.Fd()), how); err != nil {
		dir.Close()
		return nil, os.NewSyscallError("flock", err)
	}
	return dir, nil
}

// Live tells whether a run has it.
func (f Folder) Live(name string) bool { return claim.Held(f.lockOf(name)) }

func (f Folder) names() (names []string, err error) {
	dirs, err := os.ReadDir(f.dir())
	for _, d := range dirs {
		if d.IsDir() && CheckName(d.Name()) == nil {
			names = append(names, d.Name())
		}
	}
	return names, ignoreGone(err)
}

// Remove deletes a sandbox that isn't running, with all that it keeps: first what makes it one.
func (f Folder) Remove(name string) error {
	return f.removeIf(name, func(Sandbox) error { return nil })
}

// errMeanwhile is a sandbox that has become another than the one to be removed.
var errMeanwhile = fmt.Errorf("it was changed meanwhile: %w", ErrBusy)

func (f Folder) removeIf(name string, meant func(Sandbox) error) error {
	if _, err := f.Load(name); err != nil {
		return err
	}
	return f.remove(name, func() error {
		turn, err := f.turn(name)
		if err != nil {
			return err
		}
		defer turn.Close()
		s, err := f.Load(name)
		if err == nil {
			err = meant(s)
		}
		if err == nil {
			err = os.Remove(f.about(name))
		}
		if err != nil {
			return err
		}
		return sync(f.Of(name))
	})
}

func (f Folder) remove(name string, first func() error) error {
	lock, err := f.take(name)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := first(); err != nil {
		return err
	}
	if err := fault.At("sandbox/remove"); err != nil {
		return err
	}
	if err := beneath.RemoveAll(f.Of(name)); err != nil {
		return err
	}
	return f.prune()
}

// sweep removes what is half of one.
func (f Folder) sweep(name string) error {
	return f.remove(name, func() error {
		if _, err := f.Load(name); !errors.Is(err, ErrNone) {
			return cmp.Or(err, ErrExists)
		}
		return nil
	})
}

// Rename gives a sandbox that isn't running another name: that of its folder, which is all the name it has.
func (f Folder) Rename(from, to string) error {
	if err := CheckName(to); err != nil {
		return err
	}
	if _, err := f.Load(from); err != nil {
		return err
	}
	lock, err := f.take(from)
	if err != nil {
		return err
	}
	defer lock.Close()
	turn, err := f.turn(from)
	if err != nil {
		return err
	}
	defer turn.Close()
	still, err := lockFolder(f.dir(), unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer still.Close()
	if err := fault.At("sandbox/rename"); err != nil {
		return err
	}
	err = unix.Renameat2(unix.AT_FDCWD, f.Of(from), unix.AT_FDCWD, f.Of(to), unix.RENAME_NOREPLACE)
	switch {
	case errors.Is(err, unix.EEXIST):
		return ErrExists
	case err != nil:
		return os.NewSyscallError("renameat2", err)
	}
	return sync(f.dir())
}

func (s Sandbox) over(now time.Time) bool { return !s.Until.IsZero() && now.After(s.Until) }

// Sweep removes sandboxes whose time is over and that don't run, and half ones, and returns the names of those. before hears of each that was
// one; its error keeps that.
func (f Folder) Sweep(now time.Time, before func(Sandbox) error) (removed []string, err error) {
	names, err := f.names()
	for _, name := range names {
		s, rerr := f.Load(name)
		switch {
		case errors.Is(rerr, ErrNone):
			rerr = f.sweep(name)
		case rerr == nil && s.over(now):
			rerr = f.removeIf(name, func(s Sandbox) error {
				if !s.over(now) { // keep has said more
					return errMeanwhile
				}
				return before(s)
			})
			if rerr == nil {
				removed = append(removed, name)
			}
		}
		if rerr != nil && !errors.Is(rerr, ErrBusy) && !errors.Is(rerr, ErrExists) {
			err = errors.Join(err, fmt.Errorf("sandbox %s: %w", name, rerr))
		}
	}
	return removed, errors.Join(err, f.prune())
}
