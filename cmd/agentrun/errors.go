// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/urfave/cli/v2"

	"agentrun/hypervisor"
	"agentrun/internal/hinted"
	"agentrun/internal/hostcaps"
	"agentrun/internal/read"
	"agentrun/profiles"
	"agentrun/runtime"
)

// exitError ends the program with a code and says nothing more: it has been said already, or it is the
// agent's own code.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// unknownCommand says so with the names that there are, of agentrun or of one of its commands.
func unknownCommand(c *cli.Context, name string) error {
	of := c.App.Name
	if c.Command != nil && strings.HasPrefix(c.Command.HelpName, of+" ") {
		of = c.Command.HelpName
	}
	hint := of + " --help lists the commands"
	if of == c.App.Name {
		hint += "; to run a program: agentrun exec -- " + name
	}
	return hinted.New(fmt.Errorf("%q is no command of %s", name, of), hint)
}

// report prints what happened and one hint line, and gives the exit code (docs/exit-codes.md).
func report(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	if code, ok := errors.AsType[exitError](err); ok {
		return int(code)
	}
	lines := read.Lines(err)
	last := len(lines) - 1
	for _, line := range lines[:last] {
		tell(w, line, "")
	}
	tell(w, lines[last], hint(err))
	if cmd, ok := errors.AsType[*runtime.CommandError](err); ok {
		return cmd.ExitCode()
	}
	return runtime.ExitFailed
}

// tell prints what happened, which may hold names that nobody of ours chose: files of a workspace, arguments, what an agent put into a
// folder. A terminal would obey their control characters, and a line end would forge our own next line.
func tell(w io.Writer, what, hint string) {
	fmt.Fprintf(w, "agentrun: %s\n", oneLine(what))
	if hint != "" {
		fmt.Fprintf(w, "hint: %s\n", oneLine(hint))
	}
}

func hint(err error) string {
	if h, ok := errors.AsType[*hinted.Error](err); ok {
		return h.Hint
	}
	if c, ok := errors.AsType[*runtime.CommandError](err); ok {
		return c.Hint
	}
	if d, ok := errors.AsType[*hypervisor.DeniedError](err); ok {
		return d.Hint
	}
	if h := witnessHint(err); h != "" {
		return h
	}
	if m, ok := errors.AsType[*runtime.MissingError](err); ok {
		if m.Needed {
			return "agentrun doctor says how to get it"
		}
		return "agentrun doctor says how to get it; --best-effort runs without, and says so"
	}
	if _, ok := errors.AsType[*profiles.NotFoundError](err); ok {
		return "agentrun profile list shows the names"
	}
	if errors.Is(err, fs.ErrPermission) && hostcaps.Root.Check() != nil {
		return "it isn't this user's: start agentrun as root, or name folders of your own with --state-dir and --run-dir"
	}
	return ""
}

func usageError(c *cli.Context, err error, isSubcommand bool) error {
	name := c.App.Name
	if c.Command != nil && c.Command.HelpName != "" {
		name = c.Command.HelpName
	}
	return hinted.New(err, name+" --help lists the flags; put the agent's own arguments after --")
}
