// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func signedBy(operator string) func(string, string) (string, error) {
	return func(string, string) (string, error) { return operator, nil }
}

func witness(t *testing.T, action, subject string) *Witness {
	t.Helper()
	w, err := WitnessOf(action, subject, signedBy("operator"))
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func newQuarantine(t *testing.T) *Quarantine {
	t.Helper()
	q, err := NewQuarantine(newHandClock().Now, nil)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func TestH31HeldAgentsAreDenied(t *testing.T) {
	q := newQuarantine(t)
	if d := q.Check("a"); !d.Allowed() || q.Ring("a", Privileged) != Privileged {
		t.Errorf("before: %+v, %v", d, q.Ring("a", Privileged))
	}
	first, added, err := q.Add("a", "breach", "detector")
	if err != nil || !added {
		t.Fatalf("got %v, %v", added, err)
	}
	if d := q.Check("a"); d.Allowed() || d.Code != CodeQuarantined {
		t.Errorf("held: %+v, want %s", d, CodeQuarantined)
	}
	for _, r := range []Ring{NoRing, Root, Privileged, Standard, Sandbox} {
		if got := q.Ring("a", r); got != Sandbox {
			t.Errorf("%v while held: %v, want ring 3", r, got)
		}
	}
	again, added, err := q.Add("a", "other", "other")
	if err != nil || added || again != first {
		t.Errorf("added twice: %+v, %v, %v, want what holds it: %+v", again, added, err, first)
	}
	if _, _, err := q.Add("a\n", "x", "y"); !errors.Is(err, ErrIdentifier) {
		t.Errorf("bad id: %v", err)
	}
	if e, added, err := q.Add("b", strings.Repeat("é", 1000)+"\xff", ""); err != nil || !added || e.check() != nil {
		t.Errorf("a reason that can't be kept: %+v, %v: must not keep the agent free", e, err)
	}
}

func TestH31ReleaseNeedsAWitness(t *testing.T) {
	q := newQuarantine(t)
	q.Add("a", "breach", "detector")
	good := witness(t, ActionRelease, "a")
	spent := witness(t, ActionRelease, "a")
	spent.Use(ActionRelease, "a")
	for name, w := range map[string]*Witness{
		"nil": nil, "zero": {}, "other agent": witness(t, ActionRelease, "b"), "other action": witness(t, "elevate", "a"), "spent": spent,
	} {
		if _, _, err := q.Release("a", w); !errors.Is(err, ErrWitness) || !q.Holds("a") {
			t.Errorf("%s: %v, held %v, want refused", name, err, q.Holds("a"))
		}
	}
	if _, _, err := q.Release("b", good); !errors.Is(err, ErrNotQuarantined) {
		t.Errorf("release of an agent that isn't held: %v", err)
	}
	was, operator, err := q.Release("a", good)
	if err != nil || operator != "operator" || was.Reason != "breach" || q.Holds("a") {
		t.Errorf("got %+v, %q, %v, held %v", was, operator, err, q.Holds("a"))
	}
	q.Add("a", "again", "detector")
	if _, _, err := q.Release("a", good); !errors.Is(err, ErrWitness) {
		t.Errorf("a witness for the second time: %v", err)
	}
}

func TestH12WitnessIsVerifiedForWhatItIsUsed(t *testing.T) {
	refuse := errors.New("bad signature")
	for name, verify := range map[string]func(string, string) (string, error){
		"none": nil, "refused": func(string, string) (string, error) { return "operator", refuse }, "nobody": signedBy(""),
	} {
		if w, err := WitnessOf("act", "a", verify); w != nil || !errors.Is(err, ErrWitness) {
			t.Errorf("%s: got %v, %v", name, w, err)
		}
	}
	if _, err := WitnessOf("act", "a", func(string, string) (string, error) { return "", refuse }); !errors.Is(err, refuse) {
		t.Errorf("%v hides why", err)
	}
	if w, err := WitnessOf("", "a", signedBy("operator")); w != nil || err == nil {
		t.Error("a witness of no action")
	}
	w, err := WitnessOf("act", "a", func(action, subject string) (string, error) {
		if action != "act" || subject != "a" {
			t.Errorf("verified %q of %q", action, subject)
		}
		return "operator", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var used atomic.Int64
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if _, err := w.Use("act", "a"); err == nil {
				used.Add(1)
			}
		})
	}
	wg.Wait()
	if used.Load() != 1 {
		t.Errorf("used %d times, want once", used.Load())
	}
}

func TestH31SurvivesRestart(t *testing.T) {
	q := newQuarantine(t)
	q.Add("b", "breach", "detector")
	q.Add("a", "policy", "operator")
	text, err := json.Marshal(q.Export())
	if err != nil {
		t.Fatal(err)
	}
	var entries []QuarantineEntry
	if err := json.Unmarshal(text, &entries); err != nil {
		t.Fatal(err)
	}
	restored, err := NewQuarantine(time.Now, entries)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(q.Export(), restored.Export()); diff != "" {
		t.Errorf("after a restart (-before +after):\n%s", diff)
	}
	good := entries[0]
	for name, bad := range map[string]func(*QuarantineEntry){
		"id": func(e *QuarantineEntry) { e.Agent = "" }, "reason": func(e *QuarantineEntry) { e.Reason = "" },
		"by": func(e *QuarantineEntry) { e.By = strings.Repeat("x", 2000) }, "since": func(e *QuarantineEntry) { e.Since = time.Time{} },
		"twice": func(e *QuarantineEntry) { e.Agent = good.Agent },
	} {
		e := entries[1]
		bad(&e)
		if q, err := NewQuarantine(time.Now, []QuarantineEntry{good, e}); err == nil || !q.Holds("anybody") {
			t.Errorf("%s: loaded", name)
		}
	}
}

func TestH31UnloadedHoldsEverybody(t *testing.T) {
	for name, q := range map[string]*Quarantine{"nil": nil, "zero": {}} {
		if !q.Holds("a") || q.Check("a").Allowed() || q.Ring("a", Privileged) != Sandbox {
			t.Errorf("%s register lets an agent be", name)
		}
		if _, _, err := q.Add("a", "x", "y"); err == nil {
			t.Errorf("%s register: Add says it remembers", name)
		}
		if _, _, err := q.Release("a", witness(t, ActionRelease, "a")); err == nil {
			t.Errorf("%s register: released", name)
		}
		if q.Export() == nil || len(q.Export()) != 0 {
			t.Errorf("%s register: exports %v", name, q.Export())
		}
	}
	if _, err := NewQuarantine(nil, nil); err == nil {
		t.Error("a register without a clock")
	}
}
