// SPDX-License-Identifier: Apache-2.0

package uhttp

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"agentrun/internal/wire"
)

// Bounds of a request, in bytes. A reader given to ReadRequest has a buffer of MaxHead: that is what bounds
// the head.
const (
	MaxHead = 8 << 10
	MaxBody = 64 << 10
)

// Error is a message that is refused, with the status that answers it if it was a request.
type Error = wire.Error

func bad(format string, args ...any) *Error {
	return &Error{Status: 400, Text: fmt.Sprintf(format, args...)}
}

// Request is a request, whole and checked.
type Request struct {
	Method  string
	Host    string
	Path    []string          // the decoded segments; none for "/"
	Query   map[string]string // decoded; no name comes twice
	Body    []byte
	Upgrade string // the protocol that is asked for instead; empty: none
	fields  []wire.Field
}

// Header returns a field's first value; the name in lower case. Fields of framing and of the connection are
// not among them.
func (r *Request) Header(name string) string {
	for _, f := range r.fields {
		if strings.EqualFold(string(f.Name), name) && !f.Drop {
			return string(f.Value)
		}
	}
	return ""
}

// NewReader returns a reader as ReadRequest needs it.
func NewReader(r io.Reader) *bufio.Reader { return bufio.NewReaderSize(r, MaxHead) }

// ReadRequest reads one request. Interim says "100 Continue" to who waits for it before sending a body. What
// follows the request stays in br: after an upgrade it is the first of the stream, otherwise it is nothing.
func ReadRequest(br *bufio.Reader, interim io.Writer) (*Request, error) {
	head, err := readHead(br)
	if err != nil {
		return nil, err
	}
	r, length, waits, err := parseRequest(head)
	if err != nil || length == 0 {
		return r, err
	}
	if waits && br.Buffered() == 0 {
		if _, err := io.WriteString(interim, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
			return nil, err
		}
	}
	r.Body = make([]byte, length)
	if _, err := io.ReadFull(br, r.Body); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return r, nil
}

// readHead returns a copy of the head, and has consumed it.
func readHead(br *bufio.Reader) ([]byte, error) {
	peeked, err := wire.Peek(br)
	if err != nil {
		return nil, err
	}
	head := bytes.Clone(peeked)
	_, err = br.Discard(len(head))
	return head, err
}

func parseRequest(head []byte) (r *Request, length int64, waits bool, err error) {
	var w wire.Request
	if err := w.Parse(head); err != nil {
		return nil, 0, false, err
	}
	switch {
	case w.Minor != 1:
		return nil, 0, false, &Error{Status: 505, Text: "only HTTP/1.1 is spoken here"}
	case w.Chunked:
		return nil, 0, false, &Error{Status: 411, Text: "a body must come with its Content-Length"}
	case w.Length > MaxBody:
		text := fmt.Sprintf("the body is longer than %d bytes", MaxBody)
		return nil, 0, false, &Error{Status: 413, Text: text}
	}
	r = &Request{Method: string(w.Method), Host: string(w.Host), Upgrade: string(w.Upgrade), fields: w.Lines}
	if r.Path, r.Query, err = parseTarget(string(w.Target)); err != nil {
		return nil, 0, false, err
	}
	return r, max(w.Length, 0), w.Continue, nil
}
