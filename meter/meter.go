// SPDX-License-Identifier: Apache-2.0

// Package meter keeps what each agent has used up in each session, for all supervisors of a node together: its token bucket (H-16,
// H-17) and the window of its refused attempts (H-24). Two runs of one agent at once, or one after the other, share both.
//
// It is one file, mapped by everybody who counts. A bucket is one word and changes by compare-and-swap, so a tool call waits for
// nobody; a window is changed under a lock of the kernel's (F_OFD_SETLKW in fcntl(2)), for a refused call has a record to write
// anyway. Both kinds of state survive the death of any supervisor at any point: a word is whole or unchanged, and a window that is
// cut in the middle has an attempt too few or too many. A reboot begins anew, since no agent lives through it.
//
// A place belongs to its agent while one of its runs lives, and as long as something is counted there. Only then may another take it:
// who could drop a bucket could refill it (H-17).
package meter

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentrun/internal/mapped"
	"agentrun/rings"
	"agentrun/store"
)

const (
	// fileName has the version of the layout: supervisors of an older agentrun that still live count in a file of their own.
	fileName = "meters-2"

	headSize  = 4096 // the boot's id, and nothing else
	placeSize = 512
	keySize   = 16

	// near is how many places a key may have: those that follow its hash. All of them taken, the table is full for that key, which is
	// rarer than a table that is full for all, and finding one costs the same whatever the table holds.
	near = 256

	// Locks are bytes far beyond the file's end: one for the table, one for each place that a run of somebody's has, one for each window.
	tableLock   = 1 << 40
	placeLocks  = 1 << 41
	windowLocks = 1 << 42
)

// ErrFull is what a key gets that has no place: all are in use.
var ErrFull = errors.New("as many agents and sessions are counted as there is room for")

// place is one agent in one session. It lies in the mapped file, so its layout is the file's; zeros are nobody.
type place struct {
	key    [keySize]byte
	fullAt atomic.Int64 // when the bucket will be full again: nanoseconds since boot
	window rings.Attempts
	_      [placeSize - keySize - 8 - unsafe.Sizeof(rings.Attempts{})]byte
}

// Table is the node's. Safe for concurrent use, within a process and among them.
type Table struct {
	boot func() time.Duration
	file *os.File
	mem  []byte
	all  []place

	mu   sync.Mutex
	held map[int]int // how often a place is held in this process: to the kernel one descriptor is one holder
}

// Open maps the table in folder dir, made for this boot if there is none. The clock is the time since boot, suspended time included
// (CLOCK_BOOTTIME). The error is that of the file system; a table that is damaged is made anew only with the next boot.
func Open(dir string, boot func() time.Duration) (*Table, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, err
	}
	return open(dir, strings.TrimSpace(string(id)), boot, rings.MaxBuckets)
}

func open(dir, bootID string, boot func() time.Duration, places int) (*Table, error) {
	f, err := store.OpenBeside(dir, fileName)
	if err != nil {
		return nil, err
	}
	t := &Table{boot: boot, file: f, held: map[int]int{}}
	if err := t.prepare(bootID, places); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return t, nil
}

