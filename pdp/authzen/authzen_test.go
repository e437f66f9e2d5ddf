// SPDX-License-Identifier: Apache-2.0

package authzen

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/pdp"
	"agentrun/rings"
)

func request() pdp.Request {
	return pdp.Request{
		Subject: pdp.Subject{ID: "agent-1", Type: pdp.Agent}, TeamID: "red", Action: pdp.ToolAction("math"),
		Resource: pdp.Resource{ID: "room-7", TeamID: "red", Mode: pdp.Public}, KeyID: "key-1",
		Context: pdp.Context{
			Ring: rings.Sandbox, RequiredRing: rings.Sandbox, Plan: "freemium", Role: "analyst", KeyValid: true,
			Capabilities: []string{pdp.ToolAction("math")}, Tool: pdp.Tool{Category: "A"},
			Input: pdp.Clean, Quota: pdp.Quota{Used: 1, Limit: 2},
		},
	}
}

// serve starts a PDP and returns a client of it. The time limit is wide: only tests of the limit itself run into it.
func serve(t *testing.T, h http.HandlerFunc, change ...func(*Options)) *Client {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return client(t, s.URL, change...)
}

func client(t *testing.T, url string, change ...func(*Options)) *Client {
	t.Helper()
	o := Options{URL: url, Timeout: MaxTimeout}
	for _, c := range change {
		c(&o)
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func says(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		_, _ = io.WriteString(w, text)
	}
}

func TestM10AuthZENRequest(t *testing.T) {
	var got map[string]any
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/tenant/access/v1/evaluation" || r.Header.Get("Content-Type") != "application/json" || r.Header.Get("Authorization") != "Bearer s3cret" {
			t.Errorf("got %s %s %v", r.Method, r.URL, r.Header)
		}
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
			t.Error(err)
		}
		says(`{"decision":true}`)(w, r)
	}, func(o *Options) { o.URL += "/tenant/"; o.Token = "s3cret" })
	if d := c.Decide(t.Context(), request()); !d.Allowed() {
		t.Errorf("got %+v", d)
	}
	var want map[string]any
	if err := json.Unmarshal([]byte(`{
		"subject": {"type": "agent", "id": "agent-1", "properties": {"team_id": "red", "role": "analyst", "key_id": "key-1"}},
		"action": {"name": "tool.math.invoke"},
		"resource": {"type": "resource", "id": "room-7", "properties": {"team_id": "red", "mode": "public"}},
		"context": {"ring": 3, "required_ring": 3, "risk": 0, "plan": "freemium", "role": "analyst", "key_valid": true, "keyless": false,
			"capabilities": ["tool.math.invoke"], "tool": {"category": "A", "plaintext_free": false},
			"input": "clean", "quota": {"used": 1, "limit": 2}}}`), &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestM10AuthZENAnswers(t *testing.T) {
	cases := map[string]rings.Code{
		`{"decision":true}`: pdp.CodeOK,
		`{"decision":true,"context":{"reason":"rule 5"}}`:          pdp.CodeOK,
		`{"decision":true,"context":null,"trace":"x"}`:             pdp.CodeOK,
		`{"decision":false}`:                                       pdp.CodeRBACDenied,
		`{"decision":false,"context":{"reason":"quota_exceeded"}}`: pdp.CodeQuotaExceeded,
		`{"decision":false,"context":{"reason":"ok"}}`:             pdp.CodeRBACDenied,
		`{"decision":false,"context":{"reason":7}}`:                pdp.CodeRBACDenied,
		`{"decision":false,"context":"no"}`:                        pdp.CodeRBACDenied,
		`{"decision":true,"context":{"reason":"acl_block"}}`:       pdp.CodeMalformed,
		`{"decision":true,"context":{"severity":"critical"}}`:      pdp.CodeMalformed,
		`{"decision":false,"context":{"severity":"critical"}}`:     pdp.CodeRBACDenied,
		`{"decision":"true"}`:                                      pdp.CodeMalformed,
		`{"decision":1}`:                                           pdp.CodeMalformed,
		`{"decision":null}`:                                        pdp.CodeMalformed,
		`{"Decision":true}`:                                        pdp.CodeMalformed,
		`{"decision":false,"decision":true}`:                       pdp.CodeMalformed,
		`{"decision":true}{"decision":false}`:                      pdp.CodeMalformed,
		`{}`:                                                       pdp.CodeMalformed,
		`[{"decision":true}]`:                                      pdp.CodeMalformed,
		`true`:                                                     pdp.CodeMalformed,
		``:                                                         pdp.CodeMalformed,
		`<html>`:                                                   pdp.CodeMalformed,
		`{"decision":true,"x":"` + strings.Repeat("x", MaxAnswer) + `"}`: pdp.CodeMalformed,
		`{"decision":true` + strings.Repeat(" ", MaxAnswer) + `}`:        pdp.CodeMalformed,
	}
	for text, want := range cases {
		d := serve(t, says(text)).Decide(t.Context(), request())
		if d.Code != want || d.Allowed() != (want == pdp.CodeOK) || (d.Cause == nil) != (want != pdp.CodeMalformed) {
			t.Errorf("%.60s: got %+v, want %s", text, d, want)
		}
	}
}

func TestM9RemoteOddHeads(t *testing.T) {
	var elsewhere atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		elsewhere.Add(1)
		says(`{"decision":true}`)(w, r)
	}))
	defer other.Close()
	yes := says(`{"decision":true}`)
	for name, h := range map[string]http.HandlerFunc{
		"500": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(500)
			_, _ = io.WriteString(w, `{"decision":true}`)
		},
		"201": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(201)
			_, _ = io.WriteString(w, `{"decision":true}`)
		},
		"302": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, http.StatusFound) },
		"307": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		},
		"text": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"decision":true}`) },
		"gzipped": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			says("\x1f\x8b\x08")(w, r)
		},
	} {
		if d := serve(t, h).Decide(t.Context(), request()); d.Code != pdp.CodeMalformed || d.Allowed() {
			t.Errorf("%s: got %+v, want %s", name, d, pdp.CodeMalformed)
		}
	}
	if elsewhere.Load() != 0 {
		t.Error("a redirect was followed")
	}
	big := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Big", strings.Repeat("x", 64<<10))
		yes(w, r)
	}
	if d := serve(t, big).Decide(t.Context(), request()); d.Allowed() {
		t.Errorf("with a head of 64 KiB: %+v", d)
	}
}

// THREATS, policy: the PDP is down, slow, or drops the line.
func TestM9RemoteDownOrSlow(t *testing.T) {
	// The server sees that the client has gone only once the request is read.
	wait := func(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body); <-r.Context().Done() }
	hang := func(_ http.ResponseWriter, r *http.Request) { wait(r) }
	halfway := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"decision":true`)
		w.(http.Flusher).Flush()
		wait(r)
	}
	cut := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, `{"decision":true}`)
	}
	soon := func(o *Options) { o.Timeout = 30 * time.Millisecond }
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for name, c := range map[string]struct {
		c    *Client
		want rings.Code
	}{
		"down":      {client(t, gone.URL), pdp.CodeUnavailable},
		"hangs":     {serve(t, hang, soon), pdp.CodeTimeout},
		"half":      {serve(t, halfway, soon), pdp.CodeTimeout},
		"cut short": {serve(t, cut), pdp.CodeUnavailable},
		"panics":    {serve(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), pdp.CodeUnavailable},
		"zero":      {&Client{}, pdp.CodeUnavailable},
		"nil":       {nil, pdp.CodeUnavailable},
	} {
		if d := c.c.Decide(t.Context(), request()); d.Code != c.want || d.Allowed() {
			t.Errorf("%s: got %+v, want %s", name, d, c.want)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if d := serve(t, hang).Decide(ctx, request()); d.Code != pdp.CodeTimeout {
		t.Errorf("the caller's time is up: got %+v", d)
	}
}

// THREATS, policy: the PDP says yes to everything, but the ring says no; and so do the guards of the engine before it.
func TestM9RemoteYesIsNotEnough(t *testing.T) {
	var asked atomic.Int32
	remote := serve(t, func(w http.ResponseWriter, r *http.Request) { asked.Add(1); says(`{"decision":true}`)(w, r) })
	engine, err := pdp.NewEngine(pdp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	both := pdp.Every(engine, remote)
	r := request()
	r.Context.RequiredRing = rings.Standard
	for _, d := range []pdp.Decider{remote, both} {
		if got := d.Decide(t.Context(), r); got.Code != rings.CodeInsufficientRing {
			t.Errorf("got %+v", got)
		}
	}
	r = request()
	r.Context.Capabilities = nil
	if got := both.Decide(t.Context(), r); got.Code != pdp.CodeCapabilityMissing {
		t.Errorf("got %+v", got)
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("the remote was asked %d times about what is refused here", n)
	}
	if got := both.Decide(t.Context(), request()); !got.Allowed() {
		t.Errorf("got %+v", got)
	}
}

func TestM10RemoteInFlight(t *testing.T) {
	var waiting sync.WaitGroup
	waiting.Add(2)
	release := make(chan struct{})
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		waiting.Done()
		<-release
		says(`{"decision":true}`)(w, r)
	}, func(o *Options) { o.MaxInFlight = 2 })
	var done sync.WaitGroup
	for i := range 2 {
		r := request()
		r.Resource.ID = fmt.Sprint("room-", i)
		done.Go(func() {
			if d := c.Decide(context.Background(), r); !d.Allowed() {
				t.Errorf("got %+v", d)
			}
		})
	}
	waiting.Wait()
	if d := c.Decide(t.Context(), request()); d.Code != pdp.CodeUnavailable {
		t.Errorf("the third: got %+v, want %s", d, pdp.CodeUnavailable)
	}
	close(release)
	done.Wait()
}

