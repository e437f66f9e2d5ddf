// SPDX-License-Identifier: Apache-2.0

// Package trace names runs and calls and hands the names on, as W3C Trace Context says (M-20): traceparent and tracestate
// in headers, TRACEPARENT and TRACESTATE in an agent's environment.
//
// Guarantees. What a parser accepts, the other side's accepts too: formatting gives back what was parsed, and nothing
// that isn't lower-case, complete and not zero is parsed. Ids are random (crypto/rand). Invalid values go nowhere.
//
//	run := trace.New(true)
//	env = append(env, run.Environ()...)
//	call := run.Child()
//	call.Inject(req.Header)
//	logger.Info("call", "trace", call)
//
// Errors wrap ErrMalformed, and have nothing of the input in them.
//
// It records nothing, keeps no time and imports no OpenTelemetry: its init would be paid at every start. An exporter
// converts without copying text, as the types are the same underneath:
//
//	otel.NewSpanContext(otel.SpanContextConfig{
//		TraceID: otel.TraceID(s.TraceID), SpanID: otel.SpanID(s.SpanID), TraceFlags: otel.TraceFlags(s.Flags),
//		TraceState: state, // otel.ParseTraceState(s.State.String())
//	})
//
// What it does not protect against. An agent may write any traceparent into its requests. The proxy knows whose span a
// connection belongs to and overwrites the headers (Inject); it must not Continue an agent's claim. A tracestate goes to
// whom a call goes to: nothing secret may be put there.
package trace
