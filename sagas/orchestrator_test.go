// SPDX-License-Identifier: Apache-2.0

package sagas

import (
	"context"
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
	"pgregory.net/rapid"
)

var errStep = errors.New("no room")

// log notes calls as "a", undos as "-a".
type log struct {
	mu    sync.Mutex
	calls []string
	keys  map[string]string // call → key
}

func (l *log) note(c Call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	name := c.StepID
	if c.Undo {
		name = "-" + name
	}
	l.calls = append(l.calls, name)
	if l.keys == nil {
		l.keys = map[string]string{}
	}
	if k := l.keys[name]; k != "" && k != c.Key {
		panic("the key has changed")
	}
	l.keys[name] = c.Key
}

// failing fails the first n calls.
func (l *log) failing(n int) Func {
	return func(_ context.Context, c Call) error {
		l.note(c)
		if c.Attempt <= n {
			return errStep
		}
		return nil
	}
}

func (l *log) ok() Func { return l.failing(0) }

func orchestrator(t testing.TB, opt Options) *Orchestrator {
	t.Helper()
	if opt.Journal == nil {
		opt.Journal = NewMemory()
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	o, err := New(opt)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func states(r Record) (s []string) {
	for _, k := range r.Steps {
		s = append(s, k.State.String())
	}
	return s
}

func equal(t testing.TB, what string, got []string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got)\n%s", what, diff)
	}
}

func TestH18CommitsInOrder(t *testing.T) {
	var l log
	rec, err := orchestrator(t, Options{}).Run(t.Context(), Saga{ID: "s", Steps: []Step{
		{ID: "a", Execute: l.ok(), Undo: l.ok()}, {ID: "b", Execute: l.ok()}, {ID: "c", Execute: l.ok(), Undo: l.ok()},
	}})
	if err != nil || rec.State != Committed {
		t.Fatal(rec.State, err)
	}
	equal(t, "calls", l.calls, "a", "b", "c")
	equal(t, "steps", states(rec), "committed", "committed", "committed")
	if l.keys["a"] != "s/a" {
		t.Errorf("key %q", l.keys["a"])
	}
}

func TestH19Defaults(t *testing.T) {
	if DefaultMaxRetries != 2 || DefaultRetryDelay != time.Second || DefaultStepTimeout != 300*time.Second {
		t.Error("the defaults aren't those of H-19")
	}
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		begin := time.Now()
		rec, err := orchestrator(t, Options{}).Run(t.Context(), Saga{Steps: []Step{{ID: "a", Execute: func(context.Context, Call) error {
			at = append(at, time.Since(begin))
			return errStep
		}}}})
		if err != nil || rec.State != Aborted || rec.Steps[0].Attempts != 3 || rec.Steps[0].Error != "no room" {
			t.Errorf("got %+v, %v", rec, err)
		}
		if diff := cmp.Diff([]time.Duration{0, time.Second, 3 * time.Second}, at); diff != "" {
			t.Errorf("attempts: retry_delay × attempt (-want +got)\n%s", diff)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		rec, err := orchestrator(t, Options{}).Run(t.Context(), Saga{Steps: []Step{{ID: "a", MaxRetries: None, Execute: func(ctx context.Context, _ Call) error {
			<-ctx.Done()
			return ctx.Err()
		}}}})
		if took := time.Since(begin); err != nil || rec.State != Aborted || took != 300*time.Second {
			t.Errorf("got %+v, %v after %v", rec, err, took)
		}
	})
}

