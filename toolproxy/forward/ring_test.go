// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"agentrun/rings"
	"agentrun/toolproxy/forward/runca"
)

// cutWithin is M-22's 100 ms, of which the supervisor has half; on a busy machine ten times that.
func cutWithin() time.Duration {
	slow, err := strconv.Atoi(os.Getenv("AGENTRUN_TEST_SLOW"))
	if err != nil || slow < 1 {
		slow = 1
	}
	return time.Duration(slow) * time.Second
}

// ringWorld is the egress of a run that begins in ring 3, with entries of both lists, a rule that intercepts, and its servers.
func ringWorld(t *testing.T) (*world, *x509.CertPool) {
	t.Helper()
	ca, pem, err := runca.NewCA("run_1", time.Now)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewTLSServer(http.HandlerFunc(endless))
	t.Cleanup(server.Close)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	w := newWorld(t, rings.Sandbox, Options{CA: ca, Roots: roots, Allow: []string{"allowed.example:22"}, Config: Config{
		Allow: []string{"allowed.example", "other.example"}, Rules: []Rule{{Host: "example.com", Intercept: true}}}})
	w.names.addrs["example.com"] = w.names.addrs["allowed.example"]
	w.site(443, server.URL)
	w.echo(t, 22)
	w.web(t, 80, endless)
	own := x509.NewCertPool()
	if !own.AppendCertsFromPEM(pem) {
		t.Fatal("the CA's PEM holds no certificate")
	}
	return w, own
}

// endless answers /endless with bytes that don't end, and everything else at once.
func endless(rw http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/ws" {
		if c, brw, err := rw.(http.Hijacker).Hijack(); err == nil {
			defer c.Close()
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			_, _ = io.Copy(c, brw)
		}
		return
	}
	if r.URL.Path != "/endless" {
		_, _ = io.WriteString(rw, "ok")
		return
	}
	for r.Context().Err() == nil {
		if _, err := io.WriteString(rw, "more"); err != nil {
			return
		}
		rw.(http.Flusher).Flush()
		time.Sleep(time.Millisecond)
	}
}

// way is one way out that is open: use sends and gets something, or says why it can't.
type way struct {
	name string
	conn net.Conn
	use  func() error
}

func say(t *testing.T, c io.Writer, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

func ping(c net.Conn, r io.Reader) func() error {
	return func() error {
		if _, err := io.WriteString(c, "ping"); err != nil {
			return err
		}
		_, err := io.ReadFull(r, make([]byte, 4))
		return err
	}
}

// fetch gets a page on a connection that is kept; anything but 200 is an error.
func fetch(c net.Conn, br *bufio.Reader, target string) func() error {
	return func() error {
		if _, err := io.WriteString(c, "GET "+target+" HTTP/1.1\r\nHost: "+hostOf(target)+"\r\n\r\n"); err != nil {
			return err
		}
		resp, err := http.ReadResponse(br, nil)
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return err
		}
		if resp.StatusCode != 200 {
			return io.ErrUnexpectedEOF
		}
		return nil
	}
}

func hostOf(target string) string {
	if target == "/" {
		return "example.com"
	}
	return "allowed.example"
}

