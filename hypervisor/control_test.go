// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/audit"
	"agentrun/fsjail"
	"agentrun/profiles"
	"agentrun/rings"
	"agentrun/runtime"
	"agentrun/sagas"
	"agentrun/store"
	"agentrun/toolproxy/link"
)

// hands are clocks that a test sets: the wall's and the one since boot.
type hands struct {
	mu   sync.Mutex
	wall time.Time
	boot time.Duration
}

func (c *hands) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wall
}

func (c *hands) sinceBoot() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.boot
}

func (c *hands) move(wall, boot time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall, c.boot = c.wall.Add(wall), c.boot+boot
}

func (c *hands) pass(d time.Duration) { c.move(d, d) }

// crew stands for the processes of a run.
type crew struct {
	mu   sync.Mutex
	did  []string
	dead chan struct{} // closed at the first kill
	err  error

	stopped chan struct{} // closed at the first freeze
	cause   runtime.KillCause
}

func newCrew() *crew { return &crew{dead: make(chan struct{}), stopped: make(chan struct{})} }

func (p *crew) Doom() {}

func (p *crew) FreezeForKill(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.did = append(p.did, "freeze")
	return p.err
}

func (p *crew) Freeze(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(p.did, "stop") {
		close(p.stopped)
	}
	p.did = append(p.did, "stop")
	return p.err
}

func (p *crew) Kill(_ context.Context, cause runtime.KillCause) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(p.did, "kill") {
		close(p.dead)
	}
	p.did = append(p.did, "kill")
	p.cause = cause
	if cause.Reason == "" {
		return 0, errors.New("no reason")
	}
	return 3, nil
}

func (p *crew) log() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.did)
}

// post gathers the events of a run.
type post struct {
	mu  sync.Mutex
	all []Event
}

func (p *post) notify(e Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, e)
}

