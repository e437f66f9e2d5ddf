// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"agentrun/control"
	"agentrun/internal/shown"
)

func (l *liveVerbs) top() *cli.Command {
	return l.verb(&cli.Command{
		Name:  "top",
		Usage: "watch the live runs, the busiest first",
		Description: `CPU is of one processor: 100% is one used wholly since the last look. WAITS is what the run waited for most of the last 10 s, for lack
of memory, processor or disk; - on cgroup v1, which doesn't tell. On a terminal q ends it; elsewhere a table is printed
for each look.

   agentrun top
   agentrun top --interval 5s --agent planner-1
   agentrun top --once
   agentrun top --once --json | jq '.sandboxes[] | select(.cpu_percent > 50) | .id'

Exit code: 0; 1 if a supervisor doesn't answer (the others are shown); 2 usage.`,
		Flags: append(filterFlags(),
			&cli.DurationFlag{Name: "interval", Usage: "`TIME` between two looks, 100ms to 1h", Value: time.Second},
			&cli.BoolFlag{Name: "once", Usage: "print one table, over one interval"},
			&cli.BoolFlag{Name: "json", Usage: "print JSON, one line for each look"},
		),
		Action: l.topAction,
	})
}

// look is the live runs at an instant, with what each used since the look before.
type look struct {
	At        time.Time `json:"at"`
	Sandboxes []topRun  `json:"sandboxes"`
	Error     string    `json:"error,omitempty"` // supervisors that didn't answer
	err       error     // the same
	used      map[string]time.Duration
}

type topRun struct {
	control.Sandbox
	CPUPercent float64 `json:"cpu_percent"` // of one processor, since the look before
}

func (l *liveVerbs) look(ctx context.Context, fits func(control.Sandbox) bool, before look) look {
	list, err := l.list(ctx, fits)
	now := look{At: l.now().UTC(), Sandboxes: []topRun{}, err: incomplete(err), used: map[string]time.Duration{}}
	if err != nil {
		now.Error = err.Error()
	}
	for _, s := range list {
		now.used[s.ID] = s.Usage.CPUTime
		r := topRun{Sandbox: s}
		if was, ok := before.used[s.ID]; ok {
			r.CPUPercent = percent(s.Usage.CPUTime-was, now.At.Sub(before.At))
		}
		now.Sandboxes = append(now.Sandboxes, r)
	}
	slices.SortStableFunc(now.Sandboxes, func(a, b topRun) int {
		return cmp.Or(cmp.Compare(b.CPUPercent, a.CPUPercent), strings.Compare(a.ID, b.ID))
	})
	return now
}

func percent(used, of time.Duration) float64 {
	if used <= 0 || of <= 0 {
		return 0
	}
	return float64(used*1000/of) / 10
}

func (l *liveVerbs) topAction(c *cli.Context) error {
	fits, err := filterOf(c)
	if err != nil {
		return err
	}
	every := c.Duration("interval")
	if every < 100*time.Millisecond || every > time.Hour {
		return usagef(c.Command.HelpName+" --interval 2s", "--interval %v: want 100ms to 1h", every)
	}
	ctx, stop := signal.NotifyContext(c.Context, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	defer stop()
	show := printLook
	if c.Bool("json") {
		show = printLookJSON
	} else if _, _, ok := terminalSize(os.Stdout); ok && !c.Bool("once") {
		onScreen, leave, err := takeScreen(ctx)
		if err != nil {
			return err
		}
		defer leave()
		ctx, show = onScreen, drawLook
	}
	return l.watch(ctx, c.Bool("once"), every, fits, show)
}

// watch shows one look after the other until ctx ends. Which supervisors were silent last decides about the exit code.
func (l *liveVerbs) watch(ctx context.Context, once bool, every time.Duration, fits func(control.Sandbox) bool, show func(look) error) error {
	ticks, stop := l.tick(every)
	defer stop()
	last := l.look(ctx, fits, look{})
	if !once {
		if err := show(last); err != nil {
			return err
		}
	}
	for {
		select {
		case <-ctx.Done():
			return last.err
		case <-ticks:
		}
		now := l.look(ctx, fits, last)
		if ctx.Err() != nil {
			return last.err
		}
		last = now
		if err := show(last); err != nil || once {
			return errors.Join(err, last.err)
		}
	}
}

func printLookJSON(v look) error { return printLine(v) }

func printLook(v look) error {
	_, err := fmt.Println(strings.Join(topLines(v, 0), "\n") + "\n")
	return err
}

// topLines are a look as a terminal of that width has it.
func topLines(v look, width int) []string {
	var percents float64
	var memory, processes int64
	var frozen, paused, held, raised int
	list, cpu, pressed := make([]control.Sandbox, len(v.Sandboxes)), make([]string, len(v.Sandboxes)), make([]string, len(v.Sandboxes))
	for i, r := range v.Sandboxes {
		percents += r.CPUPercent
		memory += r.Usage.Memory
		processes += r.Usage.PIDs
		frozen += count(r.State == control.Frozen)
		paused += count(r.State == control.Paused)
		held += count(r.Quarantined)
		raised += count(r.Ring < r.BaseRing)
		list[i], cpu[i], pressed[i] = r.Sandbox, fmt.Sprintf("%.1f%%", r.CPUPercent), worst(r.Usage.Pressure)
	}
	lines := []string{
		fmt.Sprintf("%s  %d runs: %d elevated, %d frozen, %d paused, %d in quarantine",
			v.At.Format(time.TimeOnly), len(v.Sandboxes), raised, frozen, paused, held),
		fmt.Sprintf("cpu %.1f%%  memory %s  processes and threads %d", percents, memText(memory), processes),
	}
	if v.Error != "" {
		lines = append(lines, "not complete: "+oneLine(v.Error))
	}
	if width > 0 {
		for i, line := range lines {
			lines[i] = shown.Clip(line, width)
		}
	}
	return append(lines, strings.Split(strings.TrimSuffix(runTable(list, cpu, pressed, width, v.At), "\n"), "\n")...)
}

// worst is what a run waits for most, a dash where the kernel tells of no run what it waits for.
func worst(p *control.Pressure) string {
	switch {
	case p == nil:
		return "-"
	case p.Memory >= max(p.CPU, p.IO):
		return fmt.Sprintf("mem %.0f%%", p.Memory)
	case p.CPU >= p.IO:
		return fmt.Sprintf("cpu %.0f%%", p.CPU)
	}
	return fmt.Sprintf("io %.0f%%", p.IO)
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}