// prepare makes the file this boot's, and maps it. Whoever mapped it in an earlier boot is dead.
func (t *Table) prepare(bootID string, places int) error {
	unlock, err := t.lock(tableLock, unix.F_WRLCK)
	if err != nil {
		return err
	}
	defer unlock()
	size := int64(headSize + places*placeSize)
	head := make([]byte, len(bootID))
	info, err := t.file.Stat()
	if err != nil {
		return err
	}
	if n, _ := t.file.ReadAt(head, 0); info.Size() != size || n != len(head) || string(head) != bootID {
		// The id comes last: without it the next one begins anew.
		if err := errors.Join(t.file.Truncate(0), t.file.Truncate(size)); err != nil {
			return err
		}
		if _, err := t.file.WriteAt([]byte(bootID), 0); err != nil {
			return err
		}
	}
	t.mem, err = unix.Mmap(int(t.file.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	if err := unix.Madvise(t.mem, unix.MADV_DONTFORK); err != nil { // no child of a launch counts
		return os.NewSyscallError("madvise", err)
	}
	t.all = unsafe.Slice((*place)(unsafe.Pointer(&t.mem[headSize])), places)
	return nil
}

// Close gives the table up. What is counted stays.
func (t *Table) Close() error {
	return errors.Join(unix.Munmap(t.mem), t.file.Close())
}

// lock waits for a lock of the kernel's on one byte; it goes with the process that holds it.
func (t *Table) lock(at int64, kind int16) (unlock func(), err error) {
	lk := unix.Flock_t{Type: kind, Start: at, Len: 1}
	for {
		if err = unix.FcntlFlock(t.file.Fd(), unix.F_OFD_SETLKW, &lk); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return func() {
		lk.Type = unix.F_UNLCK
		_ = unix.FcntlFlock(t.file.Fd(), unix.F_OFD_SETLK, &lk)
	}, nil
}

// Account is what is counted of one agent in one session, for one of its runs. Safe for concurrent use.
type Account struct {
	t     *Table
	n     int
	p     *place
	leave sync.Once
}

// Alone is the account of a run that belongs to no agent: nobody shares it. It needs no closing.
func Alone(boot func() time.Duration) *Account {
	return &Account{t: &Table{boot: boot, held: map[int]int{}}, p: &place{}}
}

// Account finds the agent's place in a session, or takes one that counts nothing any more; the error is ErrFull if there is none, or
// the kernel's. It must be closed with the run.
func (t *Table) Account(agent, session string) (a *Account, err error) {
	if err := mapped.Guard(fileName, func() { a, err = t.account(agent, session) }); err != nil {
		return nil, err
	}
	return a, err
}

func (t *Table) account(agent, session string) (*Account, error) {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d:%s%s", len(agent), agent, session)) // ("a", "bc") and ("ab", "c") are two
	key := [keySize]byte(sum[:keySize])
	first := int(binary.LittleEndian.Uint64(sum[keySize:]) % uint64(len(t.all)))
	t.mu.Lock()
	defer t.mu.Unlock()
	unlock, err := t.lock(tableLock, unix.F_WRLCK)
	if err != nil {
		return nil, err
	}
	defer unlock()
	free := -1
	for i := range min(near, len(t.all)) {
		n := (first + i) % len(t.all)
		switch p := &t.all[n]; {
		case p.key == key:
			return t.hold(n)
		case free < 0 && t.idle(n):
			free = n
		}
	}
	if free < 0 {
		return nil, ErrFull
	}
	// Written, not stored: what the disk has no room for is told here, and not when the place is used.
	var whole [placeSize]byte
	copy(whole[:], key[:])
	if _, err := t.file.WriteAt(whole[:], int64(headSize+free*placeSize)); err != nil {
		return nil, err
	}
	return t.hold(free)
}

// idle says whether a place counts nothing, and no run that lives may begin to.
func (t *Table) idle(n int) bool {
	p := &t.all[n]
	if p.key == [keySize]byte{} {
		return true
	}
	now := t.boot()
	if t.held[n] > 0 || p.fullAt.Load() > int64(now) || !p.window.Over(now) {
		return false
	}
	lk := unix.Flock_t{Type: unix.F_WRLCK, Start: placeLocks + int64(n), Len: 1}
	return unix.FcntlFlock(t.file.Fd(), unix.F_OFD_GETLK, &lk) == nil && lk.Type == unix.F_UNLCK
}

// hold takes part in a place; t.mu is held.
func (t *Table) hold(n int) (*Account, error) {
	if t.held[n] == 0 {
		if _, err := t.lock(placeLocks+int64(n), unix.F_RDLCK); err != nil {
			return nil, err
		}
	}
	t.held[n]++
	return &Account{t: t, n: n, p: &t.all[n]}, nil
}

// Close ends the run's part; what it used up stays counted.
func (a *Account) Close() {
	a.leave.Do(func() {
		if a.t.file == nil {
			return
		}
		a.t.mu.Lock()
		defer a.t.mu.Unlock()
		if a.t.held[a.n]--; a.t.held[a.n] == 0 {
			delete(a.t.held, a.n)
			lk := unix.Flock_t{Type: unix.F_UNLCK, Start: placeLocks + int64(a.n), Len: 1}
			_ = unix.FcntlFlock(a.t.file.Fd(), unix.F_OFD_SETLK, &lk)
		}
	})
}

// Take takes as many tokens as a call in a ring costs (rings.Action.RateCost). What is over the limit costs nothing; what can't be counted is refused.
func (a *Account) Take(ring rings.Ring, cost int) (res rings.RateResult) {
	if mapped.Guard(fileName, func() { res = a.take(ring, cost) }) != nil {
		return rings.RateResult{Code: rings.CodeRateTableFull}
	}
	return res
}

func (a *Account) take(ring rings.Ring, cost int) rings.RateResult {
	for {
		was := a.p.fullAt.Load()
		next, res := rings.Draw(was, int64(a.t.boot()), ring, cost)
		if next == was || a.p.fullAt.CompareAndSwap(was, next) {
			return res
		}
	}
}

// Attempt counts a refused call (H-24) by its weight; of a kind other than 0 one counts within a window.
func (a *Account) Attempt(weight int, kind uint16) (rings.BreachResult, error) {
	unlock, err := a.window()
	if err != nil {
		return rings.BreachResult{}, err
	}
	defer unlock()
	var res rings.BreachResult
	err = mapped.Guard(fileName, func() { res = a.p.window.Add(a.t.boot(), weight, kind) })
	return res, err
}

// Forgive empties the window: an operator has released the agent.
func (a *Account) Forgive() error {
	unlock, err := a.window()
	if err != nil {
		return err
	}
	defer unlock()
	return mapped.Guard(fileName, func() { a.p.window = rings.Attempts{} })
}

// window takes the turn of changing the window, in this process and among them.
func (a *Account) window() (unlock func(), err error) {
	a.t.mu.Lock()
	if a.t.file == nil {
		return a.t.mu.Unlock, nil
	}
	release, err := a.t.lock(windowLocks+int64(a.n), unix.F_WRLCK)
	if err != nil {
		a.t.mu.Unlock()
		return nil, err
	}
	return func() { release(); a.t.mu.Unlock() }, nil
}
