// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"agentrun/internal/hinted"
	"agentrun/sagas"
	"agentrun/supervisor"
	"agentrun/supervisor/sagarun"
)

// What a saga's end means as an exit code (docs/exit-codes.md).
const (
	exitAborted   = 1
	exitEscalated = 2
)

func sagaCommand(g *global) *cli.Command {
	asJSON := func(more ...cli.Flag) []cli.Flag {
		return append(more, &cli.BoolFlag{Name: "json", Usage: "print JSON"})
	}
	return &cli.Command{
		Name:  "saga",
		Usage: "work of several steps, undone if one of them fails",

		HideHelpCommand: true,
		Description: `Steps are commands in sandboxes or calls to APIs on this machine. A step that fails is tried again; when it has
failed for good, what was done before is undone, last first. Every change is on the disk before it happens.

   agentrun saga run trip.yaml
   agentrun saga list
   agentrun saga resume              go on with every saga whose agentrun ended
   agentrun saga resume --undo ID    or undo it

Exit code: 0 committed, 1 aborted (all undone), 2 escalated (something couldn't be undone), 125 agentrun failed.`,
		Subcommands: []*cli.Command{
			{Name: "run", Usage: "run a saga to its end", ArgsUsage: "FILE.yaml", OnUsageError: usageError,
				Flags:  asJSON(&cli.StringFlag{Name: "id", Usage: "`ID` of the saga, used never before (default: a random one)"}),
				Action: func(c *cli.Context) error { return sagaRun(g, c) }},
			{Name: "list", Usage: "every saga and how it ended", OnUsageError: usageError, Flags: asJSON(),
				Action: func(c *cli.Context) error { return sagaList(g, c) }},
			{Name: "show", Usage: "a saga step by step", ArgsUsage: "ID", OnUsageError: usageError, Flags: asJSON(),
				Action: func(c *cli.Context) error { return sagaShow(g, c) }},
			{Name: "resume", Usage: "go on with a saga, or with all that were interrupted", ArgsUsage: "[ID]", OnUsageError: usageError,
				Flags:  asJSON(&cli.BoolFlag{Name: "undo", Usage: "undo it instead, the step under way included"}),
				Action: func(c *cli.Context) error { return sagaResume(g, c) }},
		},
	}
}

func openSagas(g *global) (*sagarun.Session, error) {
	return sagarun.Open(&g.Node, os.Stderr, tellTransition)
}

// tellTransition is called when the journal has it: what is told is so even if the machine stops now.
func tellTransition(t sagas.Transition) {
	what := t.State.String()
	switch {
	case t.Undo:
		what = "undoing"
	case t.State == sagas.StepExecuting && t.AttemptCount > 1:
		what = fmt.Sprintf("executing, attempt %d", t.AttemptCount)
	}
	if t.Error != "" {
		what += ": " + t.Error
	}
	supervisor.Tell(os.Stderr, fmt.Sprintf("saga %s: %s: %s", t.SagaID, t.StepID, what), "")
}

// stoppable ends with the first signal. The saga then stops where it is; resume goes on.
func stoppable(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
}

func sagaRun(g *global, c *cli.Context) error {
	name, err := oneArg(c, "FILE.yaml")
	if err != nil {
		return err
	}
	file, err := sagarun.Read(name)
	if err != nil {
		return err
	}
	if c.IsSet("id") && !sagas.Identifier(c.String("id")) {
		return fmt.Errorf("--id %.80q: want letters and digits, inside also . _ : and -, at most 256", c.String("id"))
	}
	s, err := openSagas(g)
	if err != nil {
		return err
	}
	defer s.Close()
	ctx, stop := stoppable(c.Context)
	defer stop()
	rec, err := s.Run(ctx, file, c.String("id"))
	return sagaEnd(c, []sagas.Record{rec}, err)
}

