// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"agentrun/rings"
	"agentrun/sagas"
	"agentrun/store"
)

// steps is what a kill does about the saga steps that the agent was at (H-21): it hands them to the substitute, or has them
// undone. Another live run of the agent may be at a step, too; that is for its own kill. A step of a saga without an agent is its saga's, and
// counts where an operator has killed it: it would be tried again.
func (c *Control) steps(ctx context.Context, _ rings.StepOutcome, to string) (done []string, err error) {
	ordered := strings.HasPrefix(orderOf(ctx).By, "uid:")
	if c.adm.Agent == "" && !(ordered && strings.HasPrefix(c.opt.Name, sagaPrefix)) {
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
		if rec.Doer() != c.adm.Agent || len(steps) == 0 || rec.Agent == "" && c.opt.Name != sagaPrefix+rec.ID {
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

// sagaPrefix is what the names of the runs begin with that are steps.
const sagaPrefix = "saga-"

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
	if c.opt.Name != sagaPrefix+rec.ID {
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
