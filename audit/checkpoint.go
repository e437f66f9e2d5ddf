// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/sys/unix"

	"agentrun/internal/fault"
	"agentrun/internal/read"
)

// Checkpoint is what a signed note says: the chain had Size entries, and the last of them had this hash. Because of the
// hashes that settles all of them.
type Checkpoint struct {
	Chain  string
	Size   int64
	Hash   Hash
	File   int   // in which entry Size-1 stands
	Offset int64 // behind that entry's line
	Time   time.Time
}

const originPrefix = "agentrun.audit/"

// text is the body of the note. Its first three lines are those of a transparency log's checkpoint: origin, size, hash.
// The position lets the next checkpoint read only what is new.
func (c Checkpoint) text() string {
	return fmt.Sprintf("%s%s\n%d\n%s\nposition %s %d\ntime %s\n", originPrefix, c.Chain, c.Size, base64.StdEncoding.EncodeToString(c.Hash[:]),
		fileName(c.File), c.Offset, c.Time.Format(timeLayout))
}

// parseCheckpoint accepts exactly what text writes.
func parseCheckpoint(text string) (Checkpoint, error) {
	var c Checkpoint
	bad := errors.New("no checkpoint of an agentrun chain")
	lines := strings.Split(text, "\n")
	if len(lines) != 6 || !strings.HasPrefix(lines[0], originPrefix) {
		return c, bad
	}
	c.Chain = lines[0][len(originPrefix):]
	hash, err1 := base64.StdEncoding.DecodeString(lines[2])
	size, err2 := strconv.ParseInt(lines[1], 10, 64)
	file, offset, found := strings.Cut(strings.TrimPrefix(lines[3], "position "), " ")
	at, err3 := strconv.ParseInt(offset, 10, 64)
	when, err4 := time.Parse(timeLayout, strings.TrimPrefix(lines[4], "time "))
	if err := errors.Join(err1, err2, err3, err4); err != nil || !found || len(hash) != len(c.Hash) || when.Year() < 1970 {
		return Checkpoint{}, bad
	}
	c.Hash, c.Size, c.File, c.Offset, c.Time = Hash(hash), size, fileNumber(file), at, when
	if c.Size < 1 || c.File < 1 || c.Offset < 1 || checkChain(c.Chain) != nil || c.text() != text {
		return Checkpoint{}, bad
	}
	return c, nil
}

// OpenCheckpoint checks the signature of a note with the verifier key and reads it. The error Is ErrBadSignature if the
// note is not a checkpoint signed by that key; others are about the key.
func OpenCheckpoint(signed []byte, key string) (Checkpoint, error) {
	v, err := note.NewVerifier(key)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("verifier key %.120q: want the line that `agentrun audit key` prints", key)
	}
	n, err := note.Open(signed, note.VerifierList(v))
	if err != nil {
		return Checkpoint{}, fmt.Errorf("%w: %w", ErrBadSignature, err)
	}
	c, err := parseCheckpoint(n.Text)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("%w: %w", ErrBadSignature, err)
	}
	return c, nil
}

// ErrBadSignature is in the errors of OpenCheckpoint.
var ErrBadSignature = errors.New("not a checkpoint signed by this key")

// checkpoints opens those given, in the order of their size.
func (v *verification) checkpoints(opt VerifyOptions) (*Problem, error) {
	for _, signed := range opt.Checkpoints {
		c, err := OpenCheckpoint(signed, opt.Key)
		if err != nil && !errors.Is(err, ErrBadSignature) {
			return nil, err
		}
		if err == nil && c.Chain != v.report.Chain {
			err = fmt.Errorf("it is of chain %s", c.Chain)
		}
		if err != nil {
			return &Problem{Code: BadSignature, Message: "checkpoint: " + err.Error()}, nil
		}
		v.signed = append(v.signed, c)
		v.report.SignedSize = max(v.report.SignedSize, c.Size)
	}
	v.report.Checkpoints = len(v.signed)
	// What is remembered without a signature may accuse as one with: it is believed in nothing else.
	if h := opt.Remembered; h != nil && h.Size > 0 {
		v.signed = append(v.signed, Checkpoint{Chain: v.report.Chain, Size: h.Size, Hash: h.Hash})
	}
	slices.SortFunc(v.signed, func(a, b Checkpoint) int { return int(min(max(a.Size-b.Size, -1), 1)) })
	return nil, nil
}

