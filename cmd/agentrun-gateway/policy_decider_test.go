// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"agentrun/pdp"
)

func goodRequest(t testing.TB) pdp.Request {
	t.Helper()
	r, err := pdp.DecodeRequest([]byte(policyRequest))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func decider(t testing.TB, section, override string, secret func(string) (string, bool), log *slog.Logger) *policyDecider {
	t.Helper()
	c, err := parsePolicyConfig(divide(conf("policy: " + section)).Policy)
	if err != nil {
		t.Fatal(err)
	}
	d, err := newPolicyDecider(c, override, secret, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

const noMath = `@id("no-math") @reason("rbac_denied") forbid (principal, action == Action::"tool.invoke", resource == Tool::"math");`

func TestM9DeciderOfGateway(t *testing.T) {
	r := goodRequest(t)
	if d := decider(t, "", "", nil, nil).Decide(t.Context(), r); !d.Allowed() {
		t.Errorf("built-in: got %+v", d)
	}
	file := policyFile(t, "p.cedar", noMath)
	if d := decider(t, "{file: "+file+"}", "", nil, nil).Decide(t.Context(), r); d.Policy != "no-math" {
		t.Errorf("file: got %+v", d)
	}
	d := decider(t, "", file, nil, nil)
	if got := d.Decide(t.Context(), r); got.Policy != "no-math" {
		t.Errorf("--policy: got %+v", got)
	}
	if diff := cmp.Diff([]string{filepath.Dir(file)}, d.Readable()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{filepath.Dir(file)}, decider(t, "{dir: "+filepath.Dir(file)+"}", "", nil, nil).Readable()); diff != "" {
		t.Error(diff)
	}
	r.KeyID = ""
	if got := decider(t, "", "", nil, nil).Decide(t.Context(), r); got.Code != pdp.CodeKeyInvalid {
		t.Errorf("got %v, want %v", got.Code, pdp.CodeKeyInvalid)
	}
}

func TestM10RemoteOfGateway(t *testing.T) {
	var mu sync.Mutex
	answer, auth := `{"decision":true}`, ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		auth = r.Header.Get("Authorization")
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answer)
	}))
	defer server.Close()
	section := "{remote: {url: '" + server.URL + "', deny_ttl: 1ms, timeout: 2s, token: {secret: pdp}}}"
	d := decider(t, section, "", func(name string) (string, bool) { return "t0ken", name == "pdp" }, nil)
	if got := d.Decide(t.Context(), goodRequest(t)); !got.Allowed() || auth != "Bearer t0ken" {
		t.Errorf("got %+v, %q", got, auth)
	}
	mu.Lock()
	answer = `{"decision":false,"context":{"reason":"quota_exceeded"}}`
	mu.Unlock()
	if got := d.Decide(t.Context(), goodRequest(t)); got.Allowed() || got.Code != pdp.CodeQuotaExceeded {
		t.Errorf("got %+v", got)
	}
	server.Close()
	r := goodRequest(t)
	r.Resource.ID = "another"
	if got := d.Decide(t.Context(), r); got.Allowed() || got.Code != pdp.CodeUnavailable {
		t.Errorf("PDP down: got %+v", got)
	}
	c, err := parsePolicyConfig(divide(conf("policy: " + section)).Policy)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newPolicyDecider(c, "", noEnv, nil); err == nil || !strings.Contains(err.Error(), `no secret "pdp"`) {
		t.Errorf("got %v", err)
	}
}

// The last valid policies go on, and the log says so.
func TestThreatPolicyHotReload(t *testing.T) {
	file := policyFile(t, "p.cedar", noMath)
	var out bytes.Buffer
	d := decider(t, "{file: "+file+"}", "", nil, slog.New(slog.NewJSONHandler(&out, nil)))
	rewrite := func(text string) {
		if err := os.WriteFile(file+".new", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
		d.engines[0].Poll()
	}
	rewrite("forbid (")
	if got := d.Decide(t.Context(), goodRequest(t)); got.Policy != "no-math" || !strings.Contains(out.String(), "policies refused") {
		t.Errorf("got %+v, log %s", got, out.String())
	}
	rewrite(strings.ReplaceAll(noMath, "math", "web"))
	if got := d.Decide(t.Context(), goodRequest(t)); !got.Allowed() {
		t.Errorf("got %+v", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d.Watch(ctx) // ends
}

func TestPolicyConfig(t *testing.T) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(policySchema))
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
		"{}": true, "{file: /p}": true, "{dir: /p}": true, "{file: /p, dir: /q}": false, "{file: p}": false, "{path: /p}": false,
		"{remote: {url: 'https://pdp.example', timeout: 50ms, allow_ttl: 1s, deny_ttl: 1s, cache_size: 10, ca_file: /ca, token: {secret: x}}}": true,
		"{remote: {}}": false, "{remote: {url: 'https://x', token: {}}}": false, "{remote: {url: 'https://x', token: abc}}": false, "{remote: {url: 'https://x', cache_size: 100000}}": false,
	} {
		var v any
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		b, _ := json.Marshal(v)
		v, _ = jsonschema.UnmarshalJSON(bytes.NewReader(b))
		_, perr := parsePolicyConfig(divide(conf("policy: " + text)).Policy)
		if serr := schema.Validate(v); (serr == nil) != good || (perr == nil) != good {
			t.Errorf("%s: schema %v, parser %v, want both to take it: %v", text, serr, perr, good)
		}
	}
	for _, text := range []string{"{remote: {url: 'http://pdp.example'}}", "{remote: {url: 'https://x', timeout: 3s}}"} {
		if _, err := parsePolicyConfig(divide(conf("policy: " + text)).Policy); err == nil || !strings.Contains(err.Error(), "policy.remote") {
			t.Errorf("%s: got %v", text, err)
		}
	}
}

// BenchmarkDecide is one decision as a call has it, on one goroutine and with all processors busy.
func BenchmarkDecide(b *testing.B) {
	d, r := decider(b, "", "", nil, nil), goodRequest(b)
	report := func(b *testing.B, took []time.Duration) {
		if slices.Sort(took); len(took) > 0 {
			for _, p := range []int{50, 95, 99} {
				b.ReportMetric(float64(took[len(took)*p/100].Nanoseconds())/1e3, "p"+map[int]string{50: "50", 95: "95", 99: "99"}[p]+"-µs")
			}
		}
	}
	b.Run("one", func(b *testing.B) {
		var took []time.Duration
		for b.Loop() {
			start := time.Now()
			d.Decide(b.Context(), r)
			took = append(took, time.Since(start))
		}
		report(b, took)
	})
	b.Run("full load", func(b *testing.B) {
		var mu sync.Mutex
		var all []time.Duration
		b.SetParallelism(32) // 64 calls at once on 2 processors
		b.RunParallel(func(pb *testing.PB) {
			var took []time.Duration
			for pb.Next() {
				start := time.Now()
				d.Decide(b.Context(), r)
				took = append(took, time.Since(start))
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took...)
		})
		report(b, all)
	})
}
