// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"agentrun/control"
	"agentrun/hypervisor"
	"agentrun/runtime"
)

// A pause is a freeze that gives memory back, and the weakest: what needs the run running ends it. It holds beside other freezes, and
// ends none of them.

// giveBackTime is for the kernel to give back a paused run's memory. A pause that ends meanwhile ends it too.
const giveBackTime = 2 * time.Second

// Causes of a pause and of its end, as events, lists and the audit have them.
const (
	forOperator = "operator" // who asked for it
	forIdle     = "idle"     // the run did nothing for as long as it was started with
	forExec     = "exec"
	forCopy     = "copy"
	forSignal   = "signal"
	forPort     = "port"   // somebody connects to one that is published
	forFreeze   = "freeze" // of an operator's, which no pause ends
	forThaw     = "thaw"
	forCall     = "call" // of the run's own, made just before it stood still
)

// itself is whom the record names where nobody asked.
const itself = "agentrun"

// errNotIdle keeps the idle rule from pausing.
var errNotIdle = errors.New("the run is not idle any more")

// Pause implements control.Controller.
func (s *Runs) Pause(ctx context.Context, id, by string) (control.Pause, error) {
	v, err := s.find(id)
	if err != nil {
		return control.Pause{}, err
	}
	p, err := v.pause(ctx, by, forOperator, func() bool { return v.copies.Load() == 0 })
	if errors.Is(err, errNotIdle) {
		err = copiedInto(id)
	}
	return p, err
}

// copiedInto refuses a pause beside a copy into the run, and the copy beside a pause that it can't end: whoever looks at what stands still,
// as a snapshot does, would have half a file.
func copiedInto(id string) error {
	return &control.Error{
		Status: 409, Code: control.CodeConflict, Message: "run " + id + " is not paused while files are copied into it", Hint: "the one when the other has ended",
	}
}

// paused is a pause while it holds.
type paused struct {
	control.Pause                 // GivenBack by who has the run's mu
	ctx           context.Context //nolint:containedctx // ends with it
	end           func()
}

// pause has the run stand still and gives its memory back. It is refused if still doesn't hold any more when the processes do stand still,
// or if it can't be put on record: then they go on.
//
// Memory is given back when freezing is let go: whoever ends the pause doesn't wait for the kernel, but ends that too.
func (v *Run) pause(ctx context.Context, by, cause string, still func() bool) (control.Pause, error) {
	p, run, err := v.beginPause(ctx, by, cause, still)
	if err != nil {
		return control.Pause{}, err
	}
	bounded, cancel := context.WithTimeout(p.ctx, giveBackTime)
	defer cancel()
	given, err := run.GiveBack(bounded)
	if err != nil && !errors.Is(err, runtime.ErrEnded) {
		v.all.warn(fmt.Errorf("run %s: %w", v.Plan.ID, err)) // it stands still all the same
	}
	v.mu.Lock()
	p.GivenBack = given
	told := p.Pause
	v.mu.Unlock()
	v.event(control.EventPaused, map[string]string{"by": by, "cause": cause, "given_back_bytes": strconv.FormatInt(given, 10)})
	return told, nil
}

func (v *Run) beginPause(ctx context.Context, by, cause string, still func() bool) (*paused, *runtime.Live, error) {
	v.freezing.Lock()
	defer v.freezing.Unlock()
	run, err := v.process()
	if err != nil {
		return nil, nil, err
	}
	if err := alive(run); err != nil {
		return nil, nil, err
	}
	if v.frozenBy&byPause != 0 {
		return nil, nil, &control.Error{
			Status: 409, Code: control.CodeConflict, Message: "run " + v.Plan.ID + " is paused already", Hint: "agentrun inspect shows since when and by whom",
		}
	}
	if v.frozenBy != 0 { // a freeze that failed would have it go on
		v.setHolders(v.frozenBy | byPause)
	} else if err := v.hold(ctx, byPause); err != nil {
		return nil, nil, pauseError(err)
	}
	if !still() {
		err = errNotIdle
	} else {
		err = v.Control.RecordPause(hypervisor.PauseOrder{Paused: true, By: by, Cause: cause})
	}
	if err != nil {
		back, cancel := context.WithTimeout(context.WithoutCancel(ctx), wakeTime)
		defer cancel()
		if terr := v.letGo(back, byPause); terr != nil && !errors.Is(terr, errStillHeld) {
			err = errors.Join(err, terr)
		}
		return nil, nil, err
	}
	p := &paused{Pause: control.Pause{Since: time.Now().UTC(), By: by, Cause: cause}}
	p.ctx, p.end = context.WithCancel(context.Background())
	v.mu.Lock()
	v.paused = p
	v.mu.Unlock()
	return p, run, nil
}

func alive(run *runtime.Live) error {
	select {
	case <-run.Over():
		return endedError(runtime.ErrEnded)
	default:
		return nil
	}
}

// wakeTime is for processes to go on that were let go.
const wakeTime = 5 * time.Second

