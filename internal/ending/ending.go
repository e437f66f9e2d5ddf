// SPDX-License-Identifier: Apache-2.0

// Package ending is how agentrun's programs end: what they print of an error, and their exit code (docs/exit-codes.md).
//
// Whatever an error quotes, it can't forge a line of ours nor command a terminal. One line tells the way out, if any is known.
package ending

import (
	"errors"
	"fmt"
	"io"

	"agentrun/internal/hinted"
	"agentrun/internal/read"
	"agentrun/internal/shown"
)

// Failed is the exit code of a program that couldn't do what it was asked to. runtime.ExitFailed is the same: programs that are
// linked without package runtime have it here.
const Failed = 125

// Code ends a program with this exit code and prints nothing more: it has been said already, or it is the agent's own.
type Code int

func (c Code) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// Report prints what happened, each problem on a line of its own, and the way out. It returns the exit code. hint finds the way out
// of an error, "" if it knows none: Hint, or what asks it.
func Report(w io.Writer, err error, hint func(error) string) int {
	if err == nil {
		return 0
	}
	if code, ok := errors.AsType[Code](err); ok {
		return int(code)
	}
	for _, line := range read.Lines(err) {
		fmt.Fprintf(w, "%s %s\n", shown.Paint(w, shown.Red, "agentrun:"), shown.Line(line))
	}
	if h := hint(err); h != "" {
		fmt.Fprintf(w, "%s %s\n", shown.Paint(w, shown.Cyan, "hint:"), shown.Line(h))
	}
	return Failed
}

// Hint returns the way out that the error itself tells.
func Hint(err error) string {
	if h, ok := errors.AsType[*hinted.Error](err); ok {
		return h.Hint
	}
	return ""
}
