// SPDX-License-Identifier: Apache-2.0

package sagas

import (
	"encoding/json"
	"errors"
	"testing"
)

func TestH18Transitions(t *testing.T) {
	saga := map[[2]State]bool{
		{Pending, Executing}: true, {Executing, Committed}: true, {Executing, Compensating}: true,
		{Compensating, Aborted}: true, {Compensating, Escalated}: true,
	}
	for from := range State(255) {
		for to := range State(255) {
			next, err := from.To(to)
			if legal := saga[[2]State{from, to}]; legal != (err == nil) || legal && next != to || !legal && (next != from || !errors.Is(err, ErrTransition)) {
				t.Errorf("saga %v to %v: got %v, %v", from, to, next, err)
			}
		}
	}
	step := map[[2]StepState]bool{
		{StepPending, StepExecuting}: true, {StepExecuting, StepCommitted}: true, {StepExecuting, StepFailed}: true,
		{StepCommitted, StepCompensated}: true, {StepCommitted, StepCompensationFailed}: true,
		// H-21
		{StepExecuting, StepHandedOff}: true, {StepExecuting, StepCompensated}: true, {StepExecuting, StepCompensationFailed}: true,
		{StepHandedOff, StepExecuting}: true, {StepHandedOff, StepFailed}: true,
		{StepHandedOff, StepCompensated}: true, {StepHandedOff, StepCompensationFailed}: true,
	}
	for from := range StepState(255) {
		for to := range StepState(255) {
			next, err := from.To(to)
			if legal := step[[2]StepState{from, to}]; legal != (err == nil) || legal && next != to || !legal && (next != from || !errors.Is(err, ErrTransition)) {
				t.Errorf("step %v to %v: got %v, %v", from, to, next, err)
			}
		}
	}
}

// The names are in journals for good.
func TestH18Names(t *testing.T) {
	states := []string{"pending", "executing", "committed", "compensating", "aborted", "escalated"}
	for i, name := range states {
		var s State
		if err := json.Unmarshal([]byte(`"`+name+`"`), &s); err != nil || s != State(i+1) {
			t.Errorf("%s: got %v, %v", name, s, err)
		}
		if b, err := json.Marshal(State(i + 1)); err != nil || string(b) != `"`+name+`"` {
			t.Errorf("%s: got %s, %v", name, b, err)
		}
	}
	steps := []string{"pending", "executing", "committed", "failed", "compensated", "compensation_failed", "handed_off"}
	for i, name := range steps {
		var s StepState
		if err := json.Unmarshal([]byte(`"`+name+`"`), &s); err != nil || s != StepState(i+1) {
			t.Errorf("%s: got %v, %v", name, s, err)
		}
		if b, err := json.Marshal(StepState(i + 1)); err != nil || string(b) != `"`+name+`"` {
			t.Errorf("%s: got %s, %v", name, b, err)
		}
	}
	for _, bad := range []string{`""`, `"invalid"`, `"Pending"`, `0`, `1`, `true`, `{}`} {
		s, k := Committed, StepCommitted
		if err := json.Unmarshal([]byte(bad), &s); err == nil {
			t.Errorf("saga state %s: no error", bad)
		}
		if err := json.Unmarshal([]byte(bad), &k); err == nil {
			t.Errorf("step state %s: no error", bad)
		}
	}
	if _, err := json.Marshal(Record{}); err == nil {
		t.Error("a record without a state was written")
	}
}

func TestIdentifier(t *testing.T) {
	for _, good := range []string{"a", "A9", "a.b_c:d-e"} {
		if !Identifier(good) {
			t.Errorf("%q: refused", good)
		}
	}
	for _, bad := range []string{"", "-a", "a-", "a b", "a\n", "ä", "a/b", string(make([]byte, 257))} {
		if Identifier(bad) {
			t.Errorf("%q: taken", bad)
		}
	}
}
