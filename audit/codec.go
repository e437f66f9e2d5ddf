// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
)

// codec writes a record in its canonical form, or reads exactly that form. Both directions are described once, by the
// tags of each record's fields: what is read back can't differ from what is written, and a spelling that this program
// would not have written (other order, spaces, 1.0 for 1, a second key of the same name, \u0041 for A) matches nothing.
//
// RFC 8785 asks for keys sorted by UTF-16 code units. The keys are ASCII constants and sorted as such, and TestCanonicalForm
// holds every record to it with a library that knows nothing of this code.
type codec struct {
	buf     []byte // written so far
	src     []byte // left to read
	reading bool
	comma   bool // a member has gone before in this object
	err     error
}

var errNotCanonical = errors.New("not in the canonical form of RFC 8785")

// refuse keeps the first error; after it, every step is a no-op.
func (c *codec) refuse(key string, err error) {
	if c.err == nil {
		c.err = fmt.Errorf("%s: %w", key, err)
	}
}

func (c *codec) take(lit string) bool {
	if c.err != nil || len(c.src) < len(lit) || string(c.src[:len(lit)]) != lit {
		return false
	}
	c.src = c.src[len(lit):]
	return true
}

// key writes or expects the name of a member. The names are constants of ours without anything to escape.
func (c *codec) key(name string) bool {
	if c.err != nil {
		return false
	}
	if !c.reading {
		if c.comma {
			c.buf = append(c.buf, ',')
		}
		c.buf = append(append(append(c.buf, '"'), name...), '"', ':')
		c.comma = true
		return true
	}
	rest := c.afterKey(name)
	if rest == nil {
		c.refuse(name, errNotCanonical)
		return false
	}
	c.src, c.comma = rest, true
	return true
}

// afterKey gives what follows the name of the next member, nil if the next member is another.
func (c *codec) afterKey(name string) []byte {
	s := c.src
	if c.comma {
		if len(s) == 0 || s[0] != ',' {
			return nil
		}
		s = s[1:]
	}
	if n := len(name); len(s) > n+3 && s[0] == '"' && string(s[1:n+1]) == name && s[n+1] == '"' && s[n+2] == ':' {
		return s[n+3:]
	}
	return nil
}

// open and shut are the braces of an object.
func (c *codec) open() { c.mark('{', false) }

func (c *codec) shut() { c.mark('}', true) }

func (c *codec) mark(b byte, after bool) {
	if c.err != nil {
		return
	}
	if c.reading {
		if len(c.src) == 0 || c.src[0] != b {
			c.refuse("object", errNotCanonical)
			return
		}
		c.src = c.src[1:]
	} else {
		c.buf = append(c.buf, b)
	}
	c.comma = after
}

// skip is for optional members: true if there is none. A member that is there with its empty value is refused by the
// readers below, else one record would have two spellings.
func (c *codec) skip(name string, empty bool) bool {
	if c.err != nil {
		return true
	}
	if c.reading {
		return c.afterKey(name) == nil
	}
	return empty
}

func (c *codec) bool(name string, p *bool) {
	if !c.key(name) {
		return
	}
	switch {
	case !c.reading:
		c.buf = strconv.AppendBool(c.buf, *p)
	case c.take("true"):
		*p = true
	case c.take("false"):
		*p = false
	default:
		c.refuse(name, errNotCanonical)
	}
}

// optBool is written only if it is true.
func (c *codec) optBool(name string, p *bool) {
	if c.skip(name, !*p) {
		return
	}
	if c.bool(name, p); !*p {
		c.refuse(name, errNotCanonical)
	}
}

