// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"agentrun/telemetry/scrape"
)

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
