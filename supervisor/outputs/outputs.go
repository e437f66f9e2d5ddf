// SPDX-License-Identifier: Apache-2.0

// Package outputs keeps what runs leave behind for people to read: the logs of their gateways, and what detached runs have printed.
// It makes the files, and deletes them when they are too old (M-18). The state folder holds them, one file for each run; nobody but
// the supervisor writes there, but for a gateway its own log, which was opened before it gave up its rights.
package outputs

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
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
type Policy struct {
	Retention      time.Duration `yaml:"retention"`
	ErrorRetention time.Duration `yaml:"error_retention"`
	Sample         float64       `yaml:"sample"`
}

func (l Policy) policy() runlog.Policy {
	p := runlog.DefaultPolicy()
	if l.Retention != 0 {
		p.Keep = l.Retention
	}
	if l.ErrorRetention != 0 {
		p.KeepErrors = l.ErrorRetention
	}
	return p
}

// dir is where the output of detached runs lies, one file for each.
func (o Folder) dir() string { return filepath.Join(o.StateDir, "output") }

// File is the file of one run.
func (o Folder) File(run string) string { return filepath.Join(o.dir(), run+".log") }

// Create makes the file of a run. The run's max_output bounds it.
func (o Folder) Create(run string) (*os.File, error) {
	if err := os.MkdirAll(o.dir(), 0o700); err != nil {
		return nil, fmt.Errorf("output of the run: %w", err)
	}
	f, err := os.OpenFile(o.File(run), os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("output of the run: %w", err)
	}
	return f, nil
}

// sweep deletes the output of runs that ended too long ago, as the logs of runs (M-18).
func (o Folder) sweep(p runlog.Policy, now time.Time) error {
	files, err := os.ReadDir(o.dir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, f := range files {
		info, err := f.Info()
		if err != nil || !info.Mode().IsRegular() || filepath.Ext(f.Name()) != ".log" || now.Sub(info.ModTime()).Abs() < p.Keep {
			continue
		}
		if err := os.Remove(filepath.Join(o.dir(), f.Name())); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// LogsDir is where the gateways' logs lie, one for each run that spoke to its gateway.
func (o Folder) LogsDir() string { return filepath.Join(o.StateDir, "runs") }

// sweepTime is how often the logs are looked through: retention is told in hours, and each run would otherwise look at the
// logs of all others.
const sweepTime = time.Hour

// Keep does with the log of a run that is over what the configuration says, and deletes what is too old (M-18).
func (o Folder) Keep(run string, l Policy) {
	if _, err := runlog.Thin(o.LogsDir(), run, l.Sample); errors.Is(err, fs.ErrNotExist) {
		return // no run has spoken to its gateway yet
	} else if err != nil {
		o.Log.Warn("log of the run", "run", run, "err", err)
	}
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
	_, err := runlog.Sweep(o.LogsDir(), l.policy(), time.Now())
	return errors.Join(err, o.sweep(l.policy(), time.Now()))
}
