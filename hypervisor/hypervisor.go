// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/audit"
	"agentrun/governance"
	"agentrun/internal/thread"
	"agentrun/meter"
	"agentrun/rings"
	"agentrun/store"
)

// Options say where a node keeps what it remembers. StateDir is required.
type Options struct {
	StateDir string
	Own      []string           // agentrun's other folders on this host, absolute: no run is shown anything of them either
	SyncAll  bool               // every audit record is on disk before Append returns, not just those of H-28
	Plans    governance.Sources // besides the built-in plans (M-19)
	Signer   *Signer            // signs what Close would; nil: Close does
	Now      func() time.Time   // nil: time.Now
	// Boot is a clock that nobody can set and that goes on while the machine is suspended; nil: CLOCK_BOOTTIME.
	Boot func() time.Duration
}

// Hypervisor is the node. It opens what it needs when it needs it: a run without agent and session touches no state.
// Safe for concurrent use.
type Hypervisor struct {
	opt     Options
	now     func() time.Time
	boot    func() time.Duration
	opening sync.WaitGroup

	mu     sync.Mutex
	db     *store.DB
	meters *meter.Table
	logs   map[string]*audit.Log
	news   map[string]bool // chains with entries that no checkpoint covers yet

	undoMu     sync.Mutex
	undoAgents map[string]string // by runs with calls that can be undone
}

// Open checks nothing yet; the first use says what is wrong.
func Open(opt Options) (*Hypervisor, error) {
	if opt.StateDir == "" {
		return nil, errors.New("hypervisor: no state folder")
	}
	h := &Hypervisor{opt: opt, now: opt.Now, boot: opt.Boot, logs: map[string]*audit.Log{}, news: map[string]bool{}}
	if h.now == nil {
		h.now = time.Now
	}
	if h.boot == nil {
		h.boot = sinceBoot
	}
	return h, nil
}

// Expect opens a session's chain, or the node's, beside what else the caller does: for one who will soon write to it. What is wrong
// with it the first record says.
func (h *Hypervisor) Expect(session string) {
	h.opening.Add(1)
	thread.Beside(func() {
		defer h.opening.Done()
		_, _ = h.log(session)
	})
}

// Close puts every record on disk, signs where the chains stand that were written to, or has the Signer do it (H-26), and gives the files up. What
// was decided holds whatever it returns; an *audit.BrokenError says that somebody has been at the log.
func (h *Hypervisor) Close() error {
	h.opening.Wait()
	chains := h.unsigned()
	if s := h.opt.Signer; s != nil {
		return errors.Join(h.release(s.end), s.later(chains))
	}
	var errs []error
	for _, chain := range chains {
		errs = append(errs, h.checkpoint(chain))
	}
	return errors.Join(append(errs, h.release((*audit.Log).Close))...)
}

func (h *Hypervisor) release(end func(*audit.Log) error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for _, l := range h.logs {
		errs = append(errs, end(l))
	}
	h.logs = map[string]*audit.Log{}
	if h.db != nil {
		errs = append(errs, h.db.Close())
		h.db = nil
	}
	if h.meters != nil {
		errs = append(errs, h.meters.Close())
		h.meters = nil
	}
	return errors.Join(errs...)
}

// unsigned are the chains with entries that no checkpoint covers. The node's is last: the first checkpoint of all puts the
// key it made on record there.
func (h *Hypervisor) unsigned() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	chains := slices.Sorted(maps.Keys(h.news))
	if i := slices.Index(chains, audit.NodeChain); i >= 0 {
		chains = append(slices.Delete(chains, i, i+1), audit.NodeChain)
	}
	return chains
}

// account is what an agent has used up in a session, on this node. The operator's own runs have one each (H-16, H-24).
func (h *Hypervisor) account(agent, session string) (*meter.Account, error) {
	if agent == "" {
		return meter.Alone(h.boot), nil
	}
	return h.meterOf(agent, session)
}

func (h *Hypervisor) meterOf(agent, session string) (*meter.Account, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.meters == nil {
		t, err := meter.Open(h.opt.StateDir, h.boot)
		if err != nil {
			return nil, err
		}
		h.meters = t
	}
	return h.meters.Account(agent, session)
}

func (h *Hypervisor) store() (*store.DB, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.db == nil {
		db, err := store.Open(h.opt.StateDir, store.Options{})
		if err != nil {
			return nil, err
		}
		h.db = db
	}
	return h.db, nil
}

// view reads the state. A node that has none yet isn't given one for being asked.
func (h *Hypervisor) view(ctx context.Context, fn func(*store.Tx) error) error {
	if _, err := os.Lstat(filepath.Join(h.opt.StateDir, stateFile)); errors.Is(err, fs.ErrNotExist) {
		return store.NewMemory().View(ctx, fn)
	}
	db, err := h.store()
	if err != nil {
		return err
	}
	return db.View(ctx, fn)
}

func (h *Hypervisor) update(ctx context.Context, fn func(*store.Tx) error) error {
	db, err := h.store()
	if err != nil {
		return err
	}
	return db.Update(ctx, fn)
}

// sinceBoot reads CLOCK_BOOTTIME, which counts the time that the machine is suspended; what time.Now carries beside the wall
// time is CLOCK_MONOTONIC, which doesn't (clock_gettime(2)). With this clock id and a valid address the call can't fail.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
	return time.Duration(ts.Nano())
}

const stateFile = store.File

// DeniedError is a decision against what was asked for.
type DeniedError struct {
	What string // the act, as "run agent a in ring 1"
	rings.Decision
	Hint string
}

func (e *DeniedError) Error() string {
	return e.What + ": " + e.Reason + " (" + string(e.Code) + ", " + e.Rule + ")"
}
