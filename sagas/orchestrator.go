// SPDX-License-Identifier: Apache-2.0

package sagas

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"agentrun/store"
)

// DefaultGrace is how long a step may take to stop when told.
const DefaultGrace = 5 * time.Second

// Auditor is told of every transition of a step: before the call if the transition begins one, before it is journaled if
// it is an outcome. An error stops the saga. After a crash some transitions come again; none is left out.
type Auditor interface {
	SagaTransition(ctx context.Context, t Transition) error
}

// Options are an Orchestrator's.
type Options struct {
	Journal Journal          // required
	Now     func() time.Time // required
	Audit   Auditor          // nil: nobody is told
	// Progress is called for every transition once it is in the journal. It must not block. nil: nobody is told.
	Progress func(Transition)
	Grace    time.Duration // 0: DefaultGrace
}

// Orchestrator runs sagas. Safe for concurrent use.
type Orchestrator struct{ opt Options }

// New checks the options.
func New(opt Options) (*Orchestrator, error) {
	if opt.Journal == nil || opt.Now == nil || opt.Grace < 0 {
		return nil, fmt.Errorf("%w: options need a journal, a clock and no negative grace", ErrInvalid)
	}
	if opt.Grace == 0 {
		opt.Grace = DefaultGrace
	}
	return &Orchestrator{opt}, nil
}

// Run runs a new saga to its end. Without an error, the record's state is Committed, Aborted or Escalated.
func (o *Orchestrator) Run(ctx context.Context, s Saga) (Record, error) {
	if err := s.check(); err != nil {
		return Record{}, err
	}
	if s.ID == "" {
		s.ID = strings.ToLower(rand.Text()[:16])
	}
	lock, err := o.opt.Journal.Lock(s.ID)
	if err != nil {
		return Record{}, err
	}
	defer lock.Unlock()
	now := o.opt.Now().UTC()
	rec := Record{ID: s.ID, Name: s.Name, Agent: s.Agent, Session: s.Session, State: Pending,
		Steps: make([]StepRecord, len(s.Steps)), CreatedAt: now, UpdatedAt: now}
	for i := range s.Steps {
		rec.Steps[i] = StepRecord{ID: s.Steps[i].ID, State: StepPending, Idempotent: s.Steps[i].Idempotent}
	}
	if err := o.opt.Journal.Create(ctx, &rec, s.Definition); err != nil {
		return Record{}, err
	}
	r := &run{o: o, rec: &rec, steps: s.Steps, lock: lock}
	err = r.advance(ctx)
	return rec, err
}

// Resume goes on with a saga whose process died or stopped, and returns at once if it is at its end. steps are those that
// Run was given.
func (o *Orchestrator) Resume(ctx context.Context, id string, steps []Step) (Record, error) {
	return o.reopen(ctx, id, func(r *run) error {
		if err := r.match(steps); err != nil {
			return err
		}
		return r.advance(ctx)
	})
}

// reopen calls fn under the saga's lock, unless the saga is at its end.
func (o *Orchestrator) reopen(ctx context.Context, id string, fn func(*run) error) (Record, error) {
	lock, err := o.opt.Journal.Lock(id)
	if err != nil {
		return Record{}, err
	}
	defer lock.Unlock()
	rec, err := o.opt.Journal.Get(ctx, id)
	if err != nil {
		return Record{}, err
	}
	r := &run{o: o, rec: &rec, lock: lock}
	if err := r.auditAgain(ctx); err != nil {
		return rec, err
	}
	if rec.State.Final() {
		return rec, nil
	}
	err = fn(r)
	return rec, err
}

// run is one process's work on one saga, under the saga's lock.
type run struct {
	o     *Orchestrator
	rec   *Record
	steps []Step
	lock  *store.Lock
	news  []Transition // since the last flush

	lasting context.Context // unstopped's
}

