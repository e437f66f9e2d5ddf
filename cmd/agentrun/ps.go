// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"agentrun/control"
	"agentrun/internal/shown"
)

func (l *liveVerbs) ps() *cli.Command {
	return l.verb(&cli.Command{
		Name:      "ps",
		Usage:     "list the live runs, and with --all those that are over; of one its processes",
		ArgsUsage: "[REF]",
		Description: `RING is what holds now: 3; 3→2 60s while an elevation lasts, with what is left of it; 2→3 where a run is held below what it
was admitted to. Q in STATE: its agent is in quarantine. Of a run that is over STATE is how it ended, with its exit code, and MEM
the most that it used. A kept sandbox that no run has is stopped, and AGE is its own.

With REF it lists the processes of that run: their number in the sandbox (INSIDE) and on the host, and whether they come from its own
command or have been entered by exec --in. A command line is what the process shows.

   agentrun ps
   agentrun ps dev
   agentrun ps --agent planner-1 --ring 2
   agentrun ps --all
   agentrun ps -q --state frozen | xargs agentrun thaw
   agentrun ps --json | jq '.[].id'

Exit code: 0; 1 if a supervisor doesn't answer (the list is then what the others say); 2 usage.`,
		Flags: append(filterFlags(),
			&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Usage: "also runs that are over, for as long as their accounts are kept, as --state ended, and kept sandboxes that are stopped"},
			&cli.BoolFlag{Name: "q", Usage: "ids only"},
			jsonFlag(),
		),
		Action: l.psAction,
	})
}

func filterFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "agent", Usage: "only runs of agent `ID`"},
		&cli.StringFlag{Name: "session", Usage: "only runs of session `ID`"},
		&cli.StringFlag{Name: "ring", Usage: "only runs that are in ring `1|2|3` now"},
		&cli.StringFlag{Name: "state", Usage: "only runs that are `starting|running|frozen|paused|ending|ended`"},
	}
}

// filterOf reads the filters; one that can fit nothing is an error, not an empty list.
func filterOf(c *cli.Context) (func(control.Sandbox) bool, error) {
	hint := c.Command.HelpName + " --help lists the flags"
	if c.NArg() > 0 {
		return nil, usagef(hint, "%s takes no arguments, got %.64q", c.Command.HelpName, c.Args().First())
	}
	for _, f := range []string{"agent", "session", "ring", "state"} {
		if c.IsSet(f) && c.String(f) == "" {
			return nil, usagef(hint, "--%s is empty; leave the flag out, or give it a value", f)
		}
	}
	ring := 0
	if v := c.String("ring"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > 3 {
			return nil, usagef(hint, "--ring %.64q: runs are in rings 1, 2 and 3", v)
		}
		ring = n
	}
	state := control.State(c.String("state"))
	states := []control.State{control.Starting, control.Running, control.Frozen, control.Paused, control.Ending, control.Ended}
	if state != "" && !slices.Contains(states, state) {
		return nil, usagef(hint, "--state %.64q: want one of %v", state, states)
	}
	agent, session := c.String("agent"), c.String("session")
	return func(s control.Sandbox) bool {
		return (agent == "" || s.Agent == agent) && (session == "" || s.Session == session) && (ring == 0 || s.Ring == ring) && (state == "" || s.State == state)
	}, nil
}

// list are the runs that fit, oldest first, and beside them what is wrong with the rest.
func (l *liveVerbs) list(ctx context.Context, fits func(control.Sandbox) bool) ([]control.Sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	runs, err := l.runs().All(ctx)
	list := []control.Sandbox{}
	for _, r := range runs {
		if fits(r.Sandbox) {
			list = append(list, r.Sandbox)
		}
	}
	slices.SortFunc(list, func(a, b control.Sandbox) int {
		return cmp.Or(a.StartedAt.Compare(b.StartedAt), strings.Compare(a.ID, b.ID))
	})
	return list, err
}

func (l *liveVerbs) psAction(c *cli.Context) error {
	if c.NArg() > 0 {
		return l.psProcesses(c)
	}
	fits, err := filterOf(c)
	if err != nil {
		return err
	}
	live, unanswered := l.list(c.Context, fits)
	if !c.Bool("all") && c.String("state") != string(control.Ended) {
		fits = nil
	}
	list, err := l.withEnded(live, fits)
	if err == nil && c.Bool("all") {
		err = l.withStopped(&list, fits)
	}
	if err != nil {
		return err
	}
	switch {
	case c.Bool("json"):
		err = printJSON(list)
	case c.Bool("q"):
		for _, s := range list {
			if s.ID != "" {
				fmt.Println(oneLine(s.ID))
			}
		}
	default:
		rows := make([]control.Sandbox, len(list))
		for i, r := range list {
			rows[i] = r.row()
		}
		width, _, _ := terminalSize(os.Stdout)
		_, err = os.Stdout.WriteString(psTable(rows, width, l.now()))
	}
	return errors.Join(err, incomplete(unanswered))
}

