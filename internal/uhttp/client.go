// SPDX-License-Identifier: Apache-2.0

package uhttp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"agentrun/internal/wire"
)

const (
	maxAnswerHead = 32 << 10 // bytes
	maxInterim    = 8        // 100 Continue, 103 Early Hints
)

// Call is a request to be sent. Target is a path with its query, already escaped.
type Call struct {
	Method, Target string
	Body           []byte // JSON; nil: none
	Accept         string
	Upgrade        string // protocol to ask for
}

// Response is an answer whose head was read. Body ends with io.EOF only when the answer is whole.
type Response struct {
	Status int
	Body   io.Reader

	conn net.Conn
	br   *bufio.Reader
	stop func() bool
}

// Do sends a call and reads the head of the answer. It owns conn; when ctx ends, whoever reads or writes it
// is woken.
func Do(ctx context.Context, conn net.Conn, call Call) (*Response, error) {
	request, err := call.bytes()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	r := &Response{conn: conn, br: bufio.NewReaderSize(conn, maxAnswerHead)}
	r.stop = context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	// A server that refuses answers before it has read everything, and closes: the answer counts, not that
	// the rest of the request didn't arrive.
	_, writeErr := conn.Write(request)
	if err := r.read(call.Method); err != nil {
		r.Close()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, errors.Join(err, writeErr)
	}
	r.Body = contextReader{ctx, r.Body}
	return r, nil
}

// Close ends the connection.
func (r *Response) Close() {
	r.stop()
	_ = r.conn.Close()
}

// Stream is the connection after status 101: what is read, written and closed is the protocol's.
func (r *Response) Stream() io.ReadWriteCloser { return stream{r} }

type stream struct{ r *Response }

func (s stream) Read(p []byte) (int, error)  { return s.r.br.Read(p) }
func (s stream) Write(p []byte) (int, error) { return s.r.conn.Write(p) }
func (s stream) Close() error                { s.r.Close(); return nil }

// bytes refuses what would end a line of the head early.
func (c *Call) bytes() ([]byte, error) {
	for _, s := range []string{c.Method, c.Target, c.Accept, c.Upgrade} {
		if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
			return nil, fmt.Errorf("call %.80q %.80q: a byte that no head may have", c.Method, c.Target)
		}
	}
	b := fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: agentrun\r\n", c.Method, c.Target)
	if c.Accept != "" {
		b = fmt.Appendf(b, "Accept: %s\r\n", c.Accept)
	}
	if c.Upgrade != "" {
		b = fmt.Appendf(b, "Connection: Upgrade\r\nUpgrade: %s\r\n", c.Upgrade)
	} else {
		b = append(b, "Connection: close\r\n"...)
	}
	if c.Body != nil {
		b = fmt.Appendf(b, "Content-Type: application/json\r\nContent-Length: %d\r\n", len(c.Body))
	}
	return append(append(b, "\r\n"...), c.Body...), nil
}

// read reads up to the end of the first final head.
func (r *Response) read(method string) error {
	for range maxInterim {
		head, err := readHead(r.br)
		if errors.Is(err, io.EOF) {
			return io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		var w wire.Response
		if err := w.Parse(head); err != nil {
			return err
		}
		if w.Status < 200 && w.Status != 101 {
			continue
		}
		r.Status, r.Body = w.Status, r.body(&w, method)
		return nil
	}
	return bad("no final status after %d interim ones", maxInterim)
}

func (r *Response) body(w *wire.Response, method string) io.Reader {
	if w.Bodiless(method) {
		return strings.NewReader("")
	}
	return w.Body(r.br)
}

// contextReader says that the context ended, instead of what that did to the connection.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && c.ctx.Err() != nil {
		err = context.Cause(c.ctx)
	}
	return n, err
}
