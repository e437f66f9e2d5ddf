// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/urfave/cli/v2"

	"agentrun/internal/hinted"
	"agentrun/internal/read"
	"agentrun/internal/shown"
)

const (
	gatewayName = "agentrun-gateway"

	exitFailed = 125 // docs/exit-codes.md; package runtime, which has it too, would bring libcontainer along
)

// exitError ends the program with a code and says nothing more: it has been said already.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// report prints what happened and one hint line, as agentrun does, and gives the exit code.
func report(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	if code, ok := errors.AsType[exitError](err); ok {
		return int(code)
	}
	for _, line := range read.Lines(err) {
		fmt.Fprintf(w, "agentrun: %s\n", shown.Line(line))
	}
	if h, ok := errors.AsType[*hinted.Error](err); ok {
		fmt.Fprintf(w, "hint: %s\n", shown.Line(h.Hint))
	}
	return exitFailed
}

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
