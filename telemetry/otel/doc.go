// SPDX-License-Identifier: Apache-2.0

// Package otel exports spans of runs and their calls over OTLP/HTTP (M-20), and owns the section telemetry: of gateway.yaml.
//
//	tracer, err := otel.New(config, otel.Options{Secret: secrets, Version: version})
//	run := tracer.Run(start.Trace, otel.RunInfo{Run: id, Ring: ring})
//	call := run.Call(otel.KindTool, "math")
//	call.Inject(request.Header) // W3C Trace Context to the upstream
//	call.End(otel.Outcome{Code: rings.CodeOK, Tokens: 12})
//	run.End(otel.Outcome{Code: rings.CodeOK})
//	err = tracer.Shutdown(ctx)
//
// Guarantees. A call never waits for the exporter: ended spans go into a bounded queue, and what doesn't fit, or can't be
// sent, is dropped and counted (Dropped). Ids and headers are there whether anything is exported or not. Attributes are the
// fields of RunInfo and Outcome, and the call's kind and name; there is no way to attach an argument, a body or an error's text. A trace begins with
// what the supervisor said, never with an agent's header. Without an endpoint no SDK is made: a span is its ids.
//
// Errors. New's are of the configuration. Exporting gives none to the caller.
//
// What it does not protect against. The collector sees names of tools, models and hosts, times and costs. An upstream sees
// the trace's id. A process that is killed loses its queue. It fails by losing spans.
package otel
