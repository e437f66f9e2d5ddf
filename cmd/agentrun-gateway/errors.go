// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/urfave/cli/v2"

	"agentrun/internal/ending"
	"agentrun/internal/hinted"
)

const (
	gatewayName = "agentrun-gateway"

	exitFailed = ending.Failed
)

type exitError = ending.Code

func report(w io.Writer, err error) int { return ending.Report(w, err, ending.Hint) }

func usageError(c *cli.Context, err error, _ bool) error {
	return hinted.New(err, c.Command.HelpName+" --help lists the flags")
}

func noArgs(c *cli.Context) error {
	if c.NArg() > 0 {
		return hinted.New(fmt.Errorf("%s takes no argument, got %q", c.Command.HelpName, c.Args().First()), c.Command.HelpName+" --help lists the flags")
	}
	return nil
}

func oneArg(c *cli.Context, what string) (string, error) {
	if c.NArg() != 1 {
		return "", hinted.New(fmt.Errorf("%s takes one %s", c.Command.HelpName, what), c.Command.HelpName+" "+what)
	}
	return c.Args().First(), nil
}

func printJSON(v any) error {
	e := json.NewEncoder(os.Stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
