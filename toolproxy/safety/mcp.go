// SPDX-License-Identifier: Apache-2.0

package safety

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrun/safetyloop/judge"
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

// family is one endpoint as a tool. The permission is S-2's default, for clients that ask their user; what every client knows are the
// hints beside.
type family struct {
	endpoint                 judge.Endpoint
	title, about, permission string
}

func families() []family {
	return []family{
		{judge.Read, "Safety loop: look", "Reads only.", "AUTO_APPROVE"},
		{judge.Create, "Safety loop: report a step", "Report what you are about to do, and get told whether you may.", "CONFIRM_SESSION"},
		{judge.Execute, "Safety loop: start, end, confirm", "Start and end an execution; confirm what others wait for.", "CONFIRM_SINGLE_USE"},
	}
}

// ToolNames are the names that are taken at /mcp.
func ToolNames() (names []string) {
	for _, f := range families() {
		names = append(names, f.endpoint.Tool())
	}
	return names
}

// operation is one as introspect tells it.
type operation struct {
	Name        string `json:"name"`
	Endpoint    string `json:"endpoint"`
	Description string `json:"description"`
}

// known is what the loop said of its operations. They don't change while the run lives.
type known struct {
	mu   sync.Mutex
	list []operation
}

// operations asks the loop, whose list is the only one. Without an answer the tools are there and say less.
func (h *Handler) operations(ctx context.Context) []operation {
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
			Operations []operation `json:"operations"`
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
	for _, f := range families() {
		list = append(list, f.describe(operations))
	}
	return list
}

func (f family) describe(operations []operation) *mcp.Tool {
	name := map[string]any{"type": "string", "description": "what to do"}
	description := f.about
	var names []string
	for _, op := range operations {
		if op.Endpoint == f.endpoint.String() {
			names = append(names, op.Name)
			description += "\n" + op.Name + ": " + op.Description
		}
	}
	if names != nil {
		name["enum"] = names
	}
	closed, destructive := false, f.endpoint == judge.Execute
	reads := f.endpoint == judge.Read
	return &mcp.Tool{
		Meta: mcp.Meta{"mcp-aql/permission": f.permission},
		Name: f.endpoint.Tool(), Title: f.title, Description: description,
		Annotations: &mcp.ToolAnnotations{Title: f.title, ReadOnlyHint: reads, IdempotentHint: reads, DestructiveHint: &destructive, OpenWorldHint: &closed},
		InputSchema: map[string]any{
			"type": "object",
			"properties": map[string]any{
				"operation": name,
				"params":    map[string]any{"type": "object", "description": "the operation's parameters, as introspect lists them"},
			},
			"required": []string{"operation"}, "additionalProperties": false,
		},
		OutputSchema: json.RawMessage(outputSchema),
	}
}

const outputSchema = `{"type":"object","properties":{"success":{"type":"boolean"},"data":{"description":"the operation's answer"},` +
	`"error":{"type":"object","properties":{"code":{"type":"string"},"message":{"type":"string"},"details":{"type":"object"}},"required":["code","message"]}},"required":["success"]}`

// Call answers a call of one of the tools; false: it is none of them.
func (h *Handler) Call(ctx context.Context, name string, arguments json.RawMessage) (*mcp.CallToolResult, bool) {
	for _, f := range families() {
		if f.endpoint.Tool() == name {
			a := h.do(ctx, f.endpoint, arguments)
			// The same twice: clients before 2025-06-18 read the text only.
			return &mcp.CallToolResult{IsError: a.code != "", Content: []mcp.Content{&mcp.TextContent{Text: string(a.body)}}, StructuredContent: a.body}, true
		}
	}
	return nil, false
}