func TestH19CompensatesInReverse(t *testing.T) {
	cases := []struct {
		name       string
		steps      func(l *log) []Step
		state      State
		calls      string
		steps2     string
		unresolved string
	}{
		{"all undone", func(l *log) []Step {
			return []Step{{ID: "a", Execute: l.ok(), Undo: l.ok()}, {ID: "b", Execute: l.failing(2), Undo: l.ok()}, {ID: "c", Execute: l.failing(3), Undo: l.ok()}, {ID: "d", Execute: l.ok()}}
		}, Aborted, "a b b b c c c -b -a", "compensated compensated failed pending", ""},
		{"first fails", func(l *log) []Step { return []Step{{ID: "a", Execute: l.failing(9), Undo: l.ok()}} }, Aborted, "a a a", "failed", ""},
		{"no undo: the rest still run", func(l *log) []Step {
			return []Step{{ID: "a", Execute: l.ok(), Undo: l.ok()}, {ID: "b", Execute: l.ok()}, {ID: "c", Execute: l.failing(9)}}
		}, Escalated, "a b c c c -a", "compensated compensation_failed failed", "b"},
		{"undo fails: once, and the rest still run", func(l *log) []Step {
			return []Step{{ID: "a", Execute: l.ok(), Undo: l.ok()}, {ID: "b", Execute: l.ok(), Undo: l.failing(1)}, {ID: "c", Execute: l.ok()}, {ID: "d", Execute: l.failing(9)}}
		}, Escalated, "a b c d d d -b -a", "compensated compensation_failed compensation_failed failed", "b c"},
	}
	for _, c := range cases {
		synctest.Test(t, func(t *testing.T) {
			var l log
			rec, err := orchestrator(t, Options{}).Run(t.Context(), Saga{Steps: c.steps(&l)})
			if err != nil || rec.State != c.state {
				t.Fatalf("%s: got %v, %v", c.name, rec.State, err)
			}
			equal(t, c.name, []string{strings.Join(l.calls, " "), strings.Join(states(rec), " "), strings.Join(rec.Unresolved, " ")}, c.calls, c.steps2, c.unresolved)
		})
	}
}

// Panics, Goexit and hangs are failures like others; a hang is one whose outcome nobody knows.
func TestH19Contained(t *testing.T) {
	hang := func(context.Context, Call) error { time.Sleep(time.Hour); return nil }
	ends := func() { time.Sleep(2 * time.Hour) } // of the bubble's clock; a bubble waits for its goroutines
	late := func(ctx context.Context, _ Call) error { <-ctx.Done(); return nil }
	for _, c := range []struct {
		name       string
		step       Step
		state      State
		attempts   int
		says       string
		unresolved string
	}{
		{"panic", Step{Execute: func(context.Context, Call) error { panic("boom") }}, Aborted, 3, "panic: boom", ""},
		{"panic with a trap", Step{Execute: func(context.Context, Call) error { panic(trap{}) }}, Aborted, 3, "panic", ""},
		{"nil dereference", Step{Execute: func(context.Context, Call) error { var p *Record; return errors.New(p.ID) }}, Aborted, 3, "nil pointer", ""},
		{"Goexit", Step{Execute: func(context.Context, Call) error { goruntime.Goexit(); return nil }}, Aborted, 3, "goroutine", ""},
		{"hang", Step{Execute: hang}, Escalated, 1, "time limit 5m0s, and still running 5s later: outcome unknown", "x"},
		{"hang, idempotent", Step{Execute: hang, Idempotent: true}, Escalated, 3, "unknown", "x"},
		{"unknown", Step{Execute: func(context.Context, Call) error { return fmt.Errorf("cut: %w", ErrUnknown) }}, Escalated, 1, "cut", "x"},
		{"in time after all", Step{Execute: late}, Committed, 1, "", ""},
		{"panic, direct", Step{Direct: true, Execute: func(context.Context, Call) error { panic(trap{}) }}, Aborted, 3, "panic", ""},
		{"terminal escapes", Step{Execute: func(context.Context, Call) error { return errors.New("a\x1b[2J\nb\u202e") }}, Aborted, 3, "a[2J b", ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			c.step.ID = "x"
			rec, err := orchestrator(t, Options{}).Run(t.Context(), Saga{Steps: []Step{c.step}})
			k := rec.Steps[0]
			if err != nil || rec.State != c.state || k.Attempts != c.attempts || !strings.Contains(k.Error, c.says) || strings.Join(rec.Unresolved, " ") != c.unresolved {
				t.Errorf("%s: got %+v, %v", c.name, rec, err)
			}
			ends()
		})
	}
	synctest.Test(t, func(t *testing.T) {
		defer ends()
		var l log
		rec, err := orchestrator(t, Options{}).Run(t.Context(), Saga{Steps: []Step{
			{ID: "a", Execute: l.ok(), Undo: l.ok()}, {ID: "b", Execute: l.ok(), Undo: hang},
			{ID: "c", Execute: l.ok(), Undo: func(context.Context, Call) error { panic("boom") }}, {ID: "d", Execute: l.failing(9)},
		}})
		if err != nil || rec.State != Escalated {
			t.Errorf("got %+v, %v", rec, err)
		}
		equal(t, "steps", states(rec), "compensated", "compensation_failed", "compensation_failed", "failed")
	})
}

