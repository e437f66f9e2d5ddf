// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"slices"
	"strings"
	"sync"
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
// beside it. in overrides want for a profile, for "rootless" and "rootless PROFILE", or for "joined".
type attack struct {
	try  string
	want string
	in   map[string]string
}

var allProfiles = []string{"ring1", "ring2", "ring3", "strict"}

// rootlessProfiles are allProfiles but ring 1, which an ordinary user is refused by name
// (TestM1RootlessRefusesByName).
var rootlessProfiles = []string{"ring2", "ring3", "strict"}

// attempt runs a table of attacks, all of one profile in one sandbox, each as
// a test of its own: in/profile/words as root, joined/profile/words from a command that has joined the run
// (exec --in), rootless/profile/words as an ordinary user. A table that shows a folder of its own is tried as root only:
// to an ordinary user it would be somebody else's.
func attempt(t *testing.T, o opts, attacks []attack) {
	t.Helper()
	needSandbox(t)
	// Two profiles at a time, and back when the last is through: the caller's deferred clean-up comes after
	// them.
	t.Run("in", func(t *testing.T) {
		for _, profile := range allProfiles {
			t.Run(profile, func(t *testing.T) {
				t.Parallel()
				attemptIn(t, o, profile, attacks)
			})
		}
	})
	t.Run("joined", func(t *testing.T) {
		profiles := []string{"ring2", "ring3", "strict"}
		if slow > 1 { // an emulated machine: what joining changes is the same in each ring
			profiles = profiles[:1]
		}
		for _, profile := range profiles {
			t.Run(profile, func(t *testing.T) {
				t.Parallel()
				o := o
				o.joined = true
				attemptIn(t, o, profile, attacks)
			})
		}
	})
	if slices.ContainsFunc(o.flags, func(f string) bool { return f != "--no-gateway" }) || o.asRoot {
		return
	}
	t.Run("rootless", func(t *testing.T) {
		profiles := rootlessProfiles
		if slow > 1 { // what an ordinary user lacks is the same in each ring
			profiles = []string{"ring3"}
		}
		for _, profile := range profiles {
			t.Run(profile, func(t *testing.T) {
				t.Parallel()
				o := o
				o.user = someone(t)
				attemptIn(t, o, profile, attacks)
			})
		}
	})
}

func attemptIn(t *testing.T, o opts, profile string, attacks []attack) {
	t.Helper()
	o.profile = profile
	if !slices.Contains(o.flags, "--workspace") {
		ws := workspace(t)
		if o.user != nil {
			ws = o.user.workspace(t)
		}
		o.flags = append(slices.Clone(o.flags), "--workspace", ws)
	}
	var tries []string
	var wanted []attack
	for _, a := range attacks {
		for _, where := range []string{profile, "rootless", "rootless " + profile} {
			if w, ok := a.in[where]; ok && (o.user != nil || where == profile) {
				a.want = w
			}
		}
		if w, ok := a.in["joined"]; ok && o.joined {
			a.want = w
		}
		if a.want != "-" {
			tries, wanted = append(tries, a.try), append(wanted, a)
		}
	}
	tried := try
	if o.joined {
		tried = tryJoined
	}
	got, r := tried(t, o, tries...)
	if !r.hasStatus || r.status.State != "exited" {
		t.Errorf("the run ended as exit %d, state %q (%s), step %q: %s\nstderr: %.1000s",
			r.exit, r.status.State, r.status.Reason, r.status.FailedStep, r.status.Error, r.stderr)
	}
	for _, a := range wanted {
		t.Run(a.try, func(t *testing.T) {
			if how := a.check(t, got[a.try], r); !o.joined { // the table is of runs
				cell(t, profile, o.user, how)
			}
		})
	}
}

// cell puts an outcome among the test's events, where the table of docs/attacks.md is read from: the ring,
// who ran it, and how the attack ended: "filter" (refused there, and on record), "refused" (by another wall)
// or "works".
func cell(t testing.TB, profile string, u *user, how string) {
	t.Helper()
	t.Attr("cell", profile+" "+runBy(u)+" "+how)
}

func runBy(u *user) string {
	if u != nil {
		return "rootless"
	}
	return "root"
}

// ran notes for the same table that a test has started a sandbox of a ring, once for each: what the test
// shows, it shows there.
func ran(t testing.TB, by string, args []string) {
	t.Helper()
	args = args[:max(slices.Index(args, "--"), 0)]
	if !slices.Contains(args, "exec") || slices.Contains(args, "--in") {
		return
	}
	profile := "ring3" // what exec takes without a word about it
	for i, a := range args[:len(args)-1] {
		switch a {
		case "--ring":
			profile = "ring" + args[i+1]
		case "--profile":
			profile = args[i+1]
		}
	}
	if _, before := noted.LoadOrStore([3]string{t.Name(), by, profile}, true); !before {
		t.Attr("ring", profile+" "+by)
	}
}

var noted sync.Map

// check gives how the attack ended, in the words of cell.
func (a attack) check(t *testing.T, got string, r result) (how string) {
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
			if got == "ok" {
				return "works"
			}
			return "refused"
		}
		if r.status.Refused[call] == 0 {
			t.Errorf("got %s, but the supervisor has no record of a refused %s (M-4); refused: %v", got, call, r.status.Refused)
		} else if !hasEvent(r.status, call) {
			t.Errorf("%s is counted as refused but has no event (M-4)", call)
		}
		return "filter"
	}
	t.Errorf("got %s, want %s", got, a.want)
	return "open"
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
