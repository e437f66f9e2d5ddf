// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// ActionRelease is what an operator attests to when an agent is let out of quarantine; the subject is the agent.
const ActionRelease = "release-quarantine"

// CodeQuarantined is the code of everything that is denied because of a quarantine (H-31).
const CodeQuarantined Code = "quarantined"

// ErrNotQuarantined is what releasing an agent gives that isn't held.
var ErrNotQuarantined = errors.New("not in quarantine")

// QuarantineEntry says since when, why and by whom an agent is held. It is what a store keeps.
type QuarantineEntry struct {
	Agent  string    `json:"agent_id"`
	Since  time.Time `json:"since"`
	Reason string    `json:"reason"`
	By     string    `json:"by"` // an operator's name, or the part of agentrun that saw the breach
}

func (e QuarantineEntry) check() error {
	if err := CheckAgentID(e.Agent); err != nil {
		return err
	}
	for _, f := range []struct{ name, text string }{{"reason", e.Reason}, {"by", e.By}} {
		if f.text == "" || len(f.text) > maxReasonBytes || !utf8.ValidString(f.text) {
			return fmt.Errorf("%s: want 1 to %d bytes of UTF-8", f.name, maxReasonBytes)
		}
	}
	if e.Since.IsZero() {
		return errors.New("since: missing")
	}
	return nil
}

const maxReasonBytes = 1024

// clip makes text something that can be recorded: UTF-8, not empty, not longer than maxReasonBytes.
func clip(text string) string {
	text = strings.ToValidUTF8(text[:min(len(text), maxReasonBytes)], "")
	if text == "" {
		return "not given"
	}
	return text
}

// Quarantine is the register of agents that are held (H-31). It decides and remembers; demoting the live process,
// denying what it waits for and writing the audit entry is what its user does with each answer. Keeping it over a
// restart is done with Export and NewQuarantine. It is safe for concurrent use. Nil and the zero value hold everybody:
// a register that couldn't be loaded must not set anyone free.
type Quarantine struct {
	clock func() time.Time

	mu   sync.RWMutex
	held map[string]QuarantineEntry
}

// NewQuarantine returns a register that holds entries, as Export gave them. One bad entry refuses them all: a register
// with a hole is no register.
func NewQuarantine(clock func() time.Time, entries []QuarantineEntry) (*Quarantine, error) {
	if clock == nil {
		return nil, errors.New("quarantine register: no clock")
	}
	held := make(map[string]QuarantineEntry, len(entries))
	for i, e := range entries {
		if err := e.check(); err != nil {
			return nil, fmt.Errorf("quarantine entry %d: %w", i, err)
		}
		if _, twice := held[e.Agent]; twice {
			return nil, fmt.Errorf("quarantine entry %d: %q is held twice", i, e.Agent)
		}
		held[e.Agent] = e
	}
	return &Quarantine{clock: clock, held: held}, nil
}

func (q *Quarantine) loaded() bool { return q != nil && q.held != nil }

var errNoRegister = errors.New("quarantine register: not loaded")

// Add holds agent. For an agent that is held already it returns the entry that holds it and added is false: the first
// reason is the one to look into. A reason or name that can't be kept is made so, not refused: it must not be why an
// agent stays free. On an error the agent could not be entered, and the caller must stop it otherwise.
func (q *Quarantine) Add(agent, reason, by string) (entry QuarantineEntry, added bool, err error) {
	if !q.loaded() {
		return QuarantineEntry{}, false, errNoRegister
	}
	if err := CheckAgentID(agent); err != nil {
		return QuarantineEntry{}, false, fmt.Errorf("quarantine: %w", err)
	}
	entry = QuarantineEntry{Agent: agent, Since: q.clock().UTC(), Reason: clip(reason), By: clip(by)}
	q.mu.Lock()
	defer q.mu.Unlock()
	if old, ok := q.held[agent]; ok {
		return old, false, nil
	}
	q.held[agent] = entry
	return entry, true, nil
}

// Release lets agent go if w is an unused witness of ActionRelease on agent, and returns what held it and the operator
// who answers for it. Asking for an agent that isn't held is an error that is ErrNotQuarantined and spends nothing.
// The audit entry must be on disk before the call (H-28).
func (q *Quarantine) Release(agent string, w *Witness) (was QuarantineEntry, operator string, err error) {
	if !q.loaded() {
		return QuarantineEntry{}, "", errNoRegister
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	was, ok := q.held[agent]
	if !ok {
		return QuarantineEntry{}, "", fmt.Errorf("release %.256q: %w", agent, ErrNotQuarantined)
	}
	if operator, err = w.Use(ActionRelease, agent); err != nil {
		return QuarantineEntry{}, "", err
	}
	delete(q.held, agent)
	return was, operator, nil
}

// Lookup returns what holds agent, if it is held by an entry.
func (q *Quarantine) Lookup(agent string) (QuarantineEntry, bool) {
	if !q.loaded() {
		return QuarantineEntry{}, false
	}
	q.mu.RLock()
	defer q.mu.RUnlock()
	e, ok := q.held[agent]
	return e, ok
}

// Holds tells whether agent is in quarantine.
func (q *Quarantine) Holds(agent string) bool {
	if !q.loaded() {
		return true
	}
	_, held := q.Lookup(agent)
	return held
}

// Check denies everything to an agent that is held.
func (q *Quarantine) Check(agent string) Decision {
	if q.Holds(agent) {
		return deny("H-31", CodeQuarantined, "the agent is in quarantine until an operator releases it")
	}
	return allow("H-31", "the agent is not in quarantine")
}

// Ring returns the ring in which agent is while it is, by everything else, in r: Sandbox for one that is held.
func (q *Quarantine) Ring(agent string, r Ring) Ring {
	if q.Holds(agent) {
		return Sandbox
	}
	return r.OrSandbox()
}

// Export returns the entries, by agent.
func (q *Quarantine) Export() []QuarantineEntry {
	entries := []QuarantineEntry{}
	if !q.loaded() {
		return entries
	}
	q.mu.RLock()
	defer q.mu.RUnlock()
	for _, e := range q.held {
		entries = append(entries, e)
	}
	slices.SortFunc(entries, func(a, b QuarantineEntry) int { return cmp.Compare(a.Agent, b.Agent) })
	return entries
}