func psTable(list []control.Sandbox, width int, now time.Time) string {
	cpu := make([]string, len(list))
	for i, s := range list {
		cpu[i] = cpuText(s.Usage.CPUTime)
	}
	return runTable(list, cpu, nil, width, now)
}

// narrow is the terminal where whole ids leave no room for the command.
const narrow = 120

// runTable is one line for each run. cpu and waits are the columns of these names; nil: there is none.
func runTable(list []control.Sandbox, cpu, waits []string, width int, now time.Time) string {
	t := shown.Table{Width: width, Columns: []shown.Column{{Head: "ID"}, {Head: "NAME", Cut: 6}, {Head: "AGENT", Cut: 6}, {Head: "RING"}, {Head: "STATE"},
		{Head: "AGE", Right: true}, {Head: "CPU", Right: true}, {Head: "MEM", Right: true}, {Head: "PIDS", Right: true}, {Head: "COMMAND", Cut: 10}}}
	const last = 9 // of the columns
	if waits != nil {
		t.Columns = slices.Insert(t.Columns, last, shown.Column{Head: "WAITS", Right: true})
	}
	idLen := math.MaxInt
	if width > 0 && width < narrow {
		idLen = prefixLen(list)
	}
	for i, s := range list {
		row := []string{s.ID[:min(idLen, len(s.ID))], orDash(s.Name), orDash(s.Agent), ringText(s, now), stateText(s), ageText(now.Sub(s.StartedAt)), cpu[i],
			memText(s.Usage.Memory), strconv.FormatInt(s.Usage.PIDs, 10), commandText(s.Command)}
		if waits != nil {
			row = slices.Insert(row, last, waits[i])
		}
		t.Row(row...)
	}
	return t.String()
}

// prefixLen is how much of the ids tells them apart. What is cut off isn't marked: the beginning of an id is good as a REF.
func prefixLen(list []control.Sandbox) int {
	const least = 8
	ids := make([]string, len(list))
	for i, s := range list {
		ids[i] = s.ID
	}
	slices.Sort(ids)
	n := least
	for i := 1; i < len(ids); i++ {
		same := 0
		for same < min(len(ids[i-1]), len(ids[i])) && ids[i-1][same] == ids[i][same] {
			same++
		}
		n = max(n, same+1)
	}
	return n
}

func orDash(s string) string { return cmp.Or(s, "-") }

// ringText says both rings where what holds isn't what the run was admitted to.
func ringText(s control.Sandbox, now time.Time) string {
	if s.Ring == s.BaseRing {
		return strconv.Itoa(s.Ring)
	}
	text := fmt.Sprintf("%d→%d", s.BaseRing, s.Ring)
	if s.Ring < s.BaseRing && s.Elevation != nil {
		text += " " + leftText(s.Elevation.ExpiresAt.Sub(now))
	}
	return text
}

// leftText rounds up: an elevation with 0s left would be over.
func leftText(d time.Duration) string {
	return strconv.FormatInt(int64((max(d, 0)+time.Second-1)/time.Second), 10) + "s"
}

// stateText has a Q where the run's agent is in quarantine, and an S where a safety loop has stopped it.
func stateText(s control.Sandbox) string {
	text := string(s.State)
	if s.Quarantined {
		text += " Q"
	}
	if s.Stopped {
		text += " S"
	}
	return text
}

func ageText(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

func cpuText(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }

func memText(n int64) string {
	switch {
	case n < 1<<20:
		return fmt.Sprintf("%dK", n>>10)
	case n < 10<<30:
		return fmt.Sprintf("%dM", n>>20)
	}
	return fmt.Sprintf("%dG", n>>30)
}

// commandText quotes an argument with spaces, so that it can be told from two.
func commandText(argv []string) string {
	words := make([]string, len(argv))
	for i, a := range argv {
		words[i] = a
		if a == "" || strings.ContainsAny(a, " \t\n\"'") {
			words[i] = strconv.Quote(a)
		}
	}
	return strings.Join(words, " ")
}
