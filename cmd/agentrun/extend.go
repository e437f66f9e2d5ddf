// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/control"
	"agentrun/profiles"
)

func (l *liveVerbs) extend() *cli.Command {
	return l.verb(&cli.Command{
		Name:      "extend",
		Usage:     "give a live run more time",
		ArgsUsage: "REF [TIME]",
		Description: `TIME is added to the run's time limit, --cpu-time to its limit of processor time, within the ranges of the ring that it is in
now. Who did it and why is on record. A minute before its time is over a run's operators, its terminal and its agent are told.

   agentrun extend planner 1h --reason "the tests take longer"
   agentrun extend planner 30m --cpu-time 30m

Exit code: 0; 1 not done; 2 usage, also a time beyond its range.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "cpu-time", Usage: "`TIME` of processors, of all processes together"},
			&cli.StringFlag{Name: "reason", Usage: "`WHY`, for the audit"},
			jsonFlag(),
		},
		Action: l.extendAction,
	})
}

func (l *liveVerbs) extendAction(c *cli.Context) error {
	const example = "agentrun extend REF 1h"
	named, err := refs(c, 1, 2)
	if err != nil {
		return err
	}
	var more control.ExtendRequest
	if len(named) == 2 {
		if more.Time, err = moreTime("TIME", named[1]); err != nil {
			return usagef(example, "%w", err)
		}
	}
	if c.IsSet("cpu-time") {
		if more.CPUTime, err = moreTime("--cpu-time", c.String("cpu-time")); err != nil {
			return usagef(example, "%w", err)
		}
	}
	if more == (control.ExtendRequest{}) {
		return usagef(example, "nothing to add: TIME or --cpu-time is missing")
	}
	if more.Reason = c.String("reason"); c.IsSet("reason") {
		if err := checkReason("--reason", more.Reason, example+` --reason "the tests take longer"`); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(c.Context, answerTime)
	defer cancel()
	r, err := l.findOne(ctx, named[0])
	if err != nil {
		return err
	}
	lease, err := r.by.Extend(ctx, r.ID, more, operatorName())
	if err = refusal("extend "+r.label(), err); err != nil {
		return outOfRange(err)
	}
	ends := "never ends by its time limit"
	if !lease.EndsAt.IsZero() {
		ends = "ends at " + lease.EndsAt.UTC().Format(time.RFC3339)
	}
	return printResult(c, lease, "%s %s; cpu time %s in all\n", r.label(), ends, limitOf(lease.CPUTime))
}

// moreTime reads a time to add.
func moreTime(what, text string) (time.Duration, error) {
	d, err := profiles.ParseDuration(text)
	if err == nil && (d == 0 || d == profiles.NoLimit) {
		err = fmt.Errorf("%s: want a time to add, such as 1h", text)
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	return time.Duration(d), nil
}

// limitOf is a limit of a control.Lease.
func limitOf(d time.Duration) profiles.Duration {
	if d == 0 {
		return profiles.NoLimit
	}
	return profiles.Duration(d)
}
