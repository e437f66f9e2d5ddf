// SPDX-License-Identifier: Apache-2.0

package uhttp

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// ErrStarted: an answer was begun already; there is only one.
var ErrStarted = errors.New("the answer has begun")

// Writer writes the one answer to a request. Its methods may be called from several goroutines.
type Writer struct {
	conn  net.Conn
	stall time.Duration

	mu    sync.Mutex
	state int
	err   error // of the connection; nothing is written after it
}

const (
	fresh = iota
	streaming
	raw
	done
)

// NewWriter returns a Writer. A write that the other side doesn't take within stall breaks the answer off.
func NewWriter(conn net.Conn, stall time.Duration) *Writer { return &Writer{conn: conn, stall: stall} }

// Begun tells whether something of the answer was written.
func (w *Writer) Begun() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state != fresh
}

// Send writes a whole answer. Extra are further fields, each a line without its end.
func (w *Writer) Send(status int, contentType string, body []byte, extra ...string) error {
	length := fmt.Sprintf("Content-Length: %d", len(body))
	return w.begin(done, status, body, append(of(contentType, length), extra...))
}

// Start begins a stream. What is written then goes out at once, in chunks, so that its end can be told from a
// break.
func (w *Writer) Start(contentType string) error {
	return w.begin(streaming, 200, nil, of(contentType, "Transfer-Encoding: chunked"))
}

// Upgrade answers 101: from here on the connection belongs to the protocol.
func (w *Writer) Upgrade(protocol string) error {
	return w.begin(raw, 101, nil, []string{"Connection: Upgrade", "Upgrade: " + protocol})
}

func of(contentType, framing string) []string {
	return []string{"Content-Type: " + contentType, framing, "Cache-Control: no-store", "Connection: close"}
}

// begin writes the head of the one answer, and body after it.
func (w *Writer) begin(state, status int, body []byte, fields []string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state != fresh {
		return ErrStarted
	}
	w.state = state
	b := fmt.Appendf(nil, "HTTP/1.1 %d %s\r\n", status, statusTexts[status])
	for _, f := range fields {
		b = append(append(b, f...), "\r\n"...)
	}
	b = append(b, "\r\n"...)
	return w.putLocked(append(b, body...))
}

// Write sends p as part of a stream, or as it is after an upgrade.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(p) == 0 {
		return 0, w.err // an empty chunk would be the end
	}
	b := p
	switch w.state {
	case streaming:
		b = append(fmt.Appendf(make([]byte, 0, len(p)+16), "%x\r\n", len(p)), p...)
		b = append(b, "\r\n"...)
	case raw:
	default:
		return 0, errors.New("write without a stream")
	}
	if err := w.putLocked(b); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Finish ends a stream well if cause is nil. With a cause it stays without its end, and the reader sees that
// it broke off.
func (w *Writer) Finish(cause error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state == streaming && cause == nil {
		w.state = done
		return w.putLocked([]byte("0\r\n\r\n"))
	}
	w.state = done
	return w.err
}

func (w *Writer) putLocked(b []byte) error {
	if w.err != nil {
		return w.err
	}
	if w.err = w.conn.SetWriteDeadline(time.Now().Add(w.stall)); w.err == nil {
		_, w.err = w.conn.Write(b)
	}
	return w.err
}

// statusTexts has a word for each status that is answered. It has no meaning for programs (RFC 9112, 4).
var statusTexts = [600]string{
	101: "Switching Protocols",
	200: "OK",
	400: "Bad Request",
	403: "Forbidden",
	404: "Not Found",
	405: "Method Not Allowed",
	408: "Request Timeout",
	409: "Conflict",
	411: "Length Required",
	413: "Content Too Large",
	431: "Request Header Fields Too Large",
	500: "Internal Server Error",
	503: "Service Unavailable",
}