// match refuses steps that aren't those of the record: a saga would go on as another one.
func (r *run) match(steps []Step) error {
	if err := checkSteps(steps); err != nil {
		return err
	}
	r.steps = steps
	same := slices.EqualFunc(steps, r.rec.Steps, func(s Step, k StepRecord) bool { return s.ID == k.ID && s.Idempotent == k.Idempotent })
	if !same {
		return fmt.Errorf("%w: saga %s was begun with other steps", ErrInvalid, r.rec.ID)
	}
	return nil
}

func (r *run) advance(ctx context.Context) error {
	if r.rec.State == Pending {
		if err := r.move(Executing); err != nil {
			return err
		}
	}
	if r.rec.State == Executing {
		return r.execute(ctx)
	}
	return r.compensate(ctx)
}

func (r *run) execute(ctx context.Context) error {
	for i := range r.steps {
		committed, err := r.step(ctx, i)
		if err != nil {
			return err
		}
		if !committed {
			return r.compensate(ctx)
		}
	}
	if err := r.move(Committed); err != nil {
		return err
	}
	return r.flush(ctx)
}

// step brings one step to its end. An error stops the saga; that a step failed is none.
func (r *run) step(ctx context.Context, i int) (committed bool, err error) {
	k, s := &r.rec.Steps[i], &r.steps[i]
	switch k.State {
	case StepCommitted:
		return true, nil
	case StepFailed:
		return false, nil
	}
	if k.Running {
		// Whoever ran this attempt is gone without a word about it.
		k.Running = false
		k.Unknown = true
		if !k.Idempotent {
			return false, r.fail(ctx, i, fmt.Errorf("agentrun ended during attempt %d: %w", k.Attempts, ErrUnknown))
		}
		k.Attempts-- // it wasn't the step that failed
	}
	for k.Attempts <= s.retries() {
		if err := r.pause(ctx, time.Duration(k.Attempts)*s.delay()); err != nil {
			return false, err
		}
		if err := r.begin(ctx, i); err != nil {
			return false, err
		}
		callErr := r.effect(ctx, i, s.Execute, false)
		if callErr == nil {
			k.Running, k.Unknown, k.Error = false, false, ""
			return true, r.become(ctx, i, StepCommitted)
		}
		k.Running, k.Error, k.EndedAt = false, errorText(callErr), r.o.opt.Now().UTC()
		r.rec.UpdatedAt = k.EndedAt
		if errors.Is(callErr, ErrUnknown) {
			k.Unknown = true
			if !k.Idempotent {
				return false, r.fail(ctx, i, callErr)
			}
		}
		if err := ctx.Err(); err != nil {
			return false, errors.Join(err, r.flush(ctx))
		}
	}
	return false, r.fail(ctx, i, nil)
}

