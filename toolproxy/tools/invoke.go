// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"agentrun/rings"
	"agentrun/telemetry"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
)

// maxStuck is how many calls of a tool may go on after they were given up. Tools end with their context; one that doesn't
// must not gather goroutines for ever.
const maxStuck = 4

// Invoke calls a tool for the agent of this gateway: every way in, HTTP or MCP, ends here. The arguments are any JSON object;
// nil is {}. The error has what the agent may know.
func (r *Registry) Invoke(ctx context.Context, name string, unsafe gate.Args) (json.RawMessage, *gate.Error) {
	args, e := canonicalArgs(unsafe.Reveal())
	if e != nil {
		return nil, e
	}
	return r.invoke(ctx, name, args)
}

func (r *Registry) invoke(ctx context.Context, name string, args gate.Args) (json.RawMessage, *gate.Error) {
	if checkName(name) != nil {
		return nil, unknownTool()
	}
	t := r.lookup(name)
	if t == nil {
		var err error
		if t, err = r.hear(ctx, name); t == nil {
			return nil, r.unknown(ctx, name, args, err)
		}
	}
	c := r.call(t)
	raw := args.Reveal()
	c.Action = t.actionOf(raw)
	c.Args, c.Target, c.Flags = args, telemetry.NewPlaintext(t.target(raw)), r.o.Inspect(raw)
	c.Validate = func() *gate.Error { return t.fits(raw) }
	if c.Stays = t.Undo != nil; c.Stays {
		r.making.RLock()
		defer r.making.RUnlock()
	}
	permit, e := r.o.Entrance.Enter(ctx, c)
	if e != nil {
		return nil, e
	}
	output, outcome := r.run(permit.Context(), t, args)
	if e := permit.End(outcome); e != nil {
		return nil, e
	}
	if outcome.Err != nil {
		return nil, outcome.Err
	}
	return output, nil
}

// Finish returns when no call that can be undone is under way, or with ctx; none begins any more. It is for the end of the run, which an
// agent may have brought about in the middle of such a call: what undoes it comes with its result (H-7).
func (r *Registry) Finish(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		r.making.Lock()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// unknown passes the entrance too: names that are tried out are paced and recorded as calls are. An error is
// why nobody knows yet what there is.
func (r *Registry) unknown(ctx context.Context, name string, args gate.Args, err error) *gate.Error {
	why := unknownTool()
	if refused, ok := errors.AsType[*gate.Error](err); ok {
		why = refused
	} else if err != nil {
		why = &gate.Error{
			Code: gate.CodeUnavailable, Message: "the tool's server has not said yet what it has",
			Next: "try again later, or go on without this tool", Rule: "M-12", Cause: err,
		}
	}
	return r.Refuse(ctx, name, args, why)
}

// Refuse answers for what leads to no tool with why, unless the entrance refuses before: it costs what a call costs, and is on record.
func (r *Registry) Refuse(ctx context.Context, name string, args gate.Args, why *gate.Error) *gate.Error {
	permit, e := r.o.Entrance.Enter(ctx, gate.Call{
		Kind: "tool", Tool: name, Category: gate.CategoryA, Action: ReadAction(name), Args: args,
		Admit: func(rings.Ring) *gate.Error { return why },
	})
	if e == nil {
		e = why
		_ = permit.End(gate.Outcome{Err: e}) // the agent gets nothing either way
	}
	return e
}

func unknownTool() *gate.Error {
	return &gate.Error{
		Code: gate.CodeToolUnknown, Message: "there is no tool of that name", Next: "GET /internal/tools lists those you may call", Rule: "M-13",
	}
}

func (t *tool) fits(args json.RawMessage) *gate.Error {
	if err := t.args.validate(args); err != nil {
		complaint := Cut(strings.ToValidUTF8(err.Error(), ""), maxComplaint)
		e := BadArguments("the arguments don't fit the tool's schema: %s", complaint)
		e.Rule, e.Cause = "args", errors.New("arguments don't fit the schema")
		return e
	}
	if name, known := t.misspelt(args); name != "" {
		return BadArguments("there is no argument %.64q; it is %q", name, known)
	}
	if err := t.refuses(args); err != nil {
		e := BadArguments("a call with these arguments could not be undone")
		e.Rule, e.Cause = "H-7", err
		return e
	}
	return nil
}

// The validator's complaint quotes what the agent sent, so it goes back to the agent and to nobody else.
const maxComplaint = 300

// Cut shortens text to at most so many bytes, between two characters.
func Cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:max(most-len("…"), 0)], "") + "…"
}

