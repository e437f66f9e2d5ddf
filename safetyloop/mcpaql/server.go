// SPDX-License-Identifier: Apache-2.0

// Package mcpaql serves a safety loop as a Model Context Protocol server (S-1): the tools mcp_aql_create, mcp_aql_read and
// mcp_aql_execute, or one mcp_aql, over standard input and output or over streamable HTTP.
//
//	s := mcpaql.New(mcpaql.Options{Loop: loop, Endpoints: mcpaql.Crude, Version: version})
//	err := s.ServeStdio(ctx, os.Stdin, os.Stdout, safetyloop.Caller{Principal: "stdio"})
//
//	h, err := s.Handler(mcpaql.HTTPOptions{Tokens: tokens, Listens: "127.0.0.1:7077"})
//
// What it guarantees. It decides nothing: each call of a tool is one Loop.Do, with the endpoint that the tool stands for. Who
// calls is known from the connection alone: the process at the other end of stdio, or the bearer token of the request; no
// parameter, header or session id says it, and a session answers only to the credential that opened it. Arguments have one meaning: names
// given twice, at any depth, and names that the tool doesn't have are refused before the loop sees them. Requests, lines, connections and
// sessions are bounded. A Host that is a name nobody allowed and an Origin nobody allowed are refused, which is what DNS rebinding
// and foreign web pages come with.
//
// Errors. What the loop refuses is a result of the tool with isError, whose structured content and text are the same
// {"success":false,"error":{"code","message","details"}}. Those of the protocol are the SDK's; those of HTTP are 401, 403, 404, 405,
// 413, 503 with one line of text.
//
// What it does not protect against. Connections are bounded for all together: a client that holds all of them keeps others out, who
// then may not go on. Whoever runs as the client's user can be the client. Over HTTP there is no TLS: tokens on
// a network want a proxy that has it. Callers without a token are all the same principal: a session can be opened anew by anyone, so it
// can't carry a block.
//
// How it fails. Without a loop, a principal or, beyond the loopback, tokens, it doesn't serve. A panic of the loop ends that call as
// an error.
package mcpaql

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrun/internal/mcpbound"
	"agentrun/internal/pace"
	"agentrun/safetyloop"
	"agentrun/safetyloop/tool"
	"agentrun/telemetry"
)

// Loop is what safetyloop.Loop does for callers.
type Loop interface {
	Do(ctx context.Context, c safetyloop.Call) safetyloop.Reply
}

// Endpoints says which tools there are. The zero value is no choice.
type Endpoints uint8

// The choices.
const (
	NoEndpoints Endpoints = iota
	Crude                 // one tool for each family
	Single                // one tool; the operation says the family
)

// ParseEndpoints reads the choice's name.
func ParseEndpoints(s string) (Endpoints, error) {
	switch s {
	case "crude":
		return Crude, nil
	case "single":
		return Single, nil
	}
	return NoEndpoints, fmt.Errorf("%q: want crude or single", s)
}

// Options of New.
type Options struct {
	Loop      Loop         // required
	Endpoints Endpoints    // required
	Version   string       // of agentrun, told to clients
	Log       *slog.Logger // nil: none. Requests' contents aren't logged
}

const (
	// MaxArguments is the most that a call's arguments may have, in bytes. A hint may be long (S-5); a model's context is longer.
	MaxArguments = 256 << 10
	// maxMessage is the most that one message may have: the protocol's own around the arguments.
	maxMessage = MaxArguments + 64<<10
)

// Server is a safety loop as MCP clients see it.
type Server struct {
	o     Options
	tools []tool.Family

	mu    sync.Mutex
	paces map[string]*pace.Pace // by principal; there are no more of them than tokens
}

