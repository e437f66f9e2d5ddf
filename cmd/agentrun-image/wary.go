// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"agentrun/internal/upstream"
	"agentrun/toolproxy/egress"
)

// wary is how a registry is asked, which may say anything. The library behind it holds what comes to digests, and leaves these to others:
//
//  1. Of a manifest of schema 1, by its own word, it believes the header that says which digest it has, also where an index has named
//     another kind. So any manifest could be put below an index that somebody has signed, or pinned by its digest.
//  2. It reads manifests of 100 MiB, of which lists of nothing become gigabytes, and a configuration without a size to its end.
//  3. It follows redirects and realms to any name, whatever addresses that has, and to plain HTTP once the registry has led there; and
//     it tells the registry what a server at the realm has answered, if that has a token in it.
//  4. It waits for an answer, and for the rest of one, for ever.
type wary struct {
	next     http.RoundTripper
	layers   atomic.Bool // are read from now on, which are bounded by what they unpack to
	registry string      // its host
	plain    bool        // it is asked without TLS, by the operator's word or on the loopback
	place    atomic.Int32
	proxies  sync.Map // hosts of the operator's
	// Connect to addresses that are public, and to others too.
	public, any func(ctx context.Context, network, address string) (net.Conn, error)
	silence     time.Duration // is the most that who is listened to may say nothing
}

// place of the registry, by where it was reached.
const (
	inside  = 1 // never at a public address
	outside = 2
)

const (
	connectTime = 30 * time.Second
	// maxSilence is more than unpacking takes between two looks at what comes, for which a registry may have to wait.
	maxSilence = 2 * time.Minute
)

func newWary(of name.Registry) *wary {
	registry := url.URL{Host: of.RegistryStr()}
	w := &wary{registry: registry.Hostname(), plain: of.Scheme() == "http", silence: maxSilence}
	w.public = upstream.New(upstream.Options{Timeout: connectTime}).DialContext
	w.any = upstream.New(upstream.Options{Timeout: connectTime, AllowPrivate: true}).DialContext
	t := remote.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // it is one
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := w.dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &listening{conn, w.silence}, nil
	}
	t.Proxy = func(r *http.Request) (*url.URL, error) {
		proxy, err := http.ProxyFromEnvironment(r)
		if proxy != nil {
			w.proxies.Store(proxy.Hostname(), true)
		}
		return proxy, err
	}
	w.next = t
	return w
}

// RoundTrip implements http.RoundTripper.
func (w *wary) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !w.plain {
		return nil, fmt.Errorf("the registry leads to %.200s without TLS, which is not followed", r.URL.Redacted())
	}
	resp, err := w.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	resp.Header.Del("Docker-Content-Digest")
	if !w.layers.Load() {
		resp.Body = &atMost{resp.Body, maxAnswer}
	}
	return resp, nil
}

// dial takes the registry, whom the operator has named, and the operator's proxies wherever they are. What the registry leads to is public,
// unless it is itself in a network of the operator's: then its tokens and layers may be there too.
func (w *wary) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	_, proxy := w.proxies.Load(host)
	if host != w.registry && !proxy && w.place.Load() != inside {
		return w.public(ctx, network, address)
	}
	conn, err := w.any(ctx, network, address)
	if err == nil && host == w.registry {
		if at, aerr := netip.ParseAddrPort(conn.RemoteAddr().String()); aerr == nil && egress.Classify(at.Addr().Unmap()) != egress.Public {
			w.place.CompareAndSwap(0, inside)
		} else {
			w.place.Store(outside)
		}
	}
	return conn, err
}

// listening is a connection that ends when nothing comes for so long while somebody reads, and when nothing is taken.
type listening struct {
	net.Conn
	most time.Duration
}

func (l *listening) Read(b []byte) (int, error) {
	if err := l.SetReadDeadline(time.Now().Add(l.most)); err != nil {
		return 0, err
	}
	n, err := l.Conn.Read(b)
	if errors.Is(err, os.ErrDeadlineExceeded) { // no timeout any more, after which the library would ask again
		err = fmt.Errorf("%s has said nothing for %v", l.RemoteAddr(), l.most)
	}
	return n, err
}

func (l *listening) Write(b []byte) (int, error) {
	if err := l.SetWriteDeadline(time.Now().Add(l.most)); err != nil {
		return 0, err
	}
	return l.Conn.Write(b)
}

// maxAnswer bounds manifests, configurations, tokens and all else but layers. Registries take manifests of 4 MiB.
const maxAnswer = maxConfig

// atMost is a body that is too long where it is longer.
type atMost struct {
	io.ReadCloser
	left int
}

func (a *atMost) Read(b []byte) (int, error) {
	n, err := a.ReadCloser.Read(b)
	if a.left -= n; a.left < 0 {
		return 0, fmt.Errorf("the registry's answer has more than %d bytes", maxAnswer)
	}
	return n, err
}
