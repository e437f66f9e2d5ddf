// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"

	"github.com/urfave/cli/v2"

	"agentrun/internal/safetycmd"
)

// safetyCommand hands over to agentrun-safety, which serves MCP and so has net/http.
func safetyCommand(g *global) *cli.Command {
	return safetycmd.New(safetycmd.All(func(c *cli.Context) error {
		return become(safetycmd.Program, safetycmd.Args(safetycmd.Common{
			StateDir: g.StateDir, RunDir: g.RunDir, LogLevel: g.level(), LogFormat: g.format(),
		}, c))
	}), usageError)
}

// level is what flag or configuration say.
func (g *global) level() string {
	for _, l := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn} {
		if g.Log.Enabled(context.Background(), l) {
			return l.String()
		}
	}
	return slog.LevelError.String()
}

func (g *global) format() string {
	if _, ok := g.Log.Handler().(*slog.JSONHandler); ok {
		return "json"
	}
	return "text"
}
