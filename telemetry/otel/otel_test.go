// SPDX-License-Identifier: Apache-2.0

package otel

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.yaml.in/yaml/v3"

	"agentrun/internal/read"
	"agentrun/rings"
	"agentrun/telemetry/runlog"
	"agentrun/telemetry/trace"
)

// section is the section telemetry: with that text.
func section(text string) *read.Node {
	return read.YAML(read.Source{Path: "telemetry", Max: 1 << 20}, []byte(text))
}

const example = `
otlp:
  endpoint: https://collector.example:4318
  headers: {authorization: {secret: otlp_token}, x-scope: {value: agents}}
  timeout: 5s
  sample: 0.25
metrics: {addr: "127.0.0.1:9464"}
logs: {retention: 24h, error_retention: 168h, sample: 0.1, level: info, mask_ips: true}
`

func TestParseConfig(t *testing.T) {
	c, err := ParseConfig(section(example))
	if err != nil {
		t.Fatal(err)
	}
	quarter, tenth := 0.25, 0.1
	want := Config{
		OTLP:    OTLP{Endpoint: "https://collector.example:4318", Headers: map[string]Header{"authorization": {Secret: "otlp_token"}, "x-scope": {Value: "agents"}}, Timeout: 5 * time.Second, Sample: &quarter},
		Metrics: Metrics{Addr: "127.0.0.1:9464"},
		Logs:    Logs{Policy: runlog.Policy{Keep: 24 * time.Hour, KeepErrors: 168 * time.Hour, Sample: &tenth}, Level: "info", MaskIPs: true},
	}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if c, err := ParseConfig(nil); err != nil || c.Logs.Policy != (runlog.Policy{}) || c.OTLP.Endpoint != "" {
		t.Errorf("empty: got %+v, %v", c, err)
	}
}

