// SPDX-License-Identifier: Apache-2.0

package otel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	api "go.opentelemetry.io/otel/trace"

	"agentrun/internal/upstream"
	"agentrun/telemetry/trace"
)

// Options of New.
type Options struct {
	// Secret resolves names of the section secrets:.
	Secret func(name string) (string, bool)
	// Version of this program, for the collector.
	Version string

	exporter sdk.SpanExporter // tests
	queue    int
}

// Tracer makes spans. Nil, and one without an endpoint, make spans that are only ids.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   api.Tracer
	queue    *queue
	sample   float64
}

// New reads what the configuration names (the CA file, secrets), so it comes before confine.Drop. It connects to nothing.
func New(c Config, o Options) (*Tracer, error) {
	if c.OTLP.Endpoint == "" && o.exporter == nil {
		return &Tracer{}, nil
	}
	if err := c.OTLP.check(); err != nil {
		return nil, err
	}
	timeout := c.OTLP.Timeout
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	exporter := o.exporter
	if exporter == nil {
		var err error
		if exporter, err = newExporter(c.OTLP, timeout, o.Secret); err != nil {
			return nil, err
		}
	}
	if o.queue == 0 {
		o.queue = queueSize
	}
	t := &Tracer{queue: newQueue(exporter, o.queue, timeout), sample: c.OTLP.sample()}
	// Its own provider, not the global one, and a resource of exactly this: the SDK's default tells command line and host.
	t.provider = sdk.NewTracerProvider(sdk.WithSpanProcessor(t.queue), sdk.WithIDGenerator(givenIDs{}), sdk.WithSampler(sdk.AlwaysSample()),
		sdk.WithResource(resource.NewSchemaless(attribute.String("service.name", "agentrun-gateway"), attribute.String("service.version", o.Version))))
	t.tracer = t.provider.Tracer("agentrun")
	return t, nil
}

func newExporter(c OTLP, timeout time.Duration, secret func(string) (string, bool)) (sdk.SpanExporter, error) {
	u, err := c.url()
	if err != nil {
		return nil, fmt.Errorf("telemetry.otlp.endpoint: %w", err)
	}
	headers, err := c.resolve(secret)
	if err != nil {
		return nil, err
	}
	roots, err := upstream.Roots(c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("telemetry.otlp: %w", err)
	}
	client := upstream.Client(upstream.Options{AllowPrivate: true, Roots: roots, Timeout: timeout, MaxHeader: 16 << 10})
	client.Timeout = timeout
	// Headers are always given, or the SDK would take OTEL_EXPORTER_OTLP_HEADERS of the environment. No retries: a batch that
	// waits for a collector holds up those behind it.
	return otlptracehttp.New(context.Background(), otlptracehttp.WithEndpointURL(u.String()), otlptracehttp.WithHTTPClient(client), otlptracehttp.WithHeaders(headers),
		otlptracehttp.WithCompression(otlptracehttp.GzipCompression), otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: false}), otlptracehttp.WithMaxResponseSize(64<<10))
}

func (o OTLP) resolve(secret func(string) (string, bool)) (map[string]string, error) {
	headers := map[string]string{}
	for name, h := range o.Headers {
		if headers[name] = h.Value; h.Secret == "" {
			continue
		}
		if secret == nil {
			return nil, errors.New("telemetry.otlp.headers: no secrets were given")
		}
		value, ok := secret(h.Secret)
		if !ok {
			return nil, fmt.Errorf("telemetry.otlp.headers.%s: no secret %.64q", name, h.Secret)
		}
		headers[name] = value
	}
	return headers, nil
}

// Dropped is how many spans were not exported so far.
func (t *Tracer) Dropped() int64 {
	if t == nil || t.queue == nil {
		return 0
	}
	return t.queue.dropped.Load()
}

// Shutdown sends what is queued, until ctx ends. Spans that end later are dropped.
func (t *Tracer) Shutdown(ctx context.Context) error {
	if t == nil || t.provider == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}

// chosen decides by the trace's id alone, so that every process of the node agrees on a run. Ids that didn't come from
// telemetry/trace may have their randomness in the last 7 bytes only (W3C Trace Context, Level 2).
func (t *Tracer) chosen(id trace.TraceID) bool {
	return float64(binary.BigEndian.Uint64(id[8:])<<8>>11)/(1<<53) < t.sample
}

// givenIDs gives the SDK the ids that telemetry/trace made, so that headers, records and spans have the same.
type givenIDs struct{}

type idKey struct{}

func idsIn(ctx context.Context) trace.Span {
	s, _ := ctx.Value(idKey{}).(trace.Span)
	return s
}

// NewIDs of sdk.IDGenerator.
func (givenIDs) NewIDs(ctx context.Context) (api.TraceID, api.SpanID) {
	s := idsIn(ctx)
	return api.TraceID(s.TraceID), api.SpanID(s.SpanID)
}

// NewSpanID of sdk.IDGenerator.
func (givenIDs) NewSpanID(ctx context.Context, _ api.TraceID) api.SpanID {
	return api.SpanID(idsIn(ctx).SpanID)
}
