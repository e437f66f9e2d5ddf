// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"agentrun/internal/hinted"
	"agentrun/internal/verb"
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
	return &cli.Command{
		Name:  "saga",
		Usage: "work of several steps, undone if one of them fails",
		Description: `Steps are commands in sandboxes or calls to APIs on this machine. A step that fails is tried again; when it has
failed for good, what was done before is undone, last first. Every change is on the disk before it happens.

   agentrun saga run trip.yaml
   agentrun saga list
   agentrun saga resume              go on with every saga whose agentrun ended
   agentrun saga resume --undo ID    or undo it

Exit code: 0 committed, 1 aborted (all undone), 2 escalated (something couldn't be undone), 125 agentrun failed.`,
		Subcommands: []*cli.Command{
			{Name: "run", Usage: "run a saga to its end", ArgsUsage: "FILE.yaml", Action: verb.Action(g.sagaRun),
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "id", Usage: "`ID` of the saga, used never before (default: a random one)"},
					jsonFlag(),
				}},
			{Name: "list", Usage: "every saga and how it ended", Flags: []cli.Flag{jsonFlag()},
				Action: g.onSagas(sagaList)},
			{Name: "show", Usage: "a saga step by step", ArgsUsage: "ID", Flags: []cli.Flag{jsonFlag()},
				Action: g.onSagas(sagaShow)},
			{Name: "resume", Usage: "go on with a saga, or with all that were interrupted", ArgsUsage: "[ID]",
				Action: verb.Action(g.sagaResume), Flags: []cli.Flag{
					&cli.BoolFlag{Name: "undo", Usage: "undo it instead, the step under way included"}, jsonFlag(),
				}},
		},
	}
}

// onSagas makes an action of do, which gets the node's sagas and the arguments that the command takes.
func (g *global) onSagas(do func(c *cli.Context, s *sagarun.Session, a []string) error) cli.ActionFunc {
	return verb.Action(func(c *cli.Context, a []string) error {
		return g.sagas(func(s *sagarun.Session) error { return do(c, s, a) })
	})
}

func (g *global) sagas(do func(*sagarun.Session) error) error {
	s, err := sagarun.Open(&g.Node, os.Stderr, tellTransition)
	if err != nil {
		return err
	}
	defer s.Close()
	return do(s)
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

func (g *global) sagaRun(c *cli.Context, a []string) error {
	file, err := sagarun.Read(a[0])
	if err != nil {
		return err
	}
	id := c.String("id")
	if c.IsSet("id") && !sagas.Identifier(id) {
		return fmt.Errorf("--id %.80q: want letters and digits, inside also . _ : and -, at most 256", id)
	}
	return g.sagas(func(s *sagarun.Session) error {
		ctx, stop := stoppable(c.Context)
		defer stop()
		rec, err := s.Run(ctx, file, id)
		return sagaEnd(c, []sagas.Record{rec}, err)
	})
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
		text := fmt.Sprintf("%s %s", rec.ID, rec.State)
		if len(rec.Unresolved) > 0 {
			text += ": look at " + strings.Join(rec.Unresolved, ", ")
		}
		if perr := printResult(c, rec, "%s\n", text); perr != nil {
			return perr
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

func sagaStatus(r sagarun.Row) string {
	switch {
	case r.State.Final():
		return r.State.String()
	case r.Running:
		return r.State.String() + ", running"
	}
	return r.State.String() + ", interrupted"
}

func sagaList(c *cli.Context, s *sagarun.Session, _ []string) error {
	rows, err := s.List(c.Context)
	if err != nil {
		return err
	}
	const heads = "ID\tNAME\tSTATE\tSTEPS\tBEGUN\tUNRESOLVED"
	return printList(c, rows, heads, rows, func(r sagarun.Row) []any {
		done := 0
		for _, k := range r.Steps {
			done += count(k.State == sagas.StepCommitted)
		}
		steps := fmt.Sprintf("%d/%d", done, len(r.Steps))
		return []any{r.ID, r.Name, sagaStatus(r), steps, r.CreatedAt, strings.Join(r.Unresolved, " ")}
	})
}

func sagaShow(c *cli.Context, s *sagarun.Session, a []string) error {
	row, err := s.Get(c.Context, a[0])
	if err != nil {
		return sagaHint(err)
	}
	if !c.Bool("json") {
		fmt.Printf("saga %s (%s): %s\n", row.ID, row.Name, sagaStatus(row))
	}
	return printList(c, row, "STEP\tSTATE\tATTEMPTS\tSAYS", row.Steps, func(k sagas.StepRecord) []any {
		says := k.Error
		if k.UndoError != "" {
			says = "undo: " + k.UndoError
		}
		return []any{k.ID, k.State, k.Attempts, says}
	})
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

func (g *global) sagaResume(c *cli.Context, a []string) error {
	if len(a) == 0 && c.Bool("undo") {
		return hinted.New(errors.New("saga resume --undo takes one ID"), "agentrun saga list shows the ids")
	}
	return g.sagas(func(s *sagarun.Session) error {
		ctx, stop := stoppable(c.Context)
		defer stop()
		if len(a) == 1 {
			rec, err := s.Resume(ctx, a[0], c.Bool("undo"))
			return sagaEnd(c, []sagas.Record{rec}, sagaHint(err))
		}
		recs, err := s.ResumeAll(ctx)
		return sagaEnd(c, recs, err)
	})
}
