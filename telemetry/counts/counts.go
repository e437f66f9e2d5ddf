// SPDX-License-Identifier: Apache-2.0

// Package counts keeps a node's counters (M-20): of all its runs, whichever process supervised them, and
// beyond their end. They stand in one file of the state folder, which every supervisor maps; the kernel keeps
// what was counted when a supervisor is killed.
//
//	c := counts.At(stateDir)
//	c.RunEnded(3, "exited", "ok", took)
//	err := counts.Write(w, stateDir)
//
// Guarantees. A count is one addition to shared memory, without a lock: a run waits for no other. The file
// has a fixed size and is written whole when it is made, and a page that can't be had ends no run; a label
// has a value of a list or "other", so neither agents nor upstreams can make series (their names are no
// labels at all), and what doesn't fit into the file any more is counted in one series of its own.
//
// Errors. Counting returns none: no run may fail for its number. Problem tells what keeps this process from
// counting.
//
// It does not protect against whoever may write the state folder. To begin anew remove the file while nothing
// runs.
package counts

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentrun/internal/mapped"
)

// The file: a head with a name and how many slots are used, then slots: a value of 8 bytes, a word that says
// whether the slot is made, and its series, as `runs_total{ring="3"}`. A slot is never given to another
// series.
const (
	fileName = "counters"
	magic    = "agentrun counters 1\n"
	usedAt   = 56
	headSize = 64
	slotSize = 128
	madeAt   = 8
	nameAt   = 16
	slots    = 1024
	fileSize = headSize + slots*slotSize
	maxName  = slotSize - nameAt
)

// File is a node's counters. Nil counts nothing. Safe for concurrent use.
type File struct {
	path   string
	series sync.Map // name → *atomic.Uint64 in the mapping

	mu     sync.Mutex // guards what follows, and the making of series by this process
	mapped []byte
	broken error
}

var files sync.Map // path → *File: a process maps a file once, however many runs it supervises

// At returns the counters of the node with that state folder. The file is made when something is counted.
func At(stateDir string) *File {
	path := filepath.Join(stateDir, fileName)
	f, _ := files.LoadOrStore(path, &File{path: path})
	return f.(*File)
}

// Problem tells why this process couldn't count the last time; nil: nothing is wrong. A node whose state folder isn't there yet has nothing
// to count in: a run that is refused makes none.
func (f *File) Problem() error {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if errors.Is(f.broken, fs.ErrNotExist) {
		if _, err := os.Lstat(filepath.Dir(f.path)); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	return f.broken
}

func (f *File) add(name string, n uint64) {
	if f == nil {
		return
	}
	err := mapped.Guard("the counters", func() {
		if c := f.counter(name); c != nil {
			c.Add(n)
		}
	})
	if err != nil {
		f.mu.Lock()
		f.broken = err
		f.mu.Unlock()
	}
}

// counter finds a series, or makes it.
func (f *File) counter(name string) *atomic.Uint64 {
	if c, ok := f.series.Load(name); ok {
		return c.(*atomic.Uint64)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mapped == nil { // tried again each time: the folder may not be there yet, the disk full for a while
		f.mapped, f.broken = mapFile(f.path)
	}
	if f.broken != nil {
		return nil
	}
	each(f.mapped, func(name string, value *atomic.Uint64) { f.series.LoadOrStore(name, value) })
	if _, known := f.series.Load(name); !known {
		f.series.Store(name, f.claim(name))
	}
	c, _ := f.series.Load(name)
	return c.(*atomic.Uint64)
}

// claim takes the next slot for a series. There is no lock between processes: one that a launch's child
// inherits would be held for as long as that child lives. So two processes may make one series twice, and a
// reader adds them up; who dies in here has wasted a slot.
func (f *File) claim(name string) *atomic.Uint64 {
	used := word(f.mapped, usedAt)
	for {
		n := used.Load()
		if n >= slots || len(name) > maxName {
			return word(f.mapped, headSize) // the first is the lost ones'
		}
		if !used.CompareAndSwap(n, n+1) {
			continue
		}
		at := headSize + int(n)*slotSize //nolint:gosec // n is below slots
		copy(f.mapped[at+nameAt:at+slotSize], name)
		word(f.mapped, at+madeAt).Store(1)
		return word(f.mapped, at)
	}
}

// mapFile maps the file, and makes it if there is none. No descriptor of it stays.
func mapFile(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeFile(path); err != nil {
			return nil, err
		}
		file, err = os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("counters: %w", err)
	}
	defer file.Close()
	b, err := mapping(file, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return nil, err
	}
	return b, os.NewSyscallError("madvise", unix.Madvise(b, unix.MADV_DONTFORK)) // no child of a launch counts
}

// mapping maps a whole file of counters.
func mapping(file *os.File, prot int) ([]byte, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	wrong := fmt.Errorf("%s is no file of counters of this version; remove it while nothing runs", file.Name())
	if info.Size() != fileSize {
		return nil, wrong
	}
	b, err := unix.Mmap(int(file.Fd()), 0, fileSize, prot, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", file.Name(), err)
	}
	if !bytes.HasPrefix(b, []byte(magic)) {
		return nil, errors.Join(wrong, unix.Munmap(b))
	}
	return b, nil
}

// makeFile makes the file whole before it has its name; whoever comes second uses the first one's. Its blocks
// are written: a hole that a full disk can't fill would end a supervisor by SIGBUS. They are on the disk: what a power cut leaves of others
// is no file of counters, and nothing would be counted any more.
func makeFile(path string) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".counters-*")
	if err != nil {
		return fmt.Errorf("counters: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	b := make([]byte, fileSize)
	copy(b, magic)
	copy(b[headSize+nameAt:], lostSeries)
	binary.NativeEndian.PutUint64(b[usedAt:], 1)
	binary.NativeEndian.PutUint64(b[headSize+madeAt:], 1)
	if _, err := f.Write(b); err != nil {
		return fmt.Errorf("counters: %w", err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("counters: %w", err)
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("counters: %w", err)
	}
	return nil
}

// each goes through the series of a mapping, in the order of their making.
func each(mapped []byte, do func(name string, value *atomic.Uint64)) {
	used := min(word(mapped, usedAt).Load(), slots)
	for i := range int(used) {
		at := headSize + i*slotSize
		if word(mapped, at+madeAt).Load() == 0 {
			continue // its maker is at it, or died there
		}
		name, _, _ := bytes.Cut(mapped[at+nameAt:at+slotSize], []byte{0})
		do(string(name), word(mapped, at))
	}
}

// word is eight aligned bytes of a mapping.
func word(mapped []byte, at int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&mapped[at])) //nolint:gosec // within the mapping, whose offsets are multiples of 8
}
