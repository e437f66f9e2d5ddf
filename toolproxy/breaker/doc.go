// SPDX-License-Identifier: Apache-2.0

// Package breaker stops calls of tools whose upstream fails, and raises the alarm when all of a run's tools do (H-23).
//
// What it guarantees. A tool whose calls failed too often is not called for a while: calls are refused as tool_unavailable with a
// time to wait, after quarantine, ring and rate and before anything that counts as a step, costs or asks an operator. Then one call
// is let through; if it succeeds the tool is open again. With kill_at, the share of failures over all tools sounds the
// alarm once, and from then on nothing of the run is called.
//
//	entrance = breaker.New(breaker.Options{Entrance: gate, Config: config, Alarm: alarm})
//
// What counts as a failure is an upstream's: tool_failed, tool_timeout, unavailable, of a call that had passed every decision.
// Denials, arguments that an upstream refuses (gate.Error.Asked), calls that the agent or a change of the ring ended and
// code-executor, which runs the agent's own programs, count as nothing.
//
// Errors: New refuses nothing; ParseConfig names every fault by its key.
//
// What it does not protect against. An agent can make an upstream fail by what it asks: it takes the tool away from its own run and
// from nobody else's, for the counts are one run's. It sheds load, it is no boundary.
//
// How it fails. Closed towards the tool: what can't be counted isn't called. An alarm that isn't heard is repeated, and the run's
// calls stay refused meanwhile.
package breaker
