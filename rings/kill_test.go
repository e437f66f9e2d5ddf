// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// scene is a kill switch whose hooks write down what happens.
type scene struct {
	mu     sync.Mutex
	events []string
	audits []KillResult

	freezeErr, processErr, auditErr, intentErr error
	opt                                        KillOptions
	k                                          *KillSwitch
}

func (s *scene) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, fmt.Sprintf(format, args...))
}

func (s *scene) callback(name string, err error) Callback {
	return func(context.Context) error { s.note("%s", name); return err }
}

func newScene(t *testing.T, change ...func(*scene)) *scene {
	t.Helper()
	s := &scene{}
	s.opt = KillOptions{
		Clock:      time.Now,
		Quarantine: newQuarantine(t),
		Hooks: KillHooks{
			Freeze: func(_ context.Context, agent string) error { s.note("freeze %s", agent); return s.freezeErr },
			Intent: func(_ context.Context, agent string, kc KillContext) error {
				s.note("intent %s", kc.Reason)
				return s.intentErr
			},
			Steps: func(_ context.Context, agent string, o StepOutcome, to string) ([]string, error) {
				s.note("steps %s %s", o, to)
				return []string{"step-1"}, nil
			},
			Processes: func(_ context.Context, agent string) (int, error) {
				s.note("processes %s", agent)
				return 3, s.processErr
			},
			Audit: func(_ context.Context, r KillResult) error {
				s.mu.Lock()
				defer s.mu.Unlock()
				if s.auditErr == nil {
					s.audits = append(s.audits, r)
				}
				return s.auditErr
			},
		},
	}
	for _, c := range change {
		c(s)
	}
	k, err := NewKillSwitch(s.opt)
	if err != nil {
		t.Fatal(err)
	}
	s.k = k
	return s
}

func (s *scene) happened(t *testing.T, want ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if diff := cmp.Diff(want, s.events); diff != "" {
		t.Errorf("what happened (-want +got):\n%s", diff)
	}
}

func stages(r KillResult) []string {
	var list []string
	for _, e := range r.Errors {
		list = append(list, strings.TrimSuffix(string(e.Stage)+" "+e.Name, " "))
	}
	return list
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func TestH21Order(t *testing.T) {
	s := newScene(t)
	must(t,
		s.k.RegisterCompensation("a", "c1", s.callback("c1", nil)),
		s.k.RegisterHandler("a", "h1", s.callback("h1", nil)),
		s.k.RegisterHandler("a", "h2", s.callback("h2", errors.New("no"))),
		s.k.RegisterCompensation("a", "c2", s.callback("c2", nil)),
		s.k.RegisterHandler("other", "x", s.callback("x", nil)),
		s.k.RegisterSubstitute("a", "b"),
	)
	res := s.k.Kill(t.Context(), "a", KillContext{Reason: KillRingBreach})
	s.happened(t, "freeze a", "intent ring_breach", "h1", "h2", "c1", "c2", "steps HANDED_OFF b", "processes a")
	if res.CallbacksExecuted != 2 || res.CompensationsExecuted != 2 || res.ProcessesKilled != 3 || !res.ProcessesDead {
		t.Errorf("got %+v", res)
	}
	if diff := cmp.Diff([]string{"handler h2"}, stages(res)); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
	// The second time only the processes are left to kill.
	s.events = nil
	res = s.k.Kill(t.Context(), "a", KillContext{Reason: KillManual})
	s.happened(t, "freeze a", "intent manual", "steps COMPENSATED ", "processes a")
	if res.CallbacksExecuted != 0 || res.CompensationsExecuted != 0 || res.HandoffAgentID != nil {
		t.Errorf("got %+v", res)
	}
}

// Whatever fails, the processes die, and a record says what failed.
func TestH21EverythingFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release) // the abandoned ones end, or synctest finds them
		hang := func(context.Context) error { <-release; return nil }
		s := newScene(t, func(s *scene) {
			s.freezeErr, s.intentErr, s.auditErr = errors.New("no freezer"), errors.New("disk full"), errors.New("disk full")
			s.opt.Hooks.Steps = func(context.Context, string, StepOutcome, string) ([]string, error) { panic("steps") }
		})
		must(t,
			s.k.RegisterHandler("a", "error", func(context.Context) error { return errors.New("no") }),
			s.k.RegisterHandler("a", "panic", func(context.Context) error { panic(errors.New("no")) }),
			s.k.RegisterHandler("a", "panic nil", func(context.Context) error { panic(nil) }),
			s.k.RegisterHandler("a", "goexit", func(context.Context) error { goruntime.Goexit(); return nil }),
			s.k.RegisterHandler("a", "hang", hang),
			s.k.RegisterHandler("a", "patient", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }),
			s.k.RegisterHandler("a", "last", s.callback("last", nil)),
			s.k.RegisterCompensation("a", "hang", hang),
			s.k.RegisterCompensation("a", "last", s.callback("last c", nil)),
		)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		res := s.k.Kill(gone, "a", KillContext{Reason: KillManual})
		// Without a freeze the processes are killed first: the agent has none of the 15 s that the others hang.
		s.happened(t, "freeze a", "processes a", "intent manual", "last", "last c", "processes a")
		want := []string{"freeze", "intent", "handler error", "handler panic", "handler panic nil", "handler goexit", "handler hang",
			"handler patient", "compensation hang", "steps", "audit"}
		if diff := cmp.Diff(want, stages(res)); diff != "" {
			t.Errorf("errors (-want +got):\n%s", diff)
		}
		if res.CallbacksExecuted != 7 || res.CompensationsExecuted != 2 || !res.ProcessesDead || res.Duration != 15*time.Second {
			t.Errorf("got %+v, want 7 and 2 executed in 15 s", res)
		}
		if h := s.k.History(); len(h) != 1 || len(h[0].Errors) != len(want) {
			t.Errorf("history %+v, want the result", h)
		}
	})
}

