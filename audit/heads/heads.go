// SPDX-License-Identifier: Apache-2.0

// Package heads remembers beside the state of a node how far each chain of the audit was signed last.
//
// It guarantees nothing by itself: audit holds chains and notes against it, so that a note that was removed,
// or put back together with its chain, is seen. It is another file than those, and has other reasons to be as
// new as it is.
//
//	k := audit.Checkpoints{Dir: notes, Key: key, Heads: heads.State{Dir: "/var/lib/agentrun"}}
//
// Each chain has a file of its own with two slots, which are written by turns: one write and one wait for the
// disk, where a database has two and its own pages, and a run that ends alone waits for all of them. Until
// November 2026 the state's database remembered; what it has is believed until the chain is signed again.
// Errors are those of store. A node that has no state yet isn't given one for being asked.
//
// It does not protect against whoever puts back these files as well, and those that were restored from a
// backup are older than the notes, which is no contradiction. It fails closed: what can't be read is an error,
// and nothing is signed.
package heads

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"agentrun/audit"
	"agentrun/store"
)

// State is the state in the folder Dir. It keeps nothing open: any number may be used at once, but not inside
// a transaction of the same state.
type State struct{ Dir string }

var _ audit.Heads = State{}

const (
	folder   = "heads"
	slotSize = 512 // what a disk writes whole
)

// slot is what a file says. The higher turn counts, whatever the sizes.
type slot struct {
	turn  uint64
	chain string
	audit.Head
}

func (s slot) encode() []byte {
	text := fmt.Sprintf(" %d %d %s %s\n", s.turn, s.Size, s.Hash, s.chain)
	text = fmt.Sprintf("%08x", crc32.ChecksumIEEE([]byte(text))) + text
	return append([]byte(text), make([]byte, slotSize-len(text))...) // a chain's name has 264 letters at most
}

func decode(b []byte) (s slot, err error) {
	text := strings.TrimRight(string(b), "\x00")
	var sum uint32
	var hash string
	if _, err := fmt.Sscanf(text, "%08x %d %d %s %s\n", &sum, &s.turn, &s.Size, &hash, &s.chain); err != nil || sum != crc32.ChecksumIEEE([]byte(text)[8:]) {
		return slot{}, errors.New("is damaged")
	}
	s.Hash, err = audit.ParseHash(hash)
	return s, err
}

// newest gives the slot that counts: none of an empty file, which a crash can leave before the first is on disk. A slot that was cut in
// the middle leaves the one before it.
func newest(f *os.File) (last slot, found bool, err error) {
	b := make([]byte, 2*slotSize)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return slot{}, false, err
	}
	for at := 0; at < n; at += slotSize {
		if s, err := decode(b[at:min(at+slotSize, n)]); err == nil && audit.Folder(s.chain) == filepath.Base(f.Name()) && (!found || s.turn > last.turn) {
			last, found = s, true
		}
	}
	if !found && len(bytes.Trim(b, "\x00")) > 0 {
		return slot{}, false, fmt.Errorf("state %s is damaged: it doesn't say how far its chain was signed", f.Name())
	}
	return last, found, nil
}

// in opens a file, made if it isn't there, and holds its lock.
func (s State) in(name string, how int, fn func(f *os.File) error) error {
	name = filepath.Join(folder, name)
	f, err := store.OpenBeside(s.Dir, name)
	if errors.Is(err, fs.ErrNotExist) { // the folder is ours alone, and so is what is in it
		if err = os.Mkdir(filepath.Join(s.Dir, folder), 0o700); err == nil || errors.Is(err, fs.ErrExist) {
			f, err = store.OpenBeside(s.Dir, name)
		}
	}
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		if err = unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return &fs.PathError{Op: "flock", Path: f.Name(), Err: err}
	}
	return fn(f)
}

// Head implements audit.Heads.
func (s State) Head(chain string) (h audit.Head, known bool, err error) {
	if _, err := os.Lstat(filepath.Join(s.Dir, folder, audit.Folder(chain))); errors.Is(err, fs.ErrNotExist) {
		return s.older(chain)
	}
	err = s.in(audit.Folder(chain), unix.LOCK_SH, func(f *os.File) error {
		last, found, err := newest(f)
		if h, known = last.Head, found; found || err != nil {
			return err
		}
		h, known, err = s.older(chain)
		return err
	})
	return h, known, err
}

// Keep implements audit.Heads.
func (s State) Keep(chain string, h audit.Head, anew bool) error {
	return s.in(audit.Folder(chain), unix.LOCK_EX, func(f *os.File) error {
		last, found, err := newest(f)
		first := !found
		if err == nil && first {
			last.Head, found, err = s.older(chain)
		}
		if err != nil || found && last.Size >= h.Size && !anew {
			return err
		}
		next := slot{last.turn + 1, chain, h}
		if _, err := f.WriteAt(next.encode(), int64(next.turn%2)*slotSize); err != nil {
			return err
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return &fs.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
		}
		if first {
			return errors.Join(syncDir(filepath.Join(s.Dir, folder)), syncDir(s.Dir))
		}
		return nil
	})
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// Signed lists the chains that were signed once.
func (s State) Signed() (chains []string, err error) {
	err = s.view(func(tx *store.Tx) error {
		return store.EachJSON(tx.Bucket(bucket), "", func(chain string, v head) error {
			if v.Size > 0 {
				chains = append(chains, chain)
			}
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	files, err := os.ReadDir(filepath.Join(s.Dir, folder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range files {
		var last slot
		err := s.in(e.Name(), unix.LOCK_SH, func(f *os.File) (err error) { last, _, err = newest(f); return err })
		if err != nil {
			return nil, err
		}
		if last.Size > 0 && !slices.Contains(chains, last.chain) {
			chains = append(chains, last.chain)
		}
	}
	return chains, nil
}

// What the state's database remembers is older than a file.

const bucket = "audit_heads"

// head is a chain's value; the key is the chain's name.
type head struct {
	Size int64  `json:"size"`
	Hash string `json:"hash"`
}

func (s State) older(chain string) (h audit.Head, known bool, err error) {
	err = s.view(func(tx *store.Tx) error {
		var v head
		if known, err = store.GetJSON(tx.Bucket(bucket), chain, &v); !known || err != nil {
			return err
		}
		h.Size = v.Size
		h.Hash, err = audit.ParseHash(v.Hash)
		return err
	})
	return h, known, err
}

func (s State) view(fn func(*store.Tx) error) error {
	if _, err := os.Lstat(filepath.Join(s.Dir, store.File)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	db, err := store.Open(s.Dir, store.Options{})
	if err != nil {
		return err
	}
	return errors.Join(db.View(context.Background(), fn), db.Close())
}