// run calls the tool and brings its answer into the form in which the agent may have it.
func (r *Registry) run(ctx context.Context, t *tool, args gate.Args) (json.RawMessage, gate.Outcome) {
	limit := t.MaxReply
	if t.Undo != nil {
		limit = MaxReply // an agent that has its arguments come back must not make the answer, with what undoes the call, too long to be read
	}
	result, err := t.within(ctx, Call{Caller: r.o.Caller, Tool: t.Name, Args: args, Limit: limit})
	// The one tool that uses a model makes embeddings, which have no completion.
	o := gate.Outcome{Cost: result.Cost, Tokens: result.Tokens, Prompt: result.Tokens, Sent: result.Sent, Received: result.Received}
	if err != nil {
		o.Err = agentsError(ctx, t.Name, err)
		if ctx.Err() != nil || o.Err.Code == gate.CodeTooLarge { // the tool may have done all of it: who hangs up, or asks for too much, pays (M-19)
			o.Cost = cmp.Or(o.Cost, t.Price)
		}
		return nil, o
	}
	o.Cost = cmp.Or(o.Cost, t.Price)
	var output json.RawMessage
	output, o.Flags, o.Err = r.reply(t, result.Output)
	if t.Undo != nil { // whatever becomes of its answer, the call has been made
		undo, err := t.Undo.arguments(args.Reveal(), result.Output)
		if o.Undo = &undo; err != nil {
			o.Undo, o.Flags = nil, append(o.Flags, link.FlagUndoLost)
			r.o.Log.Error("a call can't be undone", "tool", t.Name, "error", err)
		}
	}
	return output, o
}

func (r *Registry) reply(t *tool, output json.RawMessage) (_ json.RawMessage, flags []string, _ *gate.Error) {
	if int64(len(output)) > t.MaxReply {
		return nil, nil, tooLong(t.MaxReply)
	}
	if !json.Valid(output) {
		return nil, nil, failed("the tool's answer is no JSON", errors.New("answer is no JSON"))
	}
	filtered, flags, err := r.filter(output)
	switch {
	case err != nil:
		return nil, flags, failed("the tool's answer didn't pass the filter", err)
	case !json.Valid(filtered):
		return nil, flags, failed("the tool's answer didn't pass the filter", errors.New("filter gave no JSON"))
	case int64(len(filtered)) > t.MaxReply:
		return nil, flags, tooLong(t.MaxReply)
	}
	return filtered, flags, nil
}

func (r *Registry) filter(output json.RawMessage) (_ json.RawMessage, _ []string, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = errors.New("filter: panic")
		}
	}()
	return r.o.Filter(r.o.Caller.Mode, output)
}

func tooLong(limit int64) *gate.Error {
	return &gate.Error{Code: gate.CodeTooLarge, Message: fmt.Sprintf("the answer is longer than %d bytes", limit), Next: "ask for less at once", Rule: "max_reply"}
}

func failed(message string, cause error) *gate.Error {
	return &gate.Error{Code: gate.CodeToolFailed, Message: message, Next: "try again later or do without this tool", Cause: cause}
}

var errStuck = errors.New("earlier calls didn't end with their time")

// within calls the tool and waits no longer than ctx lasts, whatever the tool does.
func (t *tool) within(ctx context.Context, c Call) (Result, error) {
	if t.stuck.Load() >= maxStuck {
		return Result{}, errStuck
	}
	type answer struct {
		result Result
		err    error
	}
	done := make(chan answer, 1)
	go func() {
		a := answer{err: errors.New("no answer")}
		defer func() {
			if v := recover(); v != nil {
				a = answer{err: fmt.Errorf("panic of type %T", v)} // its text may have arguments in it
			}
			done <- a
		}()
		a.result, a.err = t.Tool.Call(ctx, c)
	}()
	select {
	case a := <-done:
		return a.result, a.err
	case <-ctx.Done():
		t.stuck.Add(1)
		go func() { <-done; t.stuck.Add(-1) }()
		return Result{}, ctx.Err()
	}
}

// agentsError gives what the agent may know of a tool's error. An upstream's text may hold the secrets it was called with.
func agentsError(ctx context.Context, name string, err error) *gate.Error {
	var e *gate.Error
	if ctx.Err() != nil && errors.As(context.Cause(ctx), &e) {
		return e
	}
	if errors.As(err, &e) && e != nil {
		return e
	}
	if ctx.Err() != nil {
		return &gate.Error{Code: gate.CodeCanceled, Message: "the call was given up", Next: "end", Cause: err}
	}
	return failed("the tool "+name+" failed", err)
}
