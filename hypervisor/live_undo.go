// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"errors"

	"agentrun/rings"
)

// undos are the compensations of the run's kill (H-21): its calls and those of its children that can still be undone, the latest first.
func (c *Control) undos(context.Context) (list []rings.Compensation, err error) {
	if c.opt.Undo == nil {
		return nil, nil
	}
	all, err := c.h.Undos()
	for _, u := range all {
		if u.State != UndoOpen || u.Run != c.opt.Run && u.Parent != c.opt.Run {
			continue
		}
		list = append(list, rings.Compensation{Name: "undo " + u.Call, Run: func(ctx context.Context) error {
			_, err := c.h.Undo(ctx, UndoRequest{Call: u.Call, By: killer(ctx), Kill: true}, c.opt.Undo)
			if d, ok := errors.AsType[*DeniedError](err); ok && d.Code == CodeUndoDone {
				return nil // an operator, or another kill, was quicker
			}
			return err
		}})
	}
	return list, err
}

// killer is who ordered the kill that a compensation is of.
func killer(ctx context.Context) string {
	if by := orderOf(ctx).By; by != "" {
		return by
	}
	return "agentrun"
}
