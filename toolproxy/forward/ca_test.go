// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"agentrun/rings"
	"agentrun/test/exit"
	"agentrun/toolproxy/forward/runca"
)

// remembering gives a client the last session it had, with whomever.
type remembering struct{ last *tls.ClientSessionState }

func (r *remembering) Get(string) (*tls.ClientSessionState, bool) { return r.last, r.last != nil }
func (r *remembering) Put(_ string, s *tls.ClientSessionState)    { r.last = s }

// twoNames has a.example and b.example intercepted, by the CA of one run.
func twoNames(t *testing.T, upstream *tls.Config, handler http.HandlerFunc) (w *world, own *x509.CertPool) {
	t.Helper()
	ca, pem, err := runca.NewCA("run_1", time.Now)
	if err != nil {
		t.Fatal(err)
	}
	w = newWorld(t, rings.Standard, Options{CA: ca, Roots: x509.NewCertPool(), Secret: func(string) (string, bool) { return secret, true },
		Config: Config{Rules: []Rule{{Host: "a.example", Intercept: true, Headers: map[string]Header{"Authorization": {Secret: "KEY"}}}, {Host: "b.example", Intercept: true},
			{Host: "*.wild.example", Intercept: true}}}})
	for _, name := range []string{"a.example", "b.example", "x.wild.example"} {
		w.names.addrs[name] = w.names.addrs["allowed.example"]
	}
	server := httptest.NewUnstartedServer(handler)
	server.TLS = upstream
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	w.site(443, server.URL)
	own = x509.NewCertPool()
	if !own.AppendCertsFromPEM(pem) {
		t.Fatal("the CA's PEM holds no certificate")
	}
	return w, own
}

// Each connection has a handshake of its own and a certificate for the one name it was asked for; a session of another name
// is worth nothing, and so is the CA of another run.
func TestM8CertificatesAreForOneNameAndRun(t *testing.T) {
	w, own := twoNames(t, nil, hello)
	cache := &remembering{}
	var keys [][]byte
	for _, name := range []string{"a.example", "b.example", "a.example", "x.wild.example"} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			c := tls.Client(w.connect(t, name+":443"), &tls.Config{ServerName: name, RootCAs: own, ClientSessionCache: cache, MaxVersion: version, NextProtos: []string{"h2", "http/1.1"}})
			if err := c.HandshakeContext(t.Context()); err != nil {
				t.Fatal(err)
			}
			say(t, c, "GET /v1 HTTP/1.1\r\nHost: "+name+"\r\n\r\n") // so that tickets would come
			_, _ = response(t, bufio.NewReader(c), "GET")
			state := c.ConnectionState()
			leaf := state.PeerCertificates[0]
			if state.DidResume || cache.last != nil || state.NegotiatedProtocol != "http/1.1" {
				t.Errorf("%s: resumed %v, session %v, protocol %q", name, state.DidResume, cache.last, state.NegotiatedProtocol)
			}
			if !slices.Equal(leaf.DNSNames, []string{name}) || len(leaf.IPAddresses) > 0 || leaf.IsCA || leaf.KeyUsage != x509.KeyUsageDigitalSignature ||
				!slices.Equal(leaf.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}) || len(leaf.UnknownExtKeyUsage) > 0 || leaf.NotAfter.Sub(leaf.NotBefore) > 26*time.Hour {
				t.Errorf("%s: got a certificate for %v, %v: %+v", name, leaf.DNSNames, leaf.IPAddresses, leaf)
			}
			keys = append(keys, leaf.SerialNumber.Bytes())
			_, pem, err := runca.NewCA("run_1", time.Now) // the same name, another run
			if err != nil {
				t.Fatal(err)
			}
			foreign := x509.NewCertPool()
			foreign.AppendCertsFromPEM(pem)
			if _, err := leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: foreign}); err == nil {
				t.Errorf("%s: good in another run", name)
			}
		}
	}
	if bytes.Equal(keys[0], keys[2]) {
		t.Error("two names share a certificate")
	}
}

