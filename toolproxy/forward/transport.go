// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"agentrun/rings"
	"agentrun/toolproxy/egress"
	"agentrun/toolproxy/gate"
)

// The headers of a refusal (reply).
const (
	deniedHeader = "X-Agentrun-Denied"
	reasonHeader = "X-Agentrun-Reason"
)

// Transport leads requests of a tool in this process the way of the agent's own: through the proxy, as if they had come to its port.
// So a tool goes where the run may go and no further, in the ring of that moment; each request is decided, bounded by the run's limits
// and on record, a redirect's like the first. A refusal is a *gate.Error. Nothing is kept between requests.
func (p *Proxy) Transport() http.RoundTripper {
	return &toolTransport{http.Transport{
		Proxy:                  http.ProxyURL(&url.URL{Scheme: "http", Host: "gateway.invalid"}),
		DialContext:            p.pipe,
		TLSClientConfig:        &tls.Config{RootCAs: p.trusted(), MinVersion: tls.VersionTLS12},
		TLSNextProto:           map[string]func(string, *tls.Conn) http.RoundTripper{}, // HTTP/1.1, as where requests are read
		DisableKeepAlives:      true,
		MaxResponseHeaderBytes: 64 << 10,
		OnProxyConnectResponse: func(_ context.Context, _ *url.URL, _ *http.Request, r *http.Response) error { return denial(r) },
	}}
}

type toolTransport struct{ http.Transport }

// RoundTrip implements http.RoundTripper.
func (t *toolTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.Transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if err := denial(resp); err != nil {
		_ = resp.Body.Close() // it says the same once more
		return nil, err
	}
	return resp, nil
}

// denial reads a refusal of the proxy's. A server that answers like one gets the agent told that it was refused, and nothing else.
func denial(r *http.Response) error {
	code := rings.Code(r.Header.Get(deniedHeader))
	if code == "" {
		return nil
	}
	e := &gate.Error{Code: egress.CodeEgressDenied, Message: "the run may not go there", Next: nextAsk, Rule: "M-8"}
	if code == gate.CodeUnavailable || code == gate.CodeTooLarge {
		e.Code, e.Message, e.Next = code, "the server can't be reached, or sends more than may pass", nextLater
	}
	if reason := r.Header.Get(reasonHeader); reason != "" && len(reason) <= 32 && strings.Trim(reason, "abcdefghijklmnopqrstuvwxyz_") == "" {
		e.Message += ": " + reason
	}
	return e
}

// pipe is a connection to the proxy's own port, without one. It waits for a place like any other.
func (p *Proxy) pipe(ctx context.Context, _, _ string) (net.Conn, error) {
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-p.ctx.Done():
		return nil, net.ErrClosed
	}
	if !p.begin() {
		<-p.slots
		return nil, net.ErrClosed
	}
	near, far := net.Pipe()
	go p.connection(piped{far}, (*session).explicit)
	return near, nil
}

// piped says that all is said by closing. What was written has been read by then: a pipe has no buffer.
type piped struct{ net.Conn }

func (c piped) CloseWrite() error { return c.Close() }

// inner returns the authorities of a tool's connections: those of servers, for tunnels, and the run's own, which answers where the
// proxy reads. The system's are read when a tool first needs them.
func (p *Proxy) inner(own [][]byte, ca []byte) func() *x509.CertPool {
	return sync.OnceValue(func() *x509.CertPool {
		pool := x509.NewCertPool()
		if p.roots != nil {
			pool = p.roots.Clone()
		} else if system, err := roots(own); err == nil {
			pool = system
		}
		if cert, err := x509.ParseCertificate(ca); err == nil { // without one nothing is read
			pool.AddCert(cert)
		}
		return pool
	})
}
