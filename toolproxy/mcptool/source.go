// SPDX-License-Identifier: Apache-2.0

package mcptool

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/httptool"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/tools"
)

// Source is one MCP server. It is safe for concurrent use.
type Source struct {
	name    string
	config  Config
	options Options
	hide    *httptool.Hider
	client  *http.Client
	dial    func(ctx context.Context) (*peer, error)

	largest atomic.Int64 // reply that a call may have had, in bytes

	turn chan struct{} // held while connecting; a mutex couldn't be given up with a context

	mu       sync.Mutex
	peer     *peer // nil: not connected
	failures int   // in a row
	notYet   time.Time
	closed   bool
}

// peer is a connection with what has to be ended with it.
type peer struct {
	session *mcp.ClientSession
	process link.Process // nil for HTTP
	offered map[string]bool
	slow    int // timeouts in a row
	once    sync.Once
}

// close ends a process before its session: a session waits for what is under way, which a dead process no longer is.
func (p *peer) close() {
	p.once.Do(func() {
		if p.process != nil {
			_ = p.process.Close() // the session tells whether it worked
		}
		if p.session != nil {
			go p.session.Close() //nolint:errcheck // says goodbye to a server that may not listen
		}
	})
}

const (
	firstPause  = 500 * time.Millisecond
	longPause   = 30 * time.Second
	maxSlow     = 2 // timeouts in a row after which a connection counts as dead
	connectTime = 10 * time.Second
)

// Close ends the connection. Later calls are refused.
func (s *Source) Close() error {
	s.mu.Lock()
	p := s.peer
	s.peer, s.closed = nil, true
	s.mu.Unlock()
	if p != nil {
		p.close()
	}
	if s.client != nil {
		s.client.CloseIdleConnections()
	}
	return nil
}

// connected returns the connection, and makes one if there is none and the last failure is long enough ago.
func (s *Source) connected(ctx context.Context) (*peer, *gate.Error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, httptool.Unreachable(ctx, ctx.Err())
	}
	s.mu.Lock()
	p, wait, closed := s.peer, s.notYet.Sub(s.options.Clock()), s.closed
	s.mu.Unlock()
	switch {
	case closed || s.options.Context.Err() != nil:
		return nil, tools.Refuse(gate.CodeCanceled, nil, "", "the run has ended")
	case p != nil:
		return p, nil
	case wait > 0:
		e := tools.Refuse(gate.CodeUnavailable, nil, "try again later, or go on without this tool",
			"the server could not be reached, and is tried again later")
		e.Retry = wait
		return nil, e
	}
	dialing, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	p, err := s.dial(dialing)
	if err != nil {
		s.failed(ctx)
		return nil, httptool.Unreachable(ctx, fmt.Errorf("connect to MCP server %s: %w", s.name, err))
	}
	return p, s.accept(p)
}

func (s *Source) accept(p *peer) *gate.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		p.close()
		return tools.Refuse(gate.CodeCanceled, nil, "", "the run has ended")
	}
	s.peer, s.failures = p, 0
	return nil
}

// failed makes the pause before the next attempt longer. An agent that ended its call says nothing about the server.
func (s *Source) failed(ctx context.Context) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	pause := min(firstPause<<min(s.failures, 10), longPause)
	s.failures++
	s.notYet = s.options.Clock().Add(pause)
}

// drop gives up a connection that failed.
func (s *Source) drop(ctx context.Context, p *peer) {
	s.mu.Lock()
	mine := s.peer == p
	if mine {
		s.peer = nil
	}
	s.mu.Unlock()
	p.close()
	if mine {
		s.failed(ctx)
	}
}

// after looks at the error of a call: whether the connection is of any use still.
func (s *Source) after(ctx context.Context, p *peer, err error) {
	s.mu.Lock()
	if err == nil {
		p.slow = 0
	} else if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		p.slow++
	}
	dead := p.slow >= maxSlow || err != nil && ctx.Err() == nil && !answered(err)
	s.mu.Unlock()
	if dead {
		s.drop(ctx, p)
	}
}

// Definitions connects if need be and asks the server for its tools. What can't be offered safely is left out.
func (s *Source) Definitions(ctx context.Context) ([]tools.Definition, error) {
	p, bad := s.connected(ctx)
	if bad != nil {
		return nil, bad
	}
	returned := s.lasting(ctx, p)
	listed, err := s.list(ctx, p)
	returned()
	s.after(ctx, p, err)
	if err != nil {
		return nil, fmt.Errorf("list tools of MCP server %s: %w", s.name, err)
	}
	definitions := s.offer(listed)
	offered := map[string]bool{}
	for _, d := range definitions {
		offered[d.Name] = true
	}
	s.mu.Lock()
	p.offered = offered
	s.mu.Unlock()
	return definitions, nil
}

// Limits of a server's list.
const (
	maxPages  = 16
	maxListed = 256
)

// list reads the pages itself: an iterator would go on as long as the server says that there is more.
func (s *Source) list(ctx context.Context, p *peer) ([]*mcp.Tool, error) {
	var all []*mcp.Tool
	params := &mcp.ListToolsParams{}
	for n := range maxPages {
		page, err := p.session.ListTools(context.WithValue(ctx, pageKey{}, n), params)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Tools...)
		if len(all) > maxListed {
			return nil, fmt.Errorf("more than %d tools", maxListed)
		}
		if page.NextCursor == "" {
			return all, nil
		}
		params.Cursor = page.NextCursor
	}
	return nil, fmt.Errorf("more than %d pages of tools", maxPages)
}
