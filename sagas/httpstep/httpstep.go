// SPDX-License-Identifier: Apache-2.0

// Package httpstep makes the API calls of sagas: execute_api and undo_api.
//
// It guarantees: one POST of at most 128 KiB for each call, to the machine itself and nowhere else, with the idempotency
// key in the header Idempotency-Key and in the body; a status from 200 to 299 is success, everything else isn't. Redirects
// are not followed, no proxy and no name server is asked, and of the answer at most 64 KiB are read.
//
//	err := httpstep.Client{}.Call(ctx, "http://127.0.0.1:8080/book", input, call)
//
// The body is {"saga_id", "step_id", "attempt_count", "action": "execute" or "undo", "idempotency_key", "input"}.
//
// Errors: *StatusError is an answer that isn't 2xx: the server says that it didn't do it. An error that is
// sagas.ErrUnknown means that the request may have arrived: the connection broke or time ran out after the first byte was
// sent, or the answer made no sense. Any other error means that nothing was sent.
//
// It does not protect against a server that lies, nor against another program that listens on the port first. It is not a
// general HTTP client: HTTP/1.1 with Connection: close over plain TCP. net/http would cost every start of agentrun
// 0.3 ms, twice for each run, for what few runs need.
//
// It fails closed: what can't be read is not success.
package httpstep

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"time"

	"agentrun/internal/wire"
	"agentrun/sagas"
	"agentrun/sagas/sagafile"
)

const (
	maxRequest = 128 << 10
	maxInterim = 8 // 100 Continue, 103 Early Hints
	maxDrain   = 64 << 10
	drainTime  = 250 * time.Millisecond
)

// StatusError is an answer other than 2xx.
type StatusError struct {
	Code int
	Text string // the server's word for it
}

func (e *StatusError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("answered %d %.80s", e.Code, e.Text))
}

// Client makes calls. Its zero value is ready. It implements sagafile.API.
type Client struct{}

type body struct {
	SagaID  string          `json:"saga_id"`
	StepID  string          `json:"step_id"`
	Attempt int             `json:"attempt_count"`
	Action  string          `json:"action"`
	Key     string          `json:"idempotency_key"`
	Input   json.RawMessage `json:"input,omitempty"`
}

// Call makes one call. The time limit is the context's.
func (c Client) Call(ctx context.Context, target string, input []byte, call sagas.Call) error {
	request, host, err := request(target, input, call)
	if err != nil {
		return err
	}
	conn, err := dial(ctx, host)
	if err != nil {
		return fmt.Errorf("call %s: %w", target, err)
	}
	defer func() { _ = conn.Close() }()
	// A deadline in the past wakes whoever waits for the connection.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	err = exchange(conn, request)
	if _, answered := errors.AsType[*StatusError](err); err == nil || answered {
		if err != nil {
			err = fmt.Errorf("call %s: %w", target, err)
		}
		return err
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return fmt.Errorf("call %s: %w: %w", target, err, sagas.ErrUnknown)
}

// request is all that is sent. Nothing of it can end a header line early: the URL was parsed and escaped again, and the
// key is made of identifiers.
func request(target string, input []byte, call sagas.Call) (raw []byte, host string, err error) {
	if err := sagafile.CheckURL(target); err != nil {
		return nil, "", fmt.Errorf("call: %w", err)
	}
	u, err := url.Parse(target)
	if err != nil {
		return nil, "", fmt.Errorf("call: %w", err)
	}
	for part := range strings.SplitSeq(call.Key, "/") {
		if !sagas.Identifier(part) {
			return nil, "", fmt.Errorf("call %s: idempotency key %.80q", target, call.Key)
		}
	}
	b := body{call.SagaID, call.StepID, call.Attempt, "execute", call.Key, input}
	if call.Undo {
		b.Action = "undo"
	}
	content, err := json.Marshal(b)
	if err != nil {
		return nil, "", fmt.Errorf("call %s: %w", target, err)
	}
	var w bytes.Buffer
	fmt.Fprintf(&w, "POST %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: agentrun\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"+
		"Idempotency-Key: %s\r\nAccept: */*\r\nConnection: close\r\n\r\n", u.RequestURI(), u.Host, len(content), call.Key)
	w.Write(content)
	if w.Len() > maxRequest {
		return nil, "", fmt.Errorf("call %s: request of %d bytes, want at most %d", target, w.Len(), maxRequest)
	}
	return w.Bytes(), u.Host, nil
}

// dial asks no resolver for localhost: /etc/hosts may say otherwise, and then the call would leave the machine.
func dial(ctx context.Context, host string) (net.Conn, error) {
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		name, port = strings.Trim(host, "[]"), "80"
	}
	var d net.Dialer
	if name != "localhost" {
		return d.DialContext(ctx, "tcp", net.JoinHostPort(name, port))
	}
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", port))
	if err != nil && ctx.Err() == nil {
		if six, serr := d.DialContext(ctx, "tcp", net.JoinHostPort("::1", port)); serr == nil {
			return six, nil
		}
	}
	return conn, err
}

// exchange sends and reads the verdict. A server may answer before it has read everything, and close: then writing breaks
// though there is an answer, so the answer decides.
func exchange(conn net.Conn, request []byte) error {
	_, writeErr := conn.Write(request)
	r := bufio.NewReaderSize(conn, wire.MaxHead)
	code, text, err := answer(r)
	if err != nil {
		return errors.Join(err, writeErr)
	}
	drain(conn, r)
	if code < 200 || code > 299 {
		return &StatusError{code, text}
	}
	return nil
}

// drain reads what is left of a short answer, so that the server sees an orderly end instead of a reset. It is politeness
// and has no say in the result.
func drain(conn net.Conn, r io.Reader) {
	_ = conn.SetReadDeadline(time.Now().Add(drainTime))
	_, _ = io.CopyN(io.Discard, r, maxDrain)
}

// answer reads up to the end of the first final head.
func answer(br *bufio.Reader) (code int, text string, err error) {
	for range maxInterim {
		var r wire.Response
		head, err := wire.Peek(br)
		if err == nil {
			err = r.Parse(head)
		}
		switch {
		case errors.Is(err, io.EOF):
			return 0, "", fmt.Errorf("answer: %w", io.ErrUnexpectedEOF)
		case err != nil:
			return 0, "", fmt.Errorf("answer: %w", err)
		case r.Status >= 200:
			return r.Status, string(r.Reason), nil
		case r.Status == 101:
			return 0, "", errors.New("answer: it goes on in another protocol, and none was asked for")
		}
		if _, err := br.Discard(len(head)); err != nil {
			return 0, "", fmt.Errorf("answer: %w", err)
		}
	}
	return 0, "", errors.New("answer: no final status")
}
