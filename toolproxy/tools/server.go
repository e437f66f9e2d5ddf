// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"io"
	"log"
	"net/http"
	"time"
)

// Limits of the server.
const (
	headTimeout = 5 * time.Second
	idleTimeout = 60 * time.Second
	maxHeader   = 16 << 10
)

// NewServer returns the server of the tool gateway's listeners. Heads are short and have to come soon; bodies are the Mux's
// business, and so are replies, which may stream for as long as their call may last. HTTP/1.1 only: there is one client, and
// no TLS to agree on more.
func NewServer(h http.Handler) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Server{
		Handler:                      h,
		ReadHeaderTimeout:            headTimeout,
		IdleTimeout:                  idleTimeout,
		MaxHeaderBytes:               maxHeader,
		Protocols:                    protocols,
		DisableGeneralOptionsHandler: true,                       // "OPTIONS *" is a request target like others, refused as such
		ErrorLog:                     log.New(io.Discard, "", 0), // its lines quote what clients send
	}
}
