// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"fmt"

	"agentrun/audit"
)

// FileCopy is what an operator copied (M-23).
type FileCopy struct {
	By             string // who, as the audit shall have it: "uid:0"
	In             bool   // into the run
	Path           string // in the sandbox
	Entries, Bytes int64
	Digest         [32]byte // SHA-256 of the tar
	Code           string   // why it ended early; empty: it didn't
}

// RecordCopy puts a copy on record, on disk, before the operator hears that it is done.
func (c *Control) RecordCopy(f FileCopy) error {
	direction := "out"
	if f.In {
		direction = "in"
	}
	err := c.h.record(c.adm.Session, true, &audit.FileCopy{
		AgentID: c.who, By: audit.Claimed(f.By), Bytes: f.Bytes, Code: f.Code, Direction: direction, Entries: f.Entries,
		Path: audit.Claimed(f.Path), RunID: c.opt.Run, SHA256: f.Digest,
	})
	if err != nil {
		return fmt.Errorf("copy of files of run %s: %w", c.opt.Run, err)
	}
	return nil
}
