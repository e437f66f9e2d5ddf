// SPDX-License-Identifier: Apache-2.0

package mcptool

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrun/internal/pace"
)

const (
	// saidPerSecond is how much a server may say by itself; more waits in its pipe, and then the server does.
	saidPerSecond = 1000
	// maxOpen is how many questions of a server may be without an answer: one that asks and doesn't listen.
	maxOpen = 64
	// grace is how long a call may outlast its time before its server is given up.
	grace = time.Second
)

var errTalks = errors.New("the server asks more than it listens to")

// wary is a transport to a process that may say anything at any speed. The client behind it queues what a server says by itself
// without a bound, because an answer may come behind it; and it answers each question, which waits for ever if the server doesn't
// read. So a few lines in a loop would take the gateway's memory, and with it the run. Nothing that a server says by itself is of use
// here, for we announce no capability: notifications end here, questions are counted.
type wary struct {
	mcp.Transport
	largest *atomic.Int64 // as guard's
}

// Connect implements mcp.Transport.
func (t wary) Connect(ctx context.Context) (mcp.Connection, error) {
	c, err := t.Transport.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &waryConn{Connection: c, largest: t.largest, pace: pace.New(saidPerSecond, 2*saidPerSecond)}, nil
}

type waryConn struct {
	mcp.Connection
	largest *atomic.Int64
	pace    *pace.Pace

	mu   sync.Mutex
	open int // questions without an answer
}

// Read gives answers, and questions as long as their answers are taken.
func (c *waryConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	for {
		m, err := c.Connection.Read(ctx)
		if err != nil {
			return nil, err
		}
		if a, ok := m.(*jsonrpc.Response); ok && int64(len(a.Result)) > frame(c.largest) {
			return nil, errBody // before the client makes a value of it
		}
		q, asks := m.(*jsonrpc.Request)
		if !asks {
			return m, nil
		}
		if !c.pace.Wait(ctx) {
			return nil, ctx.Err()
		}
		if !q.IsCall() {
			continue
		}
		c.mu.Lock()
		c.open++
		tooMany := c.open > maxOpen
		c.mu.Unlock()
		if tooMany {
			return nil, errTalks
		}
		return m, nil
	}
}

// Write counts the answers that the server took.
func (c *waryConn) Write(ctx context.Context, m jsonrpc.Message) error {
	err := c.Connection.Write(ctx, m)
	if _, answer := m.(*jsonrpc.Response); answer && err == nil {
		c.mu.Lock()
		c.open--
		c.mu.Unlock()
	}
	return err
}

// lasting gives a connection up if what ctx is for doesn't return soon after its end. Writing to a process that reads nothing waits
// for the process, whatever the time of the call: only its end helps. The caller calls returned when it is back.
func (s *Source) lasting(ctx context.Context, p *peer) (returned func()) {
	back := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		t := time.NewTimer(grace)
		defer t.Stop()
		select {
		case <-t.C:
			s.drop(ctx, p)
		case <-back:
		}
	})
	return func() {
		stop()
		close(back)
	}
}
