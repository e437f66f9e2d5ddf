// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	goruntime "runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"agentrun/rings"
)

// maxTools bounds the label "tool": beyond it a registry's tools are "other".
const maxTools = 512

// Options of New.
type Options struct {
	// Tools are the registry's names; any other counts as "other".
	Tools []string
	// DroppedSpans tells how many spans couldn't be exported; nil: not told.
	DroppedSpans func() int64
}

// Metrics are the counters. Nil counts nothing.
type Metrics struct {
	registry *prometheus.Registry
	tools    list

	toolCalls, denials, decisions, connections, dns *prometheus.CounterVec
	tokens, bytes                                   *prometheus.CounterVec
	cost                                            prometheus.Counter
	approvals                                       prometheus.Gauge
	decisionTime                                    prometheus.Histogram
	toolTime                                        *prometheus.HistogramVec
}

// New makes them, all at zero.
func New(o Options) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), tools: listOf(o.Tools[:min(len(o.Tools), maxTools)])}
	m.toolCalls = m.counters("tool_calls_total", "Calls of tools, by tool and how they ended; ok or the code of the error.", "tool", "code")
	m.denials = m.counters("denials_total", "What was refused, by kind (tool, llm, egress, dns) and code.", "kind", "code")
	m.decisions = m.counters("policy_decisions_total", "Decisions of the policy decision point, by code.", "code")
	m.connections = m.counters("egress_connections_total", "Connections asked for, by code.", "code")
	m.dns = m.counters("dns_queries_total", "Name lookups, by code.", "code")
	m.tokens = m.counters("tokens_total", "Tokens of models, by direction: prompt or completion.", "direction")
	m.bytes = m.counters("egress_bytes_total", "Bytes to and from upstreams, by direction: sent or received.", "direction")
	m.cost = add(m, prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: "cost_total", Help: "Cost booked, in the unit that plans are priced in."}))
	m.approvals = m.gauge("approvals_pending", "Calls that wait for an operator's answer.")
	m.decisionTime = m.histogram("policy_decision_seconds", "Time of one policy decision.", fine())
	m.toolTime = add(m, prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: "tool_seconds", Help: "Time of tool calls, the upstream's included.",
		Buckets: []float64{.001, .005, .01, .05, .1, .5, 1, 2, 3, 5, 10, 60}}, []string{"tool"})) // the categories' time limits (M-11) are bounds
	add(m, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: namespace, Name: "gateway_goroutines", Help: "Goroutines of the gateway."},
		func() float64 { return float64(goruntime.NumGoroutine()) }))
	if o.DroppedSpans != nil {
		add(m, prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: namespace, Name: "spans_dropped_total", Help: "Spans that were not exported."},
			func() float64 { return float64(o.DroppedSpans()) }))
	}
	return m
}

const namespace = "agentrun"

// fine buckets run from 10 µs to 1 s; 3 ms and 8 ms are the bounds of M-10.
func fine() []float64 {
	return []float64{10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 3e-3, 8e-3, 25e-3, 100e-3, 1}
}

// add registers c. Two of one name would be a mistake in New, which any use shows.
func add[C prometheus.Collector](m *Metrics, c C) C {
	m.registry.MustRegister(c)
	return c
}

func (m *Metrics) counters(name, help string, labels ...string) *prometheus.CounterVec {
	return add(m, prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels))
}

func (m *Metrics) gauge(name, help string) prometheus.Gauge {
	return add(m, prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}))
}

func (m *Metrics) histogram(name, help string, buckets []float64) prometheus.Histogram {
	return add(m, prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets}))
}

// Kind says what was asked for, in the words of link.Record.
type Kind string

// The kinds.
const (
	KindTool   Kind = "tool"
	KindLLM    Kind = "llm"
	KindEgress Kind = "egress"
	KindDNS    Kind = "dns"
)

func (k Kind) label() string {
	switch k {
	case KindTool, KindLLM, KindEgress, KindDNS:
		return string(k)
	}
	return other
}

// Tool counts a call that was let in, with how it ended: rings.CodeOK or an error's code.
func (m *Metrics) Tool(name string, c rings.Code, took time.Duration) {
	if m == nil {
		return
	}
	name = m.tools.label(name)
	m.toolCalls.WithLabelValues(name, code(c)).Inc()
	m.toolTime.WithLabelValues(name).Observe(took.Seconds())
}

// Denied counts what was refused.
func (m *Metrics) Denied(kind Kind, c rings.Code) {
	if m != nil {
		m.denials.WithLabelValues(kind.label(), code(c)).Inc()
	}
}

// Decided counts a decision of the PDP.
func (m *Metrics) Decided(c rings.Code, took time.Duration) {
	if m == nil {
		return
	}
	m.decisions.WithLabelValues(code(c)).Inc()
	m.decisionTime.Observe(took.Seconds())
}

// Connected counts a connection through the proxy when it ends, or its refusal. Bytes are those to and from the upstream.
func (m *Metrics) Connected(c rings.Code, sent, received int64) {
	if m == nil {
		return
	}
	m.connections.WithLabelValues(code(c)).Inc()
	plus(m.bytes.WithLabelValues("sent"), float64(sent))
	plus(m.bytes.WithLabelValues("received"), float64(received))
}

// Looked counts a name lookup.
func (m *Metrics) Looked(c rings.Code) {
	if m != nil {
		m.dns.WithLabelValues(code(c)).Inc()
	}
}

// Tokens counts those of a model's reply.
func (m *Metrics) Tokens(prompt, completion int64) {
	if m == nil {
		return
	}
	plus(m.tokens.WithLabelValues("prompt"), float64(prompt))
	plus(m.tokens.WithLabelValues("completion"), float64(completion))
}

// Cost counts what was booked, in millionths of the plans' unit.
func (m *Metrics) Cost(millionths int64) {
	if m != nil {
		plus(m.cost, float64(millionths)/1e6)
	}
}

// plus leaves out what would make a counter panic: an upstream's nonsense must not end the gateway.
func plus(c prometheus.Counter, v float64) {
	if v > 0 {
		c.Add(v)
	}
}

// Waiting counts a call that waits for approval; the returned function takes it back and may be called more than once.
func (m *Metrics) Waiting() (done func()) {
	if m == nil {
		return func() {}
	}
	m.approvals.Inc()
	called := make(chan struct{}, 1)
	return func() {
		select {
		case called <- struct{}{}:
			m.approvals.Dec()
		default:
		}
	}
}
