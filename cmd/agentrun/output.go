// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/urfave/cli/v2"

	"agentrun/internal/hinted"
	"agentrun/internal/shown"
)

func (l *liveVerbs) output() *cli.Command {
	return l.verb(&cli.Command{
		Name:      "output",
		Usage:     "what a detached run has written, also one that is over",
		ArgsUsage: "REF",
		Description: `Its stdout and stderr, up to the run's --max-output. On a terminal, what would act on it is written out (\u001b); --raw and anything
that is no terminal get the bytes as they are. The log of a run's calls: agentrun logs.

   agentrun output planner
   agentrun output planner --follow
   agentrun output planner > planner.txt

Exit code: 0; 1 no such run, or it isn't detached; 2 usage.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "go on until the run ends"},
			&cli.BoolFlag{Name: "raw", Usage: "the bytes as they are, also on a terminal"},
		},
		Action: func(c *cli.Context) error {
			a, err := refs(c, 1, 1)
			if err != nil {
				return err
			}
			safe := isTerminal(os.Stdout) && !c.Bool("raw")
			return l.writeOutput(c.Context, a[0], c.Bool("follow"), os.Stdout, safe)
		},
	})
}

func (l *liveVerbs) writeOutput(ctx context.Context, ref string, follow bool, to io.Writer, safe bool) error {
	asking, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	r, err := l.findOne(asking, ref)
	over := endedRun{}
	if hasEnded(err) {
		over, err = l.findEnded(ref, err)
	}
	if err != nil {
		return err
	}
	if over.ID == "" && !r.Detached {
		return hinted.New(fmt.Errorf("output of %s: it goes where the agentrun exec that started it sends it", r.label()), "agentrun exec --detach starts runs whose output is kept")
	}
	if !follow {
		ctx = asking
	}
	if safe {
		s := &shown.Writer{To: to}
		defer s.Flush()
		to = s
	}
	if over.ID != "" {
		return l.copyKept(over.ID, to)
	}
	return refusal("output of "+r.label(), r.by.Output(ctx, r.ID, follow, to))
}

// copyKept writes what a run that is over has written, if it was a detached one and that is still kept.
func (l *liveVerbs) copyKept(run string, to io.Writer) error {
	f, err := os.Open(l.g.Outputs().File(run))
	if errors.Is(err, fs.ErrNotExist) {
		return hinted.New(fmt.Errorf("output of run %s: none is kept", run), "agentrun exec --detach starts runs whose output is kept, for some days")
	}
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(to, f)
	return err
}
