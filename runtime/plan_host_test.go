// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"agentrun/fsjail"
	"agentrun/profiles"
)

// What was looked at ahead is what the plan is made of, and each look is made once, whoever comes to it.
func TestPlanOfLooksAhead(t *testing.T) {
	p, ok := profiles.Builtin("ring3")
	if !ok {
		t.Fatal("no profile ring3")
	}
	var looks atomic.Int32
	broken := errors.New("broken")
	spec := Spec{Profile: p, Limits: p.Limits, Command: []string{"/bin/true"}, WorkDir: "/", BestEffort: true}
	for name, spoil := range map[string]func(*HostAhead){
		"root": func(a *HostAhead) { a.root = func() ([]fsjail.Entry, error) { looks.Add(1); return nil, broken } },
		"host": func(a *HostAhead) {
			a.host = func() abilities { looks.Add(1); return abilities{needed: []Missing{{Name: "broken"}}} }
		},
	} {
		looks.Store(0)
		spec.Ahead = LookAhead()
		spoil(spec.Ahead)
		if _, err := NewPlan(spec); err == nil || !strings.Contains(err.Error(), "broken") || looks.Load() != 1 {
			t.Errorf("%s: got %v after %d looks, want that of the look ahead", name, err, looks.Load())
		}
	}
	spec.Ahead = LookAhead()
	spec.Ahead.Look()
	ahead, err := NewPlan(spec)
	spec.Ahead = nil
	now, err2 := NewPlan(spec)
	if err != nil || err2 != nil {
		t.Skipf("need: a host that gives a plan: %v", errors.Join(err, err2))
	}
	if ahead.Digest != now.Digest {
		t.Errorf("plans %s ahead and %s now, on one host", ahead.Digest, now.Digest)
	}
}
