// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/internal/hinted"
	"agentrun/internal/verb"
	"agentrun/supervisor/sandboxes"
)

func snapshotCommands(g *global) []*cli.Command {
	return []*cli.Command{
		{
			Name: "snapshot", Usage: "keep what a kept sandbox has now under a name, or list what is kept", ArgsUsage: "NAME [SNAPSHOT]",
			Description: `Files only: HOME, in ring 1 the root, and what changed in an overlaid workspace. Of a sandbox that stands still nothing is copied. One that runs is paused meanwhile, and what
it has changed since its last snapshot is copied.

   agentrun snapshot dev before-upgrade
   agentrun snapshot dev                       lists them
   agentrun snapshot --rm dev before-upgrade`,
			Flags:  []cli.Flag{&cli.BoolFlag{Name: "rm", Usage: "forget SNAPSHOT"}, jsonFlag()},
			Action: g.snapshot,
		},
		{
			Name: "fork", Usage: "make another kept sandbox of one, or of a snapshot", ArgsUsage: "NAME[@SNAPSHOT] NEW",
			Description: `NEW has the files of NAME, without a copy, and each of its starts is by the same flags. It is stopped.

   agentrun fork dev try-1
   agentrun fork dev@before-upgrade try-2 && agentrun start try-2`,
			Flags:  []cli.Flag{&cli.StringFlag{Name: "keep-for", Usage: "let agentrun gc remove NEW after `TIME`, as 7d", DefaultText: "never"}, jsonFlag()},
			Action: verb.Action(g.fork),
		},
		{
			Name: "rollback", Usage: "give a kept sandbox what a snapshot has", ArgsUsage: "NAME SNAPSHOT",
			Description: `Of one that isn't running. What it had since is gone, unless another snapshot or a fork has it.

   agentrun stop dev && agentrun rollback dev before-upgrade && agentrun start dev`, Action: verb.Action(g.rollback),
		},
	}
}

func (g *global) snapshot(c *cli.Context) (err error) {
	a := c.Args().Slice()
	switch {
	case len(a) == 1 && !c.Bool("rm"):
		return g.snapshots(c, a[0])
	case len(a) != 2:
		return usageError(c, errors.New("want NAME and SNAPSHOT, or NAME to list its snapshots"), false)
	}
	if err := g.enter(); err != nil {
		return err
	}
	name, snap := a[0], sandboxes.Snapshot{Name: a[1]}
	if c.Bool("rm") {
		if err := g.DropSnapshot(name, snap.Name, operatorName()); err != nil {
			return err
		}
		return printResult(c, map[string]string{"removed": snap.Name}, "%s has no snapshot %s any more\n", name, snap.Name)
	}
	if snap, err = g.SnapshotSandbox(c.Context, name, snap.Name, operatorName(), g.FindRun); err != nil {
		return err
	}
	return printResult(c, snap, "snapshot %s of %s: %s in %d layers\n", snap.Name, name, memText(int64(snap.Sealed)), len(snap.Below))
}

func (g *global) snapshots(c *cli.Context, name string) error {
	k, err := g.Sandboxes().Load(name)
	if err != nil {
		return fmt.Errorf("snapshot %.64q: %w", name, hinted.New(err, "agentrun ps --all lists those there are"))
	}
	if c.Bool("json") {
		return printJSON(append([]sandboxes.Snapshot{}, k.Snapshots...))
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SNAPSHOT\tSIZE\tLAYERS\tMADE\tBY")
	for _, s := range k.Snapshots {
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\n", s.Name, memText(int64(s.Sealed)), len(s.Below), s.At.Format(time.RFC3339), s.By)
	}
	return w.Flush()
}

// ofSnapshot takes NAME[@SNAPSHOT] apart. An empty SNAPSHOT is none, and not what the sandbox has now.
func ofSnapshot(arg string) (name, snapshot string, err error) {
	name, snapshot, named := strings.Cut(arg, "@")
	if named && snapshot == "" {
		err = hinted.New(fmt.Errorf("%.64q names no snapshot", arg), "without @ it is what the sandbox has now")
	}
	return name, snapshot, err
}

func (g *global) fork(c *cli.Context, a []string) error {
	from, snapshot, err := ofSnapshot(a[0])
	if err != nil {
		return usageError(c, err, false)
	}
	k := sandboxes.Sandbox{Name: a[1], By: operatorName()}
	if c.IsSet("keep-for") {
		until, err := keepTime("--keep-for", c.String("keep-for"))
		if err != nil {
			return usageError(c, err, false)
		}
		k.Until = until
	}
	if err := g.enter(); err != nil {
		return err
	}
	k, err = g.ForkSandbox(c.Context, from, snapshot, k, g.FindRun)
	if err != nil {
		return err
	}
	return printResult(c, k, "forked %s: %s has its %s\n", from, k.Name, memText(int64(k.Sealed)))
}

func (g *global) rollback(c *cli.Context, a []string) error {
	err := g.RollbackSandbox(c.Context, a[0], a[1], operatorName())
	if err == nil {
		_, err = fmt.Println(a[0], "has what snapshot", a[1], "has")
	}
	return err
}
