// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/go-json-experiment/json/jsontext"

	"agentrun/internal/upstream"
	"agentrun/rings"
	"agentrun/toolproxy/boundary"
	"agentrun/toolproxy/gate"
)

// chat answers one completion. Reading, model, prompt; then the permit; then the upstream.
func (g *Gateway) chat(w http.ResponseWriter, r *http.Request) {
	body, e := readBody(w, r, g.o.Config.Limits.Body)
	var req chatRequest
	if e == nil {
		e = decode(body, &req)
	}
	if e == nil {
		e = req.check(g.o.Config.Limits)
	}
	var t *target
	if e == nil {
		if req.Model == "" {
			req.Model = g.first
		}
		t, e = find(g.chats, req.Model)
	}
	var p *prompt
	if e == nil {
		p, e = g.prompt(&req, t)
	}
	if e != nil {
		writeError(w, g.turnAway(r.Context(), "llm", "/internal/llm/chat", e))
		return
	}
	g.complete(w, r, body, &req, t, p)
}

// turnAway answers for a request that names no model or makes no sense: with why, unless the entrance refuses it before. So it costs
// what a call costs, and is on record: else models could be tried out as fast as a processor goes.
func (g *Gateway) turnAway(ctx context.Context, tool, api string, why *gate.Error) *gate.Error {
	permit, e := g.o.Entrance.Enter(ctx, gate.Call{
		Kind: "llm", Tool: tool, Category: gate.CategoryC, Action: action(tool, api), PlaintextFree: true,
		Admit: func(rings.Ring) *gate.Error { return why },
	})
	if e != nil {
		return e
	}
	_ = permit.End(gate.Outcome{Err: why}) // the agent gets nothing either way
	return why
}

func (g *Gateway) complete(w http.ResponseWriter, r *http.Request, body []byte, req *chatRequest, t *target, p *prompt) {
	up, e := p.bytes()
	if e != nil {
		writeError(w, e)
		return
	}
	args := jsontext.Value(body)
	if err := args.Canonicalize(); err != nil {
		writeError(w, badArguments("the body has no canonical form"))
		return
	}
	input, most := tokensOf(len(up)), req.most(t.model)
	permit, e := g.o.Entrance.Enter(r.Context(), gate.Call{
		Kind: "llm", Tool: "llm", Category: gate.CategoryC, Action: action("llm", "/internal/llm/chat"), Args: []byte(args),
		Estimate: t.model.cost(input, most), Tokens: input + most, Flags: p.flags,
		PlaintextFree: true, // what comes back of it is a summary (M-15)
	})
	if e != nil {
		writeError(w, e)
		return
	}
	c := newCall(g, t, permit, len(up), most)
	c.hide(t.key, p.nonce)
	// Whatever happens below, the permit is ended, once; also if a writer or a hook panics.
	defer func() { _ = c.end(refuse(gate.CodeToolFailed, "the call was given up", "try again")) }() // nobody is left to be told
	out := newSink(w, g, req)
	var src source
	if t.rt == nil {
		src, e = newLocalChat(req, most), nil
	} else {
		src, e = g.ask(c, up)
	}
	if e == nil {
		e = c.pump(src, out)
	}
	if e = c.end(e); e != nil {
		g.o.Log.Warn("llm call", "model", t.model.Name, "code", e.Code, "cause", causeOf(e))
		out.fail(e)
		return
	}
	out.finish(c)
}

// causeOf says what kind of thing went wrong; the texts of errors may quote an upstream.
func causeOf(e *gate.Error) string {
	for _, known := range []error{errIdle, errLong, errShort, errForm, errSaid, errAgent, upstream.ErrAddress, context.DeadlineExceeded, context.Canceled} {
		if errors.Is(e.Cause, known) {
			return known.Error()
		}
	}
	return "other"
}

