// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"slices"
	"strings"
	"testing"
)

// An attack is one thing the agent tries, and how it must end.
//
// want is a list of outcomes apart by '|', of which one must be seen:
//
//	EPERM          refused with this errno, by the kernel or quietly by the filter
//	EPERM@mount    the same, and the supervisor has recorded a refused mount
//	value=…        an observation, to the letter
//	ok             it works (for the rings in which that is right)
//	-              not tried: it would be no attack there
//
// More than one outcome stands only where kernels differ, and the reason stands
// beside it. in overrides want for a profile.
type attack struct {
	try  string
	want string
	in   map[string]string
}

var allProfiles = []string{"ring1", "ring2", "ring3", "strict"}

// attempt runs a table of attacks, all of one profile in one sandbox, each as
// a test of its own: in/profile/words.
func attempt(t *testing.T, o opts, attacks []attack) {
	t.Helper()
	needSandbox(t)
	// Two profiles at a time, and back when the last is through: the caller's deferred clean-up comes after them.
	t.Run("in", func(t *testing.T) {
		for _, profile := range allProfiles {
			t.Run(profile, func(t *testing.T) {
				t.Parallel()
				attemptIn(t, o, profile, attacks)
			})
		}
	})
}

func attemptIn(t *testing.T, o opts, profile string, attacks []attack) {
	t.Helper()
	o.profile = profile
	if !slices.Contains(o.flags, "--workspace") {
		o.flags = append(slices.Clone(o.flags), "--workspace", workspace(t))
	}
	var tries []string
	var wanted []attack
	for _, a := range attacks {
		if w, ok := a.in[profile]; ok {
			a.want = w
		}
		if a.want != "-" {
			tries, wanted = append(tries, a.try), append(wanted, a)
		}
	}
	got, r := try(t, o, tries...)
	if !r.hasStatus || r.status.State != "exited" {
		t.Errorf("the run ended as exit %d, state %q (%s), step %q: %s\nstderr: %.1000s",
			r.exit, r.status.State, r.status.Reason, r.status.FailedStep, r.status.Error, r.stderr)
	}
	for _, a := range wanted {
		t.Run(a.try, func(t *testing.T) {
			a.check(t, got[a.try], r)
		})
	}
}

func (a attack) check(t *testing.T, got string, r result) {
	t.Helper()
	if got == "" {
		t.Fatalf("no answer, want %s\nexit %d\nstderr: %.500s", a.want, r.exit, r.stderr)
	}
	for _, outcome := range strings.Split(a.want, "|") {
		errno, call, seen := strings.Cut(outcome, "@")
		if got != errno {
			continue
		}
		if !seen {
			return
		}
		if r.status.Refused[call] == 0 {
			t.Errorf("got %s, but the supervisor has no record of a refused %s (M-4); refused: %v", got, call, r.status.Refused)
		} else if !hasEvent(r.status, call) {
			t.Errorf("%s is counted as refused but has no event (M-4)", call)
		}
		return
	}
	t.Errorf("got %s, want %s", got, a.want)
}

func hasEvent(s status, call string) bool {
	for _, e := range s.Events {
		if e.Syscall == call && e.Count > 0 && !e.At.IsZero() && e.Verdict != "" {
			return true
		}
	}
	return false
}

// same gives one outcome to several profiles.
func same(want string, profiles ...string) map[string]string {
	m := map[string]string{}
	for _, p := range profiles {
		m[p] = want
	}
	return m
}
