// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"agentrun/rings"
	"agentrun/telemetry"
	"agentrun/toolproxy/boundary"
	"agentrun/toolproxy/gate"
)

// chat answers one completion: reading, model and prompt, then the permit, then the upstream. Each of the
// first three may refuse, and the first that does decides what the agent hears; nothing of the request has
// left the gateway by then. A refusal isn't free all the same: turnAway takes it through the entrance.
func (g *Gateway) chat(w http.ResponseWriter, r *http.Request) {
	var req chatRequest
	body, e := g.body(w, r)
	if e == nil && g.transparent(body) {
		g.open(w, r, dialectOf(dialectChat), body, nil)
		return
	}
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
		if t, e = g.find(dialectChat, req.Model); e == nil && t.model.Mode != modeGuarded {
			e = badArguments("model is named in two ways") // transparent and decode read one name differently
		}
	}
	var p *prompt
	if e == nil {
		p, e = g.prompt(&req, t)
	}
	if e != nil {
		g.turnAway(w, r, "llm", dialectOf(dialectChat), e)
		return
	}
	g.complete(w, r, body, &req, t, p)
}

// transparent tells of a chat with a model of that mode.
func (g *Gateway) transparent(body []byte) bool {
	found, err := members(body, []string{"model"})
	if err != nil {
		return false
	}
	name, _ := found["model"].text()
	t, e := g.find(dialectChat, name)
	return e == nil && t.model.Mode == modeTransparent
}

// enter asks the entrance for a permit of one call to a model, whose body becomes the arguments that others
// see.
func (g *Gateway) enter(r *http.Request, api string, body []byte, c gate.Call) (gate.Permit, *gate.Error) {
	args := jsontext.Value(body)
	if err := args.Canonicalize(); err != nil && body != nil {
		return nil, badArguments("the body has no canonical form")
	}
	c.Kind, c.Category, c.Action = "llm", gate.CategoryC, action(c.Tool, api)
	c.Args = telemetry.NewPlaintext(json.RawMessage(args))
	return g.o.Entrance.Enter(r.Context(), c)
}

// turnAway answers for a request that names no model or makes no sense: with why, unless the entrance refuses
// it before. So it costs what a call costs, and is on record: else models could be tried out as fast as a
// processor goes.
func (g *Gateway) turnAway(w http.ResponseWriter, r *http.Request, tool string, d *dialect, why *gate.Error) {
	admit := func(rings.Ring) *gate.Error { return why }
	permit, e := g.enter(r, d.api(), nil, gate.Call{Tool: tool, Admit: admit, PlaintextFree: true}) // nothing comes back
	if e == nil {
		_ = permit.End(gate.Outcome{Err: why}) // the agent gets nothing either way
		e = why
	}
	writeErrorIn(w, d, e)
}

// complete makes the call of a request that makes sense. The order is what keeps the budget honest: the
// prompt is written before the permit is asked for, since the estimate must be of what goes up, delimiters
// and the operator's message included; it counts bytes upwards and takes the longest reply that may come, so
// a call hardly costs more than was reserved, and meter ends one whose provider ignores its limit. The
// permit's end is deferred before a byte is sent.
func (g *Gateway) complete(w http.ResponseWriter, r *http.Request, body []byte, req *chatRequest, t *target, p *prompt) {
	up, e := p.bytes()
	if e != nil {
		writeError(w, e)
		return
	}
	files := filesOf(up)
	input, most := inputTokens(len(up), files.size)+files.short, req.most(t.model)
	var more, moreTokens int64
	if g.confidential() {
		more, moreTokens = g.summaries.estimate(most)
	}
	limit := t.provider.Timeout
	if req.Stream {
		limit = gate.Unlimited // it lives as long as it flows
	}
	permit, e := g.enter(r, dialectOf(dialectChat).api(), body, gate.Call{
		Tool: "llm", Estimate: t.model.cost(input, most) + more, Tokens: input + most + moreTokens, Flags: p.flags, Timeout: limit,
		PlaintextFree: true, // what comes back is a summary or counts in confidential mode (M-15)
	})
	if e != nil {
		writeError(w, e)
		return
	}
	c := newCall(g, t, permit, len(up), most, limit)
	c.input, c.media = input, files.size
	c.hide(t.key, g.marker.Nonce())
	c.tell()
	c.offered = req.offers()
	// Whatever happens below, the permit is ended, once; also if a writer or a hook panics.
	// nobody is left to be told
	defer func() { _ = c.end(refuse(gate.CodeToolFailed, "the call was given up", "try again")) }()
	out := newSink(w, g, req)
	var src source
	if t.rt == nil {
		src = newLocalChat(req, most)
	} else {
		src, e = g.ask(c, up)
	}
	if e == nil {
		e = c.pump(src, out)
	}
	if e = c.end(e); e != nil {
		g.o.Log.Warn("llm call", "model", t.model.Name, "code", e.Code, "cause", gate.CauseOf(e.Cause))
		out.fail(e)
		return
	}
	out.finish(c)
}