// call is a completion under way: what it was so far, and what may be given out of it.
type call struct {
	gateway *Gateway
	target  *target
	permit  gate.Permit
	ctx     context.Context
	cancel  context.CancelCauseFunc

	sentBytes int   // of the prompt
	most      int64 // output tokens
	outBytes  int   // of text, calls and reasoning, as the upstream sent them
	told      int64 // output tokens at the last Spent
	asked     bool
	received  int64
	final     *usage // what the upstream said, if it did
	flags     []string
	finish    string
	withheld  []byte // the text so far, in confidential mode
	calls     map[int64]*callState
	strip     *boundary.Stripper
	redact    *boundary.Redactor
	secrets   []string
	ended     bool
	settled   usage
}

type callState struct {
	redact *boundary.Redactor
	size   int
}

func newCall(g *Gateway, t *target, permit gate.Permit, sent int, most int64) *call {
	c := &call{gateway: g, target: t, permit: permit, sentBytes: sent, most: most, finish: "stop",
		calls: map[int64]*callState{}, strip: boundary.NewStripper(t.model.OpensInReasoning)}
	c.hide(t.key)
	ctx, stop := context.WithTimeout(permit.Context(), t.provider.Timeout)
	inner, cancel := context.WithCancelCause(ctx)
	c.ctx = inner
	c.cancel = func(cause error) { cancel(cause); stop() }
	return c
}

// hide has these taken out of all that the agent gets.
func (c *call) hide(secrets ...string) {
	c.secrets, c.redact = secrets, boundary.NewRedactor(secrets...)
}

// stepTokens is how far a stream may run before the budgets are asked again.
const stepTokens = 64

// meter tells the budgets what was spent, when there is enough that is new. It comes before anything is given out: a stop
// takes what wasn't paid for with it (M-19).
func (c *call) meter() *gate.Error {
	out := tokensOf(c.outBytes)
	if c.asked && out-c.told < stepTokens {
		return nil
	}
	if out > 2*c.most+1024 {
		return failure(c.ctx, errLong) // it ignores its limit
	}
	c.told, c.asked = out, true
	in := tokensOf(c.sentBytes)
	return c.permit.Spent(c.target.model.cost(in, out), in+out)
}

// pump carries a reply from an upstream to the agent. It returns when the reply is complete or is to be given up.
func (c *call) pump(src source, to sink) *gate.Error {
	defer src.close()
	if e := c.meter(); e != nil {
		return e
	}
	for {
		if c.ctx.Err() != nil {
			return failure(c.ctx, c.ctx.Err())
		}
		ev, err := src.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return failure(c.ctx, err)
		}
		c.note(&ev)
		if e := c.meter(); e != nil {
			return e
		}
		if e := c.give(&ev, to); e != nil {
			return e
		}
	}
	return c.rest(to)
}

func (c *call) note(ev *event) {
	c.outBytes += ev.size
	if ev.usage != nil || ev.size > 0 {
		c.final = ev.usage // what came before was of less than the whole
	}
	if ev.finish != "" {
		c.finish = finishReason(ev.finish)
	}
	if ev.reasoning {
		c.flags = boundary.Merge(c.flags, []string{boundary.FlagReasoning})
	}
}

func (c *call) give(ev *event, to sink) *gate.Error {
	text := c.redact.Write(c.strip.Write(ev.text))
	var calls []toolCall
	for _, tc := range ev.calls {
		out, e := c.toolCall(tc)
		if e != nil {
			return e
		}
		calls = append(calls, out)
	}
	return c.send(to, text, calls)
}

// rest gives out what was held back, and has the bill checked before the end is told.
func (c *call) rest(to sink) *gate.Error {
	text := c.redact.Write(c.strip.Close())
	text += c.redact.Close()
	var calls []toolCall
	for i := range int64(maxToolCalls) {
		if s := c.calls[i]; s != nil {
			if held := s.redact.Close(); held != "" && !c.gateway.confidential() {
				calls = append(calls, toolCall{Index: &i, Function: functionCall{Arguments: held}})
			}
			if s.redact.Found() {
				c.flags = boundary.Merge(c.flags, []string{boundary.FlagSecret})
			}
		}
	}
	if e := c.send(to, text, calls); e != nil {
		return e
	}
	if c.strip.Stripped() {
		c.flags = boundary.Merge(c.flags, []string{boundary.FlagReasoning})
	}
	if c.redact.Found() {
		c.flags = boundary.Merge(c.flags, []string{boundary.FlagSecret})
	}
	u := c.bill()
	if e := c.permit.Spent(c.target.model.cost(u.Prompt, u.Completion), u.Total); e != nil {
		return e
	}
	if c.gateway.confidential() {
		c.flags = boundary.Merge(c.flags, []string{boundary.FlagPlaintext})
		return to.summary(boundary.Summary(string(c.withheld), c.gateway.o.Config.Limits.Summary))
	}
	return nil
}

