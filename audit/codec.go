// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// A record is written in its canonical form, and read by writing it anew: whatever parseValue takes a text for, one that
// this program would not have written (other order, spaces, 1.0 for 1, a second key of the same name, \u0041 for A) is
// another text than what is written then, and refused. So the tags of a record's fields and the writers below are all
// that decides what a line can be.
//
// RFC 8785 asks for keys sorted by UTF-16 code units. The keys are ASCII constants and sorted as such, and TestCanonicalForm
// holds every record to it with a library that knows nothing of this code.

// way is how a field is written as the value of a member.
type way struct {
	write    func(b []byte, p any) ([]byte, error)
	optional bool // left out when it is empty
}

// ways are what the second word of a field's tag, `log:"name way"`, can be.
var ways = map[string]way{
	"id":         {write: by(id)},
	"optID":      {write: by(id), optional: true},
	"nullID":     {write: by(nullID)},
	"optIDs":     {write: by(ids), optional: true},
	"code":       {write: by(code)},
	"optCode":    {write: by(code), optional: true},
	"bool":       {write: by(boolean)},
	"optBool":    {write: by(boolean), optional: true},
	"count":      {write: by(count)},
	"optCount":   {write: by(count), optional: true},
	"number":     {write: by(number)},
	"optNumber":  {write: by(number), optional: true},
	"ring":       {write: by(ring)},
	"optRing":    {write: by(ring), optional: true},
	"ringOrNull": {write: by(ringOrNull)},
	"digest":     {write: by(digest)},
	"instant":    {write: by(instant)},
	"optInstant": {write: by(instant), optional: true},
}

func by[T any](write func([]byte, T) ([]byte, error)) func([]byte, any) ([]byte, error) {
	return func(b []byte, p any) ([]byte, error) {
		if v, ok := p.(*T); ok {
			return write(b, *v)
		}
		return b, errors.New("field of another type")
	}
}

// member is a field of a record.
type member struct {
	way
	name  string
	index int
}

// members of each type of record, in the order of RFC 8785, found at its first use.
var members sync.Map

func membersOf(t reflect.Type) []member {
	if m, ok := members.Load(t); ok {
		return m.([]member)
	}
	var all []member
	for i := range t.NumField() {
		name, how, _ := strings.Cut(t.Field(i).Tag.Get("log"), " ")
		w, ok := ways[how]
		if !ok {
			w.write = func(b []byte, _ any) ([]byte, error) { return b, errors.New("field without a way to write it") }
		}
		all = append(all, member{w, name, i})
	}
	slices.SortFunc(all, func(a, b member) int { return cmp.Compare(a.name, b.name) })
	members.Store(t, all)
	return all
}

// appendData writes the record as a canonical object.
func appendData(b []byte, r Record) ([]byte, error) {
	v := reflect.ValueOf(r).Elem()
	out := append(b, '{')
	for _, m := range membersOf(v.Type()) {
		p := v.Field(m.index).Addr().Interface()
		if m.optional && empty(p) {
			continue
		}
		if len(out) > len(b)+1 {
			out = append(out, ',')
		}
		out = append(append(append(out, '"'), m.name...), `":`...)
		var err error
		if out, err = m.write(out, p); err != nil {
			return b, fmt.Errorf("record %s: %s: %w", r.Kind(), m.name, err)
		}
	}
	return append(out, '}'), nil
}

func empty(p any) bool {
	switch p := p.(type) {
	case *string:
		return *p == ""
	case *[]string:
		return len(*p) == 0
	case *bool:
		return !*p
	case *int64:
		return *p == 0
	case *Number:
		return !p.known
	case *Ring:
		return *p == NoRing
	case *time.Time:
		return p.IsZero()
	}
	return false
}

// parseData reads the members of an object that belong to r.
func parseData(object []byte, r Record) {
	v := reflect.ValueOf(r).Elem()
	for _, m := range membersOf(v.Type()) {
		var value []byte
		value, object = cutMember(object, m.name)
		parseValue(value, v.Field(m.index).Addr().Interface())
	}
}

// cutMember returns the value of the member at the beginning of s and what follows it, if it has that name: else nothing,
// and s. Where a value ends is where a comma or a brace stands outside of it.
func cutMember(s []byte, name string) (value, rest []byte) {
	from := len(`{"`) + len(name) + len(`":`)
	if len(s) < from || string(s[2:from-2]) != name || s[from-2] != '"' {
		return nil, s
	}
	depth := 0
	for i := from; i < len(s); i++ {
		switch b := s[i]; {
		case b == '"':
			for i++; i < len(s) && s[i] != '"'; i++ {
				if s[i] == '\\' {
					i++
				}
			}
		case depth == 0 && (b == ',' || b == '}'):
			return s[from:i], s[i:]
		case b == '{' || b == '[':
			depth++
		case b == '}' || b == ']':
			depth--
		}
	}
	return nil, s
}

