// SPDX-License-Identifier: Apache-2.0

package conform

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"agentrun/internal/read"
	"agentrun/rings"
)

// fields reads an object strictly: exact names, each once, none unknown. encoding/json alone would take
// "RING" for "ring", the last of two values and null for anything; a case would then be answered as another
// than the one it is. The first mistake is kept, and told by done.
type fields struct {
	where string // for messages: the operation, and the element within it
	raw   json.RawMessage
	left  map[string]json.RawMessage
	fault *Error
}

// readFields reads what is known to be JSON.
func readFields(where string, raw json.RawMessage) *fields {
	f := &fields{where: where, raw: raw, left: map[string]json.RawMessage{}}
	if kind(raw) != "an object" {
		return f.refuse(InvalidType, "%s: is %s, want an object", where, kind(raw))
	}
	n := read.JSON(read.Source{Max: len(raw)}, raw)
	n.Into(&f.left)
	if twice, ok := errors.AsType[*read.InvalidError](n.Done()); ok {
		f.refuse(DuplicateField, "%s: %v", where, twice.Problems[0])
		for _, p := range twice.Problems {
			delete(f.left, p.Path) // neither of the two counts
		}
	}
	return f
}

// whole returns the object as it was written, for a rule that reads it by itself and tells what is wrong.
func (f *fields) whole() json.RawMessage {
	f.left, f.fault = nil, nil
	return f.raw
}

func (f *fields) refuse(code Code, format string, args ...any) *fields {
	if f.fault == nil {
		f.fault = fault(code, format, args...)
	}
	return f
}

// done returns the first mistake, or what is left over as one.
func (f *fields) done() error {
	if f.fault != nil {
		return f.fault
	}
	if len(f.left) > 0 {
		return fault(UnknownField, "%s: has no field %.64q", f.where, slices.Min(slices.Collect(maps.Keys(f.left))))
	}
	return nil
}

// take removes a field; ok is false if it isn't there.
func (f *fields) take(name string) (raw json.RawMessage, ok bool) {
	raw, ok = f.left[name]
	delete(f.left, name)
	return raw, ok
}

// given tells whether an optional field says anything. null says as little as a field that isn't there.
func (f *fields) given(name string) bool {
	if raw, ok := f.left[name]; ok && string(raw) != "null" {
		return true
	}
	delete(f.left, name)
	return false
}

// must is take for a field that has to be there.
func (f *fields) must(name string) (raw json.RawMessage, ok bool) {
	if raw, ok = f.take(name); !ok {
		f.refuse(MissingField, "%s: %s is missing", f.where, name)
	}
	return raw, ok
}

func (f *fields) wrong(name, want string, raw json.RawMessage) {
	f.refuse(InvalidType, "%s: %s is %s, want %s", f.where, name, kind(raw), want)
}

func kind(raw json.RawMessage) string {
	switch {
	case len(raw) == 0:
		return "nothing"
	case raw[0] == '{':
		return "an object"
	case raw[0] == '[':
		return "a list"
	case raw[0] == '"':
		return "a string"
	case raw[0] == 't', raw[0] == 'f':
		return "a bool"
	case raw[0] == 'n':
		return "null"
	}
	return "a number"
}

// value reads a field that has to be there. want is what parse takes, in words.
func value[T any](f *fields, name, want string, parse func(json.RawMessage) (T, bool)) (v T) {
	raw, ok := f.must(name)
	if !ok {
		return v
	}
	if v, ok = parse(raw); !ok {
		f.wrong(name, want, raw)
	}
	return v
}

func (f *fields) bool(name string) bool {
	return value(f, name, "true or false", func(raw json.RawMessage) (is, ok bool) {
		return string(raw) == "true", string(raw) == "true" || string(raw) == "false"
	})
}

func (f *fields) text(name string) string { return value(f, name, "a string", text) }

func text(raw json.RawMessage) (s string, ok bool) {
	return s, len(raw) > 0 && raw[0] == '"' && json.Unmarshal(raw, &s) == nil
}

// list returns the elements; of a list that may be missing, none.
func (f *fields) list(name string, needed bool) []json.RawMessage {
	raw, ok := f.take(name)
	switch {
	case !ok && needed:
		f.refuse(MissingField, "%s: %s is missing", f.where, name)
		return nil
	case !ok:
		return nil
	}
	var l []json.RawMessage
	if raw[0] != '[' || json.Unmarshal(raw, &l) != nil {
		f.wrong(name, "a list", raw)
		return nil
	}
	return l
}

// each reads the objects of a list that must be there. what is one of them, for messages.
func (f *fields) each(name, what string, read func(i int, g *fields)) {
	for i, raw := range f.list(name, true) {
		g := readFields(fmt.Sprintf("%s: %s %d", f.where, what, i), raw)
		read(i, g)
		if err := g.done(); err != nil && f.fault == nil {
			f.fault = asFault(err)
		}
	}
}

// texts returns the strings of a list that may be missing.
func (f *fields) texts(name string, needed bool) []string {
	var list []string
	for i, raw := range f.list(name, needed) {
		s, ok := text(raw)
		if !ok {
			f.wrong(fmt.Sprintf("%s[%d]", name, i), "a string", raw)
		}
		list = append(list, s)
	}
	return list
}

// number takes a JSON number, null, or one of the three numbers JSON has no word for. What is too large for
// a double is infinite.
func (f *fields) number(name string) float64 {
	return value(f, name, `a number, null, "NaN", "Infinity" or "-Infinity"`, number)
}

func number(raw json.RawMessage) (n float64, ok bool) {
	switch string(raw) {
	case "null", `"NaN"`:
		return math.NaN(), true
	case `"Infinity"`:
		return math.Inf(1), true
	case `"-Infinity"`:
		return math.Inf(-1), true
	}
	if kind(raw) != "a number" {
		return math.NaN(), false
	}
	n, _ = strconv.ParseFloat(string(raw), 64) // out of range it is infinite
	return n, true
}

// ring takes what number takes. Whatever isn't 0, 1, 2 or 3 in that spelling is NoRing, for the rules to
// refuse.
func (f *fields) ring(name string) rings.Ring {
	return value(f, name, "a ring's number", func(raw json.RawMessage) (r rings.Ring, ok bool) {
		_ = r.UnmarshalJSON(raw) // no ring is NoRing
		_, ok = number(raw)
		return r, ok
	})
}

// maxSeconds is in the year 5138. Up to here a double knows the microsecond.
const maxSeconds = 1e11

// instant takes seconds since any beginning, or RFC 3339. ok is false for numbers that are none, or so large
// that they are no time.
func (f *fields) instant(name string) (at time.Time, ok bool) {
	raw, there := f.must(name)
	if !there {
		return time.Time{}, false
	}
	if seconds, isNumber := number(raw); isNumber {
		if !(math.Abs(seconds) <= maxSeconds) {
			return time.Time{}, false
		}
		whole, part := math.Modf(seconds)
		return time.Unix(int64(whole), int64(math.Round(part*1e9))).UTC(), true
	}
	s, isText := text(raw)
	at, err := time.Parse(time.RFC3339, s)
	if !isText || err != nil {
		f.wrong(name, "seconds or a time as 2026-11-21T04:02:51Z", raw)
		return time.Time{}, false
	}
	return at, true
}
