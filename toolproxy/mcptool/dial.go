// SPDX-License-Identifier: Apache-2.0

package mcptool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrun/toolproxy/tools"
)

// newClient announces no capability at all: without a handler the client refuses sampling and elicitation, and the empty
// capabilities take back roots, which it would announce for historical reasons. Rounds of questions are turned off too.
func newClient() *mcp.Client {
	c := mcp.NewClient(&mcp.Implementation{Name: "agentrun-gateway", Version: "1"}, &mcp.ClientOptions{
		Capabilities:   &mcp.ClientCapabilities{},
		MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true},
	})
	c.AddSendingMiddleware(lean)
	return c
}

// pageKey has the number of a page that is asked for.
type pageKey struct{}

// lean keeps what is of use of a page of tools: a schema of nothings takes fifty times its bytes, and a list has pages. The client keeps the
// pages it was given, by their cursors, which a server makes up anew each time, for as long as it says: here by their numbers, and as good for
// no time at all.
func lean(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		result, err := next(ctx, method, req)
		page, ok := result.(*mcp.ListToolsResult)
		if err != nil || !ok || page == nil {
			return result, err
		}
		for _, t := range page.Tools {
			if t != nil {
				*t = mcp.Tool{Name: tools.Cut(t.Name, 2*maxToolName), Description: tools.Cut(t.Description, 8*maxDescription), InputSchema: bounded(t.InputSchema)}
			}
		}
		page.TTLMs = 0
		if p, ok := req.GetParams().(*mcp.ListToolsParams); ok && p != nil {
			p.Cursor = fmt.Sprint(ctx.Value(pageKey{}))
		}
		return page, nil
	}
}

// bounded is a schema as it was sent; of one that is too long to be offered, what no reader takes.
func bounded(schema any) json.RawMessage {
	raw, err := json.Marshal(schema)
	if err != nil || len(raw) > maxSchema {
		return json.RawMessage("too long")
	}
	return raw
}

func (s *Source) dialHTTP(ctx context.Context) (*peer, error) {
	session, err := newClient().Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint:             s.config.URL,
		HTTPClient:           s.client,
		MaxRetries:           -1,
		DisableStandaloneSSE: true, // nothing that a server says by itself is listened to
		MaxEventSize:         maxFrame,
	}, nil)
	if err != nil {
		return nil, err
	}
	return &peer{session: session}, nil
}

// dialCommand starts the server in a sandbox. It lives as long as the run, not as the call that needed it first.
func (s *Source) dialCommand(ctx context.Context) (*peer, error) {
	process, err := s.options.Supervisor.Execute(s.options.Context, CommandName(s.name))
	if err != nil {
		return nil, err
	}
	if process == nil {
		return nil, errors.New("the supervisor started nothing")
	}
	p := &peer{process: process}
	// A server that never answers would keep the handshake until it dies.
	stop := context.AfterFunc(ctx, func() { _ = process.Close() }) // closed again with the peer
	p.session, err = newClient().Connect(ctx, wary{&mcp.IOTransport{Reader: process.Stdout(), Writer: process.Stdin(), MaxLineLength: maxFrame}, &s.largest}, nil)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		p.close()
		return nil, err
	}
	context.AfterFunc(s.options.Context, p.close)
	return p, nil
}

// answered tells whether an error is one that the server sent in reply: then the connection works.
func answered(err error) bool {
	var wire *jsonrpc.Error
	return errors.As(err, &wire)
}
