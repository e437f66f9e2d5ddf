// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"agentrun/conform"
	"agentrun/internal/verb"
)

// conformDiffers is told apart from 125: the cases were answered, the answers aren't those wanted.
const conformDiffers = 1

func conformCommand() *cli.Command {
	return &cli.Command{
		Name:  "conform",
		Usage: "answer conformance cases, JSON Lines on stdin, answers on stdout",
		Description: `Each line is a case, {"id":…,"op":…,"in":{…}}, answered in order with {"id":…,"out":{…}} or
   {"id":…,"error":{"code":…,"message":…}}. docs/conformance.md has the operations. Exit code 0 once all lines are answered.

   agentrun conform < cases.jsonl
   cat rings/testdata/*.jsonl | agentrun conform --check    1 if an answer isn't the one a case wants`,
		Flags: []cli.Flag{&cli.BoolFlag{Name: "check",
			Usage: `compare with the "want" of each case, print the differences only`}},
		Action: verb.Action(func(c *cli.Context, _ []string) error {
			if !c.Bool("check") {
				if err := conform.Run(os.Stdin, os.Stdout); err != nil {
					return fmt.Errorf("answer cases: %w", err)
				}
				return nil
			}
			r, err := conform.Check(os.Stdin, os.Stdout)
			if err != nil {
				return fmt.Errorf("check cases: %w", err)
			}
			fmt.Fprintf(os.Stderr, "%d cases, %d compared, %d different\n", r.Cases, r.Compared, r.Different)
			if r.Different > 0 {
				return exitError(conformDiffers)
			}
			return nil
		}),
	}
}
