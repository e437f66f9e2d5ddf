// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"cmp"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/console"
	"golang.org/x/sys/unix"

	"agentrun/internal/shown"
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
// function it returns ends that, and leaves the caller's as it was, also where the program was killed on a
// full screen. Call it when all that the agent wrote has been passed on.
func follow(t Terminal, opt *runtime.Options) func() {
	end := func() {} // of a launch that doesn't come as far as its terminal
	screen := &shown.Screen{To: opt.Stdout}
	opt.Stdout = screen
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
			screen.Reset()
			restore()
		}
	}
	return func() { end() }
}

// warned tells the caller's terminal of an end that is near, beside whoever else hears of events. A line would tear the picture of an
// agent that has the whole screen, as most with a terminal of their own do: there it is a notification and the window's title, which
// move nothing. What is no terminal isn't told: a file or another program may stand where the agent's own words are expected. Nobody
// waits for the terminal: one that was stopped by Ctrl-S would else stop the clock that speaks to it.
func (s *run) warned(told func(runtime.LiveEvent)) func(runtime.LiveEvent) {
	return func(e runtime.LiveEvent) {
		told(e)
		if e.Kind != runtime.LiveEndsSoon || s.want.Detach || !s.by.Watched {
			return
		}
		left := time.Until(e.Lease.Ends).Round(time.Second).String()
		more := "agentrun extend " + cmp.Or(s.want.Name, s.plan.ID) + " 10m"
		go func() {
			if !s.plan.TTY {
				Tell(s.by.Stderr, "the run ends in "+left, more)
				return
			}
			text := "agentrun: ends in " + left + " (" + more + ")"
			fmt.Fprintf(s.by.Stderr, "\x1b]9;%s\a\x1b]2;%s\a", text, text)
		}()
	}
}

// asks tells of a command that without arguments reads what a person types, and ends at once where nobody does.
func asks(command []string) bool {
	if len(command) != 1 {
		return false
	}
	name := strings.TrimRight(filepath.Base(command[0]), ".0123456789")
	return slices.Contains([]string{"sh", "bash", "dash", "zsh", "fish", "ksh", "python", "pypy", "node", "irb"}, name)
}