func TestM18M20ConfigRefusesNonsense(t *testing.T) {
	for text, want := range map[string]string{
		"oltp: {}": "telemetry.oltp: unknown key", "otlp: {endpoint: x, url: y}": "telemetry.otlp.url: unknown key", "otlp: {endpoint: 'http://collector.example'}": "only https may leave",
		"otlp: {endpoint: 'http://localhost:1'}": "only https", "otlp: {endpoint: 'ftp://x'}": "scheme", "otlp: {endpoint: 'https://user:secret@x'}": "without user",
		"otlp: {sample: 1}": "endpoint: missing", "otlp: {endpoint: 'https://x', sample: 2}": "0 to 1", "otlp: {endpoint: 'https://x', sample: .nan}": "want a decimal number",
		"otlp: {endpoint: 'https://x', timeout: 31s}": "up to 30s", "otlp: {endpoint: 'https://x', headers: {a: {}}}": "headers.a: want either",
		"otlp: {endpoint: 'https://x', headers: {a: {value: x, secret: y}}}": "want either", "otlp: {endpoint: 'https://x', headers: {'a b': {value: x}}}": "not a header",
		`otlp: {endpoint: 'https://x', headers: {a: {value: "x\r\ny"}}}`: "not a header", "metrics: {addr: '0.0.0.0:1'}": "not a loopback", "metrics: {anywhere: true}": "addr: missing",
		"logs: {retention: 23h}": "retention", "logs: {retention: 73h}": "retention", "logs: {retention: 72h, error_retention: 24h}": "keep errors", "logs: {sample: -1}": "0 to 1", "logs: {level: trace}": "level",
	} {
		if _, err := ParseConfig(section(text)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret@") {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
	if _, err := ParseConfig(section("metrics: {addr: '0.0.0.0:1', anywhere: true}")); err != nil {
		t.Error(err)
	}
}

func TestSchemaAgreesWithParser(t *testing.T) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("s.json", doc); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile("s.json")
	if err != nil {
		t.Fatal(err)
	}
	for text, good := range map[string]bool{
		example: true, "{}": true, "logs: {}": true, "metrics: {addr: ':1'}": true, "otlp: {endpoint: 'https://x', sample: 0}": true,
		"x: 1": false, "otlp: {endpoint: 'https://x', sample: 2}": false, "otlp: {sample: 1}": false, "logs: {level: trace}": false, "logs: {retention: 3}": false,
		"otlp: {endpoint: 'https://x', headers: {a: {}}}": false, "otlp: {endpoint: 'https://x', headers: {a: {value: x, secret: y}}}": false, "metrics: {anywhere: true}": false,
	} {
		var v any
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		b, _ := json.Marshal(v)
		v, _ = jsonschema.UnmarshalJSON(bytes.NewReader(b))
		_, perr := ParseConfig(section(text))
		if serr := schema.Validate(v); (serr == nil) != good || (perr == nil) != good {
			t.Errorf("%s: schema %v, parser %v, want both to take it: %v", text, serr, perr, good)
		}
	}
}

// collector is an exporter that keeps spans, or hangs, or refuses.
type collector struct {
	mu    sync.Mutex
	spans []sdk.ReadOnlySpan
	hang  bool
	err   error
}

func (c *collector) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	if c.hang {
		<-ctx.Done()
		return ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spans = append(c.spans, spans...)
	return c.err
}

func (c *collector) Shutdown(context.Context) error { return nil }

func newTracer(t testing.TB, c *collector, queue int) *Tracer {
	t.Helper()
	tracer, err := New(Config{}, Options{exporter: c, queue: queue})
	if err != nil {
		t.Fatal(err)
	}
	return tracer
}

func TestM20SpansPerRunAndCall(t *testing.T) {
	c := &collector{}
	tracer := newTracer(t, c, 0)
	parent := trace.New(true)
	run := tracer.Run(parent.Traceparent(), RunInfo{Run: "r1", Ring: rings.Ring(3)})
	call := run.Call(KindTool, "math\xff")
	header := http.Header{"Traceparent": {"00-11111111111111111111111111111111-1111111111111111-01"}, "tracestate": {"agent=claims"}}
	call.Inject(header)
	if diff := cmp.Diff(http.Header{"Traceparent": {call.IDs().Traceparent()}}, header); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	call.End(Outcome{Code: "tool_timeout", Tokens: 5})
	call.End(Outcome{})
	run.End(Outcome{Code: rings.CodeOK})
	if err := tracer.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(c.spans) != 2 || tracer.Dropped() != 0 {
		t.Fatalf("got %d spans, %d dropped", len(c.spans), tracer.Dropped())
	}
	gotCall, gotRun := c.spans[0], c.spans[1]
	if trace.TraceID(gotRun.SpanContext().TraceID()) != parent.TraceID || trace.SpanID(gotRun.SpanContext().SpanID()) != parent.SpanID || gotRun.Parent().IsValid() {
		t.Errorf("run's span is %v, want that of the supervisor, %v", gotRun.SpanContext(), parent)
	}
	if gotCall.Parent().SpanID() != gotRun.SpanContext().SpanID() || trace.SpanID(gotCall.SpanContext().SpanID()) != call.IDs().SpanID || call.IDs().ParentID != parent.SpanID {
		t.Errorf("call's span is %v within %v", gotCall.SpanContext(), gotCall.Parent())
	}
	if gotCall.Status().Code != codes.Error || gotCall.Status().Description != "" || gotRun.Status().Code == codes.Error {
		t.Errorf("got status %v and %v", gotCall.Status(), gotRun.Status())
	}
	keys := map[string]bool{}
	for _, a := range gotCall.Attributes() {
		keys[string(a.Key)] = true
	}
	want := map[string]bool{"agentrun.kind": true, "agentrun.name": true, "agentrun.code": true, "agentrun.cost": true, "agentrun.tokens": true, "agentrun.sent_bytes": true, "agentrun.received_bytes": true}
	if diff := cmp.Diff(want, keys); diff != "" {
		t.Errorf("attributes, -want +got:\n%s", diff)
	}
}

func TestM20WithoutEndpointSpansAreIDs(t *testing.T) {
	tracer, err := New(Config{}, Options{})
	if err != nil || tracer.provider != nil {
		t.Fatalf("got %+v, %v", tracer, err)
	}
	var none *Tracer
	for _, tr := range []*Tracer{tracer, none} {
		run := tr.Run("nonsense", RunInfo{})
		call := run.Call(KindLLM, "m")
		if !run.IDs().IsValid() || call.IDs().TraceID != run.IDs().TraceID || call.IDs().ParentID != run.IDs().SpanID || run.IDs().Flags&trace.Sampled != 0 {
			t.Errorf("got %v, %v", run.IDs(), call.IDs())
		}
		call.End(Outcome{})
		if err := tr.Shutdown(t.Context()); err != nil || tr.Dropped() != 0 {
			t.Error(err)
		}
	}
	var span *Span
	span.Call(KindTool, "x").End(Outcome{})
	h := http.Header{"Traceparent": {"x"}}
	if span.Inject(h); len(h) != 0 {
		t.Errorf("an agent's header stays: %v", h)
	}
}

func TestM20SamplingTakesWholeRuns(t *testing.T) {
	c := &collector{}
	tracer := newTracer(t, c, 0)
	tracer.sample = 0.5
	taken := 0
	for range 1000 {
		run := tracer.Run("", RunInfo{})
		call := run.Call(KindTool, "x")
		sampled := run.span != nil
		if (call.span != nil) != sampled || (call.IDs().Flags&trace.Sampled != 0) != sampled {
			t.Fatal("half a run")
		}
		if sampled {
			taken++
		}
	}
	if taken < 400 || taken > 600 {
		t.Errorf("got %d of 1000 runs, want about half", taken)
	}
	if unsampled := tracer.Run(trace.New(false).Traceparent(), RunInfo{}); unsampled.span != nil {
		t.Error("exported what the supervisor doesn't want exported")
	}
	_ = tracer.Shutdown(t.Context())
}

// A collector that hangs costs a call nothing; what doesn't fit is counted.
func TestThreatToolProxyHangingCollector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracer := newTracer(t, &collector{hang: true}, 10)
		run := tracer.Run("", RunInfo{})
		start := time.Now()
		for range batchSize + 200 {
			run.Call(KindTool, "x").End(Outcome{Code: rings.CodeOK})
		}
		if took := time.Since(start); took != 0 { // of the bubble's clock: nothing waited
			t.Errorf("calls waited %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_ = tracer.Shutdown(ctx)
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("shutdown took %v", took)
		}
		if got := tracer.Dropped(); got != batchSize+200 {
			t.Errorf("got %d dropped, want %d", got, batchSize+200)
		}
		run.End(Outcome{}) // after the end: dropped, no panic
	})
}

