// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"agentrun/internal/hinted"
	"agentrun/internal/verb"
	"agentrun/supervisor/homes"
)

func homeCommand(g *global) *cli.Command {
	return &cli.Command{
		Name:  "home",
		Usage: "what agents keep from one run to the next (exec --home, host)",
		Description: `   agentrun home ls
   agentrun home rm claude`,
		Subcommands: []*cli.Command{
			{Name: "ls", Usage: "every home, its size and when a run last used it", Flags: []cli.Flag{jsonFlag()},
				Action: verb.Action(func(c *cli.Context, _ []string) error {
					if err := g.enterIfPossible(); err != nil {
						return err
					}
					list, err := g.Homes().List()
					return errors.Join(err, printList(c, list, "NAME\tMIB\tUSED\tLIVE\tFOLDER", list, func(i homes.Info) []any {
						return []any{i.Name, uint64(i.Bytes >> 20), i.Used, i.Live, i.Files}
					}))
				})},
			{Name: "rm", Usage: "delete one that no live run has", ArgsUsage: "NAME",
				Action: verb.Action(func(_ *cli.Context, a []string) error {
					if err := g.enterIfPossible(); err != nil {
						return err
					}
					err := g.Homes().Remove(a[0])
					if err == nil {
						_, err = fmt.Fprintln(os.Stdout, "removed home", oneLine(a[0]))
						return err
					}
					err = fmt.Errorf("home %s: %w", a[0], err)
					if errors.Is(err, homes.ErrNone) || errors.Is(err, homes.ErrBusy) {
						err = hinted.New(err, "agentrun home ls lists homes, and which are in use")
					}
					return err
				})},
		},
	}
}
