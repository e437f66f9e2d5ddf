// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"agentrun/audit"
	"agentrun/audit/heads"
	"agentrun/internal/fault"
	"agentrun/telemetry/mask"
)

// noteOf is what an operator wrote, as it stays on record for ever: one printable line, secrets masked, cut to what a record
// holds. Nothing stays nothing.
func noteOf(s string) string {
	if s == "" {
		return ""
	}
	return audit.Claimed(strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, mask.Text(s)))
}

// claimedBy is who asked for something; nobody stays nobody.
func claimedBy(by string) string {
	if by == "" {
		return ""
	}
	return audit.Claimed(by)
}

// auditDir is below the state folder; checkpoints and keys lie beside it, apart from what they vouch for (H-26).
const auditDir = "audit"

// record puts r into the chain of session, or the node's if that is empty. With durable it is on disk when record
// returns, else within 100 ms (H-28). After an error nothing may be granted.
func (h *Hypervisor) record(session string, durable bool, r audit.Record) error {
	if err := fault.At("record/" + string(r.Kind())); err != nil {
		return err
	}
	return h.recordBy(session, r, func(l *audit.Log) (err error) {
		if durable {
			_, err = l.AppendSync(r)
		} else {
			_, err = l.Append(r)
		}
		return err
	})
}

// recordThen is record without durable; settled returns when it is on disk.
func (h *Hypervisor) recordThen(session string, r audit.Record) (settled func() error, err error) {
	if err := fault.At("record/" + string(r.Kind())); err != nil {
		return nil, err
	}
	return settled, h.recordBy(session, r, func(l *audit.Log) (err error) {
		_, settled, err = l.AppendThen(r)
		return err
	})
}

func (h *Hypervisor) recordBy(session string, r audit.Record, write func(*audit.Log) error) error {
	l, err := h.log(session)
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.news[chainOf(session)] = true
	h.mu.Unlock()
	err = write(l)
	if audit.MayReopen(err) {
		h.giveUp(chainOf(session), l)
	}
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	h.tally(r)
	return nil
}

// giveUp has the next record open the chain anew. A log that once could not write refuses for ever, and a run may live long after
// the minute in which the disk was full. What could not be recorded stays refused: the next record begins from what the file holds, as
// one of another process would, and a chain whose end isn't a writer's is not opened.
func (h *Hypervisor) giveUp(chain string, l *audit.Log) {
	h.mu.Lock()
	if h.logs[chain] == l {
		delete(h.logs, chain)
	}
	h.mu.Unlock()
	_ = l.Close() // says again why it was given up
}

// log opens a chain when it is first needed.
func (h *Hypervisor) log(session string) (*audit.Log, error) {
	chain := chainOf(session)
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.logs[chain]; l != nil {
		return l, nil
	}
	for _, dir := range []string{h.opt.StateDir, filepath.Join(h.opt.StateDir, auditDir)} {
		if err := onlyOurs(dir); err != nil {
			return nil, err
		}
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
	h.mu.Lock()
	log := h.logs[chain]
	h.mu.Unlock()
	k := h.checkpoints()
	if log != nil {
		k.Syncing = func() { _ = log.Sync() } // closing it then has nothing left to wait for, and says what went wrong
	}
	key, created, err := audit.LoadOrCreateKey(filepath.Join(h.opt.StateDir, keysDir))
	if err == nil && created {
		err = h.begin(audit.NodeChain)
		err = errors.Join(err, h.record("", false, &audit.Key{
			Event: "created", KeyID: key.ID(), PublicKey: key.Public(), Purpose: "audit_checkpoint",
		}))
	}
	if err != nil {
		return err
	}
	h.mu.Lock()
	delete(h.news, chain) // what is written from here on is for the next one
	h.mu.Unlock()
	k.Key = key
	_, _, err = k.Write(filepath.Join(h.opt.StateDir, auditDir), chain)
	return err
}

// begin is for before the end of a run goes on record in a chain: its first checkpoint follows.
func (h *Hypervisor) begin(chain string) error {
	k := h.checkpoints()
	return k.Begin(filepath.Join(h.opt.StateDir, auditDir), chain)
}

func (h *Hypervisor) checkpoints() audit.Checkpoints {
	state := h.opt.StateDir
	return audit.Checkpoints{Dir: filepath.Join(state, checkpointsDir), Heads: heads.State{Dir: state}, Now: h.opt.Now}
}

func chainOf(session string) string {
	if session == "" {
		return audit.NodeChain
	}
	return audit.SessionChain(session)
}

// ErrOthersCanWrite is a folder of the state that somebody else could put another in the place of.
var ErrOthersCanWrite = errors.New("others can write to it")

// onlyOurs looks at the folders above the chain's own, which audit looks at: whoever can rename in them can exchange the whole
// chain. One that isn't there yet is made by audit, mode 0700.
func onlyOurs(dir string) error {
	var st unix.Stat_t
	switch err := unix.Lstat(dir, &st); {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return &fs.PathError{Op: "lstat", Path: dir, Err: err}
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return &fs.PathError{Op: "open", Path: dir, Err: unix.ENOTDIR}
	case int(st.Uid) != unix.Geteuid() || st.Mode&0o022 != 0:
		return fmt.Errorf("%s: %w (uid %d, mode %04o); chown it and chmod 700, if its content is to be trusted", dir, ErrOthersCanWrite, st.Uid, st.Mode&0o7777)
	}
	return nil
}
