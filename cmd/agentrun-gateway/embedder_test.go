// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"testing"

	"agentrun/toolproxy/gate"
)

// meter is an entrance whose permits note what they are told.
type meter struct {
	spent []int64
	ends  []gate.Outcome
	deny  *gate.Error
}

func (m *meter) Enter(context.Context, gate.Call) (gate.Permit, *gate.Error) {
	if m.deny != nil {
		return nil, m.deny
	}
	return m, nil
}

func (m *meter) Context() context.Context { return context.Background() }

func (m *meter) Spent(cost, _ int64) *gate.Error {
	m.spent = append(m.spent, cost)
	return nil
}

func (m *meter) End(o gate.Outcome) *gate.Error {
	m.ends = append(m.ends, o)
	return nil
}

// What a tool has spent is booked also if its call was given up, and what it says itself counts if it wasn't.
func TestM19SpentIsBookedWhateverHappens(t *testing.T) {
	failed := &gate.Error{Code: gate.CodeToolTimeout}
	for name, tt := range map[string]struct {
		outcome gate.Outcome
		want    int64
	}{
		"given up":            {gate.Outcome{Err: failed}, 7},
		"failed, said more":   {gate.Outcome{Err: failed, Cost: 9}, 9},
		"succeeded, it knows": {gate.Outcome{Cost: 5}, 5},
	} {
		m := &meter{}
		p, e := metering{outer{m}}.Enter(t.Context(), gate.Call{})
		if e != nil {
			t.Fatal(e)
		}
		inner, ok := p.Context().Value(permitKey{}).(gate.Permit)
		if !ok {
			t.Fatal("the call's context has no permit")
		}
		if e := inner.Spent(7, 70); e != nil {
			t.Fatal(e)
		}
		if e := p.End(tt.outcome); e != nil {
			t.Fatal(e)
		}
		if len(m.ends) != 1 || m.ends[0].Cost != tt.want || len(m.spent) != 1 {
			t.Errorf("%s: booked %+v after %v, want %d", name, m.ends, m.spent, tt.want)
		}
	}
	p, e := metering{outer{&meter{deny: failed}}}.Enter(t.Context(), gate.Call{})
	if p != nil || !errors.Is(e, failed) {
		t.Errorf("a denial: got %v, %v", p, e)
	}
}
