// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"unicode/utf8"
)

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
	SessionID       string          `json:"session_id"`
	MaxParticipants int             `json:"max_participants"` // 1 to 100
	MinParticipants int             `json:"min_participants"` // 1 to MaxParticipants
	ConsistencyMode ConsistencyMode `json:"consistency_mode"`
}

// Check returns nil or Problems: one for each bad field.
func (c SessionConfig) Check() error { return c.problems().err() }

func (c SessionConfig) problems() Problems {
	var ps Problems
	if CheckSessionID(c.SessionID) != nil {
		ps.add("session_id", fmt.Sprintf("must be 1 to %d of a-z, A-Z, 0-9, _ and -", MaxIdentifier))
	}
	if c.MaxParticipants < 1 || c.MaxParticipants > MaxParticipants {
		ps.add("max_participants", fmt.Sprintf("must be 1 to %d", MaxParticipants))
	}
	if c.MinParticipants < 1 || c.MinParticipants > MaxParticipants || c.MinParticipants > c.MaxParticipants {
		ps.add("min_participants", "must be 1 to max_participants")
	}
	if !c.ConsistencyMode.Valid() {
		ps.add("consistency_mode", "must be eventual, strong or causal")
	}
	return ps
}

const maxSessionJSON = 16 << 10 // the longest valid one, each character of the id as \u0000, has under 2 KiB

// DecodeSessionConfig reads a configuration from JSON and checks it. It returns a valid one, or the zero value and
// Problems with one for each bad field. All four fields must be there; names are exact, known and given once, numbers
// are integers in their shortest spelling: true is not 1, 1.0 is not 1, "1" is not 1 (H-29).
func DecodeSessionConfig(text []byte) (SessionConfig, error) {
	fields, ps := sessionFields(text)
	if fields == nil {
		return SessionConfig{}, ps
	}
	d := decoder{fields: fields, problems: ps}
	c := SessionConfig{
		SessionID:       d.text("session_id"),
		MaxParticipants: d.required("max_participants"),
		MinParticipants: d.required("min_participants"),
		ConsistencyMode: ConsistencyMode(d.text("consistency_mode")),
	}
	d.merge(c.problems())
	if err := d.problems.err(); err != nil {
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

// required is integer for a field that must be there.
func (d *decoder) required(name string) int {
	if _, ok := d.value(name, true); !ok {
		return 0
	}
	return d.integer(name)
}

// merge adds what is wrong with the values, save for fields of which something was said already.
func (d *decoder) merge(ps Problems) {
	said := map[string]bool{}
	for _, p := range d.problems {
		said[p.Path] = true
	}
	for _, p := range ps {
		if !said[p.Path] {
			d.problems = append(d.problems, p)
		}
	}
}

func sessionFields(text []byte) (map[string]json.RawMessage, Problems) {
	whole := func(format string, args ...any) (map[string]json.RawMessage, Problems) {
		return nil, Problems{{Message: "session configuration " + fmt.Sprintf(format, args...)}}
	}
	if len(text) > maxSessionJSON || !utf8.Valid(text) {
		return whole("must be UTF-8 of at most %d bytes", maxSessionJSON)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return whole("is not a JSON object")
	}
	fields := map[string]json.RawMessage{}
	var ps Problems
	for dec.More() {
		if len(fields)+len(ps) >= maxMembers {
			return whole("has more than %d members", maxMembers)
		}
		name, value, err := member(dec)
		if err != nil {
			return whole("is not JSON: %v", err)
		}
		switch _, twice := fields[name]; {
		case twice:
			ps.add(name, "is there twice")
		case !sessionField(name):
			ps.add(printableName(name), "is not a field of a session configuration")
		default:
			fields[name] = value
		}
	}
	if _, err := dec.Token(); err != nil {
		return whole("is not JSON: %v", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return whole("is followed by something")
	}
	return fields, ps
}

func sessionField(name string) bool {
	switch name {
	case "session_id", "max_participants", "min_participants", "consistency_mode":
		return true
	}
	return false
}
