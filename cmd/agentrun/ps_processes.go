// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/control"
	"agentrun/internal/hinted"
	"agentrun/internal/shown"
	"agentrun/supervisor/sandboxes"
)

// psProcesses lists the processes of one run.
func (l *liveVerbs) psProcesses(c *cli.Context) error {
	for _, f := range []string{"all", "q", "agent", "session", "ring", "state"} {
		if c.IsSet(f) {
			return usagef("agentrun ps REF lists the processes of one run", "--%s is of the list of runs, and %.64q is one", f, c.Args().First())
		}
	}
	_, in, err := one(l, c, "processes of %s", func(ctx context.Context, r liveRun) (control.Inspection, error) {
		return r.by.Inspect(ctx, r.ID)
	})
	if hasEnded(err) {
		return l.whyNoProcesses(c.Args().First(), err)
	}
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(in.Processes)
	}
	width, _, _ := terminalSize(os.Stdout)
	_, err = os.Stdout.WriteString(processTable(in.Processes, width, l.now()))
	return err
}

// whyNoProcesses says what it is that ref names, where that is known.
func (l *liveVerbs) whyNoProcesses(ref string, notFound error) error {
	kept, err := l.g.Sandboxes().List()
	if err == nil && slices.ContainsFunc(kept, func(k sandboxes.Info) bool { return k.Name == ref }) {
		return hinted.New(fmt.Errorf("sandbox %s is stopped: it has no processes", ref), "agentrun start "+ref)
	}
	if r, err := l.findEnded(ref, notFound); err == nil {
		return hinted.New(fmt.Errorf("run %s is over: it has no processes", oneLine(r.ID)), "agentrun inspect "+oneLine(r.ID)+" says how it ended")
	}
	return notFound
}

func processTable(list []control.Process, width int, now time.Time) string {
	right := func(head string) shown.Column { return shown.Column{Head: head, Right: true} }
	t := shown.Table{Width: width, Columns: []shown.Column{
		right("INSIDE"), right("PID"), right("PARENT"), right("USER"), right("THREADS"), {Head: "STATE"}, right("AGE"), {Head: "FROM"}, {Head: "COMMAND", Cut: 16},
	}}
	for _, p := range list {
		user, from, command := strconv.Itoa(p.User), p.From, commandText(p.Command)
		if p.User < 0 {
			user = "-"
		}
		if p.First {
			from = "first"
		}
		if len(p.Command) == 0 {
			command = "[" + p.Name + "]"
		}
		t.Row(strconv.Itoa(p.Inside), strconv.Itoa(p.PID), strconv.Itoa(p.Parent), user, strconv.Itoa(p.Threads), orDash(p.State),
			ageText(now.Sub(p.StartedAt)), orDash(from), command)
	}
	return t.String()
}
