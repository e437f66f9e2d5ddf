// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"agentrun/telemetry/runlog"
)

// gatewayLogs is the part of gateway.yaml about logs that the supervisor carries out: the gateway has given up its rights to
// the folder.
type gatewayLogs struct {
	Retention      time.Duration `yaml:"retention"`
	ErrorRetention time.Duration `yaml:"error_retention"`
	Sample         float64       `yaml:"sample"`
}

func (l gatewayLogs) policy() runlog.Policy {
	p := runlog.DefaultPolicy()
	if l.Retention != 0 {
		p.Keep = l.Retention
	}
	if l.ErrorRetention != 0 {
		p.KeepErrors = l.ErrorRetention
	}
	return p
}

// logsDir is where the gateways' logs lie, one for each run that spoke to its gateway.
func (g *global) logsDir() string { return filepath.Join(g.stateDir, "runs") }

// sweepTime is how often the logs are looked through: retention is told in hours, and each run would otherwise look at the
// logs of all others.
const sweepTime = time.Hour

// keepLogs does with the log of a run that is over what the configuration says, and deletes what is too old (M-18).
func (g *global) keepLogs(run string, l gatewayLogs) {
	if _, err := runlog.Thin(g.logsDir(), run, l.Sample); errors.Is(err, fs.ErrNotExist) {
		return // no run has spoken to its gateway yet
	} else if err != nil {
		g.log.Warn("log of the run", "run", run, "err", err)
	}
	stamp := filepath.Join(g.stateDir, "runs-swept")
	if info, err := os.Stat(stamp); err == nil && time.Since(info.ModTime()).Abs() < sweepTime {
		return
	}
	if err := g.sweepLogs(l); err != nil {
		g.log.Warn("old logs of runs", "err", err)
		return
	}
	if err := os.WriteFile(stamp, nil, 0o600); err != nil {
		g.log.Warn("old logs of runs", "err", err)
	}
}

func (g *global) sweepLogs(l gatewayLogs) error {
	_, err := runlog.Sweep(g.logsDir(), l.policy(), time.Now())
	return errors.Join(err, g.sweepOutput(l.policy(), time.Now()))
}