// A program that pins keys, or brings its own roots, refuses, and nothing has gone to the server; what it says in the hello
// doesn't change which certificate it gets, nor does a second hello.
func TestM8InterceptionSaysNothingForThoseWhoRefuse(t *testing.T) {
	asked := make(chan string, 10)
	w, own := twoNames(t, nil, func(_ http.ResponseWriter, r *http.Request) { asked <- r.Host })
	if _, err := clientTLS(t, w.connect(t, "a.example:443"), "a.example", x509.NewCertPool()); err == nil {
		t.Error("taken by a client that doesn't know the CA")
	}
	pinned := tls.Client(w.connect(t, "a.example:443"), &tls.Config{ServerName: "a.example", RootCAs: own,
		VerifyConnection: func(tls.ConnectionState) error { return io.ErrUnexpectedEOF }})
	if err := pinned.HandshakeContext(t.Context()); err == nil {
		t.Error("taken by a client that pins")
	}
	for name, hello := range map[string][]byte{
		"another name":      exittest.ClientHello("b.example"),
		"a name of the CA":  exittest.ClientHello("agentrun"),
		"no name":           exittest.ClientHello(""),
		"a wildcard":        exittest.ClientHello("*.wild.example"),
		"an address":        exittest.ClientHello("127.0.0.1"),
		"two names":         exittest.ClientHello("a.example", exittest.Extension(0, []byte("\x00\x0c\x00\x00\x09b.example"))),
		"a hidden name":     exittest.ClientHello("a.example", exittest.ECH()),
		"not only ASCII":    exittest.ClientHello("ａ.example"),
		"a name with a NUL": exittest.ClientHello("a.example\x00.evil.example"),
	} {
		t.Run(name, func(t *testing.T) {
			conn := w.connect(t, "a.example:443")
			say(t, conn, string(exittest.Record(22, hello)))
			if got, _ := io.ReadAll(conn); len(got) != 7 || got[0] != 21 {
				t.Errorf("got %x, want an alert and nothing else", got)
			}
		})
	}
	// A group that needs a second hello, which names another place.
	first := bytes.Replace(exittest.ClientHello("a.example"), []byte{0, 29, 0, 32}, []byte{1, 0, 0, 32}, 1)
	conn := w.connect(t, "a.example:443")
	say(t, conn, string(exittest.Record(22, first)))
	answer := make([]byte, 5)
	readAll(t, conn, answer)
	readAll(t, conn, make([]byte, int(answer[3])<<8|int(answer[4])))
	say(t, conn, string(exittest.Record(22, exittest.ClientHello("b.example"))))
	rest, _ := io.ReadAll(conn)
	if answer[0] != 22 || len(rest) < 7 || rest[len(rest)-7] != 21 || len(rest) > 20 {
		t.Errorf("got %x and %x, want a question and an alert", answer, rest)
	}
	if d := w.dials(); len(d) > 0 || len(asked) > 0 {
		t.Errorf("dialled %v", d)
	}
}

