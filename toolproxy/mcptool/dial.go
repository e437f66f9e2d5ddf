// SPDX-License-Identifier: Apache-2.0

package mcptool

import (
	"context"
	"errors"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// newClient announces no capability at all: without a handler the client refuses sampling and elicitation, and the empty
// capabilities take back roots, which it would announce for historical reasons. Rounds of questions are turned off too.
func newClient() *mcp.Client {
	return mcp.NewClient(&mcp.Implementation{Name: "agentrun-gateway", Version: "1"}, &mcp.ClientOptions{
		Capabilities:   &mcp.ClientCapabilities{},
		MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true},
	})
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