func pauseError(err error) error {
	if errors.Is(err, runtime.ErrNoCgroup) {
		return &control.Error{Status: 409, Code: control.CodeConflict, Message: err.Error(), Hint: "docs/rootless.md says how to delegate one"}
	}
	return endedError(err)
}

// Resume implements control.Controller.
func (s *Runs) Resume(ctx context.Context, id, by string) error {
	v, err := s.find(id)
	if err != nil {
		return err
	}
	v.freezing.Lock()
	defer v.freezing.Unlock()
	if _, err := v.process(); err != nil {
		return err
	}
	if v.frozenBy&byPause == 0 {
		hint := "agentrun ps --state paused lists those that are"
		if v.frozenBy&byOperator != 0 {
			hint = "it is frozen; agentrun thaw lets it go on"
		}
		return &control.Error{Status: 409, Code: control.CodeConflict, Message: "run " + id + " is not paused", Hint: hint}
	}
	return v.endPause(ctx, by, forOperator)
}

// endPause is on record before the run goes on. Whoever has freezing calls it.
func (v *Run) endPause(ctx context.Context, by, cause string) error {
	run, err := v.process()
	if err != nil {
		return err
	}
	if err := alive(run); err != nil {
		return err
	}
	if err := v.Control.RecordPause(hypervisor.PauseOrder{By: by, Cause: cause}); err != nil {
		return err
	}
	err = v.letGo(ctx, byPause)
	if err == nil || errors.Is(err, errStillHeld) {
		v.event(control.EventUnpaused, map[string]string{"by": by, "cause": cause})
	}
	if errors.Is(err, errStillHeld) {
		return v.heldError()
	}
	return endedError(err)
}

// wake lets a run go on that is only paused, for something that needs it running, and keeps the idle rule from pausing it until done is
// called. One that an operator or a safety loop has frozen stays so: what is done then tells of it. It counts before it looks, and the
// idle rule looks at the count when the processes stand still: one of the two sees the other.
func (v *Run) wake(ctx context.Context, by, cause string) (done func(), err error) {
	v.uses.Add(1)
	done = func() { v.uses.Add(-1) }
	v.freezing.Lock()
	defer v.freezing.Unlock()
	if v.frozenBy == byPause {
		err = v.endPause(ctx, by, cause)
	}
	if err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// wakeForCall has a run go on that was paused when it was idle and had just made a call.
func (v *Run) wakeForCall() {
	v.freezing.Lock()
	defer v.freezing.Unlock()
	if v.frozenBy != byPause {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), wakeTime)
	defer cancel()
	if err := v.endPause(ctx, itself, forCall); err != nil {
		v.all.warn(fmt.Errorf("run %s: %w", v.Plan.ID, err))
	}
}

// idleRule tells when a run has done next to nothing for so long: at most a two-hundredth of a processor, and no call. Whatever is more
// begins the time anew.
type idleRule struct {
	after time.Duration
	since time.Time // zero: not begun
	used  time.Duration
	made  int64
}

// idleShare of one processor is next to nothing.
const idleShare = 200

// look is to be called some times in each period, with the processor time that the run has used and the calls that it has made. A run
// that is busy otherwise is not idle.
func (r *idleRule) look(now time.Time, used time.Duration, made int64, busy bool) bool {
	if r.since.IsZero() || busy || made != r.made || used-r.used > r.after/idleShare {
		r.since, r.used, r.made = now, used, made
		return false
	}
	return now.Sub(r.since) >= r.after
}

// LeastIdle is the least that a run may be idle before it is paused.
const LeastIdle = time.Second

// followIdle pauses the run when it is idle, until it is over, and lets it go on when a call of its own came just before it stood still:
// nobody else would. A pause that fails is tried again after the same time.
func (v *Run) followIdle(run *runtime.Live) {
	tick := time.NewTicker(min(v.idleAfter/10, 10*time.Second))
	defer tick.Stop()
	rule := idleRule{after: v.idleAfter}
	for {
		var now time.Time
		select {
		case <-run.Over():
			return
		case now = <-tick.C:
		}
		used, err := run.Used()
		if err != nil {
			continue // the next look sees that it is over, or tries again
		}
		made, open := v.Control.Calls()
		inUse := func() bool { return v.uses.Load() > 0 || run.Joined() > 0 || v.ports.open() > 0 }
		v.mu.Lock()
		frozen, own := v.frozenBy, v.paused != nil && v.paused.Cause == forIdle
		v.mu.Unlock()
		if own && made != rule.made {
			v.wakeForCall()
		}
		if !rule.look(now, used, made, frozen != 0 || open > 0 || inUse()) {
			continue
		}
		if run.Wants() {
			rule.since = time.Time{}
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), wakeTime)
		_, err = v.pause(ctx, itself, forIdle, func() bool {
			made, open := v.Control.Calls()
			return made == rule.made && open == 0 && !inUse()
		})
		cancel()
		if err != nil && !errors.Is(err, errNotIdle) && alive(run) == nil {
			v.all.warn(fmt.Errorf("run %s is idle and can't be paused: %w", v.Plan.ID, err))
		}
		rule.since = time.Time{}
	}
}