// call is a completion under way: what it was so far, and what may be given out of it. Its state only grows:
// bytes are counted as they come (note), the budgets hear of them (meter), then they are given out (give),
// and at the end what was held back and the bill follow (rest). One goroutine does all of that; what may come
// from others, a stop or a lost ring, arrives as the end of ctx with its cause.
type call struct {
	gateway *Gateway
	target  *target
	permit  gate.Permit
	ctx     context.Context
	cancel  context.CancelCauseFunc

	sentBytes int    // of the prompt
	media     int    // of these, images
	input     int64  // tokens of it, by its bytes
	known     *usage // of it, by what the provider says before its reply's end; nil: nothing
	most      int64  // output tokens
	outBytes  int    // of text, calls and reasoning, as the upstream sent them
	told      int64  // output tokens at the last Spent
	asked     bool
	received  int64
	final     *usage // what the upstream said, if it did
	flags     []string
	finish    string
	withheld  telemetry.Plaintext[*strings.Builder] // the text so far, in confidential mode
	calls     map[int64]*boundary.Redactor          // of the arguments of each function call
	strip     *boundary.Stripper
	redact    *boundary.Redactor
	secrets   []string
	offered   map[string]bool // functions of the request
	called    bool            // one was passed on, in confidential mode
	open      bool            // nothing of its reply is withheld: it is for this program, or of mode transparent
	passed    bool            // mode transparent: the provider may know of more than was sent, as a conversation that it keeps
	kept      bool            // it does: the request names such a conversation, or a file
	free      bool            // the provider charges for nothing
	whole     bool            // it isn't streamed: a provider writes it to its end, whoever still listens
	over      bool            // the provider has said that its reply is at its end: until then its count may be of the beginning
	since     time.Time
	extra     gate.Outcome // what the summary cost
	ended     bool
	settled   usage
}

func newCall(g *Gateway, t *target, permit gate.Permit, sent int, most int64, limit time.Duration) *call {
	c := &call{gateway: g, target: t, permit: permit, sentBytes: sent, input: tokensOf(sent), most: most, finish: "stop", since: time.Now(),
		withheld: telemetry.NewPlaintext(&strings.Builder{}), calls: map[int64]*boundary.Redactor{}, strip: boundary.NewStripper(t.model.OpensInReasoning)}
	c.hide(t.key)
	ctx, stop := context.WithTimeout(permit.Context(), limit)
	inner, cancel := context.WithCancelCause(ctx)
	c.ctx = inner
	c.cancel = func(cause error) { cancel(cause); stop() }
	return c
}

// tell puts on record what of a call isn't as it is by default.
func (c *call) tell() {
	m := c.target.model
	c.flag(m.Mode != modeGuarded, "mode_"+m.Mode)
	c.flag(m.Boundary != boundaryStrict, "boundary_"+m.Boundary)
	c.flag(m.Reasoning != reasoningStrip, "reasoning_"+m.Reasoning)
}

// withholds: in confidential mode no word of a reply goes to the agent (M-15).
func (c *call) withholds() bool { return c.gateway.confidential() && !c.open }

// hide has these taken out of all that the agent gets: the provider's key, should it be echoed (M-12), and
// the nonce of the delimiters, with which an agent could close its data and go on as the operator (M-16). It
// starts the search anew, so it is called before the first byte of a reply, never in the middle.
func (c *call) hide(secrets ...string) {
	c.secrets, c.redact = secrets, boundary.NewRedactor(secrets...)
}

// stepTokens is how far a stream may run before the budgets are asked again.
const stepTokens = 64

// meter tells the budgets what was spent, when there is enough that is new. It comes before anything is given
// out: a stop takes what wasn't paid for with it (M-19).
func (c *call) meter() *gate.Error {
	out := tokensOf(c.outBytes)
	if c.asked && out-c.told < stepTokens {
		return nil
	}
	if out > 2*c.most+1024 {
		return failure(c.ctx, errLong) // it ignores its limit
	}
	c.told, c.asked = out, true
	u := c.soFar()
	return c.permit.Spent(c.target.model.price(u), u.Prompt+u.Completion)
}

// said are the tokens that the bytes of the prompt come to, by which a count of the provider's is judged.
func (c *call) said() int64 { return inputTokens(c.sentBytes, c.media) }

// soFar is the estimate of what was used up to now.
func (c *call) soFar() usage {
	u := usage{Prompt: c.input}
	if c.known != nil {
		u = *c.known
	}
	u.Completion = tokensOf(c.outBytes)
	return u
}

