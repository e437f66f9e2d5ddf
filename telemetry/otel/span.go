// SPDX-License-Identifier: Apache-2.0

package otel

import (
	"context"
	"strings"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	api "go.opentelemetry.io/otel/trace"

	"agentrun/rings"
	"agentrun/telemetry/trace"
)

// RunInfo are the attributes of a run's span.
type RunInfo struct {
	Run, Agent, Session, Team, Plan string
	Ring                            rings.Ring
}

// Kind of a call, in the words of link.Record.
type Kind string

// The kinds.
const (
	KindTool   Kind = "tool"
	KindLLM    Kind = "llm"
	KindEgress Kind = "egress"
)

// Outcome is how a span ended, in numbers and a code.
type Outcome struct {
	Code     rings.Code // rings.CodeOK, or an error's
	Cost     int64      // millionths of the plans' unit
	Tokens   int64
	Sent     int64
	Received int64
}

// Span is a run or a call. Its methods may be called on nil.
type Span struct {
	tracer *Tracer
	ids    trace.Span
	span   api.Span // nil: not exported
}

// Run is the span that traceparent names, which the supervisor made; an empty or malformed one begins a new trace. What an
// agent sent must never come here. It belongs to the gateway: it begins now.
func (t *Tracer) Run(traceparent string, info RunInfo) *Span {
	ids := trace.New(true)
	if parent, err := trace.ParseParent(traceparent); err == nil {
		ids = parent
	}
	s := &Span{tracer: t, ids: ids}
	if t == nil || t.tracer == nil || ids.Flags&trace.Sampled == 0 || !t.chosen(ids.TraceID) {
		s.ids.Flags &^= trace.Sampled
		return s
	}
	ctx := context.WithValue(context.Background(), idKey{}, ids)
	_, s.span = t.tracer.Start(ctx, "agent.run.invoke", api.WithNewRoot(), api.WithAttributes(
		text("agentrun.run_id", info.Run), text("agentrun.agent_id", info.Agent), text("agentrun.session_id", info.Session),
		text("agentrun.team_id", info.Team), text("agentrun.plan", info.Plan), attribute.Int("agentrun.ring", info.Ring.Value())))
	return s
}

// Call begins a span within the run, or within another call. Name is a tool's, a model's, or host:port.
func (s *Span) Call(kind Kind, name string) *Span {
	if s == nil {
		return nil
	}
	c := &Span{tracer: s.tracer, ids: s.ids.Child()}
	if s.span == nil {
		return c
	}
	ctx := api.ContextWithSpan(context.WithValue(context.Background(), idKey{}, c.ids), s.span)
	_, c.span = s.tracer.tracer.Start(ctx, string(kind)+" call", api.WithSpanKind(api.SpanKindClient), api.WithAttributes(
		attribute.String("agentrun.kind", string(kind)), text("agentrun.name", name)))
	return c
}

// IDs are the span's names, for records and logs.
func (s *Span) IDs() trace.Span {
	if s == nil {
		return trace.Span{}
	}
	return s.ids
}

// Inject writes the span into the headers of a request to an upstream; pass an http.Header. An agent's own go.
func (s *Span) Inject(header map[string][]string) { s.IDs().Inject(header) }

// End ends it. A second time does nothing.
func (s *Span) End(o Outcome) {
	if s == nil || s.span == nil {
		return
	}
	s.span.SetAttributes(text("agentrun.code", string(o.Code)), attribute.Int64("agentrun.cost", o.Cost), attribute.Int64("agentrun.tokens", o.Tokens),
		attribute.Int64("agentrun.sent_bytes", o.Sent), attribute.Int64("agentrun.received_bytes", o.Received))
	if o.Code != rings.CodeOK {
		s.span.SetStatus(codes.Error, "") // no text: the code says it, and an error's text may have an argument in it
	}
	s.span.End()
}

// maxText bounds an attribute: a name is 253 bytes at most, a longer one isn't a name.
const maxText = 256

// text keeps to what can be sent: strings of protobuf are valid UTF-8, and one that isn't would lose the whole batch.
func text(key, value string) attribute.KeyValue {
	value = strings.ToValidUTF8(value[:min(len(value), maxText)], string(utf8.RuneError))
	return attribute.String(key, value)
}
