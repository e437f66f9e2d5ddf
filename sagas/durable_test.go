// SPDX-License-Identifier: Apache-2.0

package sagas

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/store"
	"agentrun/store/storetest"
)

// The scenarios of the fault tests. b fails once, c always: so there are retries, a failure and undos.
func scenario(name string, fn func(step string, fails int) Func) []Step {
	idempotent := strings.HasPrefix(name, "idempotent")
	steps := []Step{
		{ID: "a", Execute: fn("a", 0), Undo: fn("a", 0), Idempotent: idempotent},
		{ID: "b", Execute: fn("b", 1), Undo: fn("b", 0), Idempotent: idempotent, RetryDelay: None},
	}
	if strings.HasSuffix(name, "fails") {
		steps = append(steps, Step{ID: "c", Execute: fn("c", 9), Idempotent: idempotent, RetryDelay: None})
	}
	return steps
}

var scenarios = []string{"once", "once fails", "idempotent", "idempotent fails"}

// judge holds a saga that broke off and was resumed to H-20. calls are the effects in their order, as "a", "-a"; cut
// tells that one call may have been under way.
func judge(t *testing.T, name string, rec Record, calls []string, cut bool) {
	t.Helper()
	count := map[string]int{}
	for _, c := range calls {
		count[c]++
	}
	idempotent := strings.HasPrefix(name, "idempotent")
	for _, k := range rec.Steps {
		limit := map[string]int{"a": 1, "b": 2, "c": 3}[k.ID] // attempts of which each said how it ended
		if idempotent && cut {
			limit++
		}
		if count[k.ID] > limit || !idempotent && count["-"+k.ID] > 1 || count["-"+k.ID] > 2 {
			t.Errorf("%s: %s was called %d times, undone %d times: %v", name, k.ID, count[k.ID], count["-"+k.ID], calls)
		}
		switch k.State {
		case StepCommitted:
			if count[k.ID] == 0 {
				t.Errorf("%s: %s is committed and was never called", name, k.ID)
			}
		case StepCompensated:
			if count["-"+k.ID] == 0 {
				t.Errorf("%s: %s is compensated and was never undone", name, k.ID)
			}
		case StepPending:
			if count[k.ID] > 0 {
				t.Errorf("%s: %s is pending and was called", name, k.ID)
			}
		}
	}
	want := []State{Committed}
	if strings.HasSuffix(name, "fails") {
		want = []State{Aborted}
	}
	if cut {
		want = append(want, Escalated)
		if !idempotent && !strings.HasSuffix(name, "fails") {
			want = append(want, Aborted) // b's last word before the crash was a failure… and a's undo went well
		}
	}
	if !slices.Contains(want, rec.State) {
		t.Errorf("%s: ended %v, want one of %v: %+v", name, rec.State, want, rec)
	}
	if rec.State == Escalated && len(rec.Unresolved) == 0 {
		t.Errorf("%s: escalated, and nobody says why", name)
	}
}

// The journal breaks at each write, with the write lost or only its acknowledgement; a new process goes on.
func TestH20FaultAtEveryWrite(t *testing.T) {
	for _, name := range scenarios {
		for _, after := range []bool{false, true} {
			for at := 1; ; at++ {
				var l log
				steps := scenario(name, func(_ string, fails int) Func { return l.failing(fails) })
				back := store.NewMemory()
				broken := &storetest.Faulty{Store: back, FailAt: at, After: after}
				var told []Transition
				o := orchestrator(t, Options{Journal: NewDurable(broken), Progress: func(tr Transition) { told = append(told, tr) }})
				rec, err := o.Run(t.Context(), Saga{ID: "s", Steps: steps})
				if err == nil {
					judge(t, name, rec, l.calls, false)
					if broken.Updates() < at {
						break // no write was left to break
					}
					t.Fatalf("%s: write %d broke and nobody noticed", name, at)
				}
				if !errors.Is(err, storetest.ErrInjected) {
					t.Fatal(err)
				}
				o = orchestrator(t, Options{Journal: NewDurable(back)})
				rec, err = o.Resume(t.Context(), "s", steps)
				if errors.Is(err, ErrNotFound) && at == 1 && !after {
					if len(l.calls)+len(told) > 0 {
						t.Errorf("%s: called %v without a record", name, l.calls)
					}
					continue
				}
				if err != nil {
					t.Fatalf("%s, write %d: %v", name, at, err)
				}
				judge(t, name, rec, l.calls, true)
				acknowledged(t, name, told, rec)
			}
		}
	}
}

