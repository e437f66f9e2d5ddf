// SPDX-License-Identifier: Apache-2.0

package httptool

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"

	"agentrun/toolproxy/egress"
)

// Lookup resolves a name, as net.Resolver.LookupNetIP does.
type Lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)

// Net is how upstreams are reached.
type Net struct {
	Lookup       Lookup // nil: the system's resolver
	AllowPrivate bool   // the operator named a private place
	CAFile       string // PEM; the only authorities then; empty: the system's
}

const (
	maxAddresses  = 64
	dialTimeout   = 10 * time.Second
	maxHeaderSize = 64 << 10 // bytes of a reply's headers
)

// ErrAddress is wrapped by the error of a connection to an address that isn't allowed.
var ErrAddress = errors.New("the upstream's address is not allowed")

// NewTransport returns a transport that checks addresses after resolution, knows no proxy of the environment and bounds
// what a peer may make it hold. The error is about CAFile.
func NewTransport(n Net) (*http.Transport, error) {
	pool, err := authorities(n.CAFile)
	if err != nil {
		return nil, err
	}
	return &http.Transport{
		DialContext:            n.dial,
		TLSClientConfig:        &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           8,
		MaxIdleConnsPerHost:    8,
		MaxConnsPerHost:        64,
		IdleConnTimeout:        90 * time.Second,
		TLSHandshakeTimeout:    dialTimeout,
		MaxResponseHeaderBytes: maxHeaderSize,
	}, nil
}

func authorities(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil //nolint:nilnil // the system's
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read ca_file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("read ca_file %s: no certificate in it", file)
	}
	return pool, nil
}

// dial resolves, looks at every address and connects to those only, so that no second answer of the DNS can lead
// elsewhere (rebinding). One bad address refuses all of them, as in egress.CheckResolved.
func (n Net) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	addrs, err := n.resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	for _, addr := range addrs {
		if class := egress.Classify(addr); !n.allows(class) {
			return nil, fmt.Errorf("dial %s: %v is %v: %w", host, addr, class, ErrAddress)
		}
	}
	var errs []error
	dialer := net.Dialer{Timeout: dialTimeout}
	for _, addr := range addrs {
		conn, err := dialer.DialContext(ctx, network, net.JoinHostPort(addr.String(), port))
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func (n Net) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr.WithZone("").Unmap()}, nil
	}
	lookup := n.Lookup
	if lookup == nil {
		lookup = net.DefaultResolver.LookupNetIP
	}
	addrs, err := lookup(ctx, "ip", host)
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

// allows: allow_private is a word for networks that people have, never for a cloud's credentials (169.254.169.254), for
// what Linux takes for itself (0.0.0.0) or for other spellings of IPv4.
func (n Net) allows(c egress.Class) bool {
	switch c {
	case egress.Public:
		return true
	case egress.Private, egress.Loopback, egress.CGNAT, egress.UniqueLocal, egress.SiteLocal, egress.LinkLocal:
		return n.AllowPrivate
	}
	return false
}