func (p *post) kinds() (kinds []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.all {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

// site is a node whose clocks the test sets, and one run on it.
type site struct {
	*node
	clock *hands
	crew  *crew
	post  *post
}

func newSite(t *testing.T) *site {
	s := &site{node: newNode(t), clock: &hands{wall: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), boot: time.Hour}, crew: newCrew(), post: &post{}}
	s.Hypervisor = s.another()
	t.Cleanup(func() { s.Hypervisor.Close() })
	return s
}

// another is what a second process has.
func (s *site) another() *Hypervisor {
	h, err := Open(Options{StateDir: s.dir, Now: s.clock.now, Boot: s.clock.sinceBoot})
	if err != nil {
		s.t.Fatal(err)
	}
	return h
}

// control takes charge of a run of agent a, in ring 3 although its score may give more.
func (s *site) control(change ...func(*Request, *ControlOptions)) *Control {
	s.t.Helper()
	return s.controlOn(s.Hypervisor, change...)
}

func (s *site) controlOn(h *Hypervisor, change ...func(*Request, *ControlOptions)) *Control {
	s.t.Helper()
	req := Request{Agent: "a", Ring: rings.Sandbox}
	opt := ControlOptions{Run: "r1", Elevatable: func(rings.Ring) error { return nil }, Processes: s.crew, Notify: s.post.notify, Warn: func(err error) { s.t.Log(err) }}
	for _, f := range change {
		f(&req, &opt)
	}
	adm, err := h.Admit(s.t.Context(), req)
	if err != nil {
		s.t.Fatal(err)
	}
	c := h.Control(adm, opt)
	s.t.Cleanup(func() { c.Close(); adm.Done() })
	return c
}

func to(ring rings.Ring) ElevateRequest {
	return ElevateRequest{Target: ring, Reason: "deploy", By: "uid:0"}
}

func mustElevate(t *testing.T, c *Control, r ElevateRequest) rings.Elevation {
	t.Helper()
	e, err := c.Elevate(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func wantRing(t *testing.T, c *Control, want rings.Ring) {
	t.Helper()
	if got, _ := c.Ring(); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

// falls waits until the run is in a ring.
func falls(t *testing.T, c *Control, want rings.Ring) {
	t.Helper()
	for {
		got, changed := c.Ring()
		if got == want {
			return
		}
		select {
		case <-changed:
		case <-t.Context().Done():
			t.Fatalf("got %v, want %v", got, want)
		}
	}
}

// records are those of a kind in a chain.
func (s *site) records(chain string, kind audit.Kind) (all []audit.Record) {
	s.t.Helper()
	s.log(chain) // verifies
	r, err := audit.OpenReader(filepath.Join(s.dir, auditDir), chain)
	if err != nil {
		s.t.Fatal(err)
	}
	defer r.Close()
	for {
		l, err := r.Next()
		if err != nil {
			return all
		}
		if l.Entry.Kind == kind {
			all = append(all, l.Entry.Data)
		}
	}
}

func TestH13RefusalsInOrder(t *testing.T) {
	broken := errors.New("profile strict fixes its programs")
	no := func(*Request, *ControlOptions) {}
	fixed := func(_ *Request, o *ControlOptions) { o.Elevatable = func(rings.Ring) error { return broken } }
	for _, tt := range []struct {
		name   string
		score  float64
		agreed bool
		held   bool
		active bool
		change func(*Request, *ControlOptions)
		r      ElevateRequest
		want   rings.Code
	}{
		{"no reason", 0.99, true, false, false, no, ElevateRequest{Target: rings.Standard}, CodeInvalidReason},
		{"same", 0.99, true, true, true, fixed, to(rings.Sandbox), rings.CodeInvalidTarget},
		{"none", 0.99, true, true, false, no, to(rings.NoRing), rings.CodeInvalidTarget},
		{"root", 0.99, true, true, true, fixed, to(rings.Root), rings.CodeRing0Forbidden},
		{"duplicate", 0.1, false, true, true, fixed, to(rings.Privileged), rings.CodeDuplicateElevation},
		{"quarantine", 0.1, false, true, false, fixed, to(rings.Privileged), rings.CodeQuarantined},
		{"no score", -1, false, false, false, fixed, to(rings.Standard), rings.CodeInsufficientTrust},
		{"ring 2", 0.49, true, false, false, fixed, to(rings.Standard), rings.CodeInsufficientTrust},
		{"ring 1", 0.84, true, false, false, fixed, to(rings.Privileged), rings.CodeInsufficientTrust},
		{"consensus", 0.85, false, false, false, fixed, to(rings.Privileged), rings.CodeNoConsensus},
		{"profile", 0.85, true, false, false, fixed, to(rings.Privileged), CodeNotElevatable},
		{"nothing applies it", 0.85, true, false, false, func(_ *Request, o *ControlOptions) { o.Elevatable = nil }, to(rings.Privileged), CodeNotElevatable},
		{"ring 1 skips one", 0.85, true, false, false, no, to(rings.Privileged), ""},
		{"ring 2 earned", 0.5, false, false, false, no, to(rings.Standard), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			s.score("a", 0.9, true)
			other := s.another()
			defer other.Close()
			if tt.active {
				elsewhere := s.controlOn(other)
				mustElevate(t, elsewhere, to(rings.Standard))
				defer elsewhere.Close()
				// What holds it must not end with the conditions that the case sets.
				elsewhere.cancel()
				elsewhere.work.Wait()
			}
			if tt.score >= 0 {
				s.score("a", tt.score, tt.agreed)
			} else {
				s.score("x", 0.1, false)
			}
			c := s.control(func(r *Request, o *ControlOptions) {
				if tt.score < 0 {
					r.Agent = "nobody"
				}
				tt.change(r, o)
			})
			if tt.held {
				if _, err := s.Quarantine(t.Context(), "a", Cause{Code: "operator", Reason: "x"}); err != nil {
					t.Fatal(err)
				}
			}
			if got := code(t, c.CheckElevation(t.Context(), tt.r)); got != tt.want {
				t.Errorf("dry run: got %q, want %q", got, tt.want)
			}
			wantRing(t, c, rings.Sandbox)
			e, err := c.Elevate(t.Context(), tt.r)
			if got := code(t, err); got != tt.want || (e.ID != "") != (tt.want == "") {
				t.Errorf("got %q %+v, want %q", got, e, tt.want)
			}
			c.Close()
			var mine []*audit.Elevation
			for _, r := range s.records("node", "elevation") {
				if e := r.(*audit.Elevation); !tt.active || !e.Granted {
					mine = append(mine, e)
				}
			}
			want := string(tt.want)
			if want == "" {
				want = "granted"
			}
			if len(mine) != 1 || mine[0].Reason != want || mine[0].By != tt.r.By {
				t.Errorf("got %+v on record, want one %s", mine, want)
			}
		})
	}
}

func TestH14ElevationLife(t *testing.T) {
	s := newSite(t)
	s.score("a", 0.7, false)
	c := s.control()
	_, changed := c.Ring()
	e := mustElevate(t, c, to(rings.Standard))
	<-changed
	wantRing(t, c, rings.Standard)
	if e.TTL() != rings.DefaultElevation || e.From != rings.Sandbox {
		t.Errorf("got %+v", e)
	}
	if got, why, ok := c.Elevation(); !ok || got.ID != e.ID || why != "deploy" {
		t.Errorf("got %+v %q %v", got, why, ok)
	}
	if _, err := c.Elevate(t.Context(), to(rings.Privileged)); code(t, err) != rings.CodeDuplicateElevation {
		t.Errorf("got %v, want one at a time", err)
	}
	_, changed = c.Ring()
	s.clock.pass(rings.DefaultElevation - time.Nanosecond)
	wantRing(t, c, rings.Standard)
	s.clock.pass(time.Nanosecond)
	wantRing(t, c, rings.Sandbox) // nobody had to notice
	<-changed
	long := to(rings.Standard)
	long.TTL = 24 * time.Hour
	if e = mustElevate(t, c, long); e.TTL() != rings.MaxElevation {
		t.Errorf("got %v, want it cut", e.TTL())
	}
	c.Close()
	wantRing(t, c, rings.Sandbox)
	if _, err := c.Elevate(t.Context(), to(rings.Standard)); code(t, err) != link.CodeCanceled {
		t.Errorf("got %v after the end", err)
	}
	var causes []string
	for _, r := range s.records("node", "elevation_end") {
		causes = append(causes, r.(*audit.ElevationEnd).Cause)
	}
	if d := cmp.Diff([]string{"expired", "run_end"}, causes); d != "" {
		t.Error(d)
	}
	want := []string{EventElevated, EventNotElevated, EventElevationEnd, EventElevated, EventElevationEnd, EventNotElevated}
	if d := cmp.Diff(want, s.post.kinds()); d != "" {
		t.Error(d)
	}
}

// The three clocks can only shorten an elevation.
func TestH14ClockJumps(t *testing.T) {
	for _, tt := range []struct {
		name string
		move func(*hands)
		want rings.Ring
	}{
		{"set back", func(c *hands) { c.move(-time.Hour, 0) }, rings.Standard},
		{"set back, time over", func(c *hands) { c.move(-time.Hour, 0); c.move(0, rings.DefaultElevation) }, rings.Sandbox},
		{"set back again and again", func(c *hands) {
			for range 10 {
				c.move(-time.Minute, 0)
				c.pass(rings.DefaultElevation / 10)
			}
		}, rings.Sandbox},
		{"set forward", func(c *hands) { c.move(time.Hour, 0) }, rings.Sandbox},
		{"forward and back", func(c *hands) { c.move(time.Hour, 0) }, rings.Sandbox},
		{"suspended, wall clock lost", func(c *hands) { c.move(-time.Second, time.Hour) }, rings.Sandbox},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			s.score("a", 0.7, false)
			c := s.control()
			mustElevate(t, c, to(rings.Standard))
			tt.move(s.clock)
			wantRing(t, c, tt.want)
			s.clock.move(-2*time.Hour, 0) // what is over stays so
			wantRing(t, c, tt.want)
		})
	}
}

// The supervisor's own timer ends it, to the moment, by real clocks.
func TestH14TimerEndsIt(t *testing.T) {
	n := newNode(t)
	h, err := Open(Options{StateDir: n.dir})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	ended := make(chan Event, 9)
	c := h.Control(Admission{Ring: rings.Sandbox}, ControlOptions{Run: "r1", Elevatable: func(rings.Ring) error { return nil }, Notify: func(e Event) { ended <- e }})
	defer c.Close()
	r := to(rings.Standard)
	r.TTL = 30 * time.Millisecond
	mustElevate(t, c, r)
	for ring, changed := c.Ring(); ring == rings.Standard; ring, _ = c.Ring() {
		<-changed
	}
	if e := <-ended; e.Kind != EventElevated {
		t.Errorf("got %+v", e)
	}
	if e := <-ended; e.Kind != EventElevationEnd || e.Ring != rings.Sandbox || e.Data["cause"] != "expired" {
		t.Errorf("got %+v", e)
	}
}

func TestM22WhatEndsAnElevation(t *testing.T) {
	for _, tt := range []struct {
		cause string
		end   func(*site, *Control)
	}{
		{"quarantined", func(s *site, _ *Control) {
			other := s.another()
			defer other.Close()
			if _, err := other.Quarantine(s.t.Context(), "a", Cause{Code: "operator", Reason: "x"}); err != nil {
				s.t.Error(err)
			}
		}},
		{"demoted", func(s *site, _ *Control) { s.score("a", 0.49, true) }},
		{"revoked", func(s *site, c *Control) {
			if _, err := c.Revoke(s.t.Context(), "", "uid:7"); err != nil {
				s.t.Error(err)
			}
		}},
		{"killed", func(s *site, c *Control) { c.Kill(s.t.Context(), KillRequest{Reason: rings.KillManual}) }},
		{"session_end", func(s *site, _ *Control) {
			if _, err := s.ArchiveSession(s.t.Context(), "s"); err != nil {
				s.t.Error(err)
			}
		}},
		{"run_end", func(_ *site, c *Control) { c.Close() }},
	} {
		t.Run(tt.cause, func(t *testing.T) {
			s := newSite(t)
			s.score("a", 0.7, false)
			chain := "node"
			inSession := func(*Request, *ControlOptions) {}
			if tt.cause == "session_end" {
				if _, err := s.CreateSession(t.Context(), session("s", rings.Eventual)); err != nil {
					t.Fatal(err)
				}
				if _, err := s.JoinSession(t.Context(), "s", "a"); err != nil {
					t.Fatal(err)
				}
				inSession = func(r *Request, _ *ControlOptions) { r.Session = "s" }
				chain = audit.SessionChain("s")
			}
			c := s.control(inSession)
			e := mustElevate(t, c, to(rings.Standard))
			tt.end(s, c)
			falls(t, c, rings.Sandbox)
			if tt.cause == "session_end" {
				<-s.crew.dead
			}
			if _, err := c.Revoke(t.Context(), e.ID, "uid:0"); !errors.Is(err, rings.ErrElevationNotFound) && tt.cause != "session_end" {
				t.Errorf("got %v, want nothing to be left", err)
			}
			c.Close()
			ends := s.records(chain, "elevation_end")
			if len(ends) != 1 {
				t.Fatalf("got %d ends on record, want one", len(ends))
			}
			got := ends[0].(*audit.ElevationEnd)
			if got.Cause != tt.cause || got.ElevationID != e.ID || got.Ring != audit.Sandbox || (got.By != "") != (tt.cause == "revoked") {
				t.Errorf("got %+v, want %s", got, tt.cause)
			}
		})
	}
}

func TestH15RevokeUnknown(t *testing.T) {
	s := newSite(t)
	s.score("a", 0.7, false)
	c := s.control()
	for _, id := range []string{"", "nope"} {
		if _, err := c.Revoke(t.Context(), id, "uid:0"); !errors.Is(err, rings.ErrElevationNotFound) {
			t.Errorf("%q: got %v, want not found", id, err)
		}
	}
	e := mustElevate(t, c, to(rings.Standard))
	if _, err := c.Revoke(t.Context(), "nope", "uid:0"); err == nil {
		t.Error("another id ended it")
	}
	wantRing(t, c, rings.Standard)
	if got, err := c.Revoke(t.Context(), e.ID, "uid:0"); err != nil || got.ID != e.ID {
		t.Errorf("got %+v %v", got, err)
	}
	wantRing(t, c, rings.Sandbox)
	mustElevate(t, c, to(rings.Standard)) // its place is free
}

func TestH28NoElevationWithoutRecord(t *testing.T) {
	s := newSite(t)
	s.score("a", 0.7, false)
	c := s.control()
	mustElevate(t, c, to(rings.Standard))
	dir := filepath.Join(s.dir, auditDir)
	l, err := s.Hypervisor.log("")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil { // from now on it can't be written
		t.Fatal(err)
	}
	if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Revoke(t.Context(), "", "uid:0"); err == nil || errors.Is(err, rings.ErrElevationNotFound) {
		t.Errorf("got %v, want the record's error", err)
	}
	wantRing(t, c, rings.Sandbox) // it fell all the same
	if e, err := c.Elevate(t.Context(), to(rings.Standard)); err == nil || e.ID != "" {
		t.Errorf("got %+v, want no ring without a record", e)
	}
	wantRing(t, c, rings.Sandbox)
	if _, _, ok := c.Elevation(); ok {
		t.Error("an elevation is there")
	}
	if err := c.CheckElevation(t.Context(), to(rings.Standard)); err != nil {
		t.Errorf("got %v, want nothing of the failed one to be left", err)
	}
	res := c.Kill(t.Context(), KillRequest{Reason: rings.KillManual})
	if !res.ProcessesDead {
		t.Errorf("got %+v, want the kill not to wait for the audit", res)
	}
	if err := c.Close(); err == nil {
		t.Error("a kill that isn't on record was kept quiet")
	}
	if got := c.Kills(); len(got) != 1 {
		t.Errorf("got %d results in the history, want 1", len(got))
	}
}

func TestH31UnreadableStateIsRing3(t *testing.T) {
	s := newSite(t)
	s.score("a", 0.7, false)
	c := s.control()
	mustElevate(t, c, to(rings.Standard))
	if err := os.WriteFile(filepath.Join(s.dir, stateFile), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	falls(t, c, rings.Sandbox)
	if _, err := c.Elevate(t.Context(), to(rings.Standard)); err == nil {
		t.Error("elevated without a state")
	} else if _, decided := errors.AsType[*DeniedError](err); decided {
		t.Errorf("got a decision %v, want that there can be none", err)
	}
	if err := c.CheckElevation(t.Context(), to(rings.Standard)); err == nil {
		t.Error("dry run: allowed")
	}
	if _, err := c.Agent(t.Context()); err == nil {
		t.Error("the agent is known")
	}
}

// One elevation for (agent, session) on the node; names that look alike are two; a dead supervisor holds nothing.
func TestH13DuplicateOverProcesses(t *testing.T) {
	s := newSite(t)
	for _, id := range []string{"a", "a:b"} {
		s.score(id, 0.7, false)
	}
	for _, id := range []string{"s", "c", "b-c"} {
		if _, err := s.CreateSession(t.Context(), session(id, rings.Eventual)); err != nil {
			t.Fatal(err)
		}
		for _, a := range []string{"a", "a:b"} {
			if _, err := s.JoinSession(t.Context(), id, a); err != nil {
				t.Fatal(err)
			}
		}
	}
	child, line := s.other("elevate")
	if line != "elevated" {
		t.Fatal(line)
	}
	other := s.another()
	t.Cleanup(func() { other.Close() }) // after the controls, which use it until they end
	in := func(h *Hypervisor, agent, session string) *Control {
		return s.controlOn(h, func(r *Request, o *ControlOptions) {
			r.Agent, r.Session, o.Run = agent, session, "r-"+strings.ReplaceAll(agent, ":", ".")+session+"x"
		})
	}
	c := in(s.Hypervisor, "a", "")
	if _, err := c.Elevate(t.Context(), to(rings.Standard)); code(t, err) != rings.CodeDuplicateElevation {
		t.Errorf("got %v, want the other process to have it", err)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	mustElevate(t, c, to(rings.Standard))
	mustElevate(t, in(other, "a", "s"), to(rings.Standard))
	mustElevate(t, in(other, "a:b", "c"), to(rings.Standard))
	mustElevate(t, in(s.Hypervisor, "a", "b-c"), to(rings.Standard))
	again := in(other, "a", "")
	if code(t, again.CheckElevation(t.Context(), to(rings.Standard))) != rings.CodeDuplicateElevation {
		t.Error("a second one for the same agent and session")
	}
	c.Close()
	mustElevate(t, again, to(rings.Standard))
}

func TestH13OperatorsOwnRun(t *testing.T) {
	s := newSite(t)
	other := func(r *Request, o *ControlOptions) { r.Agent = "" }
	c := s.control(other)
	mustElevate(t, c, to(rings.Privileged))
	wantRing(t, c, rings.Privileged)
	second := s.control(other, func(_ *Request, o *ControlOptions) { o.Run = "r2" })
	mustElevate(t, second, to(rings.Standard))
	if _, err := os.Stat(filepath.Join(s.dir, stateFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want no state for a run that has no agent", err)
	}
	c.Close()
	got := s.records("node", "elevation")
	if e := got[0].(*audit.Elevation); e.AgentID != "run:r1" || !e.Granted {
		t.Errorf("got %+v", e)
	}
}

// A live run follows its agent's score; the score's own record is what the audit has of it.
func TestM22RingFollowsScore(t *testing.T) {
	s := newSite(t)
	s.score("a", 0.96, true)
	c := s.control(func(r *Request, _ *ControlOptions) { r.Ring = rings.Privileged })
	s.score("a", 0.7, true)
	falls(t, c, rings.Standard)
	mustElevate(t, func() *Control { s.score("a", 0.85, true); return c }(), to(rings.Privileged))
	wantRing(t, c, rings.Privileged)
	s.score("a", 0.84, true)
	falls(t, c, rings.Standard)
	s.score("a", 0.1, true)
	falls(t, c, rings.Sandbox)
	s.score("a", 0.99, true)
	falls(t, c, rings.Privileged) // but an ended elevation doesn't come back: this is its base
	if _, _, ok := c.Elevation(); ok {
		t.Error("an elevation is there")
	}
}

// H-31: a run that was in ring 3 already is in no other ring when its agent is held. Whoever has something of it under way must hear all the same.
func TestH31HoldIsToldInRing3(t *testing.T) {
	s := newSite(t)
	s.score("a", 0.7, false)
	c := s.control()
	other := s.another()
	defer other.Close()
	ring, changed := c.Ring()
	if _, err := other.Quarantine(t.Context(), "a", Cause{Code: "operator", Reason: "x"}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-changed:
	case <-time.After(10 * time.Second):
		t.Error("nobody is told")
	}
	if now, next := c.Ring(); now != ring || next == changed {
		t.Errorf("from %v to %v, the same channel: %v; want the ring that it was in, and a run that goes on", ring, now, next == changed)
	}
}

func refusal(s *site, called rings.Ring) runtime.Refusal {
	return runtime.Refusal{At: s.clock.now(), Syscall: "mount", Verdict: "EPERM", Called: called}
}

// Each of the three sources alone, and what a breach leads to.
func TestH24BreachLowersTheLiveRun(t *testing.T) {
	sources := map[string]func(*site, *Control, *Broker, runtime.Observer) error{
		"syscalls": func(s *site, _ *Control, _ *Broker, w runtime.Observer) error {
			return w.Refused(refusal(s, rings.Root))
		},
		"tools": func(s *site, _ *Control, e *Broker, _ runtime.Observer) error {
			return e.Record(s.t.Context(), link.Record{Kind: "tool", Name: "x", Code: "ring_denied", Count: 1, Weight: rings.Root})
		},
		"egress": func(s *site, _ *Control, e *Broker, _ runtime.Observer) error {
			return e.Record(s.t.Context(), link.Record{Kind: "egress", Name: "x:1", Code: "ring_denied", Count: 1, Weight: rings.Root})
		},
	}
	for name, source := range sources {
		for _, mode := range []profiles.OnBreach{"", profiles.BreachFreeze, profiles.BreachKill, profiles.BreachRecord} {
			for _, agent := range []string{"a", ""} {
				t.Run(fmt.Sprintf("%s/%s/%q", name, mode, agent), func(t *testing.T) {
					breaks(t, source, mode, agent, name == "syscalls")
				})
			}
		}
	}
}

// breaks has a run try what it may not until that is a breach, and then on until it is a critical one.
func breaks(t *testing.T, source func(*site, *Control, *Broker, runtime.Observer) error, mode profiles.OnBreach, agent string, silent bool) {
	s := newSite(t)
	s.score("a", 0.7, false)
	adm, err := s.Admit(t.Context(), Request{Agent: agent, Ring: rings.Standard})
	if err != nil {
		t.Fatal(err)
	}
	c := s.Control(adm, ControlOptions{Run: "r1", Processes: s.crew, OnBreach: mode, Notify: s.post.notify})
	defer c.Close()
	w := c.Watch(WatchOptions{})
	if err := w.Start(status("r1")); err != nil {
		t.Fatal(err)
	}
	e := c.Broker(BrokerOptions{})
	defer e.Close()
	for range 4 {
		if err := source(s, c, e, w); err != nil {
			t.Fatal(err)
		}
	}
	wantRing(t, c, rings.Standard)
	err = source(s, c, e, w) // the fifth: high
	ended := mode == profiles.BreachKill || mode == "" && agent == ""
	if (err != nil) != (ended && (!silent || mode == "")) { // a kill freezes first, and nothing else may end the run before
		t.Errorf("got %v", err)
	}
	if mode == profiles.BreachRecord || mode == profiles.BreachFreeze && agent == "" {
		wantRing(t, c, rings.Standard)
	} else {
		wantRing(t, c, rings.Sandbox) // already
	}
	if held := s.agent("a").Quarantined != nil; held != (agent != "" && mode != profiles.BreachRecord) {
		t.Errorf("in quarantine %v", held)
	}
	if mode == profiles.BreachFreeze {
		<-s.crew.stopped
	}
	for range 50 {
		_ = source(s, c, e, w)
	}
	e.Close()
	c.Close()
	killed := mode != profiles.BreachRecord && mode != profiles.BreachFreeze // at critical, if not before
	if got := slices.Contains(s.crew.log(), "kill"); got != killed {
		t.Errorf("killed %v, want %v", got, killed)
	}
	if policy := s.crew.cause.State == runtime.Policy; policy != (mode == "" && agent == "") {
		t.Errorf("ended as %q", s.crew.cause.State)
	}
	if !slices.Contains(s.post.kinds(), EventBreach) {
		t.Errorf("got %v", s.post.kinds())
	}
}

// H-24: a breach is one again when an operator has let the run go on after the last, and when the window of that is over.
func TestH24BreachAfterABreach(t *testing.T) {
	later := func(s *site, _ *Control) { s.clock.pass(rings.BreachWindow) }
	for name, tt := range map[string]struct {
		mode    profiles.OnBreach
		agent   string
		between func(*site, *Control)
	}{
		"thawed":              {profiles.BreachFreeze, "", func(_ *site, c *Control) { c.Thawed() }},
		"thawed, of an agent": {profiles.BreachFreeze, "a", func(_ *site, c *Control) { c.Thawed() }},
		"frozen, later":       {profiles.BreachFreeze, "", later},
		"recorded, later":     {profiles.BreachRecord, "", later},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.score("a", 0.7, false)
			c := s.control(func(r *Request, o *ControlOptions) { r.Agent, r.Ring, o.OnBreach = tt.agent, rings.Standard, tt.mode })
			e := c.Broker(BrokerOptions{})
			defer e.Close()
			breaches := func() (n int) {
				for range 5 {
					_ = e.Record(t.Context(), link.Record{Kind: "tool", Name: "x", Code: "ring_denied", Count: 1, Weight: rings.Root})
				}
				for _, kind := range s.post.kinds() {
					if kind == EventBreach {
						n++
					}
				}
				return n
			}
			for before := range 4 { // by then it would have been a critical one too
				if got := breaches(); got <= before {
					t.Errorf("%d times what is a breach: %d are told", before+1, got)
				}
				tt.between(s, c)
			}
		})
	}
}

// An agent that was lowered is in the middle of what it was allowed a moment ago.
func TestH24BusyAgentIsLeftAlone(t *testing.T) {
	s := newSite(t)
	s.score("a", 0.7, false)
	c := s.control(func(_ *Request, o *ControlOptions) { o.OnBreach = profiles.BreachKill })
	e := mustElevate(t, c, to(rings.Standard))
	if _, err := c.Revoke(t.Context(), e.ID, "uid:0"); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if err := c.attempt(rings.Standard, 1, "tool x"); err != nil {
			t.Fatal(err)
		}
	}
	if s.agent("a").Quarantined != nil {
		t.Fatal("it was held for what it was allowed a moment ago")
	}
	s.clock.pass(fallTime)
	for range 19 {
		if err := c.attempt(rings.Standard, 1, "tool x"); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.attempt(rings.Standard, 1, "tool x"); err == nil {
		t.Error("it may hammer for ever")
	}
}

func (c *Control) isTold() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.toldHeld
}

func (a *alarm) isTripped() bool { return a.told.Load() > 0 }

// A release forgives, and the next breach counts again; also when the run never looked while its agent was in quarantine.
func TestH24BreachAfterRelease(t *testing.T) {
	for name, looks := range map[string]bool{"seen": true, "unseen": false} {
		t.Run(name, func(t *testing.T) { breachAfterRelease(t, looks) })
	}
}

func breachAfterRelease(t *testing.T, looks bool) {
	s := newSite(t)
	s.score("a", 0.7, false)
	c := s.control()
	c.loanMu.Lock() // what follows from a change waits for it
	for range 3 {
		_ = c.attempt(rings.Root, 1, "tool x")
	}
	if s.agent("a").Quarantined == nil {
		t.Fatal("no breach")
	}
	if looks {
		c.loanMu.Unlock()
		for !c.isTold() {
			time.Sleep(time.Millisecond)
		}
	}
	free := func(id string) {
		if err := s.update(t.Context(), func(tx *store.Tx) error { return tx.Bucket(quarantineBucket).Delete(id) }); err != nil {
			t.Fatal(err)
		}
	}
	free("a")
	if _, err := c.Agent(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !looks {
		c.loanMu.Unlock()
	}
	for c.adm.alarm.isTripped() {
		time.Sleep(time.Millisecond)
	}
	for range 3 {
		_ = c.attempt(rings.Root, 1, "tool x")
	}
	if s.agent("a").Quarantined == nil {
		t.Error("the second breach was overlooked")
	}
}

func TestH21KillOrder(t *testing.T) {
	s := newSite(t)
	s.score("a", 0.7, false)
	c := s.control(func(r *Request, _ *ControlOptions) { r.Ring = rings.Standard })
	hangs := make(chan struct{})
	add := func(what string) rings.Callback {
		return func(context.Context) error {
			s.crew.mu.Lock()
			defer s.crew.mu.Unlock()
			s.crew.did = append(s.crew.did, what)
			return nil
		}
	}
	err := errors.Join(
		c.RegisterHandler("h1", func(ctx context.Context) error { <-hangs; return add("h1")(ctx) }),
		c.RegisterHandler("h2", func(context.Context) error { panic("x") }),
		c.RegisterCompensation("c1", add("c1")),
		c.RegisterSubstitute("b"),
	)
	if err != nil {
		t.Fatal(err)
	}
	_, changed := c.Ring()
	done := make(chan rings.KillResult)
	go func() {
		done <- c.Kill(nil, KillRequest{Reason: rings.KillManual, Action: "tool.x.invoke", By: "uid:0", Detail: "because"}) //nolint:staticcheck // a caller's mistake mustn't save the run
	}()
	<-changed
	wantRing(t, c, rings.Sandbox)
	for len(s.crew.log()) == 0 {
		time.Sleep(time.Millisecond)
	}
	if d := cmp.Diff([]string{"freeze"}, s.crew.log()); d != "" {
		t.Errorf("a handler hangs, and: %s", d)
	}
	if _, err := c.Elevate(t.Context(), to(rings.Standard)); code(t, err) != link.CodeCanceled {
		t.Errorf("got %v in the middle of a kill", err)
	}
	close(hangs)
	res := <-done
	if d := cmp.Diff([]string{"freeze", "h1", "c1", "kill"}, s.crew.log()); d != "" {
		t.Error(d)
	}
	if !res.ProcessesDead || res.ProcessesKilled != 3 || res.CallbacksExecuted != 2 || res.CompensationsExecuted != 1 || res.HandoffAgentID == nil || *res.HandoffAgentID != "b" || len(res.Errors) != 1 {
		t.Errorf("got %+v", res)
	}
	c.Close()
	orders, kills := s.records("node", "kill_order"), s.records("node", "kill")
	if len(orders) != 1 || len(kills) != 1 {
		t.Fatalf("got %d orders and %d kills on record", len(orders), len(kills))
	}
	if d := cmp.Diff(&audit.KillOrder{AgentID: "a", By: "uid:0", Reason: "manual", RunID: "r1", Trigger: "operator"}, orders[0]); d != "" {
		t.Error(d)
	}
	want := &audit.Kill{Action: "tool.x.invoke", AgentID: "a", CallbacksExecuted: 2, CompensationsExecuted: 1, Errors: []string{"handler:h2"}, HandoffAgentID: "b",
		KilledAt: s.clock.now(), ProcessesKilled: 3, Reason: "manual", RunID: "r1"}
	if d := cmp.Diff(want, kills[0]); d != "" {
		t.Error(d)
	}
}

// A handler is told what it is run for, and the run's end waits for it: its record is written before the node closes.
func TestH21CloseWaitsForAKill(t *testing.T) {
	s := newSite(t)
	c := s.control(func(_ *Request, o *ControlOptions) { o.HandlerLimit = 50 * time.Second })
	began, hangs := make(chan time.Duration, 1), make(chan struct{})
	ask := KillRequest{Reason: rings.KillManual, Action: "tool.x.invoke", By: "uid:0", Detail: "because"}
	var got KillRequest
	err := c.RegisterHandler("h", func(ctx context.Context) error {
		got = KillRequestOf(ctx)
		end, _ := ctx.Deadline()
		began <- time.Until(end)
		<-hangs
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	go c.Kill(context.Background(), ask)
	if left := <-began; left < 10*time.Second {
		t.Errorf("%v left, want nearly 50s", left)
	}
	closed := make(chan error)
	go func() { closed <- c.Close() }()
	select {
	case err := <-closed:
		t.Errorf("closed in the middle of a kill: %v", err)
	case <-time.After(20 * time.Millisecond): // enough for one that doesn't wait
	}
	close(hangs)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if got != ask {
		t.Errorf("the handler was told %+v, want %+v", got, ask)
	}
	if n := len(s.records("node", "kill")); n != 1 {
		t.Errorf("%d kills on record when it is closed, want 1", n)
	}
}

func TestH22TwentyKills(t *testing.T) {
	s := newSite(t)
	c := s.control()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { c.Kill(t.Context(), KillRequest{Reason: rings.KillManual}) })
	}
	wg.Wait()
	c.Close()
	if n := len(s.records("node", "kill")); n != 20 || len(c.Kills()) != 20 {
		t.Errorf("got %d records and %d results, want 20", n, len(c.Kills()))
	}
}

// A kill that comes before there are processes hits them as soon as they are there.
func TestH21KillBeforeTheStart(t *testing.T) {
	s := newSite(t)
	c := s.control(func(_ *Request, o *ControlOptions) { o.Processes = nil })
	res := c.Kill(t.Context(), KillRequest{Reason: rings.KillManual})
	if res.ProcessesDead || len(res.Errors) == 0 {
		t.Errorf("got %+v, want it not called dead", res)
	}
	c.SetProcesses(s.crew)
	<-s.crew.dead
}

// A substitute that is held, or about whom nothing can be read, takes nothing over.
func TestH21SubstituteMustBeFit(t *testing.T) {
	for _, held := range []bool{false, true} {
		s := newSite(t)
		s.set("a", func(a *AgentSettings) { a.Substitute = "b" })
		if _, err := s.SetAgent(t.Context(), "a", "uid:0", func(a *AgentSettings) { a.Substitute = "a" }); !errors.Is(err, ErrSetting) {
			t.Errorf("got %v, want no agent to stand in for itself", err)
		}
		c := s.control()
		if held {
			if _, err := s.Quarantine(t.Context(), "b", Cause{Code: "operator", Reason: "x"}); err != nil {
				t.Fatal(err)
			}
		}
		res := c.Kill(t.Context(), KillRequest{Reason: rings.KillManual})
		if (res.HandoffAgentID == nil) != held {
			t.Errorf("held %v: got %v", held, res.HandoffAgentID)
		}
	}
}

func TestH23Triggers(t *testing.T) {
	for _, tt := range []struct {
		name    string
		trigger func(*site, *Control, *Broker) error
		reason  rings.KillReason
		by      string
	}{
		{"alarm of the policy", func(s *site, _ *Control, e *Broker) error {
			return e.Alarm(s.t.Context(), link.Alarm{Reason: rings.KillPolicyViolation, Action: "tool.x.invoke", Detail: "why"})
		}, rings.KillPolicyViolation, "policy_engine"},
		{"alarm of the breaker", func(s *site, _ *Control, e *Broker) error {
			return e.Alarm(s.t.Context(), link.Alarm{Reason: rings.KillCircuitBreaker})
		}, rings.KillCircuitBreaker, "circuit_breaker"},
		{"breach", func(_ *site, c *Control, _ *Broker) error {
			for range 3 {
				_ = c.attempt(rings.Root, 1, "tool x")
			}
			return nil
		}, rings.KillRingBreach, "ring_breach"},
		{"quarantine", func(s *site, _ *Control, _ *Broker) error {
			_, err := s.Quarantine(s.t.Context(), "a", Cause{Code: "operator", Reason: "x"})
			return err
		}, rings.KillQuarantineTimeout, "quarantine"},
		{"session", func(s *site, _ *Control, _ *Broker) error {
			_, err := s.ArchiveSession(s.t.Context(), "s")
			return err
		}, rings.KillSessionTimeout, "session"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			if _, err := s.CreateSession(t.Context(), session("s", rings.Eventual)); err != nil {
				t.Fatal(err)
			}
			if _, err := s.JoinSession(t.Context(), "s", "a"); err != nil {
				t.Fatal(err)
			}
			c := s.control(func(r *Request, o *ControlOptions) {
				r.Session = "s"
				if tt.name == "breach" {
					o.OnBreach = profiles.BreachKill
				}
				if tt.name == "quarantine" {
					o.QuarantineTimeout = time.Millisecond
				}
			})
			e := c.Broker(BrokerOptions{MaxSteps: 9})
			defer e.Close()
			for _, r := range append(rings.KillReasons(), "", "nope") {
				if r == rings.KillPolicyViolation || r == rings.KillCircuitBreaker {
					continue
				}
				if err := e.Alarm(t.Context(), link.Alarm{Reason: r}); err == nil {
					t.Errorf("a gateway may say %q", r)
				}
			}
			if len(s.crew.log()) > 0 {
				t.Fatal("killed for a reason that isn't a gateway's")
			}
			if err := tt.trigger(s, c, e); err != nil {
				t.Fatal(err)
			}
			<-s.crew.dead
			if v := check(t, e, tool("math")); v.Allowed || v.Code != link.CodeCanceled {
				t.Errorf("got %+v after the kill", v)
			}
			e.Close()
			c.Close()
			kills := c.Kills()
			if len(kills) != 1 || kills[0].Reason != tt.reason {
				t.Fatalf("got %+v, want one kill for %s", kills, tt.reason)
			}
			orders := s.records(audit.SessionChain("s"), "kill_order")
			if len(orders) != 1 || orders[0].(*audit.KillOrder).Trigger != tt.by {
				t.Errorf("got %+v, want %s", orders, tt.by)
			}
		})
	}
}

// M-22: a ring that was granted and can't be given is no grant, says nothing of the host, and leaves the place free.
func TestM22UnappliedIsNoGrant(t *testing.T) {
	s := newSite(t)
	s.score("a", 0.7, false)
	s.set("a", func(a *AgentSettings) { a.SelfElevation = true })
	c := s.control()
	why := errors.New("no room in /srv/of/the/host")
	c.opt.Settled = func(context.Context) { c.Unapplied(rings.Standard, why) }
	e := c.Broker(BrokerOptions{})
	defer e.Close()
	r := link.Elevation{Target: rings.Standard, TTL: time.Minute, Reason: "need to build"}
	got, err := e.Elevate(t.Context(), r)
	if err != nil || got.Granted || got.Code != CodeUnapplied || got.Next == "" || strings.Contains(got.Message, "host") {
		t.Errorf("got %+v, %v", got, err)
	}
	wantRing(t, c, rings.Sandbox)
	if _, _, ok := c.Elevation(); ok {
		t.Error("the elevation goes on")
	}
	c.Unapplied(rings.Standard, why) // there is none any more
	c.opt.Settled = func(context.Context) {}
	if got, err := e.Elevate(t.Context(), r); err != nil || !got.Granted {
		t.Errorf("the next got %+v, %v", got, err)
	}
	c.Unapplied(rings.Privileged, why) // another's
	wantRing(t, c, rings.Standard)
}

func TestH13AgentAsksItself(t *testing.T) {
	for _, tt := range []struct {
		name   string
		self   bool
		score  float64
		answer string // of an operator; empty: nobody answers
		want   rings.Code
		by     string
	}{
		{"self-service", true, 0.7, "", rings.CodeOK, AgentItself},
		{"self-service, not earned", true, 0.4, "", rings.CodeInsufficientTrust, AgentItself},
		{"not earned, nobody is asked", false, 0.4, "approve", rings.CodeInsufficientTrust, AgentItself},
		{"approved", false, 0.7, "approve", rings.CodeOK, "uid:42"},
		{"denied", false, 0.7, "deny", link.CodeApproval, ""},
		{"doesn't wait", false, 0.7, "", link.CodeApproval, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			s.score("a", tt.score, false)
			s.set("a", func(a *AgentSettings) { a.SelfElevation = tt.self })
			if _, err := s.GrantApproval(t.Context(), StandingGrant{Agent: "a", Tool: ApprovalElevation, By: "uid:0", Expires: s.clock.now().Add(time.Hour)}); err != nil {
				t.Fatal(err)
			}
			c := s.control()
			settled := false // M-22: it is told when the ring is there
			c.opt.Settled = func(context.Context) { settled = true }
			e := c.Broker(BrokerOptions{})
			defer e.Close()
			r := link.Elevation{Target: rings.Standard, TTL: time.Minute, Reason: "need to build"}
			answered := make(chan error, 1)
			if tt.answer != "" {
				r.Wait = time.Minute
			}
			if tt.answer != "" && tt.score > 0.5 {
				go func() {
					a := s.waiting()
					if a.Kind != ApprovalElevation || string(a.Args) != `{"reason":"need to build","target_ring":2,"ttl_seconds":60}` {
						t.Errorf("got %s %s", a.Kind, a.Args)
					}
					_, err := s.AnswerApproval(context.Background(), a.ID, tt.answer == "approve", "uid:42")
					answered <- err
				}()
			} else {
				answered <- nil
			}
			got, err := e.Elevate(t.Context(), r)
			if err := errors.Join(err, <-answered); err != nil {
				t.Fatal(err)
			}
			if settled != got.Granted {
				t.Errorf("settled %v, granted %v", settled, got.Granted)
			}
			if got.Code != tt.want || got.Granted != (tt.want == rings.CodeOK) || !got.Granted && (got.Message == "" || got.Next == "") {
				t.Errorf("got %+v, want %s", got, tt.want)
			}
			want := rings.Sandbox
			if got.Granted {
				want = rings.Standard
				if got.Target != rings.Standard || got.TTL != time.Minute || got.ID == "" || got.Expires.IsZero() {
					t.Errorf("got %+v", got)
				}
			}
			wantRing(t, c, want)
			if s.agent("a").Quarantined != nil {
				t.Error("asking is a breach")
			}
			e.Close()
			c.Close()
			recs := s.records("node", "elevation")
			if tt.by == "" {
				if len(recs) != 0 {
					t.Errorf("got %+v beside the approval's own records", recs)
				}
			} else if len(recs) != 1 || recs[0].(*audit.Elevation).By != tt.by {
				t.Errorf("got %+v, want one by %s", recs, tt.by)
			}
		})
	}
}

