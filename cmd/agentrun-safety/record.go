// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"agentrun/audit"
	"agentrun/audit/heads"
)

// Below the state folder, as hypervisor has them.
const (
	auditDir       = "audit"
	checkpointsDir = "checkpoints"
	keysDir        = "keys"
)

// recorder keeps the loop's records in the chains of the state folder, beside those of sandboxes.
type recorder struct {
	stateDir string

	mu   sync.Mutex
	logs map[string]*audit.Log
	news map[string]bool // chains with entries that no checkpoint covers
}

func newRecorder(stateDir string) *recorder {
	return &recorder{stateDir: stateDir, logs: map[string]*audit.Log{}, news: map[string]bool{}}
}

// Record returns when the entry is on disk: an agent goes on on the strength of it (H-28).
func (r *recorder) Record(_ context.Context, session string, rec audit.Record) error {
	chain := audit.NodeChain
	if session != "" {
		chain = audit.SessionChain(session)
	}
	l, err := r.log(chain)
	if err != nil {
		return err
	}
	_, err = l.AppendSync(rec)
	if audit.MayReopen(err) {
		r.giveUp(chain, l)
	}
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	return nil
}

// giveUp has the next record open the chain anew: a dongle may live long after the minute in which the disk was full.
func (r *recorder) giveUp(chain string, l *audit.Log) {
	r.mu.Lock()
	if r.logs[chain] == l {
		delete(r.logs, chain)
	}
	r.mu.Unlock()
	_ = l.Close() // says again why it was given up
}

func (r *recorder) log(chain string) (*audit.Log, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.news[chain] = true
	if l := r.logs[chain]; l != nil {
		return l, nil
	}
	for _, dir := range []string{r.stateDir, filepath.Join(r.stateDir, auditDir)} {
		if err := onlyOurs(dir); err != nil {
			return nil, err
		}
	}
	l, err := audit.Open(filepath.Join(r.stateDir, auditDir), chain, audit.Options{})
	if err != nil {
		return nil, err
	}
	r.logs[chain] = l
	return l, nil
}

// Close signs where the chains stand that were written to (H-26), the node's last: the first checkpoint of all puts the key it
// made on record there.
func (r *recorder) Close() error {
	r.mu.Lock()
	chains := slices.Sorted(maps.Keys(r.news))
	r.mu.Unlock()
	if i := slices.Index(chains, audit.NodeChain); i >= 0 {
		chains = append(slices.Delete(chains, i, i+1), audit.NodeChain)
	}
	var errs []error
	for _, chain := range chains {
		errs = append(errs, r.checkpoint(chain))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.logs {
		errs = append(errs, l.Close())
	}
	r.logs = map[string]*audit.Log{}
	return errors.Join(errs...)
}

func (r *recorder) checkpoint(chain string) error {
	k := audit.Checkpoints{Dir: filepath.Join(r.stateDir, checkpointsDir), Heads: heads.State{Dir: r.stateDir}}
	key, created, err := audit.LoadOrCreateKey(filepath.Join(r.stateDir, keysDir))
	if err == nil && created {
		err = k.Begin(filepath.Join(r.stateDir, auditDir), audit.NodeChain)
	}
	if err == nil && created {
		err = r.Record(context.Background(), "", &audit.Key{Event: "created", KeyID: key.ID(), PublicKey: key.Public(), Purpose: "audit_checkpoint"})
	}
	if err != nil {
		return err
	}
	k.Key = key
	_, _, err = k.Write(filepath.Join(r.stateDir, auditDir), chain)
	return err
}

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
		return fmt.Errorf("%s: others can write to it (uid %d, mode %04o); chown it and chmod 700, if its content is to be trusted", dir, st.Uid, st.Mode&0o7777)
	}
	return nil
}
