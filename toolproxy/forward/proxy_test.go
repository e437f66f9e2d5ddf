// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"agentrun/rings"
	"agentrun/toolproxy/link"
)

func allowed(entries ...string) Options { return Options{Config: Config{Allow: entries}} }

func hello(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "%s %s %s", r.Method, r.Host, r.URL)
}

func TestM8AbsoluteRequest(t *testing.T) {
	w := newWorld(t, rings.Standard, allowed("allowed.example"))
	w.web(t, 80, hello)
	c := w.dialProxy(t)
	br := bufio.NewReader(c)
	for range 3 { // over one connection
		if _, err := io.WriteString(c, "GET http://Allowed.Example/a?b HTTP/1.1\r\nHost: allowed.example\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if resp, body := response(t, br, "GET"); resp.StatusCode != 200 || body != "GET allowed.example /a?b" {
			t.Fatalf("got %d %q", resp.StatusCode, body)
		}
	}
	_ = c.Close()
	r := w.sup.await(t, func(r link.Record) bool { return r.Allowed })
	if r.Name != "allowed.example:80" || r.Count != 3 || r.Sent == 0 || r.Received == 0 || r.Kind != "egress" || r.Rule != "allowed.example" {
		t.Errorf("got %+v", r)
	}
	if got := len(w.dials()); got != 1 {
		t.Errorf("dialled %d times, want 1", got)
	}
}

// Some clients ask their proxy for the run's own gateway: it is served in every ring, and nothing is looked up or dialled for it (M-7).
func TestM7OwnGateway(t *testing.T) {
	inside := &within{conns: make(chan net.Conn)}
	gateway := &http.Server{Handler: http.HandlerFunc(hello), ReadHeaderTimeout: time.Second}
	go func() { _ = gateway.Serve(inside) }()
	t.Cleanup(func() { _ = gateway.Close() })
	o := allowed("allowed.example")
	o.GatewayHosts = []string{"127.0.0.1:7600", "localhost:7600"}
	o.Gateway = func(context.Context) (net.Conn, error) {
		near, far := net.Pipe()
		inside.conns <- far
		return near, nil
	}
	w := newWorld(t, rings.Sandbox, o)
	for _, host := range o.GatewayHosts {
		if resp, body := w.raw(t, "GET http://"+host+"/a HTTP/1.1\r\nHost: "+host+"\r\n\r\n"); body != "GET "+host+" /a" {
			t.Errorf("absolute: got %d %q", resp.StatusCode, body)
		}
		c := w.connect(t, host)
		for range 2 {
			fmt.Fprintf(c, "GET /b HTTP/1.1\r\nHost: %s\r\n\r\n", host)
			if resp, body := response(t, bufio.NewReader(c), "GET"); body != "GET "+host+" /b" {
				t.Errorf("tunnel: got %d %q", resp.StatusCode, body)
			}
		}
		_ = c.Close()
		if r := w.sup.await(t, func(r link.Record) bool { return r.Name == host && r.Detail == "connect" }); !r.Allowed || r.Weight != rings.NoRing {
			t.Errorf("got %+v, want it allowed, without weight", r)
		}
	}
	resp, body := w.raw(t, "GET http://127.0.0.1:7602/ HTTP/1.1\r\nHost: 127.0.0.1:7602\r\n\r\n")
	wantDenied(t, resp, body, 403, "ring_has_no_egress")
	if d, q := w.dials(), w.names.questions(); len(d)+len(q) > 0 {
		t.Errorf("dialled %v, looked up %v", d, q)
	}
}

// within is a listener of connections that are handed to it.
type within struct{ conns chan net.Conn }

