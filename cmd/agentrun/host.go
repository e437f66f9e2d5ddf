// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"agentrun/internal/hostcaps"
	"agentrun/runtime"
)

func doctorCommand(g *global) *cli.Command {
	return &cli.Command{
		Name:  "doctor",
		Usage: "what this host offers, what is missing, and how to get it",
		Description: `Tries every feature agentrun uses. Exit code 125 if one that runs need is missing.

   agentrun doctor
   agentrun doctor --workspace /srv/agents   is that file system fit for workspaces?`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			&cli.StringFlag{Name: "workspace", Usage: "`DIR` whose file system is asked about", Value: "."},
		},
		OnUsageError: usageError,
		Action: func(c *cli.Context) error {
			r := hostcaps.NewReport(c.String("workspace"))
			var err error
			if c.Bool("json") {
				err = r.WriteJSON(os.Stdout)
			} else {
				err = r.WriteText(os.Stdout)
			}
			if err != nil {
				return err
			}
			if !r.Usable {
				return exitError(runtime.ExitFailed)
			}
			return nil
		},
	}
}

func gcCommand(g *global) *cli.Command {
	return &cli.Command{
		Name:  "gc",
		Usage: "remove what crashed runs left behind",
		Description: `Every exec does this too. Runs that are alive are not touched. Logs of runs that are older than the
configuration says go as well.

   agentrun gc`,
		Flags:        []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print JSON"}},
		OnUsageError: usageError,
		Action: func(c *cli.Context) error {
			removed, err := runtime.Collect(c.Context, g.runDir)
			if file, ferr := readGatewayFile(""); ferr == nil {
				ferr = g.sweepLogs(file.Telemetry.Logs)
				err = errors.Join(err, ferr)
			}
			if c.Bool("json") {
				if removed == nil {
					removed = []string{}
				}
				if jerr := printJSON(map[string]any{"removed": removed}); jerr != nil {
					return jerr
				}
				return err
			}
			for _, id := range removed {
				fmt.Println("removed", id)
			}
			return err
		},
	}
}
