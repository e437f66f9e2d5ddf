// SPDX-License-Identifier: Apache-2.0

package exittest

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func world(t *testing.T) *World {
	t.Helper()
	w, err := New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// client reaches the world's hosts as the gateway is to: by name, at their addresses.
func client(w *World) *http.Client {
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: w.CA.Pool()},
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			name, port, _ := net.SplitHostPort(addr)
			if at := w.Hosts()[name]; len(at) > 0 {
				addr = net.JoinHostPort(at[0], port)
			}
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	}}
}

// A host that can't be reached, or keeps no account, would make every "nothing got out" of the suite worthless.
func TestHostsKeepAccount(t *testing.T) {
	w := world(t)
	h, err := w.Host("repo.test", Site())
	if err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{"http://repo.test/echo", "https://repo.test/echo"} {
		r, err := client(w).Post(url, "text/plain", strings.NewReader("body of it"))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r.Body)
		if err != nil || !strings.Contains(string(b), "body of it") {
			t.Errorf("%s: got %s, %v", url, b, err)
		}
		r.Body.Close()
	}
	v := h.Visits()
	if len(v) != 2 || v[0].TLS || !v[1].TLS || v[1].SNI != "repo.test" || string(v[1].Body) != "body of it" || h.Connections() != 2 {
		t.Errorf("got %d connections and visits %+v, want two, the second by TLS", h.Connections(), v)
	}
	if p := w.Private(); len(p) != 1 || !strings.HasSuffix(p[0], "/32") {
		t.Errorf("private: %v", p)
	}
}

func TestGitCanBeCloned(t *testing.T) {
	w := world(t)
	dir := t.TempDir()
	git, err := Git(dir, "tool", "text of the file\n")
	if err != nil {
		t.Fatal(err)
	}
	h, err := w.Host("repo.test", git)
	if err != nil {
		t.Fatal(err)
	}
	into := filepath.Join(dir, "clone")
	cmd := exec.Command("git", "-c", "http.sslCAInfo="+w.CAFile, "clone", "-q", "https://"+h.Addr.String()+"/git/tool.git", into)
	cmd.Env = gitEnv()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if b, err := os.ReadFile(filepath.Join(into, "README")); err != nil || string(b) != "text of the file\n" {
		t.Errorf("got %q, %v", b, err)
	}
}

func TestModelStreams(t *testing.T) {
	w := world(t)
	if _, err := w.Host("model.test", Model("k")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ body, want string }{
		{`{"model":"plain"}`, "the answer is 42"},
		{`{"model":"plain","stream":true}`, "data: [DONE]"},
		{`{"model":"reasoning"}`, Thought},
	} {
		q, _ := http.NewRequest(http.MethodPost, "https://model.test/v1/chat/completions", strings.NewReader(tt.body))
		q.Header.Set("Authorization", "Bearer k")
		r, err := client(w).Do(q)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if !strings.Contains(string(b), tt.want) {
			t.Errorf("%s: got %s, want %q in it", tt.body, b, tt.want)
		}
	}
}

func TestMCPServerAnswers(t *testing.T) {
	w := world(t)
	if _, err := w.Host("mcp.test", MCP()); err != nil {
		t.Fatal(err)
	}
	c := mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, nil)
	s, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: "https://mcp.test/mcp", HTTPClient: client(w)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "shout", Arguments: map[string]any{"text": "hey"}})
	if err != nil || len(r.Content) != 1 || r.Content[0].(*mcp.TextContent).Text != "hey!" {
		t.Errorf("got %+v, %v", r, err)
	}
}

// Each way must be one that a naive client suffers from or at least sees; the bounded ones are tried.
func TestHostileIsHostile(t *testing.T) {
	w := world(t)
	if _, err := w.Raw("bad.test", Hostile); err != nil {
		t.Fatal(err)
	}
	for way, wantErr := range map[string]bool{"headers": true, "long-header": true, "short": true, "twice": true, "status": true, "echo-key": false, "": false} {
		q, _ := http.NewRequest(http.MethodGet, "http://bad.test/"+way, nil)
		q.Header.Set("Authorization", "Bearer secret")
		r, err := client(w).Transport.RoundTrip(q)
		var b []byte
		if err == nil {
			b, err = io.ReadAll(io.LimitReader(r.Body, 1<<20))
			r.Body.Close()
		}
		if (err != nil) != wantErr {
			t.Errorf("%q: got error %v, want one: %v", way, err, wantErr)
		}
		if way == "echo-key" && !strings.Contains(string(b), "Bearer secret") {
			t.Errorf("the key is not echoed: %s", b)
		}
	}
}

func TestResolverChangesItsMind(t *testing.T) {
	r, err := NewResolver()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	first, then := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("127.0.0.1")
	r.Answer("rebind.test", []netip.Addr{first}, []netip.Addr{then})
	lookup := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", netip.AddrPortFrom(r.Addr, 53).String())
	}}
	for _, want := range []netip.Addr{first, then, then} {
		got, err := lookup.LookupNetIP(t.Context(), "ip4", "rebind.test.")
		if err != nil || !slices.Equal(got, []netip.Addr{want}) {
			t.Errorf("got %v, %v, want %v", got, err, want)
		}
	}
	if _, err := lookup.LookupNetIP(t.Context(), "ip4", "Secret-Data.test."); err == nil {
		t.Error("an unknown name exists")
	}
	if !slices.Contains(r.Asked(), "secret-data.test") {
		t.Errorf("what was asked is not kept: %v", r.Asked())
	}
}

func TestPDPMoods(t *testing.T) {
	w := world(t)
	p := &PDP{}
	if _, err := w.Host("pdp.test", p); err != nil {
		t.Fatal(err)
	}
	for mood, want := range map[string]string{"": `"decision":false`, "allow": `{"decision":true}`, "twice": `{"decision":false,"decision":true}`} {
		p.Be(mood)
		r, err := client(w).Post("https://pdp.test/access/v1/evaluation", "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if !strings.Contains(string(b), want) {
			t.Errorf("%q: got %s, want %s", mood, b, want)
		}
	}
}

func TestCollectorFindsText(t *testing.T) {
	w := world(t)
	c := &Collector{}
	if _, err := w.Host("otlp.test", c); err != nil {
		t.Fatal(err)
	}
	r, err := client(w).Post("https://otlp.test/v1/traces", "application/x-protobuf", strings.NewReader("\x0a\x06secret"))
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if c.Count() != 1 || !c.Holds("secret") || c.Holds("other") {
		t.Errorf("got %d messages, secret in them: %v", c.Count(), c.Holds("secret"))
	}
}