func TestM10Cache(t *testing.T) {
	var asked atomic.Int32
	answer := `{"decision":true}`
	now := time.Unix(1000, 0)
	count := func(w http.ResponseWriter, r *http.Request) { asked.Add(1); says(answer)(w, r) }
	clocked := func(o *Options) { o.Clock = func() time.Time { return now } }
	want := func(c *Client, r pdp.Request, n int32, code rings.Code) {
		t.Helper()
		if d := c.Decide(t.Context(), r); d.Code != code || asked.Load() != n {
			t.Errorf("got %s after asking %d times, want %s after %d", d.Code, asked.Load(), code, n)
		}
	}
	c := serve(t, count, clocked)
	want(c, request(), 1, pdp.CodeOK)
	want(c, request(), 2, pdp.CodeOK) // allowances aren't kept by default
	answer = `{"decision":false}`
	want(c, request(), 3, pdp.CodeRBACDenied)
	answer = `{"decision":true}`
	want(c, request(), 3, pdp.CodeRBACDenied)
	other := request()
	other.Context.Quota.Used = 0
	want(c, other, 4, pdp.CodeOK) // any field makes another request
	now = now.Add(DefaultDenyTTL)
	want(c, request(), 5, pdp.CodeOK)
	answer = `?`
	want(c, request(), 6, pdp.CodeMalformed)
	want(c, request(), 7, pdp.CodeMalformed)

	asked.Store(0)
	answer = `{"decision":true}`
	c = serve(t, count, clocked, func(o *Options) { o.AllowTTL, o.DenyTTL, o.CacheSize = time.Minute, -1, 2 })
	want(c, request(), 1, pdp.CodeOK)
	want(c, request(), 1, pdp.CodeOK)
	now = now.Add(-time.Second) // set back: the age isn't known
	want(c, request(), 2, pdp.CodeOK)
	for i := range 2 {
		other.Resource.ID = fmt.Sprint("r", i)
		want(c, other, int32(3+i), pdp.CodeOK)
	}
	want(c, request(), 5, pdp.CodeOK) // pushed out by the two others
	want(c, other, 5, pdp.CodeOK)
	if n := c.cache.used.Len(); n != 2 || len(c.cache.found) != 2 {
		t.Errorf("%d answers are kept, want 2", n)
	}
}