// open makes one of each way out.
func (w *world) openAll(t *testing.T, own *x509.CertPool) []way {
	t.Helper()
	tunnel := w.connect(t, "allowed.example:22")
	socks := w.dialProxy(t)
	say(t, socks, string(append([]byte{5, 1, 0}, socksTo("allowed.example", 22)...)))
	if got := make([]byte, 12); readAll(t, socks, got)[3] != 0 {
		t.Fatalf("SOCKS: got % x", got)
	}
	addr, _ := w.lookup(t, "allowed.example")
	capture := w.captured(t, addr.String()+":22")
	ws := w.dialProxy(t)
	wsReader := bufio.NewReader(ws)
	say(t, ws, "GET http://allowed.example/ws HTTP/1.1\r\nHost: allowed.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	if resp, err := http.ReadResponse(wsReader, nil); err != nil || resp.StatusCode != 101 {
		t.Fatalf("upgrade: got %v, %v", resp, err)
	}
	stream := w.dialProxy(t)
	streamReader := bufio.NewReader(stream)
	say(t, stream, "GET http://allowed.example/endless HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
	kept := w.captured(t, addr.String()+":80")
	keptReader := bufio.NewReader(kept)
	inTunnel := w.connect(t, "allowed.example:80")
	inTunnelReader := bufio.NewReader(inTunnel)
	secure, err := clientTLS(t, w.connect(t, "example.com:443"), "example.com", own)
	if err != nil {
		t.Fatal(err)
	}
	secureReader := bufio.NewReader(secure)
	ways := []way{
		{"CONNECT", tunnel, ping(tunnel, tunnel)}, {"SOCKS", socks, ping(socks, socks)}, {"captured bytes", capture, ping(capture, capture)},
		{"websocket", ws, ping(ws, wsReader)},
		{"a reply under way", stream, func() error { _, err := io.ReadFull(streamReader, make([]byte, 64)); return err }},
		{"kept, captured HTTP", kept, fetch(kept, keptReader, "http://allowed.example/")},
		{"kept HTTP in a tunnel", inTunnel, fetch(inTunnel, inTunnelReader, "http://allowed.example/")},
		{"intercepted TLS", secure, fetch(secure, secureReader, "/")},
	}
	for _, way := range ways {
		if err := way.use(); err != nil {
			t.Fatalf("%s: %v", way.name, err)
		}
	}
	return ways
}

func readAll(t *testing.T, r io.Reader, into []byte) []byte {
	t.Helper()
	if _, err := io.ReadFull(r, into); err != nil {
		t.Fatal(err)
	}
	return into
}

// Nothing of the ring that a run began in is built in: elevated it has the whole of its allow lists, names and interception
// included, on the gateway that was there before; demoted nothing of it is left, whatever was open; and again.
func TestM22EveryWayOutFollowsTheRing(t *testing.T) {
	w, own := ringWorld(t)
	for range 2 {
		if _, code := w.lookup(t, "allowed.example"); code != dnsmessage.RCodeNameError {
			t.Errorf("ring 3: the name exists: got %v", code)
		}
		resp, body := w.raw(t, "CONNECT allowed.example:22 HTTP/1.1\r\nHost: allowed.example:22\r\n\r\n")
		wantDenied(t, resp, body, 403, "ring_has_no_egress")

		w.sup.set(rings.Standard)
		ways := w.openAll(t, own)
		idle := w.dialProxy(t) // the proxy's own port, between two requests: where the next is for isn't known
		again := fetch(idle, bufio.NewReader(idle), "http://allowed.example/")
		if err := again(); err != nil {
			t.Fatal(err)
		}
		w.sup.set(rings.Sandbox)
		end := time.Now().Add(cutWithin())
		for _, way := range ways {
			if err := way.conn.SetDeadline(end); err != nil && !isTLS(way.conn) {
				t.Errorf("%s: %v", way.name, err)
			}
			if _, err := io.Copy(io.Discard, way.conn); isTimeout(err) {
				t.Errorf("%s: still open %v after demotion", way.name, cutWithin())
			}
		}
		if err := again(); err == nil {
			t.Error("a kept connection to the proxy was answered after demotion")
		}
		w.pool.mu.Lock()
		if w.pool.count != 0 {
			t.Errorf("got %d connections to servers kept after demotion, want none", w.pool.count)
		}
		w.pool.mu.Unlock()
	}
	if got := w.cuts.Load(); got < 16 || got > 18 { // the idle ones count where the ring fell before their answer was booked
		t.Errorf("got %d cut, want 16, or one more for each idle one", got)
	}
}

// A request that ends while the ring falls belongs to no flow that could be cut, and its connection is in no pool that could be emptied.
func TestM22NoConnectionIsKeptOverAChangeOfRing(t *testing.T) {
	var p pool
	for _, from := range []string{"made", "taken"} {
		mine, server := net.Pipe()
		u := &upstream{Conn: mine, raw: mine, drops: p.dropped()}
		if from == "taken" {
			p.put(u)
			if p.get(u.key) != u {
				t.Fatal("the pool gives back nothing")
			}
		}
		p.drop()
		p.put(u)
		if p.count != 0 {
			t.Errorf("%s before the change: got %d kept, want none", from, p.count)
		}
		if _, err := server.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("%s before the change: got %v at the server, want EOF", from, err)
		}
	}
}

func isTLS(c net.Conn) bool { _, ok := c.(*tls.Conn); return ok }

func isTimeout(err error) bool {
	timeout, ok := err.(net.Error) //nolint:errorlint // io.Copy gives it as it is
	return ok && timeout.Timeout()
}
