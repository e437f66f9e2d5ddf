// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"

	"agentrun/internal/ending"
	"agentrun/internal/hinted"
	"agentrun/internal/verb"
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

var usageError = verb.UsageError("")

func printJSON(v any) error { return verb.WriteJSON(os.Stdout, v) }
