// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

	"agentrun/pdp"
	"agentrun/rings"
	"agentrun/telemetry/metrics"
	"agentrun/telemetry/otel"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
)

// observe counts a decided call (M-20).
func (g *gateway) observe(e gate.Event) {
	g.metrics.Tool(e.Tool, e.Code, e.Took)
	if !e.Allowed {
		g.metrics.Denied(metrics.Kind(e.Kind), e.Code)
	}
	g.metrics.Cost(e.Cost)
	g.metrics.Tokens(e.Prompt, e.Tokens-e.Prompt)
}

// timed measures the decisions of the policy.
func timed(inner pdp.Decider, m *metrics.Metrics) pdp.Decider {
	return pdp.DeciderFunc(func(ctx context.Context, r pdp.Request) pdp.Decision {
		began := time.Now()
		d := inner.Decide(ctx, r)
		m.Decided(d.Code, time.Since(began))
		return d
	})
}

// waiting counts the calls that wait for an operator.
type waiting struct {
	link.Supervisor
	m *metrics.Metrics
}

func (w waiting) Approve(ctx context.Context, a link.Approval) (link.Approved, error) {
	defer w.m.Waiting()()
	return w.Supervisor.Approve(ctx, a)
}

// limitedTo holds egress to what the profile of the run gives, where that is less than its ring would.
func limitedTo(s link.Supervisor, network string) link.Supervisor {
	most, ok := map[string]rings.Ring{"none": rings.Sandbox, "allowlist": rings.Standard}[network]
	if !ok {
		return s
	}
	return narrowed{s, most}
}

type narrowed struct {
	link.Supervisor
	most rings.Ring
}

func (n narrowed) Ring() (rings.Ring, <-chan struct{}) {
	ring, changed := n.Supervisor.Ring()
	if !ring.Valid() {
		return ring, changed
	}
	return rings.LeastPrivileged(ring, n.most), changed
}

// counted counts connections and lookups as they are put on record.
// maxCounted of a record's events are counted one by one: a flood of lookups is to cost nothing.
const maxCounted = 10_000

type counted struct {
	link.Supervisor
	m *metrics.Metrics
}

func (c counted) Record(ctx context.Context, r link.Record) error {
	c.count(r)
	return c.Supervisor.Record(ctx, r)
}

func (c counted) End(ctx context.Context, e link.End) (link.Reservation, error) {
	if e.Record != nil {
		c.count(*e.Record)
	}
	return c.Supervisor.End(ctx, e)
}

func (c counted) count(r link.Record) {
	for i := range min(max(r.Count, 1), maxCounted) {
		switch {
		case r.Kind == "dns":
			c.m.Looked(r.Code)
		case r.Kind == "egress" && i == 0:
			c.m.Connected(r.Code, r.Sent, r.Received)
		case r.Kind == "egress":
			c.m.Connected(r.Code, 0, 0)
		}
		if !r.Allowed {
			c.m.Denied(metrics.Kind(r.Kind), r.Code)
		}
	}
}

type spanKey struct{}

func spanOf(ctx context.Context) *otel.Span {
	s, _ := ctx.Value(spanKey{}).(*otel.Span)
	return s
}

func traceID(ctx context.Context) string {
	if ids := spanOf(ctx).IDs(); ids.IsValid() {
		return ids.TraceID.String()
	}
	return ""
}

// spanned gives each call a span within the run's (M-20).
type spanned struct {
	outer
	run *otel.Span
}

func (s spanned) Enter(ctx context.Context, c gate.Call) (gate.Permit, *gate.Error) {
	span := s.run.Call(otel.Kind(c.Kind), c.Tool)
	p, err := s.Entrance.Enter(context.WithValue(ctx, spanKey{}, span), c)
	if err != nil {
		span.End(otel.Outcome{Code: err.Code})
		return nil, err
	}
	return spannedPermit{p, span}, nil
}

// outer is an entrance in front of another.
type outer struct{ gate.Entrance }

// May keeps the registry's list honest: it asks for it.
func (o outer) May(ctx context.Context, c gate.Call) bool {
	m, ok := o.Entrance.(interface {
		May(context.Context, gate.Call) bool
	})
	return ok && m.May(ctx, c)
}

type spannedPermit struct {
	gate.Permit
	span *otel.Span
}

func (p spannedPermit) End(o gate.Outcome) *gate.Error {
	err := p.Permit.End(o)
	code := rings.CodeOK
	if failed := o.Err; failed != nil {
		code = failed.Code
	} else if err != nil {
		code = err.Code
	}
	p.span.End(otel.Outcome{Code: code, Cost: o.Cost, Tokens: o.Tokens, Sent: o.Sent, Received: o.Received})
	return err
}