// pause waits between attempts. What is known goes into the journal first.
func (r *run) pause(ctx context.Context, d time.Duration) error {
	if d > 0 {
		if err := r.flush(ctx); err != nil {
			return err
		}
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	if err := ctx.Err(); err != nil {
		return errors.Join(err, r.flush(ctx))
	}
	return nil
}

// begin says in the audit and in the journal that an attempt is made. If either refuses, it isn't.
func (r *run) begin(ctx context.Context, i int) error {
	k := &r.rec.Steps[i]
	before := *k
	if k.State != StepExecuting {
		next, err := k.State.To(StepExecuting)
		if err != nil {
			return err
		}
		k.State = next
	}
	k.Attempts++
	k.Running, k.Error, k.StartedAt, k.EndedAt = true, "", r.o.opt.Now().UTC(), time.Time{}
	t := r.transition(i, k.StartedAt)
	if err := r.audit(ctx, t); err != nil {
		*k = before
		return errors.Join(err, r.flush(ctx))
	}
	r.tell(t)
	return r.flush(ctx)
}

func (r *run) fail(ctx context.Context, i int, err error) error {
	if err != nil {
		r.rec.Steps[i].Error = errorText(err)
	}
	return r.become(ctx, i, StepFailed)
}

// become records an outcome. It has happened: the journal gets it even if the audit refuses it, and then the saga stops.
func (r *run) become(ctx context.Context, i int, to StepState) error {
	k := &r.rec.Steps[i]
	next, err := k.State.To(to)
	if err != nil {
		return err
	}
	k.State, k.EndedAt = next, r.o.opt.Now().UTC()
	t := r.transition(i, k.EndedAt)
	r.tell(t)
	if err := r.audit(ctx, t); err != nil {
		r.rec.Unaudited = append(r.rec.Unaudited, t)
		return errors.Join(err, r.flush(ctx))
	}
	return nil
}

func (r *run) transition(i int, at time.Time) Transition {
	r.rec.UpdatedAt = at
	k := &r.rec.Steps[i]
	t := Transition{Agent: r.rec.Doer(), SagaID: r.rec.ID, StepID: k.ID, State: k.State, AttemptCount: k.Attempts,
		Compensated: k.State == StepCompensated, Undo: k.Undoing, Error: k.Error, At: at}
	if k.UndoError != "" {
		t.Error = k.UndoError
	}
	return t
}

func (r *run) audit(ctx context.Context, t Transition) error {
	if r.o.opt.Audit == nil {
		return nil
	}
	if err := r.o.opt.Audit.SagaTransition(r.unstopped(ctx), t); err != nil {
		return fmt.Errorf("saga %s, step %s: audit: %w", t.SagaID, t.StepID, err)
	}
	return nil
}

func (r *run) auditAgain(ctx context.Context) error {
	if len(r.rec.Unaudited) == 0 {
		return nil
	}
	for _, t := range r.rec.Unaudited {
		if err := r.audit(ctx, t); err != nil {
			return err
		}
	}
	r.rec.Unaudited = nil
	return r.flush(ctx)
}

func (r *run) move(to State) error {
	next, err := r.rec.State.To(to)
	if err != nil {
		return fmt.Errorf("saga %s: %w", r.rec.ID, err)
	}
	r.rec.State = next
	return nil
}

// flush writes the record. Outcomes wait for the beginning of the next call or for the end: until then a crash loses only
// what nobody was told, and half of the writes are saved. An ended context doesn't stop it: what happened has happened.
func (r *run) flush(ctx context.Context) error {
	if err := r.o.opt.Journal.Put(r.unstopped(ctx), r.rec); err != nil {
		return fmt.Errorf("saga %s: journal: %w", r.rec.ID, err)
	}
	for _, t := range r.news {
		r.o.opt.Progress(t)
	}
	r.news = r.news[:0]
	return nil
}

// tell keeps t for Progress until the journal has it.
func (r *run) tell(t Transition) {
	if r.o.opt.Progress != nil {
		r.news = append(r.news, t)
	}
}

// unstopped is ctx for what has to be written down though it has ended.
func (r *run) unstopped(ctx context.Context) context.Context {
	if ctx.Done() == nil {
		return ctx
	}
	if r.lasting == nil {
		r.lasting = context.WithoutCancel(ctx)
	}
	return r.lasting
}

// effect is the one place where a step is called.
func (r *run) effect(ctx context.Context, i int, fn Func, undo bool) error {
	s := &r.steps[i]
	if s.Direct {
		return direct(ctx, fn, r.call(i, undo))
	}
	return contained(ctx, fn, r.call(i, undo), s.timeout(), r.o.opt.Grace)
}

func (r *run) call(i int, undo bool) *Call {
	k := &r.rec.Steps[i]
	c := &Call{SagaID: r.rec.ID, StepID: k.ID, Agent: r.rec.Doer(), Session: r.rec.Session, Key: r.rec.ID + "/" + k.ID, Attempt: k.Attempts, Undo: undo, Lock: r.lock.File()}
	if undo {
		c.Key += "/undo"
		c.Attempt = 1
	}
	return c
}