// count is an integer from 0 to 2^53-1. RFC 8785 numbers are IEEE doubles; a larger one would change its value in a
// reader that follows the standard, so it is refused, not rounded.
func (c *codec) count(name string, p *int64) {
	if !c.key(name) {
		return
	}
	if !c.reading {
		if *p < 0 || *p > MaxInteger {
			c.refuse(name, fmt.Errorf("%d is outside 0 to 2^53-1", *p))
			return
		}
		c.buf = strconv.AppendInt(c.buf, *p, 10)
		return
	}
	n := 0
	var v int64
	for n < len(c.src) && n < 17 && c.src[n] >= '0' && c.src[n] <= '9' {
		v = v*10 + int64(c.src[n]-'0')
		n++
	}
	if n == 0 || v > MaxInteger || n > 1 && c.src[0] == '0' {
		c.refuse(name, errNotCanonical)
		return
	}
	*p, c.src = v, c.src[n:]
}

// number is a finite double or null.
func (c *codec) number(name string, p *Number) {
	if !c.key(name) {
		return
	}
	if !c.reading {
		if !p.known {
			c.buf = append(c.buf, "null"...)
			return
		}
		c.buf = appendDouble(c.buf, p.value)
		return
	}
	if c.take("null") {
		*p = Number{}
		return
	}
	n := 0
	for n < len(c.src) && n < 32 && c.src[n] != ',' && c.src[n] != '}' {
		n++
	}
	v, err := strconv.ParseFloat(string(c.src[:n]), 64)
	var back [32]byte
	if err != nil || math.IsInf(v, 0) || math.IsNaN(v) || string(appendDouble(back[:0], v)) != string(c.src[:n]) {
		c.refuse(name, errNotCanonical)
		return
	}
	*p, c.src = Number{v, true}, c.src[n:]
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

// ring is 0 to 3. orNull also takes "no ring", which is what an agent gets recorded with that claimed another one.
func (c *codec) ring(name string, p *Ring, orNull bool) {
	if !c.key(name) {
		return
	}
	if !c.reading {
		switch {
		case *p > NoRing && *p <= Sandbox:
			c.buf = append(c.buf, '0'+byte(*p-Root))
		case *p == NoRing && orNull:
			c.buf = append(c.buf, "null"...)
		default:
			c.refuse(name, errors.New("no ring"))
		}
		return
	}
	if orNull && c.take("null") {
		*p = NoRing
		return
	}
	if len(c.src) == 0 || c.src[0] < '0' || c.src[0] > '3' {
		c.refuse(name, errNotCanonical)
		return
	}
	*p, c.src = Root+Ring(c.src[0]-'0'), c.src[1:]
}

func (c *codec) hash(name string, p *Hash) {
	if !c.key(name) {
		return
	}
	if !c.reading {
		c.buf = append(appendHex(append(c.buf, '"'), p), '"')
		return
	}
	if len(c.src) < 66 || c.src[0] != '"' || c.src[65] != '"' || !p.parse(c.src[1:65]) {
		c.refuse(name, errNotCanonical)
		return
	}
	c.src = c.src[66:]
}

// digest is a hash that must be there: one nobody filled in is refused.
func (c *codec) digest(name string, p *Hash) {
	c.hash(name, p)
	if *p == (Hash{}) {
		c.refuse(name, errors.New("empty digest"))
	}
}

func (c *codec) instant(name string, p *time.Time) {
	if !c.key(name) {
		return
	}
	if !c.reading {
		t := p.UTC()
		if y := t.Year(); p.IsZero() || y < 1970 || y > 9999 {
			c.refuse(name, errors.New("no time between the years 1970 and 9999"))
			return
		}
		c.buf = append(appendTime(append(c.buf, '"'), t), '"')
		return
	}
	const quoted = len(timeLayout) + 2
	if len(c.src) < quoted || c.src[0] != '"' || c.src[quoted-1] != '"' || !parseTime(c.src[1:quoted-1], p) {
		c.refuse(name, errNotCanonical)
		return
	}
	c.src = c.src[quoted:]
}

func (c *codec) optInstant(name string, p *time.Time) {
	if !c.skip(name, p.IsZero()) {
		c.instant(name, p)
	}
}

// Text comes in three kinds. An id is 1 to 256 bytes, printable or not: what an agent claimed is recorded as it claimed it
// (Claimed makes it fit). A code is a word of ours, lower_snake_case: nothing of an agent's can pass for one.
func (c *codec) id(name string, p *string) { c.text(name, p, maxID, nil) }

func (c *codec) optID(name string, p *string) {
	if !c.skip(name, *p == "") {
		c.id(name, p)
	}
}

func (c *codec) nullID(name string, p *string) {
	if !c.reading && *p != "" {
		c.id(name, p)
		return
	}
	if c.reading {
		if rest := c.afterKey(name); len(rest) == 0 || rest[0] != 'n' {
			c.id(name, p)
			return
		}
	}
	if !c.key(name) {
		return
	}
	if !c.reading {
		c.buf = append(c.buf, "null"...)
	} else if !c.take("null") {
		c.refuse(name, errNotCanonical)
	}
}

func (c *codec) code(name string, p *string) { c.text(name, p, maxCode, isCode) }

func (c *codec) optCode(name string, p *string) {
	if !c.skip(name, *p == "") {
		c.code(name, p)
	}
}

func isCode(s string) bool {
	for i := range len(s) {
		if b := s[i]; b != '_' && (b < 'a' || b > 'z') && (b < '0' || b > '9') {
			return false
		}
	}
	return s[0] >= 'a' && s[0] <= 'z'
}

func (c *codec) text(name string, p *string, limit int, valid func(string) bool) {
	if !c.key(name) {
		return
	}
	if c.reading {
		s, rest, ok := cutString(c.src)
		if !ok {
			c.refuse(name, errNotCanonical)
			return
		}
		*p, c.src = s, rest
	}
	switch {
	case *p == "":
		c.refuse(name, errors.New("empty"))
	case len(*p) > limit:
		c.refuse(name, fmt.Errorf("%d bytes, at most %d are recorded", len(*p), limit))
	case valid != nil && !valid(*p):
		c.refuse(name, fmt.Errorf("%.80q is no lower_snake_case word", *p))
	case !c.reading:
		if c.buf = appendString(c.buf, *p); c.buf == nil {
			c.refuse(name, errors.New("not valid UTF-8"))
		}
	}
}

func (c *codec) optIDs(name string, p *[]string) {
	if c.skip(name, len(*p) == 0) || !c.key(name) {
		return
	}
	if !c.reading && len(*p) > maxList {
		c.refuse(name, fmt.Errorf("%d elements, at most %d are recorded", len(*p), maxList))
		return
	}
	if !c.reading {
		c.buf = append(c.buf, '[')
		for i, s := range *p {
			if i > 0 {
				c.buf = append(c.buf, ',')
			}
			if c.buf = appendString(c.buf, s); c.buf == nil || s == "" || len(s) > maxID {
				c.refuse(name, fmt.Errorf("element %d is empty, too long or not valid UTF-8", i))
				return
			}
		}
		c.buf = append(c.buf, ']')
		return
	}
	if !c.take("[") {
		c.refuse(name, errNotCanonical)
		return
	}
	for {
		s, rest, ok := cutString(c.src)
		if !ok || s == "" || len(s) > maxID || len(*p) == maxList {
			c.refuse(name, errNotCanonical)
			return
		}
		*p, c.src = append(*p, s), rest
		if c.take("]") {
			return
		}
		if !c.take(",") {
			c.refuse(name, errNotCanonical)
			return
		}
	}
}

const hexDigits = "0123456789abcdef"

// appendString quotes s as RFC 8785 section 3.2.2.2 says; nil if it isn't valid UTF-8.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	start, ascii := 0, true
	for i := range len(s) {
		ch := s[i]
		if ch >= ' ' && ch != '"' && ch != '\\' {
			ascii = ascii && ch < utf8.RuneSelf
			continue
		}
		b = append(b, s[start:i]...)
		start = i + 1
		if short := shortEscape(ch); short != 0 {
			b = append(b, '\\', short)
		} else {
			b = append(b, '\\', 'u', '0', '0', hexDigits[ch>>4], hexDigits[ch&15])
		}
	}
	if !ascii && !utf8.ValidString(s) {
		return nil
	}
	return append(append(b, s[start:]...), '"')
}

