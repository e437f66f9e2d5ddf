// SPDX-License-Identifier: Apache-2.0

package exittest

import (
	"bytes"
	"io"
	"net/http"
	"sync"
)

// Collector keeps what is sent to it by OTLP over HTTP, as it comes: enough to tell that something came, and that a given
// text is not in it.
type Collector struct {
	mu   sync.Mutex
	sent [][]byte
}

// ServeHTTP takes everything; an empty answer means that all was taken.
func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(io.LimitReader(r.Body, 16<<20))
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = append(c.sent, b)
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// Count is how many messages came.
func (c *Collector) Count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.sent)
}

// Holds tells whether the bytes are in any message. Strings lie in protobuf as they are; a compressed message would hide
// them, so the collector offers no compression.
func (c *Collector) Holds(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range c.sent {
		if bytes.Contains(b, []byte(text)) {
			return true
		}
	}
	return false
}
