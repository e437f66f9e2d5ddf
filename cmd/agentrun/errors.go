// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"

	"agentrun/internal/hinted"
	"agentrun/supervisor"
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
	return supervisor.Report(w, err)
}

func usageError(c *cli.Context, err error, isSubcommand bool) error {
	name := c.App.Name
	if c.Command != nil && c.Command.HelpName != "" {
		name = c.Command.HelpName
	}
	return hinted.New(err, name+" --help lists the flags; put the agent's own arguments after --")
}
