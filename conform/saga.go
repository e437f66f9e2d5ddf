// SPDX-License-Identifier: Apache-2.0

package conform

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"

	"agentrun/sagas"
)

// sagaAnswer lists steps by their index, each list in the order it happened: committed also holds those undone later, failed the one
// that failed for good and then those whose undo failed.
type sagaAnswer struct {
	State       sagas.State `json:"state"`
	Committed   []int       `json:"committed"`
	Compensated []int       `json:"compensated"`
	Failed      []int       `json:"failed"`
}

// saga runs the steps by the orchestrator's own defaults (three attempts), but without the pauses between them.
func saga(in json.RawMessage) (any, error) {
	f := readFields("saga", in)
	raws := f.list("steps", true)
	if len(raws) > sagas.MaxSteps {
		return nil, fault(TooMany, "saga: %d steps, at most %d", len(raws), sagas.MaxSteps)
	}
	var s sagas.Saga
	for i, raw := range raws {
		step, err := sagaStep(i, raw)
		if err != nil {
			return nil, err
		}
		s.Steps = append(s.Steps, step)
	}
	if err := f.done(); err != nil {
		return nil, err
	}
	a := sagaAnswer{Committed: []int{}, Compensated: []int{}, Failed: []int{}}
	o, err := sagas.New(sagas.Options{Journal: sagas.NewMemory(), Now: began, Progress: a.note})
	if err != nil {
		return nil, err
	}
	rec, err := o.Run(context.Background(), s)
	if errors.Is(err, sagas.ErrInvalid) {
		return nil, fault(InvalidValue, "saga: %v", err)
	}
	a.State = rec.State
	return a, err
}

func (a *sagaAnswer) note(t sagas.Transition) {
	i, err := strconv.Atoi(t.StepID)
	if err != nil {
		return
	}
	switch t.State {
	case sagas.StepCommitted:
		if !t.Undo { // else it is the beginning of its undo
			a.Committed = append(a.Committed, i)
		}
	case sagas.StepCompensated:
		a.Compensated = append(a.Compensated, i)
	case sagas.StepFailed, sagas.StepCompensationFailed:
		a.Failed = append(a.Failed, i)
	}
}

func sagaStep(i int, raw json.RawMessage) (sagas.Step, error) {
	f := readFields(fmt.Sprintf("saga: step %d", i), raw)
	fail, undo := f.number("fail"), f.text("undo")
	if err := f.done(); err != nil {
		return sagas.Step{}, err
	}
	if fail < 0 || fail != math.Trunc(fail) && !math.IsNaN(fail) {
		return sagas.Step{}, fault(InvalidValue, "%s: fail is no number of times", f.where)
	}
	calls := 0.0
	s := sagas.Step{ID: strconv.Itoa(i), RetryDelay: sagas.None, Execute: func(context.Context, sagas.Call) error {
		calls++
		if calls > fail {
			return nil
		}
		return errors.New("fails as the case says") // also at every call if fail is no number
	}}
	switch undo {
	case "ok":
		s.Undo = func(context.Context, sagas.Call) error { return nil }
	case "fail":
		s.Undo = func(context.Context, sagas.Call) error { return errors.New("fails as the case says") }
	case "none":
	default:
		return sagas.Step{}, fault(InvalidValue, "%s: undo %.64q is none of ok, fail, none", f.where, undo)
	}
	return s, nil
}
