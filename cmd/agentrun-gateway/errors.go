// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"

	"agentrun/internal/ending"
	"agentrun/internal/verb"
)

const (
	gatewayName = "agentrun-gateway"

	exitFailed = ending.Failed
)

type exitError = ending.Code

func report(w io.Writer, err error) int { return ending.Report(w, err, ending.Hint) }

var usageError = verb.UsageError("")

func printJSON(v any) error { return verb.WriteJSON(os.Stdout, v) }
