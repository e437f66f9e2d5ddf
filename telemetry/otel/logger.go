// SPDX-License-Identifier: Apache-2.0

package otel

import (
	"fmt"
	"log/slog"

	"agentrun/telemetry/mask"
	"agentrun/telemetry/runlog"
)

// Logger makes the log of a run in dir (M-18): JSON, with secrets and personal data masked, and those of known, the secrets
// the gateway injects, wherever they turn up. An empty dir gives a logger that writes nothing, and no log. It comes before
// confine.Drop, while the folder can be written.
//
// Whoever may write the folder after the drop deletes those of runs that ended well, by runlog.Thin with Logs.Policy.
func Logger(c Logs, dir, run string, known []string) (*slog.Logger, *runlog.Log, error) {
	if dir == "" {
		return slog.New(slog.DiscardHandler), nil, nil
	}
	level, err := c.level()
	if err != nil {
		return nil, nil, err
	}
	log, err := runlog.Create(dir, run, runlog.Options{Level: level, Mask: mask.New(mask.Options{IPs: c.MaskIPs, Known: known})})
	if err != nil {
		return nil, nil, fmt.Errorf("telemetry.logs: %w", err)
	}
	return slog.New(log.Handler()), log, nil
}
