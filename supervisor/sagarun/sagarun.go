// SPDX-License-Identifier: Apache-2.0

// Package sagarun runs sagas on a node (H-18 to H-20): it joins the orchestrator, which package sagas has, to
// the node's state and audit, and to what its steps are, commands in sandboxes of their own.
//
//	s, err := sagarun.Open(node, os.Stderr, tell)
//	defer s.Close()
//	record, err := s.Run(ctx, file, "")
//
// Guarantees. Every change is on the disk before it happens, and the end of a saga is on record. A step's
// command is an agentrun exec, contained and admitted as any: it dies with this process. The end of a context
// stops a saga where it is; Resume goes on.
//
// Errors are those of package sagas: sagas.ErrNotFound, sagas.ErrBusy where another process runs it. What it
// does not protect against: a saga file is its operator's, and can name any command that a sandbox may run.
package sagarun

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"agentrun/hypervisor"
	"agentrun/sagas"
	"agentrun/sagas/httpstep"
	"agentrun/sagas/sagafile"
	"agentrun/store"
	"agentrun/supervisor"
)

// Session is open on a node's sagas.
type Session struct {
	db      *store.DB
	node    *hypervisor.Hypervisor // keeps the audit
	journal *sagas.Durable
	o       *sagas.Orchestrator
	means   sagafile.Means
}

// Open opens the node's sagas. What steps print goes to out; progress hears of each transition when it is on
// the disk.
func Open(n *supervisor.Node, out io.Writer, progress func(sagas.Transition)) (*Session, error) {
	db, err := store.Open(n.StateDir, store.Options{})
	if err != nil {
		return nil, err
	}
	h, err := n.Open()
	if err != nil {
		_ = db.Close()
		return nil, err
	}
	s := &Session{
		db: db, node: h, journal: sagas.NewDurable(db),
		means: sagafile.Means{Runner: &execRunner{node: n, out: out, notNow: h.NotNow, grant: h.GrantFor}, API: httpstep.Client{}},
	}
	s.o, err = sagas.New(sagas.Options{Journal: s.journal, Now: time.Now, Audit: h, Progress: progress})
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Close has nothing to report: every transaction has closed the state itself, every record of a saga was
// synced.
func (s *Session) Close() {
	_ = s.db.Close()
	_ = s.node.Close()
}

// Read returns a saga's file. Paths in it count from its folder.
func Read(name string) (sagafile.File, error) {
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

// Run runs a saga to its end. Its id must never have been used; empty: a random one.
func (s *Session) Run(ctx context.Context, file sagafile.File, id string) (sagas.Record, error) {
	saga, err := file.Saga(s.means)
	if err != nil {
		return sagas.Record{}, err
	}
	saga.ID = id
	return s.ended(s.o.Run(ctx, saga))
}

// ended puts the end of a saga on record, if this was it.
func (s *Session) ended(rec sagas.Record, err error) (sagas.Record, error) {
	if err != nil || !rec.State.Final() {
		return rec, err
	}
	return rec, s.node.SagaEnded(rec)
}

// Row is a record with what only the lock tells: an unfinished saga runs, or was interrupted.
type Row struct {
	sagas.Record
	Running bool `json:"running"`
}

func (s *Session) row(rec sagas.Record) (Row, error) {
	if rec.State.Final() {
		return Row{Record: rec}, nil
	}
	l, err := s.journal.Lock(rec.ID)
	if err == nil {
		l.Unlock()
	} else if !errors.Is(err, sagas.ErrBusy) {
		return Row{}, err
	}
	return Row{rec, err != nil}, nil
}

// List returns every saga.
func (s *Session) List(ctx context.Context) ([]Row, error) {
	rows := []Row{}
	err := s.journal.List(ctx, func(rec sagas.Record) error {
		row, err := s.row(rec)
		rows = append(rows, row)
		return err
	})
	return rows, err
}

// Get returns one.
func (s *Session) Get(ctx context.Context, id string) (Row, error) {
	rec, err := s.journal.Get(ctx, id)
	if err != nil {
		return Row{}, err
	}
	return s.row(rec)
}

// ResumeAll goes on with every saga that nobody runs. What one of them meets doesn't stop the others.
func (s *Session) ResumeAll(ctx context.Context) (recs []sagas.Record, err error) {
	var errs []error
	err = s.journal.List(ctx, func(rec sagas.Record) error {
		if rec.State.Final() || ctx.Err() != nil {
			return ctx.Err()
		}
		rec, err := s.Resume(ctx, rec.ID, false)
		if err != nil && !errors.Is(err, sagas.ErrBusy) {
			errs = append(errs, err)
		}
		recs = append(recs, rec)
		return nil
	})
	return recs, errors.Join(append(errs, err)...)
}

// Resume goes on with a saga that nobody runs, to its end, or undoes it.
func (s *Session) Resume(ctx context.Context, id string, undo bool) (sagas.Record, error) {
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
