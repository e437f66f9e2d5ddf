// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"time"
	"unicode/utf16"
	"unicode/utf8"
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
	var e looseEntry
	v, err := parseJSON(raw)
	if err != nil {
		return e, Hash{}, err
	}
	members, ok := v.(object)
	if !ok {
		return e, Hash{}, errors.New("no JSON object")
	}
	var kind, when string
	var rest object
	for _, m := range members {
		var err error
		switch m.name {
		case "chain":
			e.chain, err = text(m.value)
		case "kind":
			kind, err = text(m.value)
		case "time":
			when, err = text(m.value)
		case "seq":
			n, isNumber := m.value.(float64)
			if e.seq = int64(n); !isNumber || n < 0 || n > MaxInteger || float64(e.seq) != n {
				err = errors.New("want an integer from 0 to 2^53-1")
			}
		case "prev_hash":
			e.prev, err = hashText(m.value)
		case "hash":
			e.hash, err = hashText(m.value)
			if err == nil {
				continue // not part of what is hashed
			}
		case "data":
			if _, isObject := m.value.(object); !isObject {
				err = errors.New("want an object")
			}
		default:
			err = errors.New("no member of an entry")
		}
		if err != nil {
			return e, Hash{}, fmt.Errorf("%.80s: %w", m.name, err)
		}
		rest = append(rest, m)
	}
	if len(members) != 7 {
		return e, Hash{}, fmt.Errorf("%d members, an entry has seven: chain, data, hash, kind, prev_hash, seq, time", len(members))
	}
	if kind == "" || checkChain(e.chain) != nil {
		return e, Hash{}, errors.New("kind or chain is no name")
	}
	if _, err := time.Parse(time.RFC3339Nano, when); err != nil || when[len(when)-1] != 'Z' {
		return e, Hash{}, errors.New("time: want RFC 3339 in UTC")
	}
	b, err := appendJSON(nil, rest)
	return e, sha256.Sum256(b), err
}

func text(v any) (string, error) {
	s, ok := v.(string)
	if !ok {
		return "", errors.New("want text")
	}
	return s, nil
}

func hashText(v any) (Hash, error) {
	s, err := text(v)
	if err != nil {
		return Hash{}, err
	}
	return ParseHash(s)
}

// object keeps the members as they came; parseJSON has refused names that come twice.
type object []member

type member struct {
	name  string
	value any
}

const maxDepth = 32

// parseJSON reads one value: nil, bool, float64, string, []any, object. It refuses what RFC 8785 has no form for: names
// that come twice, numbers that are no finite double, text that is no Unicode.
func parseJSON(raw []byte) (any, error) {
	// encoding/json replaces what is no Unicode by U+FFFD, and then two texts have one hash.
	if !utf8.Valid(raw) || hasLoneSurrogate(raw) {
		return nil, errors.New("text is not valid Unicode")
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	v, err := parseValue(d, 0)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON value")
	}
	return v, nil
}

func parseValue(d *json.Decoder, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxDepth)
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Number:
		v, err := strconv.ParseFloat(t.String(), 64)
		if err != nil || math.IsInf(v, 0) {
			return nil, fmt.Errorf("%.40s is no finite double", t)
		}
		return v, nil
	case json.Delim:
		if t == '{' {
			return parseObject(d, depth)
		}
		list := []any{}
		for d.More() {
			v, err := parseValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err := d.Token()
		return list, err
	}
	return t, nil
}

func parseObject(d *json.Decoder, depth int) (any, error) {
	o := object{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		name, _ := t.(string)
		v, err := parseValue(d, depth+1)
		if err != nil {
			return nil, err
		}
		o = append(o, member{name, v})
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	slices.SortFunc(o, func(a, b member) int { return compareUTF16(a.name, b.name) })
	for i := 1; i < len(o); i++ {
		if o[i].name == o[i-1].name {
			return nil, fmt.Errorf("member %.80q comes twice", o[i].name)
		}
	}
	return o, nil
}

// compareUTF16 is the order of RFC 8785 section 3.2.3. It differs from that of the bytes: U+10000 sorts before U+E000.
func compareUTF16(a, b string) int {
	ra, rb := []rune(a), []rune(b)
	for i := range min(len(ra), len(rb)) {
		if ra[i] != rb[i] {
			return slices.Compare(utf16.AppendRune(nil, ra[i]), utf16.AppendRune(nil, rb[i]))
		}
	}
	return cmp.Compare(len(ra), len(rb))
}

// appendJSON writes a value of parseJSON in canonical form.
func appendJSON(b []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return append(b, "null"...), nil
	case bool:
		return strconv.AppendBool(b, v), nil
	case float64:
		return appendDouble(b, v), nil
	case string:
		if b = appendString(b, v); b == nil {
			return nil, errors.New("text is not valid Unicode")
		}
		return b, nil
	case []any:
		b = append(b, '[')
		for i, e := range v {
			if i > 0 {
				b = append(b, ',')
			}
			var err error
			if b, err = appendJSON(b, e); err != nil {
				return nil, err
			}
		}
		return append(b, ']'), nil
	case object:
		b = append(b, '{')
		for i, m := range v {
			if i > 0 {
				b = append(b, ',')
			}
			var err error
			if b, err = appendJSON(b, m.name); err != nil {
				return nil, err
			}
			if b, err = appendJSON(append(b, ':'), m.value); err != nil {
				return nil, err
			}
		}
		return append(b, '}'), nil
	}
	return nil, fmt.Errorf("%T is no JSON value", v)
}

// hasLoneSurrogate looks for \ud800 to \udfff that are not half of a pair.
func hasLoneSurrogate(raw []byte) bool {
	high := false // the escape before was the first half, and nothing came between
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' || i+1 >= len(raw) {
			if high {
				return true
			}
			continue
		}
		i++
		var v uint64
		if raw[i] == 'u' && i+4 < len(raw) {
			v, _ = strconv.ParseUint(string(raw[i+1:i+5]), 16, 16)
			i += 4
		}
		low := v >= 0xdc00 && v <= 0xdfff
		if high != low {
			return true
		}
		high = v >= 0xd800 && v <= 0xdbff
	}
	return high
}
