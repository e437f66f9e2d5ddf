// SPDX-License-Identifier: Apache-2.0

package sagas

import (
	"errors"
	"fmt"
)

// ErrTransition is a change of state that H-18 doesn't have.
var ErrTransition = errors.New("illegal transition")

// State is where a saga stands (H-18). Names are kept in journals: they may be added to, never changed.
type State uint8

const (
	NoState State = iota // refuses every transition
	Pending
	Executing
	Committed    // all steps done
	Compensating // undoing
	Aborted      // all undone
	Escalated    // something could not be undone, or nobody knows whether it happened: a human has to look
)

// StepState is where a step stands (H-18), with what a kill adds (H-21).
type StepState uint8

const (
	NoStepState StepState = iota // refuses every transition
	StepPending
	StepExecuting // from the first attempt to the end of the last
	StepCommitted
	StepFailed
	StepCompensated
	StepCompensationFailed
	StepHandedOff // its agent was killed, a substitute may go on
)

func (s State) String() string {
	switch s {
	case Pending:
		return "pending"
	case Executing:
		return "executing"
	case Committed:
		return "committed"
	case Compensating:
		return "compensating"
	case Aborted:
		return "aborted"
	case Escalated:
		return "escalated"
	}
	return "invalid"
}

func (s StepState) String() string {
	switch s {
	case StepPending:
		return "pending"
	case StepExecuting:
		return "executing"
	case StepCommitted:
		return "committed"
	case StepFailed:
		return "failed"
	case StepCompensated:
		return "compensated"
	case StepCompensationFailed:
		return "compensation_failed"
	case StepHandedOff:
		return "handed_off"
	}
	return "invalid"
}

// Final tells whether nothing comes after s.
func (s State) Final() bool { return s == Committed || s == Aborted || s == Escalated }

// To returns next if a saga may go there from s, else an error that is ErrTransition.
func (s State) To(next State) (State, error) {
	switch {
	case s == Pending && next == Executing,
		s == Executing && (next == Committed || next == Compensating),
		s == Compensating && (next == Aborted || next == Escalated):
		return next, nil
	}
	return s, fmt.Errorf("saga: %v to %v: %w", s, next, ErrTransition)
}

// To returns next if a step may go there from s, else an error that is ErrTransition. From executing straight to
// compensated or compensation_failed, and to and from handed_off, only a kill leads (H-21).
func (s StepState) To(next StepState) (StepState, error) {
	switch s {
	case StepPending:
		if next == StepExecuting {
			return next, nil
		}
	case StepExecuting:
		switch next {
		case StepCommitted, StepFailed, StepHandedOff, StepCompensated, StepCompensationFailed:
			return next, nil
		}
	case StepCommitted:
		if next == StepCompensated || next == StepCompensationFailed {
			return next, nil
		}
	case StepHandedOff:
		switch next {
		case StepExecuting, StepFailed, StepCompensated, StepCompensationFailed:
			return next, nil
		}
	}
	return s, fmt.Errorf("step: %v to %v: %w", s, next, ErrTransition)
}

// MarshalText gives the name. What is no state has none, and is an error.
func (s State) MarshalText() ([]byte, error) {
	if s < Pending || s > Escalated {
		return nil, fmt.Errorf("saga state %d: %w", s, ErrTransition)
	}
	return []byte(s.String()), nil
}

// UnmarshalText takes exactly the names.
func (s *State) UnmarshalText(b []byte) error {
	for c := Pending; c <= Escalated; c++ {
		if string(b) == c.String() {
			*s = c
			return nil
		}
	}
	*s = NoState
	return fmt.Errorf("saga state %.40q: %w", b, ErrTransition)
}

// MarshalText gives the name. What is no state has none, and is an error.
func (s StepState) MarshalText() ([]byte, error) {
	if s < StepPending || s > StepHandedOff {
		return nil, fmt.Errorf("step state %d: %w", s, ErrTransition)
	}
	return []byte(s.String()), nil
}

// UnmarshalText takes exactly the names.
func (s *StepState) UnmarshalText(b []byte) error {
	for c := StepPending; c <= StepHandedOff; c++ {
		if string(b) == c.String() {
			*s = c
			return nil
		}
	}
	*s = NoStepState
	return fmt.Errorf("step state %.40q: %w", b, ErrTransition)
}
