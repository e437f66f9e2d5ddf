// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"maps"
	"slices"
	"sync"

	"agentrun/seccomp"
)

// gates are those of all who answer for one run. The zero value is ready.
type gates struct {
	mu    sync.Mutex
	all   map[*seccomp.Gate]struct{}
	hurry bool
}

// add is for before anything is answered: whoever comes after a change of ring decides by the new one.
func (g *gates) add() *seccomp.Gate {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all == nil {
		g.all = map[*seccomp.Gate]struct{}{}
	}
	gate := &seccomp.Gate{}
	gate.Hurry(g.hurry)
	g.all[gate] = struct{}{}
	return gate
}

func (g *gates) remove(gate *seccomp.Gate) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.all, gate)
}

// Hurry is seccomp.Gate's, of each.
func (g *gates) Hurry(on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hurry = on
	for gate := range g.all {
		gate.Hurry(on)
	}
}

// Barrier is seccomp.Gate's, of each.
func (g *gates) Barrier(ctx context.Context) error {
	g.mu.Lock()
	all := slices.Collect(maps.Keys(g.all))
	g.mu.Unlock()
	for _, gate := range all {
		if err := gate.Barrier(ctx); err != nil {
			return err
		}
	}
	return nil
}
