// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"context"
	"encoding/json"

	"agentrun/toolproxy/link"
)

// Call is one call of a tool, after every decision: the arguments are valid and canonical.
type Call struct {
	Caller link.Caller
	Tool   string
	Args   json.RawMessage
	Limit  int64 // bytes of the output; more is an error, never a cut
}

// Result is what a tool answers. Output is any JSON.
type Result struct {
	Output   json.RawMessage
	Cost     int64 // millionths of the plans' unit; 0: the tool's fixed price
	Tokens   int64
	Sent     int64
	Received int64
}

// Tool does the work of one registered tool. A *gate.Error is passed to the agent; any other error becomes
// tool_failed, its text only the operator sees. It must end with ctx.
type Tool interface {
	Call(ctx context.Context, c Call) (Result, error)
}
