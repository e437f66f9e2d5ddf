// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"agentrun/internal/hinted"
	"agentrun/internal/read"
	fit "agentrun/internal/shown" // shown is the challenge's
)

// docs/exit-codes.md.
const (
	exitDiffers = 1
	exitFailed  = 125
)

// exitError ends the program with a code and says nothing more: it has been said already.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

func withHint(hint, format string, args ...any) error {
	return hinted.New(fmt.Errorf(format, args...), hint)
}

// report prints what happened and one hint line, as agentrun does, and gives the exit code.
func report(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	if code, ok := errors.AsType[exitError](err); ok {
		return int(code)
	}
	for _, line := range read.Lines(err) {
		fmt.Fprintf(w, "agentrun: %s\n", fit.Line(line))
	}
	if h, ok := errors.AsType[*hinted.Error](err); ok {
		fmt.Fprintf(w, "hint: %s\n", fit.Line(h.Hint))
	}
	return exitFailed
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
