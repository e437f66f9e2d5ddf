// SPDX-License-Identifier: Apache-2.0

// Package policycmd is what `agentrun policy` looks like: its subcommands, flags and help. Two programs need it: agentrun,
// which knows no policies and hands over, and agentrun-gateway, which does the work. One description can't come apart.
//
//	command := policycmd.New(policycmd.Actions{Check: check, …}, usageError)
//	err := unix.Exec(gateway, policycmd.Args("agentrun-gateway", c), environ)
//
// It decides nothing and has no errors. What it does not protect against: it passes on what was typed, as it was typed.
package policycmd

import (
	"github.com/urfave/cli/v2"

	"agentrun/internal/verb"
)

// Actions do the work of the subcommands. All must be set.
type Actions struct {
	Check, Test, Explain, Schema, Builtin cli.ActionFunc
}

// All are Actions that do the same.
func All(do cli.ActionFunc) Actions { return Actions{do, do, do, do, do} }

// New gives the command; usage is told of flags that can't be parsed.
func New(do Actions, usage cli.OnUsageErrorFunc) *cli.Command {
	asJSON := &cli.BoolFlag{Name: "json", Usage: "print JSON"}
	policies := &cli.StringFlag{Name: "policy", Usage: "policy `FILE|DIR`; the built-in policies alone if not given"}
	request := &cli.StringFlag{Name: "request", Usage: "request as JSON, `FILE` or - for stdin", Required: true}
	return verb.NoWords(&cli.Command{
		Name:  "policy",
		Usage: "check, test and explain policies",
		Description: `   agentrun policy check /etc/agentrun/policies
   agentrun policy test cases.yaml
   agentrun policy explain --policy my.cedar --request request.json`,
		Subcommands: []*cli.Command{
			{Name: "check", Usage: "everything wrong with a policy file or folder", ArgsUsage: "FILE|DIR", Flags: []cli.Flag{asJSON}, OnUsageError: usage, Action: do.Check},
			{Name: "test", Usage: "decide cases and compare; 1 if a decision isn't the one a case wants", ArgsUsage: "FILE.yaml", Flags: []cli.Flag{asJSON}, OnUsageError: usage, Action: do.Test},
			{Name: "explain", Usage: "decide one request and say which policies took part", Flags: []cli.Flag{policies, request, asJSON}, OnUsageError: usage, Action: do.Explain},
			{Name: "schema", Usage: "the Cedar schema that policies are held to", OnUsageError: usage, Action: do.Schema},
			{Name: "builtin", Usage: "the built-in policies, with the reason of each", OnUsageError: usage, Action: do.Builtin},
		},
	})
}

// Args are the arguments with which program does what c was asked to, c being the context of a subcommand's action.
func Args(program string, c *cli.Context) []string {
	return append([]string{program, "policy"}, verb.Passed(c)...)
}