func TestH21HangingHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		s := newScene(t, func(s *scene) {
			h := &s.opt.Hooks
			h.Freeze = func(context.Context, string) error { <-release; return nil }
			h.Intent = func(context.Context, string, KillContext) error { <-release; return nil }
			h.Steps = func(context.Context, string, StepOutcome, string) ([]string, error) { <-release; return nil, nil }
			h.Audit = func(context.Context, KillResult) error { <-release; return nil }
		})
		res := s.k.Kill(t.Context(), "a", KillContext{Reason: KillManual})
		s.happened(t, "processes a", "processes a")
		if diff := cmp.Diff([]string{"freeze", "intent", "steps", "audit"}, stages(res)); diff != "" {
			t.Errorf("errors (-want +got):\n%s", diff)
		}
	})
}

func TestH21ProcessesThatLive(t *testing.T) {
	s := newScene(t, func(s *scene) { s.processErr = errors.New("one is in uninterruptible sleep") })
	res := s.k.Kill(t.Context(), "a", KillContext{Reason: KillManual})
	if res.ProcessesDead || !slices.Contains(stages(res), "processes") || len(s.audits) != 1 {
		t.Errorf("got %+v, want it told and audited", res)
	}
}

func TestH21Substitute(t *testing.T) {
	s := newScene(t)
	if err := s.k.RegisterSubstitute("a", "a"); err == nil {
		t.Error("an agent is its own substitute")
	}
	if err := s.k.RegisterSubstitute("a", "b\n"); err == nil {
		t.Error("a substitute with a bad id")
	}
	s.opt.Quarantine.Add("held", "breach", "detector")
	s.k.Kill(t.Context(), "dead", KillContext{Reason: KillManual})
	must(t, s.k.RegisterSubstitute("a", "held"), s.k.RegisterSubstitute("a", "dead"))
	if res := s.k.Kill(t.Context(), "a", KillContext{Reason: KillManual}); res.HandoffAgentID != nil || res.StepsOutcome != Compensated {
		t.Errorf("nobody is fit: handed to %q, %s", *res.HandoffAgentID, res.StepsOutcome)
	}
	must(t, s.k.RegisterSubstitute("c", "held"), s.k.RegisterSubstitute("c", "dead"), s.k.RegisterSubstitute("c", "fit"), s.k.RegisterSubstitute("c", "fitter"))
	if res := s.k.Kill(t.Context(), "c", KillContext{Reason: KillManual}); res.HandoffAgentID == nil || *res.HandoffAgentID != "fit" || res.StepsOutcome != HandedOff {
		t.Errorf("handed to %v, want fit", res.HandoffAgentID)
	}
	if err := s.k.RegisterSubstitute("c", "x"); !errors.Is(err, ErrKilled) {
		t.Errorf("register for a killed agent: %v", err)
	}
	s.k.Started("dead")
	must(t, s.k.RegisterSubstitute("d", "dead"))
	if res := s.k.Kill(t.Context(), "d", KillContext{Reason: KillManual}); res.HandoffAgentID == nil {
		t.Error("an agent that was started again isn't fit")
	}
	none := newScene(t, func(s *scene) { s.opt.Quarantine = nil })
	must(t, none.k.RegisterSubstitute("a", "b"))
	if res := none.k.Kill(t.Context(), "a", KillContext{Reason: KillManual}); res.HandoffAgentID != nil {
		t.Error("handed over without knowing who is in quarantine")
	}
}

