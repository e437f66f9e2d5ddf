// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"errors"
	"fmt"
	"io/fs"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"agentrun/internal/fault"
)

// Options of a Log. The zero value is what agentrun runs with.
type Options struct {
	// Now is the clock for the time of entries; nil means time.Now.
	Now func() time.Time
	// SyncAlways makes every Append an AppendSync (`audit.sync: always`).
	SyncAlways bool
	// SyncDelay is how long an entry that was appended without sync waits for one; zero means 50 ms. H-28 allows 100 ms
	// until it is on disk; the rest is for the sync itself.
	SyncDelay time.Duration
	// RotateBytes is the size at which a file is closed and the next begun; zero means 64 MiB. A file is longer by at most
	// one batch of writes.
	RotateBytes int64
}

const (
	defaultSyncDelay   = 50 * time.Millisecond
	defaultRotateBytes = 64 << 20
)

var (
	// ErrClosed is what a closed log answers.
	ErrClosed = errors.New("audit log is closed")
	// ErrBroken is in every error of a log that once could not write or sync. After an error of fsync, Linux marks the
	// pages clean: a second fsync would report a success that never was. So nothing is tried again; reopening starts from
	// what the file really holds.
	ErrBroken = errors.New("audit log could not be written; it refuses until it is reopened")
)

// MayReopen tells an error after which whoever holds the log does well to close it and open it anew: a write was refused, as for want of
// room, and what the file holds is known. After a failed sync nobody knows what of the file is on the disk, and a second one may say
// that all of it is: such a log stays broken for as long as the process lives.
func MayReopen(err error) bool {
	pe, ok := errors.AsType[*fs.PathError](err)
	return ok && pe.Op == "write" && errors.Is(err, ErrBroken)
}

// Log appends to one chain. It may be used by many goroutines, and any number of processes may have a Log of the same
// chain.
type Log struct {
	chain string
	opt   Options
	dir   *folder
	lock  int // the lock file
	sys   syscalls

	life   sync.RWMutex // held for reading by every call, for writing by Close
	closed bool

	// queueMu guards queue and leading. Whoever finds nobody leading writes for all who wait; see submit.
	queueMu sync.Mutex
	queue   []*request
	leading bool
	used    sync.Pool // of *request; a Log's own, as channels of one test's bubble must not get into another

	// The leader's own. Only one goroutine leads at a time, under the chain's lock.
	head Head
	size int64 // of the current file, as we left it
	buf  []byte

	// syncMu guards what is known to be on disk. Nobody changes file and number while syncing is set.
	syncMu  sync.Mutex
	syncEnd sync.Cond // on syncMu
	syncing bool
	waiting int // for the sync that runs
	file    int // descriptor, -1 before the first
	number  int // of the file
	synced  uint64
	written atomic.Uint64 // batches written by this Log
	armed   atomic.Bool   // a background sync is due
	left    atomic.Bool   // to Close
	broken  atomic.Pointer[error]
}

var _ Appender = (*Log)(nil)

// syscalls are those that tests make fail.
type syscalls struct {
	write func(fd int, b []byte) (int, error)
	sync  func(fd int) error
}

