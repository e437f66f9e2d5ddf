// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"agentrun/control"
	"agentrun/internal/hinted"
	"agentrun/internal/read"
	"agentrun/profiles"
	"agentrun/runtime"
)

func (l *liveVerbs) update() *cli.Command {
	return l.verb(&cli.Command{
		Name:      "update",
		Usage:     "change the limits of a live run",
		ArgsUsage: "REF",
		Description: `The same values as of exec, in the ranges of the ring that the run is in now. What isn't named stays. Less memory than the run uses
now is refused, or ends it, as the kernel does it.

   agentrun update planner --memory 512M
   agentrun update planner --cpus 0.5 --pids 64 --dry-run

Exit code: 0; 1 not done; 2 usage, also a value outside its range.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "cpus", Usage: "`N` processors, from 0.01"},
			&cli.StringFlag{Name: "memory", Usage: "memory without swap, `SIZE`, from 4M"},
			&cli.StringFlag{Name: "pids", Usage: "processes and threads, `N`"},
			&cli.BoolFlag{Name: "dry-run", Usage: "only say what would change"},
			jsonFlag(),
		},
		Action: l.updateAction,
	})
}

func (l *liveVerbs) updateAction(c *cli.Context) error {
	to, err := newLimits(c)
	if err != nil {
		return err
	}
	r, change, err := one(l, c, "update %s", func(ctx context.Context, r liveRun) (control.LimitChange, error) {
		return r.by.Update(ctx, r.ID, to, c.Bool("dry-run"), operatorName())
	})
	if err != nil {
		return outOfRange(err)
	}
	would := "now has"
	if change.DryRun {
		would = "would have"
	}
	return printResult(c, change, "%s %s %s; before: %s\n", r.label(), would, limitsText(change.After),
		limitsText(change.Before))
}

// newLimits are those the flags name. All that is malformed or less than a run can have is said at once; how far the ranges go is known
// to the run's supervisor.
func newLimits(c *cli.Context) (to control.Limits, err error) {
	var problems []read.Problem
	named, spec := false, profiles.SpecRanges()
	set := func(flag string, parse func(string) error) {
		if !c.IsSet(flag) {
			return
		}
		named = true
		if err := parse(c.String(flag)); err != nil {
			problems = append(problems, read.Problem{Path: "--" + flag, Message: err.Error()})
		}
	}
	set("cpus", func(v string) (err error) {
		to.CPU, err = profiles.ParseCPUs(v)
		return atLeast(spec.CPU.Min, to.CPU, err)
	})
	set("memory", func(v string) error {
		n, err := profiles.ParseSize(v)
		to.Memory = int64(n) //nolint:gosec // ParseSize gives no more
		return atLeast(spec.Memory.Min, n, err)
	})
	set("pids", func(v string) error {
		n, err := number("processes")(v)
		to.PIDs = int64(n)
		return atLeast(spec.PIDs.Min, n, err)
	})
	if !named {
		return to, usagef("agentrun update REF --memory 512M", "nothing to change: --cpus, --memory or --pids is missing")
	}
	if len(problems) > 0 {
		return to, &badUsage{hinted.New(&runtime.InvalidSpec{Problems: problems}, c.Command.HelpName+" --help lists the flags")}
	}
	return to, nil
}

func atLeast[T cmp.Ordered](least, v T, err error) error {
	if err == nil && !(v >= least) {
		err = fmt.Errorf("%v is less than %v, the least that a run can have", v, least)
	}
	return err
}

// outOfRange has a value outside its range end as a wrong command line does, though the run's supervisor found it.
func outOfRange(err error) error {
	if e, ok := errors.AsType[*control.Error](err); ok && e.Code == control.CodeOutOfRange {
		return &badUsage{err}
	}
	return err
}

func limitsText(l control.Limits) string {
	var parts []string
	if l.CPU != 0 {
		parts = append(parts, "cpu "+strconv.FormatFloat(l.CPU, 'g', -1, 64))
	}
	if l.Memory > 0 {
		parts = append(parts, "memory "+profiles.Size(l.Memory).String())
	}
	if l.PIDs != 0 {
		parts = append(parts, "pids "+strconv.FormatInt(l.PIDs, 10))
	}
	if parts == nil {
		return "none"
	}
	return strings.Join(parts, ", ")
}
