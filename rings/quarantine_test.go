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

// What can't be kept must not keep the agent free.
func TestH31HoldKeepsWhatItCan(t *testing.T) {
	for name, why := range map[string][2]string{
		"ordinary": {"breach", "detector"}, "nothing": {"", ""}, "too long, and no text": {strings.Repeat("é", 1000) + "\xff", "\xff"},
	} {
		if e, err := Hold("a", why[0], why[1], time.Now()); err != nil || e.Check() != nil || e.Agent != "a" {
			t.Errorf("%s: %+v, %v", name, e, err)
		}
	}
	if _, err := Hold("a\n", "x", "y", time.Now()); !errors.Is(err, ErrIdentifier) {
		t.Errorf("bad id: %v", err)
	}
}

func TestH31ReleaseNeedsAWitness(t *testing.T) {
	good, spent := witness(t, ActionRelease, "a"), witness(t, ActionRelease, "a")
	spent.Use(ActionRelease, "a")
	for name, w := range map[string]*Witness{
		"nil": nil, "zero": {}, "other agent": witness(t, ActionRelease, "b"), "other action": witness(t, "elevate", "a"), "spent": spent,
	} {
		if _, err := w.Use(ActionRelease, "a"); !errors.Is(err, ErrWitness) {
			t.Errorf("%s: %v, want refused", name, err)
		}
	}
	if operator, err := good.Use(ActionRelease, "a"); err != nil || operator != "operator" {
		t.Errorf("got %q, %v", operator, err)
	}
	if _, err := good.Use(ActionRelease, "a"); !errors.Is(err, ErrWitness) {
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
	before, err := Hold("a", "policy", "operator", time.Unix(1, 2))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(before)
	if err != nil {
		t.Fatal(err)
	}
	var good QuarantineEntry
	if err := json.Unmarshal(text, &good); err != nil || good != before || good.Check() != nil {
		t.Errorf("after a restart: %+v, %v, want %+v", good, err, before)
	}
	for name, bad := range map[string]func(*QuarantineEntry){
		"id": func(e *QuarantineEntry) { e.Agent = "" }, "reason": func(e *QuarantineEntry) { e.Reason = "" },
		"by": func(e *QuarantineEntry) { e.By = strings.Repeat("x", 2000) }, "since": func(e *QuarantineEntry) { e.Since = time.Time{} },
	} {
		e := good
		if bad(&e); e.Check() == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
