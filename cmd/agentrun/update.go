// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"agentrun/control"
	"agentrun/internal/hinted"
	"agentrun/internal/read"
	"agentrun/profiles"
	"agentrun/runtime"
	"agentrun/supervisor"
)

func (l *liveVerbs) update() *cli.Command {
	return l.verb(&cli.Command{
		Name:      "update",
		Usage:     "change the limits of a live run",
		ArgsUsage: "REF",
		Description: `The same values as of exec, in the same ranges. What isn't named stays. Less memory than the run uses now is refused, or ends it,
as the kernel does it.

   agentrun update planner --memory 512M
   agentrun update planner --cpus 0.5 --pids 64 --dry-run

Exit code: 0; 1 not done; 2 usage, also a value outside its range.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "cpus", Usage: "processors, `0.01–1`"},
			&cli.StringFlag{Name: "memory", Usage: "memory without swap, `4M–1G`"},
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
		return err
	}
	would := "now has"
	if change.DryRun {
		would = "would have"
	}
	return printResult(c, change, "%s %s %s; before: %s\n", r.label(), would, limitsText(change.After),
		limitsText(change.Before))
}

// newLimits are those the flags name. All that is wrong is said at once (M-3).
func newLimits(c *cli.Context) (control.Limits, error) {
	var want profiles.Limits
	var problems []read.Problem
	asked := map[string]string{} // path in profiles.Limits → flag
	set := func(flag, path string, parse func(string) error) {
		if !c.IsSet(flag) {
			return
		}
		asked["limits."+path] = "--" + flag
		if err := parse(c.String(flag)); err != nil {
			problems = append(problems, read.Problem{Path: "--" + flag, Message: err.Error()})
			delete(asked, "limits."+path)
		}
	}
	set("cpus", "cpu", func(v string) (err error) { want.CPU, err = profiles.ParseCPUs(v); return })
	set("memory", "memory", func(v string) (err error) { want.Memory, err = profiles.ParseSize(v); return })
	set("pids", "pids", func(v string) error {
		n, err := profiles.ParseValue(v)
		if err != nil || n.N > 1<<31-1 {
			return fmt.Errorf("%.64q is no number of processes", v)
		}
		want.PIDs = int(n.N)
		return nil
	})
	if len(asked)+len(problems) == 0 {
		return control.Limits{}, usagef("agentrun update REF --memory 512M", "nothing to change: --cpus, --memory or --pids is missing")
	}
	ranges := profiles.SpecRanges()
	if os.Getenv(supervisor.TestOnlyLimits) == "1" {
		ranges = profiles.TestOnlyUnsafeRanges()
	}
	for _, p := range want.Check(ranges) {
		if flag, ok := asked[p.Path]; ok {
			problems = append(problems, read.Problem{Path: flag, Message: p.Message})
		}
	}
	if len(problems) > 0 {
		return control.Limits{}, &badUsage{hinted.New(&runtime.InvalidSpec{Problems: problems}, c.Command.HelpName+" --help lists the flags")}
	}
	return control.Limits{CPU: want.CPU, Memory: int64(want.Memory), PIDs: int64(want.PIDs)}, nil
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
