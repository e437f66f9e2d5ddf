// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"agentrun/fsjail"
)

// caller is who a command is carried out for: this process's own, or a client of the daemon. What exec reads and writes beside
// files of ours goes by it, so that many can be served by one process.
type caller struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	environ        []string
	dir            string    // working directory; empty: this process's own
	tty            *terminal // what stdin is; nil: no terminal

	// signals gives those that are for the agent.
	signals func() <-chan os.Signal
	// home is the daemon that carries the command out; nil: this process alone.
	home *daemon
	// status is where --status-file goes; nil: nowhere, or its folder is still to be opened.
	status *fsjail.Output
	// detach lets the command end that asked for the run: the run goes on, what there is to say goes to log. nil: it can't be let go.
	detach func(log *os.File) error
	// settled, if not nil, is called with the exit code when the account of the run is on record, before the last of it is taken
	// down.
	settled func(code int)
	// read, if not nil, is called when the flags have been read: the library that reads them is for one caller at a time.
	read func()
}

func (c *caller) flagsAreRead() {
	if c.read != nil {
		c.read()
	}
}

// passedOn are the signals that an agent gets of its caller's.
var passedOn = []os.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2}

// ownCaller is whoever started this process.
func ownCaller() *caller {
	c := &caller{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, environ: os.Environ()}
	c.signals = func() <-chan os.Signal {
		// Caught to the end of the process: one more SIGTERM while the run is settled would end us before its account is written.
		signals := make(chan os.Signal, 16)
		signal.Notify(signals, passedOn...)
		// Go lets SIGPIPE end a process that writes to its stdout (os/signal, "SIGPIPE"): whoever reads an agent's output could end its
		// supervisor by going away, and folder, cgroup and an open end in the audit would stay. Caught and not ignored: programs that
		// we start would inherit that.
		signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
		return signals
	}
	if isTerminal(os.Stdin) {
		c.tty = ownTerminal()
	}
	return c
}

func isTerminal(f *os.File) bool { return terminalAt(int(f.Fd())) }

func terminalAt(fd int) bool {
	_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	return err == nil
}

// getenv is os.Getenv of the caller's environment: of several the first counts.
func (c *caller) getenv(name string) string {
	v, _ := c.lookupEnv(name)
	return v
}

func (c *caller) lookupEnv(name string) (string, bool) {
	if c.home == nil {
		return os.LookupEnv(name)
	}
	for _, v := range c.environ {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value, true
		}
	}
	return "", false
}

// path is name as the caller means it. It is not cleaned: a/../b is another place than b where a is a link.
func (c *caller) path(name string) string {
	if name == "" || c.dir == "" || filepath.IsAbs(name) {
		return name
	}
	return c.dir + "/" + name
}

func (c *caller) abs(name string) (string, error) { return filepath.Abs(c.path(name)) }

func (c *caller) getwd() (string, error) {
	if c.dir != "" {
		return c.dir, nil
	}
	return os.Getwd()
}

// childEnv is the environment of what we start for the caller. It runs where it is started: a run that waited for another to
// let it in could wait for itself.
func (c *caller) childEnv() []string {
	return append(c.environ[:len(c.environ):len(c.environ)], noDaemonEnv+"=1")
}

const noDaemonEnv = "AGENTRUN_NO_DAEMON"

func (c *caller) paths(names []string) []string {
	var all []string
	for _, n := range names {
		all = append(all, c.path(n))
	}
	return all
}
