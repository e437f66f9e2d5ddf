// SPDX-License-Identifier: Apache-2.0

// Package metrics counts what a gateway does, for Prometheus (M-20): tool calls by tool and code, tokens,
// egress, decisions, cost, approvals. What is about runs is counted by their supervisors, for all of the node: package counts.
//
//	m := metrics.New(metrics.Options{Tools: registry.Names()})
//	l, err := scrape.Listen("127.0.0.1:9464", false) // before confine.Drop, which refuses to bind
//	go m.Serve(l)
//	m.Tool("math", gate.CodeToolTimeout, took)
//
// Guarantees. The number of series is fixed at the start, whatever an agent does: a tool that isn't in Options.Tools and a
// code that isn't known count as "other", and no label is a host, an id or a text. Methods are safe for concurrent use, never block
// and never fail; those of a nil *Metrics do nothing. Only what is counted here is told: a registry of its own, no collector
// that reads /proc. Served is GET /metrics and nothing else.
//
// Errors. Only Serve has one: its listener's.
//
// What it does not protect against. Whoever can connect can read: how much a run does, with which tools. There is no
// password; put a proxy that has one in front. Counters begin anew with each process. It fails by telling less.
package metrics
