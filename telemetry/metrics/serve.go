// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// ErrNotLoopback is what Listen gives for an address that others than this host could reach.
var ErrNotLoopback = errors.New("not a loopback address")

// CheckAddr reads host:port. No host is 127.0.0.1, "localhost" too; names are refused, as they may come to mean anything. Any
// address but loopback needs anywhere.
func CheckAddr(addr string, anywhere bool) (netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("metrics address %q: want HOST:PORT", addr)
	}
	if host == "" || host == "localhost" {
		host = "127.0.0.1"
	}
	ap, err := netip.ParseAddrPort(net.JoinHostPort(host, port))
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("metrics address %q: want an address, not a name, and a port", addr)
	}
	if !anywhere && !ap.Addr().Unmap().IsLoopback() {
		return netip.AddrPort{}, fmt.Errorf("metrics address %q: %w", addr, ErrNotLoopback)
	}
	return ap, nil
}

// Listen makes the socket that Serve takes.
func Listen(addr string, anywhere bool) (net.Listener, error) {
	ap, err := CheckAddr(addr, anywhere)
	if err != nil {
		return nil, err
	}
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(ap))
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return l, nil
}

// maxScrapes at once: a scrape copies all series.
const maxScrapes = 4

// Serve answers GET /metrics until l is closed, which it gives as nil.
func (m *Metrics) Serve(l net.Listener) error {
	server := &http.Server{
		Handler:           guard(l.Addr(), m.handler()),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       5 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute, // scrapes come every 15 s to 1 min
		MaxHeaderBytes:    16 << 10,
	}
	err := server.Serve(l)
	if errors.Is(err, net.ErrClosed) || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// guard refuses names on a loopback address. A page whose own name was made to mean 127.0.0.1 (DNS rebinding) would have the
// browser of somebody on this host read agents' counters for it; the browser sends that name as Host. On other addresses
// scrapers use names, and who can connect can read anyway.
func guard(at net.Addr, next http.Handler) http.Handler {
	ap, err := netip.ParseAddrPort(at.String())
	if err == nil && !ap.Addr().Unmap().IsLoopback() {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = strings.Trim(r.Host, "[]")
		}
		if _, err := netip.ParseAddr(host); err != nil && !strings.EqualFold(host, "localhost") {
			http.Error(w, "this Host isn't served here: ask by the address, or as localhost", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (m *Metrics) handler() http.Handler {
	if m == nil {
		return http.NotFoundHandler()
	}
	scrape := promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes, Timeout: 10 * time.Second, DisableCompression: true})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != "/metrics":
			http.NotFound(w, r)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		default:
			scrape.ServeHTTP(w, r)
		}
	})
}