// parseValue sets what p points to by its text. What is none of its type leaves it, or makes it something else: it is
// written anew, and then that tells.
func parseValue(text []byte, p any) {
	switch p := p.(type) {
	case *bool:
		*p = string(text) == "true"
	case *int64:
		*p, _ = strconv.ParseInt(string(text), 10, 64)
	case *Number:
		if v, err := strconv.ParseFloat(string(text), 64); err == nil {
			*p = NumberOf(v)
		}
	case *Ring:
		if v, err := strconv.Atoi(string(text)); err == nil {
			*p = RingOf(v)
		}
	case *Hash:
		_ = p.UnmarshalText(bytes.Trim(text, `"`))
	case *time.Time:
		*p, _ = time.Parse(timeLayout, string(bytes.Trim(text, `"`)))
	case *string:
		if n := len(text); n > 1 && text[0] == '"' && bytes.IndexByte(text, '\\') < 0 {
			*p = string(text[1 : n-1])
			return
		}
		plain, _ := jsontext.AppendUnquote(nil, text)
		*p = string(plain)
	case *[]string:
		_ = json.Unmarshal(text, p)
	}
}

func boolean(b []byte, v bool) ([]byte, error) { return strconv.AppendBool(b, v), nil }

// count is an integer from 0 to 2^53-1. RFC 8785 numbers are IEEE doubles; a larger one would change its value in a
// reader that follows the standard, so it is refused, not rounded.
func count(b []byte, v int64) ([]byte, error) {
	if v < 0 || v > MaxInteger {
		return b, fmt.Errorf("%d is outside 0 to 2^53-1", v)
	}
	return strconv.AppendInt(b, v, 10), nil
}

// number is a finite double or null.
func number(b []byte, v Number) ([]byte, error) {
	if !v.known {
		return append(b, "null"...), nil
	}
	return appendDouble(b, v.value), nil
}

// appendDouble writes a finite double as ECMAScript's Number::toString does (RFC 8785 section 3.2.2.3).
func appendDouble(b []byte, v float64) []byte {
	if v == 0 {
		return append(b, '0') // also for -0
	}
	if a := math.Abs(v); a >= 1e-6 && a < 1e21 {
		return strconv.AppendFloat(b, v, 'f', -1, 64)
	}
	b = strconv.AppendFloat(b, v, 'e', -1, 64)
	// Go pads the exponent to two digits, ECMAScript doesn't.
	if n := len(b); b[n-2] == '0' && (b[n-3] == '-' || b[n-3] == '+') {
		b[n-2] = b[n-1]
		b = b[:n-1]
	}
	return b
}

// ring is 0 to 3.
func ring(b []byte, v Ring) ([]byte, error) {
	if v == NoRing || v > Sandbox {
		return b, errors.New("no ring")
	}
	return append(b, '0'+byte(v-Root)), nil
}

// ringOrNull also takes "no ring", which is what an agent gets recorded with that claimed another one.
func ringOrNull(b []byte, v Ring) ([]byte, error) {
	if v == NoRing {
		return append(b, "null"...), nil
	}
	return ring(b, v)
}

// digest is a hash that must be there: one nobody filled in is refused.
func digest(b []byte, v Hash) ([]byte, error) {
	if v == (Hash{}) {
		return b, errors.New("empty digest")
	}
	return append(appendHex(append(b, '"'), v), '"'), nil
}

// timeLayout has nine digits always: times sort as text and have one spelling.
const timeLayout = "2006-01-02T15:04:05.000000000Z"

func instant(b []byte, v time.Time) ([]byte, error) {
	v = v.UTC()
	if y := v.Year(); v.IsZero() || y < 1970 || y > 9999 {
		return b, errors.New("no time between the years 1970 and 9999")
	}
	return append(v.AppendFormat(append(b, '"'), timeLayout), '"'), nil
}

// Text comes in two kinds. An id is 1 to 256 bytes, printable or not: what an agent claimed is recorded as it claimed it
// (Claimed makes it fit). A code is a word of ours, lower_snake_case: nothing of an agent's can pass for one.
func id(b []byte, v string) ([]byte, error) { return text(b, v, maxID) }

func code(b []byte, v string) ([]byte, error) {
	if v != "" && len(v) <= maxCode && !isCode(v) {
		return b, fmt.Errorf("%.80q is no lower_snake_case word", v)
	}
	return text(b, v, maxCode)
}

func isCode(s string) bool {
	for i := range len(s) {
		if b := s[i]; b != '_' && (b < 'a' || b > 'z') && (b < '0' || b > '9') {
			return false
		}
	}
	return s[0] >= 'a' && s[0] <= 'z'
}

func nullID(b []byte, v string) ([]byte, error) {
	if v == "" {
		return append(b, "null"...), nil
	}
	return id(b, v)
}

func text(b []byte, v string, limit int) ([]byte, error) {
	switch {
	case v == "":
		return b, errors.New("empty")
	case len(v) > limit:
		return b, fmt.Errorf("%d bytes, at most %d are recorded", len(v), limit)
	}
	b, err := jsontext.AppendQuote(b, v) // as RFC 8785 section 3.2.2.2 says
	if err != nil {
		return b, errors.New("not valid UTF-8")
	}
	return b, nil
}

func ids(b []byte, v []string) ([]byte, error) {
	if len(v) > maxList {
		return b, fmt.Errorf("%d elements, at most %d are recorded", len(v), maxList)
	}
	for i, s := range v {
		var err error
		if b, err = id(append(b, "[,"[min(i, 1)]), s); err != nil {
			return b, fmt.Errorf("element %d: %w", i, err)
		}
	}
	return append(b, ']'), nil
}
