// SPDX-License-Identifier: Apache-2.0

// Package trace names runs and calls and hands the names on, as W3C Trace Context says (M-20): in the header traceparent,
// and in TRACEPARENT in an agent's environment. A tracestate is never passed on: only vendors' collectors add one, and no
// run is begun by a request.
//
// Guarantees. What a parser accepts, the other side's accepts too: formatting gives back what was parsed, and nothing
// that isn't lower-case, complete and not zero is parsed. Ids are random (crypto/rand). Invalid values go nowhere.
//
//	run := trace.New(true)
//	env = append(env, "TRACEPARENT="+run.Traceparent())
//	call := run.Child()
//	call.Inject(req.Header)
//	logger.Info("call", "trace_id", call.TraceID)
//
// Errors wrap ErrMalformed, and have nothing of the input in them.
//
// It records nothing, keeps no time and imports no OpenTelemetry: its init would be paid at every start. An exporter
// converts without copying text, as the types are the same underneath:
//
//	otel.NewSpanContext(otel.SpanContextConfig{
//		TraceID: otel.TraceID(s.TraceID), SpanID: otel.SpanID(s.SpanID), TraceFlags: otel.TraceFlags(s.Flags),
//	})
//
// What it does not protect against. An agent may write any traceparent into its requests. The proxy knows whose span a
// connection belongs to and overwrites the header (Inject); it must not begin a span within an agent's claim.
package trace
