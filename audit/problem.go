// SPDX-License-Identifier: Apache-2.0

package audit

import "fmt"

// Code says what is wrong with a chain. The words are stable.
type Code string

// The zero value, "", is no problem and never stands in a Problem.
const (
	Edited       Code = "edited"        // the content of an entry has another hash than it says
	Missing      Code = "missing"       // entries between two others, at the beginning, or a whole file are gone
	Inserted     Code = "inserted"      // an entry stands where none belongs: a copy, another chain's, or a made-up one
	Reordered    Code = "reordered"     // entries are all there, in another order
	Truncated    Code = "truncated"     // the end is gone: a checkpoint, or a rotation, knows of more
	Forked       Code = "forked"        // an entry is sound by itself and continues another history
	Rewritten    Code = "rewritten"     // the chain is sound by itself and contradicts a signed checkpoint
	BadSignature Code = "bad_signature" // a checkpoint is not signed by the key given, or is no checkpoint of this chain
	Unsigned     Code = "unsigned"      // there was a checkpoint, and it is gone
	Malformed    Code = "malformed"     // a line is no entry
	Torn         Code = "torn"          // the end of a line is missing and no repair accounts for it
)

// Problem is the first thing wrong with a chain.
type Problem struct {
	Code    Code   `json:"code"`
	File    string `json:"file,omitempty"`
	Line    int64  `json:"line,omitempty"`   // in the file, from 1; 0 if it belongs to no line
	Offset  int64  `json:"offset,omitempty"` // of the line in the file
	Seq     int64  `json:"seq"`              // of the entry; for what is no entry, the number the next one should have
	Message string `json:"message"`
}

// String writes file:line: entry seq: code: message.
func (p Problem) String() string {
	where := ""
	if p.File != "" {
		where = p.File
		if p.Line > 0 {
			where += fmt.Sprintf(":%d", p.Line)
		}
		where += ": "
	}
	return fmt.Sprintf("%sentry %d: %s: %s", where, p.Seq, p.Code, p.Message)
}

// BrokenError is a chain with a problem, where a sound one is needed.
type BrokenError struct {
	Chain   string
	Problem Problem
}

func (e *BrokenError) Error() string { return fmt.Sprintf("chain %s: %s", e.Chain, e.Problem) }

// link is what the order of entries depends on.
type link struct {
	seq        int64
	prev, hash Hash
}

// order follows a chain and says what is wrong with an entry that doesn't continue it.
type order struct {
	head   Head
	before Hash // previous hash of the last entry
}

func (o *order) advance(l link) {
	o.head, o.before = Head{Size: l.seq + 1, Hash: l.hash}, l.prev
}

func (o *order) continues(l link) bool { return l.seq == o.head.Size && l.prev == o.head.Hash }

// judge says why l doesn't continue the chain. later reports whether an entry that would stands further on; it is asked
// only here, so a sound chain is read once.
func (o *order) judge(l link, later func(wanted func(link) bool) bool) (Code, string) {
	n := o.head.Size
	switch {
	case l.seq < n && l.hash == o.head.Hash:
		return Inserted, fmt.Sprintf("entry %d stands here a second time", l.seq)
	case l.seq < n && l.seq == n-1 && l.prev == o.before:
		return Forked, fmt.Sprintf("a second entry %d, with other content", l.seq)
	case l.seq < n:
		return Inserted, fmt.Sprintf("its number belongs further up: entry %d is due", n)
	case later(o.continues):
		if l.seq == n {
			return Inserted, fmt.Sprintf("the entry %d that continues the chain stands further on", n)
		}
		return Reordered, fmt.Sprintf("entry %d is due, and stands further on", n)
	case l.seq == n+1:
		return Missing, fmt.Sprintf("entry %d is gone", n)
	case l.seq > n:
		return Missing, fmt.Sprintf("entries %d to %d are gone", n, l.seq-1)
	case n == 0:
		return Forked, "the first entry names a previous one; its previous hash should be 64 zeros"
	}
	return Forked, fmt.Sprintf("its previous hash is not the hash of entry %d: one of the two was replaced", n-1)
}
