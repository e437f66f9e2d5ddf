// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"agentrun/telemetry"
	"agentrun/toolproxy/gate"
)

// sink is the reply on its way to the agent. After the first error nothing more is sent.
type sink interface {
	delta(text string, calls []toolCall) *gate.Error
	summary(text string) *gate.Error
	finish(c *call)
	fail(e *gate.Error)
}

func newSink(w http.ResponseWriter, g *Gateway, r *chatRequest) sink {
	h := head{ID: "chatcmpl-" + g.id(), Created: g.o.Now().Unix(), Model: r.Model}
	if r.Stream {
		h.Object = "chat.completion.chunk"
		return &streamSink{w: w, head: h, usage: r.StreamOptions != nil && r.StreamOptions.Usage, control: http.NewResponseController(w)}
	}
	h.Object = "chat.completion"
	return &wholeSink{w, h, telemetry.NewPlaintext(&wholeReply{})}
}

// id is random: a reply's id tells nothing about other runs.
func (g *Gateway) id() string {
	b := make([]byte, 12)
	if _, err := io.ReadFull(g.o.Random, b); err != nil {
		return strings.Repeat("0", 24)
	}
	return hex.EncodeToString(b)
}

type head struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
}

type outMessage struct {
	Role      string     `json:"role,omitempty"`
	Content   *string    `json:"content,omitempty"`
	Summary   string     `json:"summary,omitempty"` // confidential mode: there is no content (M-15)
	ToolCalls []toolCall `json:"tool_calls,omitempty"`
}

// streamSink sends server-sent events. It has two states. Until the first event nothing is said, and a
// failure is an ordinary error with its status; after it the status is out, so that a failure can only be an
// event, the last one, with no [DONE] after it: that is how a client tells a broken reply from a whole one.
type streamSink struct {
	w       http.ResponseWriter
	control *http.ResponseController
	head    head
	usage   bool
	started bool
}

type streamChoice struct {
	Index  int        `json:"index"`
	Delta  outMessage `json:"delta"`
	Finish *string    `json:"finish_reason"`
}

type streamChunk struct {
	head
	Choices []streamChoice `json:"choices"`
	Usage   *usage         `json:"usage,omitempty"`
}

// patience is how long an agent may take to read one event: a slow reader holds a place among the concurrent
// calls.
const patience = 15 * time.Second

func (s *streamSink) write(v any) *gate.Error {
	b, err := json.Marshal(v)
	if err != nil {
		return &gate.Error{Code: gate.CodeToolFailed, Message: "the reply has no form", Next: "try again", Cause: err}
	}
	return s.send(string(b))
}

// send writes one event and flushes it. The deadline is for this event alone: an agent that stops reading
// ends its call after patience, and doesn't keep a place or the provider's connection; one that reads slowly
// but steadily goes on. Every failure here is the agent's absence, so it is told as that and not as a fault
// of the provider.
func (s *streamSink) send(data string) *gate.Error {
	if !s.started {
		h := s.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		s.w.WriteHeader(http.StatusOK)
		s.started = true
	}
	// Connections without deadlines (tests' recorders) have other bounds: the call's.
	_ = s.control.SetWriteDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(s.w, "data: "+data+"\n\n"); err != nil {
		return gone()
	}
	if err := s.control.Flush(); err != nil {
		return gone()
	}
	_ = s.control.SetWriteDeadline(time.Time{}) // the connection may have another request to come
	return nil
}

func gone() *gate.Error {
	return &gate.Error{Code: gate.CodeCanceled, Message: "the connection was closed", Next: "nobody reads this", Cause: errAgent}
}

// emit sends a piece, and before the first of them the one that names the role, which OpenAI's clients wait
// for before they take text.
func (s *streamSink) emit(m outMessage, finish *string) *gate.Error {
	if !s.started {
		empty := ""
		if e := s.write(streamChunk{s.head, []streamChoice{{Delta: outMessage{Role: "assistant", Content: &empty}}}, nil}); e != nil {
			return e
		}
	}
	return s.write(streamChunk{s.head, []streamChoice{{Delta: m, Finish: finish}}, nil})
}

func (s *streamSink) delta(text string, calls []toolCall) *gate.Error {
	m := outMessage{ToolCalls: calls}
	if text != "" {
		m.Content = &text
	}
	return s.emit(m, nil)
}

func (s *streamSink) summary(text string) *gate.Error { return s.emit(outMessage{Summary: text}, nil) }

// finish is called after the permit has ended well: nothing of it may be said before, since an end that isn't
// on record takes the reply's end with it. The order is OpenAI's: finish_reason, usage if it was asked for,
// [DONE].
func (s *streamSink) finish(c *call) {
	e := s.emit(outMessage{}, &c.finish)
	if e == nil && s.usage {
		e = s.write(streamChunk{s.head, []streamChoice{}, &c.settled})
	}
	if e == nil {
		_ = s.send("[DONE]")
	}
}

func (s *streamSink) fail(e *gate.Error) {
	if !s.started {
		writeError(s.w, e)
		return
	}
	_ = s.write(bodyOf(e))
}

// wholeSink gathers the reply, which is bounded by what may be read of an upstream. Nothing is written before
// finish or fail, so that the status tells the truth.
type wholeSink struct {
	w     http.ResponseWriter
	head  head
	reply telemetry.Plaintext[*wholeReply]
}

// wholeReply is what was gathered.
type wholeReply struct {
	text  strings.Builder
	short string
	held  bool // there is a summary instead of the text
	calls []*wholeCall
}

// wholeCall gathers a function call: its pieces may be of one byte each.
type wholeCall struct {
	toolCall
	name, args strings.Builder
}

func (s *wholeSink) delta(text string, calls []toolCall) *gate.Error {
	reply := s.reply.Reveal()
	reply.text.WriteString(text)
	for _, c := range calls {
		reply.add(c)
	}
	return nil
}

func (s *wholeReply) add(c toolCall) {
	at := slices.IndexFunc(s.calls, func(w *wholeCall) bool { return *w.Index == *c.Index })
	if at < 0 {
		at = len(s.calls)
		s.calls = append(s.calls, &wholeCall{toolCall: c})
	}
	s.calls[at].name.WriteString(c.Function.Name)
	s.calls[at].args.WriteString(c.Function.Arguments)
}

func (s *wholeSink) summary(text string) *gate.Error {
	reply := s.reply.Reveal()
	reply.short, reply.held = text, true
	return nil
}

func (s *wholeSink) finish(c *call) {
	type outWhole struct {
		Role      string     `json:"role"`
		Content   *string    `json:"content"`
		Summary   string     `json:"summary,omitempty"`
		ToolCalls []toolCall `json:"tool_calls,omitempty"`
	}
	reply := s.reply.Reveal()
	m := outWhole{Role: "assistant", Summary: reply.short}
	if text := reply.text.String(); !reply.held && (text != "" || len(reply.calls) == 0) {
		m.Content = &text
	}
	for _, w := range reply.calls {
		w.Index, w.Function.Name, w.Function.Arguments = nil, w.name.String(), w.args.String()
		m.ToolCalls = append(m.ToolCalls, w.toolCall)
	}
	type choice struct {
		Index   int      `json:"index"`
		Message outWhole `json:"message"`
		Finish  string   `json:"finish_reason"`
	}
	writeJSON(s.w, http.StatusOK, struct {
		head
		Choices []choice `json:"choices"`
		Usage   usage    `json:"usage"`
	}{s.head, []choice{{0, m, c.finish}}, c.settled})
}

func (s *wholeSink) fail(e *gate.Error) { writeError(s.w, e) }
