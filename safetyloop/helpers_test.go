// SPDX-License-Identifier: Apache-2.0

package safetyloop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"agentrun/audit"
	"agentrun/store"
	"agentrun/telemetry"
)

// clock is one that a test turns.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func newClock() *clock { return &clock{at: time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) turn(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// words judges a hint by the first of its words that it knows: "deny", "approval", "auto", "vague", "score:70".
type words struct{}

func (words) Judge(_ context.Context, hint string) (Judgement, error) {
	j := Judgement{Rule: RuleDefault, Verb: "read", Target: "notes"}
	for _, w := range strings.Fields(hint) {
		switch w {
		case "deny":
			j.Rule, j.Pattern = RuleDeny, "deny*"
		case "approval":
			j.Rule, j.Pattern = RuleRequiresApproval, "*approval*"
		case "auto":
			j.Rule, j.Pattern = RuleAutoApprove, "auto*"
		case "vague":
			j.Vague = true
		case "broken":
			return j, errors.New("secret detail of the judge")
		case "nonsense":
			j.Score = 101
		}
		_, _ = fmt.Sscanf(w, "score:%d", &j.Score)
	}
	if j.Score > 0 {
		j.Factors = []Factor{{Name: "test", Points: j.Score, Detail: "as the hint says"}}
	}
	return j, nil
}

// account keeps records in the form that they have on the disk.
type account struct {
	mu   sync.Mutex
	log  *audit.Memory
	err  error
	list []audit.Record
}

func newAccount(t testing.TB) *account {
	t.Helper()
	m, err := audit.NewMemory(audit.NodeChain, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return &account{log: m}
}

func (a *account) Record(_ context.Context, _ string, r audit.Record) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil {
		return a.err
	}
	if _, err := a.log.Append(r); err != nil {
		return err
	}
	a.list = append(a.list, r)
	return nil
}

func (a *account) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
}

// lines gives a word for each record, newest last.
func (a *account) lines() (all []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.list {
		switch r := r.(type) {
		case *audit.SafetyOperation:
			all = append(all, r.Operation+" "+r.Code)
		case *audit.SafetyStep:
			all = append(all, "step "+r.Stage+" "+r.Verdict)
		case *audit.SafetyChallenge:
			all = append(all, "challenge "+r.Event)
		case *audit.SafetyConfirmation:
			all = append(all, strings.TrimSpace("confirmation "+r.Event+" "+r.Reason))
		case *audit.SafetyBlock:
			all = append(all, "block "+r.Event+" "+r.Reason)
		}
	}
	return all
}

func (a *account) has(line string) bool {
	for _, l := range a.lines() {
		if l == line {
			return true
		}
	}
	return false
}

// screen is a Channel that remembers.
type screen struct {
	mu    sync.Mutex
	shown []Challenge
	err   error
}

func (s *screen) Show(_ context.Context, c Challenge) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown = append(s.shown, c)
	return s.err
}

// freezer is an Enforcer that writes down what it was told, and breaks on request.
type freezer struct {
	mu     sync.Mutex
	events []string
	err    error
	before func() // looked at when Stop is called
}

func (f *freezer) Stop(_ context.Context, agent, _ string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.before != nil {
		f.before()
	}
	f.events = append(f.events, "stop "+agent)
	return f.err
}

func (f *freezer) Resume(_ context.Context, agent string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, "resume "+agent)
	return f.err
}

// bench is a loop with everything around it.
type bench struct {
	t       testing.TB
	clock   *clock
	account *account
	screen  *screen
	freezer *freezer
	set     Settings
	*Loop
}

func newBench(t testing.TB, change ...func(*Settings)) *bench {
	t.Helper()
	b := &bench{t: t, clock: newClock(), account: newAccount(t), screen: &screen{}, freezer: &freezer{}}
	b.set = Settings{
		Mode: Enforcing, Tolerance: Moderate, MaxSteps: 5, Confirm: ConfirmClient,
		Store: store.NewMemory(), Record: b.account, Judge: words{}, Channels: []Channel{b.screen}, Now: b.clock.now,
	}
	for _, c := range change {
		c(&b.set)
	}
	b.restart()
	t.Cleanup(func() { b.Close() })
	return b
}

// restart makes a new loop over the same store, as a new process does.
func (b *bench) restart() {
	b.t.Helper()
	if b.Loop != nil {
		b.Close()
	}
	l, err := New(b.set)
	if err != nil {
		b.t.Fatal(err)
	}
	b.Loop = l
}

func params(pairs ...any) json.RawMessage {
	m := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i].(string)] = pairs[i+1]
	}
	raw, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return raw
}

var alice, bob, operator = Caller{Principal: "alice"}, Caller{Principal: "bob"}, Caller{Principal: "carol", Operator: true}

func (b *bench) call(c Caller, op string, pairs ...any) Reply {
	b.t.Helper()
	return b.Do(b.t.Context(), Call{Caller: c, Endpoint: endpointOf(op), Operation: op, Params: telemetry.NewPlaintext(params(pairs...))})
}

// step reports one and wants a directive.
func (b *bench) step(c Caller, element, hint string, pairs ...any) Directive {
	b.t.Helper()
	r := b.call(c, opStep, append([]any{pElement, element, pHint, hint}, pairs...)...)
	d, ok := r.Data.(Directive)
	if !ok {
		b.t.Fatalf("step %q: got %+v, %+v, want a directive", hint, r, r.Error)
	}
	if d.Factors == nil {
		b.t.Errorf("step %q: no factors", hint)
	}
	return d
}

func (b *bench) wantCode(r Reply, code string) map[string]any {
	b.t.Helper()
	if r.Success || r.Error == nil || r.Error.Code != code {
		b.t.Fatalf("got %+v (%+v), want %s", r, r.Error, code)
	}
	return r.Error.Details
}

func (b *bench) wantOK(r Reply) map[string]any {
	b.t.Helper()
	if !r.Success || r.Error != nil {
		b.t.Fatalf("got %+v, want success", r.Error)
	}
	m, _ := r.Data.(map[string]any)
	return m
}

// meta finds a member of the metadata of a notification.
func meta(d Directive, kind, member string) string {
	for _, n := range d.Notifications {
		if n.Type == kind {
			if s, ok := n.Metadata[member].(string); ok {
				return s
			}
		}
	}
	return ""
}

// code reads the challenge's code as an operator does.
func (b *bench) code(id string) string {
	b.t.Helper()
	c, err := b.Show(b.t.Context(), "uid:0", id)
	if err != nil || c.Code.Reveal() == "" {
		b.t.Fatalf("show %s: %v", id, err)
	}
	return c.Code.Reveal()
}

func wantErr(t testing.TB, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

type discard struct{}

func (discard) Record(context.Context, string, audit.Record) error { return nil }

func endpointOf(name string) Endpoint {
	if o := operation(name); o != nil {
		return o.endpoint()
	}
	return NoEndpoint
}

// The table of types can be read, and names what the loop speaks of; an unreadable one would be an empty list.
func TestTypes(t *testing.T) {
	tiers := []string{tierAdvisory, tierConfirm, tierVerify, tierDanger}
	if found := typeNamed("SafetyTier"); found == nil || !slices.Equal(found.Values, tiers) {
		t.Errorf("got %+v, want the tiers %v", found, tiers)
	}
	notes := typeNamed("AgentNotification")
	if notes == nil || !slices.Equal(notes.Fields[0].Values, []string{notePermission, notePause, noteDanger}) {
		t.Errorf("got %+v, want the types of notifications", notes)
	}
	if len(types()) != 9 {
		t.Errorf("got %d types, want 9", len(types()))
	}
}
