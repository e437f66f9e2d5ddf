// SPDX-License-Identifier: Apache-2.0

package rings

import "agentrun/internal/read"

// ConsistencyMode says how the participants of a session share state (H-32). Anything but the three is refused.
type ConsistencyMode string

const (
	Eventual ConsistencyMode = "eventual" // the last writer wins, the loser goes to the audit
	Strong   ConsistencyMode = "strong"   // one writer at a time, who must know what it replaces
	Causal   ConsistencyMode = "causal"   // concurrent writes are kept side by side and reported
)

// Valid tells whether m is one of the three modes.
func (m ConsistencyMode) Valid() bool { return m == Eventual || m == Strong || m == Causal }

// MaxParticipants is the most a session may have (H-29).
const MaxParticipants = 100

// SessionConfig is what a session is created from (H-29). The zero value is not valid.
type SessionConfig struct {
	SessionID       string          `json:"session_id" read:"required"`
	MaxParticipants int             `json:"max_participants" read:"required"` // 1 to 100
	MinParticipants int             `json:"min_participants" read:"required"` // 1 to MaxParticipants
	ConsistencyMode ConsistencyMode `json:"consistency_mode" read:"required"`
}

// Check returns nil or a *read.InvalidError with a problem for each bad field.
func (c SessionConfig) Check() error {
	var ps read.Problems
	if CheckSessionID(c.SessionID) != nil {
		ps.Add("session_id", "must be 1 to %d of a-z, A-Z, 0-9, _ and -", MaxIdentifier)
	}
	if c.MaxParticipants < 1 || c.MaxParticipants > MaxParticipants {
		ps.Add("max_participants", "must be 1 to %d", MaxParticipants)
	}
	if c.MinParticipants < 1 || c.MinParticipants > MaxParticipants || c.MinParticipants > c.MaxParticipants {
		ps.Add("min_participants", "must be 1 to max_participants")
	}
	if !c.ConsistencyMode.Valid() {
		ps.Add("consistency_mode", "must be eventual, strong or causal")
	}
	return ps.Err()
}

const maxSessionJSON = 16 << 10 // the longest valid one, each character of the id as \u0000, has under 2 KiB

// DecodeSessionConfig reads a configuration from JSON and checks it. It returns a valid one, or the zero value and a
// *read.InvalidError with a problem for each bad field. All four fields must be there; names are exact, known and given once,
// numbers are integers in their shortest spelling: true is not 1, 1.0 is not 1, "1" is not 1 (H-29).
func DecodeSessionConfig(text []byte) (SessionConfig, error) {
	type plain SessionConfig
	var c SessionConfig
	err := decode(maxSessionJSON, text, (*plain)(&c), func() error { return c.Check() })
	if err != nil {
		return SessionConfig{}, err
	}
	return c, nil
}

// UnmarshalJSON is DecodeSessionConfig, so that a configuration inside another document is read as strictly.
func (c *SessionConfig) UnmarshalJSON(text []byte) error {
	decoded, err := DecodeSessionConfig(text)
	*c = decoded
	return err
}
