// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"agentrun/internal/ending"
	"agentrun/internal/hinted"
	fit "agentrun/internal/shown" // shown is the challenge's
)

// docs/exit-codes.md.
const (
	exitDiffers = 1
	exitFailed  = ending.Failed
)

type exitError = ending.Code

func report(w io.Writer, err error) int { return ending.Report(w, err, ending.Hint) }

func withHint(hint, format string, args ...any) error {
	return hinted.New(fmt.Errorf(format, args...), hint)
}

func usageError(c *cli.Context, err error, _ bool) error {
	name := c.App.HelpName
	if c.Command != nil && c.Command.HelpName != "" {
		name = c.Command.HelpName
	}
	return hinted.New(err, name+" --help lists the flags")
}

func noArgs(c *cli.Context) error {
	if c.NArg() > 0 {
		return withHint(c.Command.HelpName+" --help lists the flags", "%s takes no argument, got %.64q", c.Command.HelpName, c.Args().First())
	}
	return nil
}

func oneArg(c *cli.Context, what string) (string, error) {
	if c.NArg() != 1 {
		return "", withHint(c.Command.HelpName+" "+what, "%s takes one %s, got %d arguments", c.Command.HelpName, what, c.NArg())
	}
	return c.Args().First(), nil
}

func printJSON(v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Println(fit.Text(string(text)))
	return err
}
