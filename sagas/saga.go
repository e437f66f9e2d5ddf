// SPDX-License-Identifier: Apache-2.0

package sagas

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"agentrun/rings"
)

// Defaults of H-19 and limits.
const (
	DefaultMaxRetries  = 2 // so three attempts
	DefaultRetryDelay  = time.Second
	DefaultStepTimeout = 300 * time.Second

	// None says zero where the zero value says default: Step.MaxRetries, Step.RetryDelay.
	None = -1

	MaxSteps       = 256 // the record is written whole at each transition
	MaxRetries     = 100
	MaxRetryDelay  = time.Hour
	MaxStepTimeout = 24 * time.Hour
	maxErrorBytes  = 1000
)

var (
	// ErrUnknown marks the error of a call of which nobody knows whether it happened. Return it wrapped.
	ErrUnknown = errors.New("outcome unknown")
	// ErrNotBegun marks the error of an undo that nothing was done for, because it may not be made now: it isn't used up, and
	// the saga waits for Resume. Return it wrapped.
	ErrNotBegun = errors.New("not begun")
	// ErrBusy is a saga that somebody runs at this moment.
	ErrBusy = errors.New("saga is being run")
	// ErrExists is an id that was used before.
	ErrExists = errors.New("saga exists")
	// ErrNotFound is an id that nobody knows.
	ErrNotFound = errors.New("no such saga")
	// ErrInvalid is a saga that can't be run as it is written.
	ErrInvalid = errors.New("invalid saga")
)

// Func is what a step does. It must end soon after its context: it has Options.Grace, then it is left behind.
type Func func(ctx context.Context, call Call) error

// Call says which call of a step this is.
type Call struct {
	SagaID, StepID string
	Agent, Session string // whose work the saga is by now, and its session
	// Key is the idempotency key: the same in every attempt and after every crash, another one for the undo.
	Key     string
	Attempt int // from 1
	Undo    bool
	// Lock, if not nil, is to be handed to a child process (ExtraFiles): nobody else runs the saga until that is dead.
	Lock *os.File
}

// Step is one piece of work.
type Step struct {
	ID      string // an identifier (H-29), unique in the saga
	Execute Func
	Undo    Func // nil: can't be undone
	// Idempotent declares that Execute and Undo may be called again with the same key though nobody knows how the call
	// before ended.
	Idempotent bool
	// Direct calls Execute and Undo on the orchestrator's own goroutine, which saves a microsecond: for Go code that can't
	// block. Panics are contained; hangs and Goexit are not, and the time limit isn't enforced.
	Direct     bool
	MaxRetries int           // after the first attempt. 0: DefaultMaxRetries; None: no retry
	RetryDelay time.Duration // times the number of failed attempts. 0: DefaultRetryDelay; None: no delay
	Timeout    time.Duration // of each attempt and of the undo. 0: DefaultStepTimeout
}

func (s *Step) retries() int {
	switch s.MaxRetries {
	case 0:
		return DefaultMaxRetries
	case None:
		return 0
	}
	return s.MaxRetries
}

func (s *Step) delay() time.Duration {
	switch s.RetryDelay {
	case 0:
		return DefaultRetryDelay
	case None:
		return 0
	}
	return s.RetryDelay
}

func (s *Step) timeout() time.Duration {
	if s.Timeout == 0 {
		return DefaultStepTimeout
	}
	return s.Timeout
}

func (s *Step) check() error {
	switch {
	case !Identifier(s.ID):
		return fmt.Errorf("%w: step id %.80q is no identifier", ErrInvalid, s.ID)
	case s.Execute == nil:
		return fmt.Errorf("%w: step %s does nothing", ErrInvalid, s.ID)
	case s.MaxRetries < None || s.MaxRetries > MaxRetries:
		return fmt.Errorf("%w: step %s: %d retries", ErrInvalid, s.ID, s.MaxRetries)
	case s.RetryDelay < None || s.RetryDelay > MaxRetryDelay:
		return fmt.Errorf("%w: step %s: retry delay %v", ErrInvalid, s.ID, s.RetryDelay)
	case s.Timeout < 0 || s.Timeout > MaxStepTimeout:
		return fmt.Errorf("%w: step %s: time limit %v", ErrInvalid, s.ID, s.Timeout)
	}
	return nil
}

// Saga is what Run is asked for.
type Saga struct {
	ID             string // an identifier (H-29) that no saga had before; empty: a random one
	Name           string
	Agent, Session string // whose work it is; may be empty
	Steps          []Step
	// Definition is kept with the record, for whoever has to make the steps again after a crash. Not interpreted.
	Definition []byte
}

func (s *Saga) check() error {
	if s.ID != "" && !Identifier(s.ID) {
		return fmt.Errorf("%w: id %.80q is no identifier", ErrInvalid, s.ID)
	}
	return checkSteps(s.Steps)
}

func checkSteps(steps []Step) error {
	if len(steps) == 0 || len(steps) > MaxSteps {
		return fmt.Errorf("%w: %d steps, want 1 to %d", ErrInvalid, len(steps), MaxSteps)
	}
	for i := range steps {
		if err := steps[i].check(); err != nil {
			return err
		}
		for j := range i {
			if steps[j].ID == steps[i].ID {
				return fmt.Errorf("%w: two steps %s", ErrInvalid, steps[i].ID)
			}
		}
	}
	return nil
}

// Identifier tells whether s is an identifier (H-29): letters and digits, inside also . _ : and -, at most 256 bytes.
func Identifier(s string) bool { return rings.CheckActionID(s) == nil }
