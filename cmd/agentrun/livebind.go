// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"agentrun/control"
)

// boundRuns are the live runs of a run folder, by package control.
type boundRuns struct{ runDir string }

func (b boundRuns) All(ctx context.Context) ([]liveRun, error) {
	found, err := control.All(ctx, b.runDir)
	runs := make([]liveRun, len(found))
	for i, f := range found {
		runs[i] = liveRun{f.Sandbox, f.Client}
	}
	return runs, err
}

func (b boundRuns) Find(ctx context.Context, ref string) (liveRun, error) {
	f, err := control.Find(ctx, b.runDir, ref)
	if err != nil {
		return liveRun{}, err
	}
	return liveRun{f.Sandbox, f.Client}, nil
}

const socketSuffix = ".sock"

// Supervisors goes by the sockets: a daemon has one also while nothing runs. A supervisor's key has the time at which its
// socket was made, since the daemon's next one has the same name and counts its events anew.
func (b boundRuns) Supervisors(context.Context) ([]liveSupervisor, error) {
	entries, err := os.ReadDir(filepath.Join(b.runDir, "control"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // nothing has ever run here
	}
	var list []liveSupervisor
	errs := []error{err}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), socketSuffix)
		if !ok {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has ended
		}
		var c *control.Client
		if err == nil {
			c, err = control.Open(b.runDir, name)
		}
		if hasEnded(err) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		list = append(list, liveSupervisor{name: name, key: fmt.Sprint(name, " ", info.ModTime().UnixNano()), Controller: c})
	}
	return list, errors.Join(errs...)
}