type trap struct{}

func (trap) Error() string  { panic("again") }
func (trap) String() string { panic("again") }

type auditor func(Transition) error

func (a auditor) SagaTransition(_ context.Context, t Transition) error { return a(t) }

// The audit hears of each call before it is made, and of each outcome.
func TestH20AuditBeforeEffect(t *testing.T) {
	var lines []string
	fn := func(err error) Func {
		return func(_ context.Context, c Call) error {
			lines = append(lines, fmt.Sprintf("call %s undo=%v", c.StepID, c.Undo))
			return err
		}
	}
	o := orchestrator(t, Options{Audit: auditor(func(tr Transition) error {
		lines = append(lines, fmt.Sprintf("%s/%s %v attempt=%d undo=%v compensated=%v", tr.SagaID, tr.StepID, tr.State, tr.AttemptCount, tr.Undo, tr.Compensated))
		return nil
	})})
	rec, err := o.Run(t.Context(), Saga{ID: "s", Steps: []Step{
		{ID: "a", Execute: fn(nil), Undo: fn(nil)}, {ID: "b", Execute: fn(errStep), MaxRetries: 1, RetryDelay: None},
	}})
	if err != nil || rec.State != Aborted {
		t.Fatal(rec, err)
	}
	equal(t, "audit", lines,
		"s/a executing attempt=1 undo=false compensated=false", "call a undo=false", "s/a committed attempt=1 undo=false compensated=false",
		"s/b executing attempt=1 undo=false compensated=false", "call b undo=false",
		"s/b executing attempt=2 undo=false compensated=false", "call b undo=false", "s/b failed attempt=2 undo=false compensated=false",
		"s/a committed attempt=1 undo=true compensated=false", "call a undo=true", "s/a compensated attempt=1 undo=false compensated=true")
}

// The audit may refuse at any moment: nothing is called unheard, no outcome is forgotten, and Resume offers again what
// was refused.
func TestH20AuditRefuses(t *testing.T) {
	errAudit := errors.New("disk full")
	for n := range 9 {
		var l log
		var heard []string
		refuse, count := true, 0
		o := orchestrator(t, Options{Audit: auditor(func(tr Transition) error {
			count++
			if refuse && count > n {
				return errAudit
			}
			heard = append(heard, tr.StepID+" "+tr.State.String()+fmt.Sprint(tr.Undo))
			return nil
		})})
		steps := []Step{{ID: "a", Execute: l.ok(), Undo: l.ok()}, {ID: "b", Execute: l.ok(), Undo: l.ok()},
			{ID: "c", Execute: l.failing(1), MaxRetries: None}}
		rec, err := o.Run(t.Context(), Saga{ID: "s", Steps: steps})
		if !errors.Is(err, errAudit) {
			t.Fatalf("%d: got %v, %v", n, rec.State, err)
		}
		refuse = false
		if rec, err = o.Resume(t.Context(), "s", steps); err != nil || rec.State != Aborted {
			t.Fatalf("%d: got %+v, %v", n, rec, err)
		}
		equal(t, fmt.Sprint("calls, refused after ", n), l.calls, "a", "b", "c", "-b", "-a")
		equal(t, fmt.Sprint("heard, refused after ", n), heard, "a executingfalse", "a committedfalse", "b executingfalse", "b committedfalse",
			"c executingfalse", "c failedfalse", "b committedtrue", "b compensatedfalse", "a committedtrue", "a compensatedfalse")
	}
}

