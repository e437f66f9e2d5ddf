// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// killRun is one kill on its way.
type killRun struct {
	k   *KillSwitch
	ctx context.Context
	res KillResult
}

func (r *killRun) describe(kc KillContext) {
	r.res.AgentID = clip(r.k.opt.Agent)
	if kc.Action != nil {
		action := clip(*kc.Action)
		r.res.Action = &action
	}
	r.res.Reason = kc.Reason
	if !kc.Reason.Valid() {
		r.res.Reason = KillManual
		r.fail(StageReason, "", fmt.Errorf("%.256q is none of %v", kc.Reason, KillReasons()))
	}
}

func (r *killRun) end(kc KillContext, reg killRegistration) {
	hooks := r.k.opt.Hooks
	kc.Action, kc.Reason = r.res.Action, r.res.Reason
	freeze := r.freezing(hooks.Freeze, len(reg.handlers)+len(reg.compensations) > 0)
	if hooks.Intent != nil {
		if err := r.hook(func(ctx context.Context) error { return hooks.Intent(ctx, kc) }); err != nil {
			r.fail(StageIntent, "", err)
		}
	}
	r.res.CallbacksExecuted = r.runAll(StageHandler, reg.handlers)
	undos := r.undos()
	if len(undos) > 0 {
		freeze.now(r)
	}
	r.res.CompensationsExecuted = r.runAll(StageCompensation, append(slices.Clip(reg.compensations), undos...))
	r.handOff(reg.substitutes)
	freeze.end(r)
	r.killed(r.processes())
}

// headStart is what a kill without callbacks has to come to its processes, before they are frozen.
const headStart = 2 * time.Millisecond

// freezing stops the agent: at once if callbacks come, which may hang (H-21). Without any only if the order takes long to be on record,
// or the steps to be handed over: to freeze a thousand processes takes half as long as to kill them.
type freezing struct {
	once  func() stopped
	timer *time.Timer // nil: it was at once
	told  bool
}

// stopped is what became of a freeze, and of the kill at once that one brings that failed.
type stopped struct {
	err     error
	killed  int
	killErr error
}

func (r *killRun) freezing(hook func(context.Context) error, callbacks bool) *freezing {
	f := &freezing{once: sync.OnceValue(func() (s stopped) {
		if s.err = r.hook(hook); s.err != nil {
			s.killed, s.killErr = r.processes()
		}
		return s
	})}
	if callbacks || hook == nil {
		f.now(r)
	} else {
		f.timer = time.AfterFunc(headStart, func() { f.once() })
	}
	return f
}

// now returns when the agent is frozen, or else killed.
func (f *freezing) now(r *killRun) {
	if f.timer != nil {
		f.timer.Stop()
	}
	if s := f.once(); s.err != nil && !f.told {
		f.told = true
		r.fail(StageFreeze, "", s.err)
		r.killed(s.killed, s.killErr)
	}
}

// end waits for a freeze that has begun, and lets none begin.
func (f *freezing) end(r *killRun) {
	if f.timer != nil && !f.timer.Stop() {
		f.now(r)
	}
}

// undos asks for what undoes the agent's calls.
func (r *killRun) undos() []Compensation {
	if r.k.opt.Hooks.Undos == nil {
		return nil
	}
	list, err := contain(r.ctx, hookLimit, r.k.opt.Hooks.Undos)
	if over := len(list) - maxCallbacks; over > 0 {
		list, err = list[:maxCallbacks], errors.Join(err, fmt.Errorf("%d calls are left to be undone by hand", over))
	}
	if err != nil {
		r.fail(StageCompensation, "undo", err)
	}
	return list
}

// runAll runs callbacks one after the other and returns how many it started. One that failed or hung has been executed
// too: what it had done by then can't be known, and the errors say which it was.
func (r *killRun) runAll(stage KillStage, callbacks []Compensation) int {
	for _, c := range callbacks {
		_, err := contain(r.ctx, r.k.opt.Limit, func(ctx context.Context) (struct{}, error) { return struct{}{}, c.Run(ctx) })
		if err != nil {
			r.fail(stage, c.Name, err)
		}
	}
	return len(callbacks)
}

func (r *killRun) handOff(candidates []string) {
	r.res.HandoffAgentID = r.k.substitute(candidates)
	r.res.StepsOutcome = Compensated
	to := ""
	if r.res.HandoffAgentID != nil {
		r.res.StepsOutcome, to = HandedOff, *r.res.HandoffAgentID
	}
	steps := r.k.opt.Hooks.Steps
	if steps == nil {
		return
	}
	var err error
	r.res.Steps, err = contain(r.ctx, hookLimit, func(ctx context.Context) ([]string, error) {
		return steps(ctx, r.res.StepsOutcome, to)
	})
	if err != nil {
		r.fail(StageSteps, "", err)
	}
}

// processes kills them, and changes nothing of r.
func (r *killRun) processes() (int, error) {
	if r.k.opt.Hooks.Processes == nil {
		return 0, errNoHook
	}
	return contain(r.ctx, hookLimit, r.k.opt.Hooks.Processes)
}

func (r *killRun) killed(n int, err error) {
	r.res.ProcessesKilled += max(0, n)
	r.res.ProcessesDead = err == nil
	if err != nil {
		r.fail(StageProcesses, "", err)
	}
}

var errNoHook = errors.New("not set up")

func (r *killRun) hook(fn func(context.Context) error) error {
	if fn == nil {
		return errNoHook
	}
	_, err := contain(r.ctx, hookLimit, func(ctx context.Context) (struct{}, error) { return struct{}{}, fn(ctx) })
	return err
}

func (r *killRun) fail(stage KillStage, name string, err error) {
	r.res.Errors = append(slices.Clip(r.res.Errors), KillError{Stage: stage, Name: name, Message: clip(err.Error())})
}

// ErrHung is what a callback or hook gives that had not returned when its time was over.
var ErrHung = errors.New("hung: not back within its time limit")

// contain runs fn in a goroutine of its own, for at most limit. A panic, runtime.Goexit and hanging become errors.
// What fn does after its time is over changes nothing here: its answer goes into a channel nobody reads.
func contain[T any](ctx context.Context, limit time.Duration, fn func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	type answer struct {
		value T
		err   error
	}
	done := make(chan answer, 1)
	go func() {
		a := answer{err: errors.New("ended its goroutine")}
		defer func() {
			if p := recover(); p != nil {
				a = answer{err: errors.New("panic: " + describePanic(p))}
			}
			done <- a
		}()
		value, err := fn(ctx)
		a = answer{value, err}
	}()
	select {
	case a := <-done:
		return a.value, a.err
	case <-ctx.Done():
	}
	// Both may be ready in the same instant; an answer in time counts, however the select chose.
	select {
	case a := <-done:
		return a.value, a.err
	default:
		var none T
		return none, fmt.Errorf("%w of %v", ErrHung, limit)
	}
}

// describePanic says what p is. Its own String or Error method may panic in turn: fmt contains that.
func describePanic(p any) string { return fmt.Sprintf("%.1024v", p) }
