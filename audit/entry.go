// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
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

const hashMember = `"hash":"`

// hashSize is the length of the member hash with its comma.
const hashSize = len(hashMember) + 64 + 2

// appendContent writes what is hashed of an entry whose data is already canonical: the line without the member hash,
// which belongs at at.
func appendContent(b []byte, e *Entry, data []byte) (_ []byte, at int, err error) {
	b = append(append(append(b, `{"chain":"`...), e.Chain...), `","data":`...)
	b = append(append(b, data...), ',')
	at = len(b)
	b = append(append(append(b, `"kind":"`...), e.Kind...), `","prev_hash":"`...)
	if b, err = count(append(appendHex(b, e.PrevHash), `","seq":`...), e.Seq); err != nil {
		return b, at, fmt.Errorf("seq: %w", err)
	}
	if b, err = instant(append(b, `,"time":`...), e.Time); err != nil {
		return b, at, fmt.Errorf("time: %w", err)
	}
	return append(b, '}'), at, nil
}

// insertHash makes the content a line, with its newline. The rest was written first, where it can be hashed in one piece.
func insertHash(content []byte, at int, h Hash) []byte {
	b := append(content, make([]byte, hashSize+1)...)
	copy(b[at+hashSize:], content[at:])
	copy(b[at:], hashMember)
	hex.Encode(b[at+len(hashMember):], h[:])
	copy(b[at+hashSize-2:], `",`)
	b[len(b)-1] = '\n'
	return b
}

// appendLine writes an entry whose data is already canonical, with its newline, and sets its hash.
func appendLine(b []byte, e *Entry, data []byte) ([]byte, error) {
	start := len(b)
	line, at, err := appendContent(b, e, data)
	if err != nil {
		return b, err
	}
	e.Hash = sha256.Sum256(line[start:])
	return insertHash(line, at, e.Hash), nil
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
	line, err := appendLine(nil, &e, data)
	if err != nil {
		return nil, err
	}
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

// decode also gives the hash of the content: it writes the line that it has read, see way.
func decode(line []byte) (Entry, Hash, error) {
	if len(line) >= MaxLine {
		return Entry{}, Hash{}, errTooLong
	}
	var e Entry
	var kind string
	var data []byte
	rest := line
	for _, m := range []struct {
		name string
		p    any
	}{{"chain", &e.Chain}, {"data", nil}, {"hash", &e.Hash}, {"kind", &kind}, {"prev_hash", &e.PrevHash}, {"seq", &e.Seq}, {"time", &e.Time}} {
		var value []byte
		if value, rest = cutMember(rest, m.name); m.p == nil {
			data = value
			continue
		}
		parseValue(value, m.p)
	}
	ok := false
	if e.Kind, ok = ParseKind(kind); !ok {
		return Entry{}, Hash{}, errors.New("not in canonical form, or of a kind that this version doesn't know")
	}
	e.Data = newRecord(e.Kind)
	parseData(data, e.Data)
	if err := checkChain(e.Chain); err != nil {
		return Entry{}, Hash{}, err
	}
	buf := make([]byte, 0, len(data)+len(line)+1)
	data, err := appendData(buf, e.Data)
	if err != nil {
		return Entry{}, Hash{}, err
	}
	content, at, err := appendContent(data[len(data):], &e, data)
	if err != nil {
		return Entry{}, Hash{}, err
	}
	sum := sha256.Sum256(content)
	if written := insertHash(content, at, e.Hash); !bytes.Equal(written[:len(written)-1], line) {
		return Entry{}, Hash{}, errors.New("not in the canonical form of RFC 8785")
	}
	return e, sum, nil
}
