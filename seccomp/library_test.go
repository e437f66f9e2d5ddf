// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"errors"
	"fmt"
	"testing"

	lib "github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"
)

// byLibrary is what libseccomp makes of a filter, of which it can express what has no conditions: the other opinion on numbers and
// architectures.
func byLibrary(t testing.TB, f Filter, a Arch) Program {
	t.Helper()
	p, err := f.resolve(a)
	if err != nil {
		t.Fatal(err)
	}
	p.known = knownNumbers(p.arch)
	code, err := p.libseccomp()
	if err != nil {
		t.Fatal(err)
	}
	return Program{code: code}
}

func (p *policy) libseccomp() ([]byte, error) {
	f, err := lib.NewFilter(libAction(p.unknown))
	if err != nil {
		return nil, fmt.Errorf("make libseccomp filter: %w", err)
	}
	defer f.Release()
	native, err := lib.GetNativeArch()
	if err != nil {
		return nil, fmt.Errorf("ask libseccomp for the native architecture: %w", err)
	}
	if native != p.arch.lib {
		if err := errors.Join(f.AddArch(p.arch.lib), f.RemoveArch(native)); err != nil {
			return nil, fmt.Errorf("set architecture %s: %w", p.arch.name, err)
		}
	}
	if err := f.SetBadArchAction(libAction(p.foreign)); err != nil {
		return nil, fmt.Errorf("set action for foreign architectures: %w", err)
	}
	add := func(nr int, ret uint32) error {
		if ret == p.unknown {
			return nil // the default already; libseccomp refuses a rule that repeats it
		}
		call := lib.ScmpSyscall(nr)
		if native != p.arch.lib {
			// libseccomp reads the number as one of the machine it runs on and translates it by name.
			name, err := call.GetNameByArch(p.arch.lib)
			if err != nil {
				return fmt.Errorf("translate system call %d of %s: %w", nr, p.arch.name, err)
			}
			if call, err = lib.GetSyscallFromName(name); err != nil {
				return fmt.Errorf("translate system call %s of %s: %w", name, p.arch.name, err)
			}
		}
		if err := f.AddRule(call, libAction(ret)); err != nil {
			return fmt.Errorf("add rule for system call %d: %w", nr, err)
		}
		return nil
	}
	for nr := range p.known {
		var err error
		if chain := p.steps[nr]; len(chain) == 0 {
			if p.known[nr] {
				err = add(nr, p.unlisted)
			}
		} else if !conditional(chain) {
			err = add(nr, chain[0].ret)
		}
		if err != nil {
			return nil, err
		}
	}
	return export(f)
}

func libAction(ret uint32) lib.ScmpAction {
	switch ret & unix.SECCOMP_RET_ACTION_FULL {
	case unix.SECCOMP_RET_ALLOW:
		return lib.ActAllow
	case unix.SECCOMP_RET_USER_NOTIF:
		return lib.ActNotify
	case unix.SECCOMP_RET_ERRNO:
		return lib.ActErrno.SetReturnCode(int16(ret & unix.SECCOMP_RET_DATA))
	default:
		return lib.ActKillProcess
	}
}