// acknowledged checks that what was told is still so.
func acknowledged(t *testing.T, name string, told []Transition, rec Record) {
	t.Helper()
	last := map[string]Transition{}
	for _, tr := range told {
		last[tr.StepID] = tr
	}
	for _, k := range rec.Steps {
		tr, any := last[k.ID]
		if !any {
			continue
		}
		ok := k.State == tr.State
		if tr.State == StepExecuting || tr.State == StepCommitted {
			ok = k.State != StepPending && (tr.State != StepCommitted || k.State != StepFailed)
		}
		if !ok || k.Attempts < tr.AttemptCount-1 {
			t.Errorf("%s: %s was told to be %v, attempt %d, and is %v, attempt %d", name, k.ID, tr.State, tr.AttemptCount, k.State, k.Attempts)
		}
	}
}

// TestMain lets the test binary be the process that dies.
func TestMain(m *testing.M) {
	if dir := os.Getenv("AGENTRUN_TEST_DIR"); dir != "" {
		err := victim(dir)
		fmt.Println("error:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// killer kills its process at the nth write of the journal, before or after it.
type killer struct {
	store.Store
	at, count int
	after     bool
}

func (k *killer) Update(ctx context.Context, fn func(*store.Tx) error) error {
	k.count++
	if k.count == k.at && !k.after {
		die()
	}
	err := k.Store.Update(ctx, fn)
	if k.count == k.at && k.after {
		die()
	}
	return err
}

func die() {
	_ = unix.Kill(unix.Getpid(), unix.SIGKILL)
	select {}
}

// effects makes steps that leave a line in a file, and kill the process in the middle of the nth call.
func effects(dir, name string, dieAt int) []Step {
	calls := 0
	return scenario(name, func(step string, fails int) Func {
		return func(_ context.Context, c Call) error {
			if c.Undo {
				step = "-" + c.StepID
			} else {
				step = c.StepID
			}
			f, err := os.OpenFile(filepath.Join(dir, "effects"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			if err != nil {
				return err
			}
			defer f.Close()
			fmt.Fprintln(f, step, c.Key)
			if calls++; calls == dieAt {
				die()
			}
			if c.Attempt <= fails && !c.Undo {
				return errStep
			}
			return nil
		}
	})
}

func victim(dir string) error {
	db, err := store.Open(filepath.Join(dir, "state"), store.Options{})
	if err != nil {
		return err
	}
	at, _ := strconv.Atoi(os.Getenv("AGENTRUN_TEST_AT"))
	k := &killer{Store: db, after: os.Getenv("AGENTRUN_TEST_WHERE") == "after"}
	dieAt := 0
	if os.Getenv("AGENTRUN_TEST_WHERE") == "call" {
		dieAt = at
	} else {
		k.at = at
	}
	o, err := New(Options{Journal: NewDurable(k), Now: time.Now, Progress: func(tr Transition) {
		fmt.Println("told", tr.StepID, uint8(tr.State), tr.AttemptCount)
	}})
	if err != nil {
		return err
	}
	name := os.Getenv("AGENTRUN_TEST_SCENARIO")
	steps := effects(dir, name, dieAt)
	rec, err := o.Resume(context.Background(), "s", steps)
	if errors.Is(err, ErrNotFound) {
		rec, err = o.Run(context.Background(), Saga{ID: "s", Steps: steps})
	}
	if err != nil {
		return err
	}
	fmt.Println("end", rec.State)
	os.Exit(0)
	return nil
}

// SIGKILL before and after every write, and in the middle of every call; then another process goes on, and is let live.
func TestH20KilledEverywhere(t *testing.T) {
	for _, name := range scenarios {
		for _, where := range []string{"before", "after", "call"} {
			for at := 1; ; at++ {
				dir := t.TempDir()
				told, ended := run1(t, dir, name, where, at)
				if ended {
					break
				}
				run1(t, dir, name, "", 0)
				db, err := store.Open(filepath.Join(dir, "state"), store.Options{})
				if err != nil {
					t.Fatal(err)
				}
				rec, err := NewDurable(db).Get(t.Context(), "s")
				db.Close()
				if err != nil {
					t.Fatal(err)
				}
				judge(t, name, rec, readEffects(t, dir), true)
				acknowledged(t, fmt.Sprintf("%s, %s %d", name, where, at), told, rec)
				if t.Failed() {
					t.Fatalf("%s, %s %d", name, where, at)
				}
			}
		}
	}
}

func run1(t *testing.T, dir, name, where string, at int) (told []Transition, ended bool) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "AGENTRUN_TEST_DIR="+dir, "AGENTRUN_TEST_SCENARIO="+name, "AGENTRUN_TEST_WHERE="+where,
		"GORACE=atexit_sleep_ms=0", fmt.Sprint("AGENTRUN_TEST_AT=", at))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	for line := range strings.Lines(string(out)) {
		var tr Transition
		var state uint8
		switch {
		case strings.HasPrefix(line, "told "):
			if _, err := fmt.Sscanf(line, "told %s %d %d", &tr.StepID, &state, &tr.AttemptCount); err != nil {
				t.Fatal(line, err)
			}
			tr.State = StepState(state)
			told = append(told, tr)
		case strings.HasPrefix(line, "end "):
			ended = true
		default:
			t.Fatalf("%s, %s %d: %s", name, where, at, line)
		}
	}
	if ended != (err == nil) {
		t.Fatalf("%s, %s %d: %v\n%s", name, where, at, err, out)
	}
	return told, ended
}

func readEffects(t *testing.T, dir string) (calls []string) {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, "effects"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	keys := map[string]string{}
	for s := bufio.NewScanner(f); s.Scan(); {
		call, key, _ := strings.Cut(s.Text(), " ")
		if keys[call] != "" && keys[call] != key {
			t.Errorf("%s: keys %q and %q", call, keys[call], key)
		}
		keys[call] = key
		calls = append(calls, call)
	}
	return calls
}

func TestDurableJournal(t *testing.T) {
	for name, j := range map[string]Journal{"durable": NewDurable(store.NewMemory()), "memory": NewMemory()} {
		ctx := t.Context()
		rec := Record{ID: "b", State: Pending, Steps: []StepRecord{{ID: "x", State: StepPending}}, CreatedAt: time.Unix(1, 0).UTC()}
		if err := j.Create(ctx, &rec, []byte("{}")); err != nil {
			t.Fatal(err)
		}
		if err := j.Create(ctx, &rec, nil); !errors.Is(err, ErrExists) {
			t.Errorf("%s: got %v, want ErrExists", name, err)
		}
		rec.Steps[0].State = StepExecuting
		if got, err := j.Get(ctx, "b"); err != nil || got.Steps[0].State != StepPending {
			t.Errorf("%s: got %v, %v: not a copy", name, got, err)
		}
		if err := j.Put(ctx, &rec); err != nil {
			t.Fatal(err)
		}
		other := rec
		other.ID = "a"
		if err := j.Create(ctx, &other, nil); err != nil {
			t.Fatal(err)
		}
		var ids []string
		if err := j.List(ctx, func(r Record) error {
			ids = append(ids, r.ID+" "+r.Steps[0].State.String())
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		equal(t, name, ids, "a executing", "b executing")
		if def, err := j.Definition(ctx, "b"); err != nil || string(def) != "{}" {
			t.Errorf("%s: got %q, %v", name, def, err)
		}
		for _, err := range []error{second(j.Get(ctx, "c")), second(j.Definition(ctx, "c"))} {
			if !errors.Is(err, ErrNotFound) {
				t.Errorf("%s: got %v, want ErrNotFound", name, err)
			}
		}
		l, err := j.Lock("b")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := j.Lock("b"); !errors.Is(err, ErrBusy) {
			t.Errorf("%s: got %v, want ErrBusy", name, err)
		}
		l.Unlock()
	}
}

func second[T any](_ T, err error) error { return err }

// A whole saga of one step: new journal, lock, record, attempt, outcome.
func BenchmarkSagaStepMemory(b *testing.B) {
	for _, direct := range []bool{false, true} {
		b.Run(fmt.Sprint("direct=", direct), func(b *testing.B) {
			o := orchestrator(b, Options{Journal: NewMemory()})
			steps := []Step{{ID: "a", Direct: direct, Execute: func(context.Context, Call) error { return nil }}}
			b.ReportAllocs()
			for b.Loop() {
				o.opt.Journal = NewMemory()
				if _, err := o.Run(context.Background(), Saga{ID: "s", Steps: steps}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A saga of one step and one of eleven: the difference over ten is a step.
func BenchmarkSagaDurable(b *testing.B) {
	for _, n := range []int{1, 11} {
		b.Run(fmt.Sprint("steps=", n), func(b *testing.B) {
			db, err := store.Open(filepath.Join(b.TempDir(), "state"), store.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer db.Close()
			o := orchestrator(b, Options{Journal: NewDurable(db)})
			var steps []Step
			for i := range n {
				steps = append(steps, Step{ID: fmt.Sprint("s", i), Execute: func(context.Context, Call) error { return nil }})
			}
			for b.Loop() {
				if _, err := o.Run(context.Background(), Saga{Steps: steps}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
