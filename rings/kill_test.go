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
	held                                       map[string]bool
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
	s := &scene{held: map[string]bool{}}
	s.opt = KillOptions{
		Agent: "a",
		Clock: time.Now,
		Fit:   func(agent string) bool { return !s.held[agent] },
		Hooks: KillHooks{
			Freeze: func(context.Context) error { s.note("freeze"); return s.freezeErr },
			Intent: func(_ context.Context, kc KillContext) error {
				s.note("intent %s", kc.Reason)
				return s.intentErr
			},
			Steps: func(_ context.Context, o StepOutcome, to string) ([]string, error) {
				s.note("steps %s %s", o, to)
				return []string{"step-1"}, nil
			},
			Processes: func(context.Context) (int, error) {
				s.note("processes")
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
		s.k.RegisterCompensation("c1", s.callback("c1", nil)),
		s.k.RegisterHandler("h1", s.callback("h1", nil)),
		s.k.RegisterHandler("h2", s.callback("h2", errors.New("no"))),
		s.k.RegisterCompensation("c2", s.callback("c2", nil)),
		s.k.RegisterSubstitute("b"),
	)
	res := s.k.Kill(t.Context(), KillContext{Reason: KillRingBreach})
	s.happened(t, "freeze", "intent ring_breach", "h1", "h2", "c1", "c2", "steps HANDED_OFF b", "processes")
	if res.CallbacksExecuted != 2 || res.CompensationsExecuted != 2 || res.ProcessesKilled != 3 || !res.ProcessesDead {
		t.Errorf("got %+v", res)
	}
	if diff := cmp.Diff([]string{"handler h2"}, stages(res)); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
	// The second time only the processes are left to kill.
	s.events = nil
	res = s.k.Kill(t.Context(), KillContext{Reason: KillManual})
	s.happened(t, "intent manual", "steps COMPENSATED ", "processes")
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
			s.opt.Hooks.Steps = func(context.Context, StepOutcome, string) ([]string, error) { panic("steps") }
		})
		must(t,
			s.k.RegisterHandler("error", func(context.Context) error { return errors.New("no") }),
			s.k.RegisterHandler("panic", func(context.Context) error { panic(errors.New("no")) }),
			s.k.RegisterHandler("panic nil", func(context.Context) error { panic(nil) }),
			s.k.RegisterHandler("goexit", func(context.Context) error { goruntime.Goexit(); return nil }),
			s.k.RegisterHandler("hang", hang),
			s.k.RegisterHandler("patient", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }),
			s.k.RegisterHandler("last", s.callback("last", nil)),
			s.k.RegisterCompensation("hang", hang),
			s.k.RegisterCompensation("last", s.callback("last c", nil)),
		)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		res := s.k.Kill(gone, KillContext{Reason: KillManual})
		// Without a freeze the processes are killed first: the agent has none of the 15 s that the others hang.
		s.happened(t, "freeze", "processes", "intent manual", "last", "last c", "processes")
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
			h.Freeze = func(context.Context) error { <-release; return nil }
			h.Intent = func(context.Context, KillContext) error { <-release; return nil }
			h.Steps = func(context.Context, StepOutcome, string) ([]string, error) { <-release; return nil, nil }
			h.Audit = func(context.Context, KillResult) error { <-release; return nil }
		})
		res := s.k.Kill(t.Context(), KillContext{Reason: KillManual})
		s.happened(t, "processes", "processes")
		if diff := cmp.Diff([]string{"intent", "steps", "freeze", "audit"}, stages(res)); diff != "" {
			t.Errorf("errors (-want +got):\n%s", diff)
		}
	})
}