func (w *within) Accept() (net.Conn, error) {
	if c, ok := <-w.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (w *within) Close() error   { close(w.conns); return nil }
func (w *within) Addr() net.Addr { return &net.TCPAddr{} }

func TestM13DenialsAreJSON(t *testing.T) {
	w := newWorld(t, rings.Standard, allowed("allowed.example", "private.example", "metadata.example", "mixed.example", "mapped.example", "self.example", "synthetic.example", "GET other.example/pub/"))
	w.web(t, 80, hello)
	for name, c := range map[string]struct {
		request string
		status  int
		reason  string
	}{
		"unlisted":            {"GET http://unlisted.example/ HTTP/1.1\r\nHost: unlisted.example\r\n\r\n", 403, "not_listed"},
		"unlisted by CONNECT": {"CONNECT unlisted.example:443 HTTP/1.1\r\nHost: unlisted.example:443\r\n\r\n", 403, "not_listed"},
		"other port":          {"CONNECT allowed.example:8443 HTTP/1.1\r\nHost: x\r\n\r\n", 403, "name_mismatch"},
		"port":                {"CONNECT allowed.example:8443 HTTP/1.1\r\nHost: allowed.example:8443\r\n\r\n", 403, "port_not_listed"},
		"private":             {"GET http://private.example/ HTTP/1.1\r\nHost: private.example\r\n\r\n", 403, "private_address"},
		"metadata":            {"GET http://metadata.example/ HTTP/1.1\r\nHost: metadata.example\r\n\r\n", 403, "metadata_address"},
		"metadata literal":    {"GET http://169.254.169.254/latest HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n", 403, "metadata_address"},
		"mapped literal":      {"GET http://[::ffff:169.254.169.254]/ HTTP/1.1\r\nHost: [::ffff:169.254.169.254]\r\n\r\n", 403, "bad_name"},
		"mixed":               {"GET http://mixed.example/ HTTP/1.1\r\nHost: mixed.example\r\n\r\n", 403, "private_address"},
		"mapped":              {"GET http://mapped.example/ HTTP/1.1\r\nHost: mapped.example\r\n\r\n", 403, "private_address"},
		"synthetic":           {"GET http://synthetic.example/ HTTP/1.1\r\nHost: synthetic.example\r\n\r\n", 403, "private_address"},
		"of the sandbox":      {"GET http://self.example/ HTTP/1.1\r\nHost: self.example\r\n\r\n", 403, "private_address"},
		"decimal address":     {"GET http://2130706433/ HTTP/1.1\r\nHost: 2130706433\r\n\r\n", 403, "bad_name"},
		"octal address":       {"GET http://0177.0.0.1/ HTTP/1.1\r\nHost: 0177.0.0.1\r\n\r\n", 403, "bad_name"},
		"user information":    {"GET http://allowed.example@evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403, "bad_authority"},
		"backslash":           {"GET http://allowed.example\\@evil.example/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n", 403, "bad_path"},
		"https in the clear":  {"GET https://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n", 403, "bad_request_target"},
		"origin form":         {"GET / HTTP/1.1\r\nHost: allowed.example\r\n\r\n", 403, "bad_request_target"},
		"Host differs":        {"GET http://allowed.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403, "name_mismatch"},
		"Host has a port":     {"GET http://allowed.example/ HTTP/1.1\r\nHost: allowed.example:81\r\n\r\n", 403, "name_mismatch"},
		"TRACE":               {"TRACE http://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n", 403, "bad_method"},
		"database":            {"CONNECT allowed.example:5432 HTTP/1.1\r\nHost: allowed.example:5432\r\n\r\n", 403, "database_port"},
		"forbidden route":     {"GET http://allowed.example/internal/wallet/x HTTP/1.1\r\nHost: allowed.example\r\n\r\n", 403, "forbidden_route"},
		"other path":          {"GET http://other.example/private HTTP/1.1\r\nHost: other.example\r\n\r\n", 403, "path_not_listed"},
		"other method":        {"POST http://other.example/pub/ HTTP/1.1\r\nHost: other.example\r\nContent-Length: 0\r\n\r\n", 403, "method_not_listed"},
		"tunnel to paths":     {"CONNECT other.example:443 HTTP/1.1\r\nHost: other.example:443\r\n\r\n", 403, "tunnel_not_listed"},
	} {
		resp, body := w.raw(t, c.request)
		if t.Run(name, func(t *testing.T) { wantDenied(t, resp, body, c.status, c.reason) }); t.Failed() {
			t.Log(c.request, body)
		}
	}
	if d := w.dials(); len(d) > 0 {
		t.Errorf("dialled %v, want nothing", d)
	}
}

func TestM8Ring3GoesNowhere(t *testing.T) {
	for _, ring := range []rings.Ring{rings.Sandbox, rings.NoRing, rings.Root} {
		w := newWorld(t, ring, allowed("allowed.example", "*"))
		resp, body := w.raw(t, "GET http://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
		wantDenied(t, resp, body, 403, "ring_has_no_egress")
		if q := w.names.questions(); len(q) > 0 {
			t.Errorf("%v: looked up %v", ring, q)
		}
		if w.nameExists("allowed.example") {
			t.Errorf("%v: the name exists", ring)
		}
	}
}

func TestM8UnlistedIsNotLookedUp(t *testing.T) {
	w := newWorld(t, rings.Standard, allowed("allowed.example"))
	w.raw(t, "GET http://secret-data.evil.example/ HTTP/1.1\r\nHost: secret-data.evil.example\r\n\r\n")
	if q := w.names.questions(); len(q) > 0 {
		t.Errorf("looked up %v", q)
	}
	if w.nameExists("secret-data.evil.example") || !w.nameExists("allowed.example") {
		t.Error("DNS and list disagree")
	}
}

func TestM8Ring1ReachesAllPublic(t *testing.T) {
	w := newWorld(t, rings.Privileged, Options{})
	w.web(t, 80, hello)
	if resp, body := w.raw(t, "GET http://other.example/ HTTP/1.1\r\nHost: other.example\r\n\r\n"); resp.StatusCode != 200 {
		t.Errorf("got %d %s", resp.StatusCode, body)
	}
	resp, body := w.raw(t, "GET http://private.example/ HTTP/1.1\r\nHost: private.example\r\n\r\n")
	wantDenied(t, resp, body, 403, "private_address")
}

// ambiguous are messages that two parsers could read in two ways.
var ambiguous = map[string]string{
	"both framings":          posted + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"two lengths":            posted + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
	"two equal lengths":      posted + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
	"list of lengths":        posted + "Content-Length: 5, 5\r\n\r\nhello",
	"signed length":          posted + "Content-Length: +5\r\n\r\nhello",
	"two codings":            posted + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
	"coding with a tab":      posted + "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
	"unknown coding":         posted + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
	"gzip, chunked":          posted + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
	"space before the colon": posted + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
	"folded":                 posted + "X: a\r\n Transfer-Encoding: chunked\r\n\r\n",
	"bare LF":                posted + "X: a\nContent-Length: 5\r\n\r\nhello",
	"bare CR":                posted + "X: a\rContent-Length: 5\r\n\r\n",
	"NUL":                    posted + "X: a\x00b\r\n\r\n",
	"two hosts":              posted + "Host: evil.example\r\n\r\n",
	"no host":                "GET http://allowed.example/ HTTP/1.1\r\n\r\n",
	"three spaces":           "GET http://allowed.example/ x HTTP/1.1\r\nHost: allowed.example\r\n\r\n",
	"tab":                    "GET\thttp://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n",
	"coding in 1.0":          "POST http://allowed.example/ HTTP/1.0\r\nHost: allowed.example\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"HTTP/0.9":               "GET http://allowed.example/\r\n\r\n",
	"HTTP/2":                 "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	"field without name":     posted + ": x\r\n\r\n",
	"CONNECT with a body":    "CONNECT allowed.example:443 HTTP/1.1\r\nHost: allowed.example:443\r\nContent-Length: 3\r\n\r\nabc",
	"long head":              posted + "X: " + strings.Repeat("a", 33<<10) + "\r\n\r\n",
	"many fields":            posted + strings.Repeat("X: a\r\n", 129) + "\r\n",
	"long line":              "GET http://allowed.example/" + strings.Repeat("a", 9000) + " HTTP/1.1\r\nHost: allowed.example\r\n\r\n",
}

const posted = "POST http://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\n"

func TestM8SmugglingIsRefused(t *testing.T) {
	w := newWorld(t, rings.Standard, allowed("allowed.example"))
	reached := make(chan string, 100)
	w.web(t, 80, func(_ http.ResponseWriter, r *http.Request) { reached <- r.URL.Path })
	for name, request := range ambiguous {
		resp, body := w.raw(t, request)
		if resp.StatusCode < 400 || resp.Header.Get("X-Agentrun-Denied") == "" || !resp.Close {
			t.Errorf("%s: got %d %q, want it refused and closed", name, resp.StatusCode, body)
		}
	}
	if len(reached) > 0 {
		t.Errorf("the server was reached at %q", <-reached)
	}
}

func TestM8HopFieldsStay(t *testing.T) {
	w := newWorld(t, rings.Standard, allowed("allowed.example"))
	got := make(chan http.Header, 1)
	w.web(t, 80, func(rw http.ResponseWriter, r *http.Request) {
		got <- r.Header
		rw.Header().Set("Proxy-Authenticate", "x")
		rw.Header().Set("Connection", "X-Hop")
		rw.Header().Set("X-Hop", "1")
	})
	resp, _ := w.raw(t, "GET http://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\nProxy-Authorization: Basic c2VjcmV0\r\nProxy-Connection: keep-alive\r\n"+
		"Connection: keep-alive, X-Mine\r\nX-Mine: 1\r\nTE: trailers\r\nKeep-Alive: 5\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\nX-Kept: yes\r\n\r\n")
	h := <-got
	for _, name := range []string{"Proxy-Authorization", "Proxy-Connection", "Connection", "X-Mine", "Te", "Keep-Alive", "Upgrade"} {
		if h.Get(name) != "" {
			t.Errorf("%s went up: %v", name, h)
		}
	}
	if h.Get("X-Kept") != "yes" || resp.Header.Get("X-Hop") != "" || resp.Header.Get("Proxy-Authenticate") != "" {
		t.Errorf("got %v up, %v down", h, resp.Header)
	}
}

func TestM8Bodies(t *testing.T) {
	w := newWorld(t, rings.Standard, allowed("allowed.example"))
	w.web(t, 80, func(rw http.ResponseWriter, r *http.Request) {
		if err := http.NewResponseController(rw).EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		if r.URL.Path == "/flush" {
			rw.(http.Flusher).Flush()
		}
		_, _ = io.Copy(rw, r.Body)
	})
	long := strings.Repeat("0123456789abcdef", 1<<16)
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(mustURL(t, "http://"+w.proxy))}}
	defer client.CloseIdleConnections()
	for _, path := range []string{"/", "/flush"} {
		for _, body := range []string{"", "x", long} {
			for _, r := range []io.Reader{strings.NewReader(body), io.MultiReader(strings.NewReader(body))} { // with a length, and chunked
				resp, err := client.Post("http://allowed.example"+path, "text/plain", r)
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if err != nil || string(got) != body {
					t.Errorf("%s: got %d bytes, %v, want %d", path, len(got), err, len(body))
				}
			}
		}
	}
}

func TestM8Tunnel(t *testing.T) {
	w := newWorld(t, rings.Standard, allowed("allowed.example:22"))
	w.echo(t, 22)
	c := w.connect(t, "allowed.example:22")
	if _, err := io.WriteString(c, "SSH-2.0-x"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 9)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "SSH-2.0-x" {
		t.Errorf("got %q, %v", got, err)
	}
	_ = c.(*net.TCPConn).CloseWrite()
	if rest, err := io.ReadAll(c); err != nil || len(rest) > 0 {
		t.Errorf("got %q, %v, want the end", rest, err)
	}
	r := w.sup.await(t, func(r link.Record) bool { return r.Allowed })
	if r.Sent != 9 || r.Received != 9 || r.Count != 1 || r.Name != "allowed.example:22" || r.Detail != "connect" {
		t.Errorf("got %+v", r)
	}
}

func TestM8TLSNameMustAgree(t *testing.T) {
	w := newWorld(t, rings.Standard, allowed("allowed.example", "allowed.example:8443"))
	roots := w.tlsSite(t, 443, hello)
	w.site(8443, w.at["443"])
	for _, port := range []string{":443", ":8443"} {
		tc, err := clientTLS(t, w.connect(t, "allowed.example"+port), "allowed.example", roots)
		if err == nil || !strings.Contains(err.Error(), "certificate is valid for") { // the server's own is for example.com
			t.Errorf("got %v, want the server's certificate", err)
		}
		_ = tc.Close()
		_, err = clientTLS(t, w.connect(t, "allowed.example"+port), "evil.example", roots)
		if err == nil || !strings.Contains(err.Error(), "unrecognized name") {
			t.Errorf("%s: got %v, want the alert unrecognized_name", port, err)
		}
	}
	w.sup.await(t, func(r link.Record) bool { return r.Detail == "name_mismatch" && !r.Allowed })
	c := w.connect(t, "allowed.example:443")
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, body := response(t, bufio.NewReader(c), "GET")
	wantDenied(t, resp, body, 403, "bad_client_hello")
}

func TestM8PlainInTunnelIsRead(t *testing.T) {
	w := newWorld(t, rings.Standard, allowed("allowed.example:80"))
	w.web(t, 80, hello)
	for request, want := range map[string]string{
		"GET /x HTTP/1.1\r\nHost: evil.example\r\n\r\n":                                "name_mismatch",
		"GET http://evil.example/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n":           "name_mismatch",
		"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n":          "bad_method",
		"CONNECT allowed.example:80 HTTP/1.1\r\nHost: allowed.example:80\r\n\r\n":      "bad_method",
		"GET /internal/tools/../wallet/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n":     "bad_path",
		"GET /%69nternal/wallet/send HTTP/1.1\r\nHost: allowed.example\r\n\r\n":        "forbidden_route",
		"GET /x HTTP/1.1\r\nHost: allowed.example\r\n\r\n":                             "",
		"GET http://allowed.example:80/x HTTP/1.1\r\nHost: allowed.example:80\r\n\r\n": "",
	} {
		c := w.connect(t, "allowed.example:80")
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
		resp, body := response(t, bufio.NewReader(c), "GET")
		if got := resp.Header.Get("X-Agentrun-Reason"); got != want || want == "" && body != "GET allowed.example /x" {
			t.Errorf("%q: got %s %q, want %s", request, got, body, want)
		}
	}
}

func TestM22OpenConnectionsAreCut(t *testing.T) {
	w := newWorld(t, rings.Standard, allowed("allowed.example", "allowed.example:22"))
	w.echo(t, 22)
	upgraded := make(chan struct{}, 1)
	w.web(t, 80, func(rw http.ResponseWriter, _ *http.Request) {
		c, brw, err := rw.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		upgraded <- struct{}{}
		_, _ = io.Copy(c, brw)
	})
	tunnel := w.connect(t, "allowed.example:22")
	ws := w.dialProxy(t)
	if _, err := io.WriteString(ws, "GET http://allowed.example/ws HTTP/1.1\r\nHost: allowed.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	br := bufio.NewReader(ws)
	if resp, err := http.ReadResponse(br, nil); err != nil || resp.StatusCode != 101 {
		t.Fatalf("got %v, %v", resp, err)
	}
	<-upgraded
	for c, r := range map[net.Conn]io.Reader{tunnel: tunnel, ws: br} {
		if _, err := io.WriteString(c, "ping"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(r, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
	}
	w.sup.set(rings.Privileged) // still allowed
	if _, err := io.WriteString(tunnel, "ping"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(tunnel, make([]byte, 4)); err != nil {
		t.Fatalf("a ring that allows it cut the tunnel: %v", err)
	}
	w.sup.set(rings.Sandbox)
	for _, r := range []io.Reader{tunnel, br} {
		if n, err := r.Read(make([]byte, 1)); err == nil {
			t.Errorf("read %d bytes after demotion", n)
		}
	}
	for _, name := range []string{"allowed.example:22", "allowed.example:80"} {
		w.sup.await(t, func(r link.Record) bool {
			return r.Name == name && r.Allowed && strings.HasSuffix(r.Detail, "cut: ring_has_no_egress")
		})
	}
	if got := w.cuts.Load(); got != 2 {
		t.Errorf("got %d cut, want 2", got)
	}
}

func TestM8DenialsAreGathered(t *testing.T) {
	w := newWorld(t, rings.Standard, allowed())
	const n = 50
	for range n {
		w.raw(t, "GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
	}
	count := func() (records int, sum int64) {
		for _, r := range w.sup.all() {
			records++
			sum += r.Count
		}
		return
	}
	w.sup.await(t, func(link.Record) bool { _, sum := count(); return sum == n })
	if records, _ := count(); records > 10 {
		t.Errorf("got %d records of %d denials, want them gathered", records, n)
	}
}

func TestM8NothingIsGrantedWithoutRecords(t *testing.T) {
	w := newWorld(t, rings.Standard, allowed("allowed.example"))
	w.web(t, 80, hello)
	w.sup.mu.Lock()
	w.sup.broken = true
	w.sup.mu.Unlock()
	w.raw(t, "GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n")
	for end := time.Now().Add(10 * time.Second); !w.ledger.broken.Load(); {
		if time.Now().After(end) {
			t.Fatal("the ledger doesn't notice")
		}
		time.Sleep(time.Millisecond)
	}
	resp, body := w.raw(t, "GET http://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
	wantDenied(t, resp, body, 503, "audit_unavailable")
	w.sup.mu.Lock()
	w.sup.broken = false
	w.sup.mu.Unlock()
	w.sup.await(t, func(r link.Record) bool { return r.Name == "evil.example:80" })
}

func mustURL(t *testing.T, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}
