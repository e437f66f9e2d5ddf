// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// SessionState is where a session is in its life (H-29). Its zero value is no state. Its text is the name.
type SessionState uint8

const (
	NoSessionState SessionState = iota
	SessionCreated
	SessionHandshaking // participants join
	SessionActive      // they work
	SessionTerminating
	SessionArchived // the end; what remains is for reading
)

// sessionStates are the names, in order; the index is the state.
func sessionStates() []string {
	return []string{"", "created", "handshaking", "active", "terminating", "archived"}
}

func (s SessionState) String() string {
	if s == NoSessionState || s > SessionArchived {
		return "no state"
	}
	return sessionStates()[s]
}

// MarshalText returns the state's name; what is none is an error.
func (s SessionState) MarshalText() ([]byte, error) {
	if s == NoSessionState || s > SessionArchived {
		return nil, fmt.Errorf("session state %d: there is none", s)
	}
	return []byte(s.String()), nil
}

// UnmarshalText takes exactly the names.
func (s *SessionState) UnmarshalText(b []byte) error {
	*s = NoSessionState
	i := slices.Index(sessionStates(), string(b))
	if i <= 0 {
		return fmt.Errorf("session state %.32q: there is none", b)
	}
	*s = SessionState(i)
	return nil
}

var (
	// ErrTransition is what a step gives that the session's state doesn't allow.
	ErrTransition = errors.New("not in this state")
	// ErrSessionFull is what joining a session gives that has max_participants.
	ErrSessionFull = errors.New("the session is full")
	// ErrJoined is what joining twice gives.
	ErrJoined = errors.New("takes part already")
	// ErrNotParticipant is what an agent gets that doesn't take part.
	ErrNotParticipant = errors.New("doesn't take part")
	// ErrTooFew is what activating gives below min_participants.
	ErrTooFew = errors.New("too few participants")
)

// Participant is an agent in a session.
type Participant struct {
	Agent    string    `json:"agent_id"`
	JoinedAt time.Time `json:"joined_at"`
}

// SessionRecord is all there is to know about a session: what a store keeps.
type SessionRecord struct {
	Config       SessionConfig `json:"config"`
	State        SessionState  `json:"state"`
	CreatedAt    time.Time     `json:"created_at"`
	ChangedAt    time.Time     `json:"changed_at"` // of the last change of state
	Participants []Participant `json:"participants"`
}

// Has tells whether an agent takes part.
func (r *SessionRecord) Has(agent string) bool {
	return slices.ContainsFunc(r.Participants, func(p Participant) bool { return p.Agent == agent })
}

// Session is a session with its participants (H-29). It is for one goroutine: a store's transaction is what keeps two
// from changing it. The zero value is in no state and refuses everything.
//
//	created ──► handshaking ──► active ──► terminating ──► archived
//	   └─────────────┴────────────────────────▲
//
// One that never became active may be terminated too: else it could never end, and ending gives nobody anything.
// Every other step is an error that is ErrTransition.
type Session struct {
	clock func() time.Time
	rec   SessionRecord
}

// NewSession returns a session that is created and has nobody in it.
func NewSession(cfg SessionConfig, clock func() time.Time) (*Session, error) {
	if clock == nil {
		return nil, errors.New("session: no clock")
	}
	if err := cfg.Check(); err != nil {
		return nil, fmt.Errorf("session: %w", err)
	}
	now := clock().UTC()
	return &Session{clock: clock, rec: SessionRecord{Config: cfg, State: SessionCreated, CreatedAt: now, ChangedAt: now}}, nil
}

// RestoreSession returns the session that rec describes, or an error if none can have come to be like that.
func RestoreSession(rec SessionRecord, clock func() time.Time) (*Session, error) {
	if clock == nil {
		return nil, errors.New("session: no clock")
	}
	if err := rec.check(); err != nil {
		return nil, fmt.Errorf("session %.256q: %w", rec.Config.SessionID, err)
	}
	rec.Participants = slices.Clone(rec.Participants)
	return &Session{clock: clock, rec: rec}, nil
}

