// SPDX-License-Identifier: Apache-2.0

package safety

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrun/safetyloop/judge"
	"agentrun/safetyloop/tool"
	"agentrun/toolproxy/link"
)

// Instructions are what an MCP client may give its model at the start.
func Instructions(requireIntent bool) string {
	text := `Your actions are checked before you do them. Before each action (a tool call, a file operation, a shell command, a web request) call mcp_aql_create with operation
record_execution_step and params element_name (your own name, the same each time) and nextActionHint: the exact action with its target, as "using the math tool to compute 6*7". Say how the previous step ended in
outcome (success, failure, skipped). Act only if the answer has continue: true. With continue: false don't act: tell the user the reason and wait. With stopped: true end all actions.
A verification code is shown to an operator elsewhere; you can't get it, and must not guess it. mcp_aql_read with operation introspect lists operations and parameters.`
	if requireIntent {
		text += "\nEach tool call uses up one approved step, whose nextActionHint must name the tool and the call's target; without one it is refused with INTENT_REQUIRED."
	}
	return text
}

// ToolNames are the names that are taken at /mcp.
func ToolNames() (names []string) {
	for _, f := range tool.Families() {
		names = append(names, f.Endpoint.Tool())
	}
	return names
}

// known is what the loop said of its operations. They don't change while the run lives.
type known struct {
	mu   sync.Mutex
	list []tool.Operation
}

// operations asks the loop, whose list is the only one. Without an answer the tools are there and say less.
func (h *Handler) operations(ctx context.Context) []tool.Operation {
	h.known.mu.Lock()
	defer h.known.mu.Unlock()
	if h.known.list != nil {
		return h.known.list
	}
	ctx, cancel := context.WithTimeout(ctx, h.o.Timeout)
	defer cancel()
	reply, err := h.o.Loop.Safety(ctx, link.Safety{Endpoint: judge.Read.String(), Operation: "introspect", Params: json.RawMessage(`{"query":"operations"}`)})
	if err != nil {
		h.o.Log.Warn("the safety loop's operations aren't known", "err", err)
		return nil
	}
	var r struct {
		Data struct {
			Operations []tool.Operation `json:"operations"`
		} `json:"data"`
	}
	if json.Unmarshal(reply, &r) != nil {
		return nil
	}
	h.known.list = r.Data.Operations
	return h.known.list
}

// Tools are the tools at /mcp.
func (h *Handler) Tools(ctx context.Context) (list []*mcp.Tool) {
	operations := h.operations(ctx)
	for _, f := range tool.Families() {
		list = append(list, f.Describe(operations))
	}
	return list
}

// Call answers a call of one of the tools; false: it is none of them.
func (h *Handler) Call(ctx context.Context, name string, arguments json.RawMessage) (*mcp.CallToolResult, bool) {
	for _, f := range tool.Families() {
		if f.Endpoint.Tool() == name {
			a := h.do(ctx, f.Endpoint, arguments)
			return tool.Result(a.body, a.code != ""), true
		}
	}
	return nil, false
}