func TestH22Fields(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 600, time.FixedZone("", 3600))
	s := newScene(t, func(s *scene) { s.opt.Clock = func() time.Time { return at } })
	action := "file.delete"
	got, err := json.Marshal(s.k.Kill(t.Context(), "a", KillContext{Action: &action, Reason: KillPolicyViolation}))
	want := `{"agent_id":"a","action":"file.delete","reason":"policy_violation","killed_at":"2026-01-02T02:04:05.0000006Z",` +
		`"callbacks_executed":0,"compensations_executed":0,"handoff_agent_id":null,"processes_killed":3,"processes_dead":true,"duration":0,` +
		`"steps_outcome":"COMPENSATED","steps":["step-1"],"errors":[]}`
	if diff := cmp.Diff(want, string(got)); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	must(t, s.k.RegisterSubstitute("b", "c"))
	got, _ = json.Marshal(s.k.Kill(t.Context(), "b", KillContext{Reason: KillManual}))
	if text := string(got); !strings.Contains(text, `"action":null`) || !strings.Contains(text, `"handoff_agent_id":"c"`) {
		t.Errorf("got %s", text)
	}
}

func TestH22Concurrent(t *testing.T) {
	s := newScene(t)
	for i := range 10 {
		must(t, s.k.RegisterCompensation(fmt.Sprintf("a%d", i), "c", s.callback("c", nil)))
	}
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() { s.k.Kill(t.Context(), fmt.Sprintf("a%d", i%10), KillContext{Reason: KillManual}) })
	}
	wg.Wait()
	if len(s.k.History()) != 20 || len(s.audits) != 20 || s.k.Unpersisted() != 0 {
		t.Errorf("20 kills: %d in the history, %d in the audit, %d pending", len(s.k.History()), len(s.audits), s.k.Unpersisted())
	}
	if n := len(slices.DeleteFunc(slices.Clone(s.events), func(e string) bool { return e != "c" })); n != 10 {
		t.Errorf("10 compensations ran %d times", n)
	}
}

// The history's bound costs no record that the audit doesn't have.
func TestH22HistoryIsKeptUntilAudited(t *testing.T) {
	s := newScene(t, func(s *scene) { s.auditErr = errors.New("disk full") })
	const n = maxKillHistory + 100
	for range n {
		s.k.Kill(t.Context(), "a", KillContext{Reason: KillManual})
	}
	if len(s.k.History()) != n || s.k.Unpersisted() != n {
		t.Fatalf("%d in the history, %d pending, want %d", len(s.k.History()), s.k.Unpersisted(), n)
	}
	if err := s.k.Retry(t.Context()); err == nil || s.k.Unpersisted() != n {
		t.Errorf("retry with a full disk: %v, %d pending", err, s.k.Unpersisted())
	}
	s.auditErr = nil
	must(t, s.k.Retry(t.Context()))
	if len(s.audits) != n || s.k.Unpersisted() != 0 || len(s.k.History()) != maxKillHistory {
		t.Errorf("after retry: %d audited, %d pending, %d in the history", len(s.audits), s.k.Unpersisted(), len(s.k.History()))
	}
	for i := range 50 {
		s.auditErr = nil
		if i%2 == 0 {
			s.auditErr = errors.New("disk full")
		}
		s.k.Kill(t.Context(), fmt.Sprintf("b%d", i), KillContext{Reason: KillManual})
	}
	h := s.k.History()
	for i := range 50 {
		if got, want := h[len(h)-50+i].AgentID, fmt.Sprintf("b%d", i); got != want {
			t.Fatalf("history at %d: %s, want %s: the order is that of the kills", i, got, want)
		}
	}
}

