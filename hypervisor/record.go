// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"fmt"
	"path/filepath"

	"agentrun/audit"
)

// auditDir is below the state folder; checkpoints and keys lie beside it, apart from what they vouch for (H-26).
const auditDir = "audit"

// record puts r into the chain of session, or the node's if that is empty. With durable it is on disk when record
// returns, else within 100 ms (H-28). After an error nothing may be granted.
func (h *Hypervisor) record(session string, durable bool, r audit.Record) error {
	l, err := h.log(session)
	if err != nil {
		return err
	}
	if durable {
		_, err = l.AppendSync(r)
	} else {
		_, err = l.Append(r)
	}
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	return nil
}

// log opens a chain when it is first needed.
func (h *Hypervisor) log(session string) (*audit.Log, error) {
	chain := chainOf(session)
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.logs[chain]; l != nil {
		return l, nil
	}
	l, err := audit.Open(filepath.Join(h.opt.StateDir, auditDir), chain, audit.Options{Now: h.opt.Now, SyncAlways: h.opt.SyncAll})
	if err != nil {
		return nil, err
	}
	h.logs[chain] = l
	return l, nil
}

// Where what vouches for the audit is kept, below the state folder and apart from the log (H-26).
const (
	checkpointsDir = "checkpoints"
	keysDir        = "keys"
)

// checkpoint signs where a chain stands.
func (h *Hypervisor) checkpoint(chain string) error {
	key, created, err := audit.LoadOrCreateKey(filepath.Join(h.opt.StateDir, keysDir))
	if err == nil && created {
		err = h.record("", false, &audit.Key{Event: "created", KeyID: key.ID(), PublicKey: key.Public(), Purpose: "audit_checkpoint"})
	}
	if err != nil {
		return err
	}
	k := audit.Checkpoints{Dir: filepath.Join(h.opt.StateDir, checkpointsDir), Key: key, Now: h.opt.Now}
	_, _, err = k.Write(filepath.Join(h.opt.StateDir, auditDir), chain)
	return err
}

func chainOf(session string) string {
	if session == "" {
		return audit.NodeChain
	}
	return audit.SessionChain(session)
}
