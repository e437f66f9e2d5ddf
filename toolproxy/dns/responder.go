// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"fmt"
	"net/netip"
	"sync/atomic"

	"agentrun/internal/pace"
)

const burst = 256 // queries at once

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
	// Names bounds how many names get an address during the run. 0: 4096. Greatest: MaxNames.
	Names int
	// PerSecond bounds the queries that are answered, in the long run; 256 may come at once. Others wait
	// in the socket, where the kernel bounds them. 0: 500. Greatest: 1,000,000.
	PerSecond int
}

const (
	defaultNames     = 4096
	defaultPerSecond = 500
	maxPerSecond     = 1_000_000
)

// Responder answers the lookups of one run. Its methods can be called from several goroutines.
type Responder struct {
	allow    func(string) bool
	names    table
	refused  refusals
	pace     *pace.Pace
	answered atomic.Uint64
	empty    atomic.Uint64
}

// New makes a responder for one run.
func New(c Config) (*Responder, error) {
	if c.Names < 0 || c.Names > MaxNames {
		return nil, fmt.Errorf("DNS responder: %d names: want 0 to %d", c.Names, MaxNames)
	}
	if c.PerSecond < 0 || c.PerSecond > maxPerSecond {
		return nil, fmt.Errorf("DNS responder: %d queries per second: want 0 to %d", c.PerSecond, maxPerSecond)
	}
	if c.Names == 0 {
		c.Names = defaultNames
	}
	if c.PerSecond == 0 {
		c.PerSecond = defaultPerSecond
	}
	if c.Allow == nil {
		c.Allow = func(string) bool { return false }
	}
	return &Responder{
		allow:   c.Allow,
		names:   table{max: c.Names},
		refused: refusals{tell: c.Observe},
		pace:    pace.New(c.PerSecond, burst),
	}, nil
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

// Stats counts since New.
type Stats struct {
	Answered uint64 // with an address
	Empty    uint64 // allowed name, type other than A and AAAA
	Refused  uint64 // all that Observe was or wasn't told of
}

// Stats counts what was answered so far.
func (r *Responder) Stats() Stats {
	return Stats{Answered: r.answered.Load(), Empty: r.empty.Load(), Refused: r.refused.sum()}
}
