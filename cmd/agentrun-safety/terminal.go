// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/safetyloop"
)

// terminal shows codes on an operator's terminal (S-10).
type terminal struct{ f *os.File }

const terminalTime = 2 * time.Second // a terminal stopped by Ctrl-S holds nobody up longer

// openTerminal takes a terminal that the client of this process can't read: not one that is its standard input or output, or the one it
// was started from (clients inherit that to us), nor one whose mode lets others read it.
func openTerminal(path string, clientIsParent bool) (*terminal, error) {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("--show-codes-on: %w", &os.PathError{Op: "open", Path: path, Err: err})
	}
	f := os.NewFile(uintptr(fd), path) //nolint:gosec // a descriptor
	if err := fitsOperator(fd, clientIsParent); err != nil {
		f.Close()
		return nil, withHint("tty prints the name of a terminal; run it in the one that codes are to be shown on", "--show-codes-on %s: %w", path, err)
	}
	return &terminal{f}, nil
}

func fitsOperator(fd int, clientIsParent bool) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if _, err := unix.IoctlGetTermios(fd, unix.TCGETS); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return errors.New("it is no terminal")
	}
	if unix.Major(st.Rdev) == 5 && unix.Minor(st.Rdev) == 0 {
		return errors.New("that is whatever terminal this was started from; give the device itself")
	}
	if st.Mode&0o004 != 0 || st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("others can read it (owner %d, mode %04o)", st.Uid, st.Mode&0o7777)
	}
	if !clientIsParent {
		return nil
	}
	for n := range 3 {
		var own unix.Stat_t
		if unix.Fstat(n, &own) == nil && own.Mode&unix.S_IFMT == unix.S_IFCHR && own.Rdev == st.Rdev {
			return errors.New("it is the client's own")
		}
	}
	if nr, err := controllingTerminal(); err != nil || nr == st.Rdev {
		return errors.Join(errors.New("it is the one that the client was started from"), err)
	}
	return nil
}

// controllingTerminal is the device number in /proc/self/stat (proc(5), tty_nr); 0 without one.
func controllingTerminal() (uint64, error) {
	b, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0, err
	}
	_, after, _ := strings.Cut(string(b[strings.LastIndexByte(string(b), ')')+1:]), " ")
	fields := strings.Fields(after)
	if len(fields) < 5 {
		return 0, errors.New("/proc/self/stat: too short")
	}
	nr, err := strconv.ParseInt(fields[4], 10, 64)
	if err != nil {
		return 0, err
	}
	// The kernel's old encoding: minor's upper bits above the major.
	n := uint64(uint32(nr)) //nolint:gosec // a device number
	return unix.Mkdev(uint32(n>>8&0xfff), uint32(n&0xff|n>>12&0xfff00)), nil
}

// Show is Channel's.
func (t *terminal) Show(_ context.Context, c safetyloop.Challenge) error {
	text := fmt.Sprintf("\r\nagentrun: %s wants to do (%s):\r\n  %s\r\nbecause: %s\r\nchallenge %s until %s, code: %s\r\n",
		shown(c.Agent), shown(c.Kind), shown(c.Hint), shown(c.Reason), shown(c.ID), c.Expires.Format(time.TimeOnly), c.Code.Reveal())
	if err := t.f.SetWriteDeadline(time.Now().Add(terminalTime)); err != nil {
		return fmt.Errorf("operator's terminal: %w", err)
	}
	if _, err := t.f.WriteString(text); err != nil {
		return fmt.Errorf("operator's terminal: %w", err)
	}
	return nil
}

func (t *terminal) Close() error { return t.f.Close() }

// shown is text of an agent's that a terminal doesn't obey, and that leaves the code in sight.
func shown(s string) string {
	const most = 600
	s = strings.Map(func(r rune) rune {
		if !strconv.IsGraphic(r) {
			return '?'
		}
		return r
	}, s)
	if r := []rune(s); len(r) > most {
		// Both ends: what matters may stand at either. And what is between: nobody may take this for all.
		return fmt.Sprintf("%s [%d characters are left out, agentrun challenges show has more] %s", string(r[:most/2]), len(r)-most, string(r[len(r)-most/2:]))
	}
	return s
}