func TestH20OneRunnerAtATime(t *testing.T) {
	j := NewMemory()
	o := orchestrator(t, Options{Journal: j})
	in, out := make(chan bool), make(chan bool)
	steps := []Step{{ID: "a", Execute: func(context.Context, Call) error { close(in); <-out; return nil }}}
	done := make(chan error)
	go func() { _, err := o.Run(context.Background(), Saga{ID: "s", Steps: steps}); done <- err }()
	<-in
	if _, err := o.Resume(t.Context(), "s", steps); !errors.Is(err, ErrBusy) {
		t.Errorf("resume: got %v, want ErrBusy", err)
	}
	if _, err := o.Run(t.Context(), Saga{ID: "s", Steps: steps}); !errors.Is(err, ErrBusy) {
		t.Errorf("run: got %v, want ErrBusy", err)
	}
	if _, err := o.HandOff(t.Context(), "s", "other"); !errors.Is(err, ErrBusy) {
		t.Errorf("hand off: got %v, want ErrBusy", err)
	}
	close(out)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := o.Run(t.Context(), Saga{ID: "s", Steps: steps}); !errors.Is(err, ErrExists) {
		t.Errorf("run again: got %v, want ErrExists", err)
	}
	if rec, err := o.Resume(t.Context(), "s", steps); err != nil || rec.State != Committed {
		t.Errorf("resume at the end: got %v, %v", rec.State, err)
	}
	if _, err := o.Resume(t.Context(), "nobody", steps); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
}

// Told to stop: the attempt is heeded, the journal knows, Resume goes on.
func TestH20Stopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l log
		o := orchestrator(t, Options{})
		ctx, cancel := context.WithCancel(t.Context())
		steps := []Step{
			{ID: "a", Execute: l.ok(), Undo: l.ok()},
			{ID: "b", Execute: func(ctx context.Context, c Call) error {
				l.note(c)
				if c.Attempt == 1 {
					cancel()
				}
				return ctx.Err()
			}},
		}
		rec, err := o.Run(ctx, Saga{ID: "s", Steps: steps})
		if !errors.Is(err, context.Canceled) || rec.State != Executing || rec.Steps[1].Running {
			t.Fatalf("got %+v, %v", rec, err)
		}
		rec, err = o.Resume(t.Context(), "s", steps)
		if err != nil || rec.State != Committed {
			t.Fatalf("got %+v, %v", rec, err)
		}
		equal(t, "calls", l.calls, "a", "b", "b")
	})
}

