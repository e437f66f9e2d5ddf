// SPDX-License-Identifier: Apache-2.0

// Package mcpserver gives an agent its tools as a Model Context Protocol server, at /mcp (streamable HTTP), so that any MCP
// client in the sandbox works.
//
// What it guarantees. It has no tools of its own and decides nothing: tools/list is the registry's list of what this agent may
// call, asked anew each time, and tools/call is Registry.Invoke, with the same entrance, schemas, limits, filter and record as
// a call over HTTP. The safety loop's tools, which no registry has, stand beside them, and theirs are their names. It keeps no sessions: who calls is known from the link, and a session id says nothing. It offers no
// resources, prompts, sampling or logging.
//
//	mounts[egress.MCP] = mcpserver.New(mcpserver.Options{Tools: registry, Version: version})
//
// Errors of a call are results with isError, whose text is the same JSON as over HTTP: {"ok":false,"error":{"code","message",
// "next"}}. Errors of the protocol are the SDK's; they quote what the client sent, to the client.
//
// What it does not protect against: see tools. It must stand behind a tools.Mux, which checks route and host, bounds the body
// and has it in memory. An agent may hold as many requests open as the Mux lets it.
//
// How it fails. A registry that lists nothing gives an empty list; a panic in a call ends that call.
package mcpserver

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrun/internal/mcpbound"
	"agentrun/telemetry"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/tools"
)

// Beside has tools that stand beside the registry's, and decides about their calls itself: the safety loop's.
type Beside interface {
	Tools(ctx context.Context) []*mcp.Tool
	// Call answers a call of one of its tools; false: it has none of that name. It knows its tools' names whatever becomes of Tools.
	Call(ctx context.Context, name string, args json.RawMessage) (*mcp.CallToolResult, bool)
}

// Options of New.
type Options struct {
	Tools        *tools.Registry // nil: there are none
	Beside       Beside          // nil: none
	Version      string          // of agentrun, told to clients
	Instructions string          // for clients' models; empty: none
	// Ends is when the run's time is over; zero: never. In its last minute each result of a tool says so in a text of its own, which is
	// where a model reads it. nil: no result does.
	Ends func() time.Time
}

const maxBody = tools.MaxArguments + 4<<10

// New returns the handler for /mcp.
func New(o Options) http.Handler {
	server := mcp.NewServer(&mcp.Implementation{Name: "agentrun", Version: o.Version}, &mcp.ServerOptions{
		Instructions: o.Instructions,
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}}, // no listChanged: nobody could be told
	})
	server.AddReceivingMiddleware(owing, mcpbound.WholeLists, warning(o.Ends), answering(o.Tools, o.Beside))
	return mcpbound.Single(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{
		Stateless:                    true,
		JSONResponse:                 true,
		MaxRequestBodyBytes:          maxBody,
		PropagateRequestCancellation: true,
	}))
}

// answering takes the two methods away from the SDK's own table of tools, which is fixed for all clients, while what an agent
// may call changes with its ring.
func answering(from *tools.Registry, beside Beside) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			switch params := req.GetParams().(type) {
			case *mcp.CallToolParamsRaw:
				if params == nil {
					break
				}
				if beside != nil {
					if result, its := beside.Call(ctx, params.Name, params.Arguments); its {
						return result, nil
					}
				}
				if from == nil {
					break
				}
				return call(ctx, from, params), nil
			case *mcp.ListToolsParams:
				return list(ctx, from, beside, next, method, req)
			}
			return next(ctx, method, req)
		}
	}
}

// owing has an error take the turns that it takes over HTTP: here its status is 200.
func owing(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		result, err := next(ctx, method, req)
		if called, ok := result.(*mcp.CallToolResult); err != nil || ok && called.IsError {
			tools.Refused(ctx)
		}
		return result, err
	}
}

// warning tells of the run's end beside what a tool says.
func warning(ends func() time.Time) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			result, err := next(ctx, method, req)
			called, ok := result.(*mcp.CallToolResult)
			if err != nil || !ok || ends == nil {
				return result, err
			}
			if left, soon := link.EndsSoon(ends(), time.Now()); soon {
				called.Content = append(called.Content, text(fmt.Sprintf("agentrun: this run's time is over in %d s; save your work and say how far it is. Its operator can give it more time.", left/time.Second))...)
			}
			return called, nil
		}
	}
}

func list(ctx context.Context, from *tools.Registry, beside Beside, next mcp.MethodHandler, method string, req mcp.Request) (mcp.Result, error) {
	result, err := next(ctx, method, req) // fills what the protocol's versions ask for
	listed, ok := result.(*mcp.ListToolsResult)
	if err != nil || !ok {
		return result, err
	}
	if beside != nil {
		listed.Tools = append(listed.Tools, beside.Tools(ctx)...)
	}
	its := len(listed.Tools)
	if from != nil {
		for _, t := range from.List(ctx) {
			if !slices.ContainsFunc(listed.Tools[:its], func(other *mcp.Tool) bool { return other.Name == t.Name }) {
				listed.Tools = append(listed.Tools, &mcp.Tool{Name: t.Name, Description: t.Description, InputSchema: t.Args})
			}
		}
	}
	return listed, nil
}

func call(ctx context.Context, from *tools.Registry, params *mcp.CallToolParamsRaw) *mcp.CallToolResult {
	output, e := from.Invoke(ctx, params.Name, telemetry.NewPlaintext(params.Arguments))
	if e != nil {
		return &mcp.CallToolResult{IsError: true, Content: text(tools.Problem(e))}
	}
	result := &mcp.CallToolResult{Content: text(string(output))}
	if len(output) > 0 && output[0] == '{' { // older clients take an object only
		result.StructuredContent = output
	}
	return result
}

func text(body string) []mcp.Content { return []mcp.Content{&mcp.TextContent{Text: body}} }
