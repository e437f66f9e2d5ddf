// SPDX-License-Identifier: Apache-2.0

package cgroups

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// weights are those of the group and of ours above it, "-" where the weight is the lower one, "up" where it is raised. That of the folder
// is up as long as no group yields.
func weights(t *testing.T, g *Group) string {
	t.Helper()
	var all []string
	for dir, n := g.dir("cpu"), strings.Count(g.name, "/"); n >= 0; dir, n = filepath.Dir(dir), n-1 {
		s := g.share(dir)
		if s == nil {
			t.Fatalf("%s can't be opened", dir)
		}
		w, err := readFile(s.path)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, map[string]string{s.high: "up", s.low: "-"}[w])
		if all[len(all)-1] == "" {
			all[len(all)-1] = w
		}
		s.release()
	}
	return strings.Join(all, " ")
}

func awaitWeights(t *testing.T, g *Group, want string) {
	t.Helper()
	got := ""
	for ctx := within(t, 20*time.Second); ctx.Err() == nil; time.Sleep(time.Millisecond) {
		if got = weights(t, g); got == want {
			return
		}
	}
	t.Errorf("weights of %s: got %q, want %q", g.name, got, want)
}

// M-22, H-22: as long as a group is to be stopped it has more of the processors than who keeps them busy, and no longer; two at once
// don't take it from each other, and an operator's own weight is left alone.
func TestHurry(t *testing.T) {
	eachMode(t, func(t *testing.T) {
		a, b, busy := create(t, limits), create(t, limits), create(t, limits)
		yield(t, busy, true)
		awaitWeights(t, a, "- -")
		freeze := func(g *Group) (end func()) {
			start(t, g, "uffd").expect("stuck") // no freeze comes to an end
			ctx, cancel := context.WithCancel(within(t, 60*time.Second))
			done := make(chan error, 1)
			go func() { done <- g.Freeze(ctx) }()
			return func() {
				cancel()
				if err := <-done; err == nil {
					t.Error("frozen, with a process that can't be")
				}
			}
		}
		endA := freeze(a)
		awaitWeights(t, a, "up up")
		endB := freeze(b)
		awaitWeights(t, b, "up up")
		endA()
		awaitWeights(t, a, "- up")
		awaitWeights(t, b, "up up")
		endB()
		awaitWeights(t, b, "- -")

		s := b.share(b.dir("cpu"))
		defer s.release()
		if err := writeFile(s.path, "500"); err != nil {
			t.Fatal(err)
		}
		endB = freeze(b)
		awaitWeights(t, b, "500 up")
		endB()
		awaitWeights(t, b, "500 -")
		for _, g := range []*Group{a, b} {
			if _, err := g.Kill(within(t, 10*time.Second)); err != nil {
				t.Error(err)
			}
		}
		awaitWeights(t, b, "500 -")
	})
}

// H4 and M3 of the attack round: as long as one group yields all together weigh less than one of the host's, and one weight that an
// operator has given them is kept.
func TestFolderStepsBack(t *testing.T) {
	eachMode(t, func(t *testing.T) {
		a, b := create(t, limits), create(t, limits)
		s := a.share(a.folder())
		defer s.release()
		is := func(after, want string) {
			t.Helper()
			if got, err := readFile(s.path); err != nil || got != want {
				t.Errorf("after %s the folder has the weight %s (%v), want %s", after, got, err, want)
			}
		}
		kernels, behind := "1024", "64"
		if a.mode == V2 {
			kernels, behind = "100", "6"
		}
		is("the start", kernels)
		yield(t, a, true)
		is("one has begun to yield", behind)
		yield(t, b, true)
		yield(t, a, false)
		is("one of two has ended it", behind)
		yield(t, b, false)
		is("both have", kernels)
		yield(t, b, true)
		if err := b.Remove(within(t, 10*time.Second)); err != nil {
			t.Fatal(err)
		}
		is("the one that yielded is gone", kernels)
		if err := writeFile(s.path, "300"); err != nil {
			t.Fatal(err)
		}
		yield(t, a, true)
		is("an operator's word", "300")
		yield(t, a, false)
		is("an operator's word", "300")
	})
}

// yield skips the test where groups can't.
func yield(t *testing.T, g *Group, on bool) {
	t.Helper()
	if _, err := readFile(g.idle()); gone(err) {
		t.Skip("need: cpu.idle (Linux 5.15)")
	}
	if err := g.Yield(on); err != nil {
		t.Fatal(err)
	}
}

// What one that died in a hurry has left is taken back by the next, and by Sweep. As long as somebody needs it, by nobody.
func TestHurryLeftBehind(t *testing.T) {
	eachMode(t, func(t *testing.T) {
		g := create(t, limits)
		yield(t, create(t, limits), true)
		up := g.share(filepath.Dir(g.dir("cpu")))
		defer up.release()
		for name, next := range map[string]func() error{
			"Freeze": func() error { return g.Freeze(within(t, 10*time.Second)) },
			"Sweep":  func() error { _, err := Sweep(t.Context(), parent, func(string) bool { return true }); return err },
		} {
			if err := writeFile(up.path, up.high); err != nil {
				t.Fatal(err)
			}
			other := g.share(filepath.Dir(g.dir("cpu")))
			if !other.raise() {
				t.Fatal("not raised")
			}
			if err := next(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			awaitWeights(t, g, "- up")
			other.release() // it dies
			if err := next(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			awaitWeights(t, g, "- -")
		}
	})
}

// A group that yields is stopped as fast as another: its weight can be raised again.
func TestYield(t *testing.T) {
	eachMode(t, func(t *testing.T) {
		g := create(t, limits)
		idle := func() string {
			t.Helper()
			now, err := readFile(g.idle())
			if gone(err) {
				t.Skip("need: cpu.idle (Linux 5.15)")
			}
			if err != nil {
				t.Fatal(err)
			}
			return now
		}
		if idle() != "0" {
			t.Fatal("yields from the beginning")
		}
		for _, on := range []bool{true, true, false, false, true} {
			if err := g.Yield(on); err != nil || idle() == "1" != on {
				t.Fatalf("Yield(%v): %v, cpu.idle is %s", on, err, idle())
			}
		}
		start(t, g, "sleep").expect("ready")
		if err := g.Freeze(within(t, 10*time.Second)); err != nil {
			t.Fatal(err)
		}
		if idle() != "0" || weights(t, g) != "- up" {
			t.Errorf("frozen: cpu.idle is %s, weights are %s", idle(), weights(t, g))
		}
		if err := g.Thaw(within(t, 10*time.Second)); err != nil {
			t.Fatal(err)
		}
	})
}