func TestM10RemoteOptions(t *testing.T) {
	for _, url := range []string{
		"", "pdp", "http://pdp.example.org", "http://localhost", "http://127.0.0.1.example.org", "ftp://127.0.0.1", "https://u:p@pdp", "https://pdp?x=1", "https://pdp#x",
		"https:pdp", "http://10.0.0.1", "https://%zz",
	} {
		if c, err := New(Options{URL: url}); err == nil || c != nil {
			t.Errorf("%q is taken", url)
		}
	}
	for url, want := range map[string]string{
		"https://pdp":                          "https://pdp/access/v1/evaluation",
		"https://pdp:8443/a/":                  "https://pdp:8443/a/access/v1/evaluation",
		"https://pdp/access/v1/evaluation":     "https://pdp/access/v1/evaluation",
		"http://[::1]:80":                      "http://[::1]:80/access/v1/evaluation",
		"http://[::ffff:127.0.0.1]/access/v1/": "http://[::ffff:127.0.0.1]/access/v1/access/v1/evaluation",
	} {
		c, err := New(Options{URL: url})
		if err != nil || c.url != want {
			t.Errorf("%s: got %+v, %v, want %s", url, c, err, want)
		}
	}
	for _, o := range []Options{
		{Timeout: MaxTimeout + 1}, {Timeout: -1}, {AllowTTL: MaxTTL + 1}, {AllowTTL: -1}, {DenyTTL: MaxTTL + 1},
		{CacheSize: -1}, {CacheSize: MaxCacheSize + 1}, {MaxInFlight: -1}, {Token: "a\nHost: b"},
	} {
		o.URL = "https://pdp"
		if _, err := New(o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
}

func TestH23RemoteSeverity(t *testing.T) {
	for text, want := range map[string]bool{
		`{"decision":false,"context":{"severity":"critical"}}`:                             true,
		`{"decision":false,"context":{"severity":"critical","reason":"quota_exceeded"}}`:   true,
		`{"decision":false,"context":{"severity":"critical","reason":7}}`:                  true,
		`{"decision":false,"context":{"severity":"high"}}`:                                 false,
		`{"decision":false,"context":{"severity":"Critical"}}`:                             false,
		`{"decision":false,"context":{"severity":["critical"]}}`:                           false,
		`{"decision":false,"context":{"severity":"low","severity":"critical"}}`:            false,
		`{"decision":false,"severity":"critical"}`:                                         false,
		`{"decision":true,"context":{"severity":"critical"}}`:                              false,
		`{"decision":false,"context":"critical"}`:                                          false,
		`{"decision":false,"context":{"severity":"critical"}` + strings.Repeat(" ", 1<<20): false,
	} {
		if d := serve(t, says(text)).Decide(t.Context(), request()); d.Critical != want || d.Allowed() {
			t.Errorf("%.80s: got %+v, want critical %v", text, d, want)
		}
	}
}

func FuzzM10AuthZENAnswer(f *testing.F) {
	f.Add([]byte(`{"decision":true}`))
	f.Add([]byte(`{"decision":false,"context":{"reason":"acl_block"}}`))
	f.Add([]byte(`{"decision":"true"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := decode(text)
		if err != nil && (d.Allowed() || d.Critical) || err == nil && d.Code == "" || d.Allowed() && d.Critical {
			t.Fatalf("got %+v, %v", d, err)
		}
		if !d.Allowed() {
			return
		}
		var loose map[string]any
		if err := json.Unmarshal(text, &loose); err != nil || loose["decision"] != true {
			t.Fatalf("allowed by %q", text)
		}
	})
}

func BenchmarkRemoteLoopback(b *testing.B) {
	s := httptest.NewServer(says(`{"decision":true}`))
	defer s.Close()
	c, err := New(Options{URL: s.URL, Timeout: MaxTimeout})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if d := c.Decide(b.Context(), request()); !d.Allowed() {
			b.Fatal(d)
		}
	}
}
