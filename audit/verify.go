// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"
)

// VerifyOptions says what a chain is held against.
type VerifyOptions struct {
	// Checkpoints are signed notes. Without any, a chain that lost its end, or was written anew from the beginning,
	// can't be told from a sound one.
	Checkpoints [][]byte
	// Key is the verifier key of whoever signed them, as `agentrun audit key` prints it. It must be given with Checkpoints.
	Key string
	// Remembered is the end that was signed last, as a second place has it; nil: nobody remembers. The chain must have
	// it, and some checkpoint beside it.
	Remembered *Head
	// Home says that the chain lies where it was written, with its checkpoints beside it: that a chain which was signed
	// comes without any means that they were removed.
	Home bool
}

// Report is what Verify found.
type Report struct {
	Chain       string     `json:"chain"`
	Valid       bool       `json:"valid"`
	Problem     *Problem   `json:"problem,omitempty"` // nil exactly when Valid
	Entries     int64      `json:"entries"`           // sound ones, from the beginning
	Head        Hash       `json:"head"`              // hash of the last of them
	Files       int        `json:"files"`
	Bytes       int64      `json:"bytes"`
	Repairs     int        `json:"repairs"`         // torn lines accounted for
	Losses      int        `json:"losses"`          // times that a checkpoint was gone when the chain was signed
	Checkpoints int        `json:"checkpoints"`     // held against, with a good signature
	SignedSize  int64      `json:"signed_size"`     // entries that the largest of them covers
	First       *time.Time `json:"first,omitempty"` // time of the first sound entry
	Last        *time.Time `json:"last,omitempty"`  // of the last one, which may lie before the first: see SetBack
	// SetBack counts the entries whose time lies more than a second before that of the entry before: the clock was set
	// back. The order of entries is that of their numbers, whatever their times say.
	SetBack int `json:"set_back"`
}

// Verify reads a chain from its first byte to the end it had when the call began, in constant memory, and stops at the
// first thing that is wrong. The error means that it couldn't be checked; the chain is then neither good nor bad.
func Verify(dir, chain string, opt VerifyOptions) (Report, error) {
	r := Report{Chain: chain}
	if err := checkChain(chain); err != nil {
		return r, err
	}
	v := verification{report: &r}
	if p, err := v.checkpoints(opt); p != nil || err != nil {
		r.Problem = p
		return r, err
	}
	f, err := openFolder(dir, chain)
	if errors.Is(err, fs.ErrNotExist) && len(v.signed) > 0 {
		r.Problem = v.ended(&Problem{})
		return r, nil
	}
	if err != nil {
		return r, err
	}
	defer f.close()
	v.folder = f
	spans, err := f.snapshot()
	if err != nil {
		return r, err
	}
	r.Problem, err = v.run(spans)
	if r.Problem == nil && err == nil {
		r.Problem = v.unvouched(opt)
	}
	r.Valid = r.Problem == nil && err == nil
	return r, err
}

// span is a file as far as it is looked at.
type span struct {
	number   int
	from, to int64
}

// snapshot takes the files and their sizes under the chain's lock, when nobody is in the middle of a line.
func (f *folder) snapshot() ([]span, error) {
	fd, err := f.open(lockName, unix.O_RDONLY)
	switch {
	case err == nil:
		defer unix.Close(fd) // and with it the lock
		if err := lock(fd, unix.LOCK_SH); err != nil {
			return nil, f.error("flock", lockName, err)
		}
	case !errors.Is(err, fs.ErrNotExist): // a copy of a chain has no lock, and no writers
		return nil, err
	}
	numbers, err := f.files()
	if err != nil {
		return nil, err
	}
	spans := make([]span, len(numbers))
	for i, n := range numbers {
		var st unix.Stat_t
		if err := unix.Fstatat(f.fd, fileName(n), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return nil, f.error("stat", fileName(n), err)
		}
		spans[i] = span{number: n, to: st.Size}
	}
	return spans, nil
}

