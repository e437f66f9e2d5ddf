// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"agentrun/rings"
	"agentrun/sagas"
	"agentrun/store"
)

// sagaOrdersBucket holds what kills decided about sagas that another process ran at that moment.
const sagaOrdersBucket = "saga-orders"

// SagaOrder is what a kill decided about a saga (H-21). Until it is followed no step of the saga begins (SagaTransition); the
// process that runs it stops, and whoever goes on with it hands it off to Substitute (sagas.Orchestrator.HandOff, then
// Resume), or undoes it if that is empty (Abort). The first step of either ends the order.
type SagaOrder struct {
	Saga       string `json:"saga_id"`
	Substitute string `json:"substitute,omitempty"`
	Run        string `json:"run_id"` // that was killed
}

// SagaOrder returns what was ordered about a saga; ok is false if nothing was, or it was followed.
func (h *Hypervisor) SagaOrder(ctx context.Context, id string) (o SagaOrder, ok bool, err error) {
	err = h.view(ctx, func(tx *store.Tx) error {
		ok, err = store.GetJSON(tx.Bucket(sagaOrdersBucket), id, &o)
		return err
	})
	return o, ok, err
}

// CodeKilled is why a step of a saga doesn't begin whose agent was killed.
const CodeKilled rings.Code = "killed"

func notOrdered(tx *store.Tx, t sagas.Transition) error {
	var o SagaOrder
	ordered, err := store.GetJSON(tx.Bucket(sagaOrdersBucket), t.SagaID, &o)
	if err != nil || !ordered {
		return err
	}
	what := "it is to be undone"
	if o.Substitute != "" {
		what = "agent " + o.Substitute + " takes over"
	}
	return &DeniedError{
		What:     "begin step " + t.StepID + " of saga " + t.SagaID,
		Decision: rings.Decision{Verdict: rings.Deny, Code: CodeKilled, Rule: "H-21", Reason: "agent " + t.Agent + " was killed in run " + o.Run + ": " + what},
		Hint:     "agentrun saga resume " + t.SagaID,
	}
}

// followed ends an order: the saga was handed off, or its undoing begins.
func (h *Hypervisor) followed(ctx context.Context, id string) error {
	if _, ok, err := h.SagaOrder(ctx, id); err != nil || !ok {
		return err
	}
	return h.update(ctx, func(tx *store.Tx) error { return tx.Bucket(sagaOrdersBucket).Delete(id) })
}

// steps is what a kill does about the saga steps that the agent was at (H-21): it hands them to the substitute, or has them
// undone. Another live run of the agent may be at a step, too; that is for its own kill.
func (c *Control) steps(ctx context.Context, _ string, _ rings.StepOutcome, to string) (done []string, err error) {
	if c.adm.Agent == "" {
		return nil, nil
	}
	if _, err := os.Lstat(filepath.Join(c.h.opt.StateDir, stateFile)); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	db, err := c.h.store()
	if err != nil {
		return nil, err
	}
	journal := sagas.NewDurable(db)
	o, err := sagas.New(sagas.Options{Journal: journal, Now: c.h.now, Audit: c.h})
	if err != nil {
		return nil, err
	}
	var errs []error
	err = journal.List(ctx, func(rec sagas.Record) error {
		steps := inFlight(rec)
		if rec.Agent != c.adm.Agent || len(steps) == 0 {
			return nil
		}
		took, err := c.takeOver(ctx, o, journal, rec, to)
		errs = append(errs, err)
		if took {
			done = append(done, steps...)
		}
		return nil
	})
	return done, errors.Join(append(errs, err)...)
}

// inFlight names the steps that a kill finds under way.
func inFlight(rec sagas.Record) (ids []string) {
	if rec.State.Final() {
		return nil
	}
	for _, s := range rec.Steps {
		if s.State == sagas.StepExecuting || s.State == sagas.StepHandedOff {
			ids = append(ids, rec.ID+"/"+s.ID)
		}
	}
	return ids
}

// takeOver deals with one saga. If somebody runs it, and this run is the step, the order is left where that process finds it
// before it begins anything else.
func (c *Control) takeOver(ctx context.Context, o *sagas.Orchestrator, journal *sagas.Durable, rec sagas.Record, to string) (took bool, err error) {
	if to != "" {
		_, err = o.HandOff(ctx, rec.ID, to)
	} else {
		err = c.undo(ctx, journal, rec.ID)
	}
	if !errors.Is(err, sagas.ErrBusy) {
		return err == nil, err
	}
	if c.opt.Name != "saga-"+rec.ID {
		return false, nil
	}
	err = c.h.update(ctx, func(tx *store.Tx) error {
		return store.PutJSON(tx.Bucket(sagaOrdersBucket), rec.ID, SagaOrder{Saga: rec.ID, Substitute: to, Run: c.opt.Run})
	})
	return err == nil, err
}

func (c *Control) undo(ctx context.Context, journal *sagas.Durable, id string) error {
	lock, err := journal.Lock(id)
	if err != nil {
		return err
	}
	lock.Unlock()
	if c.opt.UndoSaga == nil {
		return fmt.Errorf("saga %s: it has to be undone: agentrun saga resume --undo %s", id, id)
	}
	return c.opt.UndoSaga(ctx, id)
}

// startsStep tells whether a transition begins a step's work rather than its undoing.
func startsStep(t sagas.Transition) bool { return t.State == sagas.StepExecuting && !t.Undo }

// followsOrder tells whether a transition is what an order asks for.
func followsOrder(t sagas.Transition) bool {
	return t.Undo || slices.Contains([]sagas.StepState{sagas.StepHandedOff, sagas.StepCompensated, sagas.StepCompensationFailed}, t.State)
}
