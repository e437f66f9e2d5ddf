// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"agentrun/rings"
	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
)

// supervisor is a link.Supervisor that knows a ring and keeps records.
type supervisor struct {
	link.Supervisor // nil: nothing else is asked

	mu      sync.Mutex
	ring    rings.Ring
	changed chan struct{}
	records []link.Record
	broken  bool
	news    chan struct{}
}

func newSupervisor(ring rings.Ring) *supervisor {
	return &supervisor{ring: ring, changed: make(chan struct{}), news: make(chan struct{}, 1<<16)}
}

func (s *supervisor) Ring() (rings.Ring, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ring, s.changed
}

func (s *supervisor) set(ring rings.Ring) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ring = ring
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *supervisor) Record(_ context.Context, r link.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken {
		return errors.New("the audit is full")
	}
	s.records = append(s.records, r)
	s.news <- struct{}{}
	return nil
}

func (s *supervisor) all() []link.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]link.Record(nil), s.records...)
}

// await waits for a record that fits.
func (s *supervisor) await(t testing.TB, fits func(link.Record) bool) link.Record {
	t.Helper()
	end := time.After(10 * time.Second)
	for {
		for _, r := range s.all() {
			if fits(r) {
				return r
			}
		}
		select {
		case <-s.news:
		case <-end:
			t.Fatalf("no such record in %+v", s.all())
		}
	}
}

// names is a resolver.
type names struct {
	mu    sync.Mutex
	addrs map[string][]netip.Addr
	asked []string
}

func (n *names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = append(n.asked, host)
	if a := n.addrs[strings.TrimSuffix(host, ".")]; a != nil {
		return a, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

func (n *names) questions() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]string(nil), n.asked...)
}

// world is a proxy with its surroundings: dials go to where at says, whatever their port.
type world struct {
	*Proxy
	sup     *supervisor
	names   *names
	proxy   string // address
	capture string
	mu      sync.Mutex
	at      map[string]string // dialled to real address
	dialled []string
}

var loopback = netip.MustParseAddr("127.0.0.1")

// entrance is what serves the proxy's own port: its own code, or the other way to build it (onNetHTTP). once serves one
// connection to its end, and keeps none to servers.
func entrance(p *Proxy, other bool) (serve func(net.Listener) error, once func(net.Conn)) {
	serve, one, drop := p.ServeProxy, (*session).explicit, p.pool.drop
	if other || *insteadOnNetHTTP {
		a := newOnNetHTTP(p)
		serve, one, drop = a.serve, a.explicit, a.transport.CloseIdleConnections
	}
	return serve, func(c net.Conn) {
		p.slots <- struct{}{}
		p.serving.Add(1)
		p.connection(c, one)
		drop()
	}
}

// newWorld makes names allowed.example, other.example and private.example; o may lack anything.
func newWorld(t testing.TB, ring rings.Ring, o Options) *world { return worldOn(t, ring, o, false) }

func worldOn(t testing.TB, ring rings.Ring, o Options, other bool) *world {
	t.Helper()
	w := &world{sup: newSupervisor(ring), at: map[string]string{}}
	w.names = &names{addrs: map[string][]netip.Addr{"allowed.example": {loopback}, "other.example": {loopback}, "*.example": {loopback},
		"private.example": {netip.MustParseAddr("10.1.2.3")}, "metadata.example": {netip.MustParseAddr("169.254.169.254")},
		"mixed.example": {loopback, netip.MustParseAddr("10.0.0.1")}, "mapped.example": {netip.MustParseAddr("::ffff:10.0.0.1")},
		"synthetic.example": {netip.MustParseAddr("198.18.0.9")}, "self.example": {netip.MustParseAddr("192.0.0.8")}}}
	o.Supervisor, o.Resolver = w.sup, w.names
	o.Config.Private = append(o.Config.Private, "127.0.0.1:*")
	if o.Own == nil {
		o.Own = func() ([]netip.Addr, error) { return []netip.Addr{loopback}, nil }
	}
	o.Dial = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
		w.mu.Lock()
		real, ok := w.at[strconv.Itoa(int(to.Port()))]
		w.dialled = append(w.dialled, to.String())
		w.mu.Unlock()
		if !ok || to.Addr() != loopback {
			return nil, errors.New("nothing is there")
		}
		return (&net.Dialer{}).DialContext(ctx, "tcp", real)
	}
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	w.Proxy = p
	l, c := listen(t), listen(t)
	w.proxy, w.capture = l.Addr().String(), c.Addr().String()
	serve, _ := entrance(p, other)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := serve(l); err != nil && !errors.Is(err, net.ErrClosed) { // closed before it began
			t.Errorf("ServeProxy: %v", err)
		}
	})
	t.Cleanup(func() {
		if err := p.Close(); err != nil && !w.sup.broken {
			t.Errorf("Close: %v", err)
		}
		serving.Wait()
		_ = c.Close()
	})
	return w
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// site puts a server behind a port.
func (w *world) site(port int, addr string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at[strconv.Itoa(port)] = strings.TrimPrefix(strings.TrimPrefix(addr, "http://"), "https://")
}

