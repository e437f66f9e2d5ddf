// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"agentrun/pdp"
	"agentrun/rings"
	"agentrun/telemetry/scrape"
	"agentrun/toolproxy/egress"
	"agentrun/toolproxy/gate"
)

func scraped(t testing.TB, m *Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func everything(m *Metrics, tool string, code rings.Code) {
	m.Tool(tool, code, time.Millisecond)
	m.Denied(KindEgress, code)
	m.Denied(Kind(tool), code)
	m.Decided(code, time.Microsecond)
	m.Connected(code, 10, 20)
	m.Looked(code)
	m.Tokens(3, 4)
	m.Cost(1_500_000)
	done := m.Waiting()
	m.Waiting()
	done()
	done()
}

func TestM20Metrics(t *testing.T) {
	m := New(Options{Tools: []string{"math"}, DroppedSpans: func() int64 { return 7 }})
	everything(m, "math", gate.CodeToolTimeout)
	out := scraped(t, m)
	for _, want := range []string{
		`agentrun_tool_calls_total{code="tool_timeout",tool="math"} 1`,
		`agentrun_denials_total{code="tool_timeout",kind="egress"} 1`,
		`agentrun_tokens_total{direction="completion"} 4`, `agentrun_egress_bytes_total{direction="sent"} 10`, `agentrun_egress_connections_total{code="tool_timeout"} 1`,
		`agentrun_cost_total 1.5`, `agentrun_approvals_pending 1`,
		`agentrun_policy_decision_seconds_bucket{le="0.003"} 1`, `agentrun_policy_decisions_total{code="tool_timeout"} 1`, `agentrun_tool_seconds_count{tool="math"} 1`,
		`agentrun_dns_queries_total{code="tool_timeout"} 1`, `agentrun_spans_dropped_total 7`,
	} {
		if !strings.Contains(out, want+"\n") {
			t.Errorf("no %s in\n%s", want, out)
		}
	}
	var none *Metrics
	everything(none, "math", rings.CodeOK) // and no panic
}

// An agent that calls ever new tools, and upstreams that make up codes, add no series and write nothing of theirs.
func TestThreatToolProxyMetricsStayBounded(t *testing.T) {
	m := New(Options{Tools: []string{"math"}})
	everything(m, "math", rings.CodeOK)
	everything(m, "unknown", "unknown")
	before := strings.Count(scraped(t, m), "\n")
	for i := range 1000 {
		everything(m, fmt.Sprintf("secret-%d\n# HELP", i), rings.Code(fmt.Sprintf("secret_code_%d", i)))
	}
	m.Tokens(-5, -5)
	m.Cost(-1)
	m.Connected(rings.CodeOK, -1, -1)
	out := scraped(t, m)
	if got := strings.Count(out, "\n"); got != before || strings.Contains(out, "secret") {
		t.Errorf("got %d lines, want %d", got, before)
	}
	many := make([]string, 2*maxTools)
	for i := range many {
		many[i] = fmt.Sprint("tool-", i)
	}
	m = New(Options{Tools: many})
	for _, name := range many {
		m.Tool(name, rings.CodeOK, 0)
	}
	if got := strings.Count(scraped(t, m), "agentrun_tool_calls_total{"); got != maxTools+1 {
		t.Errorf("got %d tools, want %d", got, maxTools+1)
	}
}

func TestServe(t *testing.T) {
	m := New(Options{})
	l, err := scrape.Listen("127.0.0.1:0", false)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- m.Serve(l) }()
	for path, want := range map[string]int{"/metrics": 200, "/": 404, "/metrics/": 404, "/debug/pprof/": 404, "/%6detrics": 200} {
		resp, err := http.Get("http://" + l.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: got %d, want %d", path, resp.StatusCode, want)
		}
	}
	resp, err := http.Post("http://"+l.Addr().String()+"/metrics", "text/plain", nil)
	if err != nil || resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: got %v, %v", resp, err)
	}
	resp.Body.Close()
	l.Close()
	if err := <-ended; err != nil && !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