// A gateway that has fallen asks for a tool of that name: what an operator says to that lends no ring.
func TestH13GatewayClaimsAnApproval(t *testing.T) {
	s := newSite(t)
	s.score("a", 0.7, false)
	c := s.control()
	e := c.Broker(BrokerOptions{})
	defer e.Close()
	if _, err := s.GrantApproval(t.Context(), StandingGrant{Agent: "a", Tool: ApprovalElevation, By: "uid:0", Expires: s.clock.now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if a, err := e.Approve(t.Context(), approvalOf(ApprovalElevation, "{}")); err != nil || !a.Allowed {
		t.Fatalf("got %+v %v", a, err)
	}
	wantRing(t, c, rings.Sandbox)
	asked := 0
	for {
		got, err := e.Elevate(t.Context(), link.Elevation{Target: rings.Standard})
		if err != nil {
			t.Fatal(err)
		}
		if got.Granted {
			t.Fatal("granted")
		}
		if asked++; got.Code == link.CodeRateLimited {
			break
		}
	}
	if asked != 11 {
		t.Errorf("got %d, want the burst of ring 3 to bound it", asked-1)
	}
	for _, r := range []link.Elevation{{}, {Target: rings.Standard, TTL: -1}, {Target: rings.Standard, Reason: strings.Repeat("x", 5000)}} {
		if got, err := e.Elevate(t.Context(), r); err == nil || got != (link.Elevated{}) {
			t.Errorf("%+v: got %+v", r, got)
		}
	}
	c.Kill(t.Context(), KillRequest{Reason: rings.KillManual})
	if got, err := e.Elevate(t.Context(), link.Elevation{Target: rings.Standard}); err != nil || got.Code != link.CodeCanceled {
		t.Errorf("got %+v %v after the kill", got, err)
	}
}

// H-21: in-flight steps are handed off or undone; a saga that another process runs finds the order.
func TestH21SagaSteps(t *testing.T) {
	for _, substitute := range []string{"", "b"} {
		t.Run("to "+substitute, func(t *testing.T) {
			s := newSite(t)
			db, err := s.store()
			if err != nil {
				t.Fatal(err)
			}
			journal := sagas.NewDurable(db)
			for _, id := range []string{"free", "mine", "others", "taken"} {
				rec := sagas.Record{ID: id, Name: id, Agent: "a", State: sagas.Executing, CreatedAt: s.clock.now(), UpdatedAt: s.clock.now(),
					Steps: []sagas.StepRecord{{ID: "one", State: sagas.StepExecuting, Attempts: 1, Idempotent: true}}}
				if id == "taken" { // over from an agent that was killed before
					rec.Agent, rec.HandoffAgent = "c", "a"
				}
				if err := journal.Create(t.Context(), &rec, nil); err != nil {
					t.Fatal(err)
				}
			}
			for _, id := range []string{"mine", "others"} { // other processes run these
				lock, err := journal.Lock(id)
				if err != nil {
					t.Fatal(err)
				}
				defer lock.Unlock()
			}
			var undone []string
			c := s.control(func(_ *Request, o *ControlOptions) {
				o.Name = "saga-mine"
				o.UndoSaga = func(_ context.Context, id string) error { undone = append(undone, id); return nil }
			})
			if substitute != "" {
				if err := c.RegisterSubstitute(substitute); err != nil {
					t.Fatal(err)
				}
			}
			res := c.Kill(t.Context(), KillRequest{Reason: rings.KillManual})
			if d := cmp.Diff([]string{"free/one", "mine/one", "taken/one"}, res.Steps); d != "" || len(res.Errors) > 0 {
				t.Errorf("got %v %s", res.Errors, d)
			}
			free, err := journal.Get(t.Context(), "free")
			if err != nil || free.HandoffAgent != substitute || (substitute == "") != slices.Equal(undone, []string{"free", "taken"}) {
				t.Errorf("got %+v %v, undone %v", free, err, undone)
			}
			o, ok, err := s.SagaOrder(t.Context(), "mine")
			if err != nil || !ok || o != (SagaOrder{Saga: "mine", Substitute: substitute, Run: "r1"}) {
				t.Errorf("got %+v %v %v", o, ok, err)
			}
			if _, ok, _ := s.SagaOrder(t.Context(), "others"); ok {
				t.Error("another run's saga was stopped")
			}
			begin := sagas.Transition{Agent: "a", SagaID: "mine", StepID: "one", State: sagas.StepExecuting, AttemptCount: 2}
			if err := s.SagaTransition(t.Context(), begin); code(t, err) != CodeKilled {
				t.Errorf("got %v, want the next attempt not to begin", err)
			}
			follow := sagas.Transition{Agent: "a", SagaID: "mine", StepID: "one", State: sagas.StepHandedOff}
			if substitute == "" {
				follow.State, follow.Undo = sagas.StepExecuting, true
			}
			if err := s.SagaTransition(t.Context(), follow); err != nil {
				t.Fatal(err)
			}
			if err := s.SagaTransition(t.Context(), begin); err != nil {
				t.Errorf("got %v after the order was followed", err)
			}
		})
	}
}

// Everything at once: the invariants are the race detector's, and that nothing is left.
func TestM22ManyAtOnce(t *testing.T) {
	s := newSite(t)
	s.score("a", 0.9, true)
	c := s.control()
	var wg sync.WaitGroup
	ctx := t.Context()
	for i := range 4 {
		wg.Go(func() {
			for range 10 {
				_, _ = c.Elevate(ctx, to(rings.Standard))
				_, _, _ = c.Elevation()
				_ = c.CheckElevation(ctx, to(rings.Privileged))
				_, _ = c.Revoke(ctx, "", "uid:0")
				ring, _ := c.Ring()
				if ring == rings.Privileged {
					t.Error("nobody asked for ring 1")
				}
				if i == 0 {
					s.clock.pass(time.Second)
				}
			}
		})
	}
	wg.Go(func() {
		for i := range 10 {
			s.score("a", []float64{0.4, 0.9}[i%2], true)
		}
	})
	wg.Wait()
	c.Kill(ctx, KillRequest{Reason: rings.KillManual})
	wantRing(t, c, rings.Sandbox)
	c.Close()
	granted, ended := 0, len(s.records("node", "elevation_end"))
	for _, r := range s.records("node", "elevation") {
		if r.(*audit.Elevation).Granted {
			granted++
		}
	}
	if granted != ended {
		t.Errorf("got %d granted and %d ended", granted, ended)
	}
}

// H-32: an agent that leaves files of new names in each of its runs leaves no more of them in the state than a session's share, and the end
// of the next run reads nothing of runs that were over before it began: all runs of the node wait for it.
func TestH32WritesOfManyRuns(t *testing.T) {
	n := newNode(t)
	n.score("a", 0.75, false)
	n.score("b", 0.75, false)
	if _, err := n.CreateSession(t.Context(), rings.SessionConfig{SessionID: "s", MinParticipants: 1, MaxParticipants: 2, ConsistencyMode: rings.Eventual}); err != nil {
		t.Fatal(err)
	}
	runs := map[string]*Control{}
	for _, agent := range []string{"a", "b"} {
		if _, err := n.JoinSession(t.Context(), "s", agent); err != nil {
			t.Fatal(err)
		}
		runs[agent] = n.Control(n.admit(Request{Agent: agent, Session: "s"}), ControlOptions{Run: "of-" + agent})
		t.Cleanup(func() { _ = runs[agent].Close() })
	}
	write := func(path, text string) runtime.FileWrite {
		return runtime.FileWrite{Path: path, Written: fsjail.Written{Sum: sha256.Sum256([]byte(text)), At: n.now}}
	}
	record := func(agent, run string, began time.Time, files ...runtime.FileWrite) []string {
		t.Helper()
		c := runs[agent]
		c.opt.Run = run
		n.now = n.now.Add(time.Second)
		conflicts, err := c.RecordWrites(t.Context(), "/folder", began, files)
		if err != nil {
			t.Fatal(err)
		}
		return conflicts
	}
	const many, each = 60, 1000
	begun := n.now
	for i := range many {
		var files []runtime.FileWrite
		for k := range each {
			files = append(files, write(fmt.Sprintf("%d/%d", i, k), "x"))
		}
		record("a", fmt.Sprintf("run%d", i), n.now, files...)
	}
	if st, err := os.Stat(filepath.Join(n.dir, stateFile)); err != nil || st.Size() > 16<<20 {
		t.Errorf("the state has %d MiB of %d runs, %v", st.Size()>>20, many, err)
	}
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	if conflicts := record("b", "next", n.now, write("59/1", "y")); len(conflicts) != 0 {
		t.Errorf("what was there before: %q", conflicts)
	}
	goruntime.ReadMemStats(&after)
	if read := after.TotalAlloc - before.TotalAlloc; read > 4<<20 {
		t.Errorf("the end of a run that wrote a file read %d MiB of earlier ones", read>>20)
	}
	if conflicts := record("b", "beside", begun, write("59/1", "z"), write("59/2", "x"), write("new", "z")); !slices.Equal(conflicts, []string{"59/1"}) {
		t.Errorf("a run that lived beside them: %q, want that of another's write", conflicts)
	}
	if conflicts := record("a", "last", begun, write("new", "x"), write("59/2", "x")); !slices.Equal(conflicts, []string{"new"}) {
		t.Errorf("the last: %q", conflicts)
	}
	if kinds := strings.Join(n.log("session-s"), " "); strings.Count(kinds, "conflict") != 2 {
		t.Errorf("on record: %s, want both", kinds)
	}
}
