// SPDX-License-Identifier: Apache-2.0

package httptool

import (
	"bytes"
	"context"
	"io"
	"net/http"

	"agentrun/toolproxy/tools"
)

// Tool calls one HTTP service. It is safe for concurrent use.
type Tool struct {
	config  Config
	url     template
	headers http.Header
	hide    *Hider
	client  *http.Client
	trace   func(context.Context) string
}

// Close drops idle connections.
func (t *Tool) Close() error {
	t.client.CloseIdleConnections()
	return nil
}

// Call makes one request.
func (t *Tool) Call(ctx context.Context, c tools.Call) (tools.Result, error) {
	req, sent, err := t.request(ctx, c.Args.Reveal())
	if err != nil {
		return tools.Result{}, err
	}
	resp, err := t.client.Do(req)
	if err != nil {
		return tools.Result{}, Unreachable(ctx, err)
	}
	defer resp.Body.Close() //nolint:errcheck // nothing is written
	if e := Status(resp); e != nil {
		return tools.Result{}, e
	}
	body, err := readReply(ctx, resp, c.Most())
	if err != nil {
		return tools.Result{}, err
	}
	out, err := t.output(body)
	if err != nil {
		return tools.Result{}, err
	}
	if e := c.Fits(out); e != nil { // escapes made it longer
		return tools.Result{}, e
	}
	return tools.Result{Output: out, Sent: sent, Received: int64(len(body))}, nil
}

func (t *Tool) request(ctx context.Context, rawArgs []byte) (*http.Request, int64, error) {
	u, body, bad := t.place(rawArgs)
	if bad != nil {
		return nil, 0, bad
	}
	var content io.Reader
	if body != nil {
		content = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, t.config.Method, u, content)
	if err != nil {
		return nil, 0, err
	}
	req.Header.Set("User-Agent", "agentrun-gateway")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if t.trace != nil {
		if traceparent := t.trace(ctx); traceparent != "" {
			req.Header.Set("Traceparent", traceparent)
		}
	}
	for name, values := range t.headers {
		req.Header[name] = values
	}
	return req, int64(len(body)), nil
}

func (t *Tool) output(body []byte) ([]byte, error) {
	if t.config.Reply == replyText {
		out, err := t.hide.TextJSON(body)
		if err != nil {
			return nil, failed(err, "the upstream's reply is not text")
		}
		return out, nil
	}
	if len(body) == 0 {
		return []byte("null"), nil // 204 and its like
	}
	out, err := t.hide.JSON(body)
	if err != nil {
		return nil, failed(err, "the upstream's reply is not JSON")
	}
	return out, nil
}
