// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"fmt"
	"sync/atomic"

	"agentrun/audit"
)

// PauseOrder is a pause of a live run, or its end (M-23).
type PauseOrder struct {
	Paused bool
	By     string // who, as the audit shall have it: "uid:0"; "agentrun" of the idle rule
	Cause  string // operator, idle, freeze; of its end also what it was ended for: exec, copy, signal, call, thaw
}

// RecordPause puts it on record, on disk. An error means that it must not be.
func (c *Control) RecordPause(o PauseOrder) error {
	err := c.h.record(c.adm.Session, true, &audit.SandboxPause{
		AgentID: c.who, By: audit.Claimed(o.By), Cause: o.Cause, Paused: o.Paused, RunID: c.opt.Run, SessionID: c.adm.Session,
	})
	if err != nil {
		return fmt.Errorf("pause of run %s: %w", c.opt.Run, err)
	}
	return nil
}

// RecordSignal puts a signal that an operator sends on record.
func (c *Control) RecordSignal(signal int, by string) error {
	err := c.h.record(c.adm.Session, false, &audit.SandboxSignal{
		AgentID: c.who, By: audit.Claimed(by), RunID: c.opt.Run, SessionID: c.adm.Session, Signal: int64(signal),
	})
	if err != nil {
		return fmt.Errorf("signal to run %s: %w", c.opt.Run, err)
	}
	return nil
}

// calls counts what a run asks of its way out: all that there was, and what has no answer yet.
type calls struct{ made, open atomic.Int64 }

// Calls is how often the run has asked for a tool, a model or a connection, and how many of its calls of tools and models are not over.
func (c *Control) Calls() (made, open int64) { return c.calls.made.Load(), c.calls.open.Load() }