// sagaEnd prints how sagas ended and gives the worst exit code of them.
func sagaEnd(c *cli.Context, recs []sagas.Record, err error) error {
	code := 0
	for _, rec := range recs {
		if rec.ID == "" {
			continue
		}
		switch rec.State {
		case sagas.Aborted:
			code = max(code, exitAborted)
		case sagas.Escalated:
			code = max(code, exitEscalated)
		}
		if jerr := printSaga(c, rec); jerr != nil {
			return jerr
		}
		if err != nil && !rec.State.Final() {
			if errors.Is(err, context.Canceled) {
				err = fmt.Errorf("saga %s: stopped", rec.ID)
			}
			err = hinted.New(err, "agentrun saga resume "+rec.ID+" goes on; with --undo it undoes")
		}
	}
	if err != nil {
		return err
	}
	if code > 0 {
		return exitError(code)
	}
	return nil
}

func printSaga(c *cli.Context, rec sagas.Record) error {
	if c.Bool("json") {
		return printJSON(rec)
	}
	text := fmt.Sprintf("%s %s", rec.ID, rec.State)
	if len(rec.Unresolved) > 0 {
		text += ": look at " + strings.Join(rec.Unresolved, ", ")
	}
	fmt.Println(text)
	return nil
}

func sagaStatus(r sagarun.Row) string {
	switch {
	case r.State.Final():
		return r.State.String()
	case r.Running:
		return r.State.String() + ", running"
	}
	return r.State.String() + ", interrupted"
}

func sagaList(g *global, c *cli.Context) error {
	if c.NArg() > 0 {
		return hinted.New(errors.New("saga list takes no argument"), "agentrun saga show ID")
	}
	s, err := openSagas(g)
	if err != nil {
		return err
	}
	defer s.Close()
	rows, err := s.List(c.Context)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(rows)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tNAME\tSTATE\tSTEPS\tBEGUN\tUNRESOLVED")
	for _, r := range rows {
		done := 0
		for _, k := range r.Steps {
			if k.State == sagas.StepCommitted {
				done++
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d/%d\t%s\t%s\n", r.ID, r.Name, sagaStatus(r), done, len(r.Steps),
			r.CreatedAt.Format(time.RFC3339), strings.Join(r.Unresolved, " "))
	}
	return w.Flush()
}

func sagaShow(g *global, c *cli.Context) error {
	id, err := oneArg(c, "ID")
	if err != nil {
		return err
	}
	s, err := openSagas(g)
	if err != nil {
		return err
	}
	defer s.Close()
	row, err := s.Get(c.Context, id)
	if err != nil {
		return sagaHint(err)
	}
	if c.Bool("json") {
		return printJSON(row)
	}
	fmt.Printf("saga %s (%s): %s\n", row.ID, row.Name, sagaStatus(row))
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "STEP\tSTATE\tATTEMPTS\tSAYS")
	for _, k := range row.Steps {
		says := k.Error
		if k.UndoError != "" {
			says = "undo: " + k.UndoError
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\n", k.ID, k.State, k.Attempts, oneLine(says))
	}
	return w.Flush()
}

func sagaHint(err error) error {
	switch {
	case errors.Is(err, sagas.ErrNotFound):
		return hinted.New(err, "agentrun saga list shows the ids")
	case errors.Is(err, sagas.ErrBusy):
		return hinted.New(err, "its agentrun is alive; agentrun saga show says how far it is")
	}
	return err
}

func sagaResume(g *global, c *cli.Context) error {
	if c.NArg() > 1 {
		return hinted.New(errors.New("saga resume takes one ID or none"), "agentrun saga resume ID")
	}
	s, err := openSagas(g)
	if err != nil {
		return err
	}
	defer s.Close()
	ctx, stop := stoppable(c.Context)
	defer stop()
	if c.NArg() == 1 {
		rec, err := s.Resume(ctx, c.Args().First(), c.Bool("undo"))
		return sagaEnd(c, []sagas.Record{rec}, sagaHint(err))
	}
	if c.Bool("undo") {
		return hinted.New(errors.New("saga resume --undo takes one ID"), "agentrun saga list shows the ids")
	}
	recs, err := s.ResumeAll(ctx)
	return sagaEnd(c, recs, err)
}
