// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/signal"

	"github.com/containerd/console"
	"golang.org/x/sys/unix"

	"agentrun/runtime"
)

// terminal is the caller's, which is never the agent's: that has one of its own.
type terminal struct {
	fd int
	// raw makes keys such as Ctrl-C act on the agent's terminal.
	raw func() (restore func(), err error)
	// resized gets a value when the size may have changed.
	resized func() (changes <-chan os.Signal, stop func())
}

func ownTerminal() *terminal {
	return &terminal{
		fd: int(os.Stdin.Fd()),
		raw: func() (func(), error) {
			t, err := console.ConsoleFromFile(os.Stdin)
			if err != nil {
				return nil, err
			}
			return func() { _ = t.Reset() }, t.SetRaw()
		},
		resized: func() (<-chan os.Signal, func()) {
			changes := make(chan os.Signal, 1)
			signal.Notify(changes, unix.SIGWINCH)
			return changes, func() { signal.Stop(changes); close(changes) }
		},
	}
}

// follow keeps the agent's terminal as large as the caller's, and has the caller's pass everything on. The function it returns ends
// that.
func (t *terminal) follow(opt *runtime.Options) (end func()) {
	end = func() {}
	opt.OnTTY = func(master *os.File) {
		resize := func() {
			if size, err := unix.IoctlGetWinsize(t.fd, unix.TIOCGWINSZ); err == nil {
				_ = unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Row, Col: size.Col})
			}
		}
		resize()
		changes, stop := t.resized()
		followed := make(chan struct{})
		go func() {
			defer close(followed)
			for range changes {
				resize()
			}
		}()
		// The caller's terminal goes on translating line ends in raw mode; once is enough.
		_ = console.ClearONLCR(master.Fd())
		restore, err := t.raw()
		if err != nil {
			fmt.Fprintf(os.Stderr, "agentrun: terminal: %v\n", err)
		}
		end = func() {
			stop()
			<-followed
			if restore != nil {
				restore()
			}
		}
	}
	return func() { end() }
}
