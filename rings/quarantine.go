// SPDX-License-Identifier: Apache-2.0

package rings

import (
	"errors"
	"fmt"
	"strings"
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

// Check refuses what Hold can't have made: an entry that was kept badly must not set its agent free.
func (e QuarantineEntry) Check() error {
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

// Hold returns the entry that holds an agent from now on. A reason or name that can't be kept is made so, not refused: it
// must not be why an agent stays free. On an error the agent could not be entered, and the caller must stop it otherwise.
func Hold(agent, reason, by string, now time.Time) (QuarantineEntry, error) {
	if err := CheckAgentID(agent); err != nil {
		return QuarantineEntry{}, fmt.Errorf("quarantine: %w", err)
	}
	return QuarantineEntry{Agent: agent, Since: now.UTC(), Reason: clip(reason), By: clip(by)}, nil
}