// A-L6: a name that was made to mean a loopback address isn't served there.
func TestM20RebindingIsRefused(t *testing.T) {
	m := New(Options{})
	for _, c := range []struct {
		at   string
		host string
		want int
	}{
		{"127.0.0.1:9464", "127.0.0.1:9464", 200},
		{"127.0.0.1:9464", "127.0.0.1", 200},
		{"127.0.0.1:9464", "localhost:9464", 200},
		{"127.0.0.1:9464", "LOCALHOST", 200},
		{"[::1]:9464", "[::1]:9464", 200},
		{"[::1]:9464", "[::1]", 200},
		{"127.0.0.1:9464", "evil.example:9464", 403},
		{"127.0.0.1:9464", "evil.example", 403},
		{"127.0.0.1:9464", "localhost.evil.example", 403},
		{"127.0.0.1:9464", "127.0.0.1.evil.example:9464", 403},
		{"127.0.0.1:9464", "localhost.:9464", 403},
		{"127.0.0.1:9464", "evil.example@127.0.0.1", 403},
		{"127.0.0.1:9464", "", 403},
		{"[::ffff:127.0.0.1]:9464", "evil.example", 403},
		{"10.0.0.1:9464", "node1.example:9464", 200}, // only where the configuration says anywhere
	} {
		at, err := net.ResolveTCPAddr("tcp", c.at)
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.Host = c.host
		w := httptest.NewRecorder()
		if guard(at, m.handler()).ServeHTTP(w, r); w.Code != c.want {
			t.Errorf("at %s with Host %q: got %d, want %d", c.at, c.host, w.Code, c.want)
		}
	}
}

func BenchmarkTool(b *testing.B) {
	m := New(Options{Tools: []string{"math"}})
	b.ReportAllocs()
	for b.Loop() {
		m.Tool("math", rings.CodeOK, time.Millisecond)
	}
}

func BenchmarkToolParallel(b *testing.B) {
	m := New(Options{Tools: []string{"math"}})
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			m.Tool("math", rings.CodeOK, time.Millisecond)
		}
	})
}

func BenchmarkToolOff(b *testing.B) {
	var m *Metrics
	for b.Loop() {
		m.Tool("math", rings.CodeOK, time.Millisecond)
	}
}

func BenchmarkScrape(b *testing.B) {
	m := New(Options{Tools: []string{"math"}})
	everything(m, "math", rings.CodeOK)
	for b.Loop() {
		scraped(b, m)
	}
}

// The node's counters know every code that a gateway may tell of.
func TestM20NodeKnowsTheCodes(t *testing.T) {
	for _, c := range []rings.Code{
		rings.CodeOK,
		gate.CodeToolUnknown, gate.CodeToolRestricted, gate.CodeCapabilityMissing, gate.CodeToolTimeout, gate.CodeToolFailed,
		gate.CodeBadArguments, gate.CodeBadRequest, gate.CodeRouteForbidden, gate.CodeNotFound, gate.CodeTooLarge,
		gate.CodeRateLimited, gate.CodeConcurrency, gate.CodeSteps, gate.CodeQuota, gate.CodeCost, gate.CodeApproval,
		gate.CodeQuarantined, gate.CodeStopped, gate.CodeIntent, gate.CodeRing, gate.CodeConfidential, gate.CodeSuspicious, gate.CodeUnavailable, gate.CodeCanceled,
		pdp.CodeKeyInvalid, pdp.CodeNoRole, pdp.CodeCapabilityMissing, pdp.CodeRBACDenied, pdp.CodeACLBlock,
		pdp.CodeUnavailable, pdp.CodeTimeout, pdp.CodeMalformed, pdp.CodeError,
		egress.CodeEgressDenied, rings.CodeInsufficientRing, rings.CodeRing0Forbidden, rings.CodeRateLimited,
	} {
		if code(c) != string(c) {
			t.Errorf("%s would be counted as other", c)
		}
	}
}