// chain makes a certificate for the names, signed by a root of its own through that many others.
func chain(t *testing.T, between int, change func(*x509.Certificate), names ...string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	now := time.Now()
	roots := x509.NewCertPool()
	var parent *x509.Certificate
	var parentKey *ecdsa.PrivateKey
	made := tls.Certificate{}
	for i := range between + 2 {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		c := &x509.Certificate{SerialNumber: big.NewInt(int64(i + 1)), Subject: pkix.Name{CommonName: strings.Repeat("x", i%60) + "y"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
			BasicConstraintsValid: true, IsCA: i <= between, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
		if i == between+1 {
			c.DNSNames = names
			change(c)
		}
		if parent == nil {
			parent, parentKey = c, key
		}
		der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, parentKey)
		if err != nil {
			t.Fatal(err)
		}
		if parent, err = x509.ParseCertificate(der); err != nil {
			t.Fatal(err)
		}
		parentKey = key
		if i == 0 {
			roots.AddCert(parent)
			continue
		}
		made.Certificate = append([][]byte{der}, made.Certificate...)
		made.PrivateKey = key
	}
	return made, roots
}

// The server of an intercepted connection must show who it is, in a bounded time, or gets neither request nor secret.
func TestM8InterceptedUpstreamsThatLie(t *testing.T) {
	same := func(*x509.Certificate) {}
	for _, c := range []struct {
		name    string
		between int
		change  func(*x509.Certificate)
		names   []string
		config  *tls.Config
		forget  bool
		want    int
	}{
		{"good", 1, same, []string{"a.example"}, &tls.Config{}, false, 200},
		{"a chain of 60", 60, same, []string{"a.example"}, &tls.Config{}, false, 200},
		{"a chain of 1000", 1000, same, []string{"a.example"}, &tls.Config{}, false, 502},
		{"another name", 0, same, []string{"b.example"}, &tls.Config{}, false, 502},
		{"no name", 0, same, nil, &tls.Config{}, false, 502},
		{"a wildcard that is too wide", 0, same, []string{"*"}, &tls.Config{}, false, 502},
		{"an unknown root", 0, same, []string{"a.example"}, &tls.Config{}, true, 502},
		{"expired", 0, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }, []string{"a.example"}, &tls.Config{}, false, 502},
		{"of tomorrow", 0, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(30 * time.Minute) }, []string{"a.example"}, &tls.Config{}, false, 502},
		{"for clients", 0, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }, []string{"a.example"}, &tls.Config{}, false, 502},
		{"wants a certificate of ours", 0, same, []string{"a.example"}, &tls.Config{ClientAuth: tls.RequireAnyClientCert, MaxVersion: tls.VersionTLS12}, false, 502},
		{"wants one, TLS 1.3", 0, same, []string{"a.example"}, &tls.Config{ClientAuth: tls.RequireAnyClientCert}, false, 502},
		{"TLS 1.1", 0, same, []string{"a.example"}, &tls.Config{MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}, false, 502},
	} {
		t.Run(c.name, func(t *testing.T) {
			cert, roots := chain(t, c.between, c.change, c.names...)
			config := c.config.Clone()
			config.Certificates = []tls.Certificate{cert}
			asked := make(chan http.Header, 10)
			w, own := twoNames(t, config, func(_ http.ResponseWriter, r *http.Request) { asked <- r.Header })
			if !c.forget {
				w.roots = roots
			}
			conn, err := clientTLS(t, w.connect(t, "a.example:443"), "a.example", own)
			if err != nil {
				t.Fatal(err)
			}
			say(t, conn, "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")
			resp, body := response(t, bufio.NewReader(conn), "GET")
			if resp.StatusCode != c.want || strings.Contains(body, "x509") {
				t.Errorf("got %d %s, want %d", resp.StatusCode, body, c.want)
			}
			if c.want != 200 && len(asked) > 0 {
				t.Errorf("it got %v", <-asked)
			}
			if c.want == 200 {
				if h := <-asked; h.Get("Authorization") != secret {
					t.Errorf("it got %v, want the secret", h)
				}
			}
		})
	}
}

// HTTP/2 isn't spoken inside interception, and a connection is for one place only.
func TestM8InterceptedConnectionsAreForOnePlace(t *testing.T) {
	w, own := twoNames(t, nil, func(http.ResponseWriter, *http.Request) { t.Error("the server was asked") })
	for _, request := range []string{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET / HTTP/1.1\r\nHost: b.example\r\n\r\n", "GET / HTTP/1.1\r\nHost: a.example:80\r\n\r\n",
		"GET https://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n", "GET http://b.example/ HTTP/1.1\r\nHost: b.example\r\n\r\n", "CONNECT b.example:443 HTTP/1.1\r\nHost: b.example:443\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\n\r\n", "GET / HTTP/1.1\r\nHost: a.example, b.example\r\n\r\n"} {
		conn, err := clientTLS(t, w.connect(t, "a.example:443"), "a.example", own)
		if err != nil {
			t.Fatal(err)
		}
		say(t, conn, request)
		if resp, _ := response(t, bufio.NewReader(conn), "GET"); resp.StatusCode < 400 || resp.StatusCode == 502 {
			t.Errorf("%q: got %d", request, resp.StatusCode)
		}
	}
	// Another hello inside the first one's encryption is data, and no request.
	conn, err := clientTLS(t, w.connect(t, "a.example:443"), "a.example", own)
	if err != nil {
		t.Fatal(err)
	}
	say(t, conn, string(exittest.Record(22, exittest.ClientHello("b.example")))+"\r\n\r\n")
	if got, _ := io.ReadAll(conn); !bytes.HasPrefix(got, []byte("HTTP/1.1 400 ")) {
		t.Errorf("got %q", got)
	}
}
