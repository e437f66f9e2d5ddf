// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

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
