// SPDX-License-Identifier: Apache-2.0

// Package tool is a safety loop's endpoints as tools of the Model Context Protocol (S-1): how a client is
// told of them, and how a call's arguments are read. The dongle and a sandbox's gateway serve the same tools
// by it, so that an agent finds the same loop in both.
//
//	for _, f := range tool.Families() {
//		server.AddTool(f.Describe(operations), …)
//	}
//	q, refused := tool.Read(arguments, 64<<10)
//
// Guarantees. Read gives what has one meaning: a name that comes twice at any depth, or that a call doesn't
// have, is refused with a code of the loop. What a client made up is told back to it short.
//
// It decides nothing and knows no loop: whether there is such an operation is the loop's to say.
package tool

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrun/internal/read"
	"agentrun/safetyloop/judge"
)

// Family is one endpoint as a tool. The permission is S-2's default, for clients that ask their user; the SDK
// has no field for it, and what every client knows are the hints beside.
type Family struct {
	Endpoint                 judge.Endpoint
	title, about, permission string
}

const (
	mayRead      = "AUTO_APPROVE"
	mayReport    = "CONFIRM_SESSION"
	mayExecute   = "CONFIRM_SINGLE_USE"
	aboutReports = "Report what you are about to do, and get told whether you may."
)

// Families are the endpoints, each a tool of its own.
func Families() []Family {
	return []Family{
		{judge.Read, "Safety loop: look", "Reads only.", mayRead},
		{judge.Create, "Safety loop: report a step", aboutReports, mayReport},
		{judge.Execute, "Safety loop: start, end, confirm", "Start and end an execution; confirm what others wait for.", mayExecute},
	}
}

// Single is one tool for all of them.
func Single() Family { return Family{judge.Any, "Safety loop", aboutReports, mayExecute} }

// Operation is one as introspect tells it.
type Operation struct {
	Name        string `json:"name"`
	Endpoint    string `json:"endpoint"`
	Description string `json:"description"`
}

// Describe tells clients what to approve: what is read-only can go by itself, what is marked destructive is
// asked about each time. None reaches beyond this server. Without operations the tool is there and says less.
func (f Family) Describe(operations []Operation) *mcp.Tool {
	operation := map[string]any{"type": "string", "description": "what to do"}
	description := f.about
	var names []string
	for _, op := range operations {
		if f.Endpoint == judge.Any || op.Endpoint == f.Endpoint.String() {
			names = append(names, op.Name)
			description += "\n" + op.Name + ": " + op.Description
		}
	}
	if names != nil {
		operation["enum"] = names
	}
	closed, destructive, reads := false, f.permission == mayExecute, f.permission == mayRead
	return &mcp.Tool{
		Meta: mcp.Meta{"mcp-aql/permission": f.permission},
		Name: f.Endpoint.Tool(), Title: f.title, Description: description,
		Annotations: &mcp.ToolAnnotations{
			Title: f.title, ReadOnlyHint: reads, IdempotentHint: reads, DestructiveHint: &destructive, OpenWorldHint: &closed,
		},
		InputSchema: map[string]any{
			"type": "object",
			"properties": map[string]any{
				"operation": operation,
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

// Result says the same twice: clients before 2025-06-18 read the text only.
func Result(reply json.RawMessage, refused bool) *mcp.CallToolResult {
	return &mcp.CallToolResult{
		IsError: refused, Content: []mcp.Content{&mcp.TextContent{Text: string(reply)}}, StructuredContent: reply,
	}
}

// Request is {"operation","params"}, read in the one way there is.
type Request struct {
	Operation string
	Params    json.RawMessage // an object; nil: none
}

const (
	maxName    = 64 // bytes of a name that a client made up
	maxUnknown = 16 // of them that are told back
)

// Read reads arguments of at most most bytes; none are {}. The error is what the client is answered.
func Read(arguments []byte, most int) (q Request, refused *judge.Error) {
	if len(arguments) > most {
		return q, &judge.Error{
			Code: judge.CodeTooLarge, Message: fmt.Sprintf("the request has %d bytes, at most %d are taken", len(arguments), most),
			Details: map[string]any{"limit": most, "size": len(arguments)},
		}
	}
	if len(bytes.TrimSpace(arguments)) == 0 {
		arguments = []byte("{}")
	}
	if err := read.OneMeaning(arguments, read.AnyNumber); err != nil {
		return q, &judge.Error{Code: judge.CodeInvalidType, Message: "the request: " + err.Error()}
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(arguments, &fields) != nil || fields == nil {
		return q, &judge.Error{Code: judge.CodeInvalidType, Message: "the request is no JSON object"}
	}
	operation, params := fields["operation"], fields["params"]
	delete(fields, "operation")
	delete(fields, "params")
	var unknown []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		unknown = append(unknown, Short(name))
	}
	if unknown != nil {
		return q, &judge.Error{
			Code: judge.CodeUnknownParam, Message: "a request has operation and params; the operation's parameters belong into params",
			Details: map[string]any{
				"unknown_params": unknown[:min(len(unknown), maxUnknown)], "valid_params": []string{"operation", "params"},
			},
		}
	}
	if operation == nil {
		return q, wrong(judge.CodeMissingParam, "operation", "is missing", "string")
	}
	if operation[0] != '"' || json.Unmarshal(operation, &q.Operation) != nil {
		return q, wrong(judge.CodeInvalidType, "operation", "wants a string", "string")
	}
	if params == nil || params[0] == 'n' {
		return q, nil
	}
	if params[0] != '{' {
		return Request{}, wrong(judge.CodeInvalidType, "params", "wants an object", "object")
	}
	q.Params = params
	return q, nil
}

func wrong(code, param, what, want string) *judge.Error {
	return &judge.Error{Code: code, Message: param + " " + what, Details: map[string]any{"param_name": param, "expected_type": want}}
}

// Short keeps what a client made up short.
func Short(unsafe string) string {
	if len(unsafe) > maxName {
		return strings.ToValidUTF8(unsafe[:maxName-len("…")], "") + "…"
	}
	return unsafe
}
