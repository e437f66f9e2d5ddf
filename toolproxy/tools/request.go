// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"

	"agentrun/rings"
	"agentrun/toolproxy/egress"
	"agentrun/toolproxy/gate"
)

// canonicalRequest is what handlers get: one spelling of the path, the body in memory, the route in the context.
func canonicalRequest(req *http.Request, route egress.Route, target egress.RequestTarget, body []byte) *http.Request {
	out := req.WithContext(context.WithValue(req.Context(), routeKey{}, route))
	query, _ := target.Query()
	out.URL = &url.URL{Path: target.Path.String(), RawQuery: query}
	out.RequestURI = target.URI()
	out.Body = io.NopCloser(bytes.NewReader(body))
	out.ContentLength = int64(len(body))
	out.TransferEncoding, out.Trailer = nil, nil
	return out
}

// refuse answers and remembers for the record.
func (m *Mux) refuse(w http.ResponseWriter, req *http.Request, e *gate.Error, weight rings.Ring) {
	m.refusals.add(req.Context(), e, weight)
	if e.Rule == ruleSlow {
		writeError(w, http.StatusRequestTimeout, e)
		return
	}
	WriteError(w, e)
}
