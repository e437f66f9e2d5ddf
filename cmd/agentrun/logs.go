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

func (l *liveVerbs) logs() *cli.Command {
	return l.verb(&cli.Command{
		Name:      "logs",
		Usage:     "the log of a run's calls, and what it has written; of runs that are over, too",
		ArgsUsage: "REF",
		Description: `The log of the run's gateway, one line of JSON for each record, and after it what a detached run has written. REF is a live run, or
one that is over: its id, the beginning of that, or its name. How long both are kept: docs/logs.md. On a terminal, what would act on it is written out.

   agentrun logs planner
   agentrun logs k3x7 --calls | jq 'select(.level == "ERROR")'

Exit code: 0; 1 no such run, or nothing of it is kept; 2 usage.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "calls", Usage: "the log of the calls only, and nothing but its lines"},
			&cli.BoolFlag{Name: "raw", Usage: "the bytes as they are, also on a terminal"},
		},
		Action: func(c *cli.Context) error {
			a, err := refs(c, 1, 1)
			if err != nil {
				return err
			}
			run, err := l.runOfLogs(c.Context, a[0])
			if err != nil {
				return err
			}
			return l.writeLogs(run, c.Bool("calls"), isTerminal(os.Stdout) && !c.Bool("raw"))
		},
	})
}

// runOfLogs gives the id of the run that ref names, live or over.
func (l *liveVerbs) runOfLogs(ctx context.Context, ref string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	live, err := l.runs().Find(ctx, ref)
	if err == nil {
		return live.ID, nil
	}
	over, err := l.findEnded(ref, err)
	if err == nil {
		return over.ID, nil
	}
	kept, lerr := l.g.Outputs().Runs(ref)
	switch {
	case lerr != nil:
		return "", lerr
	case len(kept) == 1:
		return kept[0], nil
	case len(kept) > 1:
		return "", hinted.New(fmt.Errorf("run %.64q fits %d runs", ref, len(kept)), "give more of the id")
	}
	return "", refusal(fmt.Sprintf("logs of run %q", ref), err)
}

func (l *liveVerbs) writeLogs(run string, callsOnly, safe bool) error {
	files := []string{l.g.Outputs().Calls(run)}
	if !callsOnly {
		files = append(files, l.g.Outputs().File(run))
	}
	var to io.Writer = os.Stdout
	if safe {
		s := &shown.Writer{To: to}
		defer s.Flush()
		to = s
	}
	found := false
	for _, name := range files {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		found = true
		_, err = io.Copy(to, f)
		f.Close()
		if err != nil {
			return fmt.Errorf("logs of run %s: %w", run, err)
		}
	}
	if !found {
		return hinted.New(fmt.Errorf("logs of run %s: nothing is kept: it has asked nothing of its gateway, and isn't detached", run), "agentrun audit show tells what was decided")
	}
	return nil
}
