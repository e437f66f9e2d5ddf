// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/urfave/cli/v2"

	"agentrun/internal/hinted"
)

func (l *liveVerbs) output() *cli.Command {
	return l.verb(&cli.Command{
		Name:      "output",
		Aliases:   []string{"logs"},
		Usage:     "what a detached run has written",
		ArgsUsage: "REF",
		Description: `Its stdout and stderr, up to the run's --max-output. On a terminal, what would act on it is written out (\u001b); --raw and anything
that is no terminal get the bytes as they are. The log of a run's calls is another thing: docs/logs.md.

   agentrun output planner
   agentrun output planner --follow
   agentrun output planner > planner.txt

Exit code: 0; 1 no such run, or it isn't detached; 2 usage.`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "go on until the run ends"},
			&cli.BoolFlag{Name: "raw", Usage: "the bytes as they are, also on a terminal"},
		},
		BashComplete: l.completeRuns,
		Action: func(c *cli.Context) error {
			a, err := refs(c, 1, 1)
			if err != nil {
				return err
			}
			safe := isTerminal(os.Stdout) && !c.Bool("raw")
			return l.writeOutput(c.Context, a[0], c.Bool("follow"), os.Stdout, safe)
		},
	})
}

func (l *liveVerbs) writeOutput(ctx context.Context, ref string, follow bool, to io.Writer, safe bool) error {
	asking, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	r, err := l.findOne(asking, ref)
	if err != nil {
		return err
	}
	if !r.Detached {
		return hinted.New(fmt.Errorf("output of %s: it goes where the agentrun exec that started it sends it", r.label()), "agentrun exec --detach starts runs whose output is kept")
	}
	if !follow {
		ctx = asking
	}
	if safe {
		s := &safeWriter{w: to}
		defer s.flush()
		to = s
	}
	return refusal("output of "+r.label(), r.by.Output(ctx, r.ID, follow, to))
}

// safeWriter writes out what a terminal would obey; line ends and tabs stay. What may be half a character or line end waits for
// the rest.
type safeWriter struct {
	w    io.Writer
	part []byte
}

func (s *safeWriter) Write(p []byte) (int, error) {
	text := append(s.part, p...)
	whole := len(text)
	for i := max(0, len(text)-utf8.UTFMax+1); i < len(text); i++ {
		if utf8.RuneStart(text[i]) && !utf8.FullRune(text[i:]) {
			whole = i
			break
		}
	}
	if whole > 0 && text[whole-1] == '\r' {
		whole-- // half of a line end, perhaps
	}
	s.part = bytes.Clone(text[whole:])
	if _, err := io.WriteString(s.w, safeText(string(text[:whole]))); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (s *safeWriter) flush() {
	_, _ = io.WriteString(s.w, safeText(string(s.part)))
	s.part = nil
}

// safeText leaves "\r\n" as a line end; a lone carriage return could write over what stands there.
func safeText(text string) string {
	lines := strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\t")
	for i, part := range lines {
		lines[i] = visible(part)
	}
	return strings.Join(lines, "\t")
}
