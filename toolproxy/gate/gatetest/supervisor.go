// SPDX-License-Identifier: Apache-2.0

// Package gatetest has a supervisor for tests of what stands behind a gate: it keeps account of places, reservations and
// records, and answers as a test tells it to. It decides nothing by itself: unless told otherwise, it allows.
//
//	s := gatetest.New(rings.Standard)
//	s.OnCheck = func(link.Check) (link.Verdict, error) { return link.Verdict{Code: gate.CodeQuarantined}, nil }
//	… s.Records(), s.Held()
//
// It is not for anything but tests: it protects against nothing.
package gatetest

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"

	"agentrun/rings"
	"agentrun/toolproxy/link"
)

// Supervisor is a link.Supervisor in memory. The On… functions replace an answer; set them before use.
type Supervisor struct {
	OnCheck   func(link.Check) (link.Verdict, error)
	OnReserve func(link.Spend) (link.Reservation, error)
	OnSettle  func(link.Settle) (link.Reservation, error)
	OnApprove func(context.Context, link.Approval) (link.Approved, error)
	OnRecord  func(link.Record) error
	// OnElevate decides about elevations; nil: none is granted. The ring is the test's to set.
	OnElevate func(context.Context, link.Elevation) (link.Elevated, error)
	OnAlarm   func(context.Context, link.Alarm) error
	// OnSafety, OnIntent and OnBlocked are the run's safety loop; nil: each step goes on, each call has its step, nobody is stopped.
	OnSafety  func(context.Context, link.Safety) (json.RawMessage, error)
	OnIntent  func(ctx context.Context, tool, target string) error
	OnBlocked func(context.Context) error

	mu       sync.Mutex
	ring     rings.Ring
	changed  chan struct{}
	places   map[uint64]bool
	reserved map[uint64]bool
	next     uint64
	records  []link.Record
	asked    []string
	settled  []link.Settle
	wrong    []string
	alarms   []link.Alarm
}

var (
	_ link.Supervisor = (*Supervisor)(nil)
	_ link.Controls   = (*Supervisor)(nil)
	_ link.Safeties   = (*Supervisor)(nil)
)

// New returns a supervisor of a run in ring.
func New(ring rings.Ring) *Supervisor {
	return &Supervisor{ring: ring, changed: make(chan struct{}), places: map[uint64]bool{}, reserved: map[uint64]bool{}}
}

func (s *Supervisor) ask(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, what)
}

// Check allows what the ring reaches, and counts the place.
func (s *Supervisor) Check(_ context.Context, c link.Check) (link.Verdict, error) {
	s.ask("check")
	s.mu.Lock()
	defer s.mu.Unlock()
	v := link.Verdict{Allowed: true, Code: rings.CodeOK, Ring: s.ring}
	if need := c.Action.RequiredRing(); need.MorePrivilegedThan(s.ring) {
		v = link.Verdict{Code: rings.CodeInsufficientRing, Ring: s.ring}
	}
	if s.OnCheck != nil {
		var err error
		if v, err = s.OnCheck(c); err != nil {
			return v, err
		}
	}
	if v.Allowed && c.Held {
		s.next++
		v.Place = s.next
		s.places[v.Place] = true
	}
	return v, nil
}

// End gives back, books and records. What isn't held is remembered as wrong.
func (s *Supervisor) End(_ context.Context, e link.End) (link.Reservation, error) {
	s.ask("end")
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.Place != 0 && !s.places[e.Place] {
		s.wrong = append(s.wrong, "place given back that isn't held")
	}
	delete(s.places, e.Place)
	a := link.Reservation{Allowed: true}
	if e.Reservation != 0 {
		settle := link.Settle{ID: e.Reservation}
		if e.Record != nil {
			settle.Cost, settle.Tokens = e.Record.Cost, e.Record.Tokens
		}
		var err error
		if a, err = s.settleLocked(settle); err != nil {
			a = link.Reservation{Code: link.CodeUnavailable, Message: "the budget can't be asked"}
		}
		delete(s.reserved, e.Reservation)
	}
	if e.Record == nil {
		return a, nil
	}
	if err := s.recordLocked(e.Record.Booked(a)); err != nil {
		return link.Reservation{}, err
	}
	return a, nil
}

// Reserve allows.
func (s *Supervisor) Reserve(_ context.Context, spend link.Spend) (link.Reservation, error) {
	s.ask("reserve")
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.OnReserve != nil {
		if r, err := s.OnReserve(spend); err != nil || !r.Allowed {
			return r, err
		}
	}
	s.next++
	s.reserved[s.next] = true
	return link.Reservation{Allowed: true, ID: s.next}, nil
}

