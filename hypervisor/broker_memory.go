// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"errors"

	"agentrun/store"
	"agentrun/toolproxy/link"
)

var _ link.Memory = (*Broker)(nil)

// Memory implements link.Memory. The gateway has decided about the tool call; what the supervisor knows is asked again here: a
// gateway that was taken over has no other memory, none when its agent is in quarantine, and no more changes than the run
// has made tool calls.
func (b *Broker) Memory(ctx context.Context, q link.MemoryRequest) (link.MemoryAnswer, error) {
	scope, err := b.adm.memoryScope()
	if err != nil {
		return link.MemoryAnswer{}, err
	}
	if err := b.mayKeep(q.Check(), memoryTool); err != nil {
		return link.MemoryAnswer{}, err
	}
	// One at a time: a transaction keeps all other runs of the node from theirs.
	b.memory.Lock()
	defer b.memory.Unlock()
	ctx, cancel := context.WithTimeout(ctx, memoryTime)
	defer cancel()
	a, _, err := b.live.now(ctx)
	if err != nil {
		return link.MemoryAnswer{}, err
	}
	if a.Quarantined != nil {
		return link.MemoryAnswer{}, errors.New("the agent is in quarantine")
	}
	m := memory{scope: scope, author: b.adm.Agent, now: b.h.now}
	if q.Op == link.MemoryList {
		return m.answer(func(f func(*store.Tx) error) error { return b.h.view(ctx, f) }, q)
	}
	if err := b.countWrite(); err != nil {
		return link.MemoryAnswer{}, err
	}
	return m.answer(func(f func(*store.Tx) error) error { return b.h.update(ctx, f) }, q)
}

// countWrite allows a change for each tool call that the run has taken. Each waits for the disk, and a disk is shared.
func (b *Broker) countWrite() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.written >= b.taken {
		return errors.New("more changes than tool calls")
	}
	b.written++
	return nil
}
