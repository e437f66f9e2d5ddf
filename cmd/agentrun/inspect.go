// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/control"
)

func (l *liveVerbs) inspect() *cli.Command {
	return l.verb(&cli.Command{
		Name:      "inspect",
		Usage:     "everything a supervisor knows of a run, or what is kept of one that is over",
		ArgsUsage: "REF",
		Description: `REF is an id, the beginning of one that only one run has, or a name; of runs that are over the newest that has it. The command lines of processes are
the agent's own choice.

   agentrun inspect planner
   agentrun inspect k3x7 --json | jq .plan.limits

Exit code: 0; 1 no such run, or no answer; 2 usage.`,
		Flags: []cli.Flag{jsonFlag()},
		Action: func(c *cli.Context) error {
			_, in, err := one(l, c, "inspect %s", func(ctx context.Context, r liveRun) (control.Inspection, error) {
				return r.by.Inspect(ctx, r.ID)
			})
			if hasEnded(err) {
				return l.inspectEnded(c, err)
			}
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return printJSON(in)
			}
			_, err = os.Stdout.WriteString(inspectText(in, l.now()))
			return err
		},
	})
}

func (l *liveVerbs) inspectEnded(c *cli.Context, notFound error) error {
	r, err := l.findEnded(c.Args().First(), notFound)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(listedRun{r.sandbox(), &r.Status})
	}
	_, err = os.Stdout.WriteString(endedText(r))
	return err
}

func inspectText(in control.Inspection, now time.Time) string {
	var b strings.Builder
	field := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-12s%s\n", name, oneLine(fmt.Sprintf(format, args...)))
	}
	given := func(name, value string) {
		if value != "" {
			field(name, "%s", value)
		}
	}
	field("id", "%s", in.ID)
	given("name", in.Name)
	given("agent", in.Agent)
	given("session", in.Session)
	field("state", "%s", in.State)
	if p := in.Pause; p != nil {
		why := ""
		if p.Cause == "idle" {
			why = ", as it was idle"
		}
		field("paused", "since %s by %s%s; %s of its memory given back", p.Since.UTC().Format(time.RFC3339), p.By, why, memText(p.GivenBack))
	}
	if in.Quarantined {
		field("quarantine", "its agent is held")
	}
	if in.Stopped {
		field("safety", "its agent is stopped: agentrun challenges list")
	}
	field("ring", "%s (admitted to %d, profile %s)", ringText(in.Sandbox, now), in.BaseRing, in.Profile)
	if e := in.Elevation; e != nil {
		field("elevation", "%s to ring %d until %s: %s", e.ID, e.Target.Value(), e.ExpiresAt.UTC().Format(time.RFC3339), e.Reason)
	}
	field("command", "%s", commandText(in.Command))
	field("started", "%s, %s ago", in.StartedAt.UTC().Format(time.RFC3339), ageText(now.Sub(in.StartedAt)))
	field("pid", "%d, supervisor %d", in.PID, in.Supervisor)
	if in.EndsAt.IsZero() {
		field("ends", "by no time limit")
	} else {
		field("ends", "%s, in %s", in.EndsAt.UTC().Format(time.RFC3339), in.EndsAt.Sub(now).Round(time.Second))
	}
	field("limits", "%s", limitsText(in.Limits))
	field("usage", "cpu time %s, memory %s (peak %s), pids %d, output %s",
		cpuText(in.Usage.CPUTime), memText(in.Usage.Memory), memText(in.Usage.MemoryPeak), in.Usage.PIDs, memText(in.Usage.Output))
	field("pressure", "%s", pressureText(in.Usage.Pressure))
	given("plan", planDigest(in.Plan))
	given("refused", refusedText(in.Refused))
	if len(in.Processes) > 0 {
		b.WriteString("\n" + processTable(in.Processes, 0, now))
	}
	return b.String()
}

// pressureText says also that there is none to tell: a row that is missing could be read as no pressure.
func pressureText(p *control.Pressure) string {
	if p == nil {
		return "not told for a run by this kernel (cgroup v1, or without PSI)"
	}
	return fmt.Sprintf("of the last 10 s waited for cpu %.0f%%, memory %.0f%%, io %.0f%%", p.CPU, p.Memory, p.IO)
}

func planDigest(plan json.RawMessage) string {
	var p struct {
		Digest string `json:"digest"`
	}
	if json.Unmarshal(plan, &p) != nil {
		return ""
	}
	return p.Digest
}

func refusedText(calls map[string]uint64) string {
	var list []string
	for call, n := range calls {
		list = append(list, fmt.Sprintf("%s %d", call, n))
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}
