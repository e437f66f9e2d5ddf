// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"strings"
)

const (
	// MaxHead is the most that a head may take, in bytes; a reader given to Peek has a buffer of as much.
	MaxHead = 32 << 10
	// MaxFields is how many fields a head may have.
	MaxFields = 128
	// MaxLine is the longest request line, in bytes: a target of 8192 (RFC 9112, 3 asks for 8000), method and version.
	MaxLine = 8192 + 64

	maxOptions = 32 // tokens in Connection
)

// Error is a message that is refused, with the status that answers it.
type Error struct {
	Status int
	Text   string // no part of the message but names of fields
}

func (e *Error) Error() string { return e.Text }

func bad(format string, args ...any) *Error { return &Error{400, fmt.Sprintf(format, args...)} }

// Peek waits until br holds a whole head and returns it with the empty line at its end. The bytes stay in br, and are
// valid until the next use of it. A head that doesn't fit is an *Error, status 431.
func Peek(br *bufio.Reader) ([]byte, error) {
	seen := 0
	for {
		have, _ := br.Peek(br.Buffered())
		if end := bytes.Index(have[seen:], endOfHead); end >= 0 {
			return have[:seen+end+len(endOfHead)], nil
		}
		if len(have) >= MaxHead {
			return nil, &Error{431, "the head is longer than 32 KiB"}
		}
		// A line feed alone ends a line for some parsers and not for others: it won't get better by waiting.
		if lone := loneLF(have[seen:], seen > 0); lone {
			return nil, bad("a line doesn't end in CRLF")
		}
		seen = max(0, len(have)-len(endOfHead)+1)
		if _, err := br.Peek(len(have) + 1); err != nil {
			if errors.Is(err, bufio.ErrBufferFull) {
				return nil, &Error{431, "the head is longer than 32 KiB"}
			}
			return nil, err
		}
	}
}

var endOfHead = []byte("\r\n\r\n")

// loneLF tells whether a line feed has no carriage return before it. At the start of a later part it can't be told.
func loneLF(b []byte, later bool) bool {
	for i := 0; ; i++ {
		n := bytes.IndexByte(b[i:], '\n')
		if n < 0 {
			return false
		}
		i += n
		if i == 0 && later {
			continue
		}
		if i == 0 || b[i-1] != '\r' {
			return true
		}
	}
}

// Field is one line of a head. Drop tells that it isn't sent on.
type Field struct {
	Name, Value []byte
	Drop        bool
}

// Fields are what requests and responses have in common. All slices are into the head that was parsed.
type Fields struct {
	Lines     []Field
	Length    int64 // of Content-Length; -1: none
	Chunked   bool
	Close     bool   // Connection: close
	KeepAlive bool   // Connection: keep-alive
	Upgrade   []byte // the only protocol of Upgrade, if Connection names it as well
	Encoded   bool   // Content-Encoding other than identity
	options   [][]byte
	upgrade   []byte
	coded     bool
}

// WebSocket tells whether the only protocol that is asked for, or switched to, is that.
func (f *Fields) WebSocket() bool { return is(f.Upgrade, "websocket") }

func (f *Fields) reset() {
	*f = Fields{Lines: f.Lines[:0], options: f.options[:0], Length: -1}
}

// nextLine cuts the first line of head, which ends in CRLF and holds neither CR, LF nor NUL.
func nextLine(head []byte) (line, rest []byte, err error) {
	end := bytes.IndexByte(head, '\n')
	if end < 1 || head[end-1] != '\r' {
		return nil, nil, bad("a line doesn't end in CRLF")
	}
	return head[:end-1], head[end+1:], nil
}

// parse reads all field lines up to the empty one.
func (f *Fields) parse(rest []byte, special func(name, value []byte) (bool, error)) error {
	for {
		line, more, err := nextLine(rest)
		if err != nil {
			return err
		}
		rest = more
		if len(line) == 0 {
			break
		}
		if len(f.Lines) >= MaxFields {
			return &Error{431, "more than 128 fields"}
		}
		name, value, err := cutField(line)
		if err != nil {
			return err
		}
		drop, err := f.common(name, value)
		if err != nil {
			return err
		}
		if !drop {
			if drop, err = special(name, value); err != nil {
				return err
			}
		}
		f.Lines = append(f.Lines, Field{name, value, drop})
	}
	if len(rest) > 0 {
		return bad("bytes after the empty line")
	}
	return f.finish()
}

// finish applies what Connection named.
func (f *Fields) finish() error {
	for _, option := range f.options {
		switch {
		case is(option, "close"):
			f.Close = true
		case is(option, "keep-alive"):
			f.KeepAlive = true
		case is(option, "upgrade"):
			f.Upgrade = f.upgrade
		}
		for i := range f.Lines {
			if bytes.EqualFold(f.Lines[i].Name, option) {
				f.Lines[i].Drop = true
			}
		}
	}
	if f.Chunked && f.Length >= 0 {
		return bad("Content-Length beside Transfer-Encoding")
	}
	return nil
}

