// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/control"
	"agentrun/hypervisor"
	"agentrun/internal/hinted"
	"agentrun/internal/hostcaps"
	"agentrun/internal/verb"
	"agentrun/supervisor/sandboxes"
)

func snapshotCommands(g *global) []*cli.Command {
	return []*cli.Command{
		{
			Name: "snapshot", Usage: "keep what a kept sandbox has now under a name, or list what is kept", ArgsUsage: "NAME [SNAPSHOT]",
			Description: `Files only: HOME, and in ring 1 the root. Of a sandbox that stands still nothing is copied. One that runs is paused meanwhile, and what
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

// layered says whether this host mounts what a snapshot leaves behind: without it the next start would be refused.
func layered(doing, name string) error {
	if err := hostcaps.OverlayIDMapped.Check(); err != nil {
		return hinted.New(fmt.Errorf("%s %s: %s: %w", doing, name, hostcaps.OverlayIDMapped.Name, err), "docs/kept.md says what takes root")
	}
	return nil
}

// still has a live sandbox stand still for a copy: paused, or frozen by whoever. A pause that ended meanwhile makes the copy worthless.
func (g *global) still(c *cli.Context, name string) sandboxes.Still {
	return func(work func() error) (err error) {
		k, err := g.Sandboxes().Load(name)
		if err != nil {
			return err
		}
		l := liveOf(g)
		ask := func(do func(context.Context, liveRun) error) error {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context), answerTime)
			defer cancel()
			r, err := l.findOne(ctx, k.Run)
			if err != nil {
				return err
			}
			return do(ctx, r)
		}
		var since time.Time
		ours := false
		look := func(ctx context.Context, r liveRun) error {
			s, err := r.by.Inspect(ctx, r.ID)
			if err != nil {
				return err
			}
			if s.Pause == nil {
				since = time.Time{}
			} else {
				since = s.Pause.Since
			}
			return nil
		}
		err = ask(func(ctx context.Context, r liveRun) error {
			if err := look(ctx, r); err != nil || !since.IsZero() {
				return err
			}
			p, err := r.by.Pause(ctx, r.ID, operatorName())
			ours, since = err == nil, p.Since
			return err
		})
		if err != nil {
			return err
		}
		began := since
		err = work()
		if lerr := ask(look); lerr != nil || !since.Equal(began) {
			return errors.Join(err, hinted.New(errors.New("somebody had it go on meanwhile"), "agentrun freeze "+name+" lets nobody; or agentrun stop "+name))
		}
		if ours {
			err = errors.Join(err, ask(func(ctx context.Context, r liveRun) error {
				err := r.by.Resume(ctx, r.ID, operatorName())
				if e, ok := errors.AsType[*control.Error](err); ok && e.Code == control.CodeConflict {
					return nil // it is frozen besides, and stays so
				}
				return err
			}))
		}
		return err
	}
}

// ofSnapshot adds the way out to an error about a snapshot.
func ofSnapshot(doing, name string, err error) error {
	switch {
	case errors.Is(err, sandboxes.ErrNoSnapshot):
		err = hinted.New(err, "agentrun snapshot "+name+" lists those there are")
	case errors.Is(err, sandboxes.ErrSnapshotExists):
		err = hinted.New(err, "agentrun snapshot --rm "+name+" … forgets it")
	case errors.Is(err, sandboxes.ErrTooMany):
		err = hinted.New(err, "agentrun rollback to an older snapshot has fewer; a new sandbox has none")
	}
	return known(doing, name, err)
}

func (g *global) snapshot(c *cli.Context) error {
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
	name, snap := a[0], sandboxes.Snapshot{Name: a[1], By: operatorName(), At: time.Now().UTC()}
	change := "snapshot"
	if c.Bool("rm") {
		change = "snapshot_removed"
	} else if err := layered("snapshot", name); err != nil {
		return err
	}
	k, err := g.Sandboxes().Load(name)
	if err == nil {
		err = sandboxes.CheckName(snap.Name)
	}
	if err == nil {
		err = g.onRecord(hypervisor.SandboxLife{Change: change, Name: name, To: snap.Name, Run: k.Run})
	}
	if err == nil && c.Bool("rm") {
		err = g.Sandboxes().DropSnapshot(name, snap.Name)
	} else if err == nil {
		snap, err = g.Sandboxes().Snapshot(c.Context, name, snap, g.still(c, name))
	}
	if err != nil {
		return ofSnapshot("snapshot", name, err)
	}
	switch {
	case c.Bool("json"):
		return printJSON(snap)
	case c.Bool("rm"):
		_, err = fmt.Printf("%s has no snapshot %s any more\n", name, snap.Name)
	default:
		_, err = fmt.Printf("snapshot %s of %s: %s in %d layers\n", snap.Name, name, memText(int64(snap.Sealed)), len(snap.Below))
	}
	return err
}

func (g *global) snapshots(c *cli.Context, name string) error {
	k, err := g.Sandboxes().Load(name)
	if err != nil {
		return known("snapshot", name, err)
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

func (g *global) fork(c *cli.Context, a []string) error {
	from, snapshot, _ := strings.Cut(a[0], "@")
	k := sandboxes.Sandbox{Name: a[1], By: operatorName(), Created: time.Now().UTC()}
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
	if err := layered("fork", from); err != nil {
		return err
	}
	err := g.Sandboxes().Fork(c.Context, from, snapshot, g.still(c, from), k, func(*sandboxes.Sandbox) error {
		return g.onRecord(hypervisor.SandboxLife{Change: "forked", Name: from, To: k.Name})
	})
	if errors.Is(err, sandboxes.ErrExists) {
		return hinted.New(fmt.Errorf("fork %s: %s: %w", from, k.Name, err), "agentrun rm "+k.Name+" removes it")
	}
	if err != nil {
		return ofSnapshot("fork", from, err)
	}
	if k, err = g.Sandboxes().Load(k.Name); err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(k)
	}
	_, err = fmt.Printf("forked %s: %s has its %s\n", from, k.Name, memText(int64(k.Sealed)))
	return err
}

func (g *global) rollback(_ *cli.Context, a []string) error {
	name, snapshot := a[0], a[1]
	k, err := g.Sandboxes().Load(name)
	if err == nil && g.Sandboxes().Live(name) {
		err = sandboxes.ErrBusy
	}
	if err == nil {
		err = sandboxes.CheckName(snapshot)
	}
	if err == nil {
		err = g.onRecord(hypervisor.SandboxLife{Change: "rolled_back", Name: name, To: snapshot, Run: k.Run})
	}
	if err == nil {
		err = g.Sandboxes().Rollback(name, snapshot)
	}
	if err != nil {
		return ofSnapshot("rollback", name, err)
	}
	_, err = fmt.Println(name, "has what snapshot", snapshot, "has")
	return err
}
