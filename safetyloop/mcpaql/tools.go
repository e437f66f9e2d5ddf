// SPDX-License-Identifier: Apache-2.0

package mcpaql

import (
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrun/safetyloop"
)

// instructions are what a client may give its model at the start.
const instructions = `This server checks what you are about to do. Before each action (a tool call of any server, a file operation, a shell command, a web request) call
record_execution_step with element_name (your own name, the same each time) and next_action_hint: the exact action with its target, as "executing shell command: npm install express". Say how the
previous step ended in outcome (success, failure, skipped).
Act only if the answer has continue:true. With continue:false do not act: tell the user the reason and wait. With stopped:true end all actions.
A verification code is shown to an operator elsewhere; you can't get it, and must not guess it. You can't confirm what you were paused for yourself.
Begin with execute_agent, end with complete_execution or abort_execution; introspect lists operations and parameters.`

type tool struct {
	endpoint                       safetyloop.Endpoint
	title, permission, description string
	operations                     []string
}

// toolsOf takes the operations from the loop's own list: there is no other.
func toolsOf(e Endpoints) (tools []tool) {
	switch e {
	case Crude:
		tools = []tool{
			{endpoint: safetyloop.Read, title: "Safety loop: look", permission: permissionRead, description: "Reads only."},
			{endpoint: safetyloop.Create, title: "Safety loop: report a step", permission: permissionCreate, description: "Report what you are about to do, and get told whether you may."},
			{endpoint: safetyloop.Execute, title: "Safety loop: start, end, confirm", permission: permissionExecute, description: "Start and end an execution; confirm what others wait for."},
		}
	case Single:
		tools = []tool{{endpoint: safetyloop.Any, title: "Safety loop", permission: permissionExecute, description: "Report what you are about to do, and get told whether you may."}}
	}
	for i := range tools {
		t := &tools[i]
		for _, op := range safetyloop.Operations() {
			if t.endpoint == safetyloop.Any || op.Endpoint == t.endpoint.String() {
				t.operations = append(t.operations, op.Name)
				t.description += "\n" + op.Name + ": " + op.Description
			}
		}
	}
	return tools
}

// The default permissions of S-2, for clients that ask their user. The SDK has no field for them; what every client knows are
// the hints beside.
const (
	permissionKey     = "mcp-aql/permission"
	permissionRead    = "AUTO_APPROVE"
	permissionCreate  = "CONFIRM_SESSION"
	permissionExecute = "CONFIRM_SINGLE_USE"
)

// describe tells clients what to approve: what is read-only can go by itself, what is marked destructive is asked about each
// time. None reaches beyond this server.
func (t tool) describe() *mcp.Tool {
	closed, destructive := false, t.permission == permissionExecute
	return &mcp.Tool{
		Meta: mcp.Meta{permissionKey: t.permission},
		Name: t.endpoint.Tool(), Title: t.title, Description: t.description,
		Annotations: &mcp.ToolAnnotations{Title: t.title, ReadOnlyHint: t.permission == permissionRead, IdempotentHint: t.permission == permissionRead, DestructiveHint: &destructive, OpenWorldHint: &closed},
		InputSchema: map[string]any{
			"type": "object",
			"properties": map[string]any{
				"operation": map[string]any{"type": "string", "enum": t.operations, "description": "what to do"},
				"params":    map[string]any{"type": "object", "description": "the operation's parameters, as introspect lists them"},
			},
			"required": []string{"operation"}, "additionalProperties": false,
		},
		OutputSchema: json.RawMessage(outputSchema),
	}
}

const outputSchema = `{
	"type": "object",
	"properties": {
		"success": {"type": "boolean"},
		"data": {"description": "the operation's answer"},
		"error": {
			"type": "object",
			"properties": {"code": {"type": "string"}, "message": {"type": "string"}, "details": {"type": "object"}},
			"required": ["code", "message"]
		}
	},
	"required": ["success"]
}`
