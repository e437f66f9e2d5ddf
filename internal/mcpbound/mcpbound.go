// SPDX-License-Identifier: Apache-2.0

// Package mcpbound bounds what strangers send to a server of the Model Context Protocol, where the SDK doesn't.
//
//	server.AddReceivingMiddleware(mcpbound.WholeLists)
//	handler = mcpbound.Single(handler)
//
// It decides nothing: who may call what is the server's business.
package mcpbound

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"

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

// Single refuses batches, of which later versions of the protocol have none: connections and requests are bounded and paced, and one request
// would be thousands of messages, whose answers wait in memory for each other.
func Single(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if long, ok := errors.AsType[*http.MaxBytesError](err); ok {
			http.Error(w, long.Error(), http.StatusRequestEntityTooLarge)
			return
		}
		if err != nil || bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("[")) {
			http.Error(w, "batches are not taken: send one message at a time", http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}
