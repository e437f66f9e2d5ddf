// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentrun/rings"
)

type clock struct{ atomic.Int64 }

func (c *clock) now() time.Duration { return time.Duration(c.Load()) }

func table(t *testing.T, dir string, c *clock, places int) *Table {
	t.Helper()
	m, err := open(dir, "boot-1", c.now, places)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func account(t *testing.T, m *Table, agent, session string) *Account {
	t.Helper()
	a, err := m.Account(agent, session)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

func drain(a *Account, ring rings.Ring) (n int) {
	for a.Take(ring, 1).Allowed {
		n++
	}
	return n
}

// H-16, H-17: the bucket is the agent's in its session, not the run's: two runs at once share it, a later one finds what was left,
// and another agent, session or boot has its own.
func TestH16BucketIsTheNodes(t *testing.T) {
	dir, c := filepath.Join(t.TempDir(), "state"), &clock{}
	c.Store(int64(time.Hour))
	one, other := table(t, dir, c, 1000), table(t, dir, c, 1000)
	first, second := account(t, one, "a", "s"), account(t, other, "a", "s")
	for range 4 {
		if !first.Take(rings.Sandbox, 1).Allowed {
			t.Fatal("refused at the start")
		}
	}
	if n := drain(second, rings.Sandbox); n != 6 {
		t.Errorf("the second run had %d tokens beside 4, want 6", n)
	}
	first.Close()
	second.Close()
	if n := drain(account(t, table(t, dir, c, 1000), "a", "s"), rings.Standard); n != 0 {
		t.Errorf("a run after them had %d tokens, want none", n)
	}
	for _, k := range [][2]string{{"a", "t"}, {"b", "s"}, {"as", ""}, {"", "as"}} {
		if n := drain(account(t, one, k[0], k[1]), rings.Sandbox); n != 10 {
			t.Errorf("%q had %d tokens, want 10", k, n)
		}
	}
	c.Add(int64(time.Second))
	if n := drain(account(t, one, "a", "s"), rings.Sandbox); n != 5 {
		t.Errorf("after a second: %d tokens, want 5", n)
	}
	next, err := open(dir, "boot-2", c.now, 1000)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	if n := drain(account(t, next, "a", "s"), rings.Sandbox); n != 10 {
		t.Errorf("after a reboot: %d tokens, want 10", n)
	}
}

// H-24: so is the window. Six runs that try twice each are one agent that tries twelve times.
func TestH24WindowIsTheNodes(t *testing.T) {
	dir, c := filepath.Join(t.TempDir(), "state"), &clock{}
	c.Store(int64(time.Hour))
	var last rings.BreachResult
	for range 3 {
		m := table(t, dir, c, 1000)
		a := account(t, m, "a", "s")
		var err error
		if last, err = a.Attempt(rings.BreachWeight(rings.Sandbox, rings.Root), 0); err != nil {
			t.Fatal(err)
		}
		a.Close()
	}
	if last.Score != 27 || !last.Tripped || last.Attempts != 3 {
		t.Errorf("three attempts in three runs: %+v, want 27, tripped", last)
	}
	a := account(t, table(t, dir, c, 1000), "a", "s")
	if err := a.Forgive(); err != nil {
		t.Fatal(err)
	}
	if got, _ := a.Attempt(rings.BreachWeight(rings.Sandbox, rings.Root), 0); got.Attempts != 1 {
		t.Errorf("after a release: %+v, want one attempt", got)
	}
	c.Add(int64(rings.BreachWindow))
	if got, _ := a.Attempt(rings.BreachWeight(rings.Sandbox, rings.Sandbox), 0); got.Attempts != 0 {
		t.Errorf("a minute later: %+v, want none", got)
	}
}

// H-17: a place changes hands only if nobody could gain by it.
func TestH17PlacesChangeHands(t *testing.T) {
	dir, c := filepath.Join(t.TempDir(), "state"), &clock{}
	c.Store(int64(time.Hour))
	m := table(t, dir, c, 1)
	a := account(t, m, "a", "s")
	full := func(m *Table, when string) {
		t.Helper()
		if b, err := m.Account("b", "s"); !errors.Is(err, ErrFull) {
			t.Fatalf("%s: got %v, %v, want ErrFull", when, b, err)
		}
	}
	full(m, "held, and full")
	full(table(t, dir, c, 1), "held by another process")
	a.Take(rings.Sandbox, 1)
	a.Close()
	full(m, "a token is out")
	c.Add(int64(time.Second))
	if _, err := account(t, m, "a", "s").Attempt(rings.BreachWeight(rings.Sandbox, rings.Privileged), 0); err != nil {
		t.Fatal(err)
	}
	for n := range m.held {
		delete(m.held, n)
	}
	c.Add(int64(rings.BreachWindow) - 1)
	full(m, "an attempt counts")
}

// H-17: as many goroutines and processes as like never take more than there is.
func TestH17NeverMoreThanTheBucket(t *testing.T) {
	if dir := os.Getenv("METER_TEST_DIR"); dir != "" {
		c := &clock{}
		c.Store(int64(time.Hour))
		m, err := open(dir, "boot-1", c.now, 1000)
		if err != nil {
			t.Fatal(err)
		}
		a, err := m.Account("a", "s")
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("took %d.\n", drain(a, rings.Privileged))
		return
	}
	dir, c := filepath.Join(t.TempDir(), "state"), &clock{}
	c.Store(int64(time.Hour))
	m := table(t, dir, c, 1000)
	var taken atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			cmd := exec.Command(os.Args[0], "-test.run", "^TestH17NeverMoreThanTheBucket$")
			cmd.Env = append(os.Environ(), "METER_TEST_DIR="+dir)
			out, err := cmd.Output()
			var n int64
			if _, rest, ok := strings.Cut(string(out), "took "); !ok || err != nil {
				t.Errorf("%v: %s", err, out)
			} else if _, err := fmt.Sscanf(rest, "%d", &n); err != nil {
				t.Error(err)
			}
			taken.Add(n)
		})
	}
	for range 100 {
		all.Go(func() {
			a, err := m.Account("a", "s")
			if err != nil {
				t.Error(err)
				return
			}
			defer a.Close()
			taken.Add(int64(drain(a, rings.Privileged)))
		})
	}
	all.Wait()
	if taken.Load() != 100 {
		t.Errorf("took %d tokens, want 100", taken.Load())
	}
}

