// SPDX-License-Identifier: Apache-2.0

package main

import "net/http"

// wary is how a registry is asked, which may say anything. The library behind it holds what comes to digests, and leaves these to others:
//
//  1. Of a manifest of schema 1, by its own word, it believes the header that says which digest it has, also where an index has named
//     another kind. So any manifest could be put below an index that somebody has signed, or pinned by its digest.
type wary struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (w *wary) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := w.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	resp.Header.Del("Docker-Content-Digest")
	return resp, nil
}