// pump carries a reply from an upstream to the agent. It returns when the reply is complete or is to be given
// up.
//
// Each round looks at the context first: a call that was stopped gives out nothing of what came meanwhile.
// Then what came is counted, then paid for, and only then given out; the other way round the last step before
// a stop would be free (M-19).
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

// note counts what came. Usage is the provider's own number, in OpenAI's API in the last object of a stream,
// elsewhere in each one with the sum so far: it holds only if no text came after it. Reasoning counts as
// well, although it is never given out: the provider charges for it.
func (c *call) note(ev *event) {
	c.outBytes += ev.size
	if ev.usage != nil || ev.size > 0 {
		c.final = ev.usage // what came before was of less than the whole
	}
	if ev.finish != "" {
		c.finish, c.over = finishReason(ev.finish), true
	}
	c.flag(ev.reasoning, boundary.FlagReasoning)
}

// flag adds a flag to the record of the call if there is reason to.
func (c *call) flag(reason bool, flag string) {
	if reason {
		c.flags = boundary.Merge(c.flags, []string{flag})
	}
}

// give passes one piece on, through two filters that may both hold something back: the stripper until it
// knows whether a tag of reasoning begins (M-17), the redactor as much as a secret may be long (M-12). What they
// hold comes in rest.
func (c *call) give(ev *event, to sink) *gate.Error {
	said := ev.said.Reveal()
	text := said.text
	if c.target.model.Reasoning == reasoningStrip {
		text = c.strip.Write(text)
	}
	text = c.redact.Write(text)
	var calls []toolCall
	for _, tc := range said.calls {
		if c.withholds() {
			calls = append(calls, c.bareCall(tc)...)
			continue
		}
		out, e := c.toolCall(tc)
		if e != nil {
			return e
		}
		calls = append(calls, out)
	}
	return c.send(to, text, calls)
}

// rest gives out what was held back, and has the bill checked before the end is told. The filters are closed
// in the order in which text goes through them. A bill that the budgets refuse takes the end of the reply
// with it: the agent has had what was paid for, and no sign that the reply is whole.
func (c *call) rest(to sink) *gate.Error {
	text := c.redact.Write(c.strip.Close())
	text += c.redact.Close()
	var calls []toolCall
	for i := range int64(maxToolCalls) {
		if s := c.calls[i]; s != nil {
			if held := s.Close(); held != "" {
				calls = append(calls, toolCall{Index: &i, Function: functionCall{Arguments: held}})
			}
			c.flag(s.Found(), boundary.FlagSecret)
		}
	}
	if e := c.send(to, text, calls); e != nil {
		return e
	}
	c.flag(c.strip.Stripped(), boundary.FlagReasoning)
	c.flag(c.redact.Found(), boundary.FlagSecret)
	u := c.bill()
	if e := c.permit.Spent(c.target.model.cost(u.Prompt, u.Completion), u.Total); e != nil {
		return e
	}
	if c.withholds() {
		c.flag(true, boundary.FlagPlaintext)
		text, e := c.summary()
		if e != nil {
			return e
		}
		return to.summary(text)
	}
	return nil
}

func (c *call) send(to sink, text string, calls []toolCall) *gate.Error {
	if c.withholds() {
		if held := c.withheld.Reveal(); held.Len() < maxWithheld {
			held.WriteString(text[:min(len(text), maxWithheld-held.Len())])
		}
		text = ""
	}
	if text == "" && len(calls) == 0 {
		return nil
	}
	return to.delta(text, calls)
}

// bareCall is what passes of function calls in confidential mode (M-15): the first of a reply whose function
// the request offers, without arguments. Names and ids that a model makes up would carry text, and so would the
// order of many calls.
func (c *call) bareCall(in toolCall) []toolCall {
	if c.called || !c.offered[in.Function.Name] {
		return nil
	}
	c.called = true
	index := int64(0)
	return []toolCall{{Index: &index, ID: "call_" + c.gateway.id()[:8], Type: "function", Function: functionCall{in.Function.Name, "{}"}}}
}

// toolCall passes one piece of a function call on.
//
// Pieces of several calls may come interleaved, told apart by their index, and a secret may be spread over
// the pieces of one of them, so each call has a redactor of its own. A name isn't searched piece by piece:
// one that holds a secret, or that no function can have, ends the reply.
func (c *call) toolCall(in toolCall) (toolCall, *gate.Error) {
	index := int64(0)
	if in.Index != nil {
		index = *in.Index
	}
	if index < 0 || index >= maxToolCalls {
		return toolCall{}, failure(c.ctx, errForm)
	}
	s, known := c.calls[index]
	if !known {
		s = boundary.NewRedactor(c.secrets...)
		c.calls[index] = s
	}
	out := toolCall{Index: &index}
	if in.ID != "" || !known {
		out.ID, out.Type = c.safeID(in.ID, index), "function"
	}
	if in.Function.Name != "" {
		if !functionName().MatchString(in.Function.Name) || c.redact.Text(in.Function.Name) != in.Function.Name {
			return toolCall{}, failure(c.ctx, errForm)
		}
		out.Function.Name = in.Function.Name
	}
	out.Function.Arguments = s.Write(in.Function.Arguments)
	return out, nil
}