func TestOtherStepsRefused(t *testing.T) {
	var l log
	o := orchestrator(t, Options{Audit: auditor(func(Transition) error { return errStep })})
	if _, err := o.Run(t.Context(), Saga{ID: "s", Steps: []Step{{ID: "a", Execute: l.ok()}, {ID: "b", Execute: l.ok()}}}); err == nil {
		t.Fatal("not stopped")
	}
	for name, steps := range map[string][]Step{
		"none": nil, "fewer": {{ID: "a", Execute: l.ok()}}, "others": {{ID: "a", Execute: l.ok()}, {ID: "c", Execute: l.ok()}},
		"idempotent": {{ID: "a", Execute: l.ok(), Idempotent: true}, {ID: "b", Execute: l.ok()}},
	} {
		if _, err := o.Resume(t.Context(), "s", steps); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
	if len(l.calls) > 0 {
		t.Errorf("called %v", l.calls)
	}
}

func TestInvalid(t *testing.T) {
	ok := func(context.Context, Call) error { return nil }
	for name, s := range map[string]Saga{
		"no steps": {}, "id": {ID: "a b", Steps: []Step{{ID: "a", Execute: ok}}}, "step id": {Steps: []Step{{Execute: ok}}},
		"nothing": {Steps: []Step{{ID: "a"}}}, "twice": {Steps: []Step{{ID: "a", Execute: ok}, {ID: "a", Execute: ok}}},
		"retries": {Steps: []Step{{ID: "a", Execute: ok, MaxRetries: MaxRetries + 1}}}, "delay": {Steps: []Step{{ID: "a", Execute: ok, RetryDelay: -2}}},
		"limit": {Steps: []Step{{ID: "a", Execute: ok, Timeout: -1}}}, "too many": {Steps: make([]Step, MaxSteps+1)},
	} {
		if _, err := orchestrator(t, Options{}).Run(t.Context(), s); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
	for name, opt := range map[string]Options{"nothing": {}, "no clock": {Journal: NewMemory()}, "no journal": {Now: time.Now}} {
		if _, err := New(opt); !errors.Is(err, ErrInvalid) {
			t.Errorf("options, %s: got %v", name, err)
		}
	}
}

// crashed leaves a saga as a process that died in step b's call: a is committed.
func crashed(t *testing.T, l *log, idempotent, undoB bool) (*Orchestrator, []Step) {
	t.Helper()
	j := NewMemory()
	rec := Record{ID: "s", Agent: "planner", State: Executing, Steps: []StepRecord{
		{ID: "a", State: StepCommitted, Attempts: 1}, {ID: "b", State: StepExecuting, Attempts: 1, Running: true, Idempotent: idempotent},
		{ID: "c", State: StepPending},
	}}
	if err := j.Create(t.Context(), &rec, nil); err != nil {
		t.Fatal(err)
	}
	steps := []Step{{ID: "a", Execute: l.ok(), Undo: l.ok()}, {ID: "b", Execute: l.ok(), Idempotent: idempotent}, {ID: "c", Execute: l.ok()}}
	if undoB {
		steps[1].Undo = l.ok()
	}
	return orchestrator(t, Options{Journal: j}), steps
}

func TestH21HandOff(t *testing.T) {
	for _, idempotent := range []bool{true, false} {
		var l log
		o, steps := crashed(t, &l, idempotent, true)
		whose := map[string]bool{}
		for i := range steps {
			for _, f := range []*Func{&steps[i].Execute, &steps[i].Undo} {
				if call := *f; call != nil {
					*f = func(ctx context.Context, c Call) error { whose[c.Agent] = true; return call(ctx, c) }
				}
			}
		}
		for _, bad := range []string{"planner", "", "a b"} {
			if _, err := o.HandOff(t.Context(), "s", bad); !errors.Is(err, ErrInvalid) {
				t.Errorf("substitute %q: got %v, want ErrInvalid", bad, err)
			}
		}
		rec, err := o.HandOff(t.Context(), "s", "stand-in")
		if err != nil || rec.HandoffAgent != "stand-in" || rec.State != Executing {
			t.Fatalf("got %+v, %v", rec, err)
		}
		equal(t, "handed off", states(rec), "committed", "handed_off", "pending")
		rec, err = o.Resume(t.Context(), "s", steps)
		if err != nil {
			t.Fatal(err)
		}
		if idempotent {
			equal(t, "goes on", append(states(rec), l.calls...), "committed", "committed", "committed", "b", "c")
		} else {
			equal(t, "nobody knows", append(states(rec), l.calls...), "compensated", "failed", "pending", "-a")
			equal(t, "unresolved", rec.Unresolved, "b")
		}
		if diff := cmp.Diff(map[string]bool{"stand-in": true}, whose); diff != "" || rec.Doer() != "stand-in" {
			t.Errorf("after it was handed off its calls are another's: %s", diff)
		}
	}
}

func TestH21Abort(t *testing.T) {
	for _, handedOff := range []bool{false, true} {
		for _, undo := range []bool{true, false} {
			var l log
			o, steps := crashed(t, &l, false, undo)
			if handedOff {
				if _, err := o.HandOff(t.Context(), "s", "stand-in"); err != nil {
					t.Fatal(err)
				}
			}
			rec, err := o.Abort(t.Context(), "s", steps)
			if err != nil {
				t.Fatal(err)
			}
			if undo {
				equal(t, "with undo", append(states(rec), l.calls...), "compensated", "compensated", "pending", "-b", "-a")
			} else {
				equal(t, "without", append(states(rec), l.calls...), "compensated", "compensation_failed", "pending", "-a")
			}
			if want := map[bool]State{true: Aborted, false: Escalated}[undo]; rec.State != want {
				t.Errorf("got %v, want %v", rec.State, want)
			}
		}
	}
}

// Any saga, whatever its steps do: the end follows from them alone, each is called as often as the rules say, and every
// change of state is one of H-18's.
func TestH18Property(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(rt, "steps")
		var l log
		var steps []Step
		var calls, undos []string
		state, failed := Committed, false
		for i := range n {
			fails := rapid.IntRange(0, 4).Draw(rt, "fails")
			retries := rapid.IntRange(0, 3).Draw(rt, "retries")
			undo := rapid.SampledFrom([]string{"ok", "fail", "none"}).Draw(rt, "undo")
			s := Step{ID: fmt.Sprint("s", i), Execute: l.failing(fails), MaxRetries: retries, RetryDelay: None}
			if retries == 0 {
				s.MaxRetries = None
			}
			switch undo {
			case "ok":
				s.Undo = l.ok()
			case "fail":
				s.Undo = l.failing(1)
			}
			steps = append(steps, s)
			if failed {
				continue
			}
			for range min(fails, retries) + 1 {
				calls = append(calls, s.ID)
			}
			if failed = fails > retries; failed {
				if state = Aborted; len(undos) > 0 && slices.Contains(undos, "!") {
					state = Escalated
				}
				continue
			}
			if undo != "none" {
				undos = append(undos, "-"+s.ID)
			}
			if undo != "ok" {
				undos = append(undos, "!")
			}
		}
		if failed {
			for _, u := range slices.Backward(undos) {
				if u != "!" {
					calls = append(calls, u)
				}
			}
		}
		last := map[string]StepState{}
		o := orchestrator(t, Options{Audit: auditor(func(tr Transition) error {
			from := last[tr.StepID]
			if from == NoStepState {
				from = StepPending
			}
			if from != tr.State {
				if _, err := from.To(tr.State); err != nil {
					rt.Error(err)
				}
			}
			last[tr.StepID] = tr.State
			return nil
		})})
		rec, err := o.Run(context.Background(), Saga{Steps: steps})
		if err != nil || rec.State != state {
			rt.Fatalf("got %v, %v, want %v", rec.State, err, state)
		}
		if diff := cmp.Diff(calls, l.calls); diff != "" {
			rt.Fatalf("calls (-want +got)\n%s", diff)
		}
	})
}

func TestConcurrentSagas(t *testing.T) {
	o := orchestrator(t, Options{})
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			var l log
			rec, err := o.Run(context.Background(), Saga{Steps: []Step{{ID: "a", Execute: l.ok(), Undo: l.ok()}, {ID: "b", Execute: l.failing(1), MaxRetries: None}}})
			if err != nil || rec.State != Aborted || strings.Join(l.calls, " ") != "a b -a" {
				t.Error(rec.State, err, l.calls)
			}
		})
	}
	wg.Wait()
}

func ExampleOrchestrator_Run() {
	o, _ := New(Options{Journal: NewMemory(), Now: time.Now})
	say := func(what string, err error) Func {
		return func(context.Context, Call) error { fmt.Println(what); return err }
	}
	rec, _ := o.Run(context.Background(), Saga{Name: "trip", Steps: []Step{
		{ID: "flight", Execute: say("book the flight", nil), Undo: say("cancel the flight", nil)},
		{ID: "hotel", Execute: say("no room", errors.New("no room")), MaxRetries: None},
	}})
	fmt.Println(rec.State)
	// Output:
	// book the flight
	// no room
	// cancel the flight
	// aborted
}