// Without callbacks nothing is between the order and the kill, and who isn't dead 2 ms later is frozen, or else killed there and then.
func TestH21FrozenIfItTakesLong(t *testing.T) {
	for name, c := range map[string]struct {
		intent, steps time.Duration
		undos         int
		freezeErr     error
		want          []string
		after         time.Duration
	}{
		"at once":     {want: []string{"intent", "steps", "processes"}},
		"in time":     {intent: time.Millisecond, want: []string{"intent", "steps", "processes"}, after: time.Millisecond},
		"slow order":  {intent: time.Second, want: []string{"freeze", "intent", "steps", "processes"}, after: time.Second},
		"slow steps":  {steps: time.Second, want: []string{"intent", "freeze", "steps", "processes"}, after: time.Second},
		"undos":       {undos: 1, want: []string{"intent", "freeze", "undo", "steps", "processes"}},
		"undos, late": {undos: 1, intent: time.Second, want: []string{"freeze", "intent", "undo", "steps", "processes"}, after: time.Second},
		"no freezer":  {intent: time.Second, freezeErr: errors.New("no"), want: []string{"freeze", "processes", "intent", "steps", "processes"}, after: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t, func(s *scene) {
					s.freezeErr = c.freezeErr
					h := &s.opt.Hooks
					h.Intent = func(context.Context, KillContext) error { time.Sleep(c.intent); s.note("intent"); return nil }
					h.Steps = func(context.Context, StepOutcome, string) ([]string, error) {
						time.Sleep(c.steps)
						s.note("steps")
						return nil, nil
					}
					h.Undos = func(context.Context) ([]Compensation, error) {
						return slices.Repeat([]Compensation{{"undo", s.callback("undo", nil)}}, c.undos), nil
					}
				})
				res := s.k.Kill(t.Context(), KillContext{Reason: KillManual})
				time.Sleep(time.Minute) // no freeze comes later
				s.happened(t, c.want...)
				if res.Duration != c.after || !res.ProcessesDead || (len(res.Errors) > 0) != (c.freezeErr != nil) {
					t.Errorf("got %+v, want it dead in %v", res, c.after)
				}
			})
		})
	}
}

func TestH21ProcessesThatLive(t *testing.T) {
	s := newScene(t, func(s *scene) { s.processErr = errors.New("one is in uninterruptible sleep") })
	res := s.k.Kill(t.Context(), KillContext{Reason: KillManual})
	if res.ProcessesDead || !slices.Contains(stages(res), "processes") || len(s.audits) != 1 {
		t.Errorf("got %+v, want it told and audited", res)
	}
}

func TestH21Substitute(t *testing.T) {
	for _, tt := range []struct {
		name        string
		substitutes []string
		change      func(*scene)
		want        string
	}{
		{"nobody is fit", []string{"held"}, nil, ""},
		{"the first that is fit", []string{"held", "fit", "fitter"}, nil, "fit"},
		{"nobody knows who is held", []string{"b"}, func(s *scene) { s.opt.Fit = nil }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newScene(t, func(s *scene) {
				s.held["held"] = true
				if tt.change != nil {
					tt.change(s)
				}
			})
			if err := s.k.RegisterSubstitute("a"); err == nil {
				t.Error("an agent is its own substitute")
			}
			if err := s.k.RegisterSubstitute("b\n"); err == nil {
				t.Error("a substitute with a bad id")
			}
			for _, b := range tt.substitutes {
				must(t, s.k.RegisterSubstitute(b))
			}
			res, to, outcome := s.k.Kill(t.Context(), KillContext{Reason: KillManual}), "", Compensated
			if res.HandoffAgentID != nil {
				to, outcome = *res.HandoffAgentID, HandedOff
			}
			if to != tt.want || res.StepsOutcome != outcome {
				t.Errorf("handed to %q, %s, want %q", to, res.StepsOutcome, tt.want)
			}
			if err := s.k.RegisterSubstitute("x"); !errors.Is(err, ErrKilled) {
				t.Errorf("register for a killed agent: %v", err)
			}
		})
	}
}

func TestH22Fields(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 600, time.FixedZone("", 3600))
	s := newScene(t, func(s *scene) { s.opt.Clock = func() time.Time { return at } })
	action := "file.delete"
	got, err := json.Marshal(s.k.Kill(t.Context(), KillContext{Action: &action, Reason: KillPolicyViolation}))
	want := `{"agent_id":"a","action":"file.delete","reason":"policy_violation","killed_at":"2026-01-02T02:04:05.0000006Z",` +
		`"callbacks_executed":0,"compensations_executed":0,"handoff_agent_id":null,"processes_killed":3,"processes_dead":true,"duration":0,` +
		`"steps_outcome":"COMPENSATED","steps":["step-1"],"errors":[]}`
	if diff := cmp.Diff(want, string(got)); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	s = newScene(t)
	must(t, s.k.RegisterSubstitute("c"))
	got, _ = json.Marshal(s.k.Kill(t.Context(), KillContext{Reason: KillManual}))
	if text := string(got); !strings.Contains(text, `"action":null`) || !strings.Contains(text, `"handoff_agent_id":"c"`) {
		t.Errorf("got %s", text)
	}
}

