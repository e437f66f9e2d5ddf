// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"fmt"

	"agentrun/audit"
)

// SandboxLife is what became of a kept sandbox (M-23).
type SandboxLife struct {
	By       string // who, as the audit shall have it: "uid:0"
	Change   string // as audit.SandboxLife has it
	Name, To string // To: the new name
	Run      string // its last one
	Restarts int    // in a row
}

// RecordSandbox puts it on record, on disk, before it takes effect.
func (h *Hypervisor) RecordSandbox(l SandboxLife) error {
	r := &audit.SandboxLife{By: audit.Claimed(l.By), Change: l.Change, Name: audit.Claimed(l.Name), RunID: l.Run, Restarts: int64(l.Restarts)}
	if l.To != "" {
		r.To = audit.Claimed(l.To)
	}
	if err := h.record("", true, r); err != nil {
		return fmt.Errorf("sandbox %s: %w", l.Name, err)
	}
	return nil
}