// Checkpoints is a folder of signed checkpoints, one note for each chain, the newest. It belongs apart from the log, best
// with copies on another machine: whoever can write to both, and to Heads, can put back an old set of them.
type Checkpoints struct {
	Dir   string
	Key   *SigningKey
	Heads Heads            // nil: nobody remembers what was signed before, and a note that was removed isn't missed
	Now   func() time.Time // nil means time.Now
	// Syncing, if not nil, is called when Write begins to wait for the disk, beside it: for who has to sync the same chain, which together
	// takes no longer.
	Syncing func()
}

// maxNote is far above any: a note is three short texts and a signature.
const maxNote = 64 << 10

// ReadCheckpoint gives the stored note of a chain. The error Is fs.ErrNotExist if there is none.
func ReadCheckpoint(dir, chain string) ([]byte, error) {
	if err := checkChain(chain); err != nil {
		return nil, err
	}
	text, _, err := read.Regular(filepath.Join(dir, Folder(chain)), maxNote)
	return text, err
}

// Write verifies what the chain in logs gained since its last checkpoint, syncs it, and stores and returns a note signed
// over all of it. A chain that doesn't continue its last checkpoint, or the one that is remembered, gets no new one: that
// would turn a truncation that can be seen into one that is signed. The error is then *BrokenError. A chain that is whole
// and whose note was removed is signed with a CheckpointLost as its last entry.
//
// A crash may come between the note and the memory of it, in either order. A note that is newer than what is remembered, or
// older, is no contradiction as long as the chain has both ends. Only of the first signature the note must come first: a
// memory without any note says that the note was removed.
func (k *Checkpoints) Write(logs, chain string) ([]byte, Checkpoint, error) {
	known, err := k.remembered(chain)
	if err != nil {
		return nil, Checkpoint{}, err
	}
	last, old, err := k.last(chain)
	if err != nil {
		return nil, Checkpoint{}, err
	}
	opt := VerifyOptions{Remembered: known}
	if last != nil {
		opt.Checkpoints, opt.Key = [][]byte{last}, k.Key.public
	}
	s, err := advance(logs, chain, old, opt)
	if err != nil {
		return nil, Checkpoint{}, err
	}
	if r := k.lost(old, known, s); r != nil {
		if err := k.append(logs, chain, r); err != nil {
			return nil, Checkpoint{}, err
		}
		if s, err = advance(logs, chain, old, opt); err != nil {
			return nil, Checkpoint{}, err
		}
	}
	keep := func() error {
		if err := s.synced(); err != nil || k.Heads == nil || known != nil && known.Size >= s.Size {
			return err
		}
		return k.Heads.Keep(chain, Head{Size: s.Size, Hash: s.Hash}, false)
	}
	if s.Size == old.Size {
		return last, old, keep()
	}
	wait := keep
	// The note is written before any of it is synced: the file systems that have a journal then put the entries and the note on disk
	// together. What comes after both waits for the disk in turn, too: together they take hardly longer than one.
	written := func() {
		if k.Syncing != nil {
			go k.Syncing()
		}
		if old.Size > 0 {
			kept := make(chan error, 1)
			go func() { kept <- keep() }()
			wait = func() error { return <-kept }
		}
	}
	signed, c, err := k.sign(s.Checkpoint)
	if err == nil {
		signed, c, err = k.store(signed, c, replaces{note: last, of: old}, written, s.synced)
	}
	if err != nil && old.Size == 0 {
		return nil, Checkpoint{}, err
	}
	return signed, c, errors.Join(err, wait())
}