func TestH22Concurrent(t *testing.T) {
	s := newScene(t)
	for range 10 {
		must(t, s.k.RegisterCompensation("c", s.callback("c", nil)))
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { s.k.Kill(t.Context(), KillContext{Reason: KillManual}) })
	}
	wg.Wait()
	if len(s.k.History()) != 20 || len(s.audits) != 20 || pending(s.k) != 0 {
		t.Errorf("20 kills: %d in the history, %d in the audit, %d pending", len(s.k.History()), len(s.audits), pending(s.k))
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
		s.k.Kill(t.Context(), KillContext{Reason: KillManual})
	}
	if len(s.k.History()) != n || pending(s.k) != n {
		t.Fatalf("%d in the history, %d pending, want %d", len(s.k.History()), pending(s.k), n)
	}
	if err := s.k.Retry(t.Context()); err == nil || pending(s.k) != n {
		t.Errorf("retry with a full disk: %v, %d pending", err, pending(s.k))
	}
	s.auditErr = nil
	must(t, s.k.Retry(t.Context()))
	if len(s.audits) != n || pending(s.k) != 0 || len(s.k.History()) != maxKillHistory {
		t.Errorf("after retry: %d audited, %d pending, %d in the history", len(s.audits), pending(s.k), len(s.k.History()))
	}
	for i := range 50 {
		s.auditErr = nil
		if i%2 == 0 {
			s.auditErr = errors.New("disk full")
		}
		action := fmt.Sprintf("b%d", i)
		s.k.Kill(t.Context(), KillContext{Action: &action, Reason: KillManual})
	}
	h := s.k.History()
	for i := range 50 {
		if got, want := *h[len(h)-50+i].Action, fmt.Sprintf("b%d", i); got != want {
			t.Fatalf("history at %d: %s, want %s: the order is that of the kills", i, got, want)
		}
	}
}

// pending counts the results that the audit doesn't have.
func pending(k *KillSwitch) int {
	return len(slices.DeleteFunc(slices.Clone(k.history), func(r *killRecord) bool { return r.kept }))
}

func TestH23Reasons(t *testing.T) {
	s := newScene(t)
	for _, r := range KillReasons() {
		if res := s.k.Kill(t.Context(), KillContext{Reason: r}); res.Reason != r || len(res.Errors) != 0 {
			t.Errorf("%s: got %+v", r, res)
		}
	}
	for _, r := range []KillReason{"", "MANUAL", "because"} {
		res := s.k.Kill(t.Context(), KillContext{Reason: r})
		if res.Reason != KillManual || !res.ProcessesDead || !slices.Equal(stages(res), []string{"reason"}) {
			t.Errorf("%q: got %+v, want killed, recorded as manual with an error", r, res)
		}
	}
}

func TestH21Refusals(t *testing.T) {
	if _, err := NewKillSwitch(KillOptions{Agent: "a", Clock: time.Now}); err == nil {
		t.Error("a kill switch that can't kill")
	}
	var zero KillSwitch
	res := zero.Kill(t.Context(), KillContext{Reason: KillManual})
	if res.ProcessesDead || !slices.Contains(stages(res), "processes") || len(zero.History()) != 1 {
		t.Errorf("zero value: got %+v", res)
	}
	if err := zero.RegisterHandler("h", func(context.Context) error { return nil }); err == nil {
		t.Error("zero value takes a handler that it will never run")
	}
	s := newScene(t)
	for _, agent := range []string{"", "a\n", strings.Repeat("a", 10_000)} {
		opt := s.opt
		opt.Agent = agent
		if _, err := NewKillSwitch(opt); !errors.Is(err, ErrIdentifier) {
			t.Errorf("agent %.10q: got %v", agent, err)
		}
	}
	for i := range maxCallbacks + 1 {
		if err := s.k.RegisterHandler("h", s.callback("h", nil)); (err != nil) != (i == maxCallbacks) {
			t.Fatalf("handler %d: %v", i, err)
		}
	}
}

// A caller that keeps its result and changes it doesn't change history.
func TestH22HistoryIsNobodysToChange(t *testing.T) {
	s := newScene(t)
	action := "act"
	res := s.k.Kill(t.Context(), KillContext{Action: &action, Reason: "because"})
	*res.Action, res.Steps[0], res.Errors[0].Message, action = "other", "other", "other", "other"
	h := s.k.History()[0]
	*h.Action = "other"
	if h := s.k.History()[0]; *h.Action != "act" || h.Steps[0] != "step-1" || h.Errors[0].Message == "other" {
		t.Errorf("history was changed: %+v", h)
	}
}
