// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"agentrun/internal/hinted"
	"agentrun/profiles"
	"agentrun/supervisor/changes"
	"agentrun/supervisor/sandboxes"
)

func (s *run) workspaceLayer() changes.Layer { return layerOf(s.keptIn, s.kept) }

// layerOf has room for the names of many files beside what the quota allows.
func layerOf(f sandboxes.Folder, k sandboxes.Sandbox) changes.Layer {
	most := 2*min(k.Quota, 1<<60) + profiles.MiB
	return changes.Layer{Sandbox: k.Name, Dir: f.Workspace(k), Most: int64(most)} //nolint:gosec // it is bounded
}

// Use says what somebody wants of the changes that a kept sandbox has made in its workspace.
type Use int

// Uses.
const (
	Look Use = iota
	Apply
	Discard
)

// SandboxChanges are those that a kept sandbox has made in its workspace. ErrNone: there is no such sandbox, or it has no layer of its
// workspace. done lets go of them: until then the sandbox can't be started. One that runs may be looked at, and is paused meanwhile.
func (n *Node) SandboxChanges(ctx context.Context, name, by string, use Use, find RunFinder) (set *changes.Set, done func(), err error) {
	folder := n.Sandboxes()
	k, err := folder.Load(name)
	if err == nil && !k.Overlay {
		err = sandboxes.ErrNone
	}
	if err != nil {
		return nil, nil, err
	}
	// Nobody of a run whose supervisor was killed may still write what is looked at.
	if err := n.settle(ctx); err != nil {
		return nil, nil, err
	}
	held, err := n.holdSandbox(ctx, k, find)
	if errors.Is(err, sandboxes.ErrBusy) && use == Look {
		err = n.still(ctx, name, by, find)(func() error {
			k, err := folder.Load(name)
			if err == nil {
				set, err = layerOf(folder, k).Open()
			}
			return err
		})
		if err != nil {
			if set != nil {
				set.Close()
			}
			return nil, nil, known("diff", name, err)
		}
		return set, set.Close, nil
	}
	if errors.Is(err, sandboxes.ErrBusy) {
		return nil, nil, hinted.New(fmt.Errorf("sandbox %s: %w, and goes on with what it has changed", name, err), "agentrun stop "+name)
	}
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			held.Close()
		}
	}()
	layer := layerOf(folder, held.Sandbox)
	if use != Look { // what the next snapshot has isn't what the last one had
		layer.Empty = held.EmptyWorkspace
		if err := held.Alter(func(k *sandboxes.Sandbox) error { k.Changed = true; return nil }); err != nil {
			return nil, nil, err
		}
	}
	if use == Discard {
		return layer.Unread(), held.Close, nil
	}
	if set, err = layer.Open(); err != nil {
		return nil, nil, err
	}
	return set, func() { set.Close(); held.Close() }, nil
}

// holdSandbox waits for others who look at a sandbox or apply its changes, and for a supervisor that is on its way out. ErrBusy: it has a run.
func (n *Node) holdSandbox(ctx context.Context, k sandboxes.Sandbox, find RunFinder) (held *sandboxes.Taken, err error) {
	for end := time.Now().Add(letGo); ; time.Sleep(50 * time.Millisecond) {
		held, err = n.Sandboxes().Hold(k.Name)
		if !errors.Is(err, sandboxes.ErrBusy) || time.Now().After(end) || ctx.Err() != nil {
			return held, err
		}
		if k, lerr := n.Sandboxes().Load(k.Name); lerr != nil {
			return nil, lerr
		} else if _, ferr := find(ctx, k.Run); ferr == nil {
			return nil, err
		}
	}
}
