// SPDX-License-Identifier: Apache-2.0

package hostcaps

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

var (
	// ErrUnsupported: the host does not have the feature.
	ErrUnsupported = errors.New("not supported by this host")
	// ErrInconclusive: the probe could not find out. Treat as absent for
	// anything that must hold, and never cache.
	ErrInconclusive = errors.New("could not be determined")
)

// Error says which probe failed and why. It Is ErrUnsupported or
// ErrInconclusive, never both, and wraps the errno where there was one.
type Error struct {
	Probe *Probe
	Kind  error  // ErrUnsupported or ErrInconclusive
	Why   string // what was seen, e.g. "mount_setattr(2)"
	Cause error  // may be nil
}

func (e *Error) Error() string {
	s := e.Kind.Error()
	if e.Probe != nil { // LandlockABI is asked without one
		s = e.Probe.Name + ": " + s
	}
	if e.Why != "" {
		s += ": " + e.Why
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Cause}
}

// Weight says how much hangs on a probe.
type Weight uint8

const (
	// Required: without it no sandbox starts. It is the zero value, so that a
	// probe whose author forgot to say is reported in the strictest way.
	Required Weight = iota
	// Degrades: a named property is lost, or costs more.
	Degrades
	// Info: neither good nor bad in itself; attack surface that the filter
	// has to close, printed so that the operator sees it.
	Info
)

func (w Weight) String() string {
	return [...]string{"required", "degrades", "info"}[w]
}

// Probe is one feature of the host. The zero value is always inconclusive.
type Probe struct {
	Name   string // stable, used in JSON and in skip reasons
	Since  string // first Linux release that has it, "" if it is no kernel matter
	Loses  string // what does not work without it
	Get    string // how an operator gets it
	Weight Weight

	try    func() error // nil, *Error without Probe set, or a bare errno
	answer atomic.Pointer[answer]
}

type answer struct{ err error }

// Check tells whether the feature works. It is safe for concurrent use; two
// first callers may both probe, which is harmless as probes leave no trace.
func (p *Probe) Check() error {
	if a := p.answer.Load(); a != nil {
		return a.err
	}
	if p.try == nil {
		return &Error{Probe: p, Kind: ErrInconclusive, Why: "no probe defined"}
	}
	err := p.name(p.try())
	if !errors.Is(err, ErrInconclusive) {
		p.answer.Store(&answer{err})
	}
	return err
}

// name turns what a try function returned into an *Error that names p. A bare
// error has no claim to be conclusive, so it is not.
func (p *Probe) name(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		named := *e
		named.Probe = p
		return &named
	}
	return &Error{Probe: p, Kind: ErrInconclusive, Cause: err}
}

func unsupported(why string, args ...any) error {
	return &Error{Kind: ErrUnsupported, Why: fmt.Sprintf(why, args...)}
}

func inconclusive(cause error, why string, args ...any) error {
	return &Error{Kind: ErrInconclusive, Why: fmt.Sprintf(why, args...), Cause: cause}
}

// classify maps the errno of a call made with deliberately bad arguments.
// expected is the errno that proves the call was reached. EPERM and EACCES say
// nothing about the kernel: a seccomp filter around us (Docker's, systemd's)
// answers so for calls that exist, and more privilege might change it.
func classify(call string, got error, expected ...unix.Errno) error {
	if got == nil {
		return nil
	}
	errno, ok := errors.AsType[unix.Errno](got)
	if !ok {
		return inconclusive(got, "%s", call)
	}
	if slices.Contains(expected, errno) {
		return nil
	}
	switch errno {
	case unix.ENOSYS, unix.EINVAL, unix.EOPNOTSUPP, unix.ENODEV, unix.ENOTTY:
		return &Error{Kind: ErrUnsupported, Why: call, Cause: errno}
	}
	return inconclusive(errno, "%s", call)
}