// Open opens the log of a chain beneath dir and creates it if there is none. If a writer died in the middle of a line,
// that is repaired here, on the record. Errors: *DamagedError if the end of the chain is not what a writer left,
// *ModeError if others may write to it, *fs.PathError for the rest.
func Open(dir, chain string, opt Options) (*Log, error) {
	if err := checkChain(chain); err != nil {
		return nil, err
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.SyncDelay <= 0 {
		opt.SyncDelay = defaultSyncDelay
	}
	if opt.RotateBytes <= 0 {
		opt.RotateBytes = defaultRotateBytes
	}
	return open(dir, chain, opt, syscalls{write: unix.Write, sync: unix.Fdatasync})
}

func open(dir, chain string, opt Options, sys syscalls) (*Log, error) {
	f, err := createFolder(dir, chain)
	if err != nil {
		return nil, fmt.Errorf("audit log %s: %w", chain, err)
	}
	l := &Log{chain: chain, opt: opt, dir: f, sys: sys, file: -1}
	l.syncEnd.L = &l.syncMu
	if l.lock, err = f.open(lockName, unix.O_RDWR|unix.O_CREAT); err != nil {
		f.close()
		return nil, fmt.Errorf("audit log %s: %w", chain, err)
	}
	if err := l.locked(l.refresh); err != nil {
		// A repair may already have asked for a sync, which must not meet these descriptors under other owners.
		l.life.Lock()
		l.closed = true
		l.release()
		l.life.Unlock()
		return nil, fmt.Errorf("audit log %s: %w", chain, err)
	}
	return l, nil
}

// Append returns when the entry is in the file: the end of this process, however sudden, doesn't lose it any more. It is
// synced to disk within 100 ms. After an error nothing may be granted on the strength of the record; it may be in the
// chain all the same.
func (l *Log) Append(r Record) (Entry, error) {
	e, _, err := l.append(r, l.opt.SyncAlways)
	return e, err
}

// AppendSync returns when the entry and all before it are on disk. Calls that come together share one write and one sync.
func (l *Log) AppendSync(r Record) (Entry, error) {
	e, _, err := l.append(r, true)
	return e, err
}

// AppendThen is Append for who has work to do meanwhile: settled returns when the entry and all before it are on disk, or with why
// that isn't known.
func (l *Log) AppendThen(r Record) (e Entry, settled func() error, err error) {
	e, batch, err := l.append(r, l.opt.SyncAlways)
	if err != nil {
		return Entry{}, nil, err
	}
	return e, func() error {
		l.life.RLock()
		defer l.life.RUnlock()
		if l.closed { // Close has synced, or broken it
			return l.check()
		}
		return l.syncTo(batch)
	}, nil
}

func (l *Log) append(r Record, sync bool) (_ Entry, batch uint64, err error) {
	if r == nil {
		return Entry{}, 0, errNoRecord
	}
	// Anybody else's would say something about files that isn't so, and stop the chain.
	switch r.(type) {
	case *Repair, *Rotation:
		return Entry{}, 0, fmt.Errorf("record %s: only the log itself writes those", r.Kind())
	}
	l.life.RLock()
	defer l.life.RUnlock()
	if l.closed {
		return Entry{}, 0, ErrClosed
	}
	q := l.request()
	defer l.used.Put(q)
	q.kind, q.sync, q.leads, q.err = r.Kind(), sync, false, nil
	if q.data, err = appendData(q.data[:0], r); err != nil {
		return Entry{}, 0, err
	}
	if err := l.submit(q); err != nil {
		return Entry{}, 0, err
	}
	if sync {
		if err := l.syncTo(q.batch); err != nil {
			return Entry{}, 0, err
		}
	}
	q.entry.Data = r
	return q.entry, q.batch, nil
}

// Sync returns when everything appended so far is on disk.
func (l *Log) Sync() error {
	l.life.RLock()
	defer l.life.RUnlock()
	if l.closed {
		return ErrClosed
	}
	return l.syncTo(l.written.Load())
}

// Close syncs and closes. Calls under way are finished first. Closing twice is no error.
func (l *Log) Close() error {
	l.life.Lock()
	defer l.life.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	err := l.syncTo(l.written.Load())
	l.release()
	return err
}

// Leave is for who closes the log soon: until then no background sync is made, which many logs that are closed together would each make
// for themselves.
func (l *Log) Leave() { l.left.Store(true) }

func (l *Log) release() {
	if l.file >= 0 {
		unix.Close(l.file)
	}
	unix.Close(l.lock)
	l.dir.close()
}

// locked runs f under the chain's lock.
func (l *Log) locked(f func() error) error {
	if err := lock(l.lock, unix.LOCK_EX); err != nil {
		return l.dir.error("flock", lockName, err)
	}
	err := f()
	if uerr := lock(l.lock, unix.LOCK_UN); uerr != nil && err == nil {
		err = l.dir.error("flock", lockName, uerr)
	}
	return err
}

// fail breaks the log; the first reason stays.
func (l *Log) fail(err error) error {
	err = fmt.Errorf("audit log %s: %w: %w", l.chain, ErrBroken, err)
	l.broken.CompareAndSwap(nil, &err)
	return *l.broken.Load()
}

func (l *Log) check() error {
	if p := l.broken.Load(); p != nil {
		return *p
	}
	return nil
}

// syncTo returns when the batch and all before it are on disk. Those who come while a sync runs wait for its end, and one
// of them makes the next for all.
func (l *Log) syncTo(batch uint64) error {
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	for {
		if err := l.check(); err != nil {
			return err
		}
		if l.synced >= batch {
			return nil
		}
		if !l.syncing {
			return l.syncFile()
		}
		l.waiting++
		l.syncEnd.Wait()
		l.waiting--
	}
}

// syncFile wants syncMu, and gives it up during the sync.
func (l *Log) syncFile() error {
	l.syncing = true
	busy := l.waiting > 0
	l.syncMu.Unlock()
	if busy {
		// The last sync has just set others free, who are about to write: let them, and this one is for them too.
		goruntime.Gosched()
	}
	upTo := l.written.Load()
	err := l.sync(l.file)
	l.syncMu.Lock()
	l.syncing = false
	l.syncEnd.Broadcast()
	if err != nil {
		return l.fail(l.dir.error("sync", fileName(l.number), err))
	}
	l.synced = upTo
	return nil
}

func (l *Log) sync(fd int) error {
	if err := fault.At("audit/sync"); err != nil {
		return err
	}
	_, err := retry(func() (int, error) { return 0, l.sys.sync(fd) })
	return err
}

// syncSoon is for what was appended without a sync: one is made for all of it, SyncDelay after the first.
func (l *Log) syncSoon() {
	if l.armed.Swap(true) {
		return
	}
	time.AfterFunc(l.opt.SyncDelay, func() {
		l.life.RLock()
		defer l.life.RUnlock()
		l.armed.Store(false) // before the sync: what is written during it may have missed it
		if !l.closed && !l.left.Load() {
			_ = l.syncTo(l.written.Load()) // the next Append says it
		}
	})
}