func cutField(line []byte) (name, value []byte, err error) {
	if line[0] == ' ' || line[0] == '\t' {
		return nil, nil, bad("a folded line")
	}
	colon := bytes.IndexByte(line, ':')
	if colon < 1 {
		return nil, nil, bad("a field without a name")
	}
	name = line[:colon]
	for _, c := range name {
		if !token(c) {
			return nil, nil, bad("a field name with a byte that no name has")
		}
	}
	value = trim(line[colon+1:])
	for _, c := range value {
		if c < ' ' && c != '\t' || c == 0x7f {
			return nil, nil, bad("a control character in field %.40q", name)
		}
	}
	return name, value, nil
}

// common handles the fields that belong to the connection (RFC 9110, 7.6.1) and those of framing; all of them end here.
func (f *Fields) common(name, value []byte) (drop bool, err error) {
	switch len(name) {
	case 2:
		return is(name, "te"), nil
	case 7:
		switch {
		case is(name, "trailer"):
			return true, nil
		case is(name, "upgrade"):
			if f.upgrade != nil {
				return false, bad("two of Upgrade")
			}
			f.upgrade = value
			return true, nil
		}
	case 10:
		switch {
		case is(name, "keep-alive"):
			return true, nil
		case is(name, "connection"):
			return true, f.connection(value)
		}
	case 14:
		if is(name, "content-length") {
			return true, f.length(value)
		}
	case 16:
		switch {
		case is(name, "content-encoding"):
			f.Encoded = f.Encoded || !is(value, "identity")
			return false, nil
		case is(name, "proxy-connection"):
			return true, f.connection(value)
		}
	case 17:
		if is(name, "transfer-encoding") {
			return true, f.coding(value)
		}
	case 18, 19, 25:
		return is(name, "proxy-authenticate") || is(name, "proxy-authorization") || is(name, "proxy-authentication-info"), nil
	}
	return false, nil
}

func (f *Fields) connection(value []byte) error {
	for len(value) > 0 {
		var option []byte
		option, value, _ = bytes.Cut(value, []byte(","))
		if option = trim(option); len(option) == 0 {
			continue
		}
		if len(f.options) >= maxOptions {
			return bad("more than 32 options in Connection")
		}
		f.options = append(f.options, option)
	}
	return nil
}

func (f *Fields) length(value []byte) error {
	if f.Length >= 0 {
		return bad("two of Content-Length")
	}
	if len(value) == 0 || len(value) > 18 {
		return bad("Content-Length isn't a number")
	}
	n := int64(0)
	for _, c := range value {
		if c < '0' || c > '9' {
			return bad("Content-Length isn't a number")
		}
		n = n*10 + int64(c-'0')
	}
	f.Length = n
	return nil
}

func (f *Fields) coding(value []byte) error {
	if f.coded {
		return bad("two of Transfer-Encoding")
	}
	f.coded = true
	if !is(value, "chunked") {
		return &Error{501, "a Transfer-Encoding other than chunked"}
	}
	f.Chunked = true
	return nil
}

// Drop marks all fields of that name, in lower case, and of those that many servers take for it: CGI and its heirs
// (RFC 3875, 4.1.18) make X_Api_Key and X-Api-Key one, and which of the two counts differs.
func (f *Fields) Drop(name string) {
	name = strings.ReplaceAll(name, "_", "-")
	for i := range f.Lines {
		if is(bytes.ReplaceAll(f.Lines[i].Name, []byte("_"), []byte("-")), name) {
			f.Lines[i].Drop = true
		}
	}
}

// AppendFields adds the fields that are sent on, each with its CRLF.
func (f *Fields) AppendFields(b []byte) []byte {
	for i := range f.Lines {
		if l := &f.Lines[i]; !l.Drop {
			b = append(b, l.Name...)
			b = append(b, ": "...)
			b = append(b, l.Value...)
			b = append(b, "\r\n"...)
		}
	}
	return b
}

// is compares with a word in lower case, in ASCII only: bytes.EqualFold takes the Kelvin sign for a k.
func is(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

func trim(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	for len(b) > 0 && (b[len(b)-1] == ' ' || b[len(b)-1] == '\t') {
		b = b[:len(b)-1]
	}
	return b
}

// token tells whether c may stand in a token (RFC 9110, 5.6.2).
func token(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	switch c {
	case '!', '#', '$', '%', '&', '\'', '*', '+', '-', '.', '^', '_', '`', '|', '~':
		return true
	}
	return false
}
