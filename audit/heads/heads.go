// SPDX-License-Identifier: Apache-2.0

// Package heads remembers in the state of a node how far each chain of the audit was signed last.
//
// It guarantees nothing by itself: audit holds chains and notes against it, so that a note that was removed,
// or put back together with its chain, is seen. The state is another file than those, and has other reasons
// to be as new as it is.
//
//	k := audit.Checkpoints{Dir: notes, Key: key, Heads: heads.State{Dir: "/var/lib/agentrun"}}
//
// Errors are those of store. A node that has no state yet isn't given one for being asked.
//
// It does not protect against whoever puts back the state as well, and a state that was restored from a
// backup is older than the notes, which is no contradiction. It fails closed: what can't be read is an error,
// and nothing is signed.
package heads

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"agentrun/audit"
	"agentrun/store"
)

// State is the state in the folder Dir. It keeps nothing open: any number may be used at once, but not inside
// a transaction of the same state.
type State struct{ Dir string }

var _ audit.Heads = State{}

const bucket = "audit_heads"

// head is a chain's value; the key is the chain's name.
type head struct {
	Size int64  `json:"size"`
	Hash string `json:"hash"`
}

// Head implements audit.Heads.
func (s State) Head(chain string) (h audit.Head, known bool, err error) {
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
	return chains, err
}

func (s State) view(fn func(*store.Tx) error) error {
	if _, err := os.Lstat(filepath.Join(s.Dir, store.File)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return s.with(func(db *store.DB) error { return db.View(context.Background(), fn) })
}

// Keep implements audit.Heads.
func (s State) Keep(chain string, h audit.Head, anew bool) error {
	return s.with(func(db *store.DB) error {
		return db.Update(context.Background(), func(tx *store.Tx) error {
			b := tx.Bucket(bucket)
			var old head
			if found, err := store.GetJSON(b, chain, &old); err != nil || found && old.Size >= h.Size && !anew {
				return err
			}
			return store.PutJSON(b, chain, head{Size: h.Size, Hash: h.Hash.String()})
		})
	})
}

func (s State) with(fn func(*store.DB) error) error {
	db, err := store.Open(s.Dir, store.Options{})
	if err != nil {
		return err
	}
	return errors.Join(fn(db), db.Close())
}
