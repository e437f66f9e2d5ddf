// SPDX-License-Identifier: Apache-2.0

package sagas

import (
	"context"
	"fmt"
)

// HandOff marks the step under way as handed off to a substitute, for a kill (H-21). Its runner must be dead or stopped
// before: it holds the saga's lock until then. Resume goes on with the saga as after a crash: the step is made again only
// if it is idempotent.
func (o *Orchestrator) HandOff(ctx context.Context, id, substitute string) (Record, error) {
	if !Identifier(substitute) {
		return Record{}, fmt.Errorf("%w: substitute %.80q is no identifier", ErrInvalid, substitute)
	}
	return o.reopen(ctx, id, func(r *run) error {
		if r.rec.Agent == substitute {
			return fmt.Errorf("%w: saga %s: agent %s can't stand in for itself", ErrInvalid, id, substitute)
		}
		r.rec.HandoffAgent = substitute
		for i := range r.rec.Steps {
			if r.rec.Steps[i].State != StepExecuting || r.rec.State != Executing {
				continue
			}
			if err := r.become(ctx, i, StepHandedOff); err != nil {
				return err
			}
		}
		return r.flush(ctx)
	})
}

// Abort undoes a saga that nobody runs any more: the step under way too, though nobody knows whether it happened (H-21,
// without a substitute), and then the others as after a failure. A saga at its end stays as it is.
func (o *Orchestrator) Abort(ctx context.Context, id string, steps []Step) (Record, error) {
	return o.reopen(ctx, id, func(r *run) error {
		if err := r.match(steps); err != nil {
			return err
		}
		if r.rec.State == Pending {
			if err := r.move(Executing); err != nil {
				return err
			}
		}
		for i := range r.rec.Steps {
			k := &r.rec.Steps[i]
			if !k.inFlight() || k.Running || k.Unknown || k.Undoing {
				continue
			}
			// Between two attempts, of which the last one said that it didn't happen.
			if err := r.fail(ctx, i, nil); err != nil {
				return err
			}
		}
		return r.compensate(ctx)
	})
}