func (w *world) dials() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.dialled...)
}

// web serves handler over HTTP at a port.
func (w *world) web(t testing.TB, port int, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	w.site(port, s.URL)
	return s
}

// echo serves bytes back at a port.
func (w *world) echo(t testing.TB, port int) {
	t.Helper()
	l := listen(t)
	w.site(port, l.Addr().String())
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
}

func (w *world) dialProxy(t testing.TB) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", w.proxy)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

// raw sends text to the proxy and returns all that comes back until it closes or the response is whole.
func (w *world) raw(t testing.TB, text string) (*http.Response, string) {
	t.Helper()
	c := w.dialProxy(t)
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	return response(t, bufio.NewReader(c), "GET")
}

func response(t testing.TB, br *bufio.Reader, method string) (*http.Response, string) {
	t.Helper()
	resp, err := http.ReadResponse(br, &http.Request{Method: method})
	if err != nil {
		t.Fatalf("read the response: %v", err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("read the body: %v", err)
	}
	return resp, string(body)
}

func wantDenied(t testing.TB, resp *http.Response, body string, status int, reason string) {
	t.Helper()
	var got struct{ Error gate.Error }
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatalf("body %q: %v", body, err)
	}
	if resp.StatusCode != status || resp.Header.Get("X-Agentrun-Reason") != reason {
		t.Errorf("got %d, %v, want %d, %s", resp.StatusCode, resp.Header, status, reason)
	}
	if !strings.HasPrefix(body, `{"ok":false,"error":{`) {
		t.Errorf("got %s, want the form of every refusal", body)
	}
	if code := resp.Header.Get("X-Agentrun-Denied"); code == "" || code != string(got.Error.Code) || got.Error.Message == "" || got.Error.Next == "" {
		t.Errorf("got code %q and %+v, want all set and alike", code, got.Error)
	}
}

// tlsSite is a TLS server with a certificate for the names, and the pool that trusts it.
func (w *world) tlsSite(t testing.TB, port int, handler http.HandlerFunc) *x509.CertPool {
	t.Helper()
	s := httptest.NewTLSServer(handler)
	t.Cleanup(s.Close)
	w.site(port, s.URL)
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	return pool
}

// connect asks for a tunnel and returns it.
func (w *world) connect(t testing.TB, authority string) net.Conn {
	t.Helper()
	c := w.dialProxy(t)
	if _, err := io.WriteString(c, "CONNECT "+authority+" HTTP/1.1\r\nHost: "+authority+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	want := "HTTP/1.1 200 Connection established\r\n\r\n"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("got %q, %v, want %q", got, err, want)
	}
	return c
}

func clientTLS(t testing.TB, c net.Conn, name string, roots *x509.CertPool) (*tls.Conn, error) {
	t.Helper()
	tc := tls.Client(c, &tls.Config{ServerName: name, RootCAs: roots, NextProtos: []string{"h2", "http/1.1"}})
	return tc, tc.HandshakeContext(t.Context())
}
