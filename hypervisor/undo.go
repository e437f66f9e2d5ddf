// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"agentrun/audit"
	"agentrun/internal/read"
	"agentrun/rings"
	"agentrun/store"
)

// Calls of tools that declare an undo can be undone for as long as the tool's window lasts (H-7): by an operator, while the run lives
// and after its end, and by the kill of the run (H-21). What that takes is kept below the state folder, one file for what is known of a
// call and one for the arguments of its undo. Those are an agent's plaintext (M-18): they stand in no log and in no database, whose
// pages outlive what was deleted, and are removed when the undo begins or the window ends.
//
// Both files have the window's end for their time of modification, so that what is over is found without being read.
const (
	undoDir   = "undo"
	undoCall  = ".json"  // what is known of a call; a day longer than its window, to say what became of it
	undoArgs  = ".args"  // the arguments of its undo, while it can be undone
	undoTaken = ".taken" // the same, while somebody begins to undo it: one rename has one winner
	undoNew   = ".new"   // a file that is being written

	// Of the node and of one run: an agent that calls without end keeps no other from being undone, and fills no disk (64 KiB each). Of all
	// runs of an agent no more than are free.
	maxUndos    = 4096
	maxRunUndos = 256

	undoRemembered = 24 * time.Hour
	maxRemembered  = 1024 // calls whose window is over
	maxUndoFile    = 128 << 10
)

// States of an Undoable.
const (
	UndoOpen   = "open"
	UndoBegun  = "undoing" // if it stays so, its process ended meanwhile: nobody knows whether it was undone
	UndoDone   = "undone"
	UndoFailed = "failed"
	UndoOver   = "expired"
)

// Undoable is a call that can be undone, or could.
type Undoable struct {
	Call    string    `json:"call_id"`
	Run     string    `json:"run_id"`
	Parent  string    `json:"parent_run_id,omitempty"`
	Agent   string    `json:"agent_id,omitempty"`
	Session string    `json:"session_id,omitempty"`
	Tool    string    `json:"tool"`
	Gateway string    `json:"gateway,omitempty"` // the gateway.yaml that declares the undo
	Made    time.Time `json:"made_at"`
	Until   time.Time `json:"until"`
	State   string    `json:"state"`
	By      string    `json:"by,omitempty"` // who undid it, and when that was begun
	At      time.Time `json:"at,omitzero"`
	Code    string    `json:"code,omitempty"` // why that failed
}

// Codes of a refused undo.
const (
	CodeUndoUnknown rings.Code = "undo_unknown"
	CodeUndoOver    rings.Code = "undo_expired"
	CodeUndoDone    rings.Code = "undo_done"
)

// UndoRequest asks for one undo.
type UndoRequest struct {
	Call    string
	Session string // refused if the call is of another; empty: whichever it is of
	By      string // who asks, as uid:0
	Kill    bool   // the kill of the run asks
}

// Undoer carries out what undoes a call, with these arguments. An error that is no *UndoError means that nothing was done yet.
type Undoer func(ctx context.Context, u Undoable, args json.RawMessage) error

// UndoError is an undo that was tried and failed: what half happened and is made again by itself is how a refund is paid twice, so
// nobody tries it again.
type UndoError struct {
	Code rings.Code
	Err  error
}

func (e *UndoError) Error() string { return e.Err.Error() + " (" + string(e.Code) + ")" }
func (e *UndoError) Unwrap() error { return e.Err }

func (h *Hypervisor) undoPath(name string) string {
	return filepath.Join(h.opt.StateDir, undoDir, name)
}

// keepUndo keeps what it takes to undo a call. Its file is there before its arguments: no plaintext lies there that nobody knows of.
func (h *Hypervisor) keepUndo(u Undoable, args []byte) error {
	err := h.writeUndo(u)
	if err == nil {
		err = h.writeUndoFile(u.Call+undoArgs, args, u.Until, true)
	}
	time.AfterFunc(u.Until.Sub(h.now()), func() { _ = os.Remove(h.undoPath(u.Call + undoArgs)) }) // what undoes it has taken it
	return err
}

func (h *Hypervisor) writeUndo(u Undoable) error {
	text, err := json.Marshal(u)
	if err != nil {
		return err
	}
	return h.writeUndoFile(u.Call+undoCall, text, u.Until, u.State == UndoOpen || u.State == UndoBegun)
}

