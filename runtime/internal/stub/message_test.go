// SPDX-License-Identifier: Apache-2.0

package stub

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"agentrun/runtime/internal/stub/cparse"
)

func sample() *Confinement {
	return &Confinement{
		TTY: true, WaitKillable: true, LandlockFS: 0x1fff, LandlockScoped: 3, LandlockLate: true,
		Rules:   []Rule{{4, "/"}, {1 << 40, "/usr"}},
		Rlimits: []Rlimit{{7, 10, 20}, {4, 0, 0}},
		BPF:     bytes.Repeat([]byte{6, 0, 0, 0, 0, 0, 255, 127}, 3),
		Cwd:     "/workspace",
	}
}

func sampleCommand() *Command {
	return &Command{Exe: "/usr/bin/env", Cwd: "/", Args: []string{"env", "", "a b"}, Env: []string{"A=1", "B="}}
}

func encoded(t testing.TB) (confinement, command []byte) {
	t.Helper()
	a, err1 := sample().Encode()
	b, err2 := sampleCommand().Encode()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	return a, b
}

// What Go writes, the stub reads: the layout stands in two languages and must be one.
func TestStubReadsWhatWeWrite(t *testing.T) {
	a, b := encoded(t)
	got, err := cparse.ParseConfinement(a)
	if err != nil {
		t.Fatal(err)
	}
	want := cparse.Confinement{
		Flags: flagTTY | flagWaitKillable | flagLandlock | flagLandlockLate, BPF: 3, LandlockFS: 0x1fff, Scoped: 3, Cwd: "/workspace",
		Paths: []string{"/", "/usr"}, Access: []uint64{4, 1 << 40},
		Resources: []uint64{7, 4}, Curs: []uint64{10, 0}, Maximum: []uint64{20, 0},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	run, err := cparse.ParseCommand(b)
	if err != nil {
		t.Fatal(err)
	}
	c := sampleCommand()
	if d := cmp.Diff(cparse.Command{Exe: c.Exe, Cwd: c.Cwd, Args: c.Args, Env: c.Env}, run); d != "" {
		t.Error(d)
	}
	// One is never taken for the other.
	_, err1 := cparse.ParseConfinement(b)
	_, err2 := cparse.ParseCommand(a)
	if err1 == nil || err2 == nil {
		t.Errorf("taken for the other: %v, %v", err1, err2)
	}
}

// The zero messages must start nothing, and every way to say too much is refused before it is sent.
func TestEncodeRefuses(t *testing.T) {
	for name, change := range map[string]func(*Confinement){
		"no filter":            func(m *Confinement) { m.BPF = nil },
		"half an insn":         func(m *Confinement) { m.BPF = m.BPF[:5] },
		"too long filter":      func(m *Confinement) { m.BPF = make([]byte, 8*(maxBPF+1)) },
		"NUL in path":          func(m *Confinement) { m.Rules[0].Path = "/\x00" },
		"NUL in folder":        func(m *Confinement) { m.Cwd = "/\x00" },
		"many rlimits":         func(m *Confinement) { m.Rlimits = make([]Rlimit, maxRlimits+1) },
		"many rules":           func(m *Confinement) { m.Rules = make([]Rule, maxRules+1) },
		"no domain for later":  func(m *Confinement) { m.LandlockFS = 0 },
		"the zero confinement": func(m *Confinement) { *m = Confinement{} },
	} {
		m := sample()
		change(m)
		if _, err := m.Encode(); err == nil {
			t.Errorf("%s: encoded", name)
		}
	}
	for name, change := range map[string]func(*Command){
		"no arguments":     func(c *Command) { c.Args = nil },
		"no program":       func(c *Command) { c.Exe = "" },
		"NUL in argument":  func(c *Command) { c.Args[1] = "a\x00b" },
		"NUL in variable":  func(c *Command) { c.Env[0] = "A=\x00" },
		"NUL in folder":    func(c *Command) { c.Cwd = "/\x00" },
		"many arguments":   func(c *Command) { c.Args = make([]string, maxStrings+1) },
		"too large":        func(c *Command) { c.Env = []string{"A=" + strings.Repeat("x", maxMessage)} },
		"the zero command": func(c *Command) { *c = Command{} },
	} {
		c := sampleCommand()
		change(c)
		if _, err := c.Encode(); err == nil {
			t.Errorf("%s: encoded", name)
		}
	}
}

// Every prefix of a message and every message with something after it is refused.
func TestStubRefusesCutMessages(t *testing.T) {
	a, b := encoded(t)
	for n := range a {
		if _, err := cparse.ParseConfinement(a[:n]); err == nil {
			t.Errorf("%d of %d bytes of a confinement were accepted", n, len(a))
		}
	}
	for n := range b {
		if _, err := cparse.ParseCommand(b[:n]); err == nil {
			t.Errorf("%d of %d bytes of a command were accepted", n, len(b))
		}
	}
	_, err1 := cparse.ParseConfinement(append(slices.Clone(a), 0))
	_, err2 := cparse.ParseCommand(append(slices.Clone(b), 0))
	if err1 == nil || err2 == nil {
		t.Errorf("a byte too many was accepted: %v, %v", err1, err2)
	}
}

// FuzzParse drives the stub's parsers with anything: they must refuse or give strings that lie within
// the message, and never read outside it.
func FuzzParse(f *testing.F) {
	a, b := encoded(f)
	for _, seed := range [][]byte{a, a[:40], b, b[:20], {}} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var found []string
		l, err := cparse.ParseConfinement(b)
		if err == nil {
			if l.BPF == 0 {
				t.Error("accepted without a filter")
			}
			found = append(l.Paths, l.Cwd)
		} else if !errors.Is(err, cparse.ErrRefused) {
			t.Fatal(err)
		}
		c, err := cparse.ParseCommand(b)
		if err == nil {
			if len(c.Args) == 0 {
				t.Error("accepted without a command")
			}
			found = slices.Concat(found, c.Args, c.Env, []string{c.Exe, c.Cwd})
		} else if !errors.Is(err, cparse.ErrRefused) {
			t.Fatal(err)
		}
		for _, s := range found {
			if !bytes.Contains(b, append([]byte(s), 0)) {
				t.Errorf("%q is not in the message", s)
			}
		}
	})
}

// errors.Is reaches the errno through the words (STYLE 10).
func TestFailureKeepsErrno(t *testing.T) {
	var err error = &Failure{Step: StepLandlock, Errno: unix.EOPNOTSUPP}
	if !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("%v does not unwrap to its errno", err)
	}
	for s := StepNone; s <= StepSelf; s++ {
		if strings.HasPrefix(s.String(), "unknown") {
			t.Errorf("step %d has no name", s)
		}
	}
}
