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
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state != fresh {
		return ErrStarted
	}
	w.state = done
	b := head(status, append([]string{"Content-Type: " + contentType, fmt.Sprintf("Content-Length: %d", len(body)), "Cache-Control: no-store", "Connection: close"}, extra...))
	return w.putLocked(append(b, body...))
}

// Start begins a stream. What is written then goes out at once, in chunks, so that its end can be told from a break.
func (w *Writer) Start(contentType string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state != fresh {
		return ErrStarted
	}
	w.state = streaming
	return w.putLocked(head(200, []string{"Content-Type: " + contentType, "Transfer-Encoding: chunked", "Cache-Control: no-store", "Connection: close"}))
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

// Upgrade answers 101: from here on the connection belongs to the protocol.
func (w *Writer) Upgrade(protocol string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state != fresh {
		return ErrStarted
	}
	w.state = raw
	return w.putLocked(head(101, []string{"Connection: Upgrade", "Upgrade: " + protocol}))
}

// Finish ends a stream well if cause is nil. With a cause it stays without its end, and the reader sees that it broke off.
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

func head(status int, fields []string) []byte {
	b := fmt.Appendf(nil, "HTTP/1.1 %d %s\r\n", status, StatusText(status))
	for _, f := range fields {
		b = append(append(b, f...), "\r\n"...)
	}
	return append(b, "\r\n"...)
}

// StatusText is a word for a status. It has no meaning for programs (RFC 9112, 4).
func StatusText(status int) string {
	switch status {
	case 101:
		return "Switching Protocols"
	case 200:
		return "OK"
	case 400:
		return "Bad Request"
	case 403:
		return "Forbidden"
	case 404:
		return "Not Found"
	case 405:
		return "Method Not Allowed"
	case 408:
		return "Request Timeout"
	case 409:
		return "Conflict"
	case 411:
		return "Length Required"
	case 413:
		return "Content Too Large"
	case 431:
		return "Request Header Fields Too Large"
	case 500:
		return "Internal Server Error"
	case 503:
		return "Service Unavailable"
	}
	return "Status"
}
