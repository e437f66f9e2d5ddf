// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"agentrun/hypervisor"
	"agentrun/internal/hinted"
	"agentrun/sagas"
	"agentrun/sagas/httpstep"
	"agentrun/sagas/sagafile"
	"agentrun/store"
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

// sagaSession is what every subcommand needs.
type sagaSession struct {
	db      *store.DB
	node    *hypervisor.Hypervisor // keeps the audit
	journal *sagas.Durable
	o       *sagas.Orchestrator
	means   sagafile.Means
}

func openSagas(g *global) (*sagaSession, error) {
	db, err := store.Open(g.stateDir, store.Options{})
	if err != nil {
		return nil, err
	}
	h, err := hypervisor.Open(g.hypervisor())
	if err != nil {
		_ = db.Close()
		return nil, err
	}
	s := &sagaSession{db: db, node: h, journal: sagas.NewDurable(db), means: sagafile.Means{Runner: &execRunner{g: g, out: os.Stderr}, API: httpstep.Client{}}}
	s.o, err = sagas.New(sagas.Options{Journal: s.journal, Now: time.Now, Audit: h, Progress: tellTransition})
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// close has nothing to report: every transaction has closed the state itself, every record of a saga was synced.
func (s *sagaSession) close() {
	_ = s.db.Close()
	_ = s.node.Close()
}

// ended puts the end of a saga on record, if this was it.
func (s *sagaSession) ended(rec sagas.Record, err error) (sagas.Record, error) {
	if err != nil || !rec.State.Final() {
		return rec, err
	}
	return rec, s.node.SagaEnded(rec)
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
	tell(os.Stderr, fmt.Sprintf("saga %s: %s: %s", t.SagaID, t.StepID, what), "")
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
	file, err := readSaga(name)
	if err != nil {
		return err
	}
	s, err := openSagas(g)
	if err != nil {
		return err
	}
	defer s.close()
	saga, err := file.Saga(s.means)
	if err != nil {
		return err
	}
	if c.IsSet("id") && !sagas.Identifier(c.String("id")) {
		return fmt.Errorf("--id %.80q: want letters and digits, inside also . _ : and -, at most 256", c.String("id"))
	}
	saga.ID = c.String("id")
	ctx, stop := stoppable(c.Context)
	defer stop()
	rec, err := s.ended(s.o.Run(ctx, saga))
	return sagaEnd(c, []sagas.Record{rec}, err)
}

func readSaga(name string) (sagafile.File, error) {
	f, err := os.Open(name)
	if err != nil {
		return sagafile.File{}, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, sagafile.MaxFileBytes+1))
	if err != nil {
		return sagafile.File{}, err
	}
	abs, err := filepath.Abs(name)
	if err != nil {
		return sagafile.File{}, err
	}
	return sagafile.Parse(name, data, filepath.Dir(abs))
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

// sagaRow is a record with what only the lock tells: an unfinished saga runs, or was interrupted.
type sagaRow struct {
	sagas.Record
	Running bool `json:"running"`
}

func (s *sagaSession) row(rec sagas.Record) (sagaRow, error) {
	if rec.State.Final() {
		return sagaRow{Record: rec}, nil
	}
	l, err := s.journal.Lock(rec.ID)
	if err == nil {
		l.Unlock()
	} else if !errors.Is(err, sagas.ErrBusy) {
		return sagaRow{}, err
	}
	return sagaRow{rec, err != nil}, nil
}

func (r sagaRow) status() string {
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
	defer s.close()
	rows := []sagaRow{}
	err = s.journal.List(c.Context, func(rec sagas.Record) error {
		row, err := s.row(rec)
		rows = append(rows, row)
		return err
	})
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
		fmt.Fprintf(w, "%s\t%s\t%s\t%d/%d\t%s\t%s\n", r.ID, r.Name, r.status(), done, len(r.Steps),
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
	defer s.close()
	rec, err := s.journal.Get(c.Context, id)
	if err != nil {
		return sagaHint(err)
	}
	row, err := s.row(rec)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(row)
	}
	fmt.Printf("saga %s (%s): %s\n", row.ID, row.Name, row.status())
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
	defer s.close()
	ctx, stop := stoppable(c.Context)
	defer stop()
	if c.NArg() == 1 {
		rec, err := s.resume(ctx, c.Args().First(), c.Bool("undo"))
		return sagaEnd(c, []sagas.Record{rec}, sagaHint(err))
	}
	if c.Bool("undo") {
		return hinted.New(errors.New("saga resume --undo takes one ID"), "agentrun saga list shows the ids")
	}
	return s.resumeAll(ctx, c)
}

// resumeAll goes on with what nobody runs. What one of them meets doesn't stop the others.
func (s *sagaSession) resumeAll(ctx context.Context, c *cli.Context) error {
	var recs []sagas.Record
	var errs []error
	err := s.journal.List(ctx, func(rec sagas.Record) error {
		if rec.State.Final() || ctx.Err() != nil {
			return ctx.Err()
		}
		rec, err := s.resume(ctx, rec.ID, false)
		if err != nil && !errors.Is(err, sagas.ErrBusy) {
			errs = append(errs, err)
		}
		recs = append(recs, rec)
		return nil
	})
	return sagaEnd(c, recs, errors.Join(append(errs, err)...))
}

func (s *sagaSession) resume(ctx context.Context, id string, undo bool) (sagas.Record, error) {
	definition, err := s.journal.Definition(ctx, id)
	if err != nil {
		return sagas.Record{}, err
	}
	file, err := sagafile.Decode(definition)
	if err != nil {
		return sagas.Record{}, fmt.Errorf("saga %s: %w", id, err)
	}
	saga, err := file.Saga(s.means)
	if err != nil {
		return sagas.Record{}, err
	}
	before, err := s.journal.Get(ctx, id)
	if err != nil || before.State.Final() {
		return before, err
	}
	// A kill of its agent may have decided about it (H-21): nothing begins before that is followed.
	order, ordered, err := s.node.SagaOrder(ctx, id)
	switch {
	case err != nil:
		return before, err
	case undo || ordered && order.Substitute == "":
		return s.ended(s.o.Abort(ctx, id, saga.Steps))
	case ordered:
		if before, err = s.o.HandOff(ctx, id, order.Substitute); err != nil {
			return before, err
		}
	}
	return s.ended(s.o.Resume(ctx, id, saga.Steps))
}
