// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/urfave/cli/v2"
)

func (l *liveVerbs) pause() *cli.Command {
	return l.verb(&cli.Command{
		Name:      "pause",
		Usage:     "stop every process of a run where it is, and give its memory back",
		ArgsUsage: "REF…",
		Description: `A paused run is frozen, and the kernel takes back the memory that it can do without: what files can be read from again. It uses no
processor; its time limit and elevations go on. exec --in, shell, cp, cat and signal let it go on, on record; a run that freeze or a
safety loop holds as well stays as it is. Of runs that are only looked at, freeze is the better word.

   agentrun pause planner
   agentrun pause k3x7 p5d8 --json
   agentrun exec -d --idle-pause 10m -- agent.py

Exit code: 0 all are paused; 1 one isn't, or was already; 2 usage.`,
		Flags: []cli.Flag{jsonFlag()},
		Action: func(c *cli.Context) error {
			return l.eachTelling(c, manyRefs, "pause", func(ctx context.Context, r liveRun, d *done) (string, error) {
				p, err := r.by.Pause(ctx, r.ID, operatorName())
				if err != nil {
					return "", err
				}
				d.GivenBack = &p.GivenBack
				return "is paused, " + memText(p.GivenBack) + " of its memory given back", nil
			})
		},
	})
}

func (l *liveVerbs) resume() *cli.Command {
	return l.verb(&cli.Command{
		Name:      "resume",
		Usage:     "let a paused run go on",
		ArgsUsage: "REF…",
		Description: `What was frozen besides stays so: thaw ends that, and a verification what a safety loop has stopped.

   agentrun resume planner
   agentrun ps -q --state paused | xargs -r agentrun resume

Exit code: 0 all go on; 1 one doesn't, or wasn't paused; 2 usage.`,
		Flags: []cli.Flag{jsonFlag()},
		Action: func(c *cli.Context) error {
			return l.each(c, manyRefs, "resume", "goes on", func(ctx context.Context, r liveRun) error {
				return r.by.Resume(ctx, r.ID, operatorName())
			})
		},
	})
}
