// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// flagsFirst moves flags in front of the arguments they were given behind: `agent score ID 0.7 --consensus`. The library
// stops at the first argument, and what follows would be an argument too. Not for exec and plan: what follows the first
// argument there is the agent's own command.
func flagsFirst(app *cli.App, args []string) []string {
	// Completion is asked for behind the words so far, which are taken as they stand.
	if len(args) > 0 && args[len(args)-1] == completeFlag {
		return args
	}
	known := app.Flags
	commands := app.Commands
	var flags, rest []string
	head := 1
	for i := 1; i < len(args); i++ {
		a := args[i]
		switch {
		case a == "--":
			return slices.Concat(args[:head], flags, args[i:i+1], rest, args[i+1:])
		case len(a) > 1 && a[0] == '-':
			flags = append(flags, a)
			if takesValue(known, a) && i+1 < len(args) {
				i++
				flags = append(flags, args[i])
			}
		case len(commands) > 0:
			j := slices.IndexFunc(commands, func(c *cli.Command) bool { return c.HasName(a) })
			if j < 0 || a == "exec" || a == "plan" {
				return args
			}
			known, commands = commands[j].Flags, commands[j].Subcommands
			args = slices.Concat(args[:head], flags, args[i:])
			head += len(flags) + 1
			i, flags = head-1, nil
		default:
			rest = append(rest, a)
		}
	}
	return slices.Concat(args[:head], flags, rest)
}

// takesValue tells whether the flag's value is the next argument. A flag nobody knows has none: the library reports it.
func takesValue(known []cli.Flag, arg string) bool {
	name := strings.TrimLeft(arg, "-")
	if strings.Contains(name, "=") {
		return false
	}
	i := slices.IndexFunc(known, func(f cli.Flag) bool { return slices.Contains(f.Names(), name) })
	if i < 0 {
		return false
	}
	f, ok := known[i].(cli.DocGenerationFlag)
	return !ok || f.TakesValue()
}
