// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	lockName  = "state.lock" // held during a transaction
	namesName = "names.lock" // TryLock's: one byte each
)

// acquire waits for the transaction lock, first within the process, so that at most one thread of it waits in the kernel.
//
// bbolt would lock its file itself, by asking every 50 ms. Its lock stays as the second line (somebody may remove
// state.lock, or open the file with bbolt's own tool), but behind ours it is always free.
//
// Readers take it exclusively too. flock(2) isn't fair: readers that share would overlap for ever, and the writer that
// has a quarantine to record would wait for them.
func (d *DB) acquire(ctx context.Context) (release func(), err error) {
	if err := take(ctx, d.sem, d.limit); err != nil {
		return nil, fmt.Errorf("state %s: %w", d.path(lockName), err)
	}
	f, err := d.flock(ctx)
	if err != nil {
		<-d.sem
		return nil, err
	}
	return func() {
		// Unlocked by name and not only by close: a child that another goroutine is just forking has a copy of
		// the descriptor until its exec.
		_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
		f.Close()
		<-d.sem
	}, nil
}

// waiter is a thread that waits for the lock in the kernel, from where it can't be called back. Who comes after one that gave up waits for
// the same: else there would be a thread for each, and the turn that comes would be nobody's.
type waiter struct {
	file   *os.File
	done   chan error // holds one
	wanted bool       // somebody waits for it; of the DB's mu
}

// flock gives the file, locked. One at a time calls it.
func (d *DB) flock(ctx context.Context) (*os.File, error) {
	w, err := d.wait()
	if err != nil {
		return nil, fmt.Errorf("state %s: lock: %w", d.path(lockName), err)
	}
	select {
	case err := <-w.done: // it was free
		return w.locked(err)
	default:
	}
	timer := time.NewTimer(d.limit)
	defer timer.Stop()
	select {
	case err := <-w.done:
		return w.locked(err)
	case <-ctx.Done():
		err = ctx.Err()
	case <-timer.C:
		err = fmt.Errorf("%w: another agentrun process holds it for over %v", ErrBusy, d.limit)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case err := <-w.done: // in this instant
		return w.locked(err)
	default:
	}
	w.wanted = false
	return nil, fmt.Errorf("state %s: %w", d.path(lockName), err)
}

func (w *waiter) locked(err error) (*os.File, error) {
	if err != nil {
		w.file.Close()
		return nil, fmt.Errorf("state %s: lock: %w", w.file.Name(), err)
	}
	return w.file, nil
}

// wait begins to wait, or goes on where another gave up.
func (d *DB) wait() (*waiter, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.late != nil {
		d.late.wanted = true
		return d.late, nil
	}
	f, err := openFile(d.dir, lockName, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	w := &waiter{file: f, done: make(chan error, 1), wanted: true}
	err = ignoringEINTR(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
	if !errors.Is(err, unix.EWOULDBLOCK) {
		w.done <- err
		return w, nil
	}
	d.late = w
	go func() {
		err := ignoringEINTR(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX) })
		d.mu.Lock()
		defer d.mu.Unlock()
		d.late = nil
		if w.wanted {
			w.done <- err
			return
		}
		if err == nil {
			_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
		}
		f.Close()
	}()
	return w, nil
}

// TryLock takes the lock called name, or returns ErrBusy. The kernel releases it when the process, and every child that
// was given its File, is dead. Names are told apart by 62 bits of their SHA-256: two that meet are only busy at once.
func (d *DB) TryLock(name string) (*Lock, error) {
	// An own open file description for each lock: it is what the kernel counts as the holder (F_OFD_SETLK in fcntl(2)),
	// so two goroutines exclude each other as two processes do, and closing another one releases nothing.
	f, err := openFile(d.dir, namesName, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(name))
	at := int64(binary.BigEndian.Uint64(sum[:8]) >> 2)
	lk := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: at, Len: 1}
	err = ignoringEINTR(func() error { return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lk) })
	if err != nil {
		f.Close()
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			err = ErrBusy
		}
		return nil, fmt.Errorf("lock %.300q: %w", name, err)
	}
	return &Lock{file: f, release: func() {
		lk.Type = unix.F_UNLCK
		_ = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lk)
		f.Close()
	}}, nil
}

func ignoringEINTR(fn func() error) error {
	for {
		if err := fn(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