// A disk that has no page for the table refuses; it doesn't end who counts.
func TestH17NoPageRefuses(t *testing.T) {
	dir, c := filepath.Join(t.TempDir(), "state"), &clock{}
	c.Store(int64(time.Hour))
	m := table(t, dir, c, 1000)
	a := account(t, m, "a", "s")
	if err := os.Truncate(filepath.Join(dir, fileName), 1); err != nil { // as SIGBUS as a full disk
		t.Fatal(err)
	}
	if res := a.Take(rings.Sandbox, 1); res.Allowed || res.Code != rings.CodeRateTableFull {
		t.Errorf("got %+v", res)
	}
	if _, err := a.Attempt(rings.BreachWeight(rings.Sandbox, rings.Root), 0); err == nil {
		t.Error("an attempt that nobody can count")
	}
	if err := a.Forgive(); err == nil {
		t.Error("forgiven")
	}
	if b, err := m.Account("b", "s"); err == nil {
		t.Errorf("got %v", b)
	}
}

func BenchmarkTake(b *testing.B) {
	c := &clock{}
	m, err := open(filepath.Join(b.TempDir(), "state"), "boot-1", c.now, 1000)
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	a, err := m.Account("a", "s")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		c.Add(int64(time.Second))
		if !a.Take(rings.Privileged, 1).Allowed {
			b.Fatal("refused")
		}
	}
}
