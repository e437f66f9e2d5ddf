// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"agentrun/internal/hinted"
	"agentrun/internal/safetycmd"
	"agentrun/internal/sibling"
)

func safetyCommand(g *global) *cli.Command {
	return safetycmd.New(safetycmd.All(func(c *cli.Context) error { return safetyHandOver(g, c) }), usageError)
}

// safetyHandOver becomes agentrun-safety, which serves MCP and so has net/http; it comes back only if that can't be.
func safetyHandOver(g *global, c *cli.Context) error {
	path, err := sibling.Find(safetycmd.Program)
	if err != nil {
		return hinted.New(err, safetycmd.Program+" comes with agentrun: install both, in a folder that only root may write")
	}
	args := safetycmd.Args(safetycmd.Common{StateDir: g.StateDir, RunDir: g.RunDir, LogLevel: g.level(), LogFormat: g.format()}, c)
	if err := unix.Exec(path, args, os.Environ()); err != nil {
		return fmt.Errorf("exec %s: %w", path, err)
	}
	return nil
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
