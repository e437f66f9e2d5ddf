// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"crypto/sha256"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Watcher keeps a policy file's last valid content. It does nothing by itself: Current looks at the file when it is asked, at most once
// in Every, so there is no goroutine to stop. It is safe for concurrent use.
type Watcher struct {
	path string
	o    WatchOptions

	mu      sync.Mutex
	policy  *Policy
	sum     [sha256.Size]byte
	stamp   stamp
	checked time.Time
	loaded  time.Time // by the clock of the file system, as far as the file tells: see settled
	fault   string    // told already
}

// WatchOptions are what a Watcher needs. Now is required.
type WatchOptions struct {
	Now   func() time.Time
	Every time.Duration // 0: 1 s
	// Changed is called with each new valid policy but the first. May be nil. Neither is called while a lock is held.
	Changed func(*Policy)
	// Failed is called once for each fault of the file; the last valid policy goes on. May be nil.
	Failed func(error)
}

// stamp tells two states of a file apart without reading it.
type stamp struct {
	modified time.Time
	changed  int64
	size     int64
	inode    uint64
}

func stampOf(info os.FileInfo) stamp {
	s := stamp{modified: info.ModTime(), size: info.Size()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		s.inode, s.changed = sys.Ino, sys.Ctim.Nano()
	}
	return s
}

// Watch reads the file, which must be valid now: there is no earlier one to go on with.
func Watch(path string, o WatchOptions) (*Watcher, error) {
	if o.Every <= 0 {
		o.Every = time.Second
	}
	text, info, err := contents(path)
	if err != nil {
		return nil, err
	}
	p, err := Parse(filepath.Base(path), text)
	if err != nil {
		return nil, err
	}
	now := o.Now()
	return &Watcher{path: path, o: o, policy: p, sum: sha256.Sum256(text), stamp: stampOf(info), checked: now, loaded: now}, nil
}

// Current is the last valid policy, after a look at the file if the last one is Every ago.
func (w *Watcher) Current() *Policy {
	w.mu.Lock()
	now := w.o.Now()
	if since := now.Sub(w.checked); since >= 0 && since < w.o.Every {
		defer w.mu.Unlock()
		return w.policy
	}
	p, tell := w.lookLocked(now)
	w.mu.Unlock()
	tell()
	return p
}

func (w *Watcher) lookLocked(now time.Time) (p *Policy, tell func()) {
	w.checked = now
	if info, err := os.Stat(w.path); err == nil && w.fault == "" && stampOf(info) == w.stamp && w.settled(now) {
		return w.policy, func() {}
	}
	text, info, err := contents(w.path)
	if err != nil {
		return w.failLocked(err)
	}
	w.stamp, w.loaded = stampOf(info), now
	sum := sha256.Sum256(text)
	if sum == w.sum {
		w.fault = ""
		return w.policy, func() {}
	}
	next, err := Parse(filepath.Base(w.path), text)
	if err != nil {
		return w.failLocked(err)
	}
	w.policy, w.sum, w.fault = next, sum, ""
	return next, func() {
		if w.o.Changed != nil {
			w.o.Changed(next)
		}
	}
}

// settled: a file that was written just before it was read may be written again without another time stamp, because those of a
// file system are coarse (up to 2 s). Until then it is read at each look.
func (w *Watcher) settled(now time.Time) bool {
	return w.loaded.Sub(w.stamp.modified) > 2*time.Second && now.After(w.stamp.modified)
}

// failLocked tells a fault once.
func (w *Watcher) failLocked(err error) (*Policy, func()) {
	if w.fault == err.Error() {
		return w.policy, func() {}
	}
	w.fault = err.Error()
	return w.policy, func() {
		if w.o.Failed != nil {
			w.o.Failed(err)
		}
	}
}
