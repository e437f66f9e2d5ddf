// SPDX-License-Identifier: Apache-2.0

// Package sagas runs work of several steps of which each may have to be undone (H-18 to H-20).
//
// It guarantees: a step that fails is tried again (two more times unless told otherwise); when it has failed for good, every
// step that was done is undone, last first, by the orchestrator and not by the agent. Each change of state is in the
// journal before what it stands for happens, so a saga whose process died goes on where it was. A step or undo that was
// under way at that moment, or that ended without saying whether it happened, is called again only if it is declared
// idempotent, and then with the same key; otherwise nobody knows whether it happened, it counts as failed, what was done
// before is undone, and the saga ends as Escalated: "all undone" would be a guess. One process runs a saga at a time.
//
//	o, err := sagas.New(sagas.Options{Journal: sagas.NewDurable(db), Now: time.Now})
//	rec, err := o.Run(ctx, sagas.Saga{Name: "trip", Steps: []sagas.Step{
//		{ID: "flight", Execute: book, Undo: cancel},
//		{ID: "hotel", Execute: reserve, Undo: release, Idempotent: true},
//	}})
//	// err == nil: it came to its end, and rec.State says to which.
//
// Errors: an error of Run or Resume means that the saga stopped before its end: the journal or the audit refused, or the
// context ended. What had happened is in the journal, Resume goes on. ErrTransition is a change of state that H-18
// doesn't have; ErrBusy a saga that somebody runs; ErrExists and ErrNotFound speak about ids.
//
// It does not protect against what a step does: a Go step runs with all our rights (commands are run in a sandbox by
// whoever implements sagafile.Runner), and one that neither returns nor heeds its context is left behind running. A fatal
// error of the Go runtime ends us all; panics and Goexit don't. Nor does it know whether an undo really undid.
//
// It fails closed: without a word in the journal and in the audit nothing is started.
package sagas