// writeUndoFile writes a file of ours alone, whole or not at all. lasting: also after a power cut it is there,
// and not what was there before. Of an undo's outcome that isn't asked: without it nobody makes the undo again.
func (h *Hypervisor) writeUndoFile(name string, text []byte, until time.Time, lasting bool) error {
	f, err := store.OpenBeside(filepath.Join(h.opt.StateDir, undoDir), name+undoNew)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(text, 0)
	err = errors.Join(err, f.Truncate(int64(len(text))))
	if lasting {
		err = errors.Join(err, f.Sync())
	}
	err = errors.Join(err, f.Close(), os.Chtimes(f.Name(), until, until))
	if err == nil {
		err = os.Rename(f.Name(), h.undoPath(name))
	}
	if err == nil && lasting {
		err = syncDir(h.undoPath(""))
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the window's end removes it at the latest
	}
	return err
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// roomToUndo tells whether one more call of a run can be kept. An agent never has more places than are free, however many runs it has:
// one that takes all it can leaves others half.
func (h *Hypervisor) roomToUndo(run, agent string) bool {
	all, err := os.ReadDir(h.undoPath(""))
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	node, own, agents := 0, 0, 0
	h.undoMu.Lock()
	defer h.undoMu.Unlock()
	for _, e := range all {
		call, kept := strings.CutSuffix(e.Name(), undoArgs)
		if !kept {
			continue
		}
		node++
		switch of := call[:max(strings.LastIndexByte(call, '.'), 0)]; {
		case of == run:
			own++
		case agent != "" && h.undoAgentLocked(of, call) == agent:
			agents++
		}
	}
	if len(all) > 2*maxUndos+maxRemembered {
		DropUndos(h.opt.StateDir, h.now())
	}
	return node < maxUndos && own < maxRunUndos && own+agents < maxUndos-node
}

// undoAgentLocked is whose run this call is of. The calls of one run are one agent's, so one of them is read.
func (h *Hypervisor) undoAgentLocked(run, call string) string {
	if agent, known := h.undoAgents[run]; known {
		return agent
	}
	u, err := h.readUndo(call)
	if err != nil {
		return "" // its window has just ended
	}
	if len(h.undoAgents) >= maxUndos || h.undoAgents == nil {
		h.undoAgents = map[string]string{}
	}
	h.undoAgents[run] = u.Agent
	return u.Agent
}

// DropUndos removes the arguments of undos whose window is over, and a day later, or for a newer one, what is known of the calls.
func DropUndos(stateDir string, now time.Time) {
	dir := filepath.Join(stateDir, undoDir)
	all, _ := os.ReadDir(dir) // no folder: nothing to remove; and what can't be read now is removed another time
	var over []os.FileInfo
	for _, e := range all {
		keep := map[string]time.Duration{undoCall: undoRemembered, undoNew: time.Minute}[filepath.Ext(e.Name())]
		i, err := e.Info()
		if err != nil || !now.After(i.ModTime()) {
			continue
		}
		if now.Sub(i.ModTime()) > keep {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		} else if keep == undoRemembered {
			over = append(over, i)
		}
	}
	slices.SortFunc(over, func(a, b os.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	for _, i := range over[min(len(over), maxRemembered):] {
		_ = os.Remove(filepath.Join(dir, i.Name()))
	}
}

// readUndo returns what is known of a call, as of now.
func (h *Hypervisor) readUndo(call string) (u Undoable, err error) {
	text, err := read.File(h.undoPath(call+undoCall), 0o077, maxUndoFile)
	if err != nil {
		return u, err
	}
	if err := read.Exactly(text, &u); err != nil || u.Call != call {
		return Undoable{}, fmt.Errorf("%s is damaged", h.undoPath(call+undoCall))
	}
	if u.State == UndoOpen && !h.now().Before(u.Until) {
		u.State = UndoOver
	}
	return u, nil
}

// Undos lists the calls that can be undone, or could within the last day; the latest first. The error names what can't be read; the
// others are there beside it.
func (h *Hypervisor) Undos() ([]Undoable, error) {
	DropUndos(h.opt.StateDir, h.now())
	all, err := os.ReadDir(h.undoPath(""))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	errs := []error{err}
	var list []Undoable
	for _, e := range all {
		call, ok := strings.CutSuffix(e.Name(), undoCall)
		if !ok {
			continue
		}
		u, err := h.readUndo(call)
		if err == nil {
			list = append(list, u)
		} else if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	slices.SortFunc(list, func(a, b Undoable) int { return b.Made.Compare(a.Made) })
	return list, errors.Join(errs...)
}

// Undo undoes a call: once, and while its window is open. It is on record, on disk, before it begins, and again when it has ended. The
// error is a *DeniedError where nothing was begun, and an *UndoError where it failed; after any other it can be tried again.
func (h *Hypervisor) Undo(ctx context.Context, r UndoRequest, do Undoer) (Undoable, error) {
	DropUndos(h.opt.StateDir, h.now())
	u, args, lock, err := h.takeUndo(r)
	if err != nil {
		return u, err
	}
	defer lock.Unlock()
	rec := &audit.Undo{
		AgentID: u.Agent, By: audit.Claimed(r.By), CallID: u.Call, ParentRunID: u.Parent, RunID: u.Run, SessionID: u.Session,
		State: UndoBegun, Tool: audit.Claimed(u.Tool), Trigger: "operator",
	}
	if r.Kill {
		rec.Trigger = "kill"
	}
	began := h.now()
	u.State, u.By, u.At = UndoBegun, r.By, began.UTC()
	if err = h.record(u.Session, true, rec); err == nil {
		err = h.writeUndo(u)
	}
	if err == nil {
		err = do(ctx, u, args)
	}
	u.State, u.Code = UndoDone, ""
	failed, tried := errors.AsType[*UndoError](err)
	switch {
	case tried:
		u.State, u.Code = UndoFailed, string(failed.Code)
	case err != nil:
		u.State, u.By, u.At = UndoOpen, "", time.Time{}
	}
	rec.State, rec.Code, rec.DurationNS = u.State, u.Code, max(0, int64(h.now().Sub(began)))
	if u.State == UndoOpen {
		rec.State, rec.Code = UndoFailed, "not_begun"
	}
	return u, errors.Join(err, h.record(u.Session, true, rec), h.writeUndo(u), h.endUndo(u))
}

// endUndo removes the arguments, or puts them back where nothing was begun.
func (h *Hypervisor) endUndo(u Undoable) error {
	taken := h.undoPath(u.Call + undoTaken)
	if u.State == UndoOpen {
		return os.Rename(taken, h.undoPath(u.Call+undoArgs))
	}
	return os.Remove(taken)
}

// takeUndo looks at everything that refuses, and takes the arguments, which one caller can: who has the lock, which the kernel gives back
// when that one dies. What a dead one has taken is taken anew where nothing was begun.
func (h *Hypervisor) takeUndo(r UndoRequest) (u Undoable, args json.RawMessage, lock *store.Lock, err error) {
	refuse := func(code rings.Code, rule, hint, format string, args ...any) error {
		return &DeniedError{What: "undo call " + r.Call, Hint: hint,
			Decision: rings.Decision{Verdict: rings.Deny, Code: code, Rule: rule, Reason: fmt.Sprintf(format, args...)}}
	}
	const list = "agentrun undo --list shows the calls that can be undone"
	if rings.CheckActionID(r.Call) != nil { // and no path: identifiers have no slash
		return Undoable{}, nil, nil, refuse(CodeUndoUnknown, "H-7", list, "%.64q is no call's id", r.Call)
	}
	defer func() {
		if err != nil {
			lock.Unlock()
			lock = nil
		}
	}()
	if u, err = h.readUndo(r.Call); err == nil && u.State == UndoOpen {
		if lock, err = h.lockUndo(r.Call); err == nil {
			u, err = h.readUndo(r.Call) // as whoever had it has left it
		}
	}
	switch {
	case errors.Is(err, store.ErrBusy):
		return u, nil, lock, refuse(CodeUndoDone, "H-7", list, "somebody undoes it at this moment")
	case errors.Is(err, fs.ErrNotExist):
		return u, nil, lock, refuse(CodeUndoUnknown, "H-7", list,
			"no such call is kept: its tool declares no undo, it didn't succeed, or its window ended more than a day ago")
	case err != nil:
		return u, nil, lock, err
	case r.Session != "" && r.Session != u.Session:
		return Undoable{}, nil, lock, refuse(CodeOtherSession, "H-30", list, "it is not a call of session %s", r.Session)
	case u.State == UndoOver:
		return u, nil, lock, refuse(CodeUndoOver, "H-7", "undo it by hand", "its window ended at %s", u.Until.Format(time.RFC3339))
	case u.State != UndoOpen:
		return u, nil, lock, refuse(CodeUndoDone, "H-7", "an undo is tried once; agentrun audit show tells how it ended",
			"%s has undone it, or tried to, at %s: %s", u.By, u.At.Format(time.RFC3339), u.State)
	}
	taken := h.undoPath(u.Call + undoTaken)
	err = os.Rename(h.undoPath(u.Call+undoArgs), taken)
	if errors.Is(err, fs.ErrNotExist) {
		_, err = os.Lstat(taken)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return u, nil, lock, refuse(CodeUndoDone, "H-7", list, "its window has just ended")
	}
	if err == nil {
		args, err = read.File(taken, 0o077, maxUndoFile)
	}
	return u, args, lock, err
}

func (h *Hypervisor) lockUndo(call string) (*store.Lock, error) {
	db, err := h.store()
	if err != nil {
		return nil, err
	}
	return db.TryLock("undo-" + call)
}
