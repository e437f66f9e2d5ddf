// SPDX-License-Identifier: Apache-2.0

package stub

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits of a start message, the same as in parse.h.
const (
	magic      = 0x31524741
	version    = 1
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
)

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

// Message is everything the stub needs to start the agent. The zero value is refused.
type Message struct {
	TTY            bool   // stdio is a pty the stub opens in the sandbox's devpts
	WaitKillable   bool   // install the filter with WAIT_KILLABLE_RECV (Linux 5.19)
	LandlockFS     uint64 // handled file system rights; 0: no Landlock domain
	LandlockScoped uint64 // handled scopes (ABI 6)
	Rules          []Rule
	Rlimits        []Rlimit
	BPF            []byte // struct sock_filter array
	Exe, Cwd       string // absolute paths inside the sandbox
	Args, Env      []string
}

var errNUL = errors.New("holds a NUL byte")

// Encode writes m in the layout of parse.h, or says which field does not fit.
func (m *Message) Encode() ([]byte, error) {
	if len(m.Args) == 0 || len(m.BPF) == 0 || m.Exe == "" {
		return nil, errors.New("start message: command and filter are required")
	}
	if len(m.Args) > maxStrings || len(m.Env) > maxStrings {
		return nil, fmt.Errorf("start message: more than %d arguments or variables", maxStrings)
	}
	if len(m.Rlimits) > maxRlimits || len(m.Rules) > maxRules || len(m.BPF) > maxBPF*8 || len(m.BPF)%8 != 0 {
		return nil, errors.New("start message: too many limits, Landlock rules or filter instructions")
	}
	var flags uint32
	if m.TTY {
		flags |= flagTTY
	}
	if m.WaitKillable {
		flags |= flagWaitKillable
	}
	if m.LandlockFS != 0 {
		flags |= flagLandlock
	}
	b := make([]byte, 0, 64<<10)
	ne := binary.NativeEndian
	for _, v := range []int{magic, version, int(flags), len(m.Args), len(m.Env), len(m.Rlimits), len(m.Rules), len(m.BPF) / 8} {
		b = ne.AppendUint32(b, uint32(v))
	}
	b = ne.AppendUint64(b, m.LandlockFS)
	b = ne.AppendUint64(b, m.LandlockScoped)
	for _, r := range m.Rlimits {
		b = ne.AppendUint64(b, uint64(r.Resource))
		b = ne.AppendUint64(b, r.Cur)
		b = ne.AppendUint64(b, r.Max)
	}
	b = append(b, m.BPF...)
	var err error
	str := func(field, s string) {
		if strings.IndexByte(s, 0) >= 0 && err == nil {
			err = fmt.Errorf("%s %w", field, errNUL)
		}
		b = ne.AppendUint32(b, uint32(len(s)))
		b = append(append(b, s...), 0)
	}
	for _, r := range m.Rules {
		b = ne.AppendUint64(b, r.Access)
		str("path", r.Path)
	}
	str("command", m.Exe)
	str("working directory", m.Cwd)
	for _, s := range m.Args {
		str("argument", s)
	}
	for _, s := range m.Env {
		str("environment variable", s)
	}
	if err != nil {
		return nil, err
	}
	if len(b) > maxMessage {
		return nil, fmt.Errorf("command line and environment take %d bytes, at most %d: %w", len(b), maxMessage, unix.E2BIG)
	}
	return b, nil
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
)

var stepNames = [...]string{
	"no step", "take the start message", "fork", "open a pty", "start a session", "place stdio",
	"set a resource limit", "enter the working directory", "check no_new_privs", "apply Landlock",
	"add a Landlock rule", "install the seccomp filter", "hand over the seccomp listener",
	"execute the command", "confine pid 1",
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
