// SPDX-License-Identifier: Apache-2.0

// Package mcpbound bounds what strangers send to a server of the Model Context Protocol, where the SDK doesn't.
//
//	server.AddReceivingMiddleware(mcpbound.WholeLists)
//
// It decides nothing: who may call what is the server's business.
package mcpbound

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// WholeLists refuses cursors, for servers whose lists are one page each. The SDK reads a cursor by encoding/gob, which isn't made for bytes of
// strangers: by a map of 2^63 empty structures it counts for ever, and all else that the server is asked waits for it.
func WholeLists(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		whole := true
		switch p := req.GetParams().(type) {
		case *mcp.ListToolsParams:
			whole = p == nil || p.Cursor == ""
		case *mcp.ListPromptsParams:
			whole = p == nil || p.Cursor == ""
		case *mcp.ListResourcesParams:
			whole = p == nil || p.Cursor == ""
		case *mcp.ListResourceTemplatesParams:
			whole = p == nil || p.Cursor == ""
		}
		if !whole {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "there is no such cursor: each list is whole"}
		}
		return next(ctx, method, req)
	}
}
