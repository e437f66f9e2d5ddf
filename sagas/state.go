// SPDX-License-Identifier: Apache-2.0

package sagas

import (
	"errors"
	"fmt"
	"slices"
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

// names are the spellings, by number; what has none is no state.
type names []string

var (
	stateNames = names{Pending: "pending", Executing: "executing", Committed: "committed", Compensating: "compensating",
		Aborted: "aborted", Escalated: "escalated"}
	stepNames = names{StepPending: "pending", StepExecuting: "executing", StepCommitted: "committed", StepFailed: "failed",
		StepCompensated: "compensated", StepCompensationFailed: "compensation_failed", StepHandedOff: "handed_off"}
)

// moves are the transitions of H-18. Those of a step from executing straight to compensated or compensation_failed, and
// to and from handed_off, only a kill makes (H-21).
var (
	moves = map[State][]State{
		Pending:      {Executing},
		Executing:    {Committed, Compensating},
		Compensating: {Aborted, Escalated},
	}
	stepMoves = map[StepState][]StepState{
		StepPending:   {StepExecuting},
		StepExecuting: {StepCommitted, StepFailed, StepHandedOff, StepCompensated, StepCompensationFailed},
		StepCommitted: {StepCompensated, StepCompensationFailed},
		StepHandedOff: {StepExecuting, StepFailed, StepCompensated, StepCompensationFailed},
	}
)

func (n names) of(s uint8) string {
	if int(s) >= len(n) || n[s] == "" {
		return "invalid"
	}
	return n[s]
}

func (n names) marshal(what string, s uint8) ([]byte, error) {
	if n.of(s) == "invalid" {
		return nil, fmt.Errorf("%s state %d: %w", what, s, ErrTransition)
	}
	return []byte(n[s]), nil
}

// unmarshal returns 0 with an error.
func (n names) unmarshal(what string, b []byte) (uint8, error) {
	if i := slices.Index(n, string(b)); i > 0 {
		return uint8(i), nil
	}
	return 0, fmt.Errorf("%s state %.40q: %w", what, b, ErrTransition)
}

func (s State) String() string     { return stateNames.of(uint8(s)) }
func (s StepState) String() string { return stepNames.of(uint8(s)) }

// Final tells whether nothing comes after s.
func (s State) Final() bool { return s == Committed || s == Aborted || s == Escalated }

// To returns next if a saga may go there from s; the error is ErrTransition.
func (s State) To(next State) (State, error) {
	if slices.Contains(moves[s], next) {
		return next, nil
	}
	return s, fmt.Errorf("saga: %v to %v: %w", s, next, ErrTransition)
}

// To returns next if a step may go there from s; the error is ErrTransition.
func (s StepState) To(next StepState) (StepState, error) {
	if slices.Contains(stepMoves[s], next) {
		return next, nil
	}
	return s, fmt.Errorf("step: %v to %v: %w", s, next, ErrTransition)
}

// MarshalText returns the name. What is no state has none, and is an error.
func (s State) MarshalText() ([]byte, error) { return stateNames.marshal("saga", uint8(s)) }

// MarshalText returns the name. What is no state has none, and is an error.
func (s StepState) MarshalText() ([]byte, error) { return stepNames.marshal("step", uint8(s)) }

// UnmarshalText takes exactly the names.
func (s *State) UnmarshalText(b []byte) error {
	n, err := stateNames.unmarshal("saga", b)
	*s = State(n)
	return err
}

// UnmarshalText takes exactly the names.
func (s *StepState) UnmarshalText(b []byte) error {
	n, err := stepNames.unmarshal("step", b)
	*s = StepState(n)
	return err
}
