// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Entry is one link of a chain. In the file it is one line: the canonical JSON (RFC 8785) of an object with the members
// chain, data, hash, kind, prev_hash, seq and time. The hash is SHA-256 over the same object without the member hash; so
// the line without `"hash":"…64 digits…",` is, byte for byte, what was hashed.
type Entry struct {
	Chain    string
	Data     Record
	Hash     Hash
	Kind     Kind
	PrevHash Hash // of the entry before; all zeros for the first
	Seq      int64
	Time     time.Time // UTC, of writing
}

// NodeChain is the chain of the node: what belongs to no session.
const NodeChain = "node"

const sessionPrefix = "session-"

// SessionChain names the chain of a session.
func SessionChain(sessionID string) string { return sessionPrefix + sessionID }

// errTooLong can't be reached with the limits of this package's records; it is there for the one added tomorrow.
var errTooLong = errors.New("entry is longer than 128 KiB")

// checkChain refuses names that would be a path, a hidden file or a second name of another chain.
func checkChain(name string) error {
	bad := len(name) == 0 || len(name) > maxChain
	for i := 0; i < len(name) && !bad; i++ {
		b := name[i]
		alnum := b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9'
		bad = !alnum && (i == 0 || b != '_' && b != '-')
	}
	if bad {
		return fmt.Errorf("chain name %.80q: want letters, digits, _ and -, beginning with a letter or digit, at most %d", name, maxChain)
	}
	return nil
}

// appendData writes the record as a canonical object.
func appendData(b []byte, r Record) ([]byte, error) {
	c := codec{buf: b}
	c.open()
	c.record(r)
	c.shut()
	if c.err != nil {
		return b, fmt.Errorf("record %s: %w", r.Kind(), c.err)
	}
	return c.buf, nil
}

const hashMember = `"hash":"`

// hashSize is the length of the member hash with its comma.
const hashSize = len(hashMember) + 64 + 2

// appendLine writes an entry whose data is already canonical, with its newline, and sets its hash.
func appendLine(b []byte, e *Entry, data []byte) []byte {
	start := len(b)
	b = append(append(append(b, `{"chain":"`...), e.Chain...), `","data":`...)
	b = append(append(b, data...), ',')
	// The hash is of the rest without it, so the rest is written first, where it can be hashed in one piece.
	at := len(b)
	b = append(append(append(b, `"kind":"`...), e.Kind.String()...), `","prev_hash":"`...)
	b = append(appendHex(b, &e.PrevHash), `","seq":`...)
	b = append(strconv.AppendInt(b, e.Seq, 10), `,"time":"`...)
	b = append(appendTime(b, e.Time), '"', '}')
	e.Hash = sha256.Sum256(b[start:])

	end := len(b)
	b = append(b, make([]byte, hashSize+1)...)
	copy(b[at+hashSize:], b[at:end])
	appendHex(append(b[:at], hashMember...), &e.Hash)
	copy(b[at+hashSize-2:], `",`)
	b[len(b)-1] = '\n'
	return b
}

// Line gives the entry as it stands in the file, without the newline.
func (e Entry) Line() ([]byte, error) {
	if e.Data == nil || e.Data.Kind() != e.Kind {
		return nil, errors.New("entry without a record of its kind")
	}
	data, err := appendData(nil, e.Data)
	if err != nil {
		return nil, err
	}
	if err := checkChain(e.Chain); err != nil {
		return nil, err
	}
	want := e.Hash
	line := appendLine(nil, &e, data)
	if e.Hash != want {
		return nil, fmt.Errorf("entry %d: hash %s is not that of its content, %s", e.Seq, want, e.Hash)
	}
	return line[:len(line)-1], nil
}

// MarshalJSON is Line.
func (e Entry) MarshalJSON() ([]byte, error) { return e.Line() }

// DecodeEntry reads a line without its newline. It accepts exactly what this package writes; whether the hash is right and
// whether the entry belongs where it stands are the verifier's questions. An error says what can't be read; the Entry is
// then zero.
func DecodeEntry(line []byte) (Entry, error) {
	e, _, err := decode(line)
	return e, err
}

// decode also gives the hash of the content. kind stands behind data in the canonical order, so it is looked up first:
// what stands behind data has a fixed length but for kind and seq.
func decode(line []byte) (Entry, Hash, error) {
	var e Entry
	if len(line) >= MaxLine {
		return e, Hash{}, errTooLong
	}
	kind, ok := kindOf(line)
	if !ok {
		return e, Hash{}, errors.New("not in canonical form, or of a kind that this version doesn't know")
	}
	e.Kind, e.Data = kind, newRecord(kind)
	c := codec{src: line, reading: true}
	c.open()
	c.text("chain", &e.Chain, maxChain, nil)
	if c.key("data") {
		c.open()
		c.record(e.Data)
		c.shut()
	}
	at := len(line) - len(c.src) + 1
	c.hash("hash", &e.Hash)
	name := kind.String()
	c.code("kind", &name)
	c.hash("prev_hash", &e.PrevHash)
	c.count("seq", &e.Seq)
	c.instant("time", &e.Time)
	c.shut()
	if c.err == nil && len(c.src) > 0 {
		c.refuse("end", errNotCanonical)
	}
	if c.err == nil {
		c.err = checkChain(e.Chain)
	}
	if c.err != nil {
		return Entry{}, Hash{}, c.err
	}
	return e, contentHash(line, at), nil
}

// contentHash hashes the line without the member hash, which begins at at. Most lines fit the buffer, and one piece hashes
// faster than two.
func contentHash(line []byte, at int) Hash {
	var buf [1 << 10]byte
	return sha256.Sum256(append(append(buf[:0], line[:at]...), line[at+hashSize:]...))
}

// kindOf looks from the end of the line, where nothing has a free length: a record can't hold a kind of its own there.
func kindOf(line []byte) (Kind, bool) {
	const tail = len(`,"time":""}`) + len(timeLayout)
	i := len(line) - tail - 1
	for ; i > 0 && line[i] >= '0' && line[i] <= '9'; i-- { // seq
	}
	const between = len(`","prev_hash":"",`) + 64 + len(`"seq":`)
	end := i + 1 - between
	if i < 0 || end < 0 {
		return Invalid, false
	}
	start := end
	for start > 0 && line[start-1] != '"' {
		start--
	}
	return ParseKind(string(line[start:end]))
}
