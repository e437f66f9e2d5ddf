// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"

	"agentrun/internal/ending"
	"agentrun/internal/hinted"
	"agentrun/internal/read"
	"agentrun/internal/verb"
	"agentrun/supervisor"
)

type exitError = ending.Code

// unknownCommand says so with the names that there are, of agentrun or of one of its commands.
func unknownCommand(c *cli.Context, name string) error {
	of, commands := c.App.Name, c.App.Commands
	if c.Command != nil && strings.HasPrefix(c.Command.HelpName, of+" ") {
		of, commands = c.Command.HelpName, c.Command.Subcommands
	}
	var known []string
	for _, k := range commands {
		known = append(known, k.Names()...)
	}
	meant := ""
	if near := read.Nearest(name, known); near != "" {
		meant = "; did you mean " + near + "?"
	}
	hint := of + " --help lists the commands"
	if of == c.App.Name {
		hint += "; to run a program: agentrun exec -- " + name
	}
	return hinted.New(fmt.Errorf("%q is no command of %s%s", name, of, meant), hint)
}

// report prints what happened and one hint line, and gives the exit code (docs/exit-codes.md).
func report(w io.Writer, err error) int { return supervisor.Report(w, err) }

var usageError = verb.UsageError("; put the agent's own arguments after --")
