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

func sample() *Message {
	return &Message{
		TTY: true, WaitKillable: true, LandlockFS: 0x1fff, LandlockScoped: 3,
		Rules:   []Rule{{4, "/"}, {1 << 40, "/usr"}},
		Rlimits: []Rlimit{{7, 10, 20}, {4, 0, 0}},
		BPF:     bytes.Repeat([]byte{6, 0, 0, 0, 0, 0, 255, 127}, 3),
		Exe:     "/usr/bin/env", Cwd: "/workspace",
		Args: []string{"env", "", "a b"}, Env: []string{"A=1", "B="},
	}
}

// What Go writes, the stub reads: the layout stands in two languages and must be one.
func TestStubReadsWhatWeWrite(t *testing.T) {
	m := sample()
	b, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := cparse.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	want := cparse.Launch{
		Flags: flagTTY | flagWaitKillable | flagLandlock, BPF: 3, LandlockFS: 0x1fff, Scoped: 3,
		Exe: m.Exe, Cwd: m.Cwd, Args: m.Args, Env: m.Env,
		Paths: []string{"/", "/usr"}, Access: []uint64{4, 1 << 40},
		Resources: []uint64{7, 4}, Curs: []uint64{10, 0}, Maximum: []uint64{20, 0},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// The zero message must start nothing, and every way to say too much is refused before it is sent.
func TestEncodeRefuses(t *testing.T) {
	cases := map[string]func(*Message){
		"no command":      func(m *Message) { m.Args = nil },
		"no filter":       func(m *Message) { m.BPF = nil },
		"half an insn":    func(m *Message) { m.BPF = m.BPF[:5] },
		"too long filter": func(m *Message) { m.BPF = make([]byte, 8*(maxBPF+1)) },
		"NUL in argument": func(m *Message) { m.Args[1] = "a\x00b" },
		"NUL in variable": func(m *Message) { m.Env[0] = "A=\x00" },
		"NUL in path":     func(m *Message) { m.Rules[0].Path = "/\x00" },
		"many arguments":  func(m *Message) { m.Args = make([]string, maxStrings+1) },
		"many rlimits":    func(m *Message) { m.Rlimits = make([]Rlimit, maxRlimits+1) },
		"many rules":      func(m *Message) { m.Rules = make([]Rule, maxRules+1) },
		"too large":       func(m *Message) { m.Env = []string{"A=" + strings.Repeat("x", maxMessage)} },
	}
	for name, change := range cases {
		m := sample()
		change(m)
		if _, err := m.Encode(); err == nil {
			t.Errorf("%s: encoded", name)
		}
	}
	if _, err := new(Message).Encode(); err == nil {
		t.Error("the zero message was encoded")
	}
}

// Every prefix of a message and every message with something after it is refused.
func TestStubRefusesCutMessages(t *testing.T) {
	b, err := sample().Encode()
	if err != nil {
		t.Fatal(err)
	}
	for n := range b {
		if _, err := cparse.Parse(b[:n]); err == nil {
			t.Errorf("%d of %d bytes were accepted", n, len(b))
		}
	}
	if _, err := cparse.Parse(append(slices.Clone(b), 0)); err == nil {
		t.Error("a byte too many was accepted")
	}
}

// FuzzParse drives the stub's parser with anything: it must refuse or give strings that lie within
// the message, and never read outside it.
func FuzzParse(f *testing.F) {
	b, err := sample().Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:40])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := cparse.Parse(b)
		if err != nil {
			if !errors.Is(err, cparse.ErrRefused) {
				t.Fatal(err)
			}
			return
		}
		if len(l.Args) == 0 || l.BPF == 0 {
			t.Error("accepted without a command or a filter")
		}
		for _, s := range slices.Concat(l.Args, l.Env, l.Paths, []string{l.Exe, l.Cwd}) {
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
