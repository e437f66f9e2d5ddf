// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"github.com/aymanbagabas/go-udiff"
	"github.com/urfave/cli/v2"

	"agentrun/internal/hinted"
	"agentrun/internal/shown"
	"agentrun/internal/verb"
	"agentrun/supervisor"
	"agentrun/supervisor/changes"
	"agentrun/supervisor/sandboxes"
)

// changesCommands look at, apply and throw away what a run with --workspace-mode overlay has changed.
func changesCommands(g *global) []*cli.Command {
	about := `

RUN is a run with --workspace-mode overlay that is over, by its id, the beginning of it, or its name: then the newest that is called so.
Or it is a kept sandbox that has such a workspace: then all that it has changed over its starts. One that runs may be looked at only,
and is paused meanwhile.

`
	return []*cli.Command{
		{
			Name: "diff", Usage: "what a run has changed in its overlaid workspace", ArgsUsage: "RUN",
			Description: `Compares what the run has left with the workspace as it is now. What the host would run, or what says what is run, is marked as risky;
what was changed on the host since the run began, as a conflict.` + about + `   agentrun diff k3x7 --stat
   agentrun diff k3x7 --json | jq '.[] | select(.risky)'

Exit code: 0; 125 no such run, or another error.`,
			Flags:  []cli.Flag{&cli.BoolFlag{Name: "stat", Usage: "a line for each path, and no content"}, jsonFlag()},
			Action: g.onChanges(supervisor.Look, g.diff),
		},
		{
			Name: "apply", Usage: "bring a run's changes into its workspace", ArgsUsage: "RUN [PATH…]",
			Description: `Applies all changes of the run, or those at and below the paths. Nothing is applied where one of them is in conflict, or risky without
--risky. No link is followed. What is applied belongs to the workspace's owner. When nothing is left to apply, the run's changes are forgotten.` + about + `   agentrun apply k3x7
   agentrun apply k3x7 src README.md

Exit code: 0; 125 refused, no such run, or another error.`,
			Flags:  []cli.Flag{&cli.BoolFlag{Name: "risky", Usage: "what the host runs, too"}, jsonFlag()},
			Action: g.onChanges(supervisor.Apply, g.apply),
		},
		{
			Name: "discard", Usage: "throw a run's changes away", ArgsUsage: "RUN",
			Description: `The workspace stays as it is: what wasn't applied is gone.` + about + `   agentrun discard k3x7

Exit code: 0; 125 no such run, or another error.`,
			Flags: []cli.Flag{jsonFlag()},
			Action: g.onChanges(supervisor.Discard, func(c *cli.Context, s *changes.Set, _ []string) error {
				if err := s.Discard(); err != nil {
					return err
				}
				return printResult(c, map[string]string{"discarded": s.Run()}, "discarded %s\n", s.Run())
			}),
		},
	}
}

func (g *global) onChanges(use supervisor.Use, do func(c *cli.Context, s *changes.Set, paths []string) error) cli.ActionFunc {
	return verb.Action(func(c *cli.Context, a []string) error {
		s, done, err := g.SandboxChanges(c.Context, a[0], operatorName(), use, g.FindRun)
		if errors.Is(err, sandboxes.ErrNone) || sandboxes.CheckName(a[0]) != nil {
			s, err = g.runChanges(a[0])
			done = s.Close
		}
		if err != nil {
			return err
		}
		defer done()
		return do(c, s, a[1:])
	})
}

// runChanges are those of a run: by its id, or its name, then the newest.
func (g *global) runChanges(ref string) (*changes.Set, error) {
	s, err := g.Changes().Open(ref)
	if errors.Is(err, changes.ErrNone) {
		if r, ferr := liveOf(g).findEnded(ref, err); ferr == nil {
			s, err = g.Changes().Open(r.ID)
		}
	}
	return s, err
}

// mostShown of a file's text is compared.
const mostShown = 1 << 20

func (g *global) diff(c *cli.Context, s *changes.Set, _ []string) (err error) {
	list, err := s.List()
	if err != nil {
		return err
	}
	if c.Bool("json") {
		if list == nil {
			list = []changes.Change{}
		}
		return printJSON(list)
	}
	out := bufio.NewWriter(os.Stdout)
	defer func() { err = cmp.Or(err, out.Flush()) }() // who reviews what a full disk has taken must not have half of it
	var to io.Writer = out
	if isTerminal(os.Stdout) {
		w := &shown.Writer{To: to}
		defer w.Flush()
		to = w
	}
	seen := map[string]bool{} // an agent has any number of names for a file at no cost
	for _, ch := range list {
		fmt.Fprintln(to, statLine(ch))
		if c.Bool("stat") {
			continue
		}
		first := s.SecondOf(ch)
		if seen[first] {
			fmt.Fprintf(to, "  content as that of %s\n", shown.Line(first))
			continue
		}
		seen[cmp.Or(first, ch.Path)] = true
		before, after, ok := s.Texts(ch, mostShown)
		if !ok {
			if !ch.Folder && ch.Link == "" {
				fmt.Fprintln(to, "  content isn't shown: it is or was no text, or more than 1 MiB")
			}
			continue
		}
		fmt.Fprint(to, udiff.Unified(oldName(ch), newName(ch), before, after))
	}
	return nil
}

// statLine is one change for people: the path is the agent's, so it is quoted where it could be taken for something else.
func statLine(ch changes.Change) string {
	line := fmt.Sprintf("%-8s %s", ch.Kind, shown.Line(ch.Path))
	switch {
	case ch.Folder:
		line += "/"
		if ch.Kind != changes.Deleted && ch.Mode&0o022 != 0 {
			line += fmt.Sprintf(" (%04o)", ch.Mode) // others may write in it
		}
	case ch.Link != "":
		line += " -> " + shown.Line(ch.Link)
	case ch.Kind != changes.Deleted:
		line += fmt.Sprintf(" (%d bytes, %04o)", ch.Size, ch.Mode)
	}
	if ch.Risky != "" {
		line += "  RISKY: " + shown.Line(ch.Risky)
	}
	if ch.Conflict != "" {
		line += "  CONFLICT: " + shown.Line(ch.Conflict)
	}
	return line
}

func oldName(ch changes.Change) string {
	if ch.Kind == changes.Added {
		return os.DevNull
	}
	return path.Join("a", shown.Line(ch.Path))
}

func newName(ch changes.Change) string {
	if ch.Kind == changes.Deleted {
		return os.DevNull
	}
	return path.Join("b", shown.Line(ch.Path))
}

func (g *global) apply(c *cli.Context, s *changes.Set, paths []string) error {
	for i, p := range paths {
		if p == "" {
			return hinted.New(errors.New("PATH is empty"), "leave it out to apply everything: agentrun apply "+s.Run())
		}
		paths[i] = path.Clean(p)
	}
	applied, err := s.Apply(paths, c.Bool("risky"))
	if c.Bool("json") {
		if applied == nil {
			applied = []changes.Change{}
		}
		if jerr := printJSON(map[string]any{"run": s.Run(), "workspace": s.Workspace(), "applied": applied}); err == nil {
			err = jerr
		}
		return err
	}
	for _, ch := range applied {
		fmt.Println(statLine(ch))
	}
	return err
}
