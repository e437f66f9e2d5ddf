// SPDX-License-Identifier: Apache-2.0

// Package outputs keeps what runs leave behind for people to read: how they ended, the logs of their gateways, and what detached runs have printed.
// It makes the files, and deletes them when they are too old (M-18). The state folder holds them, one file for each run; nobody but
// the supervisor writes there, but for a gateway its own log, which was opened before it gave up its rights.
package outputs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/telemetry/runlog"
)

// Folder are those of one state folder.
type Folder struct {
	StateDir string
	Log      *slog.Logger
}

// Policy is the part of gateway.yaml about logs that the supervisor carries out: the gateway has given up its rights to the folder.
type Policy = runlog.Policy

// dir is where the output of detached runs lies, one file for each.
func (o Folder) dir() string { return filepath.Join(o.StateDir, "output") }

const outputSuffix = ".log"

// File is what one run has written.
func (o Folder) File(run string) string { return filepath.Join(o.dir(), run+outputSuffix) }

// Create makes the file of a run. The run's max_output bounds it.
func (o Folder) Create(run string) (*os.File, error) {
	if err := os.MkdirAll(o.dir(), 0o700); err != nil {
		return nil, fmt.Errorf("output of the run: %w", err)
	}
	f, err := os.OpenFile(o.File(run), os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("output of the run: %w", err)
	}
	// For as long as it is open the run lives, however long ago it has last written: see sweep.
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); err != nil {
		return nil, errors.Join(fmt.Errorf("lock the output of the run: %w", err), f.Close(), os.Remove(f.Name()))
	}
	return f, nil
}

// written tells whether a run's output is open for writing.
func (o Folder) written(run string) bool {
	f, err := os.OpenFile(o.File(run), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// Account is how a run ended, as the supervisor knew it. Text is JSON; the file's time is that of the end.
type Account struct {
	Run   string
	Ended time.Time
	Text  []byte
}

// maxAccounts are kept, the newest: a list of more is no list for people, and the audit has them all.
const maxAccounts = 1000

const (
	accountSuffix = ".json"
	halfSuffix    = ".half" // an account that is being written
)

// KeepAccount keeps an account in place of an earlier one of the run, and deletes what is too old. A reader never
// sees half of it.
func (o Folder) KeepAccount(run string, text []byte, l Policy) error {
	if err := os.MkdirAll(o.dir(), 0o700); err != nil {
		return err
	}
	half := filepath.Join(o.dir(), run+halfSuffix)
	if err := os.WriteFile(half, text, 0o600); err != nil {
		return err
	}
	if err := os.Rename(half, filepath.Join(o.dir(), run+accountSuffix)); err != nil {
		return err
	}
	o.sweepLately(l)
	return nil
}

// Accounts returns those that are kept, the newest first. What goes away meanwhile is left out.
func (o Folder) Accounts() ([]Account, error) {
	files, err := o.files(accountSuffix)
	if err != nil {
		return nil, err
	}
	var all []Account
	for _, f := range files[:min(len(files), maxAccounts)] {
		if text, err := os.ReadFile(filepath.Join(o.dir(), f.Name())); err == nil {
			all = append(all, Account{strings.TrimSuffix(f.Name(), accountSuffix), f.ModTime(), text})
		}
	}
	return all, nil
}

// files are those with a suffix, the newest first; none is no error.
func (o Folder) files(suffix string) (list []fs.FileInfo, err error) {
	entries, err := os.ReadDir(o.dir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && filepath.Ext(e.Name()) == suffix {
			list = append(list, info)
		}
	}
	slices.SortFunc(list, func(a, b fs.FileInfo) int {
		return cmp.Or(b.ModTime().Compare(a.ModTime()), strings.Compare(a.Name(), b.Name()))
	})
	return list, nil
}

// sweep deletes the output and the accounts of runs that ended too long ago, as the logs of runs (M-18). A detached run that lives loses
// neither: what it wrote after that would be in a file without a name.
func (o Folder) sweep(keep time.Duration, now time.Time) error {
	var errs []error
	for suffix, remove := range map[string]func(string) error{outputSuffix: remove, accountSuffix: os.Remove, halfSuffix: os.Remove} {
		files, err := o.files(suffix)
		errs = append(errs, err)
		for i, f := range files {
			young := now.Sub(f.ModTime()).Abs() < keep && (suffix != accountSuffix || i < maxAccounts)
			if young || o.written(strings.TrimSuffix(f.Name(), suffix)) {
				continue
			}
			if err := remove(filepath.Join(o.dir(), f.Name())); !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// remove empties a file and syncs that before its name goes: what a run printed is to be gone from the disk, not only from
// the folder.
func remove(name string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return errors.Join(f.Truncate(0), f.Sync(), os.Remove(name))
}

// LogsDir is where the gateways' logs lie, one for each run that spoke to its gateway.
func (o Folder) LogsDir() string { return filepath.Join(o.StateDir, "runs") }

// Calls is the log of one run's gateway.
func (o Folder) Calls(run string) string { return filepath.Join(o.LogsDir(), run+callsSuffix) }

const callsSuffix = ".jsonl"

// Runs are the ids that begin with prefix of runs of which anything is kept. Two runs with the very same prefix are both
// there; one whose whole id it is, is there alone.
func (o Folder) Runs(prefix string) ([]string, error) {
	found := map[string]bool{}
	for _, kind := range []struct{ dir, suffix string }{{o.LogsDir(), callsSuffix}, {o.dir(), outputSuffix}, {o.dir(), accountSuffix}} {
		files, err := os.ReadDir(kind.dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("logs of runs: %w", err)
		}
		for _, f := range files {
			if run, ours := strings.CutSuffix(f.Name(), kind.suffix); ours && strings.HasPrefix(run, prefix) {
				found[run] = true
			}
		}
	}
	if found[prefix] {
		return []string{prefix}, nil
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// sweepTime is how often the logs are looked through: each run would otherwise look at the logs of all others.
const sweepTime = 10 * time.Minute

// Keep does with the log of a run that is over what the configuration says (M-18).
func (o Folder) Keep(run string, l Policy) {
	if _, err := runlog.Thin(o.LogsDir(), run, l); err != nil && !errors.Is(err, fs.ErrNotExist) { // none: nobody spoke to the gateway yet
		o.Log.Warn("log of the run", "run", run, "err", err)
	}
}

// sweepLately deletes what is too old, if that was not done lately.
func (o Folder) sweepLately(l Policy) {
	stamp := filepath.Join(o.StateDir, "runs-swept")
	if info, err := os.Stat(stamp); err == nil && time.Since(info.ModTime()).Abs() < sweepTime {
		return
	}
	if err := o.Sweep(l); err != nil {
		o.Log.Warn("old logs of runs", "err", err)
		return
	}
	if err := os.WriteFile(stamp, nil, 0o600); err != nil {
		o.Log.Warn("old logs of runs", "err", err)
	}
}

// Sweep deletes what is too old. One file that can't be removed keeps no other: all that went wrong is told
// at the end.
func (o Folder) Sweep(l Policy) error {
	_, err := runlog.Sweep(o.LogsDir(), l, time.Now())
	return errors.Join(err, o.sweep(cmp.Or(l.Keep, runlog.MaxKeep), time.Now()))
}
