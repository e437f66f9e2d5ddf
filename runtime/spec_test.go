// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"agentrun/profiles"
	"agentrun/rings"
)

func goodSpec(t *testing.T) Spec {
	p := builtin(t, "ring3")
	return Spec{Profile: p, Limits: p.Limits, Command: []string{"/bin/true"}, WorkDir: "/nonexistent"}
}

// Every bad field is named, all of them at once.
func TestCheckReportsEveryField(t *testing.T) {
	cases := map[string]func(*Spec){
		"command":        func(s *Spec) { s.Command = nil },
		"--name":         func(s *Spec) { s.Name = "a\nb" },
		"--agent":        func(s *Spec) { s.Agent = "-x" },
		"--session":      func(s *Spec) { s.Session = "a.b" },
		"--cpus":         func(s *Spec) { s.Limits.CPU = 0.001 },
		"--memory":       func(s *Spec) { s.Limits.Memory = 1 },
		"--pids":         func(s *Spec) { s.Limits.PIDs = 0 },
		"--timeout":      func(s *Spec) { s.Limits.Timeout = 0 },
		"--cpu-time":     func(s *Spec) { s.Limits.CPUTime = -1 },
		"--max-output":   func(s *Spec) { s.Limits.MaxOutput = 0 },
		"--scratch-size": func(s *Spec) { s.Limits.ScratchSize = 0 },
		"--env":          func(s *Spec) { s.Env = []string{"=x"} },
		"--env-pass":     func(s *Spec) { s.EnvPass = []string{"A=B"} },
		"--cwd":          func(s *Spec) { s.Cwd = "work" },
		"--keep":         func(s *Spec) { s.Keep = "x.tar" },
		"--bind":         func(s *Spec) { s.Binds = []BindMount{{Source: "/tmp", Writable: true}} },
	}
	all := goodSpec(t)
	for field, spoil := range cases {
		s := goodSpec(t)
		spoil(&s)
		spoil(&all)
		if got := fields(s.Check()); !slices.Equal(got, []string{field}) {
			t.Errorf("%s: reported %v", field, got)
		}
	}
	if got := fields(all.Check()); len(got) != len(cases) {
		t.Errorf("all bad: reported %v, want %d fields", got, len(cases))
	}
	good := goodSpec(t)
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	if err := new(Spec).Check(); err == nil {
		t.Error("the zero spec was accepted")
	}
}

func fields(err error) (names []string) {
	if e, ok := errors.AsType[*InvalidSpec](err); ok {
		for _, p := range e.Problems {
			names = append(names, p.Path)
		}
	}
	return names
}

// M-3: limits below, above and at the ends of the ranges.
func TestLimitRanges(t *testing.T) {
	cases := []struct {
		set  func(*profiles.Limits)
		good bool
	}{
		{func(l *profiles.Limits) { l.CPU = 0.05 }, true},
		{func(l *profiles.Limits) { l.CPU = 0.009 }, false},
		{func(l *profiles.Limits) { l.CPU = 1 }, true},
		{func(l *profiles.Limits) { l.CPU = 1.01 }, false},
		{func(l *profiles.Limits) { l.Memory = 1024 * profiles.MiB }, true},
		{func(l *profiles.Limits) { l.Memory = 1024*profiles.MiB + 1 }, false},
		{func(l *profiles.Limits) { l.Memory = 64 * profiles.MiB }, true},
		{func(l *profiles.Limits) { l.Timeout = profiles.Duration(time.Second) }, true},
		{func(l *profiles.Limits) { l.Timeout = profiles.MinTimeout }, true},
		{func(l *profiles.Limits) { l.Timeout = profiles.MinTimeout - 1 }, false},
		{func(l *profiles.Limits) { l.Timeout = profiles.MaxTimeout + 1 }, false},
	}
	for i, c := range cases {
		s := goodSpec(t)
		c.set(&s.Limits)
		if err := s.Check(); (err == nil) != c.good {
			t.Errorf("case %d: %v, want good=%v", i, err, c.good)
		}
	}
}

// H-29: identifiers are matched as whole strings.
func TestIdentifiers(t *testing.T) {
	for id, want := range map[string]bool{
		"a": true, "did:web:x.y": true, "A-1_b": true, "": false, "-a": false, "a-": false, "a\n": false, "a b": false,
		"é": false, strings.Repeat("a", 256): true, strings.Repeat("a", 257): false, "a..b": true, ".": false,
	} {
		if got := rings.CheckAgentID(id) == nil; got != want {
			t.Errorf("identifier %q: %v, want %v", id, got, want)
		}
	}
	for id, want := range map[string]bool{
		"session-1": true, "_": true, "-": true, "a.b": false, "a\n": false, "": false, strings.Repeat("a", 257): false,
	} {
		if got := rings.CheckSessionID(id) == nil; got != want {
			t.Errorf("session %q: %v, want %v", id, got, want)
		}
	}
}

func TestNewIDs(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := newID()
		if !validID(id) || seen[id] {
			t.Fatalf("id %q: malformed or a second time", id)
		}
		seen[id] = true
	}
	for _, id := range []string{"", ".", "..", "abc", "../../etc/passwd", "ABCDEFGHIJKLMNOP", "abcdefghijklmno1"} {
		if validID(id) {
			t.Errorf("%q passes as an id", id)
		}
	}
}
