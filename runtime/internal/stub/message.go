// SPDX-License-Identifier: Apache-2.0

package stub

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits of the messages, the same as in parse.h. The stub looks at each again: it trusts nothing that it
// reads. Here they are for the error, which names the field; there it is an errno.
const (
	magic      = 0x31524741
	magicRun   = 0x31434741
	magicBox   = 0x31534741
	version    = 3
	maxMessage = 4 << 20
	maxStrings = 16384
	maxRlimits = 16
	maxRules   = 64
	maxBPF     = 4096
)

const (
	flagTTY = 1 << iota
	flagWaitKillable
	flagLandlock
	flagLandlockLate
)

const flagAgain = 1 // of a sandbox

// Sandbox is what a sandbox is made of. The zero value is refused.
type Sandbox struct {
	Namespaces uint32 // CLONE_NEW* of unshare(2); the network's is entered
	Owner      uint32 // user outside that the user namespace belongs to
	Agent      uint32 // user and group inside
	Again      bool   // pid 1 executes its file once more, inside: where the agent's user is root of our user namespace
	Hostname   string
	Clocks     string // of the time namespace, as in /proc/self/timens_offsets; empty: there is none
	Root       string // where the root view is mounted: an absolute path in the mount namespace that the stub starts in
}

// Encode writes s in the layout of parse.h, or says which field does not fit.
func (s *Sandbox) Encode() ([]byte, error) {
	if s.Namespaces == 0 || s.Agent == 0 || s.Hostname == "" || !strings.HasPrefix(s.Root, "/") {
		return nil, errors.New("sandbox: namespaces, the agent's user, a host name and a root are required")
	}
	t, flags := text{b: make([]byte, 0, 256)}, 0
	if s.Again {
		flags = flagAgain
	}
	t.num(magicBox, version, flags, int(s.Namespaces), int(s.Owner), int(s.Agent))
	t.str("host name", s.Hostname)
	t.str("root", s.Root)
	t.str("clocks", s.Clocks)
	return t.done("host name and root")
}

// Rlimit is one resource limit of setrlimit(2), already clamped to what the host allows.
type Rlimit struct {
	Resource int
	Cur, Max uint64
}

// Rule lets the Landlock domain do Access beneath Path, a path inside the sandbox.
type Rule struct {
	Access uint64
	Path   string
}

// Confinement is what the agent's process gives up before it is the agent's. The zero value is refused.
type Confinement struct {
	TTY            bool   // stdio is a pty the stub opens in the sandbox's devpts
	WaitKillable   bool   // install the filter with WAIT_KILLABLE_RECV (Linux 5.19)
	LandlockFS     uint64 // handled file system rights; 0: no Landlock domain
	LandlockScoped uint64 // handled scopes (ABI 6)
	// LandlockLate has the domain entered with the command, so that rules can be added until then (Report.B).
	// The filter must let landlock_restrict_self(2) pass.
	LandlockLate bool
	Rules        []Rule
	Rlimits      []Rlimit
	BPF          []byte // struct sock_filter array
	Cwd          string // absolute path inside the sandbox; empty: the command says it
}

// Command is what the process executes. The zero value is refused.
type Command struct {
	Exe       string // absolute path inside the sandbox
	Cwd       string // likewise; empty: the confinement's. The filter must let chdir(2) pass otherwise
	Args, Env []string
}

var errNUL = errors.New("holds a NUL byte")

// text is a message in the making: numbers in the machine's order, and strings with their length before and a
// NUL behind them. The first thing wrong with it stays its error, whatever is added after.
type text struct {
	b   []byte
	err error
}

func (t *text) num(vs ...int) {
	for _, v := range vs {
		t.b = binary.NativeEndian.AppendUint32(t.b, uint32(v))
	}
}

func (t *text) wide(vs ...uint64) {
	for _, v := range vs {
		t.b = binary.NativeEndian.AppendUint64(t.b, v)
	}
}

func (t *text) str(field, s string) {
	if strings.IndexByte(s, 0) >= 0 && t.err == nil {
		t.err = fmt.Errorf("%s %w", field, errNUL)
	}
	t.num(len(s))
	t.b = append(append(t.b, s...), 0)
}

