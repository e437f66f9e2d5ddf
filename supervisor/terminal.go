// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"fmt"
	"os"
	"os/signal"

	"github.com/containerd/console"
	"golang.org/x/sys/unix"

	"agentrun/runtime"
)

// Terminal is the caller's, which is never the agent's: that has one of its own.
type Terminal interface {
	FD() int
	// Raw makes keys such as Ctrl-C act on the agent's terminal, until restore is called.
	Raw() (restore func(), err error)
	// Resized returns a channel that gets a value when the size may have changed. It is closed by stop.
	Resized() (changes <-chan os.Signal, stop func())
}

type ownTerminal struct{}

func (ownTerminal) FD() int { return int(os.Stdin.Fd()) }

func (ownTerminal) Raw() (func(), error) {
	t, err := console.ConsoleFromFile(os.Stdin)
	if err != nil {
		return func() {}, err
	}
	return func() { _ = t.Reset() }, t.SetRaw()
}

func (ownTerminal) Resized() (<-chan os.Signal, func()) {
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, unix.SIGWINCH)
	return changes, func() { signal.Stop(changes); close(changes) }
}

// follow keeps the agent's terminal as large as the caller's, and has the caller's pass everything on. The
// function it returns ends that.
func follow(t Terminal, opt *runtime.Options) (end func()) {
	end = func() {}
	opt.OnTTY = func(master *os.File) {
		resize := func() {
			if size, err := unix.IoctlGetWinsize(t.FD(), unix.TIOCGWINSZ); err == nil {
				_ = unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Row, Col: size.Col})
			}
		}
		resize()
		changes, stop := t.Resized()
		followed := make(chan struct{})
		go func() {
			defer close(followed)
			for range changes {
				resize()
			}
		}()
		// The caller's terminal goes on translating line ends in raw mode; once is enough.
		_ = console.ClearONLCR(master.Fd())
		restore, err := t.Raw()
		if err != nil {
			fmt.Fprintf(os.Stderr, "agentrun: terminal: %v\n", err)
		}
		end = func() {
			stop()
			<-followed
			restore()
		}
	}
	return func() { end() }
}