func shortEscape(ch byte) byte {
	switch ch {
	case '"', '\\':
		return ch
	case '\b':
		return 'b'
	case '\t':
		return 't'
	case '\n':
		return 'n'
	case '\f':
		return 'f'
	case '\r':
		return 'r'
	}
	return 0
}

// cutString reads a quoted string that appendString could have written.
func cutString(src []byte) (s string, rest []byte, ok bool) {
	if len(src) == 0 || src[0] != '"' {
		return "", nil, false
	}
	for i := 1; i < len(src); i++ {
		switch ch := src[i]; {
		case ch == '"':
			return string(src[1:i]), src[i+1:], utf8.Valid(src[1:i])
		case ch == '\\':
			return cutEscaped(src)
		case ch < ' ':
			return "", nil, false
		}
	}
	return "", nil, false
}

func cutEscaped(src []byte) (string, []byte, bool) {
	var out []byte
	for i := 1; i < len(src); i++ {
		switch ch := src[i]; {
		case ch == '"':
			// Any other spelling of the same text would be a second form of the same record.
			text := string(out)
			return text, src[i+1:], slices.Equal(appendString(nil, text), src[:i+1])
		case ch == '\\' && i+1 < len(src):
			i++
			n, plain := unescape(src[i:])
			if n == 0 {
				return "", nil, false
			}
			out = append(out, plain)
			i += n - 1
		default:
			out = append(out, ch)
		}
	}
	return "", nil, false
}