// safeID returns the provider's id if it is one, and otherwise one of ours: ids come back in the next
// request, and must be neither a way to hand out a secret nor text that a prompt takes for something else.
func (c *call) safeID(id string, index int64) string {
	if functionName().MatchString(id) && c.redact.Text(id) == id {
		return id
	}
	return "call_" + string(rune('a'+index%26)) + c.gateway.id()[:8]
}

// finishReason passes on the reasons that clients act on. Any other is a plain stop: it is a provider's own
// word, and a word that passes unread is a way for text to pass.
func finishReason(said string) string {
	switch said {
	case "length", "tool_calls", "content_filter":
		return said
	}
	return "stop"
}

// bill is what the call used: what the provider said where that can be true, else the estimate. A provider
// that says too little would have the budget run longer than the money; one that says too much would end a
// run for nothing. Neither can be checked exactly, since only the provider knows its vocabulary: the bounds
// are in price.go.
func (c *call) bill() usage {
	if c.free {
		return usage{}
	}
	u, f := c.soFar(), c.final
	believed := false
	switch {
	case f == nil:
	case c.passed:
		believed = plausiblePassed(*f, c.said(), c.outBytes)
	default:
		believed = plausibleInput(f.Prompt, c.sentBytes, c.media) && plausibleOutput(f.Completion, c.most, c.outBytes)
	}
	if believed {
		u = *f
	}
	c.flag(!believed, "usage_estimated")
	u.Total = u.Prompt + u.Completion
	return u
}

// unheardTokens a second are what a model may have written that nobody saw; those of the large providers write 50 to 150.
const unheardTokens = 100

// unheardPrompt is the prompt of a call without a count, a part of which the provider has by an id: it reads that before it says anything,
// whoever still listens. The models that people run agents with take as many tokens, and more.
const unheardPrompt = 128 << 10

// unheard adds to the bill of a call that was cut off, or of which the provider told no count, what it may have cost beyond the
// bytes that came: thoughts that weren't shown, or a whole reply. An agent that hangs up before the first byte, or asks for no
// count, would else spend without end (M-19).
func (c *call) unheard() {
	if !c.asked || c.free || c.target.rt == nil {
		return
	}
	most := c.most
	if !c.whole {
		most = min(most, int64(time.Since(c.since).Seconds()*unheardTokens))
	}
	u := &c.settled
	u.Completion = max(u.Completion, most)
	if c.kept && c.known == nil {
		u.Prompt = max(u.Prompt, unheardPrompt)
	}
	u.Total = u.Prompt + u.Completion
}

// unread tells of a failure behind which the provider may have written more than was counted. A form that can't be read and
// a length that isn't read count too: an agent can bring about both.
func unread(e *gate.Error) bool {
	return e.Code == gate.CodeCanceled || e.Code == gate.CodeToolTimeout || errors.Is(e.Cause, errForm) || errors.Is(e.Cause, errLong)
}

// end ends the permit at the first call and does nothing at others. It returns what the agent gets: e, or why
// neither booking nor record may be relied on. It is called before the reply's end is told, so that a reply
// which isn't on record never looks whole, and once more by defer, for a panic on the way. The test model's
// bytes went nowhere and count as none.
func (c *call) end(e *gate.Error) *gate.Error {
	if c.ended {
		return nil
	}
	c.ended = true
	defer c.cancel(context.Canceled)
	if c.asked || e == nil {
		c.settled = c.bill()
	}
	cut := e != nil && (c.final == nil || !c.over) && unread(e)
	if cut || e == nil && c.passed && c.final == nil && !c.whole {
		c.unheard()
	}
	o := gate.Outcome{Err: e, Cost: c.target.model.price(c.settled) + c.extra.Cost,
		Tokens: c.settled.Total + c.extra.Tokens, Prompt: c.settled.Prompt + c.extra.Prompt,
		Sent: c.extra.Sent, Received: c.extra.Received, Flags: c.flags}
	if c.target.rt != nil {
		o.Sent, o.Received = o.Sent+int64(c.sentBytes), o.Received+c.received
	}
	if failed := c.permit.End(o); e == nil {
		return failed
	}
	return e
}