func (t *text) done(what string) ([]byte, error) {
	if t.err != nil {
		return nil, t.err
	}
	if len(t.b) > maxMessage {
		return nil, fmt.Errorf("%s take %d bytes, at most %d: %w", what, len(t.b), maxMessage, unix.E2BIG)
	}
	return t.b, nil
}

// Encode writes m in the layout of parse.h, or says which field does not fit.
func (m *Confinement) Encode() ([]byte, error) {
	if len(m.BPF) == 0 {
		return nil, errors.New("confinement: a filter is required")
	}
	if len(m.Rlimits) > maxRlimits || len(m.Rules) > maxRules || len(m.BPF) > maxBPF*8 || len(m.BPF)%8 != 0 {
		return nil, errors.New("confinement: too many limits, Landlock rules or filter instructions")
	}
	if m.LandlockLate && m.LandlockFS == 0 {
		return nil, errors.New("confinement: no Landlock domain to enter later")
	}
	var flags int
	for flag, on := range map[int]bool{flagTTY: m.TTY, flagWaitKillable: m.WaitKillable, flagLandlock: m.LandlockFS != 0, flagLandlockLate: m.LandlockLate} {
		if on {
			flags |= flag
		}
	}
	t := text{b: make([]byte, 0, 16<<10)}
	t.num(magic, version, flags, len(m.Rlimits), len(m.Rules), len(m.BPF)/8)
	t.wide(m.LandlockFS, m.LandlockScoped)
	for _, r := range m.Rlimits {
		t.wide(uint64(r.Resource), r.Cur, r.Max)
	}
	t.b = append(t.b, m.BPF...)
	for _, r := range m.Rules {
		t.wide(r.Access)
		t.str("path", r.Path)
	}
	t.str("working directory", m.Cwd)
	return t.done("limits, rules and filter")
}

// Encode writes c in the layout of parse.h, or says which field does not fit.
func (c *Command) Encode() ([]byte, error) {
	if len(c.Args) == 0 || c.Exe == "" {
		return nil, errors.New("command: a program and its name are required")
	}
	if len(c.Args) > maxStrings || len(c.Env) > maxStrings {
		return nil, fmt.Errorf("command: more than %d arguments or variables", maxStrings)
	}
	t := text{b: make([]byte, 0, 8<<10)}
	t.num(magicRun, version, len(c.Args), len(c.Env))
	t.str("command", c.Exe)
	t.str("working directory", c.Cwd)
	for _, s := range c.Args {
		t.str("argument", s)
	}
	for _, s := range c.Env {
		t.str("environment variable", s)
	}
	return t.done("command line and environment")
}

// Step is where in the stub something went wrong; the order is that of enum step in init.c.
type Step uint32

// Steps of the stub.
const (
	StepNone Step = iota
	StepMessage
	StepFork
	StepPTY
	StepSession
	StepStdio
	StepRlimit
	StepCwd
	StepNoNewPrivs
	StepLandlock
	StepLandlockPath
	StepSeccomp
	StepListener
	StepExec
	StepSelf
	StepNetwork
	StepOwner
	StepUnshare
	StepHostname
	StepKeyring
	StepRoot
	StepProc
	StepPivot
	StepCaps
	StepClocks
)

var stepNames = [...]string{
	"no step", "take a message", "fork", "open a pty", "start a session", "place stdio",
	"set a resource limit", "enter the working directory", "check no_new_privs", "apply Landlock",
	"add a Landlock rule", "install the seccomp filter", "hand over the seccomp listener",
	"execute the command", "confine pid 1", "enter the network namespace", "become the owner of the namespaces",
	"begin in the namespaces and the cgroup", "set the host name", "join a session keyring", "place the root view", "mount /proc", "change the root",
	"drop all capabilities", "set the clocks", "begin in the cgroup", "enter the namespaces of the sandbox",
}

func (s Step) String() string {
	if int(s) < len(stepNames) {
		return stepNames[s]
	}
	return fmt.Sprintf("unknown step %d", uint32(s))
}

// Failure is an error inside the sandbox, before the agent ran. It unwraps to its errno.
type Failure struct {
	Step  Step
	Errno unix.Errno
	Index int // which Landlock rule, for StepLandlockPath
}

func (f *Failure) Error() string { return fmt.Sprintf("inside the sandbox: %s: %v", f.Step, f.Errno) }

func (f *Failure) Unwrap() error { return f.Errno }
