// SPDX-License-Identifier: Apache-2.0

package conform

import (
	"context"
	"errors"
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
func saga(f *fields) (any, error) {
	var s sagas.Saga
	f.each("steps", "step", func(i int, g *fields) { s.Steps = append(s.Steps, sagaStep(i, g)) })
	if n := len(s.Steps); n > sagas.MaxSteps {
		f.refuse(TooMany, "saga: %d steps, at most %d", n, sagas.MaxSteps)
	}
	if f.done() != nil {
		return nil, nil // no step of a case with a mistake is taken
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

func sagaStep(i int, f *fields) sagas.Step {
	fail, undo := f.number("fail"), f.text("undo")
	if fail < 0 || fail != math.Trunc(fail) && !math.IsNaN(fail) {
		f.refuse(InvalidValue, "%s: fail is no number of times", f.where)
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
		f.refuse(InvalidValue, "%s: undo %.64q is none of ok, fail, none", f.where, undo)
	}
	return s
}
