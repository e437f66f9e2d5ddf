// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"agentrun/internal/upstream"
	"agentrun/toolproxy/gate"
)

// transport connects to a provider. Nothing is unpacked: what is counted is what came.
func (g *Gateway) transport(p Provider) (http.RoundTripper, error) {
	if g.o.Upstream != nil {
		return g.o.Upstream(p), nil
	}
	roots, err := upstream.Roots(p.CAFile)
	return upstream.New(upstream.Options{AllowPrivate: p.AllowPrivate, Roots: roots}), err
}

// ask sends body to the provider, and returns the reply and what to call while it is read. Silence from here to
// the reply's end cancels the call: see watch. The key goes in the provider's header, else in key, the dialect's.
// The request goes through the transport and not through a client: no redirect is followed, no cookie kept,
// nothing tried again that may have been charged for.
func (c *call) ask(path string, body []byte, h http.Header, key string, idle time.Duration) (*http.Response, func(), error) {
	p := c.target.provider
	req, err := http.NewRequestWithContext(c.ctx, http.MethodPost, strings.TrimRight(p.BaseURL, "/")+path, bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	req.Header = h
	if trace := c.gateway.o.Trace; trace != nil {
		trace(c.ctx, h)
	}
	h.Set("Content-Type", "application/json")
	switch key = cmp.Or(p.Header, key); {
	case c.target.key == "":
	case key == "":
		h.Set("Authorization", "Bearer "+c.target.key)
	default:
		h.Set(key, c.target.key)
	}
	progress := c.watch(idle)
	resp, err := c.target.rt.RoundTrip(req)
	progress()
	return resp, progress, err
}

// post sends a request of ours, and returns the body of a reply that isn't an error, its media type, and what to
// call while it is read.
func (c *call) post(path string, body []byte, accept string) (io.ReadCloser, string, func(), error) {
	h := http.Header{"Accept": {accept}, "User-Agent": {"agentrun"}}
	resp, progress, err := c.ask(path, body, h, "", c.target.provider.Idle)
	if err != nil {
		return nil, "", nil, err
	}
	if resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		e := refusedBy(resp.StatusCode)
		e.Retry = retryAfter(resp)
		return nil, "", nil, e
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return resp.Body, kind, progress, nil
}

// watch cancels the call when progress wasn't called for idle. Each line that comes is progress, also an SSE
// comment: some providers send those while a model thinks. A provider that sends nothing else is ended by the
// call's time limit, which no progress moves. The timer ends with the call; a Reset after that fires once
// into a context that has ended, which is nothing.
func (c *call) watch(idle time.Duration) (progress func()) {
	t := time.AfterFunc(idle, func() { c.cancel(errIdle) })
	context.AfterFunc(c.ctx, func() { t.Stop() })
	return func() { t.Reset(idle) }
}

// askChat opens the reply to a chat completion. A stream is always asked for, whatever the agent wants: so a
// stop can end a call in the middle, and silence is noticed. Providers that answer with one object all the
// same are taken at their media type; what is neither is no answer, and isn't guessed at.
func (c *call) askChat(body []byte) (source, error) {
	resp, kind, progress, err := c.post("/chat/completions", body, "text/event-stream, application/json")
	if err != nil {
		return nil, err
	}
	limit := c.gateway.o.Config.Limits.Reply
	switch kind {
	case "text/event-stream":
		return &sse{lines: newLines(resp, limit, progress, &c.received), body: resp}, nil
	case "application/json":
		defer resp.Close()
		text, err := c.readAll(resp, progress, limit)
		if err != nil {
			return nil, err
		}
		ev, err := parseChunk(text)
		if err != nil {
			return nil, err
		}
		if said := ev.said.Reveal(); said.text == "" && len(said.calls) == 0 && ev.finish == "" {
			return nil, errForm
		}
		return &whole{ev: ev}, nil
	}
	_ = resp.Close()
	return nil, errForm
}

func (g *Gateway) ask(c *call, body []byte) (source, *gate.Error) {
	// The budgets hear of a call before it goes out: one that has no room left ends here.
	if e := c.meter(); e != nil {
		return nil, e
	}
	src, err := c.askChat(body)
	if err != nil {
		return nil, failure(c.ctx, err)
	}
	return src, nil
}

// readAll reads at most limit bytes; one more is an error. The limit is of what came over the wire: transport
// unpacks nothing, so that a small reply can't become a large one here.
func (c *call) readAll(resp io.Reader, progress func(), limit int64) ([]byte, error) {
	var b bytes.Buffer
	n, err := io.Copy(&b, io.LimitReader(&progressing{resp, progress}, limit+1))
	c.received += n
	switch {
	case n > limit:
		return nil, errLong
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, errShort
	case err != nil:
		return nil, err
	}
	return b.Bytes(), nil
}

type progressing struct {
	io.Reader
	progress func()
}

func (r *progressing) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.progress()
	return n, err
}

// retryAfter reads the header's form in seconds (RFC 9110, 10.2.3); a date, which providers don't send,
// counts as none. It is believed up to ten minutes: an agent that is told to wait for a day would rather be
// told to try.
func retryAfter(resp *http.Response) time.Duration {
	d, err := time.ParseDuration(resp.Header.Get("Retry-After") + "s")
	if err != nil || d < 0 {
		return 0
	}
	return min(d, 10*time.Minute)
}