func TestH23Reasons(t *testing.T) {
	s := newScene(t)
	for _, r := range KillReasons() {
		if res := s.k.Kill(t.Context(), "a", KillContext{Reason: r}); res.Reason != r || len(res.Errors) != 0 {
			t.Errorf("%s: got %+v", r, res)
		}
	}
	for _, r := range []KillReason{"", "MANUAL", "because"} {
		res := s.k.Kill(t.Context(), "a", KillContext{Reason: r})
		if res.Reason != KillManual || !res.ProcessesDead || !slices.Equal(stages(res), []string{"reason"}) {
			t.Errorf("%q: got %+v, want killed, recorded as manual with an error", r, res)
		}
	}
}

func TestH21Refusals(t *testing.T) {
	if _, err := NewKillSwitch(KillOptions{}); err == nil {
		t.Error("a kill switch that can't kill")
	}
	var zero KillSwitch
	res := zero.Kill(t.Context(), "a", KillContext{Reason: KillManual})
	if res.ProcessesDead || !slices.Contains(stages(res), "processes") || len(zero.History()) != 1 {
		t.Errorf("zero value: got %+v", res)
	}
	if err := zero.RegisterHandler("a", "h", func(context.Context) error { return nil }); err == nil {
		t.Error("zero value takes a handler that it will never run")
	}
	s := newScene(t)
	for _, agent := range []string{"", "a\n", strings.Repeat("a", 10_000)} {
		if res := s.k.Kill(t.Context(), agent, KillContext{Reason: KillManual}); !slices.Equal(stages(res), []string{"agent"}) || len(res.AgentID) > maxReasonBytes {
			t.Errorf("agent %.10q: got %+v", agent, res)
		}
	}
	s.happened(t) // no hook is called for what is no agent
	if len(s.audits) != 3 {
		t.Errorf("%d audited, want 3", len(s.audits))
	}
	for i := range maxCallbacks + 1 {
		if err := s.k.RegisterHandler("a", "h", s.callback("h", nil)); (err != nil) != (i == maxCallbacks) {
			t.Fatalf("handler %d: %v", i, err)
		}
	}
}

// When there is no room to remember one more killed agent, nobody takes over any more: it might be that one.
func TestH21ForgottenKillsHandNothingOver(t *testing.T) {
	s := newScene(t)
	for i := range maxKilled {
		s.k.killed[fmt.Sprintf("k%d", i)] = true
	}
	must(t, s.k.RegisterSubstitute("a", "b"), s.k.RegisterSubstitute("c", "d"))
	for _, agent := range []string{"a", "c"} {
		if res := s.k.Kill(t.Context(), agent, KillContext{Reason: KillManual}); res.HandoffAgentID != nil || !res.ProcessesDead {
			t.Errorf("%s: got %+v, want dead and nobody to take over", agent, res)
		}
	}
	if len(s.k.killed) != maxKilled {
		t.Errorf("%d remembered, want %d", len(s.k.killed), maxKilled)
	}
}

// A caller that keeps its result and changes it doesn't change history.
func TestH22HistoryIsNobodysToChange(t *testing.T) {
	s := newScene(t)
	action := "act"
	res := s.k.Kill(t.Context(), "a", KillContext{Action: &action, Reason: "because"})
	*res.Action, res.Steps[0], res.Errors[0].Message, action = "other", "other", "other", "other"
	h := s.k.History()[0]
	*h.Action = "other"
	if h := s.k.History()[0]; *h.Action != "act" || h.Steps[0] != "step-1" || h.Errors[0].Message == "other" {
		t.Errorf("history was changed: %+v", h)
	}
}
