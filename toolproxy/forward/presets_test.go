// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"agentrun/rings"
	"agentrun/toolproxy/egress"
)

// M-8: each rule of a preset has its reason, reads and nothing else, is read itself, and is bounded both ways; the schema knows all.
func TestM8PresetsOnlyRead(t *testing.T) {
	s := schema(t)
	if len(presets()) != 5 {
		t.Errorf("%d presets", len(presets()))
	}
	for name, rules := range presets() {
		c := Config{Presets: []string{name}}
		if _, err := compile(c, nil); err != nil || len(rules) == 0 {
			t.Errorf("%s: %d rules, %v", name, len(rules), err)
		}
		if err := s.Validate(map[string]any{"presets": []any{name}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, r := range rules {
			inClear := slices.Equal(r.Ports, []uint16{80})
			switch {
			case len(r.Why) < 10 || strings.HasPrefix(r.Host, "*") || r.WebSocket || len(r.Headers) > 0:
				t.Errorf("%s, %s: %+v", name, r.Host, r)
			case !slices.Equal(r.Methods, []string{"GET", "HEAD"}):
				t.Errorf("%s, %s: methods %v", name, r.Host, r.Methods)
			case r.MaxBody == nil || *r.MaxBody != 0 || r.MaxReply <= 0:
				t.Errorf("%s, %s: no bounds", name, r.Host)
			case r.Intercept == inClear || !r.Intercept && !inClear:
				t.Errorf("%s, %s: nobody reads it", name, r.Host)
			}
		}
	}
	for entry, want := range map[string]string{"preset:": "is no preset", "preset:x": `"x" is no preset`, "preset:npm": ""} {
		_, err := compile(Config{}, []string{entry})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("--allow %s: got %v", entry, err)
		}
	}
}

// A name may be looked up if a preset has its host, and a tunnel to it opens nowhere.
func TestM8PresetsOpenNoTunnel(t *testing.T) {
	rules, err := compile(Config{Presets: []string{"npm"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	host, err := egress.ParseHost(presets()["npm"][0].Host)
	if err != nil {
		t.Fatal(err)
	}
	target, err := egress.TargetOfName(host, 443)
	if err != nil {
		t.Fatal(err)
	}
	if d := rules.list.Decide(egress.Ask{Ring: rings.Standard, Target: target}); d.Allowed() || d.Sub != egress.TunnelNotListed {
		t.Errorf("a tunnel: %+v", d)
	}
	if !rules.intercepts(target) {
		t.Error("it isn't read")
	}
}

// Bounds of a rule hold for bodies that say how long they are and for those that don't, in both directions.
func TestM8BoundsOfARule(t *testing.T) {
	none := int64(0)
	w := newWorld(t, rings.Standard, Options{Config: Config{Rules: []Rule{
		{Host: "allowed.example", Ports: []uint16{80}, Paths: []string{"/small"}, MaxBody: &none, MaxReply: 10},
		{Host: "allowed.example", Ports: []uint16{80}, Paths: []string{"/free"}},
		{Host: "allowed.example", Ports: []uint16{80}, Paths: []string{"/both"}, MaxBody: &none},
		{Host: "allowed.example", Ports: []uint16{80}, Paths: []string{"/both"}, MaxReply: 100},
		{Host: "allowed.example", Ports: []uint16{80}, Paths: []string{"/both/"}, MaxReply: 10},
	}}})
	w.web(t, 80, func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		n := 0
		fmt.Sscanf(r.URL.RawQuery, "%d", &n)
		if r.URL.Query().Has("chunked") {
			rw.(http.Flusher).Flush()
		}
		fmt.Fprint(rw, strings.Repeat("x", n))
	})
	for name, tt := range map[string]struct {
		request string
		whole   bool
	}{
		"fits":             {"GET http://allowed.example/small?10 HTTP/1.1\r\nHost: allowed.example\r\n\r\n", true},
		"too long":         {"GET http://allowed.example/small?11 HTTP/1.1\r\nHost: allowed.example\r\n\r\n", false},
		"chunked":          {"GET http://allowed.example/small?10&chunked HTTP/1.1\r\nHost: allowed.example\r\n\r\n", true},
		"chunked too long": {"GET http://allowed.example/small?11&chunked HTTP/1.1\r\nHost: allowed.example\r\n\r\n", false},
		"head":             {"HEAD http://allowed.example/small?11 HTTP/1.1\r\nHost: allowed.example\r\n\r\n", true},
		"body":             {"GET http://allowed.example/small?1 HTTP/1.1\r\nHost: allowed.example\r\nContent-Length: 1\r\n\r\nx", false},
		"chunked body":     {"GET http://allowed.example/small?1 HTTP/1.1\r\nHost: allowed.example\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", false},
		"one of two":       {"GET http://allowed.example/both?101 HTTP/1.1\r\nHost: allowed.example\r\n\r\n", false},
		"all of three":     {"GET http://allowed.example/both/x?11 HTTP/1.1\r\nHost: allowed.example\r\n\r\n", false},
		"body of one":      {"GET http://allowed.example/both/x?10 HTTP/1.1\r\nHost: allowed.example\r\nContent-Length: 1\r\n\r\nx", false},
		"within all":       {"GET http://allowed.example/both/x?10 HTTP/1.1\r\nHost: allowed.example\r\n\r\n", true},
		"another path":     {"POST http://allowed.example/free?999 HTTP/1.1\r\nHost: allowed.example\r\nContent-Length: 1\r\n\r\nx", true},
	} {
		t.Run(name, func(t *testing.T) {
			c := w.dialProxy(t)
			if _, err := io.WriteString(c, tt.request); err != nil {
				t.Fatal(err)
			}
			method, _, _ := strings.Cut(tt.request, " ")
			resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
			if err != nil {
				if tt.whole {
					t.Error(err)
				}
				return
			}
			_, err = io.ReadAll(resp.Body)
			if whole := err == nil && resp.StatusCode == 200; whole != tt.whole {
				t.Errorf("got %d, %v, want whole %v", resp.StatusCode, err, tt.whole)
			}
		})
	}
}

// What is counted is commands, however the body is cut into pieces.
func TestPushCountsReferences(t *testing.T) {
	line := func(s string) string { return fmt.Sprintf("%04x%s", len(s)+4, s) }
	old, sha256 := strings.Repeat("0", 40), strings.Repeat("a", 64)
	at := func(method, path string) egress.Ask {
		p, err := egress.ParsePath(path)
		if err != nil {
			t.Fatal(err)
		}
		return egress.Ask{Method: method, Path: p}
	}
	for name, tt := range map[string]struct {
		body string
		want int64
	}{
		"probe":     {"0000", 0},
		"two":       {line(old+" "+old+" refs/heads/a\x00 report-status") + line(old+" "+old+" refs/heads/b") + "0000PACK", 2},
		"shallow":   {line("shallow "+old) + line(old+" "+old+" refs/heads/a") + "0000", 1},
		"sha256":    {line(sha256+" "+sha256+" refs/heads/a") + "0000", 1},
		"after it":  {"0000" + line(old+" "+old+" refs/heads/a"), 0},
		"no hex":    {"zzzz", 0},
		"too short": {"0003", 0},
		"cut":       {"00ff" + old, 0},
		"packed":    {"\x1f\x8b\x08\x00and so on", 0},
		"signed":    {line("push-cert\x00 report-status") + line("certificate version 0.1") + "0000", 0},
		"empty":     {"", 0},
	} {
		for _, size := range []int{1, 3, 1 << 20} {
			p := pushTo(at("POST", "/team/tool.git/git-receive-pack"))
			for piece := range slices.Chunk([]byte(tt.body), size) {
				p.read(piece)
			}
			if got := p.refs.Load(); got != tt.want {
				t.Errorf("%s by %d: got %d, want %d", name, size, got, tt.want)
			}
			if odd := strings.HasSuffix(p.String(), " that can't be read"); odd != slices.Contains([]string{"no hex", "too short", "packed", "signed"}, name) {
				t.Errorf("%s by %d: %q", name, size, p.String())
			}
		}
	}
	for _, a := range []egress.Ask{at("GET", "/x/git-receive-pack"), at("POST", "/x/git-upload-pack")} {
		if p := pushTo(a); p != nil || p.String() != "" {
			t.Errorf("%+v is a push", a)
		}
	}
}
