// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"errors"
	"fmt"

	"agentrun/control"
	"agentrun/hypervisor"
)

// holder is who has frozen a run. It goes on when nobody holds it any more, and what needs it running ends a
// pause that nobody else holds with (Run.wake).
type holder uint8

const (
	byOperator holder = 1 << iota
	bySafety
	byPause
)

// errStillHeld is a thaw that somebody else's freeze outlasts.
var errStillHeld = errors.New("somebody else has frozen the run")

// freeze has the run stand still for a holder. The holder is noted when the processes do stand still: a
// freeze that failed has none, and nobody has to take it back.
func (v *Run) freeze(ctx context.Context, by holder) error {
	v.freezing.Lock()
	defer v.freezing.Unlock()
	return v.hold(ctx, by)
}

// hold is freeze of whoever has freezing.
func (v *Run) hold(ctx context.Context, by holder) error {
	run, err := v.process()
	if err != nil {
		return err
	}
	if err := run.Freeze(ctx); err != nil {
		return err
	}
	v.setHolders(v.frozenBy | by)
	return nil
}

func (v *Run) setHolders(by holder) {
	v.mu.Lock()
	before := v.frozenBy
	v.frozenBy = by
	if by&byPause == 0 && v.paused != nil {
		v.paused.end()
		v.paused = nil
	}
	v.mu.Unlock()
	still := by&^byPause != 0
	if v.stands == nil || still == (before&^byPause != 0) {
		return
	}
	if err := v.stands(still); err != nil {
		v.all.warn(fmt.Errorf("run %s: what is known of its sandbox: %w", v.Plan.ID, err))
	}
}

// thaw takes a holder's freeze back. The processes go on with the last holder; before, the error is
// errStillHeld. If the kernel won't let them go on, the holder stays noted, so that another thaw can be
// tried.
func (v *Run) thaw(ctx context.Context, by holder) error {
	v.freezing.Lock()
	defer v.freezing.Unlock()
	return v.letGo(ctx, by)
}

// letGo is thaw of whoever has freezing.
func (v *Run) letGo(ctx context.Context, by holder) error {
	if by == bySafety && v.frozenBy&by == 0 {
		return nil // its stop got no further than the ways out
	}
	run, err := v.process()
	if err != nil {
		return err
	}
	if rest := v.frozenBy &^ by; rest != 0 {
		v.setHolders(rest)
		return errStillHeld
	}
	if err := run.Thaw(ctx); err != nil {
		return err
	}
	v.setHolders(0)
	return nil
}

// Freeze implements control.Controller.
func (s *Runs) Freeze(ctx context.Context, id, by string) error {
	v, err := s.find(id)
	if err != nil {
		return err
	}
	v.freezing.Lock()
	defer v.freezing.Unlock()
	frozen := v.frozenBy&byOperator != 0
	if err := v.hold(ctx, byOperator); err != nil || frozen {
		return endedError(err)
	}
	return v.Control.RecordPause(hypervisor.PauseOrder{Paused: true, By: by, Cause: forFreeze}) // where it fails, the run stays frozen all the same
}

// Thaw implements control.Controller. What the safety loop has stopped goes on by a verification, which is on its record, and by
// nothing else.
func (s *Runs) Thaw(ctx context.Context, id, by string) error {
	v, err := s.find(id)
	if err != nil {
		return err
	}
	v.freezing.Lock()
	defer v.freezing.Unlock()
	if v.frozenBy&byOperator != 0 {
		if err := v.Control.RecordPause(hypervisor.PauseOrder{By: by, Cause: forThaw}); err != nil {
			return err
		}
		v.Control.Thawed()
	}
	err = v.letGo(ctx, byOperator)
	if errors.Is(err, errStillHeld) {
		return v.heldError()
	}
	return endedError(err)
}

// heldError says who holds a run that doesn't go on, the strongest first.
func (v *Run) heldError() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	e := &control.Error{Status: 409, Code: control.CodeConflict, Message: "run " + v.Plan.ID + " is paused", Hint: "agentrun resume lets it go on"}
	switch {
	case v.frozenBy&bySafety != 0:
		e.Message = "the safety loop has stopped the agent of run " + v.Plan.ID
		e.Hint = "agentrun challenges list shows what is to be verified; agentrun challenges unblock releases the agent"
	case v.frozenBy&byOperator != 0:
		e.Message, e.Hint = "run "+v.Plan.ID+" is frozen", "agentrun thaw lets it go on"
	}
	return e
}
