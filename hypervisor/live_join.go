// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"fmt"

	"agentrun/audit"
	"agentrun/rings"
	"agentrun/runtime"
)

// JoinOrder is an operator's further command in a live run (M-23). It asks for no admission: the run has it,
// and the command is confined by the ring that the run has at each moment.
type JoinOrder struct {
	ID      string   // of the command in the audit
	By      string   // who, as the audit shall have it: "uid:0"
	Program []string // what is executed, without arguments (M-18)
	Ring    rings.Ring
}

// RecordJoin puts it on record, on disk, before its first instruction. An error means that it must not start.
func (c *Control) RecordJoin(o JoinOrder) error {
	program := make([]string, len(o.Program))
	for i, p := range o.Program {
		program[i] = noteOf(p)
	}
	err := c.h.record(c.adm.Session, true, &audit.SandboxJoin{
		AgentID: c.adm.Agent, By: audit.Claimed(o.By), JoinID: o.ID, ParentRunID: c.adm.parent.run, Program: program,
		Ring: audit.RingOf(o.Ring.Value()), RunID: c.opt.Run, SessionID: c.adm.Session,
	})
	if err != nil {
		return fmt.Errorf("join of run %s: %w", c.opt.Run, err)
	}
	return nil
}

// RecordJoinEnd puts on record how it ended.
func (c *Control) RecordJoinEnd(id string, s runtime.Status) error {
	return c.h.record(c.adm.Session, false, &audit.SandboxJoinEnd{
		AgentID: c.adm.Agent, ExitCode: int64(s.ExitCode), JoinID: id, RunID: c.opt.Run, SessionID: c.adm.Session,
		State: string(s.State), WallTimeNS: s.WallTime.Nanoseconds(),
	})
}