func (k *Checkpoints) sign(c Checkpoint) ([]byte, Checkpoint, error) {
	now := k.Now
	if now == nil {
		now = time.Now
	}
	c.Time = now().UTC().Round(0)
	signed, err := note.Sign(&note.Note{Text: c.text()}, k.Key.signer)
	return signed, c, err
}

// last gives the stored checkpoint, the zero one if there is none.
func (k *Checkpoints) last(chain string) ([]byte, Checkpoint, error) {
	return k.lastBut(replaces{}, chain)
}

// lastBut is last for who has read r already.
func (k *Checkpoints) lastBut(r replaces, chain string) ([]byte, Checkpoint, error) {
	signed, err := ReadCheckpoint(k.Dir, chain)
	if err == nil && len(signed) > 0 && bytes.Equal(signed, r.note) {
		return signed, r.of, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, Checkpoint{Chain: chain}, nil
	}
	if err != nil {
		return nil, Checkpoint{}, err
	}
	c, err := k.open(signed)
	if err == nil && c.Chain != chain {
		err = fmt.Errorf("it is of chain %s", c.Chain)
	}
	if err != nil {
		return nil, Checkpoint{}, &BrokenError{chain, Problem{Code: BadSignature, Message: "stored checkpoint: " + err.Error()}}
	}
	return signed, c, nil
}

// open is OpenCheckpoint with the own key, quicker for what this key has signed here.
func (k *Checkpoints) open(signed []byte) (Checkpoint, error) {
	text, ours := k.Key.made(signed)
	if !ours {
		return OpenCheckpoint(signed, k.Key.public)
	}
	c, err := parseCheckpoint(text)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("%w: %w", ErrBadSignature, err)
	}
	return c, nil
}

// stand is where a sound chain ends, not signed yet.
type stand struct {
	Checkpoint
	vouched bool         // among the entries that were read is one that a signature follows
	synced  func() error // puts all of them on disk
}

// advance verifies from the old checkpoint to the end, and all of it if something is odd: that report is the exact one.
func advance(logs, chain string, old Checkpoint, opt VerifyOptions) (stand, error) {
	f, err := openFolder(logs, chain)
	var known Head
	if opt.Remembered != nil {
		known = *opt.Remembered
	}
	if err != nil && (!errors.Is(err, fs.ErrNotExist) || old.Size == 0 && known.Size == 0) {
		return stand{}, err
	}
	if err == nil {
		defer f.close()
		if s, ok, err := f.since(old, known); err != nil || ok {
			s.synced = sync.OnceValue(func() error { return syncFile(logs, chain, s.File) })
			return s, err
		}
	}
	r, err := Verify(logs, chain, opt)
	if err != nil {
		return stand{}, err
	}
	if r.Problem == nil || r.Problem.Code == Unsigned {
		return stand{}, fmt.Errorf("chain %s changed while it was read; try again", chain)
	}
	return stand{}, &BrokenError{chain, *r.Problem}
}

// since gives false if the chain from old on isn't sound, or isn't what known remembers of it.
func (f *folder) since(old Checkpoint, known Head) (stand, bool, error) {
	none := stand{Checkpoint: old}
	spans, err := f.snapshot()
	if err != nil {
		return none, false, err
	}
	report := &Report{Chain: old.Chain, Entries: old.Size, Head: old.Hash}
	v := verification{report: report, folder: f}
	if known.Size >= old.Size && known.Size > 0 {
		v.signed = []Checkpoint{{Chain: old.Chain, Size: known.Size, Hash: known.Hash}}
	}
	if old.Size > 0 {
		if old.File > len(spans) || spans[old.File-1].number != old.File || spans[old.File-1].to < old.Offset {
			return none, false, nil
		}
		spans = spans[old.File-1:]
		spans[0].from = old.Offset
		last, err := f.entryBefore(old)
		if err != nil || last.Hash != old.Hash || last.Seq != old.Size-1 {
			return none, false, err
		}
		if known.Size == old.Size && known.Hash != old.Hash {
			return none, false, err
		}
		v.order.advance(link{last.Seq, last.PrevHash, last.Hash})
		_, v.rotated = last.Data.(*Rotation)
	}
	for i, s := range spans {
		v.spans = spans[i:]
		if p, err := v.file(s); err != nil || p != nil {
			return none, false, err
		}
	}
	if known.Size > report.Entries {
		return none, false, nil
	}
	if v.rotated && spans[len(spans)-1].to > 0 || report.Entries == 0 {
		return none, report.Entries == 0, errNothing(report)
	}
	end := spans[len(spans)-1]
	if end.to == 0 { // a rotation, or the beginning of one: the last entry is in the file before
		end = spans[len(spans)-2]
	}
	c := Checkpoint{Chain: old.Chain, Size: report.Entries, Hash: report.Head, File: end.number, Offset: end.to}
	return stand{Checkpoint: c, vouched: v.vouched != nil}, true, nil
}

