// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"agentrun/control"
	"agentrun/rings"
)

// onLoan asks for ring 2 for longer than any measurement.
var onLoan = control.ElevateRequest{Target: rings.Standard, TTL: time.Hour, Reason: "measured"}

// liveRun is a run with the supervisor that answers for it.
type liveRun struct {
	*control.Client
	id string
}

func (b *bench) runDir() string { return filepath.Join(b.dir, "run") }

// find waits until supervisor, a process, answers for a run.
func (b *bench) find(ctx context.Context, supervisor int) (liveRun, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		sockets, err := filepath.Glob(filepath.Join(b.runDir(), "control", "*.sock"))
		if err != nil {
			return liveRun{}, err
		}
		for _, s := range sockets {
			c, err := control.Open(b.runDir(), strings.TrimSuffix(filepath.Base(s), ".sock"))
			if err != nil {
				continue // gone since
			}
			list, err := c.Sandboxes(ctx)
			if err == nil && len(list) == 1 && list[0].Supervisor == supervisor && list[0].State == control.Running {
				return liveRun{c, list[0].ID}, nil
			}
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return liveRun{}, fmt.Errorf("no live run of process %d: %w", supervisor, ctx.Err())
		}
	}
}

// elevate lends ring 2 to the run of a supervisor.
func (b *bench) elevate(ctx context.Context, supervisor int) (liveRun, error) {
	r, err := b.find(ctx, supervisor)
	if err == nil {
		_, err = r.Elevate(ctx, r.id, onLoan, "")
	}
	return r, err
}

// holdLive is hold, with the way to the run's supervisor.
func (b *bench) holdLive(argv []string) (*holder, liveRun, error) {
	h, err := b.hold(argv)
	if err != nil {
		return nil, liveRun{}, err
	}
	r, err := b.find(b.ctx, h.cmd.Process.Pid)
	if err != nil {
		return nil, liveRun{}, errors.Join(err, h.release())
	}
	return h, r, nil
}
