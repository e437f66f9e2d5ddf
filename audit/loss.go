// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// A chain and its note can be taken back together, and a note alone can be removed: what is left looks like a
// chain that was never signed. So a second place, which serves other ends as well, remembers how far each
// chain was signed last, and what is left is held against it. Whoever puts back that place too is not found
// here: only a note on another machine tells it.

// Heads is that second place. Its answers are believed only as far as they accuse: they never make up for a
// signature.
type Heads interface {
	// Head gives the end of the chain as it was signed last. A size of 0 says that the first signature is
	// still to come.
	Head(chain string) (h Head, known bool, err error)
	// Keep remembers that end. One that is smaller than what is remembered takes its place only with anew: of
	// two processes that sign, the slower one must not win.
	Keep(chain string, h Head, anew bool) error
}

// Causes of a CheckpointLost.
const (
	lossRemoved  = "removed"  // no note is stored, and there was one
	lossAccepted = "accepted" // an operator goes on with a chain that lacks what was signed
)

// CheckpointLost says that what vouched for this chain, up to this entry, was gone or contradicted it, when
// somebody was about to sign it anew.
type CheckpointLost struct {
	By      string `log:"by optID"`      // who accepted it, as uid:0
	Cause   string `log:"cause code"`    // removed, accepted
	Entries int64  `log:"entries count"` // that the chain had
	Head    string `log:"head optID"`    // hash of the last entry that is remembered as signed
	Size    int64  `log:"size count"`    // entries that are remembered as signed; 0 if nobody remembers
}

// vouches tells an entry that is followed by a signature: a chain that has one and no note was signed, or is
// being signed.
func vouches(e Entry) bool {
	switch r := e.Data.(type) {
	case *SandboxEnd:
		return true
	case *Key:
		return r.Event == "created"
	}
	return false
}

// unvouched is for a chain that is sound by itself, when nothing signed vouches for it and something once
// did.
func (v *verification) unvouched(opt VerifyOptions) *Problem {
	switch {
	case v.report.Checkpoints > 0:
		return nil // and the chain has all that is remembered
	case opt.Remembered != nil && opt.Remembered.Size > 0:
		const text = "the state remembers a checkpoint over %d entries, and none is stored: it was removed"
		return &Problem{Code: Unsigned, Message: fmt.Sprintf(text, opt.Remembered.Size)}
	case opt.Home && opt.Remembered == nil && v.vouched != nil:
		const text = "a checkpoint follows on such a %s, and none is stored: it was removed, or this is a copy without one"
		return &Problem{Code: Unsigned, Seq: v.vouched.Seq, Message: fmt.Sprintf(text, v.vouched.Kind)}
	}
	return nil
}

// Begin is for who is about to record the first end of a run, or the making of the key: the chain's first
// checkpoint comes after that. A crash in between must not look like a checkpoint that was removed.
func (k *Checkpoints) Begin(logs, chain string) error {
	if k.Heads == nil {
		return nil
	}
	if err := checkChain(chain); err != nil {
		return err
	}
	if _, err := os.Lstat(filepath.Join(k.Dir, Folder(chain))); !errors.Is(err, fs.ErrNotExist) {
		return err // what is wrong with one that is there, who signs the next says
	}
	if _, known, err := k.Heads.Head(chain); known || err != nil {
		return err
	}
	f, err := openFolder(logs, chain)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil {
		defer f.close()
		// A chain that has such an entry already has lost its checkpoint: that must be said when it is
		// signed.
		if s, ok, err := f.since(Checkpoint{Chain: chain}, Head{}); !errors.Is(err, errEmpty) && (err != nil || !ok || s.vouched) {
			return err
		}
	}
	return k.Heads.Keep(chain, Head{}, false)
}

// remembered gives nil if nobody remembers anything of the chain.
func (k *Checkpoints) remembered(chain string) (*Head, error) {
	if k.Heads == nil {
		return nil, nil
	}
	h, known, err := k.Heads.Head(chain)
	if err != nil || !known {
		return nil, err
	}
	return &h, nil
}

// lost gives the record of a loss, or nil: stored is the note there is, s the sound chain.
func (k *Checkpoints) lost(stored Checkpoint, known *Head, s stand) *CheckpointLost {
	r := &CheckpointLost{Entries: s.Size, Cause: lossRemoved}
	switch {
	case stored.Size > 0 || k.Heads == nil:
		return nil
	case known == nil && s.vouched:
		return r
	case known != nil && known.Size > 0:
		r.Head, r.Size = known.Hash.String(), known.Size
		return r
	}
	return nil
}

// Accept signs a chain that is sound by itself but isn't what was signed before: entries are gone, as when an
// old backup was put back, or all of it is another. What was remembered and who accepted it goes on record
// first. Chains that are broken in themselves are not signed.
func (k *Checkpoints) Accept(logs, chain, by string) ([]byte, Checkpoint, error) {
	known, err := k.remembered(chain)
	if err != nil {
		return nil, Checkpoint{}, err
	}
	r := &CheckpointLost{By: by, Cause: lossAccepted}
	if known != nil && known.Size > 0 {
		r.Head, r.Size = known.Hash.String(), known.Size
	}
	report, err := Verify(logs, chain, VerifyOptions{})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, Checkpoint{}, err
	}
	if report.Problem != nil && report.Problem.Code != Torn { // the log accounts for what is torn, if it can be
		return nil, Checkpoint{}, &BrokenError{chain, *report.Problem}
	}
	r.Entries = report.Entries
	if err := k.append(logs, chain, r); err != nil {
		return nil, Checkpoint{}, err
	}
	s, err := advance(logs, chain, Checkpoint{Chain: chain}, VerifyOptions{})
	if err != nil {
		return nil, Checkpoint{}, err
	}
	signed, c, err := k.sign(s.Checkpoint)
	if err == nil {
		signed, c, err = k.store(signed, c, replaces{any: true}, func() {}, s.synced)
	}
	if err == nil && k.Heads != nil {
		err = k.Heads.Keep(chain, Head{Size: c.Size, Hash: c.Hash}, true)
	}
	return signed, c, err
}

func (k *Checkpoints) append(logs, chain string, r Record) error {
	l, err := Open(logs, chain, Options{Now: k.Now})
	if err != nil {
		return err
	}
	_, err = l.AppendSync(r)
	return errors.Join(err, l.Close())
}
