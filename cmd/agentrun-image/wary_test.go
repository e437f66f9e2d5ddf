// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"agentrun/internal/upstream"
)

// at is a connection to somewhere else than it says.
type at struct {
	net.Conn
	addr net.Addr
}

func (c at) RemoteAddr() net.Addr { return c.addr }

// What a registry leads to is asked only where it may be: a server inside is told nothing, and what it answers isn't told to the registry.
func TestThreatTakeoverRegistryLeadsInside(t *testing.T) {
	const secret = "its-token"
	for title, c := range map[string]struct {
		inside  bool // the registry
		headers map[string]string
		status  int
		asked   bool
	}{
		"a realm inside":                      {false, map[string]string{"WWW-Authenticate": `Bearer realm="https://inside.example.com/iam"`}, 401, false},
		"a redirect inside":                   {false, map[string]string{"Location": "https://inside.example.com/iam"}, 302, false},
		"a redirect without TLS":              {false, map[string]string{"Location": "http://inside.example.com/iam"}, 302, false},
		"a realm of a registry that's inside": {true, map[string]string{"WWW-Authenticate": `Bearer realm="https://inside.example.com/iam"`}, 401, true},
	} {
		t.Run(title, func(t *testing.T) {
			var asked, told atomic.Bool
			inside := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				asked.Store(true)
				fmt.Fprintf(w, `{"Code": "Success", "Token": %q}`, secret)
			})
			registry := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.Contains(r.Header.Get("Authorization"), secret) {
					told.Store(true)
				}
				for name, value := range c.headers {
					w.Header().Set(name, value)
				}
				w.WriteHeader(c.status)
			}))
			defer registry.Close()
			secure, plain := httptest.NewTLSServer(inside), httptest.NewServer(inside)
			defer secure.Close()
			defer plain.Close()

			ref, err := name.ParseReference("far.example.com/x:1")
			if err != nil {
				t.Fatal(err)
			}
			w := newWary(ref.Context().Registry)
			roots := registry.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
			w.next.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
			public := &net.TCPAddr{IP: net.IPv4(8, 8, 8, 8), Port: 443}
			w.any = func(ctx context.Context, network, address string) (net.Conn, error) {
				server := map[string]*httptest.Server{"far.example.com:443": registry, "inside.example.com:443": secure, "inside.example.com:80": plain}[address]
				if server == nil {
					return nil, io.EOF
				}
				conn, err := (&net.Dialer{}).DialContext(ctx, network, server.Listener.Addr().String())
				if err == nil && server == registry && !c.inside {
					conn = at{conn, public}
				}
				return conn, err
			}
			w.public = func(_ context.Context, _, address string) (net.Conn, error) {
				return nil, fmt.Errorf("dial %s: %w", address, upstream.ErrAddress)
			}
			_, err = remote.Get(ref, remote.WithTransport(w), remote.WithContext(t.Context()))
			if err == nil || asked.Load() != c.asked || told.Load() != c.asked {
				t.Errorf("asked %v, told %v, want %v: %v", asked.Load(), told.Load(), c.asked, err)
			}
		})
	}
}

// A registry that falls silent, before it answers or within a layer, holds no pull.
func TestRegistryFallsSilent(t *testing.T) {
	for title, begins := range map[string]bool{"before it answers": false, "within an answer": true} {
		t.Run(title, func(t *testing.T) {
			registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if begins {
					w.Header().Set("Content-Length", "100")
					fmt.Fprint(w, "some")
					_ = http.NewResponseController(w).Flush() // the client sees whether it came
				}
				<-r.Context().Done()
			}))
			defer registry.Close()
			of, err := name.NewRegistry(registry.Listener.Addr().String(), name.Insecure)
			if err != nil {
				t.Fatal(err)
			}
			w := newWary(of)
			w.silence = 50 * time.Millisecond
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, registry.URL, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := w.RoundTrip(req)
			if begins && err == nil {
				_, err = io.ReadAll(resp.Body)
				resp.Body.Close()
			}
			if err == nil || !strings.Contains(err.Error(), "has said nothing for 50ms") {
				t.Errorf("got %v", err)
			}
		})
	}
}