// maxWithheld is enough to summarise from; the rest of a long reply is dropped, as all of it will be.
const maxWithheld = 64 << 10

func (c *call) send(to sink, text string, calls []toolCall) *gate.Error {
	if c.gateway.confidential() {
		if len(c.withheld) < maxWithheld {
			c.withheld = append(c.withheld, text...)
		}
		text = ""
	}
	if text == "" && len(calls) == 0 {
		return nil
	}
	return to.delta(text, calls)
}

// toolCall passes one piece of a function call on. In confidential mode its arguments are plaintext, and stay here.
func (c *call) toolCall(in toolCall) (toolCall, *gate.Error) {
	index := int64(0)
	if in.Index != nil {
		index = *in.Index
	}
	if index < 0 || index >= maxToolCalls {
		return toolCall{}, failure(c.ctx, errForm)
	}
	s, first := c.calls[index], false
	if s == nil {
		s, first = &callState{redact: boundary.NewRedactor(c.secrets...)}, true
		c.calls[index] = s
	}
	out := toolCall{Index: &index}
	if in.ID != "" || first {
		out.ID, out.Type = c.safeID(in.ID, index), "function"
	}
	if in.Function.Name != "" {
		if !functionName().MatchString(in.Function.Name) || c.redact.Text(in.Function.Name) != in.Function.Name {
			return toolCall{}, failure(c.ctx, errForm)
		}
		out.Function.Name = in.Function.Name
	}
	if c.gateway.confidential() {
		if first {
			out.Function.Arguments = "{}"
		}
		return out, nil
	}
	out.Function.Arguments = s.redact.Write(in.Function.Arguments)
	return out, nil
}

func (c *call) safeID(id string, index int64) string {
	if functionName().MatchString(id) && c.redact.Text(id) == id {
		return id
	}
	return "call_" + string(rune('a'+index%26)) + c.gateway.id()[:8]
}

func finishReason(said string) string {
	switch said {
	case "length", "tool_calls", "content_filter":
		return said
	}
	return "stop"
}

// bill is what the call used: what the provider said where that can be true, else the estimate.
func (c *call) bill() usage {
	u := usage{Prompt: tokensOf(c.sentBytes), Completion: tokensOf(c.outBytes)}
	if f := c.final; f != nil && plausibleInput(f.Prompt, c.sentBytes) && plausibleOutput(f.Completion, c.most, c.outBytes) {
		u.Prompt, u.Completion = f.Prompt, f.Completion
	} else {
		c.flags = boundary.Merge(c.flags, []string{"usage_estimated"})
	}
	u.Total = u.Prompt + u.Completion
	return u
}

// end ends the permit at the first call and does nothing at others. It returns what the agent gets: e, or why neither
// booking nor record may be relied on.
func (c *call) end(e *gate.Error) *gate.Error {
	if c.ended {
		return nil
	}
	c.ended = true
	defer c.cancel(context.Canceled)
	if c.asked || e == nil {
		c.settled = c.bill()
	}
	o := gate.Outcome{Err: e, Cost: c.target.model.cost(c.settled.Prompt, c.settled.Completion), Tokens: c.settled.Total,
		Sent: int64(c.sentBytes), Received: c.received, Flags: c.flags}
	if c.target.rt == nil {
		o.Sent, o.Received = 0, 0
	}
	if failed := c.permit.End(o); e == nil {
		return failed
	}
	return e
}
