// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

const (
	// MaxHead is the most that a head of the open net may take, in bytes: the buffer of a reader given to
	// Peek.
	MaxHead = 32 << 10
	// MaxFields is how many fields a head may have.
	MaxFields = 128
	// MaxLine is the longest request line, in bytes: a target of 8192 (RFC 9112, 3 asks for 8000), method and
	// version.
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

// Peek waits until br holds a whole head and returns it with the empty line at its end. The bytes stay in br,
// and are valid until the next use of it. A head that doesn't fit into br's buffer is an *Error, status 431.
func Peek(br *bufio.Reader) ([]byte, error) {
	seen := 0
	for {
		have, _ := br.Peek(br.Buffered())
		if end := bytes.Index(have[seen:], endOfHead); end >= 0 {
			return have[:seen+end+len(endOfHead)], nil
		}
		// A line feed alone ends a line for some parsers and not for others: it won't get better by waiting.
		if lone := loneLF(have[seen:], seen > 0); lone {
			return nil, bad("a line doesn't end in CRLF")
		}
		seen = max(0, len(have)-len(endOfHead)+1)
		if _, err := br.Peek(len(have) + 1); err != nil {
			if errors.Is(err, bufio.ErrBufferFull) {
				return nil, &Error{431, fmt.Sprintf("the head is longer than %d KiB", br.Size()>>10)}
			}
			return nil, err
		}
	}
}

var endOfHead = []byte("\r\n\r\n")

// loneLF tells whether a line feed has no carriage return before it. At the start of a later part it can't be
// told.
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
	if slices.ContainsFunc(name, noToken) {
		return nil, nil, bad("a field name with a byte that no name has")
	}
	value = bytes.Trim(line[colon+1:], " \t")
	if slices.ContainsFunc(value, control) {
		return nil, nil, bad("a control character in field %.40q", name)
	}
	return name, value, nil
}

// common handles the fields that belong to the connection (RFC 9110, 7.6.1) and those of framing; all of them
// end here.
func (f *Fields) common(name, value []byte) (drop bool, err error) {
	switch {
	case is(name, "te"), is(name, "trailer"), is(name, "keep-alive"),
		is(name, "proxy-authenticate"), is(name, "proxy-authorization"),
		is(name, "proxy-authentication-info"):
		return true, nil
	case is(name, "upgrade"):
		if f.upgrade != nil {
			return false, bad("two of Upgrade")
		}
		f.upgrade = value
		return true, nil
	case is(name, "connection"), is(name, "proxy-connection"):
		return true, f.connection(value)
	case is(name, "content-length"):
		return true, f.length(value)
	case is(name, "transfer-encoding"):
		return true, f.coding(value)
	case is(name, "content-encoding"):
		f.Encoded = f.Encoded || !is(value, "identity")
	}
	return false, nil
}

func (f *Fields) connection(value []byte) error {
	for option := range bytes.SplitSeq(value, []byte(",")) {
		if option = bytes.Trim(option, " \t"); len(option) == 0 {
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
	n, err := strconv.ParseUint(string(value), 10, 64) // takes no sign
	if err != nil || len(value) > 18 {
		return bad("Content-Length isn't a number")
	}
	f.Length = int64(n) //nolint:gosec // of 18 digits
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

// Drop marks all fields of that name, in lower case, and of those that many servers take for it: CGI and its
// heirs (RFC 3875, 4.1.18) make X_Api_Key and X-Api-Key one, and which of the two counts differs.
func (f *Fields) Drop(name string) {
	name = strings.ReplaceAll(name, "_", "-")
	for i := range f.Lines {
		if is(bytes.ReplaceAll(f.Lines[i].Name, []byte("_"), []byte("-")), name) {
			f.Lines[i].Drop = true
		}
	}
}

// Body returns the body that follows the head in br, decoded; br's buffer has at least 256 bytes. io.EOF
// comes only after all of it, or, where nothing tells a reply's length, when the connection ends.
func (f *Fields) Body(br *bufio.Reader) io.Reader {
	switch {
	case f.Chunked:
		return &chunks{br: br}
	case f.Length >= 0:
		return &exactly{br, f.Length}
	}
	return br
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

// is compares with a word, in ASCII only: the Kelvin sign, which folds to a k as well, has three bytes, so it
// can't stand in a text of the word's length.
func is(b []byte, word string) bool { return len(b) == len(word) && bytes.EqualFold(b, []byte(word)) }

// control tells whether c is a control character, of which a value or reason may have only the tab (RFC 9110,
// 5.5).
func control(c byte) bool { return c < ' ' && c != '\t' || c == 0x7f }

// noToken tells whether c may not stand in a token (RFC 9110, 5.6.2).
func noToken(c byte) bool {
	letter := c|0x20 >= 'a' && c|0x20 <= 'z'
	return !letter && (c < '0' || c > '9') && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0
}
