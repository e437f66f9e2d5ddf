// SPDX-License-Identifier: Apache-2.0

package mcptool

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"agentrun/toolproxy/tools"
)

const (
	// maxFrame bounds a message, event and body of a server: the largest reply a tool may have, in base64 and escaped. What is around it
	// has frameRoom.
	maxFrame     = 2*tools.MaxReply + frameRoom
	frameRoom    = 64 << 10
	goodbyeLimit = 2 * time.Second
	// answerLimit is for a request that no call waits for: an answer to a question of the server's, a notification.
	answerLimit = 10 * time.Second
	// maxEvents is how many lines a reply in pieces may have: each can be a question of the server's, which the client queues and
	// answers by a request of its own.
	maxEvents = 4096
)

var (
	errOrigin = errors.New("request to another origin than the server's")
	errBody   = errors.New("reply is too large")
)

// guard adds the secrets to requests, and only to those that go to the configured origin, and bounds replies: the client
// behind it reads some bodies whole.
type guard struct {
	next    http.RoundTripper
	origin  url.URL
	headers http.Header
	trace   func(context.Context) string
	// largest is the reply that some call of the server's may have had so far. Bodies are read as far as that: the client makes a value
	// of all of them before anybody can measure it, and a list that says nothing takes a hundred times its bytes.
	largest *atomic.Int64
}

// frame is the longest message that is of any use.
func frame(largest *atomic.Int64) int64 {
	return 2*max(largest.Load(), tools.DefaultMaxReply) + frameRoom
}

// RoundTrip makes one request.
func (g *guard) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != g.origin.Scheme || req.URL.Host != g.origin.Host {
		return nil, errOrigin
	}
	ctx, cancel := req.Context(), context.CancelFunc(func() {})
	if req.Method == http.MethodDelete { // the end of a session, which has no call whose time limit would hold
		ctx, cancel = context.WithTimeout(ctx, goodbyeLimit)
	} else if _, limited := ctx.Deadline(); !limited {
		ctx, cancel = context.WithTimeout(ctx, answerLimit)
	}
	req = req.Clone(ctx)
	for name, values := range g.headers {
		req.Header[name] = values
	}
	if g.trace != nil {
		if traceparent := g.trace(ctx); traceparent != "" {
			req.Header.Set("Traceparent", traceparent)
		}
	}
	resp, err := g.next.RoundTrip(req)
	if err != nil {
		cancel()
		return nil, err
	}
	resp.Body = &boundedBody{ReadCloser: resp.Body, left: frame(g.largest), lines: maxEvents, cancel: cancel}
	return resp, nil
}

func (g *guard) CloseIdleConnections() {
	if c, ok := g.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

type boundedBody struct {
	io.ReadCloser
	left   int64
	lines  int
	cancel context.CancelFunc
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errBody
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	if b.lines -= bytes.Count(p[:n], []byte("\n")); b.lines < 0 {
		return 0, errBody
	}
	return n, err
}

func (b *boundedBody) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}
