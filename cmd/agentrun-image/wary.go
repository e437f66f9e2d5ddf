// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
)

// wary is how a registry is asked, which may say anything. The library behind it holds what comes to digests, and leaves these to others:
//
//  1. Of a manifest of schema 1, by its own word, it believes the header that says which digest it has, also where an index has named
//     another kind. So any manifest could be put below an index that somebody has signed, or pinned by its digest.
//  2. It reads manifests of 100 MiB, of which lists of nothing become gigabytes, and a configuration without a size to its end.
type wary struct {
	next   http.RoundTripper
	layers atomic.Bool // are read from now on, which are bounded by what they unpack to
}

// RoundTrip implements http.RoundTripper.
func (w *wary) RoundTrip(r *http.Request) (*http.Response, error) {
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
