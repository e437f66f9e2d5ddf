// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/internal/hostcaps"
	"agentrun/internal/shown"
	"agentrun/internal/verb"
	"agentrun/runtime"
	"agentrun/supervisor"
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
		Action: verb.Action(func(c *cli.Context, _ []string) error {
			if err := g.enterIfPossible(); err != nil { // else what is missing is asked about out here
				return err
			}
			r := hostcaps.NewReport(c.String("workspace"))
			r.Results = append(r.Results, gatewayResult(g.Gateway))
			for i := range r.Results { // the folder's name is in them
				r.Results[i].Name, r.Results[i].Why = oneLine(r.Results[i].Name), oneLine(r.Results[i].Why)
			}
			var err error
			if c.Bool("json") {
				err = r.WriteJSON(os.Stdout)
			} else {
				var text strings.Builder
				err = r.WriteText(&text)
				missing := shown.Paint(os.Stdout, shown.Red, "missing")
				if err == nil {
					_, err = fmt.Print(strings.ReplaceAll(text.String(), "\n  missing ", "\n  "+missing+" "))
				}
			}
			if err != nil {
				return err
			}
			if !r.Usable {
				return exitError(runtime.ExitFailed)
			}
			return nil
		}),
	}
}

// gatewayResult is the row of the second program. Without it runs need --no-gateway.
func gatewayResult(outside supervisor.Outside) hostcaps.Result {
	r := hostcaps.Result{Name: supervisor.GatewayProgram, Status: "found", Weight: hostcaps.Degrades.String()}
	if _, err := outside.Find(); err != nil {
		r.Status, r.Why = "missing", err.Error()
		r.Loses = "tools, models and egress: only runs with --no-gateway start"
		r.Get = "make install puts it beside agentrun"
	}
	return r
}

func gcCommand(g *global) *cli.Command {
	return &cli.Command{
		Name:  "gc",
		Usage: "remove what crashed runs left behind",
		Description: `Every exec does this too. Runs that are alive are not touched. Logs of runs that are older than the
configuration says go as well, homes that no run has used for as long as it says (90 days), and kept sandboxes
whose time is over (create --keep-for).

   agentrun gc`,
		Flags: []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print JSON"}},
		Action: verb.Action(func(c *cli.Context, _ []string) error {
			if err := g.enterIfPossible(); err != nil {
				return err
			}
			removed, err := g.Collect(c.Context, true)
			file, ferr := g.ReadGateway("")
			if ferr == nil { // how long logs are kept isn't known else
				ferr = g.Outputs().Sweep(file.Logs)
			}
			err = errors.Join(err, ferr)
			swept, serr := g.Homes().Sweep(time.Now())
			err = errors.Join(err, serr)
			for _, name := range swept {
				removed = append(removed, "home "+name)
			}
			swept, serr = g.SweepSandboxes(operatorName(), time.Now())
			err = errors.Join(err, serr)
			for _, name := range swept {
				removed = append(removed, "sandbox "+name)
			}
			swept, serr = g.Images().Sweep(nil, nil)
			err = errors.Join(err, serr)
			for _, name := range swept {
				removed = append(removed, "image "+name)
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
		}),
	}
}