// unescape gives the length of the escape after its backslash and the byte it stands for; 0 for one that no canonical
// string has.
func unescape(s []byte) (int, byte) {
	switch s[0] {
	case '"', '\\':
		return 1, s[0]
	case 'b':
		return 1, '\b'
	case 't':
		return 1, '\t'
	case 'n':
		return 1, '\n'
	case 'f':
		return 1, '\f'
	case 'r':
		return 1, '\r'
	case 'u':
		if len(s) >= 5 {
			if v, err := strconv.ParseUint(string(s[1:5]), 16, 8); err == nil {
				return 5, byte(v)
			}
		}
	}
	return 0, 0
}

// timeLayout has nine digits always: times sort as text and have one spelling.
const timeLayout = "2006-01-02T15:04:05.000000000Z"

func appendTime(b []byte, t time.Time) []byte {
	year, month, day := t.Date()
	hour, minute, second := t.Clock()
	b = appendDigits(b, year, 4)
	b = appendDigits(append(b, '-'), int(month), 2)
	b = appendDigits(append(b, '-'), day, 2)
	b = appendDigits(append(b, 'T'), hour, 2)
	b = appendDigits(append(b, ':'), minute, 2)
	b = appendDigits(append(b, ':'), second, 2)
	b = appendDigits(append(b, '.'), t.Nanosecond(), 9)
	return append(b, 'Z')
}

func appendDigits(b []byte, v, width int) []byte {
	n := len(b)
	b = append(b, "000000000"[:width]...)
	for i := n + width - 1; i >= n; i-- {
		b[i] = '0' + byte(v%10)
		v /= 10
	}
	return b
}

func parseTime(s []byte, p *time.Time) bool {
	digits := func(from, to int) (v int) {
		for _, b := range s[from:to] {
			if b < '0' || b > '9' {
				return -1
			}
			v = v*10 + int(b-'0')
		}
		return v
	}
	year, month, day := digits(0, 4), digits(5, 7), digits(8, 10)
	hour, minute, second, nano := digits(11, 13), digits(14, 16), digits(17, 19), digits(20, 29)
	if year < 1970 || min(month, day, hour, minute, second, nano) < 0 {
		return false
	}
	t := time.Date(year, time.Month(month), day, hour, minute, second, nano, time.UTC)
	// time.Date turns 31 February into March, and doesn't look at the marks in between.
	var back [len(timeLayout)]byte
	if t.Year() > 9999 || string(appendTime(back[:0], t)) != string(s) {
		return false
	}
	*p = t
	return true
}
