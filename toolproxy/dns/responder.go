// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"net/netip"

	"agentrun/internal/pace"
)

const (
	names     = 4096 // that get an address during the run
	perSecond = 500  // queries, in the long run; others wait in the socket, where the kernel bounds them
	burst     = 256  // queries at once
)

// Config is what a Responder needs to know.
type Config struct {
	// Allow decides whether a name exists for the agent. The name is in lower case, of bytes a-z 0-9 _ - .
	// only, without final dot, 1 to 253 bytes. It is called for each lookup, from several goroutines, and
	// must answer from memory, at once: no other datagram is answered meanwhile. Nil allows nothing.
	Allow func(name string) bool
	// Observe hears of refused lookups: of each name and reason at the 1st, 2nd, 4th, 8th … time, and of
	// at most 1024 different ones; see OtherNames. It is called by the goroutine that answers, so it
	// must not wait. Nil: nobody does.
	Observe func(Refusal)
}

// Responder answers the lookups of one run. Its methods can be called from several goroutines.
type Responder struct {
	allow   func(string) bool
	names   table
	refused refusals
	pace    *pace.Pace
}

// New makes a responder for one run.
func New(c Config) *Responder {
	if c.Allow == nil {
		c.Allow = func(string) bool { return false }
	}
	return &Responder{
		allow:   c.Allow,
		names:   table{max: names},
		refused: refusals{tell: c.Observe},
		pace:    pace.New(perSecond, burst),
	}
}

// Name is what a synthetic address stands for; false if for nothing (yet). That a name has an address
// means that it was allowed once, not that it still is.
func (r *Responder) Name(addr netip.Addr) (string, bool) {
	n, ok := numberOf(addr)
	if !ok {
		return "", false
	}
	return r.names.name(n)
}
