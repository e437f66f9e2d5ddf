// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"agentrun/runtime"
)

// Caller is whoever a run is carried out for: the user of this process, or a client of the daemon. What a run
// takes from the one who asked for it goes by a Caller and never by this process, so that one process can
// serve many.
type Caller struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Environ        []string
	Dir            string   // working directory, without links; empty: this process's own
	Terminal       Terminal // what Stdin is; nil: no terminal
	Watched        bool     // Stderr is a terminal
}

// OwnCaller returns whoever started this process.
func OwnCaller() *Caller {
	c := &Caller{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ(), Watched: IsTerminal(int(os.Stderr.Fd()))}
	if IsTerminal(int(os.Stdin.Fd())) {
		c.Terminal = ownTerminal{}
	}
	return c
}

// IsTerminal tells whether a descriptor is one.
func IsTerminal(fd int) bool {
	_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	return err == nil
}

// Getenv is os.Getenv of the caller's environment.
func (c *Caller) Getenv(name string) string {
	v, _ := c.LookupEnv(name)
	return v
}

// LookupEnv is os.LookupEnv of the caller's environment: of several the first counts.
func (c *Caller) LookupEnv(name string) (string, bool) {
	for _, v := range c.Environ {
		if value, ok := strings.CutPrefix(v, name); ok && strings.HasPrefix(value, "=") {
			return value[1:], true
		}
	}
	return "", false
}

// Path returns a name as the caller means it. It is not cleaned: a/../b is another place than b where a is a
// link.
func (c *Caller) Path(name string) string {
	if name == "" || c.Dir == "" || filepath.IsAbs(name) {
		return name
	}
	return c.Dir + "/" + name
}

// Paths is Path of each.
func (c *Caller) Paths(names []string) []string {
	var all []string
	for _, n := range names {
		all = append(all, c.Path(n))
	}
	return all
}

// Bind reads SRC or SRC:DST, a host path and where it is shown inside.
func (c *Caller) Bind(v string, writable bool) (runtime.BindMount, error) {
	src, dst, colon := strings.Cut(v, ":")
	if src == "" || colon && dst == "" || strings.Contains(dst, ":") {
		return runtime.BindMount{}, fmt.Errorf("%q is not SRC or SRC:DST", v)
	}
	return runtime.BindMount{Source: c.Path(src), Target: dst, Writable: writable}, nil
}

// Abs is filepath.Abs from the caller's folder.
func (c *Caller) Abs(name string) (string, error) { return filepath.Abs(c.Path(name)) }

// Getwd is the caller's folder, without links in its path. The kernel says it and not PWD, whose links an agent of another run can have made
// or changed since.
func (c *Caller) Getwd() (string, error) {
	if c.Dir != "" {
		return c.Dir, nil
	}
	dir, err := unix.Getwd()
	return dir, os.NewSyscallError("getcwd", err)
}

// NoDaemon is the variable that has a run supervised by the process that was asked for it.
const NoDaemon = "AGENTRUN_NO_DAEMON"