func errNothing(r *Report) error {
	if r.Entries == 0 {
		return fmt.Errorf("chain %s %w", r.Chain, errEmpty)
	}
	return nil
}

var errEmpty = errors.New("is empty: there is nothing to sign")

// entryBefore reads the entry that ends where the checkpoint says; a zero one if none does.
func (f *folder) entryBefore(c Checkpoint) (Entry, error) {
	fd, err := f.open(fileName(c.File), unix.O_RDONLY)
	if err != nil {
		return Entry{}, err
	}
	defer unix.Close(fd)
	t, damage, err := readTail(fileAt(fd), c.Offset)
	if err != nil || damage != nil || t.good != c.Offset {
		return Entry{}, err
	}
	return t.last, nil
}

// syncFile is for entries that their writers have not synced yet: a checkpoint over entries that the power takes away
// would accuse a chain that nobody touched.
func syncFile(logs, chain string, n int) error {
	f, err := openFolder(logs, chain)
	if err != nil {
		return err
	}
	defer f.close()
	fd, err := f.open(fileName(n), unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, err := retry(func() (int, error) { return 0, unix.Fdatasync(fd) }); err != nil {
		return f.error("sync", fileName(n), err)
	}
	return nil
}

// replaces is which note a new one follows.
type replaces struct {
	note []byte     // as it was read
	of   Checkpoint // of it
	any  bool       // whatever is there now
}

// store replaces the note of the chain, unless another process has stored one over more entries. The new one has its name when it and,
// by synced, the entries are on disk; written is called when it is there but for that.
func (k *Checkpoints) store(signed []byte, c Checkpoint, r replaces, written func(), synced func() error) ([]byte, Checkpoint, error) {
	if err := os.MkdirAll(k.Dir, dirMode); err != nil {
		return nil, Checkpoint{}, err
	}
	d, err := os.Open(k.Dir)
	if err != nil {
		return nil, Checkpoint{}, err
	}
	defer d.Close()
	if err := lock(int(d.Fd()), unix.LOCK_EX); err != nil {
		return nil, Checkpoint{}, &fs.PathError{Op: "flock", Path: k.Dir, Err: err}
	}
	if !r.any {
		if theirs, stored, err := k.lastBut(r, c.Chain); err != nil || stored.Size >= c.Size {
			return theirs, stored, err
		}
	}
	name := Folder(c.Chain)
	// One name for all who write this chain's, one after another: what a kill has left of one is written over by the next.
	temp := filepath.Join(k.Dir, "."+name[:min(len(name), 64)])
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err == nil {
		err = writeSynced(f, signed, written)
	}
	if err != nil {
		return nil, Checkpoint{}, err
	}
	err = errors.Join(synced(), fault.At("audit/checkpoint"))
	if err == nil {
		err = os.Rename(temp, filepath.Join(k.Dir, name))
	}
	if err != nil {
		os.Remove(temp)
		return nil, Checkpoint{}, err
	}
	return signed, c, d.Sync()
}
