// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"

	"agentrun/telemetry/scrape"
)

const (
	// maxScrapes at once: a scrape copies all series.
	maxScrapes = 4
	// maxConns at once. Any user of the host may connect, and each takes a descriptor that the run's way out lacks.
	maxConns = 64
)

// Serve answers GET /metrics until l is closed, which it gives as nil.
func (m *Metrics) Serve(l net.Listener) error {
	server := &http.Server{
		Handler:           guard(l.Addr(), m.handler()),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       5 * time.Second,
		WriteTimeout:      30 * time.Second,
		MaxHeaderBytes:    16 << 10,
	}
	server.SetKeepAlivesEnabled(false) // who is silent holds a place for as long as a request may take, and no longer
	err := server.Serve(netutil.LimitListener(l, maxConns))
	if errors.Is(err, net.ErrClosed) || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// guard keeps web pages out; see scrape.Served.
func guard(at net.Addr, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !scrape.Served(at, r.Host) {
			http.Error(w, scrape.Refusal, http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (m *Metrics) handler() http.Handler {
	if m == nil {
		return http.NotFoundHandler()
	}
	answer := promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes, Timeout: 10 * time.Second, DisableCompression: true})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != "/metrics":
			http.NotFound(w, r)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		default:
			answer.ServeHTTP(w, r)
		}
	})
}
