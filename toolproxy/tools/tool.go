// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"cmp"
	"context"
	"encoding/json"

	jsonv2 "github.com/go-json-experiment/json"

	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
)

// Call is one call of a tool, after every decision: the arguments are valid and canonical.
type Call struct {
	Caller link.Caller
	Tool   string
	Args   gate.Args // refuse to print (M-18): each kind of tool reveals them where it sends them
	Limit  int64     // bytes of the output; more is an error, never a cut
}

// Most is how many bytes the output may have, also where the caller sets no limit.
func (c Call) Most() int64 { return cmp.Or(max(c.Limit, 0), DefaultMaxReply) }

// Fits refuses an output that is longer.
func (c Call) Fits(output []byte) *gate.Error {
	if int64(len(output)) <= c.Most() {
		return nil
	}
	return Refuse(gate.CodeTooLarge, nil, "ask for less at once",
		"the output has %d bytes, at most %d are allowed", len(output), c.Most())
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

// Function is a tool made of a function of its decoded arguments. What it returns is a Result, or the
// output's value.
type Function[A any] func(ctx context.Context, c Call, args A) (any, error)

// Call decodes strictly, though the schema was checked before: a tool that reads another spelling of a name
// than the policy saw would act on what nobody decided about.
func (f Function[A]) Call(ctx context.Context, c Call) (Result, error) {
	var args A
	if err := jsonv2.Unmarshal(c.Args.Reveal(), &args, jsonv2.RejectUnknownMembers(true)); err != nil {
		e := BadArguments("the arguments of %.64s don't fit its schema", c.Tool)
		e.Cause = err
		return Result{}, e
	}
	value, err := f(ctx, c, args)
	r, priced := value.(Result)
	if err == nil && !priced {
		r.Output, err = jsonv2.Marshal(value, jsonv2.Deterministic(true))
	}
	if err == nil {
		if e := c.Fits(r.Output); e != nil {
			err = e
		}
	}
	if err != nil {
		r.Output = nil // what it cost stays
	}
	return r, err
}
