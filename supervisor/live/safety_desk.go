// SPDX-License-Identifier: Apache-2.0

package live

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"agentrun/hypervisor"
	"agentrun/safetyloop"
	"agentrun/safetyloop/desk"
)

var _ desk.Loop = (*safetyLoops)(nil)

// Challenges implements desk.Loop.
func (l *safetyLoops) Challenges(ctx context.Context) (all []safetyloop.Challenge) {
	for _, loop := range l.all() {
		all = append(all, loop.Challenges(ctx)...)
	}
	slices.SortFunc(all, func(a, b safetyloop.Challenge) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return all
}

// theirs asks one loop after the other whose it is.
func (l *safetyLoops) theirs(what string, do func(*safetyloop.Loop) error) error {
	for _, loop := range l.all() {
		if err := do(loop); !errors.Is(err, safetyloop.ErrNotFound) {
			return err
		}
	}
	return fmt.Errorf("%s: %w", what, safetyloop.ErrNotFound)
}

// Show implements desk.Loop.
func (l *safetyLoops) Show(ctx context.Context, by, id string) (c safetyloop.Challenge, err error) {
	err = l.theirs("challenge", func(loop *safetyloop.Loop) (err error) { c, err = loop.Show(ctx, by, id); return err })
	return c, err
}

// Verify implements desk.Loop.
func (l *safetyLoops) Verify(ctx context.Context, by, id, code string) error {
	return l.theirs("challenge", func(loop *safetyloop.Loop) error { return loop.Verify(ctx, by, id, code) })
}

// Pending implements desk.Loop.
func (l *safetyLoops) Pending(ctx context.Context) (all []safetyloop.Pending) {
	for _, loop := range l.all() {
		all = append(all, loop.Pending(ctx)...)
	}
	slices.SortFunc(all, func(a, b safetyloop.Pending) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Token, b.Token))
	})
	return all
}

// Confirm implements desk.Loop.
func (l *safetyLoops) Confirm(ctx context.Context, by, token string) error {
	return l.theirs("confirm token", func(loop *safetyloop.Loop) error { return loop.Confirm(ctx, by, token) })
}

// Blocks implements desk.Loop: all loops read the same state, and each has challenges of its own.
func (l *safetyLoops) Blocks(ctx context.Context) ([]safetyloop.Block, error) {
	all := []safetyloop.Block{}
	for _, loop := range l.all() {
		list, err := loop.Blocks(ctx)
		if err != nil {
			return nil, err
		}
		for _, b := range list {
			i := slices.IndexFunc(all, func(have safetyloop.Block) bool { return have.Agent == b.Agent && have.Since.Equal(b.Since) })
			if i < 0 {
				all = append(all, b)
			} else {
				all[i].Challenge = cmp.Or(all[i].Challenge, b.Challenge)
			}
		}
	}
	return all, nil
}

// Unblock implements desk.Loop.
func (l *safetyLoops) Unblock(ctx context.Context, by, agent, reason string) error {
	return l.theirs(fmt.Sprintf("agent %.80q", agent), func(loop *safetyloop.Loop) error { return loop.Unblock(ctx, by, agent, reason) })
}

// Unblock releases an agent in the state, where no supervisor of its runs lives any more. Those that live come to see it. The error is
// safetyloop.ErrNotFound if nobody has blocked it.
func Unblock(ctx context.Context, h *hypervisor.Hypervisor, by, agent, reason string) error {
	blocks, err := h.SafetyBlocks(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(blocks, func(b safetyloop.Block) bool { return b.Agent == agent }) {
		return safetyloop.ErrNotFound
	}
	loop, err := h.SafetyLoop(safetyloop.Settings{
		Mode: safetyloop.Enforcing, Confirm: safetyloop.ConfirmClient, Tolerance: safetyloop.Conservative, MaxSteps: 1, OnlyOperators: true, Judge: carried{},
	})
	if err != nil {
		return err
	}
	defer loop.Close()
	return loop.Unblock(ctx, by, agent, reason)
}
