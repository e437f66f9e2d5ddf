// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"time"

	"agentrun/internal/read"
)

// EntriesReport is the answer of VerifyEntries.
type EntriesReport struct {
	Valid   bool
	Index   int  // of the first bad entry; -1 if Valid
	Problem Code // "" if Valid
	Message string
}

// VerifyEntries checks a chain that is given as JSON values, from its first entry on: the order, the hashes, the members.
// Spelling and order of members don't count, because whoever passes entries on may have written them anew; each entry is
// brought into canonical form first. Kind and data may be anything: this is the chain rule alone, fit for chains that
// other programs made. No entries at all are a valid chain.
func VerifyEntries(entries []json.RawMessage) EntriesReport {
	var o order
	chain := ""
	for i, raw := range entries {
		code, message := Malformed, ""
		e, sum, err := parseLoose(raw)
		switch {
		case err != nil:
			message = err.Error()
		case sum != e.hash:
			code, message = Edited, errEdited.Error()
		case i > 0 && e.chain != chain:
			code, message = Inserted, "it belongs to chain "+e.chain
		case !o.continues(e.link):
			code, message = o.judge(e.link, func(wanted func(link) bool) bool { return anyOf(entries[i+1:], wanted) })
		default:
			chain = e.chain
			o.advance(e.link)
			continue
		}
		return EntriesReport{Index: i, Problem: code, Message: message}
	}
	return EntriesReport{Valid: true, Index: -1}
}

func anyOf(entries []json.RawMessage, wanted func(link) bool) bool {
	return slices.ContainsFunc(entries, func(raw json.RawMessage) bool {
		e, sum, err := parseLoose(raw)
		return err == nil && sum == e.hash && wanted(e.link)
	})
}

type looseEntry struct {
	link
	chain string
}

// parseLoose reads one entry and hashes its content.
func parseLoose(raw []byte) (looseEntry, Hash, error) {
	text, err := read.Canonical(raw, finite)
	if err != nil {
		return looseEntry{}, Hash{}, err
	}
	var as map[string]json.RawMessage
	var m struct {
		Chain string                     `json:"chain" read:"required"`
		Data  map[string]json.RawMessage `json:"data" read:"required"`
		Hash  Hash                       `json:"hash" read:"required"`
		Kind  string                     `json:"kind" read:"required"`
		Prev  Hash                       `json:"prev_hash" read:"required"`
		Seq   int64                      `json:"seq" read:"required"`
		Time  string                     `json:"time" read:"required"`
	}
	n := read.JSON(read.Source{Max: len(text)}, text)
	n.Into(&as)
	n.Into(&m)
	var ps read.Problems
	if checkChain(m.Chain) != nil {
		ps.Add("chain", "is no name")
	}
	if m.Seq < 0 || m.Seq > MaxInteger {
		ps.Add("seq", "want an integer from 0 to 2^53-1")
	}
	if _, err := time.Parse(time.RFC3339Nano, m.Time); err != nil || m.Time[len(m.Time)-1] != 'Z' {
		ps.Add("time", "want RFC 3339 in UTC")
	}
	if err := n.Done(ps.Err()); err != nil {
		return looseEntry{}, Hash{}, errors.New(read.Lines(err)[0])
	}
	// What is hashed is the entry without its hash, the third of the seven members.
	from := len(`{"chain":,"data":,`) + len(as["chain"]) + len(as["data"])
	content := append(text[:from:from], text[from+len(`"hash":,`)+len(as["hash"]):]...)
	e := looseEntry{chain: m.Chain}
	e.hash, e.prev, e.seq = m.Hash, m.Prev, m.Seq
	return e, sha256.Sum256(content), nil
}

// finite refuses what is no double: the canonical form would have the largest in its place.
func finite(number string) bool {
	_, err := strconv.ParseFloat(number, 64)
	return err == nil
}
