// SPDX-License-Identifier: Apache-2.0

package sagas

import (
	"context"
	"errors"
	"fmt"
)

var errNoUndo = errors.New("it has no undo")

// compensate undoes what was done, last first (H-19). Whatever can't be undone, the rest still is.
func (r *run) compensate(ctx context.Context) error {
	if r.rec.State == Executing {
		if err := r.move(Compensating); err != nil {
			return err
		}
	}
	for i := len(r.steps) - 1; i >= 0; i-- {
		if k := &r.rec.Steps[i]; k.State != StepCommitted && !k.inFlight() {
			continue
		}
		if err := r.undo(ctx, i); err != nil {
			return err
		}
	}
	r.rec.Unresolved = nil
	for _, k := range r.rec.Steps {
		if k.State == StepCompensationFailed || k.State == StepFailed && k.Unknown {
			r.rec.Unresolved = append(r.rec.Unresolved, k.ID)
		}
	}
	end := Aborted
	if len(r.rec.Unresolved) > 0 {
		end = Escalated
	}
	if err := r.move(end); err != nil {
		return err
	}
	return r.flush(ctx)
}

// undo makes the one attempt to undo a step. It isn't repeated when it fails: an undo that half happened and is made
// again by itself is how a refund is paid twice. A human looks.
func (r *run) undo(ctx context.Context, i int) error {
	k, s := &r.rec.Steps[i], &r.steps[i]
	if k.Undoing && !k.Idempotent {
		k.Undoing, k.Unknown = false, true
		return r.undone(ctx, i, fmt.Errorf("agentrun ended during its undo: %w", ErrUnknown))
	}
	if s.Undo == nil {
		return r.undone(ctx, i, errNoUndo)
	}
	if err := ctx.Err(); err != nil {
		return errors.Join(err, r.flush(ctx))
	}
	again := k.Undoing
	k.Undoing = true
	t := r.transition(i, r.o.opt.Now().UTC())
	if err := r.audit(ctx, t); err != nil {
		k.Undoing = again
		return errors.Join(err, r.flush(ctx))
	}
	r.tell(t)
	if err := r.flush(ctx); err != nil {
		return err
	}
	err := r.effect(ctx, i, s.Undo, true)
	if errors.Is(err, ErrNotBegun) {
		k.Undoing = again
		return errors.Join(fmt.Errorf("saga %s: undo of step %s: %w", r.rec.ID, k.ID, err), r.flush(ctx))
	}
	if err != nil && ctx.Err() != nil {
		// Told to stop in the middle: it stays as begun, and Resume judges it as after a crash.
		return errors.Join(ctx.Err(), err)
	}
	k.Undoing = false
	return r.undone(ctx, i, err)
}

func (r *run) undone(ctx context.Context, i int, err error) error {
	k := &r.rec.Steps[i]
	k.Running = false
	k.UndoError = errorText(err)
	if err != nil {
		return r.become(ctx, i, StepCompensationFailed)
	}
	k.Unknown = false
	return r.become(ctx, i, StepCompensated)
}