func TestM20ExporterSpeaksOTLP(t *testing.T) {
	got := make(chan *http.Request, 4)
	var size int
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		size = len(b)
		got <- r
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	defer server.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-env=leak")
	c, err := ParseConfig(section("otlp: {endpoint: '" + server.URL + "', headers: {Authorization: {secret: tok}}}"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(c, Options{Secret: func(string) (string, bool) { return "", false }}); err == nil || !strings.Contains(err.Error(), `no secret "tok"`) {
		t.Errorf("got %v, want that the secret is missing", err)
	}
	tracer, err := New(c, Options{Version: "1", Secret: func(name string) (string, bool) { return "Bearer s3cret", name == "tok" }})
	if err != nil {
		t.Fatal(err)
	}
	run := tracer.Run("", RunInfo{Run: "r"})
	run.End(Outcome{Code: rings.CodeOK})
	if err := tracer.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := <-got
	if r.URL.Path != "/v1/traces" || r.Header.Get("Authorization") != "Bearer s3cret" || r.Header.Get("X-Env") != "" || size == 0 {
		t.Errorf("got %s %v, %d bytes", r.URL, r.Header, size)
	}
	if tracer.Dropped() != 0 {
		t.Errorf("got %d dropped", tracer.Dropped())
	}
	// A collector that answers with an error drops what was sent.
	refused := &collector{err: errors.New("no")}
	tracer = newTracer(t, refused, 0)
	tracer.Run("", RunInfo{}).End(Outcome{})
	if _ = tracer.Shutdown(t.Context()); tracer.Dropped() != 1 {
		t.Errorf("got %d dropped, want 1", tracer.Dropped())
	}
}

func TestM18LoggerMasks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	logger, log, err := Logger(Logs{MaskIPs: true}, dir, "run-1", []string{"injected-credential"})
	if err != nil {
		t.Fatal(err)
	}
	logger.Info("call", "header", "Bearer abcdefgh1234567890xyzXYZ", "echo", "injected-credential", "peer", "192.0.2.7", "mail", "bob@example.org")
	logger.Debug("quiet")
	if err := log.Finish(runlog.Succeeded); err != nil {
		t.Errorf("got %v", err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "run-1.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"abcdefgh", "injected-credential", "192.0.2.7", "bob@", "quiet"} {
		if strings.Contains(string(b), secret) {
			t.Errorf("%q in %s", secret, b)
		}
	}
	if logger, log, err := Logger(Logs{}, "", "x", nil); err != nil || log != nil || logger == nil {
		t.Errorf("got %v, %v, %v", logger, log, err)
	}
	if _, _, err := Logger(Logs{Level: "x"}, dir, "y", nil); err == nil {
		t.Error("took a level that isn't one")
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add(example)
	f.Fuzz(func(t *testing.T, text string) {
		if c, err := ParseConfig(section(text)); err == nil && c.Logs.Policy.Validate() != nil {
			t.Errorf("took %q", text)
		}
	})
}

func BenchmarkCall(b *testing.B) {
	tracer := newTracer(b, &collector{}, 0)
	run := tracer.Run("", RunInfo{})
	b.ReportAllocs()
	for b.Loop() {
		run.Call(KindTool, "math").End(Outcome{Code: rings.CodeOK})
	}
}

func BenchmarkCallOff(b *testing.B) {
	tracer, _ := New(Config{}, Options{})
	run := tracer.Run("", RunInfo{})
	b.ReportAllocs()
	for b.Loop() {
		run.Call(KindTool, "math").End(Outcome{Code: rings.CodeOK})
	}
}
