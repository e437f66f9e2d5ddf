// SPDX-License-Identifier: Apache-2.0

package stub

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

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

func sampleSandbox() *Sandbox {
	return &Sandbox{Namespaces: unix.CLONE_NEWUSER | unix.CLONE_NEWPID, Owner: 70000, Agent: 1000, Again: true, Hostname: "agent", Root: "/run/view", Clocks: "monotonic 0 0\n"}
}

func encodedSandbox(t testing.TB) []byte {
	t.Helper()
	b, err := sampleSandbox().Encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
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
	s, box := sampleSandbox(), encodedSandbox(t)
	read, err := cparse.ParseSandbox(box)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(cparse.Sandbox{Flags: flagAgain, Namespaces: s.Namespaces, Owner: s.Owner, Agent: s.Agent, Hostname: s.Hostname, Root: s.Root, Clocks: s.Clocks, HostLen: 5}, read); d != "" {
		t.Error(d)
	}
	// One is never taken for the other.
	_, err1 := cparse.ParseConfinement(b)
	_, err2 := cparse.ParseCommand(a)
	_, err3 := cparse.ParseSandbox(a)
	_, err4 := cparse.ParseCommand(box)
	if err1 == nil || err2 == nil || err3 == nil || err4 == nil {
		t.Errorf("taken for the other: %v, %v, %v, %v", err1, err2, err3, err4)
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
	for name, change := range map[string]func(*Sandbox){
		"no namespaces":    func(s *Sandbox) { s.Namespaces = 0 },
		"root inside":      func(s *Sandbox) { s.Agent = 0 },
		"no host name":     func(s *Sandbox) { s.Hostname = "" },
		"a relative root":  func(s *Sandbox) { s.Root = "view" },
		"NUL in root":      func(s *Sandbox) { s.Root = "/\x00" },
		"the zero sandbox": func(s *Sandbox) { *s = Sandbox{} },
	} {
		s := sampleSandbox()
		change(s)
		if _, err := s.Encode(); err == nil {
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
	box := encodedSandbox(t)
	for n := range box {
		if _, err := cparse.ParseSandbox(box[:n]); err == nil {
			t.Errorf("%d of %d bytes of a sandbox were accepted", n, len(box))
		}
	}
	_, err1 := cparse.ParseConfinement(append(slices.Clone(a), 0))
	_, err2 := cparse.ParseCommand(append(slices.Clone(b), 0))
	_, err3 := cparse.ParseSandbox(append(slices.Clone(box), 0))
	if err1 == nil || err2 == nil || err3 == nil {
		t.Errorf("a byte too many was accepted: %v, %v, %v", err1, err2, err3)
	}
}

// FuzzParse drives the stub's parsers with anything: they must refuse or give strings that lie within
// the message, and never read outside it.
func FuzzParse(f *testing.F) {
	a, b := encoded(f)
	for _, seed := range [][]byte{a, a[:40], b, b[:20], encodedSandbox(f), {}} {
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
			// What the stub takes, we would have written, byte for byte: it reads nothing into a message that we don't mean.
			at := 24 + 16 + 24*len(l.Resources)
			if again, err := meant(l, b[at:at+8*int(l.BPF)]).Encode(); err != nil || !bytes.Equal(again, b) {
				t.Errorf("%x is read as %+v, which is written %x (%v)", b, l, again, err)
			}
		} else if !errors.Is(err, cparse.ErrRefused) {
			t.Fatal(err)
		}
		c, err := cparse.ParseCommand(b)
		if err == nil {
			if len(c.Args) == 0 {
				t.Error("accepted without a command")
			}
			found = slices.Concat(found, c.Args, c.Env, []string{c.Exe, c.Cwd})
			again, err := (&Command{Exe: c.Exe, Cwd: c.Cwd, Args: c.Args, Env: c.Env}).Encode()
			if err != nil || !bytes.Equal(again, b) {
				t.Errorf("%x is read as %+v, which is written %x (%v)", b, c, again, err)
			}
		} else if !errors.Is(err, cparse.ErrRefused) {
			t.Fatal(err)
		}
		box, err := cparse.ParseSandbox(b)
		if err == nil {
			found = append(found, box.Hostname, box.Root, box.Clocks)
			again, err := (&Sandbox{Again: box.Flags != 0, Namespaces: box.Namespaces, Owner: box.Owner, Agent: box.Agent, Hostname: box.Hostname, Root: box.Root, Clocks: box.Clocks}).Encode()
			if err != nil || !bytes.Equal(again, b) {
				t.Errorf("%x is read as %+v, which is written %x (%v)", b, box, again, err)
			}
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

// meant is the confinement that the stub has read.
func meant(l cparse.Confinement, bpf []byte) *Confinement {
	m := &Confinement{
		TTY: l.Flags&flagTTY != 0, WaitKillable: l.Flags&flagWaitKillable != 0, LandlockLate: l.Flags&flagLandlockLate != 0,
		LandlockFS: l.LandlockFS, LandlockScoped: l.Scoped, BPF: bpf, Cwd: l.Cwd,
	}
	for i, path := range l.Paths {
		m.Rules = append(m.Rules, Rule{l.Access[i], path})
	}
	for i, r := range l.Resources {
		m.Rlimits = append(m.Rlimits, Rlimit{int(r), l.Curs[i], l.Maximum[i]}) //nolint:gosec // there and back
	}
	return m
}

// FuzzEncode has the two sides judge alike: what we write the stub reads, and means the same by it; what it would refuse is not written.
func FuzzEncode(f *testing.F) {
	f.Add(uint8(0xf), uint64(0x1fff), uint64(3), []byte{6, 0, 0, 0, 0, 0, 255, 127}, "/workspace", "/usr\n/", uint8(2), "/bin/env", "env\na b", "A=1")
	f.Add(uint8(0), uint64(0), uint64(0), []byte{}, "", "", uint8(17), "", "", "")
	f.Add(uint8(8), uint64(0), uint64(1), make([]byte, 16), "a\x00", "\x00", uint8(0), "/\x00", "x", "\x00")
	f.Fuzz(func(t *testing.T, flags uint8, fs, scoped uint64, bpf []byte, cwd, paths string, rlimits uint8, exe, args, env string) {
		m := &Confinement{
			TTY: flags&1 != 0, WaitKillable: flags&2 != 0, LandlockLate: flags&8 != 0, LandlockFS: fs, LandlockScoped: scoped, BPF: bpf, Cwd: cwd,
		}
		for i, p := range strings.Split(paths, "\n") {
			m.Rules = append(m.Rules, Rule{fs >> i, p})
		}
		for i := range int(rlimits) {
			m.Rlimits = append(m.Rlimits, Rlimit{i, scoped, fs})
		}
		b, err := m.Encode()
		good := len(bpf) > 0 && len(bpf)%8 == 0 && len(bpf) <= 8*maxBPF && rlimits <= maxRlimits && len(m.Rules) <= maxRules &&
			!strings.Contains(cwd+paths, "\x00") && (fs != 0 || !m.LandlockLate) && len(b) <= maxMessage
		if (err == nil) != good {
			t.Fatalf("%+v: %v, want it written: %v", m, err, good)
		}
		if err == nil {
			l, perr := cparse.ParseConfinement(b)
			if perr != nil {
				t.Fatalf("%+v: the stub refuses what we write", m)
			}
			if diff := cmp.Diff(m, meant(l, bpf)); diff != "" {
				t.Errorf("(-written +read):\n%s", diff)
			}
		}
		c := &Command{Exe: exe, Cwd: cwd, Args: strings.Split(args, "\n"), Env: strings.Split(env, "\n")}
		b, err = c.Encode()
		if good := exe != "" && !strings.Contains(exe+cwd+args+env, "\x00"); (err == nil) != good {
			t.Fatalf("%+v: %v, want it written: %v", c, err, good)
		}
		if err == nil {
			got, perr := cparse.ParseCommand(b)
			if perr != nil {
				t.Fatalf("%+v: the stub refuses what we write", c)
			}
			if diff := cmp.Diff(c, &Command{Exe: got.Exe, Cwd: got.Cwd, Args: got.Args, Env: got.Env}); diff != "" {
				t.Errorf("(-written +read):\n%s", diff)
			}
		}
	})
}

// FuzzReports has the supervisor read whatever a sandbox says, beside a model of it: sixteen bytes are one report, anything else ends it.
func FuzzReports(f *testing.F) {
	report := func(kind Kind, a uint32, b uint64) []byte {
		return binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, uint32(kind)), a), b)
	}
	f.Add(slices.Concat(report(Hello, version, 0), report(Started, 7, 0), report(failed, uint32(StepExec), 2)))
	f.Add(slices.Concat(report(Exited, 9, 1), report(PTY, 0, 0)))
	f.Add(report(KindInvalid, 0, 0)[:15])
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 4096 {
			return
		}
		conn, peer, err := Pair()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := peer.Write(b); err != nil {
			t.Fatal(err)
		}
		peer.Close()
		for {
			conn.Bound(time.Minute)
			r, err := conn.Next()
			var kind Kind
			if len(b) >= reportSize {
				kind = Kind(binary.NativeEndian.Uint32(b))
			}
			switch {
			case len(b) == 0:
				if !errors.Is(err, io.EOF) {
					t.Fatalf("at the end: %+v, %v", r, err)
				}
				return
			case len(b) < reportSize || kind == PTY || !slices.Contains([]Kind{Hello, Started, Listener, Ready, Exited, Apart, Forked, failed}, kind):
				if !errors.Is(err, unix.EPROTO) || r != (Report{}) {
					t.Fatalf("%x: %+v, %v, want EPROTO", b, r, err)
				}
				return
			}
			a, wide := binary.NativeEndian.Uint32(b[4:]), binary.NativeEndian.Uint64(b[8:])
			b = b[reportSize:]
			if kind == failed {
				want := Failure{Step(a), unix.Errno(wide & 0xffffffff), int(wide >> 32)}
				if got, ok := errors.AsType[*Failure](err); !ok || *got != want {
					t.Fatalf("got %+v, %v, want %+v", r, err, want)
				}
				return
			}
			if want := (Report{Kind: kind, A: a, B: wide, PID: os.Getpid()}); err != nil || r != want {
				t.Fatalf("got %+v, %v, want %+v", r, err, want)
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
	for s := StepNone; s <= StepClocks; s++ {
		if strings.HasPrefix(s.String(), "unknown") {
			t.Errorf("step %d has no name", s)
		}
	}
}
