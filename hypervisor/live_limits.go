// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"fmt"

	"agentrun/audit"
)

// LimitOrder is an operator's order to change limits of a live run (M-3).
type LimitOrder struct {
	By     string   // who, as the audit shall have it: "uid:0"
	Limits []string // as they shall be, such as "memory 2GiB"
	Note   string   // why, in the operator's words; may be empty
}

// RecordLimits puts an order on record, on disk, before it takes effect. An error means that it must not.
func (c *Control) RecordLimits(o LimitOrder) error {
	err := c.h.record(c.adm.Session, true, &audit.LimitChange{
		AgentID: c.who, By: audit.Claimed(o.By), Limits: o.Limits, Note: noteOf(o.Note), RunID: c.opt.Run,
	})
	if err != nil {
		return fmt.Errorf("limits of run %s: %w", c.opt.Run, err)
	}
	return nil
}
