// SPDX-License-Identifier: Apache-2.0

// Package upstream connects to the HTTP servers that an operator named: tools, models, policy decision
// points, collectors, webhooks.
//
// What it guarantees. Each address that a name resolves to is looked at, and the connection goes to one of
// those: no second answer of the DNS leads elsewhere (rebinding). Public addresses only, unless the operator
// allowed others, and never a cloud's metadata service, which hands out credentials. No proxy of the
// environment comes between. TLS is 1.2 or later. What a peer may make us hold or wait for is bounded.
//
//	roots, err := upstream.Roots(c.CAFile)
//	client := upstream.Client(upstream.Options{Roots: roots})
//
// Errors: that of a connection to an address which isn't allowed wraps ErrAddress. What it does not protect
// against: a public address of this host is public; bodies are bounded by whoever reads them.
package upstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"agentrun/toolproxy/egress"
)

// ErrAddress is wrapped by the error of a connection to an address that isn't allowed.
var ErrAddress = errors.New("the upstream's address is not allowed")

const (
	maxAddresses   = 64
	defaultTimeout = 10 * time.Second
	// firstTries is how long an address is waited for that isn't the last: where IPv6 leads nowhere, IPv4
	// must get its turn.
	firstTries = time.Second
)

// Options say how a server is reached. The zero value reaches public addresses, as the system's resolver and
// authorities have them.
type Options struct {
	AllowPrivate bool           // the operator named a place in a network of theirs, or on this host
	Roots        *x509.CertPool // the only authorities; nil: the system's
	Timeout      time.Duration  // of name, connection and handshake; 0: 10 s
	MaxConns     int            // to one host; 0: no bound
	MaxHeader    int64          // bytes of a reply's headers; 0: 64 KiB
	Unpack       bool           // ask for compressed replies and unpack them; then a body's length is no bound

	lookup func(ctx context.Context, network, host string) ([]netip.Addr, error) // tests
}

// New returns a transport.
func New(o Options) *http.Transport {
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.MaxHeader == 0 {
		o.MaxHeader = 64 << 10
	}
	if o.lookup == nil {
		o.lookup = net.DefaultResolver.LookupNetIP
	}
	return &http.Transport{
		DialContext:            o.dial,
		TLSClientConfig:        &tls.Config{RootCAs: o.Roots, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2:      true,
		DisableCompression:     !o.Unpack,
		MaxIdleConns:           8,
		MaxIdleConnsPerHost:    8,
		MaxConnsPerHost:        o.MaxConns,
		IdleConnTimeout:        90 * time.Second,
		TLSHandshakeTimeout:    o.Timeout,
		MaxResponseHeaderBytes: o.MaxHeader,
	}
}

// Client returns a client that follows no redirect: one would take a secret, or the say, to somewhere the
// operator didn't name.
func Client(o Options) *http.Client {
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &http.Client{Transport: New(o), CheckRedirect: stay}
}

// Roots reads authorities from a PEM file. The pool is nil, which means the system's, for an empty name. A relative path is an
// error: it would mean another file for each folder that agentrun is started in, and for its daemon.
func Roots(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil //nolint:nilnil // the system's
	}
	if !filepath.IsAbs(file) {
		return nil, fmt.Errorf("ca_file %q: want an absolute path", file)
	}
	pem, err := os.ReadFile(file) //nolint:gosec // the operator's own configuration names it
	if err != nil {
		return nil, fmt.Errorf("read ca_file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("read ca_file %s: no certificate in it", file)
	}
	return pool, nil
}

// Private tells whether nobody on the way can read or answer what goes to u: https, or http to a loopback
// address. A name, even localhost, may be made to mean anything.
func Private(u *url.URL) bool {
	addr, err := netip.ParseAddr(u.Hostname())
	return u.Scheme == "https" || u.Scheme == "http" && err == nil && addr.Unmap().IsLoopback()
}

// Endpoint reads the URL of a service and appends path, unless it is there. The error has nothing of a URL
// that may hold a password.
func Endpoint(text, path string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, errors.New("can't be parsed")
	case u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Opaque != "":
		return nil, errors.New("want https://host[:port][/path], without user, query or fragment")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("scheme %.16q, want https", u.Scheme)
	case !Private(u):
		return nil, fmt.Errorf("http://%s: only https may leave this host", u.Host)
	}
	if !strings.HasSuffix(u.Path, path) {
		u.Path = strings.TrimRight(u.Path, "/") + path
	}
	return u, nil
}

// dial resolves and looks at every address before it connects to the first that answers. One bad address
// refuses all of them, as in egress.CheckResolved: a name that points inside and outside is an attack or a
// mistake.
func (o Options) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	addrs, err := o.resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	for _, addr := range addrs {
		if class := egress.Classify(addr); !o.allows(class) {
			return nil, fmt.Errorf("dial %s: %v is %v: %w", host, addr, class, ErrAddress)
		}
	}
	var errs []error
	for i, addr := range addrs {
		var d net.Dialer
		if i < len(addrs)-1 {
			d.Timeout = min(firstTries, o.Timeout/time.Duration(len(addrs)))
		}
		conn, err := d.DialContext(ctx, network, net.JoinHostPort(addr.String(), port))
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func (o Options) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr.Unmap()}, nil
	}
	addrs, err := o.lookup(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	if len(addrs) == 0 || len(addrs) > maxAddresses {
		return nil, fmt.Errorf("resolve %s: %d addresses: %w", host, len(addrs), ErrAddress)
	}
	for i := range addrs {
		addrs[i] = addrs[i].WithZone("").Unmap()
	}
	return addrs, nil
}

// allows is the one meaning of allow_private: networks that people have, never a cloud's credentials
// (169.254.169.254), what Linux takes for itself (0.0.0.0) or other spellings of IPv4.
func (o Options) allows(c egress.Class) bool {
	switch c {
	case egress.Public:
		return true
	case egress.Private, egress.Loopback, egress.CGNAT, egress.UniqueLocal, egress.SiteLocal, egress.LinkLocal:
		return o.AllowPrivate
	}
	return false
}