// Settle allows.
func (s *Supervisor) Settle(_ context.Context, settle link.Settle) (link.Reservation, error) {
	s.ask("settle")
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settleLocked(settle)
}

func (s *Supervisor) settleLocked(settle link.Settle) (link.Reservation, error) {
	s.settled = append(s.settled, settle)
	if !s.reserved[settle.ID] {
		s.wrong = append(s.wrong, "settled what isn't reserved")
	}
	if s.OnSettle != nil {
		return s.OnSettle(settle)
	}
	return link.Reservation{Allowed: true, ID: settle.ID}, nil
}

// Budget has no limits.
func (*Supervisor) Budget(context.Context) (link.Budget, error) {
	return link.Budget{Plan: "premium", Steps: -1, RunCost: -1, DayCost: -1}, nil
}

// Record keeps the record.
func (s *Supervisor) Record(_ context.Context, r link.Record) error {
	s.ask("record")
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.recordLocked(r)
}

func (s *Supervisor) recordLocked(r link.Record) error {
	if s.OnRecord != nil {
		if err := s.OnRecord(r); err != nil {
			return err
		}
	}
	s.records = append(s.records, r)
	return nil
}

// Approve approves.
func (s *Supervisor) Approve(ctx context.Context, a link.Approval) (link.Approved, error) {
	s.ask("approve")
	if s.OnApprove != nil {
		return s.OnApprove(ctx, a)
	}
	return link.Approved{Allowed: true, ID: "approval-1", By: "operator"}, nil
}

// Elevate refuses unless OnElevate grants.
func (s *Supervisor) Elevate(ctx context.Context, e link.Elevation) (link.Elevated, error) {
	s.ask("elevate")
	if s.OnElevate != nil {
		return s.OnElevate(ctx, e)
	}
	return link.Elevated{Code: rings.CodeInsufficientTrust}, nil
}

// Alarm keeps the alarm.
func (s *Supervisor) Alarm(ctx context.Context, a link.Alarm) error {
	s.ask("alarm")
	s.mu.Lock()
	s.alarms = append(s.alarms, a)
	s.mu.Unlock()
	if s.OnAlarm != nil {
		return s.OnAlarm(ctx, a)
	}
	return nil
}

// Safety lets each step go on unless OnSafety answers.
func (s *Supervisor) Safety(ctx context.Context, q link.Safety) (json.RawMessage, error) {
	s.ask("safety")
	if err := q.Check(); err != nil {
		return nil, err
	}
	if s.OnSafety != nil {
		return s.OnSafety(ctx, q)
	}
	return json.RawMessage(`{"success":true,"data":{"continue":true,"factors":[]}}`), nil
}

// Intent finds a step unless OnIntent answers.
func (s *Supervisor) Intent(ctx context.Context, tool, target string) error {
	s.ask("intent")
	if s.OnIntent != nil {
		return s.OnIntent(ctx, tool, target)
	}
	return nil
}

// Blocked tells that nobody is stopped unless OnBlocked answers.
func (s *Supervisor) Blocked(ctx context.Context) error {
	s.ask("blocked")
	if s.OnBlocked != nil {
		return s.OnBlocked(ctx)
	}
	return nil
}

// Alarms returns the alarms so far.
func (s *Supervisor) Alarms() []link.Alarm { return copied(s, &s.alarms) }

// Execute starts nothing.
func (*Supervisor) Execute(context.Context, string) (link.Process, error) {
	return nil, errors.New("execute: no commands in tests")
}

// Ring returns the ring set last.
func (s *Supervisor) Ring() (rings.Ring, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ring, s.changed
}

// SetRing moves the run.
func (s *Supervisor) SetRing(ring rings.Ring) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ring = ring
	close(s.changed)
	s.changed = make(chan struct{})
}

// EndRun ends the run.
func (s *Supervisor) EndRun() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
}

// Records returns what was recorded.
func (s *Supervisor) Records() []link.Record { return copied(s, &s.records) }

// Settled returns what was settled, on the way and at the end.
func (s *Supervisor) Settled() []link.Settle { return copied(s, &s.settled) }

// Asked returns the questions in their order: check, reserve, settle, end, approve, record, elevate, alarm, safety, intent, blocked.
func (s *Supervisor) Asked() []string { return copied(s, &s.asked) }

func copied[T any](s *Supervisor, list *[]T) []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(*list)
}

// Held returns how many places and reservations are open, and what was given back wrongly.
func (s *Supervisor) Held() (places, reservations int, wrong []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.places), len(s.reserved), slices.Clone(s.wrong)
}

// Forget drops records and questions, for benchmarks.
func (s *Supervisor) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records, s.asked, s.settled = nil, nil, nil
}
