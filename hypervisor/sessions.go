// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"agentrun/audit"
	"agentrun/rings"
	"agentrun/store"
)

const (
	sessionsBucket = "sessions"
	workspacesDir  = "workspaces" // below the state folder: one folder for each session (H-30)
)

// ErrNoSession is a session that was never created on this node.
var ErrNoSession = errors.New("there is no such session")

// ErrSessionExists is what creating one twice gives. Ids are never used again, so a chain has one session.
var ErrSessionExists = errors.New("the session exists, or existed")

// CreateSession makes a session (H-29) and its workspace, a folder of its own on the host.
func (h *Hypervisor) CreateSession(ctx context.Context, cfg rings.SessionConfig) (rings.SessionRecord, error) {
	s, err := rings.NewSession(cfg, h.now)
	if err != nil {
		return rings.SessionRecord{}, err
	}
	id := cfg.SessionID
	return h.changeSession(ctx, id, func(tx *store.Tx) (*rings.Session, error) {
		if _, found, err := tx.Bucket(sessionsBucket).Get(id); err != nil {
			return nil, err
		} else if found {
			return nil, ErrSessionExists
		}
		if err := h.sessionEvent(s, "created", ""); err != nil {
			return nil, err
		}
		return s, h.makeWorkspace(id)
	})
}

func (h *Hypervisor) makeWorkspace(id string) error {
	dir := filepath.Join(h.opt.StateDir, workspacesDir)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.Mkdir(filepath.Join(dir, id), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// changeSession stores the session that fn returns, in one transaction with what fn read and put on record.
func (h *Hypervisor) changeSession(ctx context.Context, id string, fn func(*store.Tx) (*rings.Session, error)) (rec rings.SessionRecord, err error) {
	err = h.update(ctx, func(tx *store.Tx) error {
		s, err := fn(tx)
		if err != nil {
			return err
		}
		rec = s.Record()
		return store.PutJSON(tx.Bucket(sessionsBucket), id, rec)
	})
	if err != nil {
		return rings.SessionRecord{}, fmt.Errorf("session %.256s: %w", id, err)
	}
	return rec, nil
}

// session reads one. Unknown is an error: what isn't known is denied (H-30).
func (h *Hypervisor) session(tx *store.Tx, id string) (*rings.Session, error) {
	if err := rings.CheckSessionID(id); err != nil {
		return nil, err
	}
	var rec rings.SessionRecord
	found, err := store.GetJSON(tx.Bucket(sessionsBucket), id, &rec)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, ErrNoSession
	}
	return rings.RestoreSession(rec, h.now)
}

// sessionEvent puts a change of a session on record, on disk, in the session's own chain: what a session permits begins
// or ends with it.
func (h *Hypervisor) sessionEvent(s *rings.Session, event, agent string) error {
	rec := s.Record()
	r := &audit.Session{AgentID: agent, Event: event, SessionID: rec.Config.SessionID, State: rec.State.String()}
	if event == "created" {
		r.ConsistencyMode = string(rec.Config.ConsistencyMode)
	}
	return h.record(rec.Config.SessionID, true, r)
}

// JoinSession makes an agent a participant. The session becomes active when it has min_participants.
func (h *Hypervisor) JoinSession(ctx context.Context, id, agentID string) (rings.SessionRecord, error) {
	return h.changeSession(ctx, id, func(tx *store.Tx) (*rings.Session, error) {
		s, err := h.session(tx, id)
		if err != nil {
			return nil, err
		}
		if err := notHeld(tx, agentID, "join session "+id); err != nil {
			return nil, err
		}
		if err := s.Join(agentID); err != nil {
			return nil, err
		}
		if err := h.sessionEvent(s, "joined", agentID); err != nil {
			return nil, err
		}
		if s.State() != rings.SessionHandshaking {
			return s, nil
		}
		switch err := s.Activate(); {
		case errors.Is(err, rings.ErrTooFew):
			return s, nil
		case err != nil:
			return nil, err
		}
		return s, h.sessionEvent(s, "activated", "")
	})
}

// ArchiveSession ends a session: nobody joins and no run is admitted to it any more. Its workspace stays, for reading.
func (h *Hypervisor) ArchiveSession(ctx context.Context, id string) (rings.SessionRecord, error) {
	return h.changeSession(ctx, id, func(tx *store.Tx) (*rings.Session, error) {
		s, err := h.session(tx, id)
		if err != nil {
			return nil, err
		}
		if s.State() != rings.SessionTerminating {
			if err := s.Terminate(); err != nil {
				return nil, err
			}
		}
		if err := s.Archive(); err != nil {
			return nil, err
		}
		return s, h.sessionEvent(s, "archived", "")
	})
}

// Session returns one session.
func (h *Hypervisor) Session(ctx context.Context, id string) (rec rings.SessionRecord, err error) {
	err = h.view(ctx, func(tx *store.Tx) error {
		s, err := h.session(tx, id)
		if err == nil {
			rec = s.Record()
		}
		return err
	})
	if err != nil {
		return rings.SessionRecord{}, fmt.Errorf("session %.256s: %w", id, err)
	}
	return rec, nil
}

// Sessions returns every session, by id.
func (h *Hypervisor) Sessions(ctx context.Context) ([]rings.SessionRecord, error) {
	all := []rings.SessionRecord{}
	err := h.view(ctx, func(tx *store.Tx) error {
		return store.EachJSON(tx.Bucket(sessionsBucket), "", func(_ string, rec rings.SessionRecord) error {
			all = append(all, rec)
			return nil
		})
	})
	return all, err
}

// Workspace is the host folder that a session's participants share.
func (h *Hypervisor) Workspace(session string) string {
	return filepath.Join(h.opt.StateDir, workspacesDir, session)
}
