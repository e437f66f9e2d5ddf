// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/urfave/cli/v2"

	"agentrun/internal/shown"
)

const (
	gatewayName = "agentrun-gateway"

	exitFailed = 125 // docs/exit-codes.md; package runtime, which has it too, would bring libcontainer along
)

// exitError ends the program with a code and says nothing more: it has been said already.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// hintError is an error with the way out.
type hintError struct {
	err  error
	hint string
}

func (e *hintError) Error() string { return e.err.Error() }

func (e *hintError) Unwrap() error { return e.err }

// report prints what happened and one hint line, as agentrun does, and gives the exit code.
func report(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	if code, ok := errors.AsType[exitError](err); ok {
		return int(code)
	}
	fmt.Fprintf(w, "agentrun: %s\n", shown.Line(err.Error()))
	if h, ok := errors.AsType[*hintError](err); ok {
		fmt.Fprintf(w, "hint: %s\n", shown.Line(h.hint))
	}
	return exitFailed
}

func usageError(c *cli.Context, err error, _ bool) error {
	return &hintError{err: err, hint: c.Command.HelpName + " --help lists the flags"}
}

func noArgs(c *cli.Context) error {
	if c.NArg() > 0 {
		return &hintError{err: fmt.Errorf("%s takes no argument, got %q", c.Command.HelpName, c.Args().First()), hint: c.Command.HelpName + " --help lists the flags"}
	}
	return nil
}

func oneArg(c *cli.Context, what string) (string, error) {
	if c.NArg() != 1 {
		return "", &hintError{err: fmt.Errorf("%s takes one %s", c.Command.HelpName, what), hint: c.Command.HelpName + " " + what}
	}
	return c.Args().First(), nil
}

func printJSON(v any) error {
	e := json.NewEncoder(os.Stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