type verification struct {
	folder *folder
	report *Report
	signed []Checkpoint // by size
	order  order

	// Where we are.
	spans   []span // this file's and those after it
	fd      int
	scan    *scanner
	line    int64
	torn    int64 // where torn bytes begin that no repair has accounted for, else -1
	rotated bool  // the last entry says that the chain goes on in the next file

	vouched *Entry // the first that a signature follows
}

func (v *verification) run(spans []span) (*Problem, error) {
	for i, s := range spans {
		if s.number != i+1 && s.from == 0 {
			return &Problem{Code: Missing, File: fileName(i + 1), Seq: v.order.head.Size, Message: "the file is gone"}, nil
		}
		v.spans = spans[i:]
		if p, err := v.file(s); p != nil || err != nil {
			return p, err
		}
	}
	return v.end(), nil
}

func (v *verification) file(s span) (*Problem, error) {
	fd, err := v.folder.open(fileName(s.number), unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	arrived := v.rotated || s.number == 1 || s.from > 0
	v.fd, v.line, v.torn = fd, 0, -1
	if s.from == 0 {
		v.rotated = false // not behind a checkpoint over a file's last entry
	}
	if v.scan != nil && len(v.scan.buf) == 2*MaxLine {
		*v.scan = scanner{file: fileAt(fd), pos: s.from, limit: s.to, buf: v.scan.buf, long: -1}
	} else {
		v.scan = newScanner(fileAt(fd), s.from, s.to)
	}
	v.report.Files++
	for {
		text, at, err := v.scan.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if errors.Is(err, errPartial) {
			return v.ended(v.problem(Torn, at, fmt.Sprintf("the last %d bytes have no end; the next writer will account for them", s.to-at))), nil
		}
		if err != nil && !errors.Is(err, errLongLine) {
			return nil, v.folder.error("read", fileName(s.number), err)
		}
		v.line++
		if p := v.entry(text, at, err, arrived); p != nil {
			return p, nil
		}
	}
	v.report.Bytes += v.scan.pos - s.from
	if v.torn >= 0 {
		return v.ended(v.problem(Torn, v.torn, "bytes of a writer that died, and no repair accounts for them")), nil
	}
	return nil, nil
}

// ended is for a problem at a place where writers die: if the chain was longer once, that is the news.
func (v *verification) ended(p *Problem) *Problem {
	if n := len(v.signed); n > 0 && len(v.spans) <= 1 && v.signed[n-1].Size > v.order.head.Size {
		c := v.signed[n-1]
		return &Problem{Code: Truncated, File: p.File, Line: p.Line, Offset: p.Offset, Seq: v.order.head.Size,
			Message: fmt.Sprintf("the chain ends with %d entries, a checkpoint was signed over %d", v.order.head.Size, c.Size)}
	}
	return p
}

func (v *verification) end() *Problem {
	var last Problem
	if n := len(v.spans); n > 0 {
		last.File, last.Offset = fileName(v.spans[0].number), v.spans[0].to
	}
	if v.rotated {
		return &Problem{Code: Truncated, File: last.File, Offset: last.Offset, Seq: v.order.head.Size,
			Message: "the last entry says that the chain goes on in another file, and that is gone"}
	}
	if p := v.ended(&last); p.Code != "" {
		return p
	}
	return nil
}

func (v *verification) problem(code Code, at int64, message string) *Problem {
	return &Problem{Code: code, File: fileName(v.spans[0].number), Line: v.line, Offset: at, Seq: v.order.head.Size, Message: message}
}

// entry checks one line in the order in which a finding makes the next question moot.
func (v *verification) entry(text []byte, at int64, err error, arrived bool) *Problem {
	if bytes.HasSuffix(text, []byte(tornMark)) {
		if v.torn < 0 {
			v.torn = at
		}
		return nil
	}
	var e Entry
	var sum Hash
	if err == nil {
		e, sum, err = decode(text)
	}
	if err != nil {
		return v.problem(Malformed, at, err.Error())
	}
	l := link{e.Seq, e.PrevHash, e.Hash}
	code, message := v.misplaced(e, sum, l, arrived)
	if code == "" {
		code, message = v.repaired(e, at)
	}
	if code != "" {
		p := v.problem(code, at, message)
		p.Seq = e.Seq
		return p
	}
	return v.accept(e, l, at)
}

func (v *verification) misplaced(e Entry, sum Hash, l link, arrived bool) (Code, string) {
	switch {
	case sum != e.Hash:
		return Edited, errEdited.Error()
	case e.Chain != v.report.Chain:
		return Inserted, "it belongs to chain " + e.Chain
	case !v.order.continues(l):
		return v.order.judge(l, v.later)
	case v.rotated:
		return Reordered, "it belongs into the next file: the entry before is this file's last"
	case !arrived:
		return Reordered, "it belongs into the file before: no rotation leads to this one"
	}
	return "", ""
}

func (v *verification) accept(e Entry, l link, at int64) *Problem {
	v.order.advance(l)
	var next *Rotation
	if next, v.rotated = e.Data.(*Rotation); v.rotated && fileNumber(next.Next) != v.spans[0].number+1 {
		return v.problem(Malformed, at, "the chain goes on in "+next.Next)
	}
	if v.vouched == nil && vouches(e) {
		v.vouched = &e
	}
	r := v.report
	if _, lost := e.Data.(*CheckpointLost); lost {
		r.Losses++
	}
	if r.Last != nil && e.Time.Before(r.Last.Add(-time.Second)) {
		r.SetBack++
	}
	r.Entries, r.Head, r.Last = v.order.head.Size, e.Hash, &e.Time
	if r.First == nil {
		r.First = &e.Time
	}
	for _, c := range v.signed {
		if c.Size == r.Entries && c.Hash != e.Hash {
			p := v.problem(Rewritten, at, fmt.Sprintf("a checkpoint signed over %d entries has another hash: this entry, or one before it, was replaced and all hashes made anew", c.Size))
			p.Seq = e.Seq
			return p
		}
	}
	return nil
}

// repaired holds a repair against the torn bytes before it. Each needs the other: torn bytes without a repair were not
// found by a writer, and a repair without them, or with others, says that somebody took or changed them.
func (v *verification) repaired(e Entry, at int64) (Code, string) {
	r, is := e.Data.(*Repair)
	switch {
	case !is && v.torn < 0:
		return "", ""
	case !is:
		return Torn, fmt.Sprintf("%d bytes before it are no entry, and no repair accounts for them", at-v.torn)
	case v.torn < 0:
		return Edited, "it accounts for torn bytes that are not there"
	case r.File != fileName(v.spans[0].number) || r.Offset != v.torn || r.Length != at-v.torn:
		return Edited, fmt.Sprintf("it accounts for %d torn bytes at %d of %s, not for the %d before it", r.Length, r.Offset, r.File, at-v.torn)
	}
	sum := sha256.New()
	var got Hash
	if _, err := io.Copy(sum, io.NewSectionReader(fileAt(v.fd), v.torn, r.Length)); err != nil {
		return Torn, err.Error()
	}
	if sum.Sum(got[:0]); got != r.SHA256 {
		return Edited, "the torn bytes before it are not those that it accounts for"
	}
	v.torn = -1
	v.report.Repairs++
	return "", ""
}

// later looks through the rest of the chain, with descriptors of its own.
func (v *verification) later(wanted func(link) bool) bool {
	for i, s := range v.spans {
		fd, err := v.folder.open(fileName(s.number), unix.O_RDONLY)
		if err != nil {
			continue
		}
		scan := newScanner(fileAt(fd), 0, s.to)
		if i == 0 {
			scan.pos = v.scan.pos
		}
		found := scanFor(scan, wanted)
		unix.Close(fd)
		if found {
			return true
		}
	}
	return false
}

func scanFor(scan *scanner, wanted func(link) bool) bool {
	for {
		text, _, err := scan.next()
		if errors.Is(err, errLongLine) {
			continue
		}
		if err != nil {
			return false
		}
		if e, sum, err := decode(text); err == nil && sum == e.Hash && wanted(link{e.Seq, e.PrevHash, e.Hash}) {
			return true
		}
	}
}