func (r SessionRecord) check() error {
	if err := r.Config.Check(); err != nil {
		return err
	}
	if _, err := r.State.MarshalText(); err != nil {
		return err
	}
	if len(r.Participants) > r.Config.MaxParticipants {
		return ErrSessionFull
	}
	if r.State == SessionCreated && len(r.Participants) > 0 {
		return errors.New("created, and has participants")
	}
	seen := map[string]bool{}
	for _, p := range r.Participants {
		if err := CheckAgentID(p.Agent); err != nil {
			return err
		}
		if seen[p.Agent] {
			return fmt.Errorf("%q %w", p.Agent, ErrJoined)
		}
		seen[p.Agent] = true
	}
	return nil
}

// Record returns a copy of all there is to know.
func (s *Session) Record() SessionRecord {
	rec := s.rec
	rec.Participants = append([]Participant{}, rec.Participants...)
	return rec
}

// State returns where the session is in its life.
func (s *Session) State() SessionState { return s.rec.State }

// Handshake opens the session for participants. Join does it too.
func (s *Session) Handshake() error { return s.step("handshake", SessionHandshaking, SessionCreated) }

// Terminate begins the end: nobody joins and nobody writes any more.
func (s *Session) Terminate() error {
	return s.step("terminate", SessionTerminating, SessionCreated, SessionHandshaking, SessionActive)
}

// Archive ends the session.
func (s *Session) Archive() error { return s.step("archive", SessionArchived, SessionTerminating) }

// Activate lets the participants work, if there are at least min_participants.
func (s *Session) Activate() error {
	if s.rec.State == SessionHandshaking && len(s.rec.Participants) < s.rec.Config.MinParticipants {
		return fmt.Errorf("activate session %q: %w: %d of at least %d", s.rec.Config.SessionID, ErrTooFew,
			len(s.rec.Participants), s.rec.Config.MinParticipants)
	}
	return s.step("activate", SessionActive, SessionHandshaking)
}

func (s *Session) step(what string, to SessionState, from ...SessionState) error {
	if !slices.Contains(from, s.rec.State) {
		return fmt.Errorf("%s session %q: %w: it is %s", what, s.rec.Config.SessionID, ErrTransition, s.rec.State)
	}
	s.rec.State, s.rec.ChangedAt = to, s.clock().UTC()
	return nil
}

// Join makes agent a participant of a session that isn't terminating, up to max_participants. The first to join a
// created session begins its handshake.
func (s *Session) Join(agent string) error {
	if err := CheckAgentID(agent); err != nil {
		return fmt.Errorf("join: %w", err)
	}
	id := s.rec.Config.SessionID
	switch {
	case s.rec.State < SessionCreated || s.rec.State > SessionActive:
		return fmt.Errorf("join session %q: %w: it is %s", id, ErrTransition, s.rec.State)
	case s.find(agent) >= 0:
		return fmt.Errorf("join session %q: %q %w", id, agent, ErrJoined)
	case len(s.rec.Participants) >= s.rec.Config.MaxParticipants:
		return fmt.Errorf("join session %q: %w: %d participants", id, ErrSessionFull, len(s.rec.Participants))
	}
	if s.rec.State == SessionCreated {
		if err := s.step("join", SessionHandshaking, SessionCreated); err != nil {
			return err
		}
	}
	s.rec.Participants = append(s.rec.Participants, Participant{Agent: agent, JoinedAt: s.clock().UTC()})
	return nil
}

// Leave takes agent out, in every state before archived. A session that is active stays so below min_participants:
// the minimum is for beginning.
func (s *Session) Leave(agent string) error {
	if s.rec.State < SessionCreated || s.rec.State > SessionTerminating {
		return fmt.Errorf("leave session %q: %w: it is %s", s.rec.Config.SessionID, ErrTransition, s.rec.State)
	}
	i := s.find(agent)
	if i < 0 {
		return fmt.Errorf("leave session %q: %.256q %w", s.rec.Config.SessionID, agent, ErrNotParticipant)
	}
	s.rec.Participants = slices.Delete(s.rec.Participants, i, i+1)
	return nil
}

func (s *Session) find(agent string) int {
	return slices.IndexFunc(s.rec.Participants, func(p Participant) bool { return p.Agent == agent })
}

// works returns nil if agent may share state now: it takes part, and the session is active.
func (s *Session) works(agent string) error {
	switch {
	case s.rec.State != SessionActive:
		return fmt.Errorf("session %q: %w: it is %s", s.rec.Config.SessionID, ErrTransition, s.rec.State)
	case s.find(agent) < 0:
		return fmt.Errorf("session %q: %.256q %w", s.rec.Config.SessionID, agent, ErrNotParticipant)
	}
	return nil
}