// New returns a server; the error names the option.
func New(o Options) (*Server, error) {
	if o.Loop == nil {
		return nil, fmt.Errorf("safety server: no loop")
	}
	var tools []tool.Family
	switch o.Endpoints {
	case Crude:
		tools = tool.Families()
	case Single:
		tools = []tool.Family{tool.Single()}
	default:
		return nil, fmt.Errorf("safety server: no endpoints")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Server{o: o, tools: tools, paces: map[string]*pace.Pace{}}, nil
}

// server gives the SDK's server for connections whose caller the function knows.
func (s *Server) server(caller func(context.Context, *mcp.CallToolRequest) safetyloop.Caller) *mcp.Server {
	m := mcp.NewServer(&mcp.Implementation{Name: "agentrun-safety", Title: "agentrun safety loop", Version: s.o.Version}, &mcp.ServerOptions{
		Instructions: instructions,
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}}, // neither lists that change nor the protocol's logging
	})
	m.AddReceivingMiddleware(mcpbound.WholeLists)
	for _, t := range s.tools {
		m.AddTool(t.Describe(described()), func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return result(s.call(ctx, caller(ctx, r), t.Endpoint, r.Params.Arguments)), nil
		})
	}
	return m
}

// ServeStdio serves one client until in ends or ctx does; both are no error. Nothing else may write to out.
func (s *Server) ServeStdio(ctx context.Context, in io.ReadCloser, out io.WriteCloser, as safetyloop.Caller) error {
	if as.Principal == "" {
		return fmt.Errorf("safety server on stdio: no principal")
	}
	m := s.server(func(context.Context, *mcp.CallToolRequest) safetyloop.Caller { return as })
	ended := make(chan error, 1)
	go func() {
		ended <- m.Run(ctx, patient{&mcp.IOTransport{Reader: in, Writer: out, MaxLineLength: maxMessage}})
	}()
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		select {
		case <-ended:
		case <-time.After(endTime): // a client that reads no answers would be waited for
		}
	}
	if err == nil || ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("serve the client on stdio: %w", err)
}

// call is one call of a tool. A panic is this call's end and no other's: the process has everybody's blocks to answer for.
func (s *Server) call(ctx context.Context, as safetyloop.Caller, endpoint safetyloop.Endpoint, arguments json.RawMessage) (reply safetyloop.Reply) {
	defer func() {
		if p := recover(); p != nil {
			s.o.Log.Error("a call of the safety loop panicked", "panic", fmt.Sprintf("%T", p)) // its text may have parameters in it
			reply.Error = &safetyloop.Error{Code: safetyloop.CodeInternal, Message: "a fault in the safety server; do not proceed"}
		}
	}()
	if wait := s.pace(as.Principal).Now(); wait > 0 {
		return safetyloop.Reply{Error: &safetyloop.Error{Code: safetyloop.CodeRateLimit, Message: "Too many requests; repeat it in " + wait.String()}}
	}
	q, refused := tool.Read(arguments, MaxArguments)
	if refused != nil {
		return safetyloop.Reply{Error: refused}
	}
	return s.o.Loop.Do(context.WithValue(ctx, principalKey{}, as.Principal),
		safetyloop.Call{Caller: as, Endpoint: endpoint, Operation: q.Operation, Params: telemetry.NewPlaintext(q.Params)})
}

// A principal's calls, as a run's of ring 1 (package hypervisor): each is an entry of the audit, on disk before it is answered, and what is
// refused here is none.
const (
	perSecond = 10
	burst     = 400
)

func (s *Server) pace(principal string) *pace.Pace {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paces[principal] == nil {
		s.paces[principal] = pace.New(perSecond, burst)
	}
	return s.paces[principal]
}

type principalKey struct{}

// Principal is whose call a context belongs to, for a Judge that has rules for some; empty outside of a call.
func Principal(ctx context.Context) string {
	name, _ := ctx.Value(principalKey{}).(string)
	return name
}

func result(reply safetyloop.Reply) *mcp.CallToolResult {
	text, err := json.Marshal(reply)
	if err != nil {
		reply.Success = false
		text = []byte(`{"success":false,"error":{"code":"INTERNAL_ERROR","message":"the answer could not be written; do not proceed"}}`)
	}
	return tool.Result(text, !reply.Success)
}
