// SPDX-License-Identifier: Apache-2.0

package mcpaql

import (
	"context"
	"io"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// maxUnderWay is how many calls of a client on stdio may be without an answer, as the loop has it of one principal.
const maxUnderWay = 64

// patient is a transport to a client that may ask without end and read no answers. The SDK reads on whatever waits, so that a client which
// isn't this process's user, or has less memory than the host, would have it take all there is. With too many it isn't read from.
type patient struct{ mcp.Transport }

// Connect implements mcp.Transport.
func (t patient) Connect(ctx context.Context) (mcp.Connection, error) {
	c, err := t.Transport.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &patientConn{Connection: c, places: make(chan struct{}, maxUnderWay), closed: make(chan struct{})}, nil
}

type patientConn struct {
	mcp.Connection
	places chan struct{}
	once   sync.Once
	closed chan struct{}
}

// Read gives a call when there is a place for it.
func (c *patientConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	m, err := c.Connection.Read(ctx)
	if q, ok := m.(*jsonrpc.Request); err != nil || !ok || !q.IsCall() {
		return m, err
	}
	select {
	case c.places <- struct{}{}:
		return m, nil
	case <-c.closed:
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Write gives the place of a call back that is answered.
func (c *patientConn) Write(ctx context.Context, m jsonrpc.Message) error {
	err := c.Connection.Write(ctx, m)
	if _, answer := m.(*jsonrpc.Response); answer {
		select {
		case <-c.places:
		default:
		}
	}
	return err
}

// Close implements mcp.Connection.
func (c *patientConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Connection.Close()
}
