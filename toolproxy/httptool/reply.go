// SPDX-License-Identifier: Apache-2.0

package httptool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/tools"
)

func failed(cause error, message string) *gate.Error {
	return tools.Refuse(gate.CodeToolFailed, cause, "try again, or go on without this tool", "%s", message)
}

// Unreachable is what an agent gets for an error of a connection. The error itself may name addresses behind the proxy, and
// is the operator's.
func Unreachable(ctx context.Context, err error) *gate.Error {
	var e *gate.Error
	var timeout net.Error
	switch {
	case errors.As(context.Cause(ctx), &e):
		return e
	case errors.Is(ctx.Err(), context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return tools.Refuse(gate.CodeToolTimeout, err, "ask for less, or try again later",
			"the upstream did not answer in time")
	case ctx.Err() != nil:
		return tools.Refuse(gate.CodeCanceled, err, "", "the call was ended")
	}
	return tools.Refuse(gate.CodeUnavailable, err, "try again later, or go on without this tool",
		"the upstream can't be reached")
}

// Status lets 2xx pass. Of all else the agent gets the number: bodies of errors are where services print keys, queries and
// stack traces.
func Status(resp *http.Response) *gate.Error {
	cause := fmt.Errorf("upstream answered %d", resp.StatusCode)
	switch code := resp.StatusCode; {
	case code >= 200 && code <= 299 && code != http.StatusPartialContent:
		return nil
	case code >= 300 && code <= 399:
		return tools.Refuse(gate.CodeToolFailed, cause, "tell the operator",
			"the upstream redirects elsewhere (%d), which is not followed", code)
	case code == http.StatusTooManyRequests, code == http.StatusBadGateway, code == http.StatusServiceUnavailable, code == http.StatusGatewayTimeout:
		return tools.Refuse(gate.CodeUnavailable, cause, "try again later",
			"the upstream is busy or down (%d)", code)
	case code >= 400 && code <= 499:
		e := tools.Refuse(gate.CodeToolFailed, cause, "look at the arguments",
			"the upstream refused the call (%d)", code)
		e.Asked = true
		return e
	default:
		return tools.Refuse(gate.CodeToolFailed, cause, "try again later", "the upstream failed (%d)", code)
	}
}

// readReply reads at most limit bytes, counted after decompression: a bomb of a few KiB stops there. The transport
// decompresses gzip, which it asked for; another encoding is one it didn't ask for.
func readReply(ctx context.Context, resp *http.Response, limit int64) ([]byte, error) {
	if encoding := resp.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return nil, failed(errors.New("content encoding that was not asked for"), "the upstream's reply can't be read")
	}
	if resp.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, Unreachable(ctx, err)
	case err != nil:
		return nil, failed(err, "the upstream's reply ended before its end")
	case int64(len(body)) > limit:
		return nil, tooLarge(limit)
	}
	return body, nil
}

func tooLarge(limit int64) *gate.Error {
	return tools.Refuse(gate.CodeTooLarge, nil, "ask for less at once",
		"the upstream's reply has more than %d bytes", limit)
}
